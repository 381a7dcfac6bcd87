"""Says which row of a table each word or id has."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from .features import MISSING_ID
from .lookups import (
    HashLookup,
    Lookup,
    Places,
    SizeLookup,
    SortedLookup,
    as_bytes,
    hashed,
)
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
        if self.vocabulary is None:
            return (self.known, self.is_hashed, self.holds_ids)
        return ("vocabulary", self.holds_ids)

    def places(self) -> Places:
        """Returns the rows of a vocabulary, in which what is missing is one more."""
        items = list(self.vocabulary)
        rows = list(range(self.known))
        if self.has_missing:
            items.append(MISSING_ID if self.holds_ids else "")
            rows.append(self.size - 1)
        if self.holds_ids:
            array = np.array(items, np.int64)
        else:
            array = np.array([*map(as_bytes, items)], object)
        first_unknown = self.known if self.unknown else -1
        return Places(array, np.array(rows, np.int32), first_unknown)


class RowEncoder:
    """Encodes the words and ids of all features as rows of their tables."""

    def __init__(self, layouts: Mapping[str, Layout]) -> None:
        """Makes the constants of the lookups.

        Args:
          layouts: the rows of each feature's table, by the feature's name.
        """
        self._layouts = dict(layouts)
        ways: dict[tuple[object, ...], list[str]] = {}
        for name, layout in layouts.items():
            ways.setdefault(layout.way, []).append(name)
        self._lookups = [
            (names, _lookup([layouts[name] for name in names]))
            for names in ways.values()
        ]

    def encode(self, items: Mapping[str, Any], refusals: Refusals) -> dict[str, Any]:
        """Returns the row of each item, int32, ragged of bags, -1 of what is refused.

        Args:
          items: strings or int64 `[batch]` by the feature's name, '' or `MISSING_ID` is
            missing; ragged `[batch, (items)]` of bags.
          refusals: gets what is refused.
        """
        found: dict[str, Any] = {}
        for names, lookup in self._lookups:
            parts = [_flat(items[name]) for name in names]
            for name, part, rows in zip(names, parts, lookup.find(parts), strict=True):
                rows = self._finished(name, part, rows, refusals)
                found[name] = _like(items[name], rows)
        return found

    def _finished(
        self, name: str, items: tf.Tensor, rows: tf.Tensor, refusals: Refusals
    ) -> tf.Tensor:
        """Returns rows with unknown items spread over theirs; refuses what has none."""
        layout = self._layouts[name]
        if layout.has_missing and layout.vocabulary is None:
            rows = tf.where(missing(items), layout.size - 1, rows)
        if layout.unknown > 1:
            spread = layout.known + hashed(items, layout.unknown)
            return tf.where(rows == layout.known, spread, rows)
        if not layout.unknown and not layout.is_hashed:
            refusals.add(name, rows < 0, items, _refusal(layout))
        return rows


def missing(items: tf.Tensor) -> tf.Tensor:
    """Returns which words or ids are missing.

    Args:
      items: strings or int64, of any shape.
    """
    if items.dtype == tf.string:
        # Faster than to compare with ''.
        return tf.strings.length(items) == 0
    return items == MISSING_ID


def _lookup(layouts: list[Layout]) -> Lookup:
    """Returns the lookup of tables that are looked up in one way."""
    first = layouts[0]
    if first.vocabulary is not None:
        return SortedLookup([each.places() for each in layouts])
    return HashLookup(first.known) if first.is_hashed else SizeLookup(first.known)


def _refusal(layout: Layout) -> str:
    if layout.vocabulary is None:
        return (
            f"and size={layout.known} allows 0 to {layout.known - 1}: write a greater "
            "size, or mend the data."
        )
    return (
        f"which is none of the {layout.known} that are known: write unknown=1 for a "
        "row of all others, or mend the data."
    )


def _flat(items: Any) -> tf.Tensor:
    return items.values if isinstance(items, tf.RaggedTensor) else items


def _like(items: Any, rows: tf.Tensor) -> Any:
    return items.with_values(rows) if isinstance(items, tf.RaggedTensor) else rows
