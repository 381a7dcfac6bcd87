"""Saves the position of the training input with each checkpoint, and finds it again.

A `tf.data` iterator is saved with its shuffle buffer. Where a pipeline holds an
operation that cannot be saved, the position is reached again by skipping the elements
that were read. An input_fn that takes `first_batch` needs neither: it is called for the
data that are left.

A position belongs to one input, which is described beside it (`input_record`). Another
input begins anew. The same data, treated otherwise, are read over up to the position.

Each pass over the data is over a dataset of its own. So a seeded shuffle draws the same
order in a run that came to that pass and in a run that was started in it.
"""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

from pipeline.checkpoints import checkpoint_files
from pipeline.checkpoints.checkpoint_reader import Reader, UnreadableCheckpointError
from pipeline.feed import input_record, iterators
from pipeline.feed.batch import LeftOut
from pipeline.feed.feed import AnyFeed, Feed, ReadableFeed
from pipeline.feed.input_record import InputRecord, Verdict
from pipeline.mistakes import user_errors
from pipeline.strategy.modules import Modules
from pipeline.strategy.peers import Peers
from pipeline.strategy.replicas import Replicas

_ALONE = Replicas()
_LACKING = (
    "Position %s lacks %s, without which later passes over the data would have another "
    "order: skipping %d steps instead, which is exact, and takes as long as reading "
    "them did. To have it saved whole, write repeat() right after the last shuffle(), "
    "before map() and batch(): dataset.shuffle(1000, seed=1).repeat().batch(64)."
)
_SHARED_OTHERWISE = (
    "Position %s is of data that the processes shared otherwise: skipping %d batches. "
    "If input_fn shards examples last, as in shuffle(9, seed=1).shard(...), they are "
    "those trained on. Else some come twice: take first_batch, or no input_context."
)
_NOT_SAVED = (
    "No position of the input was saved as %s: skipping %d steps. They are the "
    "ones that were trained on if the order is the same in each run: give "
    "shuffle() a seed, or set RunConfig.tf_random_seed."
)
_SNAPSHOT = (
    "The position of this input is not saved: TensorFlow's snapshot() cannot be read "
    "again once an iterator was saved that wrote it. A resumed run skips what was "
    "read, which is exact if the order is the same in each run: give shuffle() a seed."
)


class TrainingInput:
    """The training data's iterator, which a resumed run finds where it stood.

    It is one live iterator for the whole run: an evaluation does not rewind it.

    Attributes:
      resumed: whether the run goes on in an earlier run's pass, maybe at its end.
    """

    def __init__(
        self,
        feed: ReadableFeed,
        modules: Modules,
        peers: Peers,
        path: str | None,
        *,
        changed_input: str = "auto",
    ) -> None:
        """Opens the input at its position; at its beginning where the pass has ended.

        Args:
          feed: the training input.
          modules: at the step to go on from; the step at which this pass began is
            written into them.
          peers: the processes that train in step, each with an input of its own.
          path: path prefix of the checkpoint that the modules were loaded from, or
            None.
          changed_input: `RunConfig.changed_input`.

        Raises:
          ValueError: the position is another input's, and `changed_input` is "error".
        """
        self._feed = feed
        self._modules = modules
        self._peers = peers
        self._changed_input = changed_input
        pipelines = 1 if feed.plan.splits else peers.replicas.num_processes
        self._now = recorded(feed, pipelines=pipelines)
        operations = self._now.fingerprint.operations
        self._has_snapshot = any(each.kind == "snapshot" for each in operations)
        # The step at which it was opened, and elements that this pass had read by then.
        self._opened_at = modules.step, 0
        self._iterator = self._found_again(path)
        self.resumed = self._iterator is not None
        if not self.resumed:
            self._begin()

    @property
    def iterator(self) -> Any:
        """The iterator over the training data, after the last example trained on."""
        return self._iterator

    @property
    def place(self) -> str:
        """The place where it was opened, for logs; right until the first step."""
        if not self.resumed:
            return "its beginning"
        began = int(self._modules.driver_state["input_start"].numpy())
        return f"step {self._modules.step - began} of its pass"

    def begin_anew(self) -> Any:
        """Starts another pass over the data, and returns its iterator."""
        logging.info(
            "train | the input ended at step %d: it begins anew.", self._modules.step
        )
        self.close()
        self.resumed = False
        self._feed = self._feed.again()
        self._begin()
        return self.iterator

    def leave_out(self) -> LeftOut | None:
        """Takes a step's elements without a step; None where the data have ended."""
        plan = self._feed.plan
        elements = iterators.take(self.iterator, plan.nexts_per_step)
        if not elements:
            return None
        # As if the pass had begun a step earlier: its steps then tell what was read.
        start = self._modules.driver_state["input_start"]
        start.assign(int(start.numpy()) - 1)
        step, read = self._opened_at
        self._opened_at = step, read + plan.nexts_per_step
        return LeftOut.of(elements, self._modules.step - int(start.numpy()), plan)

    def save(self, path: str) -> bool:
        """Writes the position that belongs to a checkpoint, and its record.

        Returns when all processes have written theirs: no checkpoint is complete before
        its positions are.

        Args:
          path: path prefix of the checkpoint.

        Returns:
          Whether the iterator was saved, see `save_position`.
        """
        prefix = position_path(path, self._peers.replicas)
        step, read = self._opened_at
        nexts_per_step = self._feed.plan.nexts_per_step
        read += (self._modules.step - step) * nexts_per_step
        input_record.write(prefix, dataclasses.replace(self._now, read=read))
        saved = False
        if self._has_snapshot:
            logging.log_first_n(logging.WARNING, _SNAPSHOT, 1)
        elif self._feed.saves_position:
            saved = save_position(self.iterator, prefix, nexts_per_step=nexts_per_step)
        elif not self._feed.starts_anywhere:
            logging.log_first_n(
                logging.INFO,
                "On a TPU the position of the input is not saved; a resumed run "
                "skips what was read. An input_fn that takes first_batch need not.",
                1,
            )
        self._peers.wait()
        return saved

    def close(self) -> None:
        """Deletes the iterator."""
        self._iterator = None

    def _begin(self) -> None:
        step = self._modules.step
        self._modules.driver_state["input_start"].assign(step)
        self._opened_at = step, 0
        self._iterator = self._feed.iterator()

    def _found_again(self, path: str | None) -> Any:
        """Returns the iterator at its position; None to begin anew."""
        step = self._modules.step
        taken = step - int(self._modules.driver_state["input_start"].numpy())
        if path is None or not taken:
            return None
        plan = self._feed.plan
        prefix = position_path(path, self._peers.replicas)
        record = input_record.read(prefix)
        read = taken * plan.nexts_per_step
        if record is not None:
            read = record.read_by(self._now)
        verdict = input_record.judged(
            record,
            self._now,
            path=path,
            read=read,
            changed_input=self._changed_input,
            peers=self._peers,
        )
        if verdict == Verdict.ANEW:
            return None
        left_out = 0
        if plan.num_steps is not None:
            # All processes leave out as many whole steps as the process that read most
            # has begun: no example comes twice.
            mine = -(-read // plan.nexts_per_step)
            steps_read = max(number for (number,) in self._peers.gather([mine]))
            if steps_read >= plan.num_steps:
                return None
            # The loop counts the steps of a pass of known length from here.
            self._modules.driver_state["input_start"].assign(step - steps_read)
            left_out = steps_read * plan.nexts_per_step - read
        self._opened_at = step, read + left_out
        # Processes that share each batch have to read in the same order.
        agree = self._peers.all if plan.splits else bool
        shared = agree(record is None or record.pipelines == self._now.pipelines)
        if not shared and not self._feed.starts_anywhere:
            logging.warning(_SHARED_OTHERWISE, prefix, read)
        iterator = open_at(
            self._feed,
            prefix=prefix,
            num_steps=read // plan.nexts_per_step,
            read=None if record is None else read,
            restores=shared and verdict == Verdict.SAME,
            agree=agree,
        )
        if left_out:
            with user_errors.running(lambda: f"reading over {left_out} batches"):
                iterators.skip(iterator, left_out)
        return iterator


def recorded(feed: AnyFeed, *, pipelines: int) -> InputRecord:
    """Returns the record of an input before its first element is read.

    Args:
      feed: the training input.
      pipelines: processes that each read a part of the data.
    """
    described = feed.fingerprint()
    first = tf.nest.flatten(feed.element_spec)[0]
    static = first.shape[0] if first.shape.rank else None
    return InputRecord(
        read=0,
        rows=static or described.rows,
        pipelines=pipelines,
        nexts_per_step=feed.plan.nexts_per_step,
        fingerprint=described,
    )


def most_examples(feed: AnyFeed) -> int | None:
    """Returns how many examples one step takes at most; None where nothing tells.

    Args:
      feed: the training input.
    """
    plan = feed.plan
    rows = recorded(feed, pipelines=1).rows
    pipelines = 1 if plan.splits else plan.replicas.num_processes
    return rows and rows * plan.nexts_per_step * pipelines


def position_path(path: str, replicas: Replicas = _ALONE) -> str:
    """Returns the path prefix of a process' position that belongs to a checkpoint."""
    directory, name = os.path.split(path)
    part = f"{replicas.process}-of-{replicas.num_processes}"
    return os.path.join(directory, checkpoint_files.INPUT, f"{name}.{part}")


def save_position(iterator: Any, prefix: str, *, nexts_per_step: int = 1) -> bool:
    """Saves an iterator.

    Args:
      iterator: an iterator over a plain dataset.
      prefix: path prefix of the files to write.
      nexts_per_step: elements that a step takes.

    Returns:
      Whether it was saved; False, with a warning, where an operation of its pipeline
      cannot be.
    """
    tf.io.gfile.makedirs(os.path.dirname(prefix))
    try:
        _position(iterator, nexts_per_step).write(prefix)
    except (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError) as error:
        logging.log_first_n(
            logging.WARNING,
            "The position of this input cannot be saved (%s); a resumed run gets back "
            "to it by skipping what was read, which is exact if the order is the same "
            "in each run: give shuffle() a seed, or set RunConfig.tf_random_seed.",
            1,
            user_errors.words_of(error),
        )
        return False
    return True


def open_at(
    feed: ReadableFeed,
    *,
    prefix: str | None,
    num_steps: int,
    read: int | None = None,
    restores: bool = True,
    agree: Callable[[bool], bool] = bool,
) -> Any:
    """Returns an iterator that stands where an earlier iterator stood.

    Args:
      feed: the same input as then, of which no iterator was made yet.
      prefix: path prefix of the saved position; where it is None or no file is there,
        elements are skipped instead.
      num_steps: steps taken from the beginning until then.
      read: elements that these steps took; None where that is not known. A position
        then counts only if a step took as many elements as it does now.
      restores: whether a saved position may be read; else elements are skipped.
      agree: takes whether this process could restore its position, and returns whether
        all processes that have to go the same way could.
    """
    skipped = num_steps * feed.plan.nexts_per_step if read is None else read
    if skipped == 0 or prefix is None or feed.starts_anywhere or not restores:
        return feed.iterator(skipped)
    if not isinstance(feed, Feed):  # A distributed iterator cannot be saved.
        logging.warning(_NOT_SAVED, prefix, num_steps)
        return feed.iterator(skipped)
    iterator = _restored(feed, prefix, num_steps, any_steps=read is not None)
    if agree(iterator is not None):
        return iterator
    return feed.again().iterator(skipped)


def _restored(feed: Feed, prefix: str, num_steps: int, *, any_steps: bool) -> Any:
    """Returns the saved iterator; None, with a warning, where it cannot be restored."""
    if not tf.io.gfile.exists(f"{prefix}.index"):
        logging.warning(_NOT_SAVED, prefix, num_steps)
        return None
    try:
        reader = Reader(prefix)
        iterator = feed.iterator()
        saved = _position(iterator, 0)
        # The saved iterator of another pipeline has other parts: not all are consumed.
        saved.read(prefix).assert_consumed()
        sizes = int(saved.nexts_per_step), feed.plan.nexts_per_step
        if not any_steps and sizes[0] != sizes[1]:
            # It holds batches read ahead, which are of another size now.
            logging.info(
                "Position %s is of steps of %d batches, now of %d; skipping %d steps.",
                *(prefix, *sizes, num_steps),
            )
            return None
        lacking = iterators.lacks(prefix, feed.dataset)
        if not lacking:
            return iterator
        logging.warning(_LACKING, prefix, lacking, num_steps)
    except UnreadableCheckpointError as error:
        logging.warning("Position: %s Skipping %d steps.", error, num_steps)
    except (tf.errors.OpError, IndexError, AssertionError, ValueError) as error:
        logging.warning("%s Skipping %d steps.", _why(reader, error), num_steps)
    return None


def _why(reader: Reader, error: Exception) -> str:
    """Says why a position was not restored: damage, or another input."""
    try:
        reader.check()
    except UnreadableCheckpointError as damage:
        return f"Position: {damage}"
    first, *_ = str(error).split("\n")
    return f"The input is not the one of checkpoint {reader.path} ({first})."


def _position(iterator: Any, nexts_per_step: int) -> tf.train.Checkpoint:
    # The number tells a run with other micro-batches that batches read ahead have
    # another size.
    nexts = tf.Variable(nexts_per_step, dtype=tf.int64)
    return tf.train.Checkpoint(iterator=iterator, nexts_per_step=nexts)
