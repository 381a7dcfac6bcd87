"""Calls an input_fn as the workers of a cluster would, and reads what it yields.

The first, a middle and the last worker's pipelines are built and read for real, beside
one pipeline that has all data. Of the other workers as many are called as the time
allows, spread over all of them, and read where all of them can be.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from pipeline.feed import fingerprint
from pipeline.feed.dataset import InputContext, Source
from pipeline.inspection import examples, source_files
from pipeline.inspection.examples import Reading
from pipeline.inspection.topology import Split
from pipeline.mistakes import user_errors

# Workers that are read before it is known whether there is time to read all.
_TRIED = 8


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """What one worker's call of input_fn returned.

    Attributes:
      worker: its number; -1 for the pipeline that has all data.
      spec: type spec of an element; None where the call failed.
      files: files that it reads; None where none are known.
      digest: number that is the same for the same data and operations.
      reading: its examples; None where they were not read.
      is_endless: whether the data never end.
      global_batch: examples that input_fn divided among the replicas, or None.
      error: words of the error that it raised, or "".
    """

    worker: int
    spec: Any = None
    files: Sequence[str] | None = None
    digest: int = 0
    reading: Reading | None = None
    is_endless: bool = False
    global_batch: int | None = None
    error: str = ""


@dataclasses.dataclass(frozen=True)
class Pipelines:
    """The pipelines of one input.

    Attributes:
      split: pipelines among which the input is divided.
      whole: pipeline that has all data.
      looked_at: pipelines that were read, by worker: the first, a middle, the last.
      others: the other pipelines that were called, by worker.
    """

    split: Split
    whole: Pipeline
    looked_at: Sequence[Pipeline]
    others: Sequence[Pipeline] = ()

    @property
    def called(self) -> list[Pipeline]:
        """All workers' pipelines, by worker."""
        return sorted([*self.looked_at, *self.others], key=lambda each: each.worker)

    @property
    def all_called(self) -> bool:
        """Whether each worker's pipeline was built."""
        return len(self.called) == self.split.num_pipelines

    @property
    def all_read(self) -> bool:
        """Whether each worker's examples are known, all of them."""
        return self.all_called and all(is_whole(each) for each in self.called)


def is_whole(pipeline: Pipeline) -> bool:
    """Whether a pipeline was read to its end."""
    return pipeline.reading is not None and pipeline.reading.is_whole


def rows_of(pipeline: Pipeline) -> int | None:
    """Returns the static size of a batch; None where batches may differ."""
    if pipeline.spec is None:
        return None
    shape = tf.nest.flatten(pipeline.spec)[0].shape
    return shape[0] if shape.rank else None


def build(
    source: Source,
    split: Split,
    *,
    secs: float,
    clock: Callable[[], float] = time.monotonic,
) -> Pipelines:
    """Builds and reads the pipelines of an input.

    Args:
      source: the input_fn; it takes an `input_context`, or there is one pipeline.
      split: pipelines among which it divides the data.
      secs: seconds that this may take, roughly: calls, and batches, are waited for.
      clock: function that returns seconds.
    """
    began = clock()
    number = split.num_pipelines
    first = sorted({0, number // 2, number - 1})
    each_secs = secs / 10 if number > 1 else secs
    looked_at = [
        _called(source, split.context(worker), worker, secs=each_secs, clock=clock)
        for worker in first
    ]
    if number == 1 or all(each.error for each in looked_at):
        return Pipelines(split, looked_at[0], looked_at)
    context = split.whole(larger=rows_of(looked_at[0]) is None)
    whole = _called(source, context, -1, secs=secs * 3 / 10, clock=clock)
    rest = [worker for worker in _spread(number) if worker not in first]
    reads = all(is_whole(each) for each in (whole, *looked_at))
    others: list[Pipeline] = []
    start, end = clock(), began + secs
    # One after the other: each holds its data only while it is looked at.
    for worker in rest:
        left = end - clock()
        if left <= 0:
            break
        if reads and len(others) >= _TRIED:
            reads = (clock() - start) / len(others) * (len(rest) - len(others)) < left
        context, most = split.context(worker), left if reads else None
        others.append(_called(source, context, worker, secs=most, clock=clock))
    return Pipelines(split, whole, looked_at, others)


def _called(
    source: Source,
    context: InputContext,
    worker: int,
    *,
    secs: float | None,
    clock: Callable[[], float],
) -> Pipeline:
    """Calls input_fn for a worker, and reads for so many seconds; None: not at all."""
    with _failing() as errors:
        dataset = source.dataset(context)
        endless = int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
        found = Pipeline(
            worker,
            spec=dataset.element_spec,
            files=source_files.of(dataset),
            digest=fingerprint.of(dataset).digest,
            is_endless=endless,
            global_batch=context.global_batch,
        )
        if secs is None:
            return found
        with user_errors.running(lambda: f"mode {source.mode!r}"):
            reading = examples.read(dataset, secs=secs, clock=clock)
        return dataclasses.replace(found, reading=reading)
    return Pipeline(worker, error=errors[0])


@contextlib.contextmanager
def _failing() -> Iterator[list[str]]:
    """Keeps the words of an error of input_fn, which is a finding here."""
    errors: list[str] = []
    try:
        yield errors
    except Exception as error:
        errors.append(user_errors.text_of(error))


def _spread(number: int) -> list[int]:
    """Returns the numbers below `number`, such that the first ones lie far apart."""
    # A stride near the golden section that has no divisor in common with the number.
    stride = next(
        s
        for s in range(max(round(number * 0.618), 1), 2 * number + 2)
        if math.gcd(s, number) == 1
    )
    return [index * stride % number for index in range(number)]
