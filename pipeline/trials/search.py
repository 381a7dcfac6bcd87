"""Reads what a sweep searches: `LEARNING_RATE=log(1e-4,1e-1)`.

A value goes back to the command as the text of a gin binding. Choices are texts from
the beginning, so that `choice(@Adam, @SGD)` is as good as `choice(64, 128)`.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from pipeline.process import refusals
from pipeline.process.refusals import RefusedValueError

EXAMPLE = '--search="LEARNING_RATE=log(1e-4, 1e-1)"'

_SEARCH = re.compile(r"\s*([A-Za-z_][\w/.]*)\s*=\s*(\w+)\s*\((.*)\)\s*", re.DOTALL)
_OPENING, _CLOSING = "([{", ")]}"
# What other programs call them.
_ELSEWHERE = {"loguniform": "log", "categorical": "choice", "randint": "int"}
_ELSEWHERE |= {"lograndint": "log_int", "range": "int", "float": "uniform"}
# Most values of a whole range that a grid goes through.
_MOST_VALUES = 1000

Value = float | int | str


@dataclasses.dataclass(frozen=True)
class Dimension:
    """One name that is searched, and its values.

    Attributes:
      name: left side of the gin binding, such as "cnn.dropout".
      kind: one of `KINDS`.
      bounds: lowest and highest value, and maybe the step between two; of a choice ().
      choices: texts of the values of a choice; of a range ().
    """

    name: str
    kind: str
    bounds: tuple[float | int, ...] = ()
    choices: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Returns the text by which it was asked for, in one form."""
        values = self.choices or tuple(map(repr, self.bounds))
        return f"{self.name}={self.kind}({', '.join(values)})"

    @property
    def step(self) -> float | int | None:
        """The distance of two values; None where all between the bounds are values."""
        return self.bounds[2] if len(self.bounds) > 2 else None

    def ends(self) -> Sequence[Value]:
        """Returns values to check the name with: all choices, or both bounds."""
        return self.choices or self.bounds[:2]

    def all(self) -> Sequence[Value]:
        """Returns all values, for a grid.

        Raises:
          ValueError: it has too many.
        """
        if self.choices:
            return self.choices
        low, high = self.bounds[:2]
        step = self.step or (1 if self.kind == "int" else 0)
        count = int((high - low) / step + 1e-9) + 1 if step else math.inf
        if count > _MOST_VALUES or self.kind == "log_int":
            raise RefusedValueError(
                f"--search={self} has too many values for --sampler=grid: write "
                f"{self.name}=choice(...), or another sampler."
            )
        return tuple(low + i * step for i in range(count))

    def binding(self, value: Value) -> str:
        """Returns the gin binding that sets the name to a value.

        Args:
          value: text of a choice, or a number of the range.
        """
        return f"{self.name}={self.text(value)}"

    def text(self, value: Value) -> str:
        """Returns a value as gin reads it."""
        return str(value) if self.choices else repr(value)


def read(texts: Sequence[str]) -> tuple[Dimension, ...]:
    """Reads all that is searched.

    Args:
      texts: each `NAME=KIND(VALUES)`.

    Raises:
      ValueError: a text is none of these, or a name is searched twice.
    """
    found: dict[str, Dimension] = {}
    for text in texts:
        dimension = _read(text)
        if dimension.name in found:
            raise RefusedValueError(
                f"--search names {dimension.name} twice: write one of "
                f"{found[dimension.name]} and {dimension}."
            )
        found[dimension.name] = dimension
    return tuple(found.values())


def bindings(dimensions: Sequence[Dimension], values: Mapping[str, Value]) -> list[str]:
    """Returns the bindings of a trial, in the order of what is searched.

    Args:
      dimensions: what is searched.
      values: a value for each name.
    """
    return [each.binding(values[each.name]) for each in dimensions]


def _read(text: str) -> Dimension:
    match = _SEARCH.fullmatch(text)
    if match is None:
        raise RefusedValueError(
            f"--search={text}: write NAME=KIND(VALUES), such as {EXAMPLE}; kinds are "
            f"{', '.join(KINDS)}."
        )
    name, kind, inside = match.groups()
    if kind not in KINDS:
        meant = _ELSEWHERE.get(kind.lower().replace("_", ""))
        hint = f" Did you mean {meant}?" if meant else refusals.near(kind, list(KINDS))
        raise RefusedValueError(
            f"--search={text}: there is no {kind}(...).{hint} Write "
            f"{', '.join(KINDS)}, as in {EXAMPLE}."
        )
    items = list(_items(inside))
    if kind == "choice":
        return Dimension(name, kind, choices=_choices(text, items))
    number, most = KINDS[kind]
    try:
        bounds = tuple(number(item) for item in items)
    except ValueError as error:
        raise RefusedValueError(
            f"--search={text}: {error}; write {_sample(name, kind)}."
        ) from error
    if not (2 <= len(bounds) <= most and all(map(math.isfinite, bounds))):
        raise RefusedValueError(
            f"--search={text} has {len(bounds)} numbers: write {_sample(name, kind)}."
        )
    low, high, *step = bounds
    if low >= high or (step and not 0 < step[0] <= high - low):
        raise RefusedValueError(
            f"--search={text} has no values: write the lower bound first, then the "
            f"higher one, as in {_sample(name, kind)}."
        )
    if kind.startswith("log") and low <= 0:
        raise RefusedValueError(
            f"--search={text}: {low!r} has no logarithm: write a lower bound above 0, "
            f"as in {_sample(name, kind)}."
        )
    return Dimension(name, kind, bounds)


def _sample(name: str, kind: str) -> str:
    values = {
        "uniform": "0, 0.5) or uniform(0, 0.5, 0.1",
        "log": "1e-4, 1e-1",
        "int": "1, 8) or int(16, 128, 16",
        "log_int": "16, 1024",
        "choice": "64, 128",
    }
    return f'--search="{name}={kind}({values[kind]})"'


def _choices(text: str, items: Sequence[str]) -> tuple[str, ...]:
    if not all(items) or len(items) < 2 or len(set(items)) < len(items):
        raise RefusedValueError(
            f"--search={text}: write at least two values, each of them once: "
            "choice(64, 128); strings in quotes: choice('relu', 'gelu')."
        )
    return tuple(items)


def _items(text: str) -> Iterator[str]:
    """Yields what commas separate, outside of brackets and quotes."""
    depth, quote, item = 0, "", ""
    for before, character in zip(" " + text, text, strict=False):
        if quote:
            quote = "" if character == quote and before != "\\" else quote
        elif character in "'\"":
            quote = character
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        if character == "," and not depth and not quote:
            yield item.strip()
            item = ""
        else:
            item += character
    if item.strip():
        yield item.strip()


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise RefusedValueError(f"{text!r} is no number") from error


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise RefusedValueError(f"{text!r} is no whole number") from error


# Each kind of values: what reads a number, and how many numbers it has at the most.
KINDS: dict[str, tuple[Callable[[str], float | int], int]] = {
    "uniform": (_float, 3),
    "log": (_float, 2),
    "int": (_int, 3),
    "log_int": (_int, 2),
    "choice": (_float, 0),
}
