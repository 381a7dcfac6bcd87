"""Feeds the replicas of a TPU, which share one trace: batches come as arguments.

In `feed.py` each replica picks its batch by its number. Where one trace serves all
replicas, there is no such number while tracing. So a distributed iterator reads the
pipelines, one on each host, and `strategy.run` hands each replica its part.

Shapes have to be static, also where data end. `get_next_as_optional` makes an empty
batch for a replica that is left without one, and so no longer knows the batch size. So
data that end are padded, and never end: a stand-in counts for nothing.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from pipeline.feed import dataset as dataset_lib
from pipeline.feed import fingerprint, iterators
from pipeline.feed.batch import Batch, Plan, pair_of
from pipeline.feed.dataset import Source
from pipeline.feed.fingerprint import Fingerprint
from pipeline.mistakes.checks import components
from pipeline.process.refusals import RefusedValueError
from pipeline.strategy.replicas import Replicas


@dataclasses.dataclass(frozen=True)
class DistributedPlan(Plan):
    """The way to take a step's batches from a distributed iterator.

    A step's batches are a list by micro-batch; each batch holds values that differ by
    replica.

    Attributes:
      strategy: strategy whose replicas take the batches.
    """

    strategy: tf.distribute.Strategy | None = None

    def take(self, iterator: Any) -> list[Batch]:
        """Takes one step's batches from endless data; returns them by micro-batch."""
        return [Batch(*pair_of(next(iterator))) for _ in range(self.num_micro_batches)]

    def try_take(self, iterator: Any) -> tuple[tf.Tensor, Callable[[], list[Batch]]]:
        """Takes one step's batches from data that may end, see `Plan.try_take`."""
        if self.endless:
            return tf.constant(True), lambda: self.take(iterator)
        pairs = [next(iterator) for _ in range(self.num_micro_batches)]
        batches = [Batch(*pair_of(e), share) for e, share in pairs]
        more = tf.reduce_any([share > 0 for share in self._by_replica(batches[0])])
        return more, lambda: batches

    def to_predict(self, batches: list[Batch]) -> tuple[Any, list[Any]]:
        """Returns the features of all replicas, and the share of each replica."""
        (batch,) = batches
        if batch.share is None:
            return batch.features, [None] * self.replicas.local
        return batch.features, self._by_replica(batch)

    def _by_replica(self, batch: Batch) -> list[tf.Tensor]:
        """Returns a batch's shares in the order of replicas."""
        return list(self.strategy.experimental_local_results(batch.share))


@dataclasses.dataclass(frozen=True)
class DistributedFeed:
    """The data of all hosts and how they are taken.

    Attributes:
      plan: how the elements become batches.
      element_spec: the type specs `(features, labels)` of one replica's batch.
      dataset_of: takes a host's input context and a number of elements to leave out,
        and returns the dataset of its pipeline.
      global_batch: examples of all replicas in one micro-batch.
      starts_anywhere: whether input_fn takes `first_batch`; else elements are skipped.
      yielded: dataset of one pipeline, of which no iterator is made.
    """

    plan: DistributedPlan
    element_spec: tuple[Any, Any]
    dataset_of: Callable[[tf.distribute.InputContext, int], tf.data.Dataset]
    global_batch: int
    starts_anywhere: bool = False
    yielded: tf.data.Dataset | None = None

    @property
    def saves_position(self) -> bool:
        """Whether an iterator's position is saved: a distributed one cannot be."""
        return False

    def __str__(self) -> str:
        """Returns 'one input pipeline a host | global batch 64', for logs."""
        return f"one input pipeline a host | global batch {self.global_batch}"

    @property
    def num_steps(self) -> int | None:
        """Steps in one pass, None where nobody knows before its end."""
        return self.plan.num_steps

    def iterator(self, skipped: int = 0) -> Any:
        """Returns a new distributed iterator that begins after `skipped` elements."""
        return iterators.over(
            self.plan.strategy.distribute_datasets_from_function(
                lambda input_context: self.dataset_of(input_context, skipped)
            )
        )

    def fingerprint(self) -> Fingerprint:
        """Describes the data, so that a run that goes on knows them again."""
        return fingerprint.of(self.yielded)

    def again(self) -> "DistributedFeed":
        """Returns this feed: input_fn is called anew for each iterator."""
        return self


def make_feed(
    source: Source,
    *,
    strategy: tf.distribute.Strategy,
    num_micro_batches: int = 1,
) -> DistributedFeed:
    """Calls an input_fn to see what it yields.

    Each host calls it again for its own pipeline, once for each iterator.

    Args:
      source: the input_fn.
      strategy: strategy whose replicas are fed.
      num_micro_batches: batches per replica and step.

    Raises:
      TypeError: see `Source.dataset`.
      ValueError: see `dataset_for`.
    """
    total = strategy.num_replicas_in_sync
    one = dataset_lib.InputContext(num_replicas_in_sync=total)
    dataset, endless = dataset_for(source, one)

    def dataset_of(
        input_context: tf.distribute.InputContext, skipped: int
    ) -> tf.data.Dataset:
        local = total // input_context.num_input_pipelines
        whole, endless = dataset_for(source, input_context)
        dataset = whole
        if skipped and source.starts_anywhere:
            # `first_batch` counts what input_fn yields. A global batch becomes `local`
            # elements here, so some of them may be left to skip.
            cut_into = local if source.yields_global_batches else 1
            dataset, _ = dataset_for(
                source, input_context, first_batch=skipped // cut_into
            )
            skipped %= cut_into
        dataset = dataset if endless else _with_shares(dataset, whole)
        return dataset.skip(skipped) if skipped else dataset

    plan = DistributedPlan(
        endless=endless,
        replicas=Replicas.of(strategy),
        num_micro_batches=num_micro_batches,
        padded=not endless,
        strategy=strategy,
    )
    spec = pair_of(dataset.element_spec)
    rows = tf.nest.flatten(spec)[0].shape[0]
    return DistributedFeed(
        plan,
        spec,
        dataset_of,
        global_batch=rows * total,
        starts_anywhere=source.starts_anywhere,
        yielded=dataset,
    )


def dataset_for(
    source: Source,
    input_context: tf.distribute.InputContext,
    *,
    first_batch: int = 0,
) -> tuple[tf.data.Dataset, bool]:
    """Calls an input_fn for one pipeline.

    Args:
      source: the input_fn. Global batches are cut into equal parts.
      input_context: number of the pipeline, and numbers of pipelines and replicas.
      first_batch: see `Source.dataset`.

    Returns:
      The dataset of the batches for this pipeline's replicas, one replica after the
      other, and whether the data never end.

    Raises:
      TypeError: see `Source.dataset`.
      ValueError: shapes are not static, see `check_static`; or the replicas cannot have
        equal parts of a global batch.
    """
    dataset = source.dataset(input_context, first_batch=first_batch)
    spec = pair_of(dataset.element_spec)
    check_static(spec, input_fn=source.name, mode=source.mode)
    endless = bool(dataset.cardinality() == tf.data.INFINITE_CARDINALITY)
    total = input_context.num_replicas_in_sync
    if source.yields_global_batches and total > 1:
        _check_divides(spec, total, source.name)
        local = total // input_context.num_input_pipelines
        first = input_context.input_pipeline_id * local
        dataset = cut(dataset, total, range(first, first + local))
    return dataset, endless


def cut(dataset: tf.data.Dataset, total: int, parts: range) -> tf.data.Dataset:
    """Returns some of `total` equal parts of each batch, one part after the other.

    Args:
      dataset: dataset of global batches, of a static size that `total` divides.
      total: number of replicas that share a batch.
      parts: numbers of the wanted parts, from 0.
    """

    def part(x: tf.Tensor) -> tf.Tensor:
        shape = [total, x.shape[0] // total, *x.shape[1:]]
        return tf.reshape(x, shape)[parts.start : parts.stop]

    def pieces(*element: Any) -> tf.data.Dataset:
        element = element if len(element) > 1 else element[0]
        return tf.data.Dataset.from_tensor_slices(tf.nest.map_structure(part, element))

    return dataset.flat_map(pieces)


def _with_shares(dataset: tf.data.Dataset, whole: tf.data.Dataset) -> tf.data.Dataset:
    """Returns `(element, 1.0)` for each, then `(first of whole, 0.0)` without end."""
    return dataset_lib.pad(dataset, whole).map(
        lambda each, has: (each, tf.cast(has, tf.float32))
    )


def _check_divides(element_spec: Any, total: int, name: str) -> None:
    """Raises where `total` replicas cannot have equal parts of each batch."""
    for place, spec in components(element_spec):
        rows = spec.shape[0] if spec.shape.rank else None
        if rows is None or rows % total:
            below = (rows or 0) // total * total
            raise RefusedValueError(
                f"input_fn {name} yields {place} of shape {spec.shape.as_list()} for "
                f"{total} replicas, which share it in equal parts: write "
                f"dataset.batch({below or total}, drop_remainder=True), a multiple of "
                f"{total}, or take input_context and batch for one replica."
            )


# Types of values that a TPU cannot hold.
_HOST_ONLY = (tf.string, tf.variant, tf.resource)


def check_static(element_spec: Any, *, input_fn: str, mode: str) -> None:
    """Raises where data have a kind, type or shape that a TPU cannot be fed with.

    Args:
      element_spec: the type specs `(features, labels)` of one replica's batch.
      input_fn: name of the input_fn that yields them.
      mode: mode that input_fn was called in.

    Raises:
      ValueError: names the component and what to write instead.
    """
    for name, spec in components(element_spec):
        what = f"input_fn {input_fn} yields in mode {mode!r} {name}"
        if not isinstance(spec, tf.TensorSpec):
            raise RefusedValueError(_not_dense(what, spec))
        if spec.dtype in _HOST_ONLY:
            raise RefusedValueError(
                f"{what} of type tf.{spec.dtype.name}, and a TPU computes with numbers "
                "only: map it to ids in input_fn, dataset.map(lambda x: "
                "tf.strings.to_hash_bucket_fast(x, 1000)) or a StringLookup layer, or "
                "leave it out there."
            )
        if not spec.shape.is_fully_defined():
            raise RefusedValueError(_not_static(what, spec.shape))


def _not_dense(what: str, spec: Any) -> str:
    """Returns the error's text for a component that is no dense tensor."""
    if isinstance(spec, tf.RaggedTensorSpec):
        return (
            f"{what} as a ragged tensor, whose rows have no fixed length: make it "
            "dense in input_fn, "
            "dataset.map(lambda x: x.to_tensor(shape=[BATCH, LENGTH]))."
        )
    if isinstance(spec, tf.SparseTensorSpec):
        return (
            f"{what} as a sparse tensor, whose number of values is not fixed: make it "
            "dense in input_fn, dataset.map(tf.sparse.to_dense)."
        )
    return f"{what} as {spec}: a TPU takes dense tensors only."


def _not_static(what: str, shape: tf.TensorShape) -> str:
    """Returns the error's text for a component of a shape that is not static."""
    dims = "[...]" if shape.rank is None else shape.as_list()
    text = f"{what} of shape {dims}, and a TPU's program is compiled for one shape: "
    if shape.rank is None:
        return text + "give it one in input_fn, tf.ensure_shape(x, [...])."
    unknown = [i for i, size in enumerate(shape.as_list()) if size is None]
    if unknown == [0]:
        return text + (
            "write dataset.batch(BATCH, drop_remainder=True) in input_fn; those of "
            "inputs/ take drop_remainder=True as an argument."
        )
    dims = ", ".join(str(i) for i in unknown)
    return text + (
        f"of dimension {dims} it does not know the size. Pad to a fixed length, "
        "dataset.padded_batch(BATCH, padded_shapes=[LENGTH], drop_remainder=True), or "
        "say what it is, tf.ensure_shape(x, [...])."
    )
