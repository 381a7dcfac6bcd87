"""Turns an input_fn's dataset into batches for the replicas of this process.

Each pipeline has one plain `tf.data` iterator. The compiled loop reads it by one `next`
per local replica, in replica order. It is faster than a distributed iterator, and it
can be saved.

Where the data end in the middle of a step, a replica that is left without a batch
computes on a copy of the first replica's batch, which counts for nothing. So every
replica runs the same operations, and BatchNormalization never sees an empty batch: an
empty batch would make its weights NaN.
"""

import dataclasses
import zlib
from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf

from pipeline.contract import calling
from pipeline.contract.spec import ModeKeys
from pipeline.feed import dataset as dataset_lib
from pipeline.feed import fingerprint, iterators
from pipeline.feed.batch import Plan, any_batch_size, pair_of
from pipeline.feed.dataset import Source
from pipeline.feed.fingerprint import Fingerprint
from pipeline.mistakes import user_errors
from pipeline.process.refusals import RefusedTypeError, RefusedValueError
from pipeline.strategy.peers import Peers
from pipeline.strategy.replicas import Replicas

AS_YIELDED = "as input_fn yields it"


class AnyFeed(Protocol):
    """The data of an input_fn, and the way to take a step's batches from them."""

    @property
    def plan(self) -> Plan:
        """The way in which elements become batches."""

    @property
    def element_spec(self) -> tuple[Any, Any]:
        """The type specs `(features, labels)` of one replica's batch."""

    def fingerprint(self) -> Fingerprint:
        """Describes the data, so that a run that goes on knows them again."""

    def again(self) -> "AnyFeed":
        """Returns the same data, of which no iterator was made yet."""


class ReadableFeed(AnyFeed, Protocol):
    """A feed over which this process opens iterators; others do for parameter servers.

    Attributes:
      starts_anywhere: whether input_fn takes `first_batch`; else what was read is read
        over.
    """

    starts_anywhere: bool

    @property
    def saves_position(self) -> bool:
        """Whether where an iterator stands is saved, if the dataset can be."""

    @property
    def num_steps(self) -> int | None:
        """Steps in one pass, None where nobody knows before its end."""

    def iterator(self, skipped: int = 0) -> Any:
        """Returns a new iterator, past so many elements."""

    def again(self) -> "ReadableFeed":
        """Returns the same data, of which no iterator was made yet."""


@dataclasses.dataclass(frozen=True)
class Feed:
    """One pipeline's data and how they are taken.

    Attributes:
      dataset: dataset that input_fn returned, maybe padded. TensorFlow adds a prefetch
        where there is none.
      plan: how the elements become batches.
      global_batch: examples that input_fn divided among the replicas; None where it did
        not ask for its share.
      call: calls input_fn again, and returns its dataset without a number of first
        elements; None where another process reads the data.
      starts_anywhere: whether `call` takes numbers other than 0.
      yielded: dataset as input_fn returned it; None where it is `dataset` itself.
    """

    dataset: tf.data.Dataset
    plan: Plan
    global_batch: int | None = None
    call: Callable[[int], tf.data.Dataset] | None = None
    starts_anywhere: bool = False
    yielded: tf.data.Dataset | None = None

    @property
    def element_spec(self) -> tuple[Any, Any]:
        """The type specs `(features, labels)` of one replica's batch."""
        spec = self.dataset.element_spec
        pair = pair_of(spec[0] if self.plan.padded else spec)
        if not self.plan.splits or self.plan.replicas.total == 1:
            return pair
        return tf.nest.map_structure(any_batch_size, pair)

    @property
    def saves_position(self) -> bool:
        """Whether an iterator's position is saved, where TensorFlow can save it."""
        return not self.starts_anywhere

    @property
    def num_steps(self) -> int | None:
        """Steps in one pass, None where nobody knows before its end."""
        if self.plan.num_steps is not None:
            return self.plan.num_steps
        length = int(self.dataset.cardinality())
        return -(-length // self.plan.nexts_per_step) if length >= 0 else None

    def iterator(self, skipped: int = 0) -> Any:
        """Returns a new iterator.

        Args:
          skipped: elements to leave out at the beginning.

        Raises:
          StepError: reading over these elements failed.
        """
        if not skipped:
            return iterators.over(self.dataset)
        if self.starts_anywhere:
            return iterators.over(self.call(skipped))
        iterator = iterators.over(self.dataset)
        with user_errors.running(lambda: f"reading over {skipped} batches"):
            iterators.skip(iterator, skipped)
        return iterator

    def fingerprint(self) -> Fingerprint:
        """Describes the data, so that a run that goes on knows them again."""
        return fingerprint.of(self.dataset if self.yielded is None else self.yielded)

    def again(self) -> "Feed":
        """Returns the same data in a new dataset, of which no iterator was made yet.

        A seeded shuffle gives each iterator of one dataset another order. So an
        iterator that is to read what another one has read needs its own dataset.
        """
        return dataclasses.replace(self, dataset=self.call(0))

    def __str__(self) -> str:
        """Returns 'input pipeline 0 of 2 | global batch 64', for logs."""
        replicas, size = self.plan.replicas, self.global_batch or AS_YIELDED
        place = f"input pipeline {replicas.process} of {replicas.num_processes}"
        return f"{place} | global batch {size}"


def make_feed(source: Source, *, peers: Peers, num_micro_batches: int = 1) -> Feed:
    """Calls an input_fn for this process' pipeline.

    Args:
      source: the input_fn.
      peers: processes whose replicas are fed. In PREDICT each process reads all data.
      num_micro_batches: batches per replica and step.

    Raises:
      TypeError: see `Source.dataset`.
    """
    replicas, together = peers.replicas, not peers.alone
    # Each process returns the predictions for all of the data, to its own caller.
    if source.mode == ModeKeys.PREDICT:
        replicas, together = Replicas(replicas.local, replicas.local), False
    input_context = dataset_lib.InputContext(
        num_input_pipelines=replicas.num_processes,
        input_pipeline_id=replicas.process,
        num_replicas_in_sync=replicas.total,
    )
    if together and source.yields_global_batches:
        source, dataset = dataset_lib.shared(source, input_context, peers)
    else:
        dataset = source.dataset(input_context)
    length = int(dataset.cardinality())
    plan = Plan(
        endless=length == tf.data.INFINITE_CARDINALITY,
        replicas=replicas,
        num_micro_batches=num_micro_batches,
        splits=source.yields_global_batches,
    )
    if together:
        plan = _agreed(plan, length, dataset.element_spec, peers)

    def call(first_batch: int) -> tf.data.Dataset:
        again = source.dataset(input_context, first_batch=first_batch)
        if again.element_spec != dataset.element_spec:
            raise RefusedTypeError(
                f"input_fn {source.name} yields {again.element_spec} "
                f"with first_batch={first_batch}, and at first {dataset.element_spec}: "
                "it must yield the same shapes and dtypes at each call."
            )
        return dataset_lib.pad(again, dataset) if plan.padded else again

    return Feed(
        dataset_lib.pad(dataset) if plan.padded else dataset,
        plan,
        input_context.global_batch,
        call,
        starts_anywhere=source.starts_anywhere,
        yielded=dataset,
    )


def endless_input_error(input_fn: Callable[..., Any]) -> ValueError:
    """Returns the error to raise for an evaluation that would never end."""
    return RefusedValueError(
        f"input_fn {calling.name_of(input_fn)} never ends in mode EVAL: drop its "
        "repeat(), or give evaluate(..., steps=100)."
    )


def empty_input_error(input_fn: Callable[..., Any], mode: str) -> ValueError:
    """Returns the error to raise for an input without any example."""
    return RefusedValueError(
        f"input_fn {calling.name_of(input_fn)} yielded no examples in mode {mode!r}. "
        "Is the split empty, a filter too strict, or drop_remainder=True with fewer "
        "examples than a batch?"
    )


def _agreed(plan: Plan, length: int, element_spec: Any, peers: Peers) -> Plan:
    """Returns a plan on which all processes agree.

    Asking in each step whether data are left costs as much as a small model's
    gradients. So where all lengths are known, the processes exchange them once.

    Args:
      plan: plan of this process' data by themselves.
      length: elements of this process' data, or what `cardinality` says instead.
      element_spec: type spec of one element here.
      peers: processes that train in step.
    """
    lengths = [length for (length,) in peers.gather([length])]
    per_step, num_steps = plan.nexts_per_step, None
    if min(lengths) >= 0:  # A cardinality of endless or unknown is negative.
        num_steps = -(-max(lengths) // per_step)
    endless = set(lengths) == {tf.data.INFINITE_CARDINALITY}
    even = num_steps is not None and set(lengths) == {num_steps * per_step}
    return dataclasses.replace(
        plan,
        endless=endless,
        num_steps=num_steps,
        padded=not (endless or even),
        # Processes exchange nothing but numbers.
        alike=peers.same(zlib.crc32(repr(element_spec).encode())),
    )
