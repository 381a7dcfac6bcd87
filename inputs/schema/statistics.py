"""What the training data say of a feature, counted once."""

import dataclasses


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
