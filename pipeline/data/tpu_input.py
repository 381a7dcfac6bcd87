# SPDX-License-Identifier: Apache-2.0
"""The input of a TPU, whose replicas share one trace.

Elsewhere each replica picks its batch by its number, which is not known in a shared trace. So a
distributed iterator reads one pipeline on each host, and the batches are arguments of
`strategy.run`. All shapes are static: data that end are padded with batches that do not count,
because `get_next_as_optional` would lose the shapes.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ..distribute.replicas import Replicas
from ..errors import UserValueError
from .batch import Batch, as_pair, components_of
from .input import Input, batch_of, padded
from .source import InputContext, Source


@dataclasses.dataclass(frozen=True)
class TpuInput(Input):
    """The data of all hosts and how a step takes its batches.

    `dataset` is distributed. Positions count the elements of all hosts. An iterator cannot be
    saved, so a restart skips.
    """

    @classmethod
    def create(
        cls, source: Source, replicas: Replicas, *, num_micro_batches: int = 1
    ) -> "TpuInput":
        """Returns the input, after calling the input_fn for the pipeline of each host.

        Raises:
          UserValueError: the shapes are not static, or the replicas cannot share a batch.
        """
        splits = replicas.total > 1 and source.yields_global_batches
        dataset, by_host = _distributed(source, replicas, splits=splits)
        lengths = [int(each.cardinality()) for each in by_host]
        if not any(lengths):
            raise source.empty_error()
        endless = all(length == tf.data.INFINITE_CARDINALITY for length in lengths)
        return cls(
            dataset,
            replicas,
            splits,
            endless,
            padded=not endless,
            num_micro_batches=num_micro_batches,
            source=source,
            unpadded=by_host[0],
        )

    def call(
        self, *, seed: int | None = None, base: int | None = None, first_batch: int = 0
    ) -> tf.distribute.DistributedDataset:
        """Calls the input_fn again, and leaves elements out; see `Input.call`."""
        options = {"seed": seed, "base": base, "first_batch": first_batch}
        return _distributed(self.source, self.replicas, splits=self.splits, **options)[0]

    def open(
        self, *, seed: int | None = None, base: int | None = None, first_batch: int = 0
    ) -> tuple[Any, None]:
        """Returns an iterator over `call`; batches of several hosts are not compared."""
        return iter(self.call(seed=seed, base=base, first_batch=first_batch)), None

    @property
    def starts_anywhere(self) -> bool:
        """True: `call` leaves elements out, since the iterator cannot be saved."""
        return True

    @property
    def element_spec(self) -> tuple[Any, Any]:
        """Type specs of one replica's features and labels."""
        return _spec_of_part(self.unpadded.element_spec, self.replicas.total if self.splits else 1)

    def take(self, iterator: Any) -> tuple[tf.Tensor, Callable[[], list[list[Batch]]]]:
        """Takes the batches of one step, in a graph; see `Input.take`."""
        batches = [self._by_replica(next(iterator)) for _ in range(self.num_micro_batches)]
        if self.endless:
            return tf.constant(True), lambda: batches
        return tf.reduce_any([batch.share > 0 for batch in batches[0]]), lambda: batches

    def _by_replica(self, distributed: Any) -> list[Batch]:
        local_results = self.replicas.strategy.experimental_local_results

        def batch(index: int) -> Batch:
            element = tf.nest.map_structure(lambda leaf: local_results(leaf)[index], distributed)
            return batch_of(element, None) if self.endless else batch_of(*element)

        return [batch(index) for index in range(self.replicas.local)]


def checked_spec(source: Source, num_replicas: int) -> tuple[Any, Any]:
    """Returns type specs of one replica's features and labels, on a TPU of one host.

    Args:
      source: the input_fn, which is called.
      num_replicas: number of cores of the TPU.

    Raises:
      UserValueError: the shapes are not static, or the replicas cannot share a batch.
    """
    spec = source.dataset(InputContext(1, 0, num_replicas)).element_spec
    parts = num_replicas if source.yields_global_batches else 1
    _check(spec, parts, source.name)
    return _spec_of_part(spec, parts)


def _spec_of_part(element_spec: Any, parts: int) -> tuple[Any, Any]:
    """Returns the type specs of one of equal parts of a batch."""

    def of_part(spec: tf.TensorSpec | None) -> tf.TensorSpec | None:
        if spec is None:
            return None
        return tf.TensorSpec([spec.shape[0] // parts, *spec.shape[1:]], spec.dtype)

    return tf.nest.map_structure(of_part, as_pair(element_spec))


def _distributed(
    source: Source,
    replicas: Replicas,
    *,
    splits: bool,
    seed: int | None = None,
    base: int | None = None,
    first_batch: int = 0,
) -> tuple[tf.distribute.DistributedDataset, list[tf.data.Dataset]]:
    """Returns the dataset of all hosts, and that of the input_fn for each of them.

    `first_batch` elements are left out: of global batches, or else of all hosts together.
    """
    returned: list[tf.data.Dataset] = []

    def dataset_of(given: tf.distribute.InputContext) -> tf.data.Dataset:
        hosts, total = given.num_input_pipelines, given.num_replicas_in_sync
        context = InputContext(hosts, given.input_pipeline_id, total)
        whole = dataset = source.dataset(context, seed=seed, base=base)
        returned.append(whole)
        _check(whole.element_spec, total if splits else 1, source.name)
        skipped = first_batch if splits else first_batch // hosts
        if skipped and source.starts_anywhere:
            dataset = source.dataset(context, seed=seed, base=base, first_batch=skipped)
        elif skipped:
            dataset = whole.skip(skipped)
        endless = whole.cardinality() == tf.data.INFINITE_CARDINALITY
        if splits:
            per_host = total // hosts
            first = given.input_pipeline_id * per_host
            parts = range(first, first + per_host)
            dataset, whole = (split(each, total, parts) for each in (dataset, whole))
        if endless:
            return dataset
        spec = whole.element_spec
        zeros = tf.nest.map_structure(lambda each: tf.zeros(each.shape, each.dtype), spec)
        # A host without data has zeros as its placeholder.
        return padded(dataset, whole.concatenate(tf.data.Dataset.from_tensors(zeros)))

    # The strategy calls dataset_of for each host, on its device.
    return replicas.strategy.distribute_datasets_from_function(dataset_of), returned


def split(dataset: tf.data.Dataset, number: int, parts: range) -> tf.data.Dataset:
    """Returns some of `number` equal parts of each global batch, one after the other."""

    def of_element(*element: Any) -> tf.data.Dataset:
        def of(leaf: tf.Tensor) -> tf.Tensor:
            by_replica = tf.reshape(leaf, [number, leaf.shape[0] // number, *leaf.shape[1:]])
            return by_replica[parts.start : parts.stop]

        element = element if len(element) > 1 else element[0]
        return tf.data.Dataset.from_tensor_slices(tf.nest.map_structure(of, element))

    return dataset.flat_map(of_element)


def _check(element_spec: Any, parts: int, name: str) -> None:
    """Refuses data that a TPU's program, compiled for one shape, cannot take.

    Args:
      element_spec: type specs of a batch.
      parts: number of replicas that share it.
      name: name of the input_fn.
    """
    for place, spec in components_of(element_spec):
        given = f"{name} yields {place} as {spec} on a TPU"
        if not isinstance(spec, tf.TensorSpec):
            raise UserValueError(
                f"{given}: expected a dense tensor. Use tf.sparse.to_dense, or "
                "RaggedTensor.to_tensor(shape=...), in dataset.map."
            )
        if spec.dtype in (tf.string, tf.variant, tf.resource):
            raise UserValueError(
                f"{given}: expected numbers. Map strings to ids in input_fn, such as by "
                "tf.strings.to_hash_bucket_fast."
            )
        if not spec.shape.is_fully_defined():
            raise UserValueError(
                f"{given}: expected a static shape. Use batch(..., drop_remainder=True), and "
                "padded_batch with padded_shapes or tf.ensure_shape for other dimensions."
            )
        if parts > 1 and (not spec.shape.rank or spec.shape[0] % parts):
            raise UserValueError(
                f"{name} yields {place} of shape {tuple(spec.shape)} for {parts} replicas: "
                f"expected a number of rows that is a multiple of {parts}. Change the batch size, "
                "or take input_context and batch for one replica."
            )
