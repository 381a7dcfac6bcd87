# SPDX-License-Identifier: Apache-2.0
"""Tensors of single examples that a step fetches for the host, in addition to its sums.

These are tensors for hooks, summaries, the arguments of host metrics, and predictions.
"""

import pickle
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..contract.spec import EstimatorSpec, NumpyMetric
from ..contract.summaries import Summary
from ..data.batch import Batch
from ..distribute.replicas import Replicas
from ..errors import SpecError


class Fetches:
    """Which tensors `[batch, ...]` of a spec a step fetches, and how its parts are joined."""

    def __init__(
        self, choose: Callable[[EstimatorSpec], Any], outline: EstimatorSpec, field: str
    ) -> None:
        """Checks the tensors.

        Args:
          choose: returns a nest of tensors of a spec.
          outline: spec of the build trace.
          field: name of the nest in errors.

        Raises:
          SpecError: the nest has something else than tensors with a batch dimension.
        """
        self._choose = choose
        for leaf in tf.nest.flatten(choose(outline)):
            is_dense = not isinstance(leaf, tf.RaggedTensor | tf.SparseTensor)
            if not is_dense or tf.convert_to_tensor(leaf).shape.rank in (None, 0):
                raise SpecError(
                    f"{field} has {leaf!r}: expected tensors [batch, ...]. Convert a ragged or "
                    "sparse tensor to a dense one, and set an unknown rank by tf.ensure_shape."
                )
        self._outline = tf.nest.map_structure(tf.convert_to_tensor, choose(outline))

    def of(self, spec: EstimatorSpec) -> tuple[Any, ...]:
        """Returns the tensors of one replica's batch as the only part."""
        return (tf.nest.map_structure(tf.convert_to_tensor, self._choose(spec)),)

    def zeros(self) -> tuple[Any, ...]:
        """Returns a part without rows, of the static shapes of a part with any number of them."""

        def no_rows(like: tf.Tensor) -> tf.Tensor:
            shape = [None, *like.shape[1:]]
            empty = tf.zeros([0, *(size or 0 for size in shape[1:])], like.dtype)
            return tf.raw_ops.PlaceholderWithDefault(input=empty, shape=shape)

        return (tf.nest.map_structure(no_rows, self._outline),)

    def joined(self, parts: Sequence[Any], batches: Sequence[Sequence[Batch]]) -> tuple[Any, ...]:
        """Returns the parts of a step as one, in the order of its input, in cross-replica context.

        Args:
          parts: parts by local replica and micro-batch.
          batches: batches by micro-batch and local replica; placeholders have no rows.
        """
        count = len(batches)
        ordered, flat = [], []
        for index, by_replica in enumerate(batches):
            ordered += parts[index::count]
            flat += by_replica

        def rows_of(tensor: tf.Tensor, batch: Batch) -> tf.Tensor:
            if batch.share is None:
                return tensor
            return tensor[: tf.shape(tensor)[0] * tf.cast(batch.share, tf.int32)]

        def join(*tensors: tf.Tensor) -> tf.Tensor:
            filled = [rows_of(t, batch) for t, batch in zip(tensors, flat, strict=True)]
            return tf.concat(filled, axis=0) if len(filled) > 1 else filled[0]

        return (tf.nest.map_structure(join, *ordered),)


def named_fetches(names: Collection[str], outline: EstimatorSpec, field: str) -> Fetches | None:
    """Returns the fetches of tensors, summaries and arguments of host metrics by their names.

    Args:
      names: the names; None is returned for none.
      outline: spec of the build trace.
      field: name of the tensors in errors.
    """

    def choose(spec: EstimatorSpec) -> dict[str, Any]:
        host = {n: each for n, each in spec.metrics.items() if isinstance(each, NumpyMetric)}
        nests = {
            **spec.tensors,
            **{name: dict(summary.tensors) for name, summary in spec.summaries.items()},
            **{name: (each.args, dict(each.kwargs)) for name, each in host.items()},
        }
        return {name: nests[name] for name in names}

    return Fetches(choose, outline, field) if names else None


def summaries_of(spec: EstimatorSpec, *, under_xla: bool) -> Mapping[str, Summary]:
    """Returns the summaries of a spec by name.

    Raises:
      SpecError: XLA compiles the step, and one is a text.
    """
    texts = [
        name
        for name, summary in spec.summaries.items()
        if any(tensor.dtype == tf.string for tensor in summary.tensors.values())
    ]
    if texts and under_xla:
        raise SpecError(
            f"EstimatorSpec.summaries has the texts {texts}: expected none on a TPU and with "
            "RunConfig.jit_compile, since XLA has no strings."
        )
    return spec.summaries


def of_all_processes(steps: Sequence[Any], replicas: Replicas) -> list[Any]:
    """Returns the arrays of all processes in the order of the input; every process must call it.

    `steps` are nests of arrays of this process, one for each step.
    """
    if replicas.num_processes == 1:
        return list(steps)
    by_process = [pickle.loads(each) for each in replicas.gather_bytes(pickle.dumps(steps))]
    return [concatenated(parts) for parts in zip(*by_process, strict=True)]


def concatenated(parts: Sequence[Any]) -> Any:
    """Returns nests of arrays as one nest, with the rows of all.

    Raises:
      ValueError: examples of different shapes.
    """
    return tf.nest.map_structure(lambda *arrays: np.concatenate(arrays), *parts)
