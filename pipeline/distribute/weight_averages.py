# SPDX-License-Identifier: Apache-2.0
"""The averages of a run's variables, and their exchange with the variables.

Each average is on the devices of its variable and is updated there, so no replica sends anything
for it. In checkpoints it is `driver/ema/network/dense/kernel`; `driver/ema_steps` is the number of
steps that count.
"""

import contextlib
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from ..contract.train_op import TrainOp
from ..contract.weight_averages import AVERAGE, KINDS, Average, matches
from ..errors import SpecError, UserRuntimeError
from . import names
from .replicas import Replicas

_PREFIXES = tuple(f"driver/{kind.kind}/" for kind in KINDS)


class Averages:
    """The averages of one set of modules.

    Attributes:
      settings: which variables and steps count, and how.
      is_in_use: whether the variables hold their averages now.
    """

    def __init__(self, settings: Average, replicas: Replicas) -> None:
        """Creates the count of steps."""
        self.settings = settings
        self.is_in_use = False
        self._replicas = replicas
        # The variable and its average, by name of the variable.
        self._pairs: dict[str, tuple[Any, Any]] = {}
        with replicas.strategy.scope():
            self._count = tf.Variable(
                tf.zeros([], tf.int64),
                trainable=False,
                name=f"{settings.kind}_steps",
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )

    def build(self, variables: Mapping[str, Any], ops: Sequence[TrainOp]) -> None:
        """Creates the averages of variables that were created since the last call.

        Args:
          variables: variables by full name, without those of optimizers.
          ops: train ops in mode TRAIN, in which all variables exist.

        Raises:
          SpecError: an expression of `modules` matches no variable, or an optimizer has averages.
        """
        with self._replicas.strategy.scope():
            for name, variable in variables.items():
                has_average = variable.dtype.is_floating and variable.shape.is_fully_defined()
                if has_average and name not in self._pairs and self.settings.chooses(name):
                    self._pairs[name] = variable, self._create(name, variable)
        kind = type(self.settings).__name__
        for pattern in self.settings.patterns if ops else ():
            if not any(matches(pattern, name) for name in self._pairs):
                raise SpecError(
                    f"{kind}.modules has {pattern!r}, which matches no floating-point variable of "
                    f"{sorted(variables)}: expected a regular expression that matches a whole "
                    f"name. Set {kind}(modules='network/.*')."
                )
        for op in ops:
            if op.optimizer.use_ema:
                raise SpecError(
                    f"optimizer {op.optimizer.name!r} has use_ema=True, and RunConfig.average is "
                    f"{kind}(...): expected one of them. Leave out use_ema."
                )

    def variables(self) -> dict[str, Any]:
        """Returns the count and the averages by their names in checkpoints."""
        kind = self.settings.kind
        averages = {f"driver/{kind}/{n}": average for n, (_, average) in self._pairs.items()}
        return {f"driver/{kind}_steps": self._count, **averages}

    def restored(self, saved: Container[str]) -> None:
        """Starts again if the names in a checkpoint that was restored lack some averages."""
        if any(name not in saved for name in self.variables()):
            self._count.assign(0)
            for _, average in self._copies():
                average.assign(tf.zeros_like(average))

    def update(self, before: Any, after: Any) -> tf.Tensor:
        """Counts the current weights for some steps, in cross-replica context.

        Args:
          before: int64 scalar, global step before them.
          after: int64 scalar, global step after them.

        Returns:
          A bool scalar that is computed after the update.
        """
        new = self.settings.num_counted(after) - self.settings.num_counted(before)
        if self.settings.counts_each_step:
            return self._update(new)
        return tf.cond(new > 0, lambda: self._update(new), lambda: tf.constant(True))

    def _update(self, new: tf.Tensor) -> tf.Tensor:
        number = tf.identity(self._count) + new
        share = self.settings.share(tf.cast(number, tf.float64), tf.cast(new, tf.float64))

        def move(variable: Any, average: Any) -> Any:
            difference = average - tf.cast(variable, average.dtype)
            step = tf.cast(share, average.dtype) * difference
            return average.assign_sub(step, read_value=False)  # None outside of a graph.

        def move_all() -> None:
            for variable, average in self._pairs.values():
                move(variable, average)

        self._count.assign(number)
        moved = []
        if self._replicas.shares_trace:  # A TPU's variables change in its program only.
            self._replicas.strategy.run(move_all)
        else:
            for variable, average in self._copies():
                with tf.device(average.device):
                    moved.append(move(variable, average))
        with tf.control_dependencies([each for each in moved if each is not None]):
            return tf.constant(True)

    @contextlib.contextmanager
    def used(self, weights: str) -> Iterator[None]:
        """Makes the variables, equal on all replicas, hold 'live' or 'average' weights."""
        self.check_live()
        if weights != AVERAGE:
            yield
            return
        if not self._count.numpy():
            logging.info("No step is in the average of the weights: taking the live weights.")
            yield
            return
        copies = self._copies()
        values = [variable.read_value() for variable, _ in copies]
        self.is_in_use = True
        try:
            for variable, average in copies:
                variable.assign(tf.cast(average.read_value(), variable.dtype))
            yield
        finally:
            for (variable, _), value in zip(copies, values, strict=True):
                variable.assign(value)
            self.is_in_use = False

    def check_live(self) -> None:
        """Raises a UserRuntimeError if the variables hold their averages."""
        if self.is_in_use:
            raise UserRuntimeError(
                "a hook of an evaluation of averaged weights uses the same Estimator: expected no "
                "such use. Write it in a hook of the training."
            )

    def _create(self, name: str, variable: Any) -> Any:
        """Returns the average of a variable, cut as the variable is."""

        def like(part: Any) -> tf.Variable:
            dtype = tf.float32 if part.dtype.size < 4 else part.dtype  # 16 bits lose small steps.
            # TrainState.synchronize averages variables that each replica keeps for itself, such as
            # moving statistics, and the averages of these with them.
            none = tf.VariableAggregation.NONE
            is_own = not part.trainable and part.aggregation == none
            # A layer may be new in EVAL, with other averages loaded before.
            value = (
                tf.cast(part, dtype) if int(self._count.numpy()) else tf.zeros(part.shape, dtype)
            )
            with self._replicas.strategy.extended.colocate_vars_with(part):
                return tf.Variable(
                    value,
                    trainable=False,
                    name=f"{self.settings.kind}/{name}",
                    aggregation=none if is_own else tf.VariableAggregation.ONLY_FIRST_REPLICA,
                )

        parts = [like(part) for part in names.parts_of(variable)]
        return names.whole(parts) if len(parts) > 1 else parts[0]

    def _copies(self) -> list[tuple[Any, Any]]:
        """Returns each local copy of each variable, or of each of its shards, with its average."""
        local = self._replicas.strategy.experimental_local_results
        return [
            pair
            for variable, average in self._pairs.values()
            for parts in zip(names.parts_of(variable), names.parts_of(average), strict=True)
            for pair in zip(*map(local, parts), strict=True)
        ]


def warn_of_changes(saved: Sequence[str], averages: Averages | None, path: str) -> None:
    """Warns if a training does not continue all averages of its checkpoint, or has others.

    Args:
      saved: names in the checkpoint.
      averages: the averages of the run.
      path: path prefix of the checkpoint.
    """
    own = set() if averages is None else set(averages.variables())
    there = {name for name in saved if name.startswith(_PREFIXES)}
    kept = f"RunConfig.average is {averages.settings if averages else None}"
    if own - set(saved):
        others = f" of {sorted(there)[0]} and others" if there else ""
        logging.warning(
            "%s, and %s has not the same averages%s: they start again.", kept, path, others
        )
    elif there - own:
        logging.warning(
            "%s, and %s has averages, such as %s: they are dropped.", kept, path, min(there - own)
        )
