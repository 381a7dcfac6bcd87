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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from ..checkpoint import keys
from ..checkpoint.reader import DRIVER, Reader, listed
from ..contract.averages import AVERAGE, KINDS
from ..contract.checks import shown
from ..distribute.names import variable_of
from ..distribute.replicas import Replicas
from ..errors import CheckpointMismatchError, UserTypeError, UserValueError
from . import slots
from .other_formats import KerasFile, array_of, opened
from .settings import ALL, WarmStartSettings
from .slots import Slots

_SEED = re.compile(r".+/seed_generator_state(_\d+)?")
_AVERAGES = tuple(f"{DRIVER}{kind.kind}/" for kind in KINDS)
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

    def then(self, note: str, convert: Callable[[Any], Any]) -> "Origin":
        """Returns the origin with another conversion after its own."""
        notes = ", ".join(filter(None, [self.note, note]))
        return Origin(self.name, notes, lambda value: convert(self.convert(value)))


class WarmStart:
    """Sets the initial values of a training's variables; `loop.train_state` calls it."""

    def __init__(self, settings: WarmStartSettings, model_dir: str) -> None:
        """Takes the settings, and the directory whose schema is compared."""
        self._settings, self._model_dir = settings, model_dir
        self._names: set[str] = set()  # Of the last call.

    def __call__(
        self,
        state: Mapping[str, Any],
        modules: Mapping[str, Any],
        replicas: Replicas,
        *,
        is_complete: bool,
    ) -> bool:
        """Sets the values; see `warm_start`. All processes call it.

        Returns:
          Whether it has set a variable.

        Raises:
          UserError: the settings do not fit, or the processes set different values.
        """
        logs = self._names != set(state) and replicas.is_chief
        is_set = warm_start(self._settings, state, modules, is_complete=is_complete, logs=logs)
        self._names = set(state)
        if logs:
            warn_of_schemas(self._settings, self._model_dir)
        sums = [_checksum(state)] if replicas.num_processes > 1 else [0]
        if len({total for [total] in replicas.gather(sums)}) > 1:
            raise UserValueError(
                "warm_start_from sets different values in different processes: expected the same. "
                "Set seeds in init_fn and backup_initializer."
            )
        return is_set


def warm_start(
    settings: WarmStartSettings,
    state: Mapping[str, Any],
    modules: Mapping[str, Any],
    *,
    is_complete: bool = True,
    logs: bool = True,
) -> bool:
    """Sets the variables that the settings choose, all of them or none.

    Args:
      settings: the source and the choice.
      state: variables and lookup tables by full name.
      modules: modules by name.
      is_complete: whether all layers are built, so that settings without effect are errors.
      logs: whether to log the source of each variable.

    Returns:
      Whether it has set a variable.

    Raises:
      CheckpointMismatchError: a variable is missing in the checkpoint or has another shape.
      CorruptCheckpointError: the checkpoint is damaged.
      UserValueError: a setting does not fit the model or the checkpoint.
    """
    own = {name: value for name, value in state.items() if not name.startswith(DRIVER)}
    sources: dict[str, str] = {}
    changed: Sequence[str] = ()
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
    return bool(sources or changed)


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
        # The optimizer state of another program; None for checkpoints of this project.
        self._slots = None if type(self.source) is Reader else Slots(self.source.shapes)
        if self._slots:
            tables = {name for name in own if self._is_table(name) and not reasons[name]}
            reasons |= dict.fromkeys(tables, "a lookup table of this project only")
        self.reasons = {name: reason for name, reason in reasons.items() if reason}
        self.chosen = [name for name in own if name not in self.reasons]
        given = {name: settings.previous_name(name) for name in own}
        self._aliases = getattr(self.source, "aliases", {})
        self._given = {name: self._aliases.get(each, each) for name, each in given.items() if each}
        self._weights: dict[str, str] = {}
        self._reshaped: dict[str, str] = {}
        self.unused: Sequence[str] = ()

    def run(self) -> dict[str, str]:
        """Sets the chosen variables; returns the sources by name, for the log."""
        self._weights = self._matched_weights()
        origins = {name: self._origin(name) for name in self.chosen}
        if self._settings.weights == AVERAGE and not any(map(_is_average, self.source.shapes)):
            raise UserValueError(
                f"WarmStartSettings.weights is 'average', and {self.source.path} has no averages: "
                "expected a run that was trained with them. Set weights='live'."
            )
        self._check(origins)
        values = {name: o for name, o in origins.items() if not self._is_table(name)}
        for name, origin in values.items():
            self._converted(name, origin)  # Raises before anything is set.
        for name, origin in origins.items():
            if name in values:
                self._own[name].assign(self._converted(name, origin))
            else:
                # One at a time: a table there may fill several here.
                table = keys.nested({self.source.tables[origin.name]: self._own[name]})
                table.read(self.source.path).expect_partial()
        if self._slots and not isinstance(self.source, KerasFile):
            used = {*self._weights.values(), *(origin.name for origin in origins.values())}
            self.unused = [name for name in self._slots.weights if name not in used]
        return {n: f"{o.name} ({o.note})" if o.note else o.name for n, o in origins.items()}

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
        # A name without a slash is a counter.
        weights = self._slots.weights if self._slots else ()
        roots = {name.partition("/")[0] for name in weights if "/" in name}
        root = f"{roots.pop()}/" if len(roots) == 1 else ""
        found = {name: self._given[name] for name in wanted if name in self._given}
        for name in dict.fromkeys(wanted):
            below = name.partition("/")[2]
            candidates = [name]
            if self._slots:  # An export of this project has its variables below `state`.
                candidates += [self._aliases.get(f"state/{name}"), below, root + below]
            free = (n for n in candidates if n in there and n not in found.values())
            if name not in found and (previous := next(free, None)) is not None:
                found[name] = previous
        return found

    def _origin(self, name: str) -> Origin | None:
        """Returns the source of a variable, or None if the checkpoint does not have it."""
        prefix, variable = self._prefix(name), self._variable_of_slot(name)
        if variable:
            origin = self._slot(name, prefix, variable)
        elif prefix:
            origin = self._count(name, self._optimizers[prefix])
        else:
            origin = self._weight(name)
        if origin is None or self._is_table(name):
            return origin if origin and origin.name in self.source.tables else None
        return self._of_shape(name, origin) if origin.name in self.source.shapes else None

    def _weight(self, name: str) -> Origin | None:
        """Returns the source of a variable of a module, or of its average.

        Raises:
          UserValueError: it has several averages.
        """
        previous = self._weights.get(name)
        if previous is None or self._settings.weights != AVERAGE:
            return previous and Origin(previous)
        end = f"{previous}/{slots.AVERAGE}"
        for average in (*(f"{prefix}{previous}" for prefix in _AVERAGES), end):
            if average in self.source.shapes:
                return Origin(average)
        found = [n for n in self.source.shapes if n.endswith(f"/{end}")]
        if len(found) > 1:
            raise UserValueError(
                f"WarmStartSettings.weights is 'average', and {previous} has several: {found}. Set "
                f"var_name_to_prev_var_name={{{name!r}: {found[0]!r}}} and weights='live'."
            )
        return Origin(found[0]) if found else Origin(previous, "has no average")

    def _slot(self, name: str, prefix: str, variable: str) -> Origin | None:
        previous, optimizer = self._weights.get(variable), self._optimizers[prefix]
        if name in self._given:
            return Origin(self._given[name])
        if previous is None:
            return None
        slot = name.removeprefix(prefix).partition("/")[0]
        if self._slots is None:
            return Origin(f"{prefix}{slot}/{previous}")
        found, is_v1 = self._slots.slot(optimizer, slot, previous) or ("", False)
        # tf.compat.v1's momentum sums gradients, Keras' the updates that they make. A subclass
        # with its own formula is that of tf.compat.v1.
        if (
            is_v1
            and isinstance(optimizer, keras.optimizers.SGD)
            and type(optimizer).update_step is keras.optimizers.SGD.update_step
        ):
            # Of a schedule the rate at the optimizer's iteration.
            rate = float(tf.convert_to_tensor(variable_of(optimizer.learning_rate)))
            return Origin(found, "times minus the learning rate", lambda v: -rate * v)
        return Origin(found)

    def _count(self, name: str, optimizer: Any) -> Origin | None:
        """Returns the source of the number of updates, or of a number that belongs to it."""
        given = self._given.get(name)
        if self._slots is None or not name.endswith("/iteration"):
            return Origin(given or name)
        count = given or self._slots.count()
        if count not in self.source.shapes:
            return None
        dtype = self._own[name].dtype.as_numpy_dtype
        if slots.is_named_power(count):
            updates = lambda v: dtype(slots.updates_of_power(count, float(v), optimizer))  # noqa: E731
            return Origin(count, "as a number of updates", updates)
        if not given and isinstance(optimizer, keras.optimizers.Adam):
            self._check_powers(count, optimizer)
        return Origin(count, "", dtype)

    def _check_powers(self, count: str, optimizer: Any) -> None:
        number = int(self.source.value(count))
        for power in self._slots.powers:
            value = float(self.source.value(power))
            if not slots.is_power(power, value, optimizer, number):
                raise UserValueError(
                    f"{self.source.path} has {count} {number}, and {power} {value:g}, which is not "
                    f"beta ** {number + 1} of the optimizer: expected the same beta_1 and beta_2. "
                    f"Set them, or var_name_to_prev_var_name={{'optimizer/iteration': {power!r}}}."
                )

    def _of_shape(self, name: str, origin: Origin) -> Origin | None:
        """Returns an origin whose value has the model's shape; None if there is none."""
        shape, previous = list(self._own[name].shape), list(self.source.shapes[origin.name])
        variable = self._variable_of_slot(name)
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
        absent = [n for n in missing if n not in self._reshaped]
        problems = {
            "missing": [f"{n} {list(getattr(self._own[n], 'shape', ()))}" for n in absent],
            "of another shape (model, checkpoint)": list(self._reshaped.values()),
            "not used of the checkpoint": [f"{n} {list(self.source.shapes[n])}" for n in free],
        }
        lines = [f"  {title}: {listed(found)}" for title, found in problems.items() if found]
        fitting = _whole(missing, [name for name in origins if name not in missing])
        remedy = f"vars_to_warm_start={fitting} to load only these, or " if fitting else ""
        raise CheckpointMismatchError(
            f"{self.source.path} does not fit the chosen variables; none was set.\n"
            + "\n".join(lines)
            + f"\nSet {remedy}var_name_to_prev_var_name={{{missing[0]!r}: '...'}} for names that "
            "differ."
        )


def _checksum(state: Mapping[str, Any]) -> int:
    """Returns a number that differs, almost surely, where a value differs; without tables."""
    crc = 0
    for name, value in state.items():
        # Each replica has its own random streams.
        if hasattr(value, "assign") and not _SEED.fullmatch(name):
            crc = zlib.crc32(array_of(value).tobytes(), crc)
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
    """Returns declarations and statistics of the features; empty without a readable file."""
    try:
        with tf.io.gfile.GFile(os.path.join(folder, "schema.json")) as file:
            content = json.load(file)
        return {n: (f, content["statistics"].get(n)) for n, f in content["features"].items()}
    except (tf.errors.OpError, ValueError, KeyError):
        return {}


def _initialize(
    init_fn: Callable[[dict[str, Any]], None], own: Mapping[str, Any], modules: Mapping[str, Any]
) -> list[str]:
    """Calls the user's function; returns the names of the variables that it changed."""
    before = {name: _checksum({name: value}) for name, value in own.items()}
    returned = init_fn(dict(modules))
    if returned is not None:
        raise UserTypeError(
            f"WarmStartSettings.init_fn returned {shown(returned)}: expected None. Set values by "
            "modules['network'].set_weights(values)."
        )
    return [name for name, value in own.items() if _checksum({name: value}) != before[name]]


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
        logging.info("warm start | not used of the checkpoint: %s", listed(unused, 5))


def _whole(missing: Sequence[str], fitting: Sequence[str]) -> list[str]:
    """Returns expressions for the names that fit: of whole modules and layers if possible."""
    patterns = []
    for name in fitting:
        folders = (name[: match.end()] for match in re.finditer("/", name))
        whole = (f for f in folders if not any(n.startswith(f) for n in missing))
        folder = next(whole, None)
        patterns.append(f"{re.escape(folder)}.*" if folder else re.escape(name))
    return list(dict.fromkeys(patterns))


def _is_average(name: str) -> bool:
    return name.startswith(_AVERAGES) or name.endswith(slots.AVERAGE)


def _is_split(one: Sequence[int], other: Sequence[int]) -> bool:
    """Returns whether axes of one shape are split in the other: [4, 6] and [4, 2, 3]."""
    coarse, fine = ({int(n) for n in np.cumprod(s)} for s in sorted((one, other), key=len))
    return max(coarse) == max(fine) and coarse <= fine
