"""The averages of a run's variables: kept beside them, and put in their place.

Each lies on its variable's devices, and is moved there: replicas and servers send each
other nothing for it. In checkpoints an average is `driver/ema/network/dense/kernel`,
and `driver/ema_steps` says how many steps are in it. Zero steps mean no average as yet:
the weights themselves stand for it.
"""

import contextlib
import dataclasses
from collections.abc import (
    Callable,
    Container,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.contract.averages import KINDS, Average
from pipeline.contract.train_op import SpecError, TrainOp
from pipeline.process.refusals import RefusedRuntimeError, near
from pipeline.strategy import loss_scale
from pipeline.strategy.replicas import has_one_trace
from pipeline.strategy.sharding import ShardedVariable, shards_of

_DRIVER = "driver"


class Averages:
    """The averages of one set of modules.

    Attributes:
      settings: what is averaged, when, and how.
    """

    def __init__(
        self,
        settings: Average,
        strategy: tf.distribute.Strategy,
        state: MutableMapping[str, Any],
    ) -> None:
        """Makes the count of steps; called under the scope.

        Args:
          settings: what is averaged, when, and how.
          strategy: strategy of the variables.
          state: the driver's variables by name, to which the averages are added.
        """
        self.settings = settings
        self._strategy = strategy
        self._state = state
        self._count = tf.Variable(
            tf.constant(0, tf.int64),
            trainable=False,
            name=f"{settings.kind}_steps",
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        state[f"{settings.kind}_steps"] = self._count
        # By the variable's full name, the variable and its average.
        self._pairs: dict[str, tuple[Any, Any]] = {}
        # Copies of variables whose averages are in their place, with their values.
        self._kept: list[tuple[Any, tf.Tensor]] = []
        self._is_in_place = False

    def build(
        self,
        by_name: Mapping[str, Any],
        optimizers: Sequence[str],
        ops: Sequence[TrainOp],
    ) -> None:
        """Makes averages of the variables that were built since the last call.

        Args:
          by_name: all variables by their full names.
          optimizers: name prefixes of the optimizers' variables.
          ops: train ops of the mode that was built; empty but in TRAIN.

        Raises:
          SpecError: in TRAIN, nothing is chosen, or an optimizer has an average too.
        """
        left_out = (*optimizers, f"{_DRIVER}/")
        chosen = {
            name: variable
            for name, variable in by_name.items()
            if variable.dtype.is_floating
            and variable.shape.is_fully_defined()
            and self.settings.chooses(name)
        }
        slots = [name for name in chosen if name.startswith(left_out)]
        with self._strategy.scope():
            for name, variable in chosen.items():
                if name not in self._pairs and name not in slots:
                    average = self._made(name, variable)
                    self._pairs[name] = variable, average
                    self._state[f"{self.settings.kind}/{name}"] = average
        if ops:
            self._check(by_name, left_out, slots, ops)

    def _check(
        self,
        by_name: Iterable[str],
        left_out: tuple[str, ...],
        slots: Sequence[str],
        ops: Sequence[TrainOp],
    ) -> None:
        own, patterns = type(self.settings).__name__, self.settings.patterns
        names = {name for name in by_name if not name.startswith(left_out)}
        averaged = sorted({name.partition("/")[0] for name in names}) or ["network"]
        for pattern in patterns or ():
            choice = dataclasses.replace(self.settings, modules=pattern)
            if not any(choice.chooses(name) for name in self._pairs):
                raise SpecError(
                    f"{own}.modules has {pattern!r}, which chooses "
                    + (
                        "optimizers' variables, and these have no average: leave it "
                        "out."
                        if any(choice.chooses(name) for name in slots)
                        else "no variable of floats of a fixed shape: write the name "
                        f"of a module, of {averaged}, or {averaged[0]}/.* for the "
                        f"variables in it.{near(str(pattern), averaged)}"
                    )
                )
        for op in ops:
            if op.optimizer.use_ema:
                raise SpecError(
                    f"TrainOp.optimizer {op.optimizer.name} has use_ema=True beside "
                    f"RunConfig(average={own}(...)), and so two averages: leave "
                    "use_ema out."
                )

    def _made(self, name: str, variable: Any) -> Any:
        """Returns the average of a variable, of zeros, where the variable lies."""

        def like(shard: Any) -> tf.Variable:
            # Steps are small parts of an average: in 16 bits they would be lost.
            dtype = tf.float32 if shard.dtype.size < 4 else shard.dtype
            # `Modules.synchronize` makes those equal that replicas have for themselves:
            # averages of moving statistics, and of nothing else.
            none = tf.VariableAggregation.NONE
            is_local = not shard.trainable and shard.aggregation == none
            first = tf.VariableAggregation.ONLY_FIRST_REPLICA
            with self._strategy.extended.colocate_vars_with(shard):
                return tf.Variable(
                    tf.zeros(shard.shape, dtype),
                    trainable=False,
                    name=f"{self.settings.kind}/{name}",
                    aggregation=none if is_local else first,
                )

        made = [like(shard) for shard in shards_of(variable)]
        return (
            ShardedVariable(made) if isinstance(variable, ShardedVariable) else made[0]
        )

    def names(self) -> set[str]:
        """Returns the averages' full names, with that of the count."""
        kind = self.settings.kind
        own = {f"{_DRIVER}/{kind}/{name}" for name in self._pairs}
        return {f"{_DRIVER}/{kind}_steps", *own}

    @property
    def num_steps(self) -> int:
        """The number of steps that are in the average, read now."""
        return int(self._count.numpy())

    def loaded(self, saved: Container[str]) -> None:
        """Begins anew where a checkpoint that was restored lacks an average.

        Args:
          saved: names of the variables in the checkpoint.
        """
        if all(name in saved for name in self.names()):
            return
        self._count.assign(0)
        for _, average in self._pairs.values():
            for shard in shards_of(average):
                shard.assign(tf.zeros_like(shard))

    # Moving.

    def after(
        self,
        step_fn: Callable[[Any, tf.Tensor], Any],
        ops: Sequence[TrainOp],
    ) -> Callable[[Any, tf.Tensor], Any]:
        """Returns a train step that takes the weights it leaves into the averages.

        A step that updates nothing counts for nothing: its gradients overflowed in
        float16, or no op's turn had come.

        Args:
          step_fn: takes a step's batches and the number of steps before it.
          ops: train ops of the step.
        """
        may_skip = loss_scale.is_used(self._state)
        may_skip = may_skip or all(len(op.at) < op.every for op in ops)
        optimizers = list({id(op.optimizer): op.optimizer for op in ops}.values())

        def updates() -> tf.Tensor:
            counts = [tf.cast(each.iterations.value, tf.int64) for each in optimizers]
            return tf.add_n([tf.identity(count) for count in counts])

        def step(batches: Any, number: tf.Tensor) -> Any:
            before = updates() if may_skip else None
            results = step_fn(batches, number)
            due = None
            if not self.settings.counts_each_step:
                until = self.settings.steps_until
                due = until(number + 1) > until(number)
            if before is not None:
                changed = updates() > before
                due = changed if due is None else tf.logical_and(due, changed)
            if due is None:
                self._take_in(tf.ones([], tf.int64))
            else:
                one = tf.ones([], tf.int64)
                tf.cond(due, lambda: self._take_in(one), lambda: True)
            return results

        return step

    def catch_up(self, before: tf.Tensor, after: tf.Tensor) -> None:
        """Takes in the weights of now for all steps since another step.

        With parameter servers no other weights are those of one step: between two
        boundaries each worker changes them at a time of its own.

        Args:
          before: global step of the last call, int64 scalar.
          after: global step now, int64 scalar.
        """
        new = self.settings.steps_until(after) - self.settings.steps_until(before)
        tf.cond(new > 0, lambda: self._take_in(new), lambda: True)

    def _take_in(self, new: tf.Tensor) -> bool:
        """Moves all averages towards the weights; returns a value for `tf.cond`.

        Args:
          new: steps that the weights stand for, int64 scalar.
        """
        number = tf.identity(self._count) + new
        share = self.settings.share(*(tf.cast(n, tf.float64) for n in (number, new)))
        self._count.assign(number)

        dtypes = {average.dtype for _, average in self._pairs.values()}
        movers = {dtype: _mover(share, dtype) for dtype in dtypes}

        def move(variable: Any, average: Any) -> None:
            movers[average.dtype](average, tf.identity(variable))

        def move_all() -> None:
            for pair in self._pairs.values():
                move(*pair)

        if has_one_trace(self._strategy):
            self._strategy.run(move_all)
            return True
        for variable, average in self._copies():
            with tf.device(average.device):
                move(variable, average)
        return True

    # In the place of the weights.

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Has the variables hold their averages in the block, and their own after it.

        The averages stay as they are. Replicas hold equal values before, see
        `Modules.synchronize`.

        Raises:
          RuntimeError: they are in place already.
        """
        self.settle()
        if not self.num_steps:
            yield
            return
        self._is_in_place = True
        try:
            copies = self._copies()
            self._kept = [(v, v.read_value()) for v, _ in copies]
            self._put(copies)
            yield
        finally:
            try:
                self._put_back()
            finally:
                self._is_in_place = False

    def take_over(self) -> None:
        """Sets the variables to their averages for good."""
        if self.num_steps:
            self._put(self._copies())

    def settle(self) -> None:
        """Ends an exchange whose end a second Ctrl-C broke off.

        Raises:
          RuntimeError: the exchange goes on.
        """
        if self._is_in_place:
            raise RefusedRuntimeError(
                "a hook of an evaluation under the average, or of an export, asked for "
                "other weights of the same Estimator: do that in a hook of the "
                "training, which is called when the weights are back."
            )
        self._put_back()

    def _put(self, copies: Sequence[tuple[Any, Any]]) -> None:
        for variable, average in copies:
            variable.assign(tf.cast(average.read_value(), variable.dtype))

    def _put_back(self) -> None:
        for variable, value in self._kept:
            variable.assign(value)
        self._kept = []

    def _copies(self) -> list[tuple[Any, Any]]:
        """Returns each variable with its average: a pair a local device, or server."""
        local = self._strategy.experimental_local_results
        return [
            pair
            for variable, average in self._pairs.values()
            for shards in zip(shards_of(variable), shards_of(average), strict=True)
            for pair in zip(*map(local, shards), strict=True)
        ]


def _mover(
    share: tf.Tensor, dtype: tf.DType
) -> Callable[[tf.Variable, tf.Tensor], None]:
    """Returns what moves an average towards weights, in one operation.

    From zeros a share of 1 makes it the weights to the last bit.

    Args:
      share: how far it goes, a float64 scalar.
      dtype: dtype of the average.
    """
    # Beside the largest odds 1 is nothing, so that they stand for a share of 1. The
    # quotient is exact: it would not add up to 1 in steps without number else.
    largest = 4 / np.finfo(dtype.as_numpy_dtype).eps
    odds = tf.cast(1 + tf.minimum(share / (1 - share), largest), dtype) - 1
    share, zero, one = tf.cast(share, dtype), tf.zeros([], dtype), tf.ones([], dtype)

    def move(average: tf.Variable, weights: tf.Tensor) -> None:
        weights, handle = tf.cast(weights, dtype), average.handle
        if "CPU" in average.device:
            # (average + odds * weights) / (1 + odds): nothing of the average's size is
            # made besides. No GPU knows it.
            tf.raw_ops.ResourceApplyProximalGradientDescent(
                var=handle, alpha=-odds, l1=zero, l2=-one, delta=weights
            )
        else:
            # average - share * (average - weights)
            tf.raw_ops.ResourceApplyGradientDescent(
                var=handle, alpha=share, delta=tf.identity(average) - weights
            )

    return move


def saved_as(name: str, saved: Container[str]) -> str:
    """Returns the name of a variable's average in a checkpoint.

    Args:
      name: full name of the variable.
      saved: names of the variables in the checkpoint.

    Returns:
      The name; that of the variable itself where it has no average there.
    """
    names = (f"{_DRIVER}/{kind.kind}/{name}" for kind in KINDS)
    return next((each for each in names if each in saved), name)


def held(saved: Iterable[str]) -> dict[str, str]:
    """Returns the averages in a checkpoint: by name, the class that has made each.

    Args:
      saved: names of the variables in the checkpoint.
    """
    starts = {f"{_DRIVER}/{kind.kind}/": kind.__name__ for kind in KINDS}
    return {
        name: kind
        for name in saved
        for start, kind in starts.items()
        if name.startswith(start)
    }
