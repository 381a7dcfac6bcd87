"""Declares features: the column of each, and how it enters a model."""

import dataclasses
import gzip
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from gin_estimator import UserTypeError, UserValueError

from ..columns import Column, columns_of, did_you_mean
from . import record
from .encode import MISSING_ID, Encoder

_MAX_WORDS = 100  # Longer vocabularies are declared by a checksum.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Feature:
    """A feature of any kind.

    Attributes:
      kind: kind of the feature.
      column: name of its column; None for the name of the feature.
      wide: whether it enters the wide, linear part of a model.
      embedding: how categories enter the deep part: by a vector of this size, as 'one_hot', or
        None for not at all. The default size depends on the number of rows; crosses do not enter.
    """

    kind: str
    column: str | None = None
    wide: bool = True
    embedding: int | str | None = ...

    def __post_init__(self) -> None:
        if self.embedding not in (..., None, "one_hot"):
            _check_positive("embedding", self.embedding)

    @property
    def needs(self) -> frozenset[str]:
        """The fields of `FeatureStatistics` that it needs."""
        return frozenset()

    @property
    def is_category(self) -> bool:
        """Whether its values are rows of a table."""
        return True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Number(Feature):
    """A number: missing ones are filled, then log, scale and clip are applied; or buckets.

    Attributes:
      kind: 'number'.
      column: see `Feature`.
      wide: see `Feature`.
      embedding: see `Feature`; of buckets.
      default: number for a missing one; None refuses rows without a number. By default the mean
        of the training data, or a separate row with buckets.
      log: whether to take sign(x) log(1 + abs(x)).
      scale: 'standard' subtracts the mean and divides by the standard deviation of the training
        data; 'min_max' maps them to [0, 1]; None changes nothing. Constant data become 0.
      clip: `(low, high)`, bounds after scaling.
      indicator: whether another number, NAME_missing, is 1 if the value is missing and else 0.
      buckets: ascending boundaries, or the number of quantiles of the training data. A boundary
        belongs to the bucket above it.
    """

    kind: str = "number"
    default: float | None = ...
    log: bool = False
    scale: str | None = None
    clip: Sequence[float] | None = None
    indicator: bool = False
    buckets: Sequence[float] | int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale not in (None, "standard", "min_max"):
            raise UserValueError(f"scale is {self.scale!r}: expected 'standard' or 'min_max'.")
        for name in ("clip", "buckets"):
            value = getattr(self, name)
            if isinstance(value, list | tuple):
                object.__setattr__(self, name, tuple(map(float, value)))
                if not value or (np.diff(value) <= 0).any() or not np.isfinite(value).all():
                    raise UserValueError(f"{name} is {value!r}: expected ascending numbers.")
            elif value is not None and name == "buckets":
                _check_positive("buckets", value)
        if self.clip is not None and np.size(self.clip) != 2:
            raise UserValueError(f"clip is {self.clip!r}: expected (low, high).")
        if self.buckets is not None and (self.log or self.scale or self.clip or self.indicator):
            raise UserValueError(
                f"buckets is {self.buckets!r}: expected no log, scale, clip or indicator with it."
            )

    @property
    def needs(self) -> frozenset[str]:
        """The fields of `FeatureStatistics` that it needs."""
        if self.is_category:
            return frozenset({"boundaries"} if isinstance(self.buckets, int) else ())
        found = {"mean"} if self.default is ... else set()
        found |= {"standard": {"mean", "std"}, "min_max": {"minimum", "maximum"}}.get(
            self.scale, set()
        )
        return frozenset(found)

    @property
    def is_category(self) -> bool:
        """Whether it has buckets."""
        return self.buckets is not None

    @property
    def raw(self) -> Column:
        """The column to read, where NaN is a missing number."""
        return Column("number", default=None if self.default is None else ...)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Discrete(Feature):
    """Words or ids. At most one of vocabulary, size, hash_buckets and shared_with is set."""

    vocabulary: Sequence[str | int] | str | None = None
    size: int | None = None
    hash_buckets: int | None = None
    shared_with: str | None = None
    min_count: int = 1
    max_size: int | None = None
    unknown: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        ways = [name for name in _WAYS if getattr(self, name) is not None]
        if len(ways) > 1:
            raise UserValueError(f"{' and '.join(ways)} are set: expected at most one of them.")
        for name in ("size", "hash_buckets", "max_size", "min_count"):
            if getattr(self, name) is not None:
                _check_positive(name, getattr(self, name))
        if self.size is not None and not self.holds_ids:
            raise UserValueError(f"size is {self.size!r}: expected None for words. Set kind='id'.")
        if self.vocabulary is not None:
            object.__setattr__(self, "vocabulary", _vocabulary(self.vocabulary, self.holds_ids))

    @property
    def holds_ids(self) -> bool:
        """Whether the items are ids instead of words."""
        return self.kind in ("id", "bag of ids")

    @property
    def needs(self) -> frozenset[str]:
        """The fields of `FeatureStatistics` that it needs."""
        is_counted = all(getattr(self, name) is None for name in _WAYS)
        return frozenset({"vocabulary"} if is_counted else ())


_WAYS = ("vocabulary", "size", "hash_buckets", "shared_with")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Category(_Discrete):
    """One word or id in each row of the data.

    Attributes:
      kind: 'word' or 'id'.
      column: see `Feature`.
      wide: see `Feature`.
      embedding: see `Feature`.
      vocabulary: words or ids in the order of their rows, or the path of a text file with one in
        each line, also .gz. Without vocabulary, size, hash_buckets and shared_with they are
        counted: the most frequent first, equally frequent ones in the order of their bytes.
      size: ids from 0 to below size are rows. Other ids are refused, or have the default.
      hash_buckets: number of rows that a hash chooses from.
      shared_with: feature whose rows and vectors it shares.
      min_count: least count of a word in the vocabulary that is counted.
      max_size: largest size of the vocabulary that is counted; None for any.
      unknown: rows for words outside of the vocabulary, chosen by a hash; 0 refuses them.
      default: word or id for a missing one, and with size for others; None refuses missing ones.
        By default they have a separate row, the last.
    """

    kind: str = "word"
    default: str | int | None = ...

    @property
    def raw(self) -> Column:
        """The column to read, where '' or `MISSING_ID` is missing."""
        if self.default is None:
            return Column(self.kind, default=None)
        return Column(self.kind, default=MISSING_ID if self.holds_ids else ...)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bag(_Discrete):
    """Any number of words or ids in each row of the data; missing ones are left out.

    Attributes:
      kind: 'bag of words' or 'bag of ids'.
      column: see `Feature`.
      wide: see `Feature`.
      embedding: see `Feature`; 'one_hot' counts each item.
      vocabulary: see `Category`.
      size: see `Category`.
      hash_buckets: see `Category`.
      shared_with: see `Category`.
      min_count: see `Category`.
      max_size: see `Category`.
      unknown: see `Category`.
      separator: character between items in text.
      combiner: how vectors of items are combined: 'mean', 'sum' or 'sqrtn'.
    """

    kind: str = "bag of words"
    separator: str = " "
    combiner: str = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_combiner(self.combiner)

    @property
    def raw(self) -> Column:
        """The column to read."""
        return Column(self.kind, separator=self.separator)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cross(Feature):
    """Combinations of categories, bags and numbers with buckets, whose row a hash chooses.

    Attributes:
      kind: 'cross'.
      column: None.
      wide: see `Feature`.
      embedding: see `Feature`.
      of: names of two or more features. Words and ids are crossed as they are.
      hash_buckets: number of rows.
      combiner: see `Bag`; used if one of the features is a bag.
    """

    kind: str = "cross"
    of: Sequence[str]
    hash_buckets: int
    combiner: str = "mean"
    embedding: int | str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_combiner(self.combiner)
        _check_positive("hash_buckets", self.hash_buckets)
        if isinstance(self.of, str) or len(self.of) < 2 or self.column is not None:
            raise UserValueError(
                f"of is {self.of!r}: expected two or more features, and no column."
            )
        object.__setattr__(self, "of", tuple(self.of))


_KINDS: dict[str, type[Feature]] = {
    "number": Number,
    "word": Category,
    "id": Category,
    "bag of words": Bag,
    "bag of ids": Bag,
    "cross": Cross,
}


@gin.configurable
@dataclasses.dataclass(frozen=True, eq=False)
class Schema:
    """The features of a table, for readers, networks and SavedModels.

        Schema({"distance": {"kind": "number", "scale": "standard"}, "carrier": "word"},
               other_columns={"late": "id"}, source=functools.partial(csv_input_fn, ...))

    Attributes:
      features: features by name: `Number`, `Category`, `Bag` or `Cross`, dict of arguments with
        its kind, or the kind.
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
            raise UserTypeError(
                f"Schema.features is {self.features!r}: expected a dict. Set "
                "Schema.features={'distance': 'number', 'carrier': 'word'}."
            )
        features = {name: _feature(name, value) for name, value in self.features.items()}
        object.__setattr__(self, "features", features)
        object.__setattr__(self, "other_columns", columns_of(self.other_columns))
        for name, feature in features.items():
            self._check_related(name, feature)
        indicators = {f"{k}_missing" for k, f in features.items() if getattr(f, "indicator", False)}
        for name in indicators:
            if name in features or name in self.other_columns:
                raise UserValueError(f"{name!r} is the name of an indicator as well. Rename it.")
        for name in self.other_columns:
            if name in features:
                raise UserValueError(
                    f"{name!r} is in other_columns and a feature: expected different names. Set "
                    f"{{'my_{name}': {{'column': {name!r}, ...}}}}."
                )
        _ = self.columns

    def _check_related(self, name: str, feature: Feature) -> None:
        parts = list(getattr(feature, "of", ()))
        owner = getattr(feature, "shared_with", None)
        for other in parts + ([owner] if owner else []):
            if other not in self.features or other == name:
                raise UserValueError(
                    f"feature {name!r} names {other!r}: expected another feature."
                    f"{did_you_mean(other, self.features)}"
                )
        for part in parts:
            if isinstance(self.features[part], Cross) or not self.features[part].is_category:
                raise UserValueError(
                    f"feature {name!r} crosses {part!r}: expected words, ids, bags or numbers "
                    "with buckets."
                )
        if owner:
            shared = self.features[owner]
            fits = isinstance(shared, _Discrete) and shared.holds_ids == feature.holds_ids
            if not fits or shared.shared_with:
                raise UserValueError(
                    f"feature {name!r} is shared_with {owner!r}: expected a feature of the same "
                    "items that shares with none."
                )

    @property
    def columns(self) -> dict[str, Column]:
        """The columns to read, by name."""
        found = dict(self.other_columns)
        for name, feature in self.features.items():
            if isinstance(feature, Cross):
                continue
            column = feature.column or name
            known = found.setdefault(column, feature.raw)
            if (known.kind, known.separator) != (feature.raw.kind, feature.raw.separator):
                raise UserValueError(
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
    if isinstance(value, Feature):
        return value
    arguments = {"kind": value} if isinstance(value, str) else value
    kind = arguments.get("kind") if isinstance(arguments, Mapping) else None
    if kind not in _KINDS:
        raise UserValueError(
            f"feature {name!r} is {value!r}: expected its kind, one of {[*_KINDS]}, or a dict "
            f"{{'kind': 'word', 'embedding': 16}}.{did_you_mean(kind, _KINDS)}"
        )
    known = [field.name for field in dataclasses.fields(_KINDS[kind])]
    for argument in arguments:
        if argument not in known:
            raise UserValueError(
                f"feature {name!r} has the argument {argument!r}: expected some of {known}."
                f"{did_you_mean(argument, known)}"
            )
    try:
        return _KINDS[kind](**arguments)
    except (TypeError, ValueError) as error:
        raise UserValueError(f"feature {name!r}: {error}") from error


def _vocabulary(value: Any, holds_ids: bool) -> tuple[str | int, ...]:
    if isinstance(value, str):
        with tf.io.gfile.GFile(value, "rb") as file:
            content = file.read()
        text = (gzip.decompress(content) if value.endswith(".gz") else content).decode()
        value = [int(line) for line in text.splitlines()] if holds_ids else text.splitlines()
    if not value or len({*value}) < len(value) or not all(str(item) for item in value):
        raise UserValueError(
            f"vocabulary has {len(value)} items, {len({*value})} different: expected different "
            "words or ids, none of them empty."
        )
    expected = int if holds_ids else str
    if any(not isinstance(item, expected) or isinstance(item, bool) for item in value):
        raise UserValueError(
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


def _check_positive(name: str, value: Any) -> None:
    is_int = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_int or not 0 < value < math.inf:
        raise UserValueError(f"{name} is {value!r}: expected a positive integer.")


def _check_combiner(combiner: str) -> None:
    if combiner not in ("mean", "sum", "sqrtn"):
        raise UserValueError(f"combiner is {combiner!r}: expected 'mean', 'sum' or 'sqrtn'.")
