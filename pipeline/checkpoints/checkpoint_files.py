"""The files that make up a checkpoint: which are complete, and which may go.

TensorFlow writes the data first and `.index` last, and the index not in one go. After
that retention names the checkpoint in the file `checkpoint`. A checkpoint is committed
where it is complete and no newer than the one that is named there.

What belongs to a checkpoint and is read with it lies in folders of its own, `INPUT` and
`HOOKS`, in files named for it: `input/model.ckpt-10.0-of-1.json`. They are written
before the checkpoint and deleted after it.
"""

import collections
import functools
import hashlib
import os
import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

from pipeline.model_dir import atomic_file
from pipeline.process.refusals import RefusedValueError

# All that is deleted goes by this name: the user's own files may end in numbers, too.
NAME = "model.ckpt"
SAVED = re.compile(rf"{re.escape(NAME)}-\d+")
_SHARD = re.compile(r"(.+)\.data-\d{5}-of-(\d{5})")
_INDEX = ".index"
_PART = re.compile(rf"({SAVED.pattern})\.(?:index|data-.+)")
_STATE = "checkpoint"
# Folders that TensorFlow writes to before it moves the files to their places.
_TEMPORARY = re.compile(rf"{SAVED.pattern}(?:\.\d+-of-\d+)?_temp")
_ASIDE = "unreadable"
# Folders of a model_dir: positions of the training input, states of hooks.
INPUT = "input"
HOOKS = "hooks"
# What the user put there, and what was set aside as damaged, does not match.
_BESIDE = re.compile(
    rf"({SAVED.pattern})(?:\.\d+-of-\d+)?\.(?:index|data-.+|json(?:\.tmp)?)"
)


def complete(directory: str) -> set[str]:
    """Returns the names, `model.ckpt-10`, of the checkpoints without a missing file."""
    present = _listed(directory)
    num_shards: collections.Counter[str] = collections.Counter()
    wanted = {}
    for match in filter(None, map(_SHARD.fullmatch, present)):
        num_shards[match[1]] += 1
        wanted[match[1]] = int(match[2])
    return {
        name
        for name, count in num_shards.items()
        if count == wanted[name] and f"{name}{_INDEX}" in present
    }


def is_complete(path: str) -> bool:
    """Whether the index and all the data of a path prefix are there."""
    directory, name = os.path.split(path)
    return name in complete(directory)


def written_at(path: str) -> float:
    """Returns when a checkpoint was completed: seconds since 1970, by its file system.

    Args:
      path: path prefix of a checkpoint that is there.
    """
    return tf.io.gfile.stat(f"{path}{_INDEX}").mtime_nsec / 1e9


def identity(path: str) -> str | None:
    """Returns a digest that tells a checkpoint from all others, of its path too.

    The index holds a checksum of each value: equal indices mean equal values.

    Args:
      path: path prefix.

    Returns:
      Hexadecimal digits; None where the index is not there.
    """
    try:
        with tf.io.gfile.GFile(f"{path}{_INDEX}", "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except tf.errors.OpError:
        return None


def there(directory: str) -> Callable[[str, str], bool]:
    """Returns a function of a checkpoint's name, and of the `identity` known of it.

    It tells whether that checkpoint is complete, and no other one of its step.

    Args:
      directory: the model_dir, which is listed once, at the first call.
    """
    names = functools.cache(lambda: complete(directory))
    return lambda name, known: (
        name in names() and identity(os.path.join(directory, name)) == known
    )


def delete(path: str) -> None:
    """Deletes a checkpoint's files, and what belongs to it.

    The index goes first: without it nobody takes the rest for a checkpoint.
    """
    directory, name = os.path.split(path)
    shards = [m[0] for m in map(_SHARD.fullmatch, _listed(directory)) if m]
    atomic_file.remove(f"{path}{_INDEX}")
    for shard in shards:
        if shard.startswith(f"{name}.data-"):
            atomic_file.remove(os.path.join(directory, shard))
    _remove_beside(directory, name.__eq__)


def state(directory: str) -> Any:
    """Returns the content of the file `checkpoint`; None where it cannot be read.

    Warns where the file is there and damaged.

    Returns:
      A CheckpointState proto, or None.
    """
    try:
        found = tf.train.get_checkpoint_state(directory)
    except ValueError:  # It is empty, or no text.
        found = None
    if found is None and has_state(directory):
        logging.log_first_n(
            logging.WARNING,
            "checkpoint | %s/%s is damaged: the files themselves say what there is.",
            1,
            directory,
            _STATE,
        )
    return found


def has_state(directory: str) -> bool:
    """Whether there is a file `checkpoint`, of whatever content.

    Raises:
      ValueError: the file system of `directory` is unknown or does not answer.
    """
    try:
        return tf.io.gfile.exists(os.path.join(directory, _STATE))
    except tf.errors.UnimplementedError as error:  # Of a file system: s4://bucket.
        raise _cannot_be_made(directory, error) from error
    except tf.errors.OpError as error:  # Of one that does not answer: gs://bucket.
        raise RefusedValueError(
            f"{directory!r} cannot be read: {error.message.partition(chr(10))[0]}. "
            "Can this machine reach it? Else write another --model_dir."
        ) from error


def set_aside(path: str) -> str:
    """Moves a checkpoint's files to the folder `unreadable`; returns the new prefix.

    What belongs to it is deleted: another checkpoint may be saved under its name.
    """
    directory, name = os.path.split(path)
    folder = os.path.join(directory, _ASIDE)
    tf.io.gfile.makedirs(folder)
    for file in sorted(_listed(directory), reverse=True):  # The index first.
        if file.startswith((f"{name}.data-", f"{name}{_INDEX}")):
            source, target = os.path.join(directory, file), os.path.join(folder, file)
            tf.io.gfile.rename(source, target, overwrite=True)
    _remove_beside(directory, name.__eq__)
    return os.path.join(folder, name)


def remove_unfinished(directory: str) -> None:
    """Deletes the files of saves that came to no end, and what belongs to none.

    Complete checkpoints stay. So do those that the file `checkpoint` names, whatever
    files they lack: they were complete once, and their loss is to be noticed.

    Args:
      directory: the model_dir, to which nobody may be saving.
    """
    for folder in ("", INPUT):
        _remove_temporary(os.path.join(directory, folder))
    parts = filter(None, map(_PART.fullmatch, _listed(directory)))
    for name in {match[1] for match in parts}:
        discard(os.path.join(directory, name))
    present = _listed(directory)
    _remove_beside(directory, lambda name: f"{name}{_INDEX}" not in present)


def _remove_beside(directory: str, is_gone: Callable[[str], bool]) -> None:
    """Deletes what belongs to checkpoints that are gone, by their names."""
    for folder in (INPUT, HOOKS):
        for file in _listed(os.path.join(directory, folder)):
            match = _BESIDE.fullmatch(file)
            if match and is_gone(match[1]):
                atomic_file.remove(os.path.join(directory, folder, file))


def _remove_temporary(directory: str) -> None:
    """Deletes TensorFlow's temporary folders, where nobody is saving."""
    for name in filter(_TEMPORARY.fullmatch, _listed(directory)):
        path = os.path.join(directory, name)
        logging.info("checkpoint | %s is of an unfinished save: deleted", path)
        tf.io.gfile.rmtree(path)


def discard(path: str) -> None:
    """Deletes a checkpoint's files, unless it was saved to the end."""
    if tf.io.gfile.isdir(f"{path}_temp"):
        tf.io.gfile.rmtree(f"{path}_temp")
    directory, name = os.path.split(path)
    said = state(directory)
    named = said.all_model_checkpoint_paths if said is not None else []
    if name in map(os.path.basename, named) or (is_complete(path) and _opens(path)):
        return
    delete(path)


def _opens(path: str) -> bool:
    """Whether the index is whole: a process may have been killed while writing it."""
    try:
        tf.train.load_checkpoint(path)
    except (tf.errors.OpError, IndexError):
        return False
    return True


def _listed(directory: str) -> set[str]:
    try:
        # Object stores end the names of folders in a slash.
        return {name.rstrip("/") for name in tf.io.gfile.listdir(directory)}
    except tf.errors.NotFoundError:
        return set()


def make_directory(directory: str) -> None:
    """Makes the model_dir, where it is not there yet; else says what to write."""
    try:
        tf.io.gfile.makedirs(directory)
    except tf.errors.OpError as error:
        raise _cannot_be_made(directory, error) from error


def _cannot_be_made(directory: str, error: tf.errors.OpError) -> ValueError:
    return RefusedValueError(
        f"model_dir {directory!r} cannot be made: {error.message}. Is its storage "
        "mounted, and may this user write there? Else choose another: "
        "--model_dir=runs/1 or RunConfig(model_dir='runs/1')."
    )
