"""Makes Keras' and TensorFlow's mean losses means over one replica's batch.

Both libraries divide a mean by the number of replicas as well, for programs that add up
the replicas' gradients: `keras.losses.MeanSquaredError()`,
`tf.nn.compute_average_loss`, `tf.nn.scale_regularization_loss`. This project averages
the replicas' means, by the examples that each has. With the division such a loss would
be half on two replicas.

One mean over all replicas stays Keras' own, and a warning says where it tells: that of
`BatchNormalization(synchronized=True)`.
"""

import contextlib
import functools
import inspect
import sys
import threading
import types
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from pipeline.contract.spec import EstimatorSpec

_ONE_REPLICA = types.SimpleNamespace(num_replicas_in_sync=1)


class _Inside(threading.local):
    """The `kept` blocks around this thread: replicas are traced in threads."""

    depth = 0


_inside = _Inside()


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Leaves mean losses undivided in the block, in this thread."""
    _install()
    _inside.depth += 1
    try:
        yield
    finally:
        _inside.depth -= 1


def remarks(
    parts: Iterable[tuple[str, Any]], spec: EstimatorSpec, num_replicas: int
) -> Iterator[str]:
    """Yields a warning where moments of all replicas have another gradient than one's.

    A replica takes the others' losses into the gradient of such moments as if they
    counted alike.

    Args:
      parts: layers, each with its name prefix, and other parts of modules.
      spec: spec of the mode.
      num_replicas: number of replicas of all processes.
    """
    if num_replicas == 1 or not spec.train_op or spec.loss_weights is None:
        return
    for prefix, layer in parts:
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized:
            yield (
                f"{prefix.rstrip('/')} is a BatchNormalization(synchronized=True), and "
                f"the loss has loss_weights: on {num_replicas} replicas its gradient "
                "is that of one replica only where the weights of each replica's part "
                "have the same sum. Write BatchNormalization(), of which each replica "
                "takes the moments of its own part, or LayerNormalization()."
            )


@functools.cache
def _install() -> None:
    """Makes both libraries heed `kept`; no public way turns their division off."""
    losses = sys.modules[keras.losses.Loss.__module__]
    scaled = losses.scale_loss_for_distribution
    losses.scale_loss_for_distribution = lambda value: (
        value if _inside.depth else scaled(value)
    )
    means = sys.modules[inspect.unwrap(tf.nn.compute_average_loss).__module__]
    # In this one module of TensorFlow: elsewhere the strategy stays what it is.
    means.distribute_lib = _Distribution(means.distribute_lib)


class _Distribution:
    """TensorFlow's `distribute_lib`, with one replica inside of `kept`."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def get_strategy(self) -> Any:
        return _ONE_REPLICA if _inside.depth else self._own.get_strategy()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)
