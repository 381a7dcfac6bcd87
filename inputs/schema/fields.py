"""What a model sees of a schema: its fields, and the rows of their tables."""

import dataclasses
from collections.abc import Iterable, Mapping

from .features import Bag, Cross, Feature, Number
from .rows import Rows, Vocabulary
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


def rows_of(
    features: Mapping[str, Feature], statistics: Mapping[str, FeatureStatistics]
) -> dict[str, Rows]:
    """Returns the rows of each category, bag, cross and number in buckets.

    Args:
      features: features by name.
      statistics: what was counted of those that need it.
    """
    found: dict[str, Rows] = {}
    for name, feature in features.items():
        if not feature.is_category:
            continue
        table = table_name(name, feature)
        if table not in found:
            sharing = [
                other
                for key, other in features.items()
                if other.is_category and table_name(key, other) == table
            ]
            found[table] = _rows(features[table], sharing, statistics.get(table))
        found[name] = found[table]
    return found


def _rows(
    feature: Feature,
    sharing: Iterable[Feature],
    statistics: FeatureStatistics | None,
) -> Rows:
    """Returns the rows of a table, of which any sharing feature may need a last one."""
    has_missing = any(may_be_missing(other) for other in sharing)
    if isinstance(feature, Cross):
        return Rows(None, feature.hash_buckets, True, 0, False)
    if isinstance(feature, Number):
        buckets = len(boundaries_of(feature, statistics)) + 1
        return Rows(None, buckets, False, 0, has_missing)
    if feature.size is not None:
        return Rows(None, feature.size, False, 0, has_missing)
    if feature.hash_buckets is not None:
        return Rows(None, feature.hash_buckets, True, 0, has_missing)
    words = feature.vocabulary or statistics.vocabulary
    return Rows(Vocabulary(words), len(words), False, feature.unknown, has_missing)


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
    features: Mapping[str, Feature], rows: Mapping[str, Rows]
) -> tuple[Field, ...]:
    """Returns what a model sees, in the order of the declaration.

    Args:
      features: features by name.
      rows: the rows of those that have some.
    """
    found = []
    for name, feature in features.items():
        if name in rows:
            found.append(_field_of_rows(name, feature, features, rows))
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
    rows: Mapping[str, Rows],
) -> Field:
    table = table_name(name, feature)
    size = rows[name].size
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
