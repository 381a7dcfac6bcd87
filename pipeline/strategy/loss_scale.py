"""The loss times a number in float16, so that small gradients do not become 0."""

from collections.abc import Container, Mapping, MutableMapping

import tensorflow as tf

_INITIAL = 2.0**15
# Finite updates after which it is doubled, as in Keras and in Micikevicius et al.
# (2018), Mixed Precision Training.
_GROWTH_UPDATES = 2000
_SCALE, _GOOD = "loss_scale", "loss_scale_good_steps"
_OP = "_of_train_op_"


class LossScale:
    """A TrainOp's own scale: halved by its overflows, doubled after many good updates.

    As Keras' LossScaleOptimizer: what counts are the op's own updates, those of a
    `repeat` each, and none that is not due.
    """

    def __init__(self, state: Mapping[str, tf.Variable], index: int) -> None:
        """
        Args:
          state: the driver's variables, see `add_variables`.
          index: number of the op.
        """
        self._scale, self._good = (state[name] for name in _names(index))

    def scaled(self, objective: tf.Tensor) -> tf.Tensor:
        """What to take the gradient of."""
        return objective * self._scale

    def factor(self) -> tf.Tensor:
        """What takes the scale out of that gradient again."""
        return tf.math.reciprocal(self._scale)

    def move(self, finite: tf.Tensor, due: tf.Tensor | bool) -> None:
        """Adapts to a gradient; in cross-replica context.

        Args:
          finite: whether all of it is.
          due: whether the op is applied by it, if it is finite.
        """
        scale, good = tf.identity(self._scale), tf.identity(self._good)
        updates = tf.where(finite, good + 1, 0)
        grown = tf.equal(updates, _GROWTH_UPDATES)
        up, down = tf.where(grown, scale * 2, scale), tf.maximum(scale / 2, 1.0)
        updates = tf.where(grown, tf.zeros_like(updates), updates)
        self._scale.assign(tf.where(due, tf.where(finite, up, down), scale))
        self._good.assign(tf.where(due, updates, good))


def add_variables(state: MutableMapping[str, tf.Variable], num_ops: int) -> None:
    """Adds the scales of so many ops to the driver's variables, under its scope."""
    for index in range(num_ops):
        scale, good = _names(index)
        if scale not in state:
            state[scale] = _scalar(scale, tf.constant(_INITIAL))
            state[good] = _scalar(good, tf.constant(0, tf.int64))


def is_used(state: Mapping[str, tf.Variable]) -> bool:
    """Whether losses are scaled at all."""
    return _SCALE in state


def saved_as(name: str, saved: Container[str]) -> str:
    """The name under which a checkpoint has what is called `name`.

    All ops had one scale once, which is where each goes on from.

    Args:
      name: of any variable.
      saved: the names that the checkpoint has.
    """
    base = name.partition(_OP)[0]
    is_scale = base.rpartition("/")[2] in _names(0)
    return base if is_scale and name not in saved else name


def _names(index: int) -> tuple[str, str]:
    """The scale's and its counter's; checkpoints have had the first op's for long."""
    suffix = f"{_OP}{index + 1}" if index else ""
    return _SCALE + suffix, _GOOD + suffix


def _scalar(name: str, value: tf.Tensor) -> tf.Variable:
    return tf.Variable(
        value,
        trainable=False,
        name=name,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )
