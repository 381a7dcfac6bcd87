"""Where the training input stands: saved with each checkpoint, found again.

A `tf.data` iterator is saved with its shuffle buffer. Where a pipeline holds an
operation that cannot be saved, the position is reached again by skipping what was read.
An input_fn that takes `first_batch` needs neither: it is called for what is left.

Each pass over the data is over a dataset of its own, so that a seeded shuffle draws the
same order whether a run came to that pass or was started in it.
"""

import os
import re
from typing import Any

import tensorflow as tf
from absl import logging

from pipeline import checkpoint_files, iterator_state, iterators, user_errors
from pipeline.checkpoint_reader import Reader, UnreadableCheckpointError
from pipeline.input_fn import Feed
from pipeline.modules import Modules
from pipeline.peers import Peers
from pipeline.replicas import Replicas

# Below model_dir, apart from the checkpoints that the positions belong to.
_FOLDER = "input"
# A process that is writing has a folder there, too, which is none of ours.
_FILE = re.compile(r"(.+)\.\d+-of-\d+\.(index|data-.*)")
_ALONE = Replicas()
_LACKING = (
    "Position %s lacks %s, without which later passes over the data would have another "
    "order: skipping %d steps instead, which is exact, and takes as long as reading "
    "them did. To have it saved whole, write repeat() right after the last shuffle(), "
    "before map() and batch(): dataset.shuffle(1000, seed=1).repeat().batch(64)."
)


class TrainingInput:
    """The training data's iterator, which a resumed run finds where it stood.

    Attributes:
      resumed: whether it goes on in an earlier run's pass, maybe at its end.
    """

    def __init__(
        self, feed: Feed, modules: Modules, peers: Peers, path: str | None
    ) -> None:
        """Opens the input; one that is known to have ended begins anew.

        Args:
          feed: the training input.
          modules: at the step to go on from; they learn where this pass began.
          peers: the processes that train in step, each with an input of its own.
          path: the checkpoint that they were loaded from, or None.
        """
        self._feed = feed
        self._modules = modules
        self._peers = peers
        self._box = self._found_again(path)
        self.resumed = bool(self._box)
        if not self.resumed:
            self._begin()

    @property
    def iterator(self) -> Any:
        """Over the training data, after the last example trained on."""
        return self._box[0]

    @property
    def place(self) -> str:
        """Where it was opened, for logs; known until the first step."""
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
        self._feed = self._feed.again()
        self._begin()
        return self.iterator

    def save(self, path: str) -> bool:
        """Writes where it stands at the checkpoint `path`, see `save_position`.

        Where that is the position of several processes, returns once all are written:
        no checkpoint is complete before its positions are.
        """
        if not self._feed.saves_position:
            if not self._feed.starts_anywhere:
                logging.log_first_n(
                    logging.INFO,
                    "On a TPU the position of the input is not saved; a resumed run "
                    "skips what was read. An input_fn that takes first_batch need not.",
                    1,
                )
            return False
        prefix = position_path(path, self._peers.replicas)
        nexts_per_step = self._feed.plan.nexts_per_step
        saved = save_position(self.iterator, prefix, nexts_per_step=nexts_per_step)
        self._peers.wait()
        return saved

    def close(self) -> None:
        """Lets go of the iterator."""
        iterators.delete_in_background(self._box)
        self._box = []

    def _begin(self) -> None:
        self._modules.driver_state["input_start"].assign(self._modules.step)
        self._box = [self._feed.iterator()]

    def _found_again(self, path: str | None) -> list[Any]:
        """A list of the iterator where it stood, empty where there is none."""
        step = self._modules.step
        taken = step - int(self._modules.driver_state["input_start"].numpy())
        if path is None or not taken:
            return []
        num_steps = self._feed.plan.num_steps
        if num_steps is not None and taken >= num_steps:
            return []
        prefix = position_path(path, self._peers.replicas)
        return [open_at(self._feed, prefix=prefix, num_steps=taken)]


def position_path(path: str, replicas: Replicas = _ALONE) -> str:
    """Path prefix of a process' input's position that belongs to a checkpoint."""
    directory, name = os.path.split(path)
    part = f"{replicas.process}-of-{replicas.num_processes}"
    return os.path.join(directory, _FOLDER, f"{name}.{part}")


def save_position(iterator: Any, prefix: str, *, nexts_per_step: int = 1) -> bool:
    """Writes where `iterator` stands; False where its pipeline cannot be saved.

    Args:
      iterator: of a plain dataset.
      prefix: path prefix of the files to write.
      nexts_per_step: of the plan that it is read by.
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


def open_at(feed: Feed, *, prefix: str | None, num_steps: int) -> Any:
    """An iterator that stands where an earlier one stood.

    A saved position holds batches read ahead. Where a step takes another number of
    them now (more replicas, micro-batches), they are of another size, and it skips.

    Args:
      feed: the same input as then, of which no iterator was made yet.
      prefix: what `save_position` wrote; None or nothing there skips instead.
      num_steps: steps taken from the beginning until then.
    """
    if num_steps == 0 or prefix is None or feed.starts_anywhere:
        return feed.iterator(num_steps)
    if not (feed.saves_position and tf.io.gfile.exists(f"{prefix}.index")):
        logging.warning(
            "No position of the input was saved as %s: skipping %d steps. They are the "
            "ones that were trained on if the order is the same in each run: give "
            "shuffle() a seed, or set RunConfig.tf_random_seed.",
            prefix,
            num_steps,
        )
        return feed.iterator(num_steps)
    try:
        Reader(prefix).check()
        iterator = feed.iterator()
        saved = _position(iterator, 0)
        saved.read(prefix).assert_consumed()
        if int(saved.nexts_per_step) == feed.plan.nexts_per_step:
            lacking = iterator_state.lacks(prefix, feed.dataset)
            if not lacking:
                return iterator
            logging.warning(_LACKING, prefix, lacking, num_steps)
            return feed.again().iterator(num_steps)
        logging.info(
            "Position %s is of steps of %d batches, now of %d; skipping %d steps.",
            prefix,
            int(saved.nexts_per_step),
            feed.plan.nexts_per_step,
            num_steps,
        )
    except UnreadableCheckpointError as error:
        logging.warning("Position: %s Skipping %d steps.", error, num_steps)
    except (tf.errors.OpError, AssertionError, ValueError) as error:
        logging.warning(
            "The input is not the one of checkpoint %s (%s); skipping %d steps.",
            prefix,
            str(error).partition("\n")[0],
            num_steps,
        )
    return feed.again().iterator(num_steps)


def _position(iterator: Any, nexts_per_step: int) -> tf.train.Checkpoint:
    nexts = tf.Variable(nexts_per_step, dtype=tf.int64)
    return tf.train.Checkpoint(iterator=iterator, nexts_per_step=nexts)


def remove_old_positions(directory: str, *, keep: str | None) -> None:
    """Deletes positions that belong to no checkpoint.

    Args:
      directory: the model_dir.
      keep: path prefix of the checkpoint that is being saved, or None.
    """
    folder = os.path.join(directory, _FOLDER)
    kept = os.path.basename(keep) if keep else None
    for name in tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []:
        match = _FILE.fullmatch(name)
        if match is None or match[1] == kept:
            continue
        if not tf.io.gfile.exists(os.path.join(directory, f"{match[1]}.index")):
            tf.io.gfile.remove(os.path.join(folder, name))


def remove_unfinished(directory: str) -> None:
    """Deletes what a run that was killed has left; nobody may be saving."""
    checkpoint_files.remove_temporary(os.path.join(directory, _FOLDER))
