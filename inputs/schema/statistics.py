"""What the training data say of a feature, counted batch by batch in bounded memory."""

import collections
import dataclasses
import zlib
from typing import Any

import numpy as np

from pipeline import RefusedValueError

from .features import MISSING_ID, Feature, Number

# Up to so many numbers quantiles are exact; of more, this many are drawn.
_MOST_VALUES = 1_000_000


@dataclasses.dataclass(frozen=True)
class FeatureStatistics:
    """Statistics of one feature; None is what was not counted.

    Numbers are counted after the feature's `log`, and missing values are left out.

    Attributes:
      mean: mean of a number.
      std: its standard deviation, over all rows (not one fewer).
      minimum: the least number.
      maximum: the greatest.
      boundaries: of quantiles, ascending.
      vocabulary: words or ids in the order of their rows. A word that is not UTF-8 is
        as Python's 'surrogateescape' has it.
    """

    mean: float | None = None
    std: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    boundaries: tuple[float, ...] | None = None
    vocabulary: tuple[str | int, ...] | None = None


class NumberCount:
    """Adds up the values of a number.

    Mean and deviation are merged batch by batch in float64 (Chan, Golub and LeVeque
    1979), so that large means cost no digits. Quantiles go by all values, or by a
    sample of them in which each is equally likely (Vitter's algorithm R), with a seed
    made of the feature's name.

    Attributes:
      num_seen: values so far that were not missing.
    """

    def __init__(self, name: str, feature: Number) -> None:
        """Begins with no value.

        Args:
          name: the feature's name.
          feature: its declaration.
        """
        self._name = name
        self._feature = feature
        self.num_seen = 0
        self._mean = self._squares = 0.0
        self._minimum, self._maximum = np.inf, -np.inf
        self._keeps = "boundaries" in feature.needs
        self._kept: list[np.ndarray] = []
        self._sample: np.ndarray | None = None
        self._random = np.random.default_rng(zlib.crc32(name.encode()))

    def add(self, values: np.ndarray) -> None:
        """Counts the values of a batch.

        Args:
          values: float32 `[batch]`; NaN is missing.

        Raises:
          ValueError: a value is infinite.
        """
        values = values[~np.isnan(values)].astype(np.float64)
        if not values.size:
            return
        if np.isinf(values).any():
            raise RefusedValueError(
                f"Feature {self._name!r} is infinite in a row of the training data, "
                "which have no mean then: take the row out, or write a number."
            )
        if self._feature.log:
            values = np.sign(values) * np.log1p(np.abs(values))
        if self._keeps:
            self._keep(values)
        self._merge(values)

    @property
    def num_distinct(self) -> int:
        """The number of different words that are held; none, of a number."""
        return 0

    def found(self) -> FeatureStatistics:
        """Returns the statistics of all values so far, of which there is one or more"""
        if self._minimum == self._maximum:
            # What rounding left of equal logarithms would be divided by.
            self._mean, self._squares = float(self._minimum), 0.0
        return FeatureStatistics(
            mean=self._mean,
            std=float(np.sqrt(self._squares / self.num_seen)),
            minimum=float(self._minimum),
            maximum=float(self._maximum),
            boundaries=self._boundaries() if self._keeps else None,
        )

    def _merge(self, values: np.ndarray) -> None:
        mean, before = float(values.mean()), self.num_seen
        self.num_seen += values.size
        apart = mean - self._mean
        self._squares += float(np.square(values - mean).sum())
        self._squares += apart**2 * before * values.size / self.num_seen
        self._mean += apart * values.size / self.num_seen
        self._minimum = min(self._minimum, values.min())
        self._maximum = max(self._maximum, values.max())

    def _keep(self, values: np.ndarray) -> None:
        """Keeps values for quantiles, called before they are merged."""
        space = max(_MOST_VALUES - self.num_seen, 0)
        if space:
            self._kept.append(values[:space].astype(np.float32))
        rest = values[space:]
        if not rest.size:
            return
        if self._sample is None:
            self._sample = np.concatenate(self._kept)
            self._kept = []
        first = self.num_seen + values.size - rest.size
        places = self._random.integers(0, first + 1 + np.arange(rest.size))
        drawn = places < _MOST_VALUES
        self._sample[places[drawn]] = rest[drawn]

    def _boundaries(self) -> tuple[float, ...]:
        """Returns the boundaries between buckets, as float32 has them, each once."""
        values = self._sample
        if values is None:
            values = np.concatenate(self._kept)
        parts = np.arange(1, self._feature.buckets) / self._feature.buckets
        quantiles = np.quantile(values.astype(np.float64), parts)
        # One at the least value would leave the first bucket without any.
        quantiles = np.unique(quantiles.astype(np.float32))
        return tuple(map(float, quantiles[quantiles > values.min()]))


class ItemCount:
    """Counts words or ids, alone or in bags.

    Attributes:
      num_seen: items so far that were not missing.
    """

    def __init__(self, name: str, feature: Feature) -> None:
        """Begins with no item.

        Args:
          name: the feature's name.
          feature: its declaration.
        """
        del name  # Every item is fine.
        self._feature = feature
        default = getattr(feature, "default", None)
        self._default = default.encode() if isinstance(default, str) else default
        self.num_seen = 0
        self._counts: collections.Counter[bytes | int] = collections.Counter()

    def add(self, values: np.ndarray) -> None:
        """Counts the items of a batch.

        Args:
          values: bytes or int64 `[items]`; b'' and `MISSING_ID` are missing, and count
            as the feature's default, if it has one.
        """
        if self._feature.holds_ids:
            ids, counts = np.unique(values, return_counts=True)
            found = dict(zip(ids.tolist(), counts.tolist(), strict=True))
            missing = found.pop(MISSING_ID, 0)
        else:
            found = collections.Counter(values.tolist())
            missing = found.pop(b"", 0)
        self._counts.update(found)
        self.num_seen += sum(found.values())
        if missing and self._default not in (..., None):
            self._counts[self._default] += missing

    @property
    def num_distinct(self) -> int:
        """The number of different words or ids that are held."""
        return len(self._counts)

    def found(self) -> FeatureStatistics:
        """Returns the vocabulary of all items so far."""
        feature, counts = self._feature, self._counts
        items = [i for i, count in counts.items() if count >= feature.min_count]
        items.sort(key=lambda item: (-counts[item], item))
        return FeatureStatistics(
            vocabulary=tuple(map(_as_text, items[: feature.max_size]))
        )


class Sight:
    """Notes whether a column that needs no statistics holds any value.

    Attributes:
      num_seen: values so far that were not missing.
    """

    def __init__(self) -> None:
        self.num_seen = 0

    def add(self, values: np.ndarray) -> None:
        """Counts the values of a batch that are not missing."""
        if not self.num_seen:
            self.num_seen = int((~are_missing(values)).sum())


def count_of(name: str, feature: Feature) -> NumberCount | ItemCount:
    """Returns the count of a feature that needs statistics.

    Args:
      name: the feature's name.
      feature: its declaration.
    """
    kind = NumberCount if isinstance(feature, Number) else ItemCount
    return kind(name, feature)


def are_missing(values: np.ndarray) -> np.ndarray:
    """Returns which values of a column stand for missing ones.

    Args:
      values: float32, int64 or bytes.
    """
    if values.dtype.kind == "f":
        return np.isnan(values)
    return values == (MISSING_ID if values.dtype.kind == "i" else b"")


def _as_text(item: Any) -> str | int:
    if isinstance(item, bytes):
        return item.decode("utf-8", "surrogateescape")
    return item
