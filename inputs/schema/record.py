# SPDX-License-Identifier: Apache-2.0
"""The file schema.json of a model_dir: declared features and their statistics.

One rule: a record of the same declaration is used. Otherwise a run with a checkpoint is refused,
and in a new run the chief counts and writes, while other processes wait for the file.
"""

import dataclasses
import json
import os
import time
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from gin_estimator import current_config, errors

from .count import FeatureStatistics, count

FILE = "schema.json"
_POLL_SECS = 1.0
_LOG_SECS = 30.0


@dataclasses.dataclass(frozen=True)
class Record:
    """The content of the file.

    Attributes:
      features: declaration of each feature, in the order of the run.
      statistics: statistics by feature.
      num_rows: number of rows that were counted.
    """

    features: Mapping[str, Any]
    statistics: Mapping[str, FeatureStatistics]
    num_rows: int = 0

    def as_json(self) -> dict[str, Any]:
        """Returns the content of the file."""
        found = {
            name: {k: v for k, v in vars(each).items() if v is not None}
            for name, each in self.statistics.items()
        }
        return {
            "version": 1,
            "features": self.features,
            "statistics": found,
            "num_rows": self.num_rows,
        }


# Records of processes without a model_dir, by declaration.
_UNSAVED: dict[str, Record] = {}


def of_run(schema: Any, config: Any = None) -> Record:
    """Returns the record of a run; the chief of a new run counts and writes it.

    Args:
      schema: the Schema.
      config: RunConfig; None for that of the run that calls.

    Raises:
      UserValueError: the run has another declaration, or its record is lost.
    """
    config = config or current_config()
    declared = json.loads(json.dumps(schema.declaration()))
    model_dir = getattr(config, "model_dir", None)
    if not model_dir:
        key = json.dumps([declared, schema.statistics])
        if key not in _UNSAVED:
            _UNSAVED[key] = _new(schema, declared, config)
        return _UNSAVED[key]
    path = os.path.join(model_dir, FILE)
    found = _read(path)
    if found is not None and found.features == declared:
        return found
    if tf.train.latest_checkpoint(model_dir):
        if found is None and not schema.needs:
            return Record(declared, {})
        raise errors.UserValueError(_difference(path, found, declared))
    if not config.is_chief:
        return _wait(path, declared)
    found = _new(schema, declared, config)
    tf.io.gfile.makedirs(model_dir)
    _write(path, found)
    logging.info("schema | wrote %s of %d rows. Delete it to count again", path, found.num_rows)
    return found


def _new(schema: Any, declared: Mapping[str, Any], config: Any) -> Record:
    if schema.statistics is not None:
        return Record(declared, _of_file(schema))
    if not schema.needs:
        return Record(declared, {})
    return Record(declared, *count(schema, config))


def _of_file(schema: Any) -> dict[str, FeatureStatistics]:
    """Returns the statistics of `Schema.statistics`."""
    with tf.io.gfile.GFile(os.path.expanduser(schema.statistics)) as file:
        content = json.load(file)
    found = _statistics(content.get("statistics", content))
    for name, needs in schema.needs.items():
        missing = [k for k in needs if getattr(found.get(name), k, None) is None]
        if missing:
            raise errors.UserValueError(
                f"Schema.statistics is {schema.statistics!r}, which has no {sorted(missing)} of "
                f"the feature {name!r}: expected statistics of all features. Set Schema.source "
                "instead to count."
            )
    return {name: found[name] for name in schema.needs}


def _read(path: str) -> Record | None:
    """Returns the record of a file; None if it does not exist."""
    if not tf.io.gfile.exists(path):
        return None
    try:
        with tf.io.gfile.GFile(path) as file:
            content = json.load(file)
        found = _statistics(content["statistics"])
        return Record(content["features"], found, content["num_rows"])
    except (ValueError, KeyError, TypeError) as error:
        raise errors.UserValueError(
            f"{path} is damaged ({error}): expected the record of a schema. Restore it, or delete "
            "it in a run without checkpoints to count again."
        ) from error


def _write(path: str, record: Record) -> None:
    """Writes the file, complete at any moment."""
    temporary = f"{path}.{os.getpid()}.tmp"
    with tf.io.gfile.GFile(temporary, "w") as file:
        file.write(json.dumps(record.as_json(), indent=1))
    tf.io.gfile.rename(temporary, path, overwrite=True)


def _statistics(content: Mapping[str, Any]) -> dict[str, FeatureStatistics]:
    return {
        name: FeatureStatistics(
            **{k: tuple(v) if isinstance(v, list) else v for k, v in each.items()}
        )
        for name, each in content.items()
    }


def _wait(path: str, declared: Mapping[str, Any]) -> Record:
    """Returns the record that the chief writes."""
    logged = time.monotonic()
    while (found := _read(path)) is None or found.features != declared:
        if time.monotonic() - logged > _LOG_SECS:
            logged = time.monotonic()
            logging.info("schema | waiting for %s, which the chief writes", path)
        time.sleep(_POLL_SECS)
    return found


def _difference(path: str, found: Record | None, declared: Mapping[str, Any]) -> str:
    if found is None:
        return f"{path} is missing: expected the record of the run's checkpoints. Restore it."
    changed = [
        name
        for name in [*declared, *found.features]
        if declared.get(name) != found.features.get(name)
    ]
    was, now = found.features.get(changed[0]), declared.get(changed[0])
    return (
        f"feature {changed[0]!r} is {now!r:.200}: expected {was!r:.200}, as {path} has it. Set the "
        "old declaration, or a new model_dir."
    )
