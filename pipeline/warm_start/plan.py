# SPDX-License-Identifier: Apache-2.0
"""Finds the origin of each variable in a checkpoint, and sets the values."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ..checkpoint import keys
from ..checkpoint.reader import DRIVER, Reader, listed
from ..contract.weight_averages import AVERAGE, KINDS
from ..errors import CheckpointMismatchError, UserValueError
from .settings import ALL, WarmStartSettings
from .slots import Slots
from .sources import Origin, array_of, opened

SEED = re.compile(r".+/seed_generator_state(_\d+)?")
_AVERAGES = tuple(f"{DRIVER}{kind.kind}/" for kind in KINDS)


class Plan:
    """The origin of each chosen variable.

    Attributes:
      source: the checkpoint.
      chosen: names of the variables to set.
      reasons: why each other variable is not set, by name.
      unused: names of weights of the checkpoint that the model does not have.
    """

    def __init__(
        self, settings: WarmStartSettings, own: Mapping[str, Any], modules: Mapping[str, Any]
    ) -> None:
        """Opens the checkpoint and chooses the variables."""
        self._settings, self._own = settings, own
        self._optimizers = {
            f"{name}/": module
            for name, module in modules.items()
            if isinstance(module, keras.optimizers.Optimizer)
        }
        reasons = {name: self._reason(name) for name in own}
        models = {
            name: module
            for name, module in modules.items()
            if isinstance(module, keras.Model)
            and any(not why and key.startswith(f"{name}/") for key, why in reasons.items())
        }
        self.source = opened(settings.ckpt_to_initialize_from, models)
        self._is_foreign = type(self.source) is not Reader
        if self._is_foreign:
            tables = filter(self._is_table, own)
            reasons |= dict.fromkeys(tables, "a lookup table of this project only")
        self.reasons = {name: reason for name, reason in reasons.items() if reason}
        self.chosen = [name for name in own if name not in self.reasons]
        given = {name: settings.previous_name(name) for name in own}
        self._given = {name: previous for name, previous in given.items() if previous}
        self._slots = Slots([n for n in self.source.shapes if not n.startswith(DRIVER)])
        self._weights = self._matched_weights()
        self._reshaped: dict[str, str] = {}
        self.unused: Sequence[str] = ()

    def run(self) -> dict[str, str]:
        """Sets the chosen variables; returns their origins by name, for the log."""
        source = self.source
        origins = {name: self._origin(name) for name in self.chosen}
        if self._settings.weights == AVERAGE and not any(
            name.startswith(_AVERAGES) for name in source.shapes
        ):
            raise UserValueError(
                f"WarmStartSettings.weights is 'average', and {source.path} has no averages of "
                "this project: expected a run that was trained with them. Set weights='live'; for "
                "those of TensorFlow 1 also var_name_to_prev_var_name="
                r"{'network/(.*)': r'\1/ExponentialMovingAverage'}."
            )
        self._check(origins)
        values = {name: o for name, o in origins.items() if not self._is_table(name)}
        for name, origin in values.items():
            self._converted(name, origin)  # Raises before anything is set; memory for one value.
        for name, origin in origins.items():
            if name in values:
                self._own[name].assign(self._converted(name, origin))
            else:  # One at a time: a table there may fill several here.
                table = keys.nested({source.tables[origin.name]: self._own[name]})
                table.read(source.path).expect_partial()
        used = {*self._own, *self._weights.values(), *(o.name for o in origins.values())}
        self.unused = [name for name in self._slots.weights if name not in used]
        return {name: str(origin) for name, origin in origins.items()}

    def _reason(self, name: str) -> str | None:
        """Returns why a variable is not chosen; None if it is."""
        settings, (prefix, last, variable) = self._settings, self._parts(name)
        is_number = prefix and not variable
        if is_number and last == "learning_rate":
            return "the configured learning rate is used"
        if (is_number and settings.learning_rates_and_iterations) or settings.names(name):
            return None
        if is_number:
            return "set learning_rates_and_iterations"
        if SEED.fullmatch(name):
            return "a random stream"
        if settings.matches(name) or (ALL in settings.patterns and not prefix):
            return None
        return "a slot: not in '.*'" if ALL in settings.patterns else "not in vars_to_warm_start"

    def _parts(self, name: str) -> tuple[str, str, str]:
        """Returns `("optimizer/", "momentum", "net/kernel")`; a number has no variable.

        All are empty for other variables.
        """
        prefix = next((each for each in self._optimizers if name.startswith(each)), "")
        slot, _, variable = name.removeprefix(prefix).partition("/") if prefix else ("", "", "")
        return prefix, slot, variable

    def _is_table(self, name: str) -> bool:
        return not hasattr(self._own[name], "assign")

    def _matched_weights(self) -> dict[str, str]:
        """Returns names in the checkpoint by names of variables, slots excepted.

        A name there is used for two variables only if both are given.
        """
        parts = [(name, *self._parts(name)) for name in self.chosen]
        wanted = [name for name, prefix, _, _ in parts if not prefix]
        wanted += [variable for _, _, _, variable in parts if variable]
        found = {name: self._given[name] for name in wanted if name in self._given}
        free = {*self.source.shapes, *self.source.tables} - {*found.values()}
        for name in dict.fromkeys(wanted):
            candidates = [name]
            if self._is_foreign:
                below = name.partition("/")[2]
                candidates += [below, self._slots.scope + below]
            fitting = [each for each in candidates if each in free]
            if name not in found and fitting:
                found[name] = fitting[0]
                free.remove(fitting[0])
        return found

    def _origin(self, name: str) -> Origin | None:
        """Returns the origin of a variable, or None if the checkpoint does not have it."""
        origin = self._named(name)
        there = self.source.tables if self._is_table(name) else self.source.shapes
        if origin is None or origin.name not in there:
            return None
        return origin if self._is_table(name) else self._of_shape(name, origin)

    def _named(self, name: str) -> Origin | None:
        """Returns the origin by its name alone."""
        prefix, slot, variable = self._parts(name)
        previous = self._weights.get(variable or name)
        if not prefix and previous and self._settings.weights == AVERAGE:
            averages = (f"{each}{previous}" for each in _AVERAGES)
            found = next((each for each in averages if each in self.source.shapes), None)
            return Origin(found) if found else Origin(previous, "has no average")
        if not prefix:
            return Origin(previous) if previous else None
        # An expression may match a variable and its slots.
        if name in self._given and self._given[name] != previous:
            return Origin(self._given[name])
        ours = f"{prefix}{slot}/{previous}" if variable else name
        if ours in self.source.shapes:
            return Origin(ours)
        if previous:
            return self._slots.origin(self._optimizers[prefix], slot, previous)
        count = self._slots.count() if slot == "iteration" else None
        return Origin(count) if count else None

    def _of_shape(self, name: str, origin: Origin) -> Origin | None:
        """Returns an origin whose value has the model's shape; None if there is none."""
        shape, previous = list(self._own[name].shape), list(self.source.shapes[origin.name])
        _, _, variable = self._parts(name)
        infos = self._settings.var_name_to_vocab_info
        if (info := infos.get(name) or infos.get(variable)) is not None:
            rows = info.rows(name, previous, shape)
            value = self._own[name]
            backup = array_of(value) if variable else info.backup(name, shape, value.dtype)
            known = f"{sum(row >= 0 for row in rows)} of {info.new_vocab_size} words"
            return origin.then(known, lambda v: info.moved(v, rows, backup))
        if shape == previous:
            return origin
        if {name, variable} & self._given.keys() and _is_split(shape, previous):
            return origin.then(f"{previous} as {shape}", lambda v: np.reshape(v, shape))
        self._reshaped[name] = f"{name} {shape}, {origin.name} {previous}"
        return None

    def _converted(self, name: str, origin: Origin) -> np.ndarray:
        """Returns the value of a variable in the model's dtype."""
        value = np.asarray(origin.convert(self.source.value(origin.name)))
        there, here = tf.as_dtype(value.dtype), self._own[name].dtype
        if there == here:
            return value
        if (there.is_floating and here.is_floating) or (there.is_integer and here.is_integer):
            with np.errstate(over="ignore"):
                cast = value.astype(here.as_numpy_dtype)
            if np.all(
                np.isfinite(cast) == np.isfinite(value) if there.is_floating else cast == value
            ):
                return cast
        raise UserValueError(
            f"{name} is {here.name}, and {origin.name} in {self.source.path} is {there.name}: "
            "expected the same dtype, or numbers in its range. Leave it out of "
            "vars_to_warm_start, or set it in init_fn."
        )

    def _check(self, origins: Mapping[str, Origin | None]) -> None:
        """Raises a CheckpointMismatchError if a chosen variable has no origin."""
        missing = [name for name, origin in origins.items() if origin is None]
        if not missing:
            return
        used = {origin.name for origin in origins.values() if origin}
        absent = [n for n in missing if n not in self._reshaped]
        problems = {
            "missing": [f"{n} {list(getattr(self._own[n], 'shape', ()))}" for n in absent],
            "of another shape (model, checkpoint)": list(self._reshaped.values()),
            "not used of the checkpoint": [
                f"{n} {list(self.source.shapes[n])}" for n in self._slots.weights if n not in used
            ],
        }
        lines = [f"  {title}: {listed(found)}" for title, found in problems.items() if found]
        fitting = _whole(missing, [name for name in origins if name not in missing])
        remedy = f"vars_to_warm_start={fitting} to load only these, or " if fitting else ""
        raise CheckpointMismatchError(
            f"{self.source.path} does not fit the chosen variables; none was set.\n"
            + "\n".join(lines)
            + f"\nSet {remedy}var_name_to_prev_var_name={{{missing[0]!r}: '...'}} for names that "
            "differ, or init_fn."
        )


def _whole(missing: Sequence[str], fitting: Sequence[str]) -> list[str]:
    """Returns expressions for the names that fit: of whole modules and layers if possible."""
    patterns = []
    for name in fitting:
        folders = (name[: match.end()] for match in re.finditer("/", name))
        whole = (f for f in folders if not any(n.startswith(f) for n in missing))
        folder = next(whole, None)
        patterns.append(f"{re.escape(folder)}.*" if folder else re.escape(name))
    return list(dict.fromkeys(patterns))


def _is_split(one: Sequence[int], other: Sequence[int]) -> bool:
    """Returns whether axes of one shape are split in the other: [4, 6] and [4, 2, 3]."""
    coarse, fine = ({int(n) for n in np.cumprod(s)} for s in sorted((one, other), key=len))
    return max(coarse) == max(fine) and coarse <= fine
