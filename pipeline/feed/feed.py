"""input_fn -> batches for the replicas: call, check, split, position.

One plain `tf.data` iterator a pipeline, read in the compiled loop: one `next` per local
replica, in replica order. It is faster than a distributed iterator, and it can be
saved. Where the data end in the middle of a step, a replica that is left without a
batch computes on a copy of the first one's that counts for nothing, so that every
replica runs the same operations and BatchNormalization never sees an empty batch.
"""

import contextlib
import dataclasses
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from pipeline.contract import calling, user_errors
from pipeline.contract.spec import ModeKeys
from pipeline.feed import dataset as dataset_lib
from pipeline.feed import fingerprint, iterators
from pipeline.feed.batch import (
    Batch,
    any_batch_size,
    batch_of,
    pair_of,
    rows_in,
    rows_of,
)
from pipeline.feed.dataset import Source
from pipeline.feed.fingerprint import Fingerprint
from pipeline.process.refusals import RefusedTypeError, RefusedValueError
from pipeline.strategy.peers import Peers
from pipeline.strategy.replicas import Replicas

AS_YIELDED = "as input_fn yields it"


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a step's batches are taken from an iterator, in a compiled loop.

    Attributes:
      endless: whether the data never end.
      replicas: that take them, of which this process has some.
      num_micro_batches: batches per replica and step.
      splits: whether a batch is global and is cut into the replicas' parts.
      padded: whether the dataset was made endless by `input_dataset.pad`, so that a
        process whose data end first keeps step with the others.
      alike: whether batches have the same type specs in every process.
      num_steps: in one pass over all processes' data, where each knows the length of
        its own; None where they have to find out.
    """

    endless: bool
    replicas: Replicas = Replicas()
    num_micro_batches: int = 1
    splits: bool = False
    padded: bool = False
    alike: bool = True
    num_steps: int | None = None

    @property
    def asks(self) -> bool:
        """Whether each step has to find out if any data are left."""
        return not self.endless and self.num_steps is None

    @property
    def nexts_per_step(self) -> int:
        """Elements of the dataset that one step takes."""
        return self.num_micro_batches * (1 if self.splits else self.replicas.local)

    def take(self, iterator: Any) -> list[list[Batch]]:
        """One step's batches, by replica and micro-batch; there must be some left."""
        elements = [next(iterator) for _ in range(self.nexts_per_step)]
        if self.padded:
            return self._arrange(elements)
        return self._arrange([(element, None) for element in elements])

    def try_take(
        self, iterator: Any
    ) -> tuple[tf.Tensor, Callable[[], list[list[Batch]]]]:
        """The same from data that may end.

        Returns:
          Whether anything is left here (bool scalar), and what takes it if so; where
          the data are padded, also if not.
        """
        if self.padded:
            pairs = [next(iterator) for _ in range(self.nexts_per_step)]
            return pairs[0][1], lambda: self._arrange(pairs)
        optionals = [
            iterator.get_next_as_optional() for _ in range(self.nexts_per_step)
        ]
        more = optionals[0].has_value()

        def taken() -> list[list[Batch]]:
            first = optionals[0].get_value()
            elements: list[Any] = [(first, None)]
            for optional in optionals[1:]:
                has = optional.has_value()
                element = tf.cond(has, optional.get_value, lambda: first)
                elements.append((element, has))
            return self._arrange(elements)

        return more, taken

    def where(self, more: tf.Tensor, step: Callable[[], Any], state: Any) -> Any:
        """Returns what `step` does to `state` where `more` is true, else `state`."""
        return tf.cond(more, step, lambda: state)

    def to_predict(self, batches: list[list[Batch]]) -> tuple[Any, list[Any]]:
        """What the prediction step takes of a step's batches, and each one's share."""
        mine = [batch for (batch,) in batches]
        return [batch.features for batch in mine], [batch.share for batch in mine]

    def _arrange(self, elements: list[Any]) -> list[list[Batch]]:
        if self.replicas.total == 1:
            return [[batch_of(element, has) for element, has in elements]]
        if self.splits:
            parts = [self._split(element, has) for element, has in elements]
            return [list(batches) for batches in zip(*parts, strict=True)]
        rows = range(0, len(elements), self.replicas.local)
        return [
            [batch_of(*elements[row + replica]) for row in rows]
            for replica in range(self.replicas.local)
        ]

    def _split(self, element: Any, has: tf.Tensor | None) -> list[Batch]:
        """Cuts this process' parts, as equal as they come, out of a global batch."""
        rows, total, first = rows_in(element), self.replicas.total, self.replicas.first
        batches = []
        for replica in range(first, first + self.replicas.local):
            start = replica * rows // total
            stop = (replica + 1) * rows // total
            if isinstance(rows, int) and rows >= total:
                some = has
            else:
                filled = tf.less(start, stop)
                start, stop = tf.where(filled, start, 0), tf.where(filled, stop, 1)
                some = filled if has is None else tf.logical_and(has, filled)
            part = tf.nest.map_structure(
                lambda x, a=start, b=stop: rows_of(x, a, b), element
            )
            batches.append(batch_of(part, some))
        return batches


@dataclasses.dataclass(frozen=True)
class Feed:
    """One pipeline's data and how they are taken.

    Attributes:
      dataset: what input_fn returned, maybe padded. TensorFlow adds a prefetch where
        there is none.
      plan: how its elements become batches.
      global_batch: what input_fn divided among the replicas; None where it did not say.
      call: calls input_fn again, for the dataset without so many first elements; None
        where others read it.
      starts_anywhere: whether `call` takes another number than 0.
      yielded: what input_fn returned; None where that is `dataset`.
    """

    dataset: tf.data.Dataset
    plan: Plan
    global_batch: int | None = None
    call: Callable[[int], tf.data.Dataset] | None = None
    starts_anywhere: bool = False
    yielded: tf.data.Dataset | None = None

    @property
    def element_spec(self) -> tuple[Any, Any]:
        """`(features, labels)` as type specs of one replica's batch."""
        spec = self.dataset.element_spec
        pair = pair_of(spec[0] if self.plan.padded else spec)
        if not self.plan.splits or self.plan.replicas.total == 1:
            return pair
        return tf.nest.map_structure(any_batch_size, pair)

    @property
    def saves_position(self) -> bool:
        """Whether where an iterator stands is saved, if the dataset can be."""
        return not self.starts_anywhere

    def iterator(self, skipped: int = 0) -> Any:
        """A new iterator, past so many elements.

        Raises:
          StepError: reading over them failed.
        """
        if not skipped:
            return iter(self.dataset)
        if self.starts_anywhere:
            return iter(self.call(skipped))
        iterator = iter(self.dataset)
        with user_errors.running(lambda: f"reading over {skipped} batches"):
            iterators.skip(iterator, skipped)
        return iterator

    def fingerprint(self) -> Fingerprint:
        """Describes the data, so that a run that goes on knows them again."""
        return fingerprint.of(self.dataset if self.yielded is None else self.yielded)

    def again(self) -> "Feed":
        """The same data, of which no iterator was made yet.

        A seeded shuffle gives each iterator of a dataset another order, so that one
        that is to read what another has read needs a dataset of its own.
        """
        return dataclasses.replace(self, dataset=self.call(0))

    def __str__(self) -> str:
        """Such as 'input pipeline 0 of 2 | global batch 64', for logs."""
        replicas, size = self.plan.replicas, self.global_batch or AS_YIELDED
        place = f"input pipeline {replicas.process} of {replicas.num_processes}"
        return f"{place} | global batch {size}"


def make_feed(source: Source, *, peers: Peers, num_micro_batches: int = 1) -> Feed:
    """Calls an input_fn for this process' pipeline.

    Args:
      source: the input_fn.
      peers: whose replicas are fed. To predict, each process reads all of the data.
      num_micro_batches: batches per replica and step.

    Raises:
      TypeError: see `Source.dataset`.
    """
    replicas, together = peers.replicas, not peers.alone
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


@contextlib.contextmanager
def opened(feed: Feed) -> Iterator[list[Any]]:
    """A list of one iterator over the data, which is deleted behind the caller's back.

    See `iterators.delete_in_background`; so the caller names no iterator by itself.
    """
    box = [feed.iterator()]
    try:
        yield box
    finally:
        iterators.delete_in_background(box)


def endless_input_error(input_fn: Callable[..., Any]) -> ValueError:
    """What to raise for an evaluation that would never end."""
    return RefusedValueError(
        f"input_fn {calling.name_of(input_fn)} never ends in mode EVAL: drop its "
        "repeat(), or give evaluate(..., steps=100)."
    )


def empty_input_error(input_fn: Callable[..., Any], mode: str) -> ValueError:
    """What to raise for an input without any example."""
    return RefusedValueError(
        f"input_fn {calling.name_of(input_fn)} yielded no examples in mode {mode!r}. "
        "Is the split empty, a filter too strict, or drop_remainder=True with fewer "
        "examples than a batch?"
    )


def _agreed(plan: Plan, length: int, element_spec: Any, peers: Peers) -> Plan:
    """The plan of all processes, of which this one's data have `length` elements.

    An exchange in each step costs as much as the gradients' of a small model: where
    all lengths are known, they are exchanged once.
    """
    lengths = [length for (length,) in peers.gather([length])]
    per_step, num_steps = plan.nexts_per_step, None
    if min(lengths) >= 0:  # What is endless or unknown is negative.
        num_steps = -(-max(lengths) // per_step)
    endless = set(lengths) == {tf.data.INFINITE_CARDINALITY}
    even = num_steps is not None and set(lengths) == {num_steps * per_step}
    return dataclasses.replace(
        plan,
        endless=endless,
        num_steps=num_steps,
        padded=not (endless or even),
        alike=peers.same(zlib.crc32(repr(element_spec).encode())),
    )
