# SPDX-License-Identifier: Apache-2.0
"""Declares features: the column of each, and how it enters a model."""

import dataclasses
import gzip
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from gin_estimator import errors

from ..batching import is_integer
from ..columns import DTYPES, Column, columns_of, did_you_mean
from . import record
from .encode import MISSING_ID, Encoder

_MAX_WORDS = 100  # Longer vocabularies are declared by a checksum.
# At most one of these has the rows of a feature's table.
_WAYS = ("vocabulary", "size", "hash_buckets", "shared_with")
_WORDS = ("vocabulary", "hash_buckets", "shared_with", "min_count", "max_size", "unknown")
_IDS = (*_WORDS, "size")
# The options of each kind, in addition to `kind`, `wide` and `embedding`.
_OPTIONS = {
    "number": ("column", "default", "log", "scale", "clip", "indicator", "buckets"),
    "word": ("column", "default", *_WORDS),
    "id": ("column", "default", *_IDS),
    "bag of words": ("column", "separator", "combiner", *_WORDS),
    "bag of ids": ("column", "separator", "combiner", *_IDS),
    "cross": ("of", "hash_buckets", "combiner"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Feature:
    """A feature of any kind; `_OPTIONS` has the attributes that a kind uses.

    Missing numbers are filled, then log, scale and clip are applied, or buckets. Words and ids
    without vocabulary, size, hash_buckets and shared_with are counted: the most frequent first,
    equally frequent ones in the order of their bytes. A cross combines categories, bags and numbers
    with buckets, and a hash chooses its row; words and ids are crossed as they are.

    Attributes:
      kind: 'number', 'word', 'id', 'bag of words', 'bag of ids' or 'cross'.
      column: name of its column; None for the name of the feature.
      wide: whether it enters the wide, linear part of a model.
      embedding: how categories enter the deep part: by a vector of this size, as 'one_hot', which
        counts the items of a bag, or None for not at all. The default size depends on the number
        of rows; crosses do not enter.
      default: value for a missing one, and with size for ids out of range; None refuses rows
        without a value. By default a number has the mean of the training data, and a word, an id
        or a bucket a separate row, the last. Missing items of bags are left out.
      log: whether to take sign(x) log(1 + abs(x)).
      scale: 'standard' subtracts the mean and divides by the standard deviation of the training
        data; 'min_max' maps them to [0, 1]; None changes nothing. Constant data become 0.
      clip: `(low, high)`, bounds after scaling.
      indicator: whether another number, NAME_missing, is 1 if the value is missing and else 0.
      buckets: ascending boundaries, or the number of quantiles of the training data. A boundary
        belongs to the bucket above it.
      vocabulary: words or ids in the order of their rows, or the path of a text file with one in
        each line, also .gz.
      size: ids from 0 to below size are rows. Other ids are refused, or have the default.
      hash_buckets: number of rows that a hash chooses from.
      shared_with: feature whose rows and vectors it shares.
      min_count: least count of a word in the vocabulary that is counted.
      max_size: largest size of the vocabulary that is counted; None for any.
      unknown: rows for words outside of the vocabulary, chosen by a hash; 0 refuses them.
      separator: character between the items of a bag, in text.
      combiner: how vectors of a bag's items are combined: 'mean', 'sum' or 'sqrtn'.
      of: names of the two or more features of a cross.
    """

    kind: str
    column: str | None = None
    wide: bool = True
    embedding: int | str | None = ...
    default: float | str | None = ...
    log: bool = False
    scale: str | None = None
    clip: Sequence[float] | None = None
    indicator: bool = False
    buckets: Sequence[float] | int | None = None
    vocabulary: Sequence[str | int] | str | None = None
    size: int | None = None
    hash_buckets: int | None = None
    shared_with: str | None = None
    min_count: int = 1
    max_size: int | None = None
    unknown: int = 1
    separator: str = " "
    combiner: str = "mean"
    of: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name, words in (
            ("scale", (None, "standard", "min_max")),
            ("combiner", ("mean", "sum", "sqrtn")),
        ):
            if getattr(self, name) not in words:
                raise errors.UserValueError(
                    f"{name} is {getattr(self, name)!r}: expected one of {words}."
                )
        for name in ("clip", "buckets"):
            self._check_ascending(name)
        if self.clip is not None and len(self.clip) != 2:
            raise errors.UserValueError(f"clip is {self.clip!r}: expected (low, high).")
        if self.buckets is not None and (self.log or self.scale or self.clip or self.indicator):
            raise errors.UserValueError(
                f"buckets is {self.buckets!r}: expected no log, scale, clip or indicator with it."
            )
        ways = [name for name in _WAYS if getattr(self, name) is not None]
        if len(ways) > 1:
            raise errors.UserValueError(
                f"{' and '.join(ways)} are set: expected at most one of them."
            )
        for name in ("embedding", "buckets", "size", "hash_buckets", "max_size", "min_count"):
            self._check_positive(name)
        if self.vocabulary is not None:
            object.__setattr__(self, "vocabulary", _vocabulary(self.vocabulary, self.holds_ids))
        object.__setattr__(self, "of", tuple(self.of))
        if self.kind == "cross" and (len(self.of) < 2 or not self.hash_buckets):
            raise errors.UserValueError(
                f"of is {self.of!r} and hash_buckets is {self.hash_buckets}: expected the names of "
                "two or more features, and a number of rows."
            )

    def _check_ascending(self, name: str) -> None:
        value = getattr(self, name)
        if isinstance(value, list | tuple):
            object.__setattr__(self, name, tuple(map(float, value)))
            if not value or (np.diff(value) <= 0).any() or not np.isfinite(value).all():
                raise errors.UserValueError(f"{name} is {value!r}: expected ascending numbers.")

    def _check_positive(self, name: str) -> None:
        value = getattr(self, name)
        is_other = value in (..., None, "one_hot") or isinstance(value, tuple)
        if not is_other and (not is_integer(value) or value < 1):
            raise errors.UserValueError(f"{name} is {value!r}: expected a positive integer.")

    @property
    def is_bag(self) -> bool:
        """Whether its column has any number of items in a row."""
        return self.kind.startswith("bag of ")

    @property
    def holds_ids(self) -> bool:
        """Whether the items are ids instead of words."""
        return self.kind in ("id", "bag of ids")

    @property
    def is_category(self) -> bool:
        """Whether its values are rows of a table."""
        return self.kind != "number" or self.buckets is not None

    @property
    def has_missing_row(self) -> bool:
        """Whether missing values have a row of the table."""
        return self.default is ... and not self.is_bag and self.kind != "cross"

    @property
    def needs(self) -> frozenset[str]:
        """The fields of `FeatureStatistics` that it needs."""
        if self.kind != "number":
            is_counted = self.kind != "cross" and all(getattr(self, way) is None for way in _WAYS)
            return frozenset({"vocabulary"} if is_counted else ())
        if self.buckets is not None:
            return frozenset({"boundaries"} if isinstance(self.buckets, int) else ())
        found = {"standard": {"mean", "std"}, "min_max": {"minimum", "maximum"}}
        return frozenset(
            found.get(self.scale, set()) | ({"mean"} if self.default is ... else set())
        )

    @property
    def raw(self) -> Column:
        """The column to read, where NaN, '' or `MISSING_ID` is missing."""
        if self.is_bag:
            return Column(self.kind, separator=self.separator)
        if self.default is None:
            return Column(self.kind, default=None)
        return Column(self.kind, default=MISSING_ID if self.holds_ids else ...)


@gin.configurable
@dataclasses.dataclass(frozen=True, eq=False)
class Schema:
    """The features of a table, for readers, networks and SavedModels.

    It encodes without lookup tables, so it runs in input workers, on each strategy and in exports.

        Schema({"distance": {"kind": "number", "scale": "standard"}, "carrier": "word"},
               other_columns={"late": "id"}, source=functools.partial(csv_input_fn, ...))

    Attributes:
      features: features by name: dict of the attributes of a `Feature`, its kind alone, or
        the same feature of another Schema.
      other_columns: columns that are read and returned as they are, such as labels and weights.
      source: input_fn of the training data, for statistics that features need; it is called with
        these columns, and with num_epochs=1.
      statistics: path of a JSON file of statistics, such as the schema.json of another run; None
        counts.
    """

    features: Mapping[str, Any]
    other_columns: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    source: Callable[..., Any] | None = None
    statistics: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.features, Mapping) or not self.features:
            raise errors.UserTypeError(
                f"Schema.features is {self.features!r}: expected a dict. Set "
                "Schema.features={'distance': 'number', 'carrier': 'word'}."
            )
        features = {name: _feature(name, value) for name, value in self.features.items()}
        object.__setattr__(self, "features", features)
        object.__setattr__(self, "other_columns", columns_of(self.other_columns))
        for name, feature in features.items():
            self._check_related(name, feature)
        names = [*self.other_columns, *features]
        names += [f"{name}_missing" for name, each in features.items() if each.indicator]
        if twice := [name for name in names if names.count(name) > 1]:
            raise errors.UserValueError(
                f"{twice[0]!r} is the name of two of features, indicators and other_columns: "
                f"expected different names. Set {{'other_name': {{'column': {twice[0]!r}, ...}}}}."
            )
        _ = self.columns

    def _check_related(self, name: str, feature: Feature) -> None:
        owner = feature.shared_with
        for other in [*feature.of, *([owner] if owner else [])]:
            if other not in self.features or other == name:
                raise errors.UserValueError(
                    f"feature {name!r} names {other!r}: expected another feature."
                    f"{did_you_mean(other, self.features)}"
                )
        for part in feature.of:
            if self.features[part].kind == "cross" or not self.features[part].is_category:
                raise errors.UserValueError(
                    f"feature {name!r} crosses {part!r}: expected words, ids, bags or numbers "
                    "with buckets."
                )
        if owner:
            shared = self.features[owner]
            if DTYPES.get(shared.kind) != DTYPES[feature.kind] or shared.shared_with:
                raise errors.UserValueError(
                    f"feature {name!r} is shared_with {owner!r}: expected a feature of the same "
                    "items that shares with none."
                )

    @property
    def columns(self) -> dict[str, Column]:
        """The columns to read, by name."""
        found = dict(self.other_columns)
        for name, feature in self.features.items():
            if feature.kind == "cross":
                continue
            column = feature.column or name
            known = found.setdefault(column, feature.raw)
            if (known.kind, known.separator) != (feature.raw.kind, feature.raw.separator):
                raise errors.UserValueError(
                    f"column {column!r} is read as {known} and, by the feature {name!r}, as "
                    f"{feature.raw}: expected one kind."
                )
            if None in (known.default, feature.raw.default):
                found[column] = dataclasses.replace(known, default=None)
        return found

    @property
    def needs(self) -> dict[str, frozenset[str]]:
        """The fields of `FeatureStatistics` that features need, by feature."""
        found = {name: feature.needs for name, feature in self.features.items()}
        return {name: needs for name, needs in found.items() if needs}

    def declaration(self) -> dict[str, Any]:
        """Returns the features as JSON, without arguments that have their defaults."""
        return {name: _as_json(feature) for name, feature in self.features.items()}

    def prepared(self, config: Any = None) -> Encoder:
        """Returns the encoder, with the statistics of the run.

        Args:
          config: RunConfig, whose model_dir has the statistics; None for that of the run that
            calls, and outside of a run for statistics of this process.

        Raises:
          UserValueError: statistics are neither recorded nor can be counted, or the run has
            another declaration.
        """
        found = record.of_run(self, config)
        # Rows and variables have the order of the features when the run began.
        features = {name: self.features[name] for name in found.features}
        key = json.dumps([self.declaration(), found.as_json()])
        if key not in _ENCODERS:
            _ENCODERS.clear()  # One schema at a time: its vocabulary may be large.
            _ENCODERS[key] = Encoder(features, self.columns, self.other_columns, found.statistics)
        return _ENCODERS[key]


# Readers and networks of a run share the encoder.
_ENCODERS: dict[str, Encoder] = {}


def _feature(name: str, value: Any) -> Feature:
    if isinstance(value, Feature):  # Of another Schema.
        return value
    arguments = {"kind": value} if isinstance(value, str) else value
    kind = arguments.get("kind") if isinstance(arguments, Mapping) else None
    if kind not in _OPTIONS:
        raise errors.UserValueError(
            f"feature {name!r} is {value!r}: expected its kind, one of {[*_OPTIONS]}, or a dict "
            f"{{'kind': 'word', 'embedding': 16}}.{did_you_mean(kind, _OPTIONS)}"
        )
    known = ["kind", "wide", "embedding", *_OPTIONS[kind]]
    for argument in arguments:
        if argument not in known:
            raise errors.UserValueError(
                f"feature {name!r} has the argument {argument!r}: expected some of {known}."
                f"{did_you_mean(argument, known)}"
            )
    try:
        return Feature(**arguments)
    except (TypeError, ValueError) as error:
        raise errors.UserValueError(f"feature {name!r}: {error}") from error


def _vocabulary(value: Any, holds_ids: bool) -> tuple[str | int, ...]:
    if isinstance(value, str):
        with tf.io.gfile.GFile(value, "rb") as file:
            content = file.read()
        text = (gzip.decompress(content) if value.endswith(".gz") else content).decode()
        value = [int(line) for line in text.splitlines()] if holds_ids else text.splitlines()
    if not value or len({*value}) < len(value) or not all(str(item) for item in value):
        raise errors.UserValueError(
            f"vocabulary has {len(value)} items, {len({*value})} different: expected different "
            "words or ids, none of them empty."
        )
    expected = int if holds_ids else str
    if not all(isinstance(item, expected) for item in value):
        raise errors.UserValueError(
            f"vocabulary is {value!r:.80}: expected {'ids' if holds_ids else 'words'}."
        )
    return tuple(value)


def _as_json(feature: Feature) -> dict[str, Any]:
    found = {"kind": feature.kind}
    for field in dataclasses.fields(feature):
        value = getattr(feature, field.name)
        if field.name == "vocabulary" and value is not None and len(value) > _MAX_WORDS:
            digest = hashlib.sha256(json.dumps(value).encode()).hexdigest()
            value = {"words": len(value), "sha256": digest}
        if value != field.default:
            found[field.name] = list(value) if isinstance(value, tuple) else value
    return found
