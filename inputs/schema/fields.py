"""What a model sees of a schema: its fields, and the rows of their tables."""

import dataclasses
from collections.abc import Mapping

from pipeline import RefusedValueError

from .features import Bag, Cross, Feature, Number
from .rows import Layout
from .statistics import FeatureStatistics

_MOST_DIMENSIONS = 50


@dataclasses.dataclass(frozen=True)
class Field:
    """One tensor of an encoded batch, and how it enters a model.

    Attributes:
      name: its name among the encoded features.
      kind: 'number', float32 `[batch]`; 'category', int32 `[batch]`, the rows of a
        table; or 'bag', a ragged int32 `[batch, (items)]` of them.
      size: rows of the table; 1 of a number.
      wide: whether it enters the wide part.
      embedding: how it enters the deep part: numbers of a vector, 'one_hot', or None,
        not at all. None of a number, which enters as it is.
      combiner: 'mean', 'sum' or 'sqrtn' of a bag's vectors; else None.
      table: name of the table, which features that share one have in common.
    """

    name: str
    kind: str
    size: int
    wide: bool
    embedding: int | str | None
    combiner: str | None
    table: str


def layouts_of(
    features: Mapping[str, Feature], statistics: Mapping[str, FeatureStatistics]
) -> dict[str, Layout]:
    """Returns the rows of each category, bag and cross, and of numbers in buckets.

    Args:
      features: features by name.
      statistics: what was counted of those that need it.
    """
    categories = {name: each for name, each in features.items() if each.is_category}
    # A table needs a row for missing values if any feature that shares it does.
    has_missing = {
        table_name(name, feature)
        for name, feature in categories.items()
        if may_be_missing(feature)
    }
    tables = {
        name: dataclasses.replace(
            _known_rows(name, feature, statistics.get(name)),
            has_missing=name in has_missing,
        )
        for name, feature in categories.items()
        if table_name(name, feature) == name
    }
    return {name: tables[table_name(name, each)] for name, each in categories.items()}


def _known_rows(
    name: str, feature: Feature, statistics: FeatureStatistics | None
) -> Layout:
    """Returns the rows of a feature's own table, but that of missing values."""
    if isinstance(feature, Number):
        return Layout(name, len(boundaries_of(feature, statistics)) + 1)
    if feature.hash_buckets is not None:
        holds_ids = getattr(feature, "holds_ids", False)
        return Layout(name, feature.hash_buckets, holds_ids, is_hashed=True)
    if feature.size is not None:
        return Layout(name, feature.size, holds_ids=True)
    known = feature.vocabulary or statistics.vocabulary
    if not known:
        raise RefusedValueError(
            f"Feature {name!r} has no vocabulary: nothing was counted min_count="
            f"{feature.min_count} times; write a lower min_count, or hash_buckets."
        )
    return Layout(
        name, len(known), feature.holds_ids, tuple(known), unknown=feature.unknown
    )


def may_be_missing(feature: Feature) -> bool:
    """Returns whether a missing value has a row of its own.

    Args:
      feature: a feature of rows.
    """
    return not isinstance(feature, (Bag, Cross)) and feature.default is ...


def boundaries_of(
    feature: Number, statistics: FeatureStatistics | None
) -> tuple[float, ...]:
    """Returns the boundaries of a number's buckets.

    Args:
      feature: a number in buckets.
      statistics: what was counted of it.
    """
    if isinstance(feature.buckets, tuple):
        return feature.buckets
    return statistics.boundaries


def table_name(name: str, feature: Feature) -> str:
    """Returns the name of a feature's table.

    Args:
      name: the feature's name.
      feature: the feature.
    """
    return getattr(feature, "shared_with", None) or name


def fields_of(
    features: Mapping[str, Feature], layouts: Mapping[str, Layout]
) -> tuple[Field, ...]:
    """Returns what a model sees, in the order of the declaration.

    Args:
      features: features by name.
      layouts: the rows of those that have some.
    """
    found = []
    for name, feature in features.items():
        if name in layouts:
            found.append(_field_of_rows(name, feature, features, layouts))
            continue
        names = [name, indicator_name(name)] if feature.indicator else [name]
        for one in names:
            found.append(Field(one, "number", 1, feature.wide, None, None, one))
    return tuple(found)


def indicator_name(name: str) -> str:
    """Returns the name of the number that says whether another is missing.

    Args:
      name: name of the other.
    """
    return f"{name}_missing"


def is_bag(feature: Feature, features: Mapping[str, Feature]) -> bool:
    """Returns whether a feature has any number of items a row.

    Args:
      feature: the feature.
      features: all features, by name.
    """
    parts = feature.of if isinstance(feature, Cross) else ()
    return isinstance(feature, Bag) or any(
        isinstance(features[part], Bag) for part in parts
    )


def _field_of_rows(
    name: str,
    feature: Feature,
    features: Mapping[str, Feature],
    layouts: Mapping[str, Layout],
) -> Field:
    table = table_name(name, feature)
    size = layouts[name].size
    # A shared table's vectors are as its owner says.
    embedding = features[table].embedding
    if embedding is ...:
        embedding = max(1, min(_MOST_DIMENSIONS, round(1.6 * size**0.56)))
    bag = is_bag(feature, features)
    return Field(
        name=name,
        kind="bag" if bag else "category",
        size=size,
        wide=feature.wide,
        embedding=embedding,
        combiner=feature.combiner if bag else None,
        table=table,
    )
