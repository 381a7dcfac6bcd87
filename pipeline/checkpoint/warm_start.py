"""Sets the initial values of a run from another run, or from another program's checkpoint.

choose variables by `vars_to_warm_start`
find the name of each in the checkpoint; fail with a list if any is missing
convert every value once, without keeping it: a value that cannot be used changes nothing
convert and assign each value, call init_fn, log the sources
"""

import dataclasses
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from ..contract.averages import AVERAGE, KINDS
from ..contract.checks import shown
from ..distribute.names import variable_of
from ..errors import CheckpointMismatchError, UserTypeError, UserValueError
from . import keys, slots
from .foreign import ForeignReader, KerasFile, opened
from .reader import DRIVER, Reader
from .slots import Slots
from .warm_start_settings import ALL, WarmStartSettings

_SEED = re.compile(r".+/seed_generator_state(_\d+)?")
_AVERAGES = tuple(f"{DRIVER}{kind.kind}/" for kind in KINDS)
_MAX_NAMES = 10
_MAX_LINES = 40


@dataclasses.dataclass(frozen=True)
class Origin:
    """The source of a variable's value.

    Attributes:
      name: name in the checkpoint.
      note: how the value is changed, for the log.
      convert: returns the model's value for the checkpoint's value.
    """

    name: str
    note: str = ""
    convert: Callable[[Any], Any] = lambda value: value

    def then(self, convert: Callable[[Any], Any], note: str) -> "Origin":
        """Returns the origin with another conversion after its own."""
        notes = ", ".join(filter(None, [self.note, note]))
        return Origin(self.name, notes, lambda value: convert(self.convert(value)))


def warm_start(
    settings: WarmStartSettings,
    state: Mapping[str, Any],
    modules: Mapping[str, Any],
    *,
    is_complete: bool = True,
    logs: bool = True,
) -> None:
    """Sets the variables that the settings choose, all of them or none.

    Args:
      settings: the source and the choice.
      state: variables and lookup tables by full name.
      modules: modules by name.
      is_complete: whether all layers are built, so that settings without effect are errors.
      logs: whether to log the source of each variable.

    Raises:
      CheckpointMismatchError: a variable is missing in the checkpoint or has another shape.
      UnreadableCheckpointError: the checkpoint is damaged.
      UserValueError: a setting does not fit the model or the checkpoint.
    """
    own = {name: value for name, value in state.items() if not name.startswith(DRIVER)}
    sources: dict[str, str] = {}
    if settings.ckpt_to_initialize_from is not None:
        plan = Plan(settings, own, modules)
        if is_complete:
            settings.check_used(list(own), plan.chosen)
        sources = plan.run()
        if logs:
            _log(sources, plan.reasons, plan.unused, plan.source.path)
    if settings.init_fn is not None:
        changed = _initialize(settings.init_fn, own, modules)
        if logs:
            _log(dict.fromkeys(changed, "init_fn"), {}, [], "init_fn")


class Plan:
    """The source of each chosen variable.

    Attributes:
      source: the checkpoint.
      chosen: names of the variables to set.
      reasons: why each other variable is not set, by name.
      unused: names of weights in another program's checkpoint that are not used.
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
        self._is_foreign = not isinstance(self.source, Reader) or isinstance(
            self.source, ForeignReader
        )
        if self._is_foreign:
            tables = {n for n in own if not hasattr(own[n], "assign") and not reasons[n]}
            reasons |= dict.fromkeys(tables, "a lookup table of this project only")
        self.reasons = {name: reason for name, reason in reasons.items() if reason}
        self.chosen = [name for name in own if name not in self.reasons]
        self._slots = Slots(self.source.shapes) if self._is_foreign else None
        self._given: dict[str, str] = {}
        for name in own:
            if (previous := settings.previous_name(name)) is not None:
                self._given[name] = self.source.name_of(previous) if self._slots else previous
        self._weights: dict[str, str] = {}
        self._reshaped: list[str] = []
        self.unused: Sequence[str] = ()

    def run(self) -> dict[str, str]:
        """Sets the chosen variables; returns the sources by name, for the log."""
        self._weights = self._matched_weights()
        if self._settings.weights == AVERAGE:
            self._check_has_averages()
        origins = {name: self._origin(name) for name in self.chosen}
        self._check(origins)
        found = {name: origin for name, origin in origins.items() if origin}
        if self._slots and not isinstance(self.source, KerasFile):
            used = {*self._weights.values(), *(origin.name for origin in found.values())}
            self.unused = [name for name in self._slots.weights if name not in used]
        for name, origin in found.items():
            if not self._is_table(name):
                self._converted(name, origin)  # Raises before anything is set.
        for name, origin in found.items():
            if self._is_table(name):
                # One at a time: a table there may fill several here.
                table = keys.nested({self.source.tables[origin.name]: self._own[name]})
                table.read(self.source.path).expect_partial()
            else:
                self._own[name].assign(self._converted(name, origin))
        return {n: f"{o.name} ({o.note})" if o.note else o.name for n, o in found.items()}

    def _reason(self, name: str) -> str | None:
        """Returns why a variable is not chosen; None if it is."""
        settings, prefix = self._settings, self._prefix(name)
        is_own_variable = prefix and "/" not in name.removeprefix(prefix)
        if is_own_variable and name.endswith("/learning_rate"):
            return "the configured learning rate is used"
        if (is_own_variable and settings.learning_rates_and_iterations) or settings.names(name):
            return None
        if is_own_variable:
            return "set learning_rates_and_iterations"
        if _SEED.fullmatch(name):
            return "a random stream"
        if settings.matches(name) or (ALL in settings.patterns and not prefix):
            return None
        return "a slot: not in '.*'" if ALL in settings.patterns else "not in vars_to_warm_start"

    def _prefix(self, name: str) -> str | None:
        return next((prefix for prefix in self._optimizers if name.startswith(prefix)), None)

    def _variable_of_slot(self, name: str) -> str | None:
        """Returns the full name of the variable that a slot belongs to; None for others."""
        prefix = self._prefix(name)
        return name.removeprefix(prefix).partition("/")[2] or None if prefix else None

    def _is_table(self, name: str) -> bool:
        return not hasattr(self._own[name], "assign")

    def _matched_weights(self) -> dict[str, str]:
        """Returns names in the checkpoint by names of variables, slots excepted.

        A name there is used for two variables only if both are given.
        """
        wanted = [name for name in self.chosen if not self._prefix(name)]
        wanted += filter(None, map(self._variable_of_slot, self.chosen))
        there = {*self.source.shapes, *self.source.tables}
        weights = self._slots.weights if self._slots else ()
        # A name without a slash is a counter.
        roots = {name.partition("/")[0] for name in weights if "/" in name}
        root = f"{next(iter(roots))}/" if len(roots) == 1 else ""
        found = {name: self._given[name] for name in wanted if name in self._given}
        used = set(found.values())
        for name in dict.fromkeys(wanted):
            if name in found:
                continue
            below = name.partition("/")[2]
            candidates = [name, below, root + below] if self._slots else [name]
            previous = next((n for n in candidates if n in there and n not in used), None)
            if previous is not None:
                found[name] = previous
                used.add(previous)
        return found

    def _origin(self, name: str) -> Origin | None:
        """Returns the source of a variable, or None if the checkpoint does not have it."""
        prefix, variable = self._prefix(name), self._variable_of_slot(name)
        if prefix is None:
            previous = self._weights.get(name)
            origin = previous and Origin(previous)
            if origin and self._settings.weights == AVERAGE:
                origin = self._average(name, previous)
        elif variable is None:
            origin = self._count(name, self._optimizers[prefix])
        else:
            origin = self._slot(name, prefix, variable)
        if not origin or origin.name not in {**self.source.shapes, **self.source.tables}:
            return None
        return origin if self._is_table(name) else self._of_shape(name, origin)

    def _slot(self, name: str, prefix: str, variable: str) -> Origin | None:
        previous = self._weights.get(variable)
        if name in self._given:
            return Origin(self._given[name])
        if previous is None:
            return None
        slot = name.removeprefix(prefix).partition("/")[0]
        if self._slots is None:
            return Origin(f"{prefix}{slot}/{previous}")
        optimizer = self._optimizers[prefix]
        found = self._slots.slot(optimizer, slot, previous)
        if found is None:
            return None
        origin, is_v1 = Origin(found[0]), found[1]
        # tf.compat.v1's momentum sums gradients, Keras' the updates that they make. A subclass
        # with its own formula is that of tf.compat.v1.
        if (
            not is_v1
            or not isinstance(optimizer, keras.optimizers.SGD)
            or type(optimizer).update_step is not keras.optimizers.SGD.update_step
        ):
            return origin
        return origin.then(lambda v: -_rate(optimizer) * v, "times minus the learning rate")

    def _count(self, name: str, optimizer: Any) -> Origin | None:
        """Returns the source of the number of updates, or of a number that belongs to it."""
        given = self._given.get(name)
        if self._slots is None:
            return Origin(given or name)
        previous = given or self._slots.count()
        if not name.endswith("/iteration") or previous not in self.source.shapes:
            return Origin(given) if given else None
        dtype = self._own[name].dtype.as_numpy_dtype
        if slots.is_named_power(previous):
            return Origin(previous).then(
                lambda v: dtype(slots.updates_of_power(previous, float(v), optimizer)),
                "as a number of updates",
            )
        if not given and isinstance(optimizer, keras.optimizers.Adam):
            self._check_powers(previous, optimizer)
        return Origin(previous).then(dtype, "")

    def _check_powers(self, count: str, optimizer: Any) -> None:
        number = int(self.source.value(count))
        for power in self._slots.powers():
            value = float(self.source.value(power))
            if not slots.is_power(power, value, optimizer, number):
                raise UserValueError(
                    f"{self.source.path} has {count} {number}, and {power} {value:g}, which is not "
                    f"beta ** {number + 1} of the optimizer: expected the same beta_1 and beta_2. "
                    f"Set them, or var_name_to_prev_var_name={{'optimizer/iteration': {power!r}}}."
                )

    def _average(self, name: str, previous: str) -> Origin:
        """Returns the average of a variable; its value if it has none.

        Raises:
          UserValueError: it has several.
        """
        for name_there in (f"{prefix}{previous}" for prefix in _AVERAGES):
            if name_there in self.source.shapes:
                return Origin(name_there)
        end = f"{previous}/{slots.AVERAGE}"
        if end in self.source.shapes:
            return Origin(end)
        found = [n for n in self.source.shapes if n.endswith(f"/{end}")]
        if len(found) > 1:
            raise UserValueError(
                f"WarmStartSettings.weights is 'average', and {previous} has several: {found}. Set "
                f"var_name_to_prev_var_name={{{name!r}: {found[0]!r}}} and weights='live'."
            )
        return Origin(found[0]) if found else Origin(previous, "has no average")

    def _check_has_averages(self) -> None:
        ends = (n.startswith(_AVERAGES) or n.endswith(slots.AVERAGE) for n in self.source.shapes)
        if not any(ends):
            raise UserValueError(
                f"WarmStartSettings.weights is 'average', and {self.source.path} has no averages: "
                "expected a run that was trained with them. Set weights='live'."
            )

    def _of_shape(self, name: str, origin: Origin) -> Origin | None:
        """Returns an origin whose value has the model's shape; None if there is none."""
        shape, previous = list(self._own[name].shape), list(self.source.shapes[origin.name])
        infos, variable = self._settings.var_name_to_vocab_info, self._variable_of_slot(name)
        info = infos.get(name) or infos.get(variable)
        if info is not None:
            rows = info.rows(name, previous, shape)
            known = sum(row >= 0 for row in rows)
            value = self._own[name]
            backup = _array(value) if variable else info.backup(name, shape, value.dtype)
            return origin.then(
                lambda v: info.moved(v, rows, backup), f"{known} of {info.new_vocab_size} words"
            )
        if shape == previous:
            return origin
        is_given = name in self._given or variable in self._given
        if not is_given or not _is_split(shape, previous):
            self._reshaped.append(f"{name} {shape}, {origin.name} {previous}")
            return None
        return origin.then(lambda v: np.reshape(v, shape), f"{previous} as {shape}")

    def _converted(self, name: str, origin: Origin) -> np.ndarray:
        """Returns the value of a variable in the model's dtype."""
        value = np.asarray(origin.convert(self.source.value(origin.name)))
        there, here = tf.as_dtype(value.dtype), self._own[name].dtype
        if there == here:
            return value
        if there.is_floating and here.is_floating:
            with np.errstate(over="ignore"):
                cast = value.astype(here.as_numpy_dtype)
            if np.all(np.isfinite(cast) == np.isfinite(value)):
                return cast
        raise UserValueError(
            f"{name} is {here.name}, and {origin.name} in {self.source.path} is {there.name}: "
            "expected the same dtype, or floats in its range. Leave it out of vars_to_warm_start, "
            "or set it in init_fn."
        )

    def _check(self, origins: Mapping[str, Origin | None]) -> None:
        """Raises a CheckpointMismatchError if a chosen variable has no source."""
        missing = [name for name, origin in origins.items() if origin is None]
        if not missing:
            return
        used = {origin.name for origin in origins.values() if origin}
        names = self._slots.weights if self._slots else self.source.shapes
        free = [n for n in names if n not in used and not n.startswith(DRIVER)]
        reshaped = {line.partition(" ")[0] for line in self._reshaped}
        shapes = {n: list(getattr(value, "shape", ())) for n, value in self._own.items()}
        problems = {
            "missing": [f"{name} {shapes[name]}" for name in missing if name not in reshaped],
            "of another shape (model, checkpoint)": self._reshaped,
            "not used of the checkpoint": [f"{n} {list(self.source.shapes[n])}" for n in free],
        }
        lines = [f"  {title}: {_short(found)}" for title, found in problems.items() if found]
        fitting = list(_whole(missing, [name for name in origins if name not in missing]))
        remedy = f"vars_to_warm_start={fitting} to load only these, or " if fitting else ""
        raise CheckpointMismatchError(
            f"{self.source.path} does not fit the chosen variables; none was set.\n"
            + "\n".join(lines)
            + f"\nSet {remedy}var_name_to_prev_var_name={{{missing[0]!r}: '...'}} for names that "
            "differ."
        )


def checksum(state: Mapping[str, Any]) -> int:
    """Returns a number that differs, almost surely, where a value differs; without tables."""
    crc = 0
    for name, value in state.items():
        # Each replica has its own random streams.
        if hasattr(value, "assign") and not _SEED.fullmatch(name):
            crc = zlib.crc32(_array(value).tobytes(), crc)
    return crc


def warn_of_schemas(settings: WarmStartSettings, model_dir: str) -> None:
    """Logs a warning for features that `schema.json` of the other run describes differently."""
    path = settings.ckpt_to_initialize_from
    if path is None or settings.var_name_to_vocab_info:
        return
    folder = path if tf.io.gfile.isdir(path) else os.path.dirname(path)
    there, here = _schema(folder), _schema(model_dir)
    differing = sorted(name for name in here.keys() & there if here[name] != there[name])
    if differing:
        logging.warning(
            "warm start | the features %s differ from those in %s: rows of embeddings may belong "
            "to other words, or numbers may have another scale. Use the schema.json of that run.",
            differing,
            folder,
        )


def _schema(folder: str) -> dict[str, Any]:
    try:
        with tf.io.gfile.GFile(os.path.join(folder, "schema.json")) as file:
            content = json.load(file)
        statistics = content.get("statistics", {})
        return {n: (each, statistics.get(n)) for n, each in content.get("features", {}).items()}
    except (tf.errors.OpError, ValueError, AttributeError):
        return {}  # Absent, or damaged: its owner reports that.


def _initialize(
    init_fn: Callable[[dict[str, Any]], None], own: Mapping[str, Any], modules: Mapping[str, Any]
) -> list[str]:
    """Calls the user's function; returns the names of the variables that it changed."""
    before = {name: checksum({name: value}) for name, value in own.items()}
    returned = init_fn(dict(modules))
    if returned is not None:
        raise UserTypeError(
            f"WarmStartSettings.init_fn returned {shown(returned)}: expected None. Set values by "
            "modules['network'].set_weights(values)."
        )
    return [name for name, value in own.items() if checksum({name: value}) != before[name]]


def _log(
    sources: Mapping[str, str], reasons: Mapping[str, str], unused: Sequence[str], path: str
) -> None:
    num_all = len(sources) + len(reasons)
    logging.info("warm start | %d of %d variables from %s", len(sources), num_all, path)
    lines = [f"{name} from {source}" for name, source in sources.items()]
    lines += [f"{name} keeps its initial value: {reason}" for name, reason in reasons.items()]
    for line in lines[:_MAX_LINES]:
        logging.info("warm start | %s", line)
    if lines[_MAX_LINES:]:
        logging.info("warm start | and %d more", len(lines) - _MAX_LINES)
    if unused:
        logging.info("warm start | not used of the checkpoint: %s", _short(unused, 5))


def _whole(missing: Sequence[str], fitting: Sequence[str]) -> Iterator[str]:
    """Yields expressions for the names that fit: of whole modules and layers if possible."""
    patterns = {}
    for name in fitting:
        parts = name.split("/")
        folders = ["/".join(parts[:i]) + "/" for i in range(1, len(parts))]
        whole = (f for f in folders if not any(n.startswith(f) for n in missing))
        folder = next(whole, None)
        patterns[f"{re.escape(folder)}.*" if folder else re.escape(name)] = None
    yield from patterns


def _is_split(one: Sequence[int], other: Sequence[int]) -> bool:
    """Returns whether axes of one shape are split in the other: [4, 6] and [4, 2, 3]."""
    coarse, fine = sorted((list(one), list(other)), key=len)
    for size in coarse:
        product = 1
        while fine and (product < size or fine[0] == 1):
            product *= fine.pop(0)
        if product != size:
            return False
    return all(size == 1 for size in fine)


def _rate(optimizer: Any) -> float:
    """Returns the learning rate, of a schedule that at the optimizer's iteration."""
    return float(tf.convert_to_tensor(variable_of(optimizer.learning_rate)))


def _array(value: Any) -> np.ndarray:
    return tf.convert_to_tensor(value).numpy()


def _short(names: Sequence[str], most: int = _MAX_NAMES) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
