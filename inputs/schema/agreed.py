"""Has all that a run does go by the same statistics, whichever process asks first.

Where model_dir has a checkpoint, its record counts: one of another declaration is
refused, and so is none where statistics are needed. Where it has no checkpoint, the
chief counts, unless there is a record of the declaration and the data, and writes the
record, for which the others wait. It is written before the first checkpoint, and never
after it.
"""

import contextlib
import functools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from pipeline import ClaimedError, RefusedTypeError, RefusedValueError
from pipeline.checkpoints import checkpoint
from pipeline.cluster.tf_config import EVALUATOR
from pipeline.feed import fingerprint
from pipeline.model_dir import atomic_file, claim, heartbeat, paths, storage
from pipeline.process.refusals import RefusedRuntimeError

from . import counting, record
from .record import Record

# The chief's sign of life while it counts, beside the record: rows so far.
COUNTING = ".counting"

_RENEW_SECS = 10.0
_POLL_SECS = 1.0
_LOG_SECS = 30.0
# Longest time without a sign of the chief. An evaluator may start long before it.
_MOST_SECS = 600.0
_MOST_SECS_OF_EVALUATOR = 86400.0

# By path: the record that this process has written, or has compared with the data of a
# source, and this source.
_FITTING: dict[str, tuple[Any, Record]] = {}
# Records that the log has told of, by path and number of rows.
_SAID: set[tuple[str, int]] = set()


def record_of(schema: Any, config: Any = None) -> Record:
    """Returns the statistics that a schema needs in a run, and the order of features.

    Args:
      schema: the `Schema`.
      config: the run's `RunConfig`; None, or one without a model_dir, keeps what is
        counted in this process.

    Raises:
      TypeError: config is something else.
      ValueError: model_dir is of another schema; statistics are needed, and there is no
        way to them; or the data are refused, see `counting.count`.
      RuntimeError: the chief does not count.
      StorageError: model_dir cannot be written.
    """
    if config is None:
        return _in_process(schema, _Same(schema.source))
    if not hasattr(config, "model_dir"):
        raise RefusedTypeError(
            f"config is {config!r}: write the RunConfig that a factory or an input_fn "
            "is given as config, or None."
        )
    model_dir = config.model_dir
    if model_dir is None:
        return _in_process(schema, _Same(schema.source))
    model_dir = paths.normal(model_dir)
    # Data are read in the block, too.
    with storage.writing(model_dir, "the schema's record", only_named=True):
        return _in_model_dir(schema, config, model_dir)


def _in_model_dir(schema: Any, config: Any, model_dir: str) -> Record:
    """Returns the record of a run with a model_dir."""
    own = record.declared(schema)
    # In this order: the record is written before the first checkpoint.
    trained = checkpoint.latest(model_dir) is not None
    path = os.path.join(model_dir, record.FILE)
    found, given = record.read(path), record.of_other_run(schema)
    if trained:
        return _of_trained(schema, path, found, given)
    if found is not None and _still_counts(schema, config, path, found, given):
        return found
    if storage.is_only_looking():
        return _in_process(schema, _Same(schema.source))
    if not config.is_chief:
        awaits = given is None and schema.needs
        return _awaited(own, config, path) if awaits else given or Record(own)
    with _replacing(model_dir, path, found):
        made = given or _made(schema, config, path)
        record.write(path, made)
    _FITTING[path] = _Same(schema.source), made
    _SAID.add((path, made.num_rows))
    return made


class _Same:
    """A source as a key, equal to itself alone: callables may have no hash."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._source is other._source

    def __hash__(self) -> int:
        return id(self._source)


@functools.lru_cache(maxsize=4)
def _in_process(schema: Any, _source: _Same) -> Record:
    """Returns a record without a model_dir, counted once for a schema and source."""
    own, given = record.declared(schema), record.of_other_run(schema)
    if given is not None or not schema.needs:
        return given or Record(own)
    _check_way(schema)
    return Record(own, counting.count(schema).by_feature)


def _of_trained(
    schema: Any, path: str, found: Record | None, given: Record | None
) -> Record:
    """Returns the record by which the checkpoints beside it were trained.

    Args:
      schema: the `Schema`.
      path: of the record.
      found: the record; None where there is none.
      given: record of the statistics that the schema names, or None.
    """
    model_dir = os.path.dirname(path)
    if found is None and (given or not schema.needs):
        return given or Record(record.declared(schema))
    if found is None:
        raise RefusedValueError(
            f"{model_dir} has a checkpoint, and {path} is not there: the statistics of "
            f"{_listed(schema.needs)} by which it was trained are lost. Copy the file "
            "back, write Schema.statistics = '...' for a copy elsewhere, or choose "
            "another model_dir."
        )
    if words := record.difference(record.declared(schema), found.features):
        raise RefusedValueError(
            f"{words} in {path}, by which the checkpoints beside it were trained: "
            "declare it as it was, or choose another model_dir."
        )
    if given and given.statistics != found.statistics:
        raise RefusedValueError(
            f"Schema.statistics is {schema.statistics!r}, whose statistics are not "
            f"those in {path}, by which the checkpoints beside it were trained: leave "
            "it out, or choose another model_dir."
        )
    _say(path, found)
    return found


def _say(path: str, found: Record) -> None:
    """Says once that a record counts."""
    if (path, found.num_rows) not in _SAID:
        _SAID.add((path, found.num_rows))
        text = "schema | statistics of %s rows, of %s"
        logging.info(text, f"{found.num_rows:,}", path)


def _still_counts(
    schema: Any, config: Any, path: str, found: Record, given: Record | None
) -> bool:
    """Returns whether a record without a checkpoint is to be used as it is.

    The chief alone compares it with the data, which may be others since: the other
    processes need not see them. So it may count anew only where there are no others.
    """
    if record.difference(record.declared(schema), found.features):
        return False
    if given:
        return given.statistics == found.statistics
    compares = config.is_chief and schema.needs and schema.source is not None
    if not compares or _FITTING.get(path) == (_Same(schema.source), found):
        return True
    data = counting.one_pass(schema, config)
    if fingerprint.of(data).digest == found.source:
        _FITTING[path] = _Same(schema.source), found
        _say(path, found)
        return True
    if config.cluster.jobs:
        raise RefusedValueError(
            f"{path} was counted over other data than those that Schema.source reads, "
            "and there is no checkpoint: delete the file, to count anew."
        )
    logging.warning("schema | %s was counted over other data: counting anew.", path)
    return False


def _made(schema: Any, config: Any, path: str) -> Record:
    """Returns a record of what is counted now, if anything has to be."""
    own = record.declared(schema)
    if not schema.needs:
        return Record(own)
    _check_way(schema)
    with _signs_of_life(f"{path}{COUNTING}") as tell:
        counted = counting.count(schema, config, tell=tell)
    return Record(own, counted.by_feature, counted.num_rows, counted.source)


@contextlib.contextmanager
def _replacing(model_dir: str, path: str, found: Record | None) -> Iterator[None]:
    """Lets the block write a record, in place of one that is there if need be.

    Raises:
      ClaimedError: a training is under way that goes by the record that is there.
    """
    if found is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(claim.held(model_dir))
        except ClaimedError as error:
            error.add_note(f"It goes by {path}, which is of another schema.")
            raise
        text = "schema | %s is of another schema, or of other data: replaced."
        logging.warning(text, path)
        yield


@contextlib.contextmanager
def _signs_of_life(path: str) -> Iterator[Callable[[int], None]]:
    """Writes a file again and again while the block counts, for those who wait.

    Args:
      path: of the file.

    Yields:
      A function that takes the number of rows so far.
    """
    rows = 0

    def tell(number: int) -> None:
        nonlocal rows
        rows = number

    def renew() -> None:
        atomic_file.write(path, json.dumps({"rows": rows, "time": time.time()}))

    renew()
    try:
        with heartbeat.renewed(path, renew, secs=_RENEW_SECS):
            yield tell
    finally:
        with contextlib.suppress(tf.errors.OpError):
            atomic_file.remove(path)


def _awaited(own: Mapping[str, Any], config: Any, path: str) -> Record:
    """Returns the record that the chief writes, once it is there.

    Args:
      own: this process' declaration.
      config: its `RunConfig`.
      path: of the record.

    Raises:
      RuntimeError: there was no sign of the chief for a long time.
    """
    is_evaluator = config.task_type == EVALUATOR
    most_secs = _MOST_SECS_OF_EVALUATOR if is_evaluator else _MOST_SECS
    seen, seen_at, logged_at = None, time.monotonic(), time.monotonic()
    while True:
        found = record.read(path)
        words = record.difference(own, found.features) if found else None
        if found is not None and words is None:
            return found
        sign, now = atomic_file.read(f"{path}{COUNTING}"), time.monotonic()
        if sign != seen:
            seen, seen_at = sign, now
        if now - seen_at > most_secs:
            raise RefusedRuntimeError(
                f"{words or 'The record of the schema is not there,'} in {path}, and "
                f"the chief has counted nothing for {most_secs:g} s: is model_dir on "
                "storage that all processes share, and is the schema theirs, too?"
            )
        if now - logged_at > _LOG_SECS:
            logged_at = now
            text = "schema | waiting for the chief to count %s into %s (%s)"
            logging.info(text, _listed(own), path, sign or "not begun")
        time.sleep(_POLL_SECS)


def _check_way(schema: Any) -> None:
    """Raises if statistics are needed that can neither be read nor counted."""
    if schema.statistics is not None:
        raise RefusedValueError(
            f"Schema.statistics is {schema.statistics!r}, where there is no file: "
            "write the schema.json of another run, or leave it out to count."
        )


def _listed(names: Any) -> str:
    shown = list(names)[:10]
    return f"{shown}{' and others' if len(names) > len(shown) else ''}"
