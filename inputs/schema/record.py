"""The file `schema.json` of a model_dir: what was declared, and what was counted.

It is JSON: a version, "features" as declared, their "statistics", "num_rows" of the
data, and the "source", by which these data are known again.
"""

import dataclasses
import json
import os
import threading
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from pipeline import RefusedValueError
from pipeline.model_dir import atomic_file, paths

from .statistics import FeatureStatistics

FILE = "schema.json"

_VERSION = 1
_MOST_SHOWN = 200
# Arguments of a feature by which its statistics go.
_COUNTED_BY = ("kind", "log", "buckets", "min_count", "max_size")


@dataclasses.dataclass(frozen=True)
class Record:
    """The content of the file.

    Attributes:
      features: what is declared of each feature, as JSON, in order.
      statistics: statistics of the features that need some.
      num_rows: rows of the training data over which they were counted.
      source: number by which these data are known again; None where the statistics are
        another run's.
    """

    features: Mapping[str, Any]
    statistics: Mapping[str, FeatureStatistics] = dataclasses.field(
        default_factory=dict
    )
    num_rows: int = 0
    source: int | None = None


def declared(schema: Any) -> dict[str, Any]:
    """Returns what a `Schema` declares of its features, as JSON reads it."""
    return json.loads(json.dumps(schema.declaration()["features"]))


def read(path: str) -> Record | None:
    """Returns the record of a file; None where there is none, or a damaged one.

    Args:
      path: of the file, which is set aside where it is damaged.
    """
    instead = "the statistics in it are lost, and copies of them in exports are not"
    return atomic_file.read_json(path, _parsed, instead=instead)


def write(path: str, record: Record) -> None:
    """Writes a record, in place of the one that is there.

    Args:
      path: of the file.
      record: what to write.
    """
    content = {
        "version": _VERSION,
        "features": record.features,
        "statistics": {
            name: {k: v for k, v in vars(found).items() if v is not None}
            for name, found in record.statistics.items()
        },
        "num_rows": record.num_rows,
        "source": record.source,
    }
    writer = f"{os.getpid()}-{threading.get_ident()}"
    atomic_file.write(path, f"{json.dumps(content, indent=1)}\n", writer=writer)


def of_other_run(schema: Any) -> Record | None:
    """Returns a record of the statistics that `Schema.statistics` names.

    Args:
      schema: the `Schema`.

    Returns:
      The record; None where none is named, or the path leads nowhere.

    Raises:
      ValueError: the file is no record, or lacks what the schema needs.
    """
    if schema.statistics is None:
        return None
    path = paths.normal(schema.statistics)
    if tf.io.gfile.isdir(path):
        path = os.path.join(path, FILE)
    text = atomic_file.read(path)
    if text is None:
        return None
    try:
        found = _parsed(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RefusedValueError(
            f"Schema.statistics is {schema.statistics!r}, and {path} is no record of a "
            f"schema ({type(error).__name__}: {error}): write the path of a "
            f"{FILE} that a run has written."
        ) from error
    own = declared(schema)
    for name, needs in schema.needs.items():
        _check_serves(name, needs, own[name], found, path)
    statistics = {name: found.statistics[name] for name in schema.needs}
    return Record(own, statistics, found.num_rows)


def difference(now: Mapping[str, Any], was: Mapping[str, Any]) -> str | None:
    """Returns in words how two declarations differ; None where they are equal.

    Their order does not count: gin sorts dicts in the config.gin that it writes.

    Args:
      now: what is declared, as `declared` returns it.
      was: what was declared before.
    """
    for name in now:
        if name not in was:
            return f"Feature {name!r} is {_short(now[name])}, and was not there"
        if now[name] != was[name]:
            shown = f"{_short(now[name])}, and was {_short(was[name])}"
            return f"Feature {name!r} is {shown}"
    for name in was:
        if name not in now:
            return f"Feature {name!r} is not there, and was {_short(was[name])}"
    return None


def _parsed(content: Any) -> Record:
    """Returns the record that decoded JSON holds; raises where it is damaged."""
    if content["version"] != _VERSION:
        raise RefusedValueError(f"version {content['version']!r}")
    statistics = {}
    for name, found in content["statistics"].items():
        lists = {k: tuple(v) for k, v in found.items() if isinstance(v, list)}
        statistics[name] = FeatureStatistics(**{**found, **lists})
    features = dict(content["features"])
    return Record(features, statistics, int(content["num_rows"]), content["source"])


def _check_serves(
    name: str, needs: frozenset[str], own: Mapping[str, Any], found: Record, path: str
) -> None:
    """Raises if another run's record lacks what a feature needs.

    Args:
      name: the feature's name.
      needs: fields of `FeatureStatistics`.
      own: the feature's declaration.
      found: the record.
      path: its path.
    """
    there = found.statistics.get(name)
    lacking = [f for f in sorted(needs) if there is None or getattr(there, f) is None]
    was = found.features.get(name, {})
    changed = [k for k in _COUNTED_BY if own.get(k) != was.get(k)]
    if lacking or changed:
        what = f"{lacking} of it" if lacking else f"it as {_short(own)}"
        raise RefusedValueError(
            f"Feature {name!r}: {path} lacks {what}; there it is "
            f"{_short(was) if was else 'not declared'}: declare it alike, or write "
            "Schema.source in place of Schema.statistics to count."
        )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
