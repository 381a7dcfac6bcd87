"""Counts the statistics of a schema's features in one pass over the training data."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import gin
import numpy as np
import tensorflow as tf
from absl import logging

from pipeline import ModeKeys, RefusedTypeError, RefusedValueError
from pipeline.contract import calling
from pipeline.feed import fingerprint
from pipeline.mistakes import user_errors
from pipeline.tracing import seeds

from ..columns import table_of
from .features import Feature
from .raw_values import checked
from .statistics import FeatureStatistics, Sight, count_of

_BATCH = 8192
# The readers' package, above that of schemas, under whichever name it is installed.
_READERS = f"{__package__.rpartition('.')[0]}."
# Words that are held together while they are counted, of about 100 bytes each.
_MOST_DISTINCT = 10_000_000
_LOG_SECS = 30.0
# What a source is given where it takes any arguments: more might not be known to what
# it calls.
_BY_ANY = {
    "mode",
    "columns",
    "label",
    "weight",
    "batch_size",
    "num_epochs",
    "preprocess_batch",
}


@dataclasses.dataclass(frozen=True)
class Counted:
    """The statistics of one pass.

    Attributes:
      by_feature: statistics by feature.
      num_rows: rows of the data.
      source: what the data were, as a number that equal data have, too.
    """

    by_feature: Mapping[str, FeatureStatistics]
    num_rows: int
    source: int


def count(
    schema: Any, config: Any = None, *, tell: Callable[[int], None] | None = None
) -> Counted:
    """Reads the training data once, and counts what the features need.

    Args:
      schema: the `Schema`.
      config: the run's `RunConfig`, for a source that takes it; or None.
      tell: called after each batch with the number of rows so far; None for nothing.

    Raises:
      ValueError: there is no source, it has no row or no end, its label or weight is
        no column, a column is missing in all rows, or there are more different words
        than can be counted.
    """
    began = time.monotonic()
    _check_labels(schema)
    reading = user_errors.running(lambda: "the count of the schema's statistics")
    with seeds.undisturbed(), reading:
        dataset = one_pass(schema, config)
        counts, num_rows = _added_up(dataset, schema, tell or (lambda rows: None))
    if not num_rows:
        raise RefusedValueError(
            f"{_name(schema)} yields no rows, and statistics are needed of "
            f"{sorted(schema.needs)}: write a source of the training data."
        )
    _check_seen(schema.features, counts, num_rows)
    text = "schema | counted %s features over %s rows of %s in %.1f s"
    seconds = time.monotonic() - began
    logging.info(text, len(schema.needs), f"{num_rows:,}", _name(schema), seconds)
    found = {name: counts[name].found() for name in schema.needs}
    _check_words(schema.features, found)
    _say_fewer_buckets(schema.features, found)
    return Counted(found, num_rows, fingerprint.of(dataset).digest)


def _check_labels(schema: Any) -> None:
    """Raises for a label or weight that no column is, which training would refuse.

    They are not counted, and training begins after a pass that may take hours.
    """
    given = _given_to(schema.source)
    columns = given.get("columns", given.get("feature_spec"))
    label = given.get("label", given.get("label_key"))
    is_named = isinstance(label, (str, list, tuple))
    weight = given.get("weight")
    table_of(
        columns if isinstance(columns, Mapping) else schema,
        mode=ModeKeys.TRAIN,
        label=label if is_named else None,
        weight=weight if isinstance(weight, str) else None,
    )


def _given_to(source: Any) -> dict[str, Any]:
    """Returns the arguments that partials and gin give a reader of ours, by name.

    What those of a function of somebody's own mean is not known.
    """
    given: dict[str, Any] = {}
    while isinstance(source, functools.partial):
        given, source = {**source.keywords, **given}, source.func
    if not str(getattr(source, "__module__", "")).startswith(_READERS):
        return {}
    with contextlib.suppress(ValueError, TypeError):  # gin may not know it.
        given = {**gin.get_bindings(source, resolve_references=False), **given}
    return given


def _added_up(
    dataset: tf.data.Dataset, schema: Any, tell: Callable[[int], None]
) -> tuple[dict[str, Any], int]:
    """Returns the counts of all features that have a column, and the number of rows."""
    features = {k: f for k, f in schema.features.items() if f.raw_column}
    counts = {
        name: count_of(name, feature) if name in schema.needs else Sight()
        for name, feature in features.items()
    }
    num_rows, told = 0, time.monotonic()
    for batch in dataset:
        columns = batch[0] if isinstance(batch, tuple) else batch
        for name, feature in features.items():
            counts[name].add(_values(columns, feature.column or name, feature))
        num_rows += int(next(iter(columns.values())).shape[0])
        _check_distinct({name: counts[name] for name in schema.needs})
        tell(num_rows)
        if time.monotonic() - told > _LOG_SECS:
            told = time.monotonic()
            logging.info("schema | counting | %s rows so far", f"{num_rows:,}")
    return counts, num_rows


def one_pass(schema: Any, config: Any = None) -> tf.data.Dataset:
    """Returns the training data with their raw columns, once and in order.

    Args:
      schema: the `Schema`.
      config: the run's `RunConfig`, for a source that takes it; or None.

    Raises:
      TypeError: the source is no input_fn.
      ValueError: there is no source, or it has no end.
    """
    if schema.source is None:
        raise RefusedValueError(
            f"source is None, and statistics are needed of {sorted(schema.needs)}: "
            "write Schema.source = @csv_input_fn, with the files of the training data."
        )
    read = {f.column or name for name, f in schema.features.items()}
    columns = {name: col for name, col in schema.columns.items() if name in read}
    supplied = {
        "mode": ModeKeys.TRAIN,
        "input_context": tf.distribute.InputContext(),
        "config": config,
        "columns": columns,
        "feature_spec": columns,
        "label": None,
        "label_key": None,
        "weight": None,
        "batch_size": _BATCH,
        "batch_size_per_replica": None,
        "num_epochs": 1,
        "shuffle": False,
        "shuffle_buffer": None,
        "drop_remainder": False,
        "preprocess": None,
        "preprocess_batch": None,
    }
    names, takes_any = calling.declared(schema.source)
    if takes_any:
        known = {*names} | _BY_ANY
        supplied = {k: value for k, value in supplied.items() if k in known}
    dataset = calling.call(schema.source, supplied, role="Schema.source")
    if not isinstance(dataset, tf.data.Dataset):
        raise RefusedTypeError(
            f"{_name(schema)} returned {dataset!r}: write an input_fn that returns a "
            "tf.data.Dataset, Schema.source = @csv_input_fn."
        )
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise RefusedValueError(
            f"{_name(schema)} has no end, and statistics are of one pass: have it "
            "take num_epochs, which is 1 here, and repeat(num_epochs)."
        )
    return dataset


def _values(columns: Any, name: str, feature: Feature) -> np.ndarray:
    """Returns the values of a feature's column, or the items of all its bags."""
    if not isinstance(columns, Mapping) or name not in columns:
        found = sorted(columns) if isinstance(columns, Mapping) else type(columns)
        raise RefusedValueError(
            f"Schema.source yields {found}, and column {name!r} is declared: have it "
            "take columns, and yield a dict of all of them."
        )
    column = checked(columns[name], name, feature.raw_column)
    return getattr(column, "flat_values", column).numpy()


def _check_distinct(counts: Mapping[str, Any]) -> None:
    """Raises if there are more different words than memory should hold."""
    distinct = {name: each.num_distinct for name, each in counts.items()}
    if sum(distinct.values()) > _MOST_DISTINCT:
        most = max(distinct, key=distinct.get)
        raise RefusedValueError(
            f"Feature {most!r} has {distinct[most]:,} different words or more, too "
            f"many to count: write features={{..., {most!r}: {{..., 'hash_buckets': "
            "100000}}."
        )


def _check_seen(
    features: Mapping[str, Any], counts: Mapping[str, Any], num_rows: int
) -> None:
    """Raises if a column is missing in all rows."""
    for name, each in counts.items():
        column = features[name].column or name
        if each.num_seen:
            continue
        raise RefusedValueError(
            f"Column {column!r} is missing in all {num_rows:,} rows of the training "
            f"data: take feature {name!r} out, or write the word that stands for a "
            "missing value, csv_input_fn.missing, if that is not it."
        )


def _check_words(
    features: Mapping[str, Any], found: Mapping[str, FeatureStatistics]
) -> None:
    """Raises if nothing is as frequent as a vocabulary's words have to be."""
    for name, statistics in found.items():
        if statistics.vocabulary == ():
            raise RefusedValueError(
                f"Feature {name!r}: min_count is {features[name].min_count}, and "
                "nothing is there as often in the training data: write a smaller one."
            )


def _say_fewer_buckets(
    features: Mapping[str, Any], found: Mapping[str, FeatureStatistics]
) -> None:
    for name, statistics in found.items():
        if statistics.boundaries is None:
            continue
        buckets = len(statistics.boundaries) + 1
        if buckets < features[name].buckets:
            logging.warning(
                "schema | feature %r has %d buckets, not %d: its quantiles are not all "
                "different.",
                name,
                buckets,
                features[name].buckets,
            )


def _name(schema: Any) -> str:
    return f"Schema.source {calling.name_of(schema.source)}"
