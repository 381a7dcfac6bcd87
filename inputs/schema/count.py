# SPDX-License-Identifier: Apache-2.0
"""Counts the statistics that features need, in one pass over the training data."""

import collections
import dataclasses
import inspect
import time
import zlib
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from gin_estimator import ModeKeys, errors

from .encode import MISSING_ID

_BATCH = 8192
_MAX_VALUES = 1_000_000  # Quantiles of more numbers are those of a sample.
_MAX_DISTINCT = 10_000_000
_LOG_SECS = 30.0


@dataclasses.dataclass(frozen=True)
class FeatureStatistics:
    """Statistics of one feature; None if not counted. Missing values do not count.

    Attributes:
      mean: mean of a number, after `log`.
      std: standard deviation, over all rows.
      minimum: least number.
      maximum: greatest number.
      boundaries: quantiles, ascending.
      vocabulary: words or ids in the order of their rows. Bytes that are not UTF-8 are in words
        as by 'surrogateescape'.
    """

    mean: float | None = None
    std: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    boundaries: tuple[float, ...] | None = None
    vocabulary: tuple[str | int, ...] | None = None


class _Numbers:
    """Moments in float64 by Chan's update, and values for quantiles by reservoir sampling."""

    def __init__(self, name: str, feature: Any) -> None:
        self.name, self.feature = name, feature
        self.count, self.mean, self.squares = 0, 0.0, 0.0
        self.minimum, self.maximum = np.inf, -np.inf
        self.kept = np.empty(0, np.float32)
        self.random = np.random.default_rng(zlib.crc32(name.encode()))

    def add(self, values: np.ndarray) -> None:
        values = values[~np.isnan(values)].astype(np.float64)
        if not values.size:
            return
        if np.isinf(values).any():
            raise errors.UserValueError(
                f"feature {self.name!r} is infinite in a row of Schema.source."
            )
        if self.feature.log:
            values = np.sign(values) * np.log1p(np.abs(values))
        if isinstance(self.feature.buckets, int):
            self._keep(values.astype(np.float32))
        mean, total = float(values.mean()), self.count + values.size
        distance = mean - self.mean
        self.squares += float(np.square(values - mean).sum())
        self.squares += distance**2 * self.count * values.size / total
        self.mean += distance * values.size / total
        self.count = total
        self.minimum = min(self.minimum, float(values.min()))
        self.maximum = max(self.maximum, float(values.max()))

    def _keep(self, values: np.ndarray) -> None:
        free = _MAX_VALUES - len(self.kept)
        self.kept = np.concatenate([self.kept, values[:free]])
        rest = values[free:]
        seen = self.count + min(free, values.size) + 1 + np.arange(rest.size)
        places = self.random.integers(0, seen)
        self.kept[places[places < _MAX_VALUES]] = rest[places < _MAX_VALUES]

    def found(self) -> FeatureStatistics:
        if not self.count:
            raise errors.UserValueError(f"feature {self.name!r} has no value in Schema.source.")
        if self.minimum == self.maximum:  # Without the rounding of equal logarithms.
            self.mean, self.squares = self.minimum, 0.0
        boundaries = None
        if isinstance(self.feature.buckets, int):
            parts = np.arange(1, self.feature.buckets) / self.feature.buckets
            quantiles = np.unique(np.quantile(self.kept.astype(np.float64), parts).astype("f4"))
            # A boundary at the least value would leave the first bucket empty.
            boundaries = tuple(map(float, quantiles[quantiles > self.kept.min()]))
        std = float(np.sqrt(self.squares / self.count))
        return FeatureStatistics(self.mean, std, self.minimum, self.maximum, boundaries)


class _Items:
    """Counts of words or ids."""

    def __init__(self, name: str, feature: Any) -> None:
        self.name, self.feature = name, feature
        self.counts: collections.Counter[bytes | int] = collections.Counter()

    def add(self, values: np.ndarray) -> None:
        self.counts.update(values.tolist())
        missing = self.counts.pop(MISSING_ID if self.feature.holds_ids else b"", 0)
        default = self.feature.default
        if missing and default not in (..., None):
            self.counts[default.encode() if isinstance(default, str) else default] += missing
        if len(self.counts) > _MAX_DISTINCT:
            raise errors.UserValueError(
                f"feature {self.name!r} has more than {_MAX_DISTINCT:,} words: expected fewer. Set "
                "'hash_buckets': 100000."
            )

    def found(self) -> FeatureStatistics:
        items = [k for k, count in self.counts.items() if count >= self.feature.min_count]
        items.sort(key=lambda item: (-self.counts[item], item))
        if not items:
            raise errors.UserValueError(
                f"feature {self.name!r} has no word {self.feature.min_count} times in "
                "Schema.source: expected some. Set a smaller min_count, or hash_buckets."
            )
        texts = [k.decode("utf-8", "surrogateescape") if isinstance(k, bytes) else k for k in items]
        return FeatureStatistics(vocabulary=tuple(texts[: self.feature.max_size]))


def count(schema: Any, config: Any) -> tuple[dict[str, FeatureStatistics], int]:
    """Returns statistics by feature, and the number of rows.

    Args:
      schema: the Schema.
      config: RunConfig, for a source that takes it.

    Raises:
      UserValueError: the source is missing, empty or endless, or a column has no values.
    """
    began = logged = time.monotonic()
    needed = {name: schema.features[name] for name in schema.needs}
    counts = {
        name: (_Numbers if feature.kind == "number" else _Items)(name, feature)
        for name, feature in needed.items()
    }
    num_rows = 0
    for batch in _one_pass(schema, config):
        columns = batch[0] if isinstance(batch, tuple) else batch
        for name, feature in needed.items():
            values = columns[feature.column or name]
            counts[name].add(getattr(values, "flat_values", values).numpy())
        num_rows += int(next(iter(columns.values())).shape[0])
        if time.monotonic() - logged > _LOG_SECS:
            logged = time.monotonic()
            logging.info("schema | counted %s rows so far", f"{num_rows:,}")
    if not num_rows:
        raise errors.UserValueError("Schema.source returned no rows: expected the training data.")
    statistics = {name: each.found() for name, each in counts.items()}
    seconds = time.monotonic() - began
    logging.info(
        "schema | counted %d features in %s rows, %.1f s", len(needed), f"{num_rows:,}", seconds
    )
    return statistics, num_rows


def _one_pass(schema: Any, config: Any) -> tf.data.Dataset:
    """Returns the raw columns of the training data, once and in order."""
    if schema.source is None:
        raise errors.UserValueError(
            f"Schema.source is None, and {sorted(schema.needs)} need statistics: expected an "
            "input_fn. Set Schema.source = @csv_input_fn."
        )
    columns = {k: v for k, v in schema.columns.items() if k not in schema.other_columns}
    available = {
        "mode": ModeKeys.TRAIN,
        "columns": columns,
        "batch_size": _BATCH,
        "num_epochs": 1,
        "config": config,
        "feature_spec": columns,
        "label": None,
        "label_key": None,
        "weight": None,
        "batch_size_per_replica": None,
        "shuffle": False,
        "shuffle_buffer": None,
        "drop_remainder": False,
        "preprocess": None,
        "preprocess_batch": None,
    }
    names = inspect.signature(schema.source).parameters
    # Functions with **kwargs may pass them to readers, which take the first four.
    takes_any = any(p.kind is p.VAR_KEYWORD for p in names.values())
    wanted = {*names, *(list(available)[:4] if takes_any else ())}
    dataset = schema.source(**{k: v for k, v in available.items() if k in wanted})
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise errors.UserValueError(
            "Schema.source has no end: expected one pass. Let it take num_epochs, which is 1 here."
        )
    return dataset
