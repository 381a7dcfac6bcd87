"""Starts a run with the values of another one, where it has no checkpoint itself.

The choice is by names: `WarmStartSettings` says which, and by which names to look for
them. A chosen variable that the checkpoint lacks is an error, never left as it is in
silence. The log shows for each variable where it comes from, or why it was left.
"""

import dataclasses
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from pipeline.checkpoints import checkpoint, checkpoint_path, foreign_checkpoint
from pipeline.checkpoints.checkpoint import CheckpointMismatchError
from pipeline.checkpoints.checkpoint_reader import Reader
from pipeline.contract.averages import AVERAGE, LIVE
from pipeline.model_dir import paths
from pipeline.process.refusals import RefusedValueError
from pipeline.strategy import averages, variables
from pipeline.strategy.modules import Modules
from pipeline.strategy.variables import State

_SEED = re.compile(r".+/seed_generator_state(_\d+)?")
# Rows of the table in the log; verbosity DEBUG shows all.
_MOST_ROWS = 40


@dataclasses.dataclass(frozen=True)
class WarmStartSettings:
    """A choice of what to take over from another run's checkpoint, as in tf.estimator.

    The global step is never taken over: the run counts from 0.

    Attributes:
      ckpt_to_initialize_from: a checkpoint's path prefix, a model_dir, or its best
        checkpoint: "runs/a/best".
      vars_to_warm_start: regular expression, or a list of them, that names such as
        `network/dense/kernel` match in full. None for all of the model: weights,
        frozen ones too, moving statistics and tables; neither optimizers nor random
        streams.
      var_name_to_prev_var_name: names in the checkpoint by the names in this model,
        where the two differ.
      learning_rates_and_iterations: whether optimizers go on with the checkpoint's
        learning rates, and with its iterations, which schedules go by. False leaves
        the rates as configured and begins at iteration 0, whatever the expressions
        match; only a name that is written out, `optimizer/iteration`, is taken.
    """

    ckpt_to_initialize_from: str
    vars_to_warm_start: str | Sequence[str] | None = None
    var_name_to_prev_var_name: Mapping[str, str] = dataclasses.field(
        default_factory=dict
    )
    learning_rates_and_iterations: bool = False
    weights: str = LIVE

    def __post_init__(self) -> None:
        if self.ckpt_to_initialize_from:
            path = paths.normal(self.ckpt_to_initialize_from)
            object.__setattr__(self, "ckpt_to_initialize_from", path)
        if self.weights not in (LIVE, AVERAGE):
            raise RefusedValueError(
                f"WarmStartSettings.weights is {self.weights!r}: write 'live' or "
                "'average'."
            )
        for pattern in self.patterns:
            try:
                re.compile(pattern)
            except (re.error, TypeError) as error:
                raise RefusedValueError(
                    f"vars_to_warm_start has {pattern!r}, which is no regular "
                    f"expression ({error}): write 'network/.*', say."
                ) from error

    @property
    def patterns(self) -> Sequence[str]:
        """The regular expressions, in a list; empty where nothing was chosen."""
        chosen = self.vars_to_warm_start
        return [chosen] if isinstance(chosen, str) else chosen or ()

    def left_out(self, name: str, value: Any, optimizer: str | None) -> str | None:
        """Returns why a variable or table is left as it is; None: it is taken over.

        Args:
          name: its full name.
          value: the variable or table.
          optimizer: the name prefix of the optimizer that it belongs to, or None.
        """
        counts = optimizer is not None and _is_count(name, value, optimizer)
        if counts and self.learning_rates_and_iterations:
            return None
        if self.vars_to_warm_start is None:
            if optimizer is not None:
                return "an optimizer's; choose it by vars_to_warm_start"
            if _SEED.fullmatch(name):
                return "a random stream; choose it by vars_to_warm_start"
            return None
        if not any(re.fullmatch(pattern, name) for pattern in self.patterns):
            return "not in vars_to_warm_start"
        if counts and name not in self.patterns:
            return "only by learning_rates_and_iterations=True"
        return None


class WarmStart:
    """Takes over each variable of a run's modules once, as they are built."""

    def __init__(self, modules: Modules) -> None:
        """Takes over nothing yet.

        Args:
          modules: hold their initial values until a call takes others over.
        """
        self._modules = modules
        self._done: set[str] = set()

    def __call__(self, source: "str | WarmStartSettings | None") -> None:
        """Takes over the variables that were built since the last call.

        Args:
          source: see `warm_start`; None takes nothing.
        """
        if source is None:
            return
        seen = warm_start(
            self._modules.named_state(),
            source,
            optimizers=variables.optimizer_prefixes(self._modules.by_name),
            unbuilt=self._modules.unbuilt_prefixes(),
            done=self._done,
        )
        self._done.update(seen)
        self._modules.spread_seeds()
        variables.finalize(self._modules.by_name.values())


def warm_start(
    state: State,
    source: "str | WarmStartSettings",
    *,
    optimizers: Sequence[str] = (),
    unbuilt: Sequence[str] = (),
    done: Container[str] = (),
) -> list[str]:
    """Takes over values from another run, and logs a table of where they come from.

    Args:
      state: variable or table by module and name.
      source: see `WarmStartSettings`; a path alone takes over all of the model.
      optimizers: name prefixes of the optimizers, `optimizer/`.
      unbuilt: name prefixes below which more may be built, and is started warm then.
      done: names that earlier calls have returned, which this one leaves alone.

    Returns:
      The names in `state`, taken over or left out by choice: none is open any more.

    Raises:
      CheckpointMismatchError: a chosen variable is not in the checkpoint, or has
        another shape there.
      UnreadableCheckpointError: a file of it is missing, cut short or damaged.
      ValueError: there is no checkpoint, or the model has no variable of a given name.
    """
    if isinstance(source, str):
        source = WarmStartSettings(source)
    reader = Reader(_found(source.ckpt_to_initialize_from))
    own = {
        name: value
        for name, value in variables.flat(state).items()
        if not name.startswith(f"{checkpoint.DRIVER}/")
    }
    reasons = {
        name: source.left_out(
            name, value, next((o for o in optimizers if name.startswith(o)), None)
        )
        for name, value in own.items()
    }
    previous = {
        name: source.var_name_to_prev_var_name.get(name, name)
        for name, reason in reasons.items()
        if reason is None
    }
    if source.weights == AVERAGE:
        previous = _of_averages(previous, reader)
    _check_chosen(source, own, previous, unbuilt)
    fresh = {name: there for name, there in previous.items() if name not in done}
    _check_there(reader, own, previous, fresh)
    is_table = reader.tables.keys()
    reader.assign(
        [(own[n], there) for n, there in fresh.items() if there not in is_table]
    )
    for name, there in fresh.items():
        if there in is_table:  # One at a time: a saved table may fill several of ours.
            checkpoint.read_tables(reader, {there: own[name]})
    left = {n: why for n, why in reasons.items() if why is not None and n not in done}
    if fresh or not done:
        _log(reader.path, fresh, left)
    return list(own)


def _found(given: str) -> str:
    """Returns the path prefix of the checkpoint that a user names.

    Raises:
      ValueError: there is none; says what there is instead.
    """
    path: str | None = given
    if tf.io.gfile.isdir(given):
        try:
            path = checkpoint.latest(given)
        except ValueError:  # Its checkpoints have no steps, so they are not ours.
            path = None
    if path is not None and tf.io.gfile.exists(f"{path}.index"):
        return path
    if path_in_run := checkpoint_path.in_run(given):
        return path_in_run
    there = foreign_checkpoint.described(given)
    raise RefusedValueError(
        f"no checkpoint to start warm from at {given!r}: give a model_dir, a "
        f"prefix such as runs/a/model.ckpt-1000, or runs/a/best. {there}"
    )


def _of_averages(previous: Mapping[str, str], reader: Reader) -> dict[str, str]:
    """Returns names in the checkpoint, of averages where it has them.

    Raises:
      ValueError: it holds no average.
    """
    if not averages.held(reader.shapes):
        raise RefusedValueError(
            f"WarmStartSettings.weights is 'average', and {reader.path} holds none: it "
            "was trained without RunConfig(average=...). Write weights='live'."
        )
    return {
        name: averages.saved_as(there, reader.shapes)
        for name, there in previous.items()
    }


def _is_count(name: str, value: Any, optimizer: str) -> bool:
    """Whether a value is an optimizer's learning rate or iterations, or goes with them.

    Such a value is a scalar of the optimizer's own; a slot stands below a variable.
    """
    return "/" not in name.removeprefix(optimizer) and value.shape.rank == 0


def _check_chosen(
    source: WarmStartSettings,
    own: Mapping[str, Any],
    chosen: Mapping[str, str],
    unbuilt: Sequence[str],
) -> None:
    """Checks that the settings choose something, by names that the model has.

    Names below `unbuilt` may come to be, in another mode.
    """
    mapped = source.var_name_to_prev_var_name
    unknown = sorted(n for n in mapped if n not in own)
    unknown = [n for n in unknown if not n.startswith(tuple(unbuilt))]
    if unknown:
        raise RefusedValueError(
            f"var_name_to_prev_var_name names {unknown}, which the model does not "
            f"have: write names out of {sorted(own)}."
        )
    if not (chosen or unbuilt):
        raise RefusedValueError(
            f"vars_to_warm_start={source.vars_to_warm_start!r} chooses no variable: "
            f"write an expression that matches some of {sorted(own)} in full."
        )


def _check_there(
    reader: Reader,
    own: Mapping[str, Any],
    chosen: Mapping[str, str],
    fresh: Mapping[str, str],
) -> None:
    """Checks that a checkpoint has all that is to be taken over, of the same shapes.

    Args:
      reader: of the checkpoint.
      own: variables and tables of the model, by name.
      chosen: by the model's name the checkpoint's, of all that the settings choose.
      fresh: the same, of what is taken over now.

    Raises:
      CheckpointMismatchError: lists what is missing, and says how to take the rest.
    """
    saved = {**reader.shapes, **dict.fromkeys(reader.tables)}
    absent = sorted(there for there in fresh.values() if there not in saved)
    reshaped, unfit = [], {n for n, there in fresh.items() if there not in saved}
    for name, there in fresh.items():
        shape = list(own[name].shape) if hasattr(own[name], "shape") else None
        if there in saved and saved[there] != shape:
            reshaped.append(f"{name}: {shape} in the model, {saved[there]} saved")
            unfit.add(name)
    if absent and foreign_checkpoint.is_foreign(reader):
        raise CheckpointMismatchError(
            f"cannot start warm from {reader.path}, which is none of this project's "
            f"checkpoints. {foreign_checkpoint.described(reader.path)}"
        )
    if absent or reshaped:
        held = sorted(n for n in saved if not n.startswith(checkpoint.CONFIGURED))
        raise CheckpointMismatchError(
            f"cannot start warm from {reader.path}: it lacks {absent}; of another "
            f"shape are {reshaped}. It holds {held}. {_other_choice(chosen, unfit)}"
        )


def _other_choice(chosen: Iterable[str], unfit: set[str]) -> str:
    """Returns the line that takes over all that fits, by as few expressions as do.

    An expression stands for a whole module, else for a layer, else for one name.
    """
    expressions = {}
    for name in sorted(set(chosen) - unfit):
        folders = [name[: m.end()] for m in re.finditer("/", name)]
        fitting = (f for f in folders if not any(n.startswith(f) for n in unfit))
        folder = next(fitting, None)
        text = re.escape(name) if folder is None else f"{re.escape(folder)}.*"
        expressions[text] = None
    if not expressions:
        return "Nothing that was chosen fits: leave warm_start_from out."
    return (
        "To take over what fits: "
        f"WarmStartSettings(vars_to_warm_start={list(expressions)})."
    )


def _log(path: str, taken: Mapping[str, str], left: Mapping[str, str]) -> None:
    head = f"warm start | {len(taken)} of {len(taken) + len(left)} from {path}"
    sections = [("taken over", "from there", taken), ("left as it is", "why", left)]
    short, full = (_table(sections, most) for most in (_MOST_ROWS, None))
    logging.info("%s", "\n".join([head, *short]))
    if short != full:
        logging.debug("%s", "\n".join([head, *full]))


def _table(sections: Any, most: int | None) -> list[str]:
    rows = []
    for title, other, items in sections:
        if items:
            # The names that are left as they are get few rows: most are slots of one
            # optimizer, for one reason.
            few = most if items is sections[0][2] or most is None else most // 8
            rows += [(title, other, ""), *_rows(items, few)]
    width = max((len(name) for name, _, _ in rows), default=0)
    return [f"  {n.ljust(width)}  {other}{count}".rstrip() for n, other, count in rows]


def _rows(items: Mapping[str, str], most: int | None) -> list[tuple[str, str, str]]:
    """Returns rows of names, origins and counts: `network/*`, `encoder/*`, `(8)`.

    Where there are too many names, one row stands for all below one prefix.

    Args:
      items: by name, the name in the checkpoint or a reason.
      most: rows at the most; None for a row a name.
    """
    depth = max(name.count("/") for name in items)
    while True:
        groups: dict[tuple[str, str], int] = {}
        for name, other in items.items():
            row = _shortened(name, other, depth)
            groups[row] = groups.get(row, 0) + 1
        if most is None or len(groups) <= most or not depth:
            break
        depth -= 1
    rows = [
        (name, other, f"  ({count})" if count > 1 else "")
        for (name, other), count in groups.items()
    ]
    if most is not None and len(rows) > most:
        rest = sum(list(groups.values())[most:])
        return [*rows[:most], ("...", f"and {rest} more", "")]
    return rows


def _shortened(name: str, other: str, depth: int) -> tuple[str, str]:
    """Returns a name and its origin, cut to the name's first `depth` + 1 parts."""
    parts = name.split("/")
    if len(parts) <= depth + 1:
        return name, other
    end = "/" + "/".join(parts[depth + 1 :])
    if other.endswith(end):
        return name.removesuffix(end) + "/*", other.removesuffix(end) + "/*"
    return name.removesuffix(end) + "/*", other
