"""Finds the checkpoint that a caller means, or the newest one that can be loaded.

A caller may write a path, or "best" or "latest", alone or after a model_dir, as in
`runs/a/best`. Where checkpoints are kept by several metrics, `best/METRIC`, `best/NAME`
or `best/NAME/METRIC` tells them apart; NAME is the evaluation's.
"""

import os
from collections.abc import Callable, Iterator

import tensorflow as tf
from absl import logging

from pipeline.checkpoints import checkpoint, checkpoint_files
from pipeline.checkpoints.checkpoint_reader import UnreadableCheckpointError
from pipeline.model_dir import best, paths
from pipeline.process.refusals import RefusedValueError, near

BEST = "best"
LATEST = "latest"


def found(path: str | None, model_dir: str) -> str | None:
    """Returns the path prefix of the checkpoint that a caller asked for.

    Args:
      path: a path prefix; a directory, which stands for its newest checkpoint; or
        "best" or "latest", see above. None is returned as it is.
      model_dir: folder that "best" and "latest" without one are of.

    Raises:
      ValueError: there is no checkpoint; lists those beside it.
    """
    given = path
    if given in (BEST, LATEST):
        return _named(given, model_dir, given)
    if path:
        path = paths.normal(path)
    try:
        if path is None or tf.io.gfile.exists(f"{path}.index"):
            return path
    except tf.errors.OpError as error:
        raise RefusedValueError(
            f"checkpoint_path {given!r} cannot be read: "
            f"{error.message.partition(chr(10))[0]}. Write one that this machine "
            "reaches."
        ) from error
    is_directory = tf.io.gfile.isdir(path)
    newest = checkpoint.latest(path) if is_directory else None
    if newest is not None:
        return newest
    if path_in_run := in_run(os.fspath(given), model_dir):
        return path_in_run
    folder = path if is_directory else os.path.dirname(path)
    beside = checkpoint.committed(folder)
    raise RefusedValueError(
        f"there is no checkpoint at checkpoint_path={given!r}: write a prefix such as "
        f"{beside[-1] if beside else 'runs/a/model.ckpt-1000'!r}, without .index, or "
        f"leave it out for the latest. Those beside it: {beside}."
    )


def in_run(given: str, model_dir: str | None = None) -> str | None:
    """Returns the checkpoint that a path such as `runs/a/best` stands for, or None.

    Args:
      given: path, of a file or folder that is not there.
      model_dir: folder that a path without one is of; None for none.

    Raises:
      ValueError: there is no such checkpoint in the folder of a run.
    """
    for folder, name in _splits(given, model_dir):
        if checkpoint_files.has_state(folder) or best.rules(folder):
            return _named(given, folder, name)
    return None


def _splits(given: str, model_dir: str | None) -> Iterator[tuple[str, str]]:
    """Yields each way to read a path as a model_dir and "latest" or "best/METRIC"."""
    parts = given.rstrip("/").split("/")
    for place, part in enumerate(parts):
        if part == BEST or (part == LATEST and place == len(parts) - 1):
            folder = paths.normal("/".join(parts[:place])) if place else model_dir
            if folder:
                yield folder, "/".join(parts[place:])


def _named(given: str, model_dir: str, name: str) -> str:
    """Returns the path prefix of the best or the latest checkpoint of a model_dir.

    Args:
      given: path as the caller wrote it, for messages.
      model_dir: folder of the run.
      name: "latest", "best", "best/METRIC", "best/NAME" or "best/NAME/METRIC".
    """
    if name == LATEST:
        newest = checkpoint.latest(model_dir)
        if newest is None:
            raise RefusedValueError(
                f"{given!r} asks for the latest checkpoint, and {model_dir} has none: "
                "train first, or give the path of one."
            )
        return newest
    rule = _chosen(given, model_dir, name.removeprefix(BEST).removeprefix("/"))
    is_there = checkpoint_files.there(model_dir)
    bests = best.ranked(model_dir, rule, is_there)
    if not bests:
        raise RefusedValueError(
            f"{given!r} asks for the best checkpoint, and no evaluation in {model_dir}/"
            f"{rule.evaluation} has a number as {rule.metric} of a checkpoint that is "
            f"there: train on, or write {LATEST!r}."
        )
    path = os.path.join(model_dir, bests[0].path)
    logging.info("checkpoint | %s is %s: %s", given, path, bests[0].why)
    return path


def _chosen(given: str, model_dir: str, name: str) -> best.Rule:
    """Returns the rule that a caller means by METRIC, NAME, NAME/METRIC or nothing."""
    rules = best.rules(model_dir)
    if not rules:
        raise RefusedValueError(
            f"{given!r} asks for the best checkpoint, and {model_dir} keeps none: "
            f"train with EvalSpec(keep_best=KeepBest('accuracy')), or write {LATEST!r}."
        )
    chosen = [rule for rule in rules if name == _names(rule)[0]]
    chosen = chosen or [r for r in rules if not name or name in _names(r)]
    if len(chosen) == 1:
        return chosen[0]
    named = [_names(rule)[0] for rule in rules]
    # The metric alone is enough where it is one evaluation's only.
    short = [rule.metric for rule in rules]
    choices = short if len(set(short)) == len(short) else named
    how_many = "several metrics" if chosen else "no metric"
    raise RefusedValueError(
        f"{given!r} asks for the best checkpoint by {how_many} of {model_dir}."
        f"{near(name, choices)} Write one of "
        f"{[f'{BEST}/{choice}' for choice in choices]}."
    )


def _names(rule: best.Rule) -> list[str]:
    """Returns the names by which a rule may be chosen, the fullest one first."""
    evaluation = rule.evaluation.removeprefix("eval").removeprefix("_")
    if not evaluation:
        return [rule.metric]
    return [f"{evaluation}/{rule.metric}", evaluation, rule.metric]


def newest_sound(
    path: str, load: Callable[[str], None], *, agreed: Callable[[bool], bool] = bool
) -> tuple[str, list[str]]:
    """Loads a checkpoint, or else the newest before it that can be loaded.

    Args:
      path: path prefix of the newest checkpoint.
      load: loads the checkpoint of a path prefix; raises UnreadableCheckpointError
        where it cannot.
      agreed: tells whether all processes that load together have succeeded, given
        whether this one has. Each calls it once for each checkpoint.

    Returns:
      The path prefix that was loaded, and those that could not be, newest first.

    Raises:
      CheckpointMismatchError: a checkpoint is of another model; nothing was changed.
      UnreadableCheckpointError: neither this checkpoint nor one before it can be read.
    """
    unreadable: list[str] = []
    while True:
        problem = None
        try:
            load(path)
        except UnreadableCheckpointError as error:
            problem = error
        # A damaged file may be seen by one process alone. All go on from the same
        # checkpoint, so all pass over one that any of them cannot read.
        if agreed(problem is None):
            return path, unreadable
        unreadable.append(path)
        words = problem or f"another process cannot read checkpoint {path}"
        older = checkpoint.before(path)
        if older is None:
            raise UnreadableCheckpointError(
                f"{words} There is none before it either: to begin anew at step 0, "
                "choose another model_dir."
            ) from problem
        logging.warning(
            "checkpoint | %s Going on from step %d, of %s.",
            words,
            checkpoint.step_of(older),
            older,
        )
        path = older
