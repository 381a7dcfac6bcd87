# SPDX-License-Identifier: Apache-2.0
"""Reads an input as each worker of a cluster would, and compares the workers' examples.

An example is a digest of its bytes, so that batches of any size and order can be compared.
"""

import collections
import dataclasses
import hashlib
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..contract.user_errors import step_errors
from ..data import fingerprint
from ..data.batch import as_pair, num_rows, relaxed
from ..data.source import InputContext, Source
from ..run import tracebacks
from .division import Division

# Examples that are read of endless data, and of other data.
_MOST_OF_ENDLESS, _MOST = 200, 200_000
_LEAST_WORKERS = 3  # That are read without regard to the time, and shown.
_SHARD = (
    "Set dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id) before "
    "shuffle() and batch()."
)


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """The data of one call of an input_fn.

    Attributes:
      worker: index of the worker.
      spec: type specs of features and labels; None after an error.
      examples: digests of the examples, in order.
      rows: number of examples of the first batch.
      has_ended: whether `examples` has all of them.
      num_files: number of files that the dataset names.
      error: message of the error of the call or the data; "" for none.
    """

    worker: int
    spec: Any = None
    examples: Sequence[bytes] = ()
    rows: int = 0
    has_ended: bool = False
    num_files: int = 0
    error: str = ""


def read(source: Source, context: InputContext, *, secs: float = 0.0) -> Pipeline:
    """Calls an input_fn and reads its examples for a time, at least the first batch."""
    end, worker = time.monotonic() + secs, context.input_pipeline_id
    examples: list[bytes] = []
    rows, has_ended = 0, True
    options = tf.data.Options()
    options.autotune.enabled = False  # Its thread sleeps, and a deleted iterator waits for it.
    try:
        with step_errors(source.mode, 0, input_fn=source.input_fn):
            dataset = source.dataset(context)
            endless = dataset.cardinality() == tf.data.INFINITE_CARDINALITY
            for element in dataset.with_options(options):
                examples += _digests(element)
                rows = rows or len(examples)
                most = _MOST_OF_ENDLESS if endless else _MOST
                if len(examples) >= most or time.monotonic() >= end:
                    has_ended = False
                    break
            num_files = len(fingerprint.files_of(dataset))
    except Exception as error:
        return Pipeline(worker, error=tracebacks.text_of(error))
    spec = as_pair(dataset.element_spec)
    return Pipeline(worker, spec, examples, rows, has_ended, num_files)


class Workers:
    """The pipelines of workers, and one that has all data.

    Attributes:
      division: the workers that divide the input.
      whole: pipeline of a single worker.
      pipelines: pipelines of the first, a middle and the last worker, then of the others as far as
        there was time.
      errors: problems with which a training fails or is wrong.
      warnings: possible problems.
    """

    def __init__(self, source: Source, division: Division, *, secs: float) -> None:
        """Calls the input_fn for the workers, and reads for about `secs` in all."""
        self.division, self._source = division, source
        end, number = time.monotonic() + secs, division.num_workers
        self.whole = read(source, InputContext(1, 0, division.num_replicas), secs=secs / 3)
        self.pipelines = [self.whole] if number == 1 or source.yields_global_batches else []
        each_secs = secs / 10 if self.whole.has_ended else 0.0
        workers = dict.fromkeys([0, number // 2, number - 1, *range(number)])
        for place, worker in enumerate([] if self.pipelines else workers):
            if place >= _LEAST_WORKERS and time.monotonic() >= end:
                break
            context = InputContext(number, worker, division.num_replicas)
            self.pipelines.append(read(source, context, secs=each_secs))
        self._good = [each for each in self.pipelines if not each.error]
        self._was_read = all(each.has_ended for each in [self.whole, *self._good])
        self._all_read = self._was_read and len(self._good) == number
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self._judge()

    @property
    def first(self) -> Pipeline | None:
        """The first pipeline without an error; None if there is none."""
        return next((each for each in [*self._good, self.whole] if not each.error), None)

    def lines(self) -> Iterator[str]:
        """Yields the numbers of examples of three workers, and of all that were read."""
        for each in self.pipelines[:_LEAST_WORKERS]:
            number = f"{len(each.examples):,} examples{'' if each.has_ended else ' or more'}"
            yield f"worker {each.worker}: {'fails' if each.error else number}"
        if len(self.pipelines) > 1:
            total = f"{sum(len(each.examples) for each in self._good):,} examples"
            there = f" of {len(self.whole.examples):,}" if self._was_read else ""
            number = f"{len(self._good)} of {self.division.num_workers} workers"
            yield f"read{' whole' if self._was_read else ''}: {number}, {total}{there}"

    def _judge(self) -> None:
        """Finds problems of the input and of its division."""
        if failed := [each for each in self.pipelines if each.error]:
            self._error(f"fails for {_numbers(failed)}: {failed[0].error}")
        if self.whole.error or not self._good:
            return
        if self.whole.has_ended and not self.whole.examples:
            self.errors.append(str(self._source.empty_error()))
        elif self._source.yields_global_batches:
            self._judge_split()
        elif self.division.num_workers > 1:
            self._judge_kinds()
            self._judge_empty()
            if self._was_read:
                self._judge_examples()
            else:
                self._judge_heads()
            if not self.errors:
                self._judge_sizes()

    def _error(self, text: str) -> None:
        self.errors.append(f"{self._source.name} {text}")

    def _warning(self, text: str) -> None:
        self.warnings.append(f"{self._source.name} {text}")

    def _judge_split(self) -> None:
        """Judges global batches, of which each worker takes its part."""
        division, rows = self.division, self.whole.rows
        if rows < division.num_replicas and not division.num_ps:
            self._warning(
                f"yields batches of {rows} examples for {division.num_replicas} replicas: "
                f"some have nothing to do. Set a batch size of {division.num_replicas} or more."
            )
        if division.num_workers > 1:
            again = read(self._source, InputContext(1, 0, division.num_replicas))
            if again.examples[:rows] != self.whole.examples[:rows]:
                self._error(
                    "takes no input_context and yields other data at a second call: "
                    "expected the same in each worker, which takes its part of each batch. Set "
                    "seeds, or take input_context."
                )

    def _judge_kinds(self) -> None:
        first, *others = [tf.nest.map_structure(relaxed, each.spec) for each in self._good]
        if other := next((each for each in others if each != first), None):
            self._warning(
                f"yields {other} to a worker, and {first} to another one: expected the same "
                "dtypes and shapes."
            )

    def _judge_empty(self) -> None:
        """Finds workers without examples, for which all others would wait."""
        if empty := [each for each in self._good if each.has_ended and not each.examples]:
            files = self.whole.num_files
            have = f"{files} files" if files else f"{len(self.whole.examples):,} examples"
            report = self._warning if self.division.num_ps else self._error
            report(
                f"yields no examples for {_numbers(empty)} of {self.division.num_workers}, and has "
                f"{have}: expected a batch for each. Write more files, or read all files in each "
                f"worker. {_SHARD}"
            )

    def _judge_heads(self) -> None:
        """Finds workers that begin with the same examples, where not all are known."""
        size = min(len(each.examples) for each in self._good)
        heads = {tuple(each.examples[:size]) for each in self._good}
        # One example again and again is the data of a benchmark.
        if len(self._good) > 1 and len(heads) == 1 and len(set(*heads)) > 1:
            self._ignored("the same data in the same order")

    def _judge_examples(self) -> None:
        """Finds examples that several workers have, or none."""
        there = collections.Counter(self.whole.examples)
        total = collections.Counter(itertools.chain(*(each.examples for each in self._good)))
        # With drop_remainder each pipeline lacks less than a batch.
        is_static = tf.nest.flatten(self.whole.spec)[0].shape[:1].is_fully_defined()
        dropped = self.whole.rows if is_static else 0
        foreign = sum(number for example, number in total.items() if example not in there)
        again = (total - there).total() - foreign
        missing = (there - total).total() if self._all_read else 0
        if foreign > dropped:
            self._warning(
                "yields other values at each reading: whether the workers' "
                "examples are disjoint cannot be compared."
            )
        elif all(collections.Counter(each.examples) == there for each in self._good):
            self._ignored(f"all {len(self.whole.examples):,} examples")
        elif again or missing > dropped * (1 + len(self._good)):
            self._error(
                f"yields {again:,} examples to several workers, and "
                f"{missing:,} to none: expected each of {there.total():,} once. {_SHARD} Or set "
                "one seed of shuffle() for all workers."
            )
        elif missing:
            self._warning(
                f"leaves out {missing:,} of {there.total():,} examples, in "
                "incomplete last batches. Set drop_remainder=False, or another batch size."
            )

    def _ignored(self, what: str) -> None:
        self._error(
            f"yields {what} to each worker, as if it ignored its "
            f"input_context: expected another part for each. {_SHARD}"
        )

    def _judge_sizes(self) -> None:
        """Finds workers that read more than others, and files that all of them open."""
        files, number = self.whole.num_files, self.division.num_workers
        counts = [len(each.examples) for each in self._good]
        step = self._good[0].rows * self.division.num_replicas // number
        if self._was_read and max(counts) - min(counts) > max(step, max(counts) // 10):
            self._warning(
                f"yields from {min(counts):,} to {max(counts):,} examples to a worker, so "
                f"that some wait for others. Write a multiple of {number} files of one size."
            )
        elif 0 < files < number:
            self._warning(
                f"reads {files} files for {number} workers: each opens all of them. Write a "
                f"multiple of {number} files."
            )


def _digests(element: Any) -> Iterator[bytes]:
    """Yields the digest of each example of a batch."""
    number = int(num_rows(element))
    columns = [_rows(leaf, number) for leaf in tf.nest.flatten(element) if leaf is not None]
    for row in zip(*columns, strict=True):
        digest = hashlib.blake2b(digest_size=8)
        for value in row:
            digest.update(len(value).to_bytes(8, "little") + value)
        yield digest.digest()


def _rows(leaf: Any, number: int) -> list[bytes]:
    """Returns bytes of each row, without the zeros or empty texts with which a batch pads it."""
    if isinstance(leaf, tf.SparseTensor):  # The third column is the shape, which padding changes.
        return [a + b for a, b, _ in tf.io.serialize_many_sparse(leaf).numpy()]
    if isinstance(leaf, tf.RaggedTensor):
        return [repr(row).encode() for row in leaf.to_list()]
    array = np.asarray(leaf.numpy())
    rows = array if array.ndim else [array] * number
    if leaf.dtype != tf.string:
        return [np.asarray(row).tobytes().rstrip(b"\0") for row in rows]
    return [b"\0".join(np.ravel(row).tolist()).rstrip(b"\0") for row in rows]


def _numbers(pipelines: Sequence[Pipeline]) -> str:
    shown = ", ".join(str(each.worker) for each in pipelines[:3])
    more = f" and {len(pipelines) - 3} more" if len(pipelines) > 3 else ""
    return f"worker{'s' if len(pipelines) > 1 else ''} {shown}{more}"
