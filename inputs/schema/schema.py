"""Declares all features of a table, and what else is read of it."""

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import gin

from pipeline import RefusedTypeError, RefusedValueError
from pipeline.process.refusals import near

from ..columns import Column, column_of
from . import agreed
from .checks import a_kind
from .encoding import Encoder
from .features import Bag, Cross, Feature, Number
from .fields import indicator_name
from .kinds import feature_of
from .statistics import FeatureStatistics

# Longer vocabularies stand in a declaration by their digest.
_MOST_WORDS = 100


@gin.configurable
@dataclasses.dataclass(frozen=True, eq=False)
class Schema:
    """What each feature is, how it enters a model, and which columns it is made of.

    Schemas of equal declarations are equal, wherever they were made.

    Attributes:
      features: features by name, in the order in which a model has them: a `Number`,
        `Category`, `Bag` or `Cross`, a dict of its arguments, or its kind.
      other_columns: columns that are read and handed through as they are, for labels,
        weights and groups: as `inputs.csv_input_fn` takes columns.
      source: input_fn that is called once for statistics of the training data, where
        a feature needs some: `inputs.csv_input_fn` with its files, say.
      statistics: path of another run's schema.json, whose statistics are taken; None:
        those of model_dir, or what is counted.
    """

    features: Mapping[str, Any]
    other_columns: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    source: Callable[..., Any] | None = None
    statistics: str | None = None

    def __post_init__(self) -> None:
        for name in ("features", "other_columns"):
            if not isinstance(getattr(self, name), Mapping):
                raise RefusedTypeError(
                    f"{name} is {getattr(self, name)!r}: write a dict of names and "
                    f"kinds, {name}={{'distance': 'number', 'carrier': 'word'}}."
                )
        if self.source is not None and not callable(self.source):
            raise RefusedTypeError(
                f"source is {self.source!r}: write an input_fn of the training data, "
                "Schema.source = @csv_input_fn."
            )
        if not isinstance(self.statistics, (str, os.PathLike, type(None))):
            raise RefusedTypeError(
                f"statistics is {self.statistics!r}: write the path of a schema.json, "
                "Schema.statistics = 'runs/1/schema.json'."
            )
        features = {k: feature_of(k, value) for k, value in self.features.items()}
        others = {k: column_of(k, value) for k, value in self.other_columns.items()}
        object.__setattr__(self, "features", features)
        object.__setattr__(self, "other_columns", others)
        if not features:
            raise RefusedValueError(
                "features is empty: write what to learn from, features={'distance': "
                "'number'}; a reader of labels alone takes a dict of columns."
            )
        _check_names(features, others)
        for name, feature in features.items():
            _check_relations(name, feature, features)
        _ = self.columns

    @property
    def columns(self) -> dict[str, Column]:
        """The columns that a reader reads, by name."""
        found: dict[str, tuple[str, Column]] = {
            name: (f"other_columns[{name!r}]", column)
            for name, column in self.other_columns.items()
        }
        for name, feature in self.features.items():
            if feature.raw_column is not None:
                column, reader = column_name(name, feature), f"feature {name!r}"
                before = found.get(column)
                merged = feature.raw_column
                if before:
                    merged = _merged(column, before, (reader, merged))
                found[column] = (before[0] if before else reader, merged)
        return {name: column for name, (_, column) in found.items()}

    @property
    def needs(self) -> dict[str, frozenset[str]]:
        """The fields of `FeatureStatistics` to count, of the features that need any."""
        found = {name: feature.needs for name, feature in self.features.items()}
        return {name: needs for name, needs in found.items() if needs}

    def declaration(self) -> dict[str, Any]:
        """Returns what is declared, as JSON has it; long vocabularies by their digest.

        `source` and `statistics` are no part of it.
        """
        others = {k: _as_json(column) for k, column in self.other_columns.items()}
        features = {k: _as_json(feature) for k, feature in self.features.items()}
        return {"features": features, "other_columns": others}

    def prepared(self, config: Any = None) -> Encoder:
        """Returns the encoder of this schema, with the statistics that it needs.

        Args:
          config: the run's `RunConfig`; None keeps statistics in this process.

        Raises:
          ValueError, RuntimeError: they can neither be read nor counted, see
            `agreed.record_of`.
        """
        found = agreed.record_of(self, config)
        # Variables are in the order of the features by which the run began.
        in_order = {name: self.features[name] for name in found.features}
        schema = dataclasses.replace(self, features=in_order)
        return _encoder(schema, tuple(found.statistics.items()))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schema):
            return NotImplemented
        return self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @functools.cached_property
    def _key(self) -> tuple[str, str | None]:
        return json.dumps(self.declaration()), self.statistics


# Readers and networks ask for the same one, whose vocabulary may be large.
@functools.lru_cache(maxsize=8)
def _encoder(
    schema: Schema, statistics: tuple[tuple[str, FeatureStatistics], ...]
) -> Encoder:
    return Encoder(schema, dict(statistics))


def column_name(name: str, feature: Feature) -> str:
    """Returns the name of the column that a feature is made of.

    Args:
      name: the feature's name.
      feature: the feature.
    """
    return name if feature.column is None else feature.column


def _check_names(features: Mapping[str, Feature], others: Mapping[str, Column]) -> None:
    """Raises for names that would stand for two tensors of a batch."""
    for name in (*features, *others):
        if not isinstance(name, str) or not name:
            raise RefusedValueError(f"a name is {name!r}: write a word, 'distance'.")
    owners = {name: "a feature" for name in features}
    indicators = {
        indicator_name(name): f"the indicator of feature {name!r}"
        for name, feature in features.items()
        if isinstance(feature, Number) and feature.indicator
    }
    columns = dict.fromkeys(others, "one of other_columns")
    for name, owner in (*indicators.items(), *columns.items()):
        if name in owners:
            raise RefusedValueError(
                f"{name!r} is the name of {owners[name]} and of {owner}: give the "
                f"feature another one, features={{'my_{name}': {{..., 'column': "
                f"{name!r}}}}}."
            )
        owners[name] = owner


def _check_relations(
    name: str, feature: Feature, features: Mapping[str, Feature]
) -> None:
    """Raises if a feature names others that it cannot be made with."""
    if isinstance(feature, Cross):
        for part in feature.of:
            _check_known(name, "of", part, features)
            other = features[part]
            if not other.is_category or isinstance(other, Cross):
                raise RefusedValueError(
                    f"Feature {name!r}: of has {part!r}, {a_kind(other.kind)}: write "
                    "words, ids, bags, or numbers with buckets=[...]"
                    f"{_parts_line(other)}."
                )
        if feature.combiner != "mean" and not any(
            isinstance(features[part], Bag) for part in feature.of
        ):
            raise RefusedValueError(
                f"Feature {name!r}: combiner is {feature.combiner!r}, and of names no "
                "bag: an example has one item of it; leave combiner out."
            )
    target = getattr(feature, "shared_with", None)
    if target is None:
        return
    _check_known(name, "shared_with", target, features)
    other = features[target]
    holds_ids = getattr(other, "holds_ids", None)
    if holds_ids is not feature.holds_ids or other.shared_with is not None:
        raise RefusedValueError(
            f"Feature {name!r}: shared_with is {target!r}, {a_kind(other.kind)}"
            f"{' that shares itself' if getattr(other, 'shared_with', None) else ''}: "
            f"write the name of a feature of {'ids' if feature.holds_ids else 'words'} "
            "that has a vocabulary of its own."
        )
    if feature.embedding not in (..., other.embedding):
        raise RefusedValueError(
            f"Feature {name!r}: embedding is {feature.embedding!r}, and that of "
            f"{target!r}, whose vectors it shares, is {other.embedding!r}: leave it "
            "out."
        )


def _parts_line(part: Feature) -> str:
    """Returns what to write for a cross of a cross."""
    return f", of=[..., {str(list(part.of))[1:-1]}]" if isinstance(part, Cross) else ""


def _check_known(
    name: str, argument: str, other: str, features: Mapping[str, Feature]
) -> None:
    if other == name or other not in features:
        rest = sorted(set(features) - {name})
        raise RefusedValueError(
            f"Feature {name!r}: {argument} is {other!r}, which is no other feature: "
            f"write one of {rest}.{near(other, rest)}"
        )


def _merged(name: str, before: tuple[str, Column], after: tuple[str, Column]) -> Column:
    """Returns one column for two readers of it; what either refuses is refused."""
    (_, first), (_, second) = before, after
    alike = (first.kind, first.separator) == (second.kind, second.separator)
    if alike and None in (first.default, second.default):
        return dataclasses.replace(first, default=None)
    if first != second:
        raise RefusedValueError(
            f"Column {name!r} is {first} of {before[0]} and {second} of {after[0]}: "
            "a column is read once; declare both alike, or leave one out."
        )
    return first


def _as_json(value: Feature | Column) -> dict[str, Any]:
    """Returns the arguments of a declaration that differ from what is left out."""
    found = {}
    for field in dataclasses.fields(value):
        one = getattr(value, field.name)
        if field.name == "vocabulary" and one is not None and len(one) > _MOST_WORDS:
            text = json.dumps(one).encode()
            one = {"words": len(one), "sha256": hashlib.sha256(text).hexdigest()}
        if field.name == "kind" or one != field.default:
            found[field.name] = list(one) if isinstance(one, tuple) else one
    return found
