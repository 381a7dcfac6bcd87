"""Saves every variable and table of a run, and restores all of them or none.

A key is `module/index/name`, as `network/003/conv2d_1/bias`. The index is the place in
`module.variables`: sorted keys go through a Keras model of the same architecture in
order. The name comes from the module's structure, and restoring goes by it.
Plain TensorFlow reads a checkpoint so:

    reader = tf.train.load_checkpoint("model_dir")
    keys = sorted(k for k in reader.get_variable_to_shape_map() if k[:8] == "network/")
    network(tf.zeros([1, 28, 28, 1]))  # A model of the same architecture, built.
    for variable, key in zip(network.variables, keys, strict=True):
        variable.assign(reader.get_tensor(key))

A module whose name `tf.train.Checkpoint` uses itself ("root", "save") has a dot after
it, which TensorFlow doubles in the key: `root../000/kernel`.
"""

import contextlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from pipeline.checkpoints import checkpoint_files, checkpoint_reader, foreign_checkpoint
from pipeline.checkpoints.checkpoint_reader import Reader, UnreadableCheckpointError
from pipeline.checkpoints.retention import NO_STEPS, KeptSteps, Retention
from pipeline.model_dir import storage
from pipeline.process.refusals import Refusal, RefusedKeyError, RefusedValueError
from pipeline.strategy import loss_scale
from pipeline.strategy.variables import (
    State,
    is_rate,
    is_variable,
    tables_of,
    variables_of,
)

DRIVER = "driver"
# Name prefix of the settings that the factories made, see `settings.py`. They stand
# beside the driver's variables, and are none of them.
CONFIGURED = f"{DRIVER}/configured"


class CheckpointMismatchError(Refusal, ValueError):
    """A checkpoint and a model that do not hold the same variables."""


class Saver:
    """Writes checkpoints of one model_dir and removes old ones.

    An asynchronous save writes a copy of the values in a thread of TensorFlow's, and
    counts once that thread has called `_commit`. One save is under way at a time.
    """

    def __init__(
        self,
        directory: str,
        state: State,
        *,
        keep_max: int | None = 5,
        keep_every_n_hours: float | None = None,
        kept_steps: KeptSteps = NO_STEPS,
        asynchronous: bool = False,
    ) -> None:
        """Builds the tree of what is saved; writes nothing yet.

        Args:
          directory: the model_dir.
          state: variable or table by module and name; a later one is not saved.
          keep_max: checkpoints that stay; None or 0 keeps all.
          keep_every_n_hours: hours after which one more checkpoint stays for good;
            None keeps none beyond `keep_max`.
          kept_steps: steps whose checkpoints stay for good.
          asynchronous: whether `save` returns once the values are copied.
        """
        self._directory = directory
        self._tree = _tree(state)
        self._num_bytes = sum(
            (variable.shape.num_elements() or 0) * variable.dtype.size
            for variable in variables_of(state).values()
        )
        self._retention = Retention(
            directory=directory,
            keep_max=keep_max or None,
            keep_every_n_hours=keep_every_n_hours,
            kept_steps=kept_steps,
        )
        self._options = tf.train.CheckpointOptions(
            experimental_enable_async_checkpoint=asynchronous,
            experimental_write_callbacks=[self._commit],
        )
        # Path prefix of the save that is under way.
        self._pending: str | None = None

    def resume(self, path: str | None, *, unreadable: Sequence[str] = ()) -> None:
        """Readies model_dir, to which nobody else writes, after an earlier run.

        Deletes the unfinished saves of a run that was killed.

        Args:
          path: path prefix of the checkpoint to go on from; None for none.
          unreadable: path prefixes of newer checkpoints that could not be read, which
            are set aside.

        Raises:
          StorageError: model_dir cannot be written.
        """
        with self._reported("what an earlier run left"):
            if unreadable:
                self._retention.go_back(path, unreadable=unreadable)
            checkpoint_files.remove_unfinished(self._directory)

    def go_back(self, path: str, *, unreadable: Sequence[str] = ()) -> None:
        """Makes an earlier checkpoint the newest; no save is under way.

        Args:
          path: path prefix of the checkpoint.
          unreadable: path prefixes of newer checkpoints that could not be read, which
            are set aside. Other newer ones are deleted.

        Raises:
          StorageError: model_dir cannot be written.
        """
        step = step_of(path)
        newer = [each for each in committed(self._directory) if step_of(each) > step]
        newer = [each for each in newer if each not in unreadable]
        if not (newer or unreadable):
            return
        with self._reported("the way back to a checkpoint"):
            self._retention.go_back(path, unreadable=unreadable, given_up=newer)

    def save(self, step: int) -> str:
        """Writes the checkpoint of `step` and returns its path prefix.

        Raises:
          StorageError: this checkpoint cannot be written, or the one before it, which
            was asynchronous, could not be.
        """
        self.wait()
        self._pending = path = path_of(self._directory, step)
        with self._unless_failed(path):
            self._tree.write(path, options=self._options)
        return path

    def wait(self) -> None:
        """Waits until the last save is on disk.

        Raises:
          StorageError: the last save could not be written.
        """
        self._tree.sync()
        path = self._pending
        if path is None:
            return
        with self._unless_failed(path):
            # `_commit` was not called: the thread has failed. TensorFlow keeps the
            # error and raises it at the next call, which then writes nothing.
            self._tree.write(path, options=self._options)

    def settle(self) -> None:
        """Waits as `wait` does, after an error: only logs a second one."""
        try:
            self.wait()
        except Exception as error:
            logging.error("checkpoint | %s", error)

    def _commit(self, path: str) -> None:
        """Makes a checkpoint that is on disk the latest.

        TensorFlow calls it; where saving is asynchronous, in the thread that writes.
        """
        self._retention.commit(path)
        self._pending = None

    @contextlib.contextmanager
    def _unless_failed(self, path: str) -> Iterator[None]:
        """Forgets a checkpoint whose writing fails in the block; deletes its files."""
        try:
            with self._reported(f"checkpoint {path}"):
                yield
        except BaseException as error:
            self._pending = None
            # Not after an interrupt: the thread of an asynchronous save still writes
            # these files, and commits them. And a disk that refuses to write may
            # refuse to delete: the first error is the one to raise.
            if isinstance(error, Exception):
                with contextlib.suppress(tf.errors.OpError):
                    checkpoint_files.discard(path)
            raise

    def _reported(self, what: str) -> contextlib.AbstractContextManager[None]:
        return storage.writing(
            self._directory,
            what,
            num_bytes=self._num_bytes,
            last_good=lambda: latest(self._directory),
        )


def path_of(directory: str, step: int) -> str:
    """Returns the path prefix of the checkpoint of `step`."""
    return os.path.join(directory, f"{checkpoint_files.NAME}-{step}")


def step_of(path: str) -> int:
    """Returns the step that a path prefix names.

    Raises:
      ValueError: the path names no step.
    """
    number = path.rpartition("-")[2]
    if not number.isdigit():
        raise RefusedValueError(
            f"checkpoint path {path!r} ends in no step, such as -1000. If another "
            "program wrote it, train into another model_dir; to take over values, give "
            "Estimator(warm_start_from=...)."
        )
    return int(number)


def latest(directory: str) -> str | None:
    """Returns the path prefix of the newest checkpoint in `directory`, or None.

    Where there is an earlier checkpoint to go on from, the newest may lack files: the
    caller, who tries to read it, so notices that they were lost.
    """
    paths = committed(directory)
    state = checkpoint_files.state(directory)
    if state is None:
        return paths[-1] if paths else None
    # The name alone, as a model_dir may have been moved.
    name = os.path.basename(state.model_checkpoint_path)
    newest = os.path.join(directory, name)
    return newest if paths or checkpoint_files.is_complete(newest) else None


def committed(directory: str) -> list[str]:
    """Returns the path prefixes of all complete checkpoints, in order of their steps.

    A checkpoint that is still being written is not among them.
    """
    # The files first, then the state: another process may commit in between. The other
    # way round it might also have deleted all up to the step that the state named.
    names = checkpoint_files.complete(directory)
    state = checkpoint_files.state(directory)
    if state is not None:
        newest = step_of(state.model_checkpoint_path)
    elif checkpoint_files.has_state(directory):
        newest = math.inf  # The state is damaged: the files are all there is to go by.
    else:
        return []
    steps = [step_of(name) for name in names if checkpoint_files.SAVED.fullmatch(name)]
    return [path_of(directory, step) for step in sorted(steps) if step <= newest]


def before(path: str) -> str | None:
    """Returns the path prefix of the newest checkpoint older than `path`, or None."""
    step = step_of(path)
    older = [p for p in committed(os.path.dirname(path)) if step_of(p) < step]
    return older[-1] if older else None


def is_readable(path: str) -> bool:
    """Whether all of a checkpoint can be read, which is found out by reading it."""
    try:
        Reader(path).check()
    except UnreadableCheckpointError:
        return False
    return True


def read_names(path: str) -> dict[str, list[int]]:
    """Returns a checkpoint's shapes by variable name, `network/conv2d/kernel`.

    Raises:
      UnreadableCheckpointError: its index is missing or damaged.
    """
    shapes = Reader(path).shapes
    return {n: shape for n, shape in shapes.items() if not n.startswith(CONFIGURED)}


def read_value(path: str, name: str) -> Any:
    """Returns the value of one variable, as an array of its shape and dtype.

    Raises:
      KeyError: the checkpoint has no variable of that name; lists its names.
      UnreadableCheckpointError: a file of it is missing, cut short or damaged.
    """
    reader = Reader(path)
    if name not in reader.shapes:
        raise RefusedKeyError(
            f"{path} holds no variable {name!r}: write one of "
            f"{sorted(read_names(path))}."
        )
    return reader.value(name)


def restore(
    state: State, path: str, *, unbuilt: Iterable[str] = (), in_place: bool = False
) -> Mapping[str, Any]:
    """Sets all of `state` from a checkpoint, or nothing; returns its shapes by name.

    Args:
      state: variable or table by module and name.
      path: checkpoint path prefix.
      unbuilt: name prefixes below which the checkpoint may hold more than the model,
        whose layers there are not built yet.
      in_place: whether large values may be lost where a file is damaged, see
        `Reader.assign`.

    Raises:
      CheckpointMismatchError: a name is only in the model or only in the checkpoint,
        or a variable has another shape; lists them.
      UnreadableCheckpointError: a file of it is missing, cut short or damaged.
    """
    reader = Reader(path)
    wanted, tables = variables_of(state), tables_of(state)
    reader.take_names(list(wanted))
    problems = _mismatches({**wanted, **tables}, reader, tuple(unbuilt))
    if problems:
        foreign = foreign_checkpoint.is_foreign(reader)
        raise CheckpointMismatchError(
            f"checkpoint {path} is not of this model.\n{problems}\n"
            "Use the model that it was saved from, another model_dir, or "
            "Estimator(warm_start_from=...) to take over a part."
            + (f"\n{foreign_checkpoint.described(path)}" if foreign else "")
        )
    for name in tables:
        reader.check_table(name)
    pairs = [(v, loss_scale.saved_as(n, reader.shapes)) for n, v in wanted.items()]
    found = [(v, name) for v, name in pairs if name in reader.shapes]
    reader.assign(found, in_place=in_place)
    read_tables(reader, tables)
    return reader.shapes


def read_tables(reader: Reader, table_by_name: Mapping[str, Any]) -> None:
    """Fills lookup tables with what a checkpoint holds under their names.

    Args:
      reader: of the checkpoint.
      table_by_name: tables by their names in the checkpoint.

    Raises:
      UnreadableCheckpointError: a table is cut short or damaged; nothing was changed.
    """
    # A tree with the indices of the checkpoint, which may differ from those of
    # `_tree`: the mode that saved it may have built more.
    nested: dict[str, Any] = {}
    for name, table in table_by_name.items():
        reader.check_table(name)
        checkpoint_reader.insert(nested, reader.place_of(name), table)
    if nested:
        tf.train.Checkpoint(**nested).read(reader.path).expect_partial()


def _mismatches(
    wanted: Mapping[str, Any], reader: Reader, unbuilt: tuple[str, ...]
) -> str:
    """Returns lines on how a model and a checkpoint differ; empty where they do not."""
    saved = {**reader.shapes, **reader.tables}
    # Names that either may have alone. A constant rate may have become a schedule,
    # which is no variable, or been one; what the driver records is not of the model.
    either = {n for n in {*wanted, *saved} if is_rate(n, wanted) and is_rate(n, saved)}
    either |= {n for n in {*wanted, *saved} if n.startswith(DRIVER + "/")}
    lacking = [n for n in wanted if n not in {*saved, *either}]
    extra = [n for n in saved if n not in {*wanted, *either}]
    extra = [n for n in extra if not f"{n}/".startswith(unbuilt)]
    reshaped = [
        f"{name}: {list(variable.shape)} in the model, {saved[name]} saved"
        for name, variable in wanted.items()
        if is_variable(variable)
        and name in saved
        and list(variable.shape) != saved[name]
    ]
    lists = {
        "in the model and not in the checkpoint": lacking,
        "in the checkpoint and not in the model": extra,
        "of another shape": reshaped,
    }
    return "\n".join(f"  {title}: {names}" for title, names in lists.items() if names)


def _tree(state: State) -> tf.train.Checkpoint:
    """Returns the object tree whose checkpoint keys are `module/index/name`."""
    nested: dict[str, Any] = {}
    for module, named in state.items():
        node = nested.setdefault(checkpoint_reader.key_of(module), {})
        # Zeros in front: as texts the indices sort as numbers, in modules of any size.
        width = max(3, len(str(len(named) - 1)))
        for index, (name, value) in enumerate(named.items()):
            checkpoint_reader.insert(
                node, [f"{index:0{width}d}", *filter(None, name.split("/"))], value
            )
    return tf.train.Checkpoint(**nested)
