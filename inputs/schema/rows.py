"""Says which row of a table each word or id has.

Tables that are looked up in the same way are so at once: on the host an operation costs
more than what it computes for a batch.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from .features import MISSING_ID
from .lookups import HashLookup, IdLookup, Lookup, SizeLookup, WordLookup, hashed
from .refusals import Refusals


@dataclasses.dataclass(frozen=True)
class Layout:
    """The rows of one table: the known ones, then the unknown ones, then missing.

    Attributes:
      table: name of the table.
      known: number of rows before the unknown ones.
      holds_ids: whether ids have these rows, and not words.
      vocabulary: what has a row of its own; None where a hash says it, or ids are
        rows.
      is_hashed: whether a hash spreads words or ids over the known rows.
      unknown: rows for what is not known; 0 refuses it.
      has_missing: whether the last row is that of missing values.
    """

    table: str
    known: int
    holds_ids: bool = False
    vocabulary: tuple[str | int, ...] | None = None
    is_hashed: bool = False
    unknown: int = 0
    has_missing: bool = False

    @property
    def size(self) -> int:
        """All rows."""
        return self.known + self.unknown + self.has_missing

    @property
    def way(self) -> tuple[object, ...]:
        """What tables have in common that are looked up at once."""
        if self.is_hashed:
            return ("hashed", self.known, self.holds_ids)
        return ("ids", self.table) if self.holds_ids else ("words",)


class RowEncoder:
    """Encodes the words and ids of all features as rows of their tables."""

    def __init__(self, layouts: Mapping[str, Layout]) -> None:
        """Makes the constants of the lookups.

        Args:
          layouts: the rows of each feature's table, by the feature's name.
        """
        ways: dict[tuple[object, ...], dict[str, Layout]] = {}
        for name, layout in layouts.items():
            ways.setdefault(layout.way, {})[name] = layout
        self._groups = [_Group(group) for group in ways.values()]

    def encode(self, items: Mapping[str, Any], refusals: Refusals) -> dict[str, Any]:
        """Returns the row of each item, int32, ragged of bags, -1 of what is refused.

        Args:
          items: strings or int64 `[batch]` by the feature's name, '' or `MISSING_ID` is
            missing; ragged `[batch, (items)]` of bags.
          refusals: gets what is refused.
        """
        found: dict[str, Any] = {}
        for group in self._groups:
            found |= group.encode(items, refusals)
        return found


def missing(items: tf.Tensor) -> tf.Tensor:
    """Returns which words or ids are missing.

    Args:
      items: strings or int64, of any shape.
    """
    return tf.equal(items, "" if items.dtype == tf.string else MISSING_ID)


class _Group:
    """Features that are looked up at once."""

    def __init__(self, layouts: Mapping[str, Layout]) -> None:
        self._layouts = layouts
        self._tables = [layout.table for layout in layouts.values()]
        self._lookup = _lookup({each.table: each for each in layouts.values()})

    def encode(self, items: Mapping[str, Any], refusals: Refusals) -> dict[str, Any]:
        """Returns the rows of this group's features, see `RowEncoder.encode`."""
        parts = [_flat(items[name]) for name in self._layouts]
        sizes = [_size(part) for part in parts]
        flat = tf.concat(parts, 0)
        rows = tf.split(self._rows(flat, _OfEach(sizes, flat)), sizes)
        found = {}
        for name, part, own in zip(self._layouts, parts, rows, strict=True):
            own.set_shape(part.shape)
            rows_of_name = self._finished(name, part, own, refusals)
            found[name] = _like(items[name], rows_of_name)
        return found

    def _rows(self, items: tf.Tensor, of_each: "_OfEach") -> tf.Tensor:
        """Returns each item's own row, or the first of the unknown, or that of missing.

        -1 is what has none.
        """
        layouts = self._layouts.values()
        numbers = {table: i for i, table in enumerate(dict.fromkeys(self._tables))}
        tables = of_each([numbers[table] for table in self._tables])
        rows, is_known = self._lookup.find(items, tables)
        if is_known is not None:
            unknown = [each.known if each.unknown else -1 for each in layouts]
            rows = tf.where(is_known, rows, of_each(unknown))
        if any(each.has_missing for each in layouts):
            last = [each.size - 1 if each.has_missing else -1 for each in layouts]
            rows = tf.where(missing(items), of_each(last), rows)
        return rows

    def _finished(
        self, name: str, items: tf.Tensor, rows: tf.Tensor, refusals: Refusals
    ) -> tf.Tensor:
        """Returns rows with unknown items spread over theirs; refuses what has none."""
        layout = self._layouts[name]
        if layout.unknown > 1:
            spread = layout.known + hashed(items, layout.unknown)
            return tf.where(rows == layout.known, spread, rows)
        if not layout.unknown and not layout.is_hashed:
            what = (
                f"which is none of the {layout.known} that are known: write unknown=1 "
                "for a row of all others, or mend the data."
            )
            if layout.vocabulary is None:
                what = (
                    f"and size={layout.known} allows 0 to {layout.known - 1}: write a "
                    "greater size, or mend the data."
                )
            refusals.add(name, rows < 0, items, what)
        return rows


class _OfEach:
    """Gives each item a number of its feature's, where the features are in a row."""

    def __init__(self, sizes: Sequence[int | tf.Tensor], items: tf.Tensor) -> None:
        self._which = None
        if len(sizes) > 1:
            ends = tf.cumsum(tf.stack(sizes))
            places = tf.range(tf.size(items))
            self._which = tf.searchsorted(ends, places, side="right")

    def __call__(self, numbers: Sequence[int]) -> tf.Tensor:
        """Returns the number of each item's feature, int32 `[n]`, or one for all."""
        if len(set(numbers)) == 1:
            return tf.constant(numbers[0])
        return tf.gather(tf.constant(numbers), self._which)


def _flat(items: Any) -> tf.Tensor:
    return items.values if isinstance(items, tf.RaggedTensor) else items


def _like(items: Any, rows: tf.Tensor) -> Any:
    return items.with_values(rows) if isinstance(items, tf.RaggedTensor) else rows


def _size(items: tf.Tensor) -> int | tf.Tensor:
    return tf.size(items) if items.shape[0] is None else items.shape[0]


def _lookup(layouts: Mapping[str, Layout]) -> Lookup:
    """Returns the lookup of tables, by their names, in one way."""
    (first, *_) = layouts.values()
    if first.is_hashed:
        return HashLookup(first.known)
    if not first.holds_ids:
        return WordLookup({name: each.vocabulary for name, each in layouts.items()})
    if first.vocabulary is None:
        return SizeLookup(first.known)
    return IdLookup(first.vocabulary)
