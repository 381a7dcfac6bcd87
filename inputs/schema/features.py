"""Declares features: what each reads of a table, and how it enters a model.

`kinds` makes them of a dict of arguments with its 'kind', or of the kind alone.
"""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from pipeline import RefusedValueError

from ..columns import Column
from .checks import (
    ascending,
    check_choice,
    check_flag,
    check_ids,
    check_int,
    check_number,
    check_words,
)
from .vocabulary_file import read_vocabulary

# Stands for an id that a row lacks: int64 has no NaN.
MISSING_ID = tf.int64.min
_SCALES = ("standard", "min_max")
_COMBINERS = ("mean", "sum", "sqrtn")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Feature:
    """What all kinds of features have.

    Attributes:
      kind: what the feature is.
      column: name of the column that it is made of; None: the feature's own name.
      wide: whether it enters the wide, linear part of a model.
      embedding: how a category enters the deep part: by vectors of so many numbers,
        'one_hot', or None, not at all. Left out, a rule of its number of rows says how
        many numbers; a cross does not enter.
    """

    kind: str
    column: str | None = None
    wide: bool = True
    embedding: int | str | None = ...

    def __post_init__(self) -> None:
        check_flag("wide", self.wide)
        if self.column is not None:
            check_words("column", [self.column])
        if self.embedding not in (..., None, "one_hot"):
            check_int("embedding", self.embedding, least=1, or_else="'one_hot'")

    @property
    def needs(self) -> frozenset[str]:
        """The fields of `FeatureStatistics` that the feature needs."""
        return frozenset()

    @property
    def raw_column(self) -> Column | None:
        """The column as a reader takes it; None of a cross."""
        return None

    @property
    def is_category(self) -> bool:
        """Whether its value is a row of a table, or several."""
        return True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Number(Feature):
    """A number: a default for missing ones, then log, scale and clip, or buckets.

    Attributes:
      kind: 'number'.
      column: see `Feature`.
      wide: see `Feature`.
      embedding: see `Feature`; for one in buckets only.
      default: number that stands for a missing one; None refuses rows without one. Left
        out, it is the mean over the training data, or with buckets a row of its own.
      log: whether sign(x) log(1 + |x|) is taken.
      scale: 'standard' subtracts the mean of the training data and divides by their
        standard deviation; 'min_max' maps them to 0 to 1; None changes nothing. Data
        that are all equal become 0.
      clip: `(low, high)`, the bounds of what has been scaled.
      indicator: whether a further number, NAME_missing, is 1 where the value is
        missing and else 0.
      buckets: boundaries, ascending, which make a category of the number: one below 6
        is 0 with [6, 9], one of 6 to below 9 is 1; or the number of buckets, which then
        hold about equally many of the training data.
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
        check_choice("kind", self.kind, ("number",))
        if self.default not in (..., None):
            check_number("default", self.default)
            object.__setattr__(self, "default", float(self.default))
        check_flag("log", self.log)
        check_flag("indicator", self.indicator)
        if self.scale is not None:
            check_choice("scale", self.scale, _SCALES)
        if self.clip is not None:
            object.__setattr__(self, "clip", ascending("clip", self.clip, count=2))
        if self.buckets is not None:
            self._check_buckets()
        elif self.embedding is not ...:
            raise RefusedValueError(
                f"embedding is {self.embedding!r}, of a number: a number enters as it "
                "is; leave embedding out, or write buckets=[...] for a category."
            )
        if self.indicator and self.default is None:
            raise RefusedValueError(
                "indicator is True, and default is None, which refuses missing "
                "values: leave one of them out."
            )

    def _check_buckets(self) -> None:
        for name in ("log", "scale", "clip", "indicator"):
            if getattr(self, name):
                raise RefusedValueError(
                    f"{name} is {getattr(self, name)!r}, and buckets={self.buckets!r}: "
                    f"a number in buckets is a category; leave {name} out."
                )
        if isinstance(self.buckets, (list, tuple)):
            found = ascending("buckets", self.buckets)
            object.__setattr__(self, "buckets", found)
        else:
            check_int("buckets", self.buckets, least=2, or_else="[0.5, 1.5]")

    @property
    def needs(self) -> frozenset[str]:
        """The fields of `FeatureStatistics` that the feature needs."""
        if self.is_category:
            return frozenset({"boundaries"} if isinstance(self.buckets, int) else ())
        found = {"mean"} if self.default is ... else set()
        if self.scale == "standard":
            found |= {"mean", "std"}
        if self.scale == "min_max":
            found |= {"minimum", "maximum"}
        return frozenset(found)

    @property
    def raw_column(self) -> Column:
        """The column as a reader takes it, in which NaN is a missing number."""
        return Column("number", default=None if self.default is None else ...)

    @property
    def is_category(self) -> bool:
        """Whether there are buckets."""
        return self.buckets is not None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Discrete(Feature):
    """What words and ids have, alone or in bags.

    Attributes:
      kind: what the feature is.
      column: see `Feature`.
      wide: see `Feature`.
      embedding: see `Feature`.
      vocabulary: the words or ids that have rows of their own, in this order; or the
        path of a text file with one a line, which may be compressed as .gz. Without
        it, and without `size` and `hash_buckets`, they are counted over the training
        data: the most frequent first, and of equally frequent ones by their order.
      size: ids are 0 to below `size` and are their own rows; others are refused.
      hash_buckets: number of rows over which words or ids are spread by a hash.
      min_count: how often the training data hold what is counted into the vocabulary.
      max_size: most words or ids that are counted into the vocabulary; None: all.
      unknown: rows for what the vocabulary lacks, spread over them by a hash. With 0 it
        is refused.
      shared_with: name of a feature whose vocabulary, rows and vectors this one has,
        too.
    """

    vocabulary: Sequence[str | int] | str | None = None
    size: int | None = None
    hash_buckets: int | None = None
    min_count: int = 1
    max_size: int | None = None
    unknown: int = 1
    shared_with: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        named = [
            name
            for name in ("vocabulary", "size", "hash_buckets", "shared_with")
            if getattr(self, name) is not None
        ]
        if len(named) > 1:
            raise RefusedValueError(
                f"{' and '.join(named)} are given: write one of them, which says what "
                "has which row."
            )
        check_int("min_count", self.min_count, least=1)
        check_int("unknown", self.unknown, least=0)
        for name in ("size", "hash_buckets", "max_size"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), least=1)
        if self.size is not None and not self.holds_ids:
            raise RefusedValueError(
                f"size is {self.size!r}, of words: write vocabulary=[...] or "
                f"hash_buckets={self.size!r}, or kind='id' for ids from 0."
            )
        if self.vocabulary is not None:
            object.__setattr__(self, "vocabulary", self._checked_vocabulary())
        self._check_unused(named)

    def _checked_vocabulary(self) -> tuple[str | int, ...]:
        if isinstance(self.vocabulary, str):
            return read_vocabulary(self.vocabulary, ids=self.holds_ids)
        check = check_ids if self.holds_ids else check_words
        return check("vocabulary", self.vocabulary)

    def _check_unused(self, named: Sequence[str]) -> None:
        """Raises for arguments that would mean nothing beside those of `named`."""
        idle = {"min_count": 1, "max_size": None} if named else {}
        if named and named[0] != "vocabulary":
            idle["unknown"] = 1
        for name, default in idle.items():
            if getattr(self, name) != default:
                raise RefusedValueError(
                    f"{name} is {getattr(self, name)!r}, which means nothing beside "
                    f"{named[0]}: leave it out."
                )

    @property
    def holds_ids(self) -> bool:
        """Whether its items are ids, and not words."""
        return self.kind in ("id", "bag of ids")

    @property
    def needs(self) -> frozenset[str]:
        """The fields of `FeatureStatistics` that the feature needs."""
        ways = (self.vocabulary, self.size, self.hash_buckets, self.shared_with)
        is_counted = all(way is None for way in ways)
        return frozenset({"vocabulary"} if is_counted else ())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Category(_Discrete):
    """One word or id a row.

    Attributes:
      kind: 'word' or 'id'.
      column: see `Feature`.
      wide: see `Feature`.
      embedding: see `Feature`.
      vocabulary: the words or ids that have rows of their own, in this order; or the
        path of a text file with one a line, which may be compressed as .gz. Without
        it, and without `size` and `hash_buckets`, they are counted over the training
        data: the most frequent first, and of equally frequent ones by their order.
      size: ids are 0 to below `size` and are their own rows; others are refused.
      hash_buckets: number of rows over which words or ids are spread by a hash.
      min_count: how often the training data hold what is counted into the vocabulary.
      max_size: most words or ids that are counted into the vocabulary; None: all.
      unknown: rows for what the vocabulary lacks, spread over them by a hash. With 0 it
        is refused.
      shared_with: name of a feature whose vocabulary, rows and vectors this one has,
        too.
      default: word or id that stands for a missing one; None refuses rows without one.
        Left out, what is missing has a row of its own, the last.
    """

    kind: str = "word"
    default: str | int | None = ...

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, ("word", "id"))
        super().__post_init__()
        if self.default not in (..., None):
            check = check_ids if self.holds_ids else check_words
            check("default", [self.default])
            self._check_default_known()

    def _check_default_known(self) -> None:
        """Raises where each missing value would be refused."""
        known = None if self.unknown else self.vocabulary
        if self.size is not None:
            known = range(self.size)
        if known is not None and self.default not in known:
            raise RefusedValueError(
                f"default is {self.default!r}, which is none of the {len(known)} that "
                "are known: write one of these, or leave default out for a row of its "
                "own."
            )

    @property
    def raw_column(self) -> Column:
        """The column as a reader takes it: '' or `MISSING_ID` is what is missing."""
        if self.default is None:
            return Column(self.kind, default=None)
        return Column(self.kind, default=MISSING_ID if self.holds_ids else ...)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bag(_Discrete):
    """Any number of words or ids a row; missing ones are none.

    Attributes:
      kind: 'bag of words' or 'bag of ids'.
      column: see `Feature`.
      wide: see `Feature`.
      embedding: see `Feature`; 'one_hot' counts each item.
      vocabulary: see `Category`.
      size: see `Category`.
      hash_buckets: see `Category`.
      min_count: see `Category`.
      max_size: see `Category`.
      unknown: see `Category`.
      shared_with: see `Category`.
      separator: the character between the items, in files that hold text.
      combiner: what becomes of the items' vectors: 'mean', 'sum', or 'sqrtn', the sum
        over the square root of their number.
    """

    kind: str = "bag of words"
    separator: str = " "
    combiner: str = "mean"

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, ("bag of words", "bag of ids"))
        super().__post_init__()
        check_choice("combiner", self.combiner, _COMBINERS)
        _ = self.raw_column

    @property
    def raw_column(self) -> Column:
        """The column as a reader takes it."""
        return Column(self.kind, separator=self.separator)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cross(Feature):
    """What several features say together, spread over rows by a hash.

    It crosses words and ids as they are, and numbers in buckets by their bucket. With a
    bag there is one item for each combination.

    Attributes:
      kind: 'cross'.
      column: None; a cross is made of features.
      wide: see `Feature`.
      embedding: see `Feature`.
      of: names of the features, two or more: words, ids, bags, numbers in buckets.
      hash_buckets: number of rows.
      combiner: see `Bag`; where one of the features is a bag.
    """

    kind: str = "cross"
    of: Sequence[str]
    hash_buckets: int
    combiner: str = "mean"
    embedding: int | str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("kind", self.kind, ("cross",))
        check_choice("combiner", self.combiner, _COMBINERS)
        check_int("hash_buckets", self.hash_buckets, least=1)
        if self.column is not None:
            raise RefusedValueError(
                f"column is {self.column!r}, of a cross: leave it out, and name "
                "features by of=[...]."
            )
        object.__setattr__(self, "of", check_words("of", self.of))
        if len(self.of) < 2:
            raise RefusedValueError(
                f"of is {list(self.of)!r}: write the names of two features or more."
            )
        if self.embedding is ...:
            object.__setattr__(self, "embedding", None)
