"""Where a variable's first value comes from, and how it is made of what is there."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.process.refusals import RefusedValueError
from pipeline.strategy import sharding


@dataclasses.dataclass(frozen=True)
class Origin:
    """The place of a variable's value, by name.

    Attributes:
      name: name in the checkpoint.
      words: what is done with the value there, for the log; "" for nothing.
      convert: makes the value here of the one there; None where they are the same.
      dtype: of what `convert` makes; None for that of the value there.
    """

    name: str
    words: str = ""
    convert: Callable[[Any], Any] | None = None
    dtype: tf.DType | None = None

    def __str__(self) -> str:
        return f"{self.name} ({self.words})" if self.words else self.name


def is_cut(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two shapes are of the same numbers, with axes of one split in the other.

    `[32, 32]` and `[32, 4, 8]` are: the order of the numbers is the same. `[4, 8]` and
    `[8, 4]` are not.

    Args:
      one: a shape.
      other: another shape.
    """
    coarse, fine = sorted((list(one), list(other)), key=len)
    for size in coarse:
        made = 1
        while fine and (made < size or fine[0] == 1):
            made *= fine.pop(0)
        if made != size:
            return False
    return all(size == 1 for size in fine)


def with_shape(origin: Origin, there: Sequence[int], here: Sequence[int]) -> Origin:
    """Returns an origin that makes values of another shape, of the same numbers.

    Args:
      origin: where the value comes from.
      there: its shape in the checkpoint.
      here: its shape in this model.
    """
    made = origin.convert or (lambda value: value)
    words = [*filter(None, [origin.words, f"{list(there)} as {list(here)}"])]
    return Origin(
        origin.name,
        ", ".join(words),
        lambda value: np.reshape(np.asarray(made(value)), here),
    )


def with_dtypes(
    origins: Mapping[str, Origin], own: Mapping[str, Any], source: Any
) -> dict[str, Origin]:
    """Returns origins that make values of this model's dtypes.

    Args:
      origins: origins by name, of variables that the source has.
      own: variables and tables of the model, by name.
      source: the checkpoint or file.

    Raises:
      ValueError: numbers of one kind there are of another here.
    """
    return {
        name: _with_dtype(name, origin, own[name], source)
        for name, origin in origins.items()
    }


def _with_dtype(name: str, origin: Origin, variable: Any, source: Any) -> Origin:
    if origin.name not in source.shapes:
        return origin  # A table.
    there, here = origin.dtype or source.dtype(origin.name), variable.dtype
    if there == here:
        return origin
    if there.is_floating != here.is_floating:
        raise RefusedValueError(
            f"{name} is {here.name}, and {origin.name} in {source.path} is "
            f"{there.name}: leave it out by vars_to_warm_start, or set it in an "
            "init_fn."
        )
    words = [*filter(None, [origin.words, f"{there.name} as {here.name}"])]
    made = origin.convert or (lambda value: value)

    def convert(value: Any) -> Any:
        value = np.asarray(made(value))
        with np.errstate(over="ignore", invalid="ignore"):  # Told below.
            cast = value.astype(np.dtype(here.as_numpy_dtype))
        if here.is_floating:
            fits = _all_finite(cast) or not _all_finite(value)
        else:
            fits = np.array_equal(cast, value)
        if not fits:
            raise RefusedValueError(
                f"{origin.name} in {source.path} has {there.name} numbers that are "
                f"beyond {here.name}, which {name} is: leave it out by "
                "vars_to_warm_start."
            )
        return cast

    return Origin(origin.name, ", ".join(words), convert)


def _all_finite(value: np.ndarray) -> bool:
    return bool(tf.reduce_all(tf.math.is_finite(tf.constant(value))))


def assign(origins: Mapping[str, Origin], own: Mapping[str, Any], source: Any) -> None:
    """Sets variables, all of them or none.

    Args:
      origins: origins by name.
      own: variables of the model, by name.
      source: the checkpoint or file.

    Raises:
      UnreadableCheckpointError: a value is cut short or damaged; nothing was set.
      ValueError: a value has no equal here; nothing was set.
    """
    made = {
        name: origin.convert(source.value(origin.name))
        for name, origin in origins.items()
        if origin.convert is not None
    }
    source.assign([(own[n], o.name) for n, o in origins.items() if n not in made])
    for name, value in made.items():
        sharding.assign(own[name], value)
