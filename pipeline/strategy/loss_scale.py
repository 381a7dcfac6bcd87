"""Mixed precision: the policy of Keras' layers, and the scale of losses in float16.

Scaled, small gradients do not become 0. A loss is multiplied by a scale before its
gradient is taken. The gradient is multiplied by the scale's reciprocal before it is
applied.
"""

import contextlib
from collections.abc import Container, Iterator, Mapping, MutableMapping

import keras
import tensorflow as tf

_INITIAL = 2.0**15
# Finite updates in a row after which the scale is doubled, as in Keras and in
# Micikevicius et al. (2018), Mixed Precision Training.
_GROWTH_UPDATES = 2000
_SCALE, _GOOD = "loss_scale", "loss_scale_good_steps"
_OP = "_of_train_op_"


class LossScale:
    """A TrainOp's own scale: halved by its overflows, doubled after many good updates.

    It moves as the scale of Keras' LossScaleOptimizer does. Only the op's own updates
    count: each update of a `repeat`, and none in a step in which the op is not due.
    """

    def __init__(self, state: Mapping[str, tf.Variable], index: int) -> None:
        """Finds an op's variables.

        Args:
          state: the driver's variables, see `add_variables`.
          index: number of the op.
        """
        self._scale, self._good = (state[name] for name in _names(index))

    def scaled(self, objective: tf.Tensor) -> tf.Tensor:
        """Returns the objective to take the gradient of, a float32 scalar."""
        return objective * self._scale

    def factor(self) -> tf.Tensor:
        """Returns the factor that takes the scale out of the gradient again."""
        return tf.math.reciprocal(self._scale)

    def move(self, finite: tf.Tensor, due: tf.Tensor | bool) -> None:
        """Adapts the scale to a gradient; in cross-replica context.

        Args:
          finite: whether all of the gradient is finite (bool scalar).
          due: whether a finite gradient is applied in this step (bool scalar, or True).
        """
        scale, good = tf.identity(self._scale), tf.identity(self._good)
        updates = tf.where(finite, good + 1, 0)
        grown = tf.equal(updates, _GROWTH_UPDATES)
        up, down = tf.where(grown, scale * 2, scale), tf.maximum(scale / 2, 1.0)
        updates = tf.where(grown, tf.zeros_like(updates), updates)
        self._scale.assign(tf.where(due, tf.where(finite, up, down), scale))
        self._good.assign(tf.where(due, updates, good))


def add_variables(state: MutableMapping[str, tf.Variable], num_ops: int) -> None:
    """Adds the ops' scales that are not there yet; called under the scope."""
    for index in range(num_ops):
        scale, good = _names(index)
        if scale not in state:
            state[scale] = _scalar(scale, tf.constant(_INITIAL))
            state[good] = _scalar(good, tf.constant(0, tf.int64))


def is_used(state: Mapping[str, tf.Variable]) -> bool:
    """Whether losses are scaled.

    Args:
      state: the driver's variables by name.
    """
    return _SCALE in state


def saved_as(name: str, saved: Container[str]) -> str:
    """Returns the name under which a checkpoint holds a variable.

    In old checkpoints all ops share one scale: each op's scale goes on from it.

    Args:
      name: name of any variable.
      saved: names of the variables in the checkpoint.
    """
    base = name.partition(_OP)[0]
    is_scale = base.rpartition("/")[2] in _names(0)
    return base if is_scale and name not in saved else name


def _names(index: int) -> tuple[str, str]:
    """Returns the names of an op's scale and of its counter of good updates.

    The first op's names have no number: old checkpoints hold these two.
    """
    suffix = f"{_OP}{index + 1}" if index else ""
    return _SCALE + suffix, _GOOD + suffix


def _scalar(name: str, value: tf.Tensor) -> tf.Variable:
    return tf.Variable(
        value,
        trainable=False,
        name=name,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )


@contextlib.contextmanager
def dtype_policy(name: str) -> Iterator[None]:
    """Has layers that are made in the block compute by a policy of Keras, by name."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
