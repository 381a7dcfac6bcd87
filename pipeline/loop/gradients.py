"""Computes gradients, and keeps their weights, so that they can be added up."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from pipeline.contract.train_op import SpecError, TrainOp
from pipeline.rows.slices import dense, squared_norm, times
from pipeline.strategy import variables
from pipeline.strategy.modules import Modules
from pipeline.strategy.sharding import shards_of
from pipeline.tracing.summary_states import States, number

# Names of variables that a line of the log has; the others are counted.
_MOST_NAMES = 8


@dataclasses.dataclass
class Gradient:
    """A gradient by variable, and the sum of weights that it counts with.

    Attributes:
      values: one tensor or IndexedSlices for each variable.
      weight: sum of weights, float32 scalar; a Python float where the shapes tell it.
    """

    values: list[Any]
    weight: Any

    def as_dense(self) -> "Gradient":
        """Makes tensors of rows, of the shapes of the variables."""
        return Gradient([dense(g) for g in self.values], self.weight)

    def as_sum(self) -> "Gradient":
        """Turns a mean into a sum, so that several can be added."""
        weight = tf.convert_to_tensor(self.weight, tf.float32)
        return Gradient([times(g, weight) for g in self.values], weight)

    def as_mean(self) -> "Gradient":
        """Turns a sum into the mean; zero where nothing had weight."""
        factor = tf.math.reciprocal_no_nan(self.weight)
        return Gradient([times(g, factor) for g in self.values], self.weight)


@dataclasses.dataclass(frozen=True)
class _Clipping:
    """The norms to which an op's gradient is clipped, in this order.

    Attributes:
      together: greatest global norms, the driver's and the optimizer's.
      each: greatest norm of each variable's gradient, or None.
    """

    together: Sequence[float]
    each: float | None

    @classmethod
    def of(cls, op: TrainOp) -> "_Clipping | None":
        """Returns the norms of an op; None where it clips none."""
        together = [op.clip_norm, op.optimizer.global_clipnorm]
        made = cls([most for most in together if most], op.optimizer.clipnorm)
        return made if made.together or made.each else None

    def clipped(self, norms: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Returns the norms after clipping of gradients with these norms."""
        for most in self.together:
            scale = most / tf.maximum(tf.linalg.global_norm(norms), most)
            norms = [norm * scale for norm in norms]
        return [tf.minimum(n, self.each) for n in norms] if self.each else norms


class Norms:
    """The norms of what each module's variables are moved by, for summaries.

    Attributes:
      names: names of the norms: `gradient_norm/network`, all-reduced and before
        clipping; `clipped_gradient_norm/network`, of an op that clips by `clip_norm`,
        or whose optimizer clips norms itself; and `update_norm/network`, of the change
        of the weights in a step. Where several ops train a module, each has its
        gradients' norms: `.../network/1`.
    """

    def __init__(self, ops: Sequence[TrainOp], modules: Modules) -> None:
        """Finds the modules that each op trains.

        Args:
          ops: all train ops.
          modules: modules that the ops train.
        """
        named = modules.named_variables()
        owners = {id(v): name.partition("/")[0] for name, v in named.items()}
        for name, module in modules.by_name.items():
            # The parts of a table that parameter servers share have no names.
            parts = getattr(module, "trainable_variables", ())
            owners |= {id(variables.raw(v)): name for v in parts}
        self._owners = owners
        self._trained: dict[str, list[tf.Variable]] = {}
        trainers: dict[str, set[int]] = {}
        for i, op in enumerate(ops):
            for variable in map(variables.raw, op.variables):
                module = owners[id(variable)]
                mine = self._trained.setdefault(module, [])
                trainers.setdefault(module, set()).add(i)
                mine += [] if any(variable is v for v in mine) else [variable]
        # Of each op, the module's part of the name by module.
        self._of_op = [
            {
                module: module if len(numbers) == 1 else f"{module}/{i}"
                for module, numbers in trainers.items()
                if i in numbers
            }
            for i in range(len(ops))
        ]
        self._clips = [_Clipping.of(op) for op in ops]
        self.names = [f"update_norm/{module}" for module in self._trained]
        self.names += self.of_ops(range(len(ops)))

    def of_gradient(
        self, index: int, values: Sequence[Any], trained: Sequence[Any], factor: Any
    ) -> States:
        """Returns the norms of an op's all-reduced gradient.

        Args:
          index: number of the op.
          values: gradient by variable.
          trained: variables of the values.
          factor: number by which the gradient is multiplied before it is applied.
        """
        owners = [self._owners[id(variables.raw(variable))] for variable in trained]
        norms = [tf.sqrt(squared_norm(value, factor)) for value in values]

        def by_part(name: str, each: Sequence[tf.Tensor]) -> States:
            found = {}
            for module, part in self._of_op[index].items():
                own = [n for n, o in zip(each, owners, strict=True) if o == module]
                norm = tf.linalg.global_norm(own) if own else tf.zeros([])
                found[f"{name}/{part}"] = number(norm)
            return found

        states = by_part("gradient_norm", norms)
        if clipping := self._clips[index]:
            states |= by_part("clipped_gradient_norm", clipping.clipped(norms))
        return states

    def of_ops(self, indices: Iterable[int]) -> list[str]:
        """Returns the names of the norms of some ops' gradients."""
        parts = [(i, part) for i in indices for part in self._of_op[i].values()]
        clipped = [f"clipped_gradient_norm/{p}" for i, p in parts if self._clips[i]]
        return [f"gradient_norm/{part}" for _, part in parts] + clipped

    def snapshot(self) -> dict[str, list[tf.Tensor]]:
        """Returns the values of the variables that are trained, by module."""
        return {
            module: [tf.identity(v) for v in mine]
            for module, mine in self._trained.items()
        }

    def of_update(self, before: Mapping[str, Sequence[tf.Tensor]]) -> States:
        """Returns the norms of what has changed since a snapshot."""
        states = {}
        for module, after in self.snapshot().items():
            pairs = zip(after, before[module], strict=True)
            moves = [tf.cast(a - b, tf.float32) for a, b in pairs]
            states[f"update_norm/{module}"] = number(tf.linalg.global_norm(moves))
        return states


class Untrained:
    """Says which trainable variables stay as they are, such as a forgotten head."""

    def __init__(self, ops: Sequence[TrainOp], modules: Modules) -> None:
        """Says which of them no op takes; it may be meant, as `unfrozen` does it.

        Args:
          ops: all train ops.
          modules: modules that the ops train.
        """
        self._say = modules.say
        named = modules.named_variables().items()
        self._names = {id(part): name for name, v in named for part in shards_of(v)}
        taken = set(self._of([v for op in ops for v in op.variables]))
        trainable = self._of(
            v
            for module in modules.by_name.values()
            if not isinstance(module, keras.optimizers.Optimizer)
            for v in getattr(module, "trainable_variables", ())
        )
        if left := [name for name in trainable if name not in taken]:
            text = (
                f"train | no TrainOp takes {len(left)} of {len(trainable)} trainable "
                f"variables, which stay as they are: {_in_words(left)}"
            )
            self._say([text], logging.INFO)

    def of_op(self, op: TrainOp, trained: Sequence[Any]) -> None:
        """Warns of variables of an op that have no gradient.

        Args:
          op: a train op.
          trained: those of its variables that have one.
        """
        has = {id(variables.raw(v)) for v in trained}
        if without := self._of(
            v for v in op.variables if id(variables.raw(v)) not in has
        ):
            text = (
                f"TrainOp.variables holds {_in_words(without)}, which the loss does "
                "not depend on, so that nothing trains them: see that model_fn uses "
                "them, or write TrainOp(optimizer, variables) without them."
            )
            self._say([text])

    def _of(self, given: Iterable[Any]) -> list[str]:
        """Returns the names of variables, of shards their table's, each once."""
        parts = (part for v in given for part in shards_of(variables.raw(v)))
        return list(dict.fromkeys(self._names.get(id(p), p.name) for p in parts))


def _in_words(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    shown = ", ".join(names[:_MOST_NAMES])
    return f"{shown} and {more} more" if more > 0 else shown


def gradient_of(
    tape: tf.GradientTape,
    objective: tf.Tensor,
    op: TrainOp,
    factor: tf.Tensor | float,
) -> tuple[list[Any], list[Any]]:
    """Computes the gradient by the variables of a TrainOp that the loss depends on.

    Args:
      tape: the tape that recorded `objective`.
      objective: scalar to minimise, scaled.
      op: the TrainOp whose variables are trained, or that has gradients already.
      factor: takes the loss scale out of a gradient.

    Returns:
      The gradient's values, and the variables of each.

    Raises:
      SpecError: the loss depends on no variable, or a variable is there twice.
    """
    raw = [variables.raw(v) for v in op.variables]
    twice = [v.name for i, v in enumerate(raw) if any(v is w for w in raw[:i])]
    if twice:
        raise SpecError(
            f"TrainOp.variables holds {twice} twice, which would be updated twice: "
            "hand in each once."
        )
    if op.gradients is None:
        values = tape.gradient(objective, raw)
    else:
        scale = 1.0 / factor
        values = [None if g is None else times(g, scale) for g in op.gradients]
    # Keras' optimizers drop a None for themselves, but weights and norms need numbers.
    present = [i for i, value in enumerate(values) if value is not None]
    if not present:
        names = [v.name for v in op.variables]
        raise SpecError(
            f"the loss depends on none of TrainOp.variables {names}: was it computed "
            "from the network's output inside of model_fn?"
        )
    return [values[i] for i in present], [op.variables[i] for i in present]
