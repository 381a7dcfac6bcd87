"""Which examples of a batch do it alone."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from pipeline.feed.batch import rows_of
from pipeline.rescue.findings import MOST_RUNS, Guilty


def guilty(
    is_bad: Callable[[Sequence[int]], bool], num_rows: int, most_runs: int = MOST_RUNS
) -> Guilty:
    """Halves a bad batch, and its bad halves, until single examples are left.

    Args:
      is_bad: function of some examples' numbers, whether they are bad by themselves.
      num_rows: number of examples of the batch, which is bad as a whole.
      most_runs: most calls of `is_bad`.
    """
    alone: list[int] = []
    together: list[tuple[int, ...]] = []
    waiting, runs = [tuple(range(num_rows))], 0
    while waiting:
        group = waiting.pop()
        if len(group) == 1:
            alone.append(group[0])
            continue
        if runs + 2 > most_runs:
            return Guilty(num_rows, tuple(sorted(alone)), tuple(together), False)
        runs += 2
        middle = len(group) // 2
        bad = [half for half in (group[:middle], group[middle:]) if is_bad(half)]
        if not bad:
            together.append(group)
        waiting += reversed(bad)
    return Guilty(num_rows, tuple(sorted(alone)), tuple(together))


def repeated(element: Any, rows: Sequence[int], num_rows: int) -> Any:
    """Returns an element of the same shape that has some of its examples alone.

    They are repeated to fill it. So a step that was traced for the element takes it, a
    model_fn for one size of batches, too; and means over the batch, such as those of
    BatchNormalization, are means over these examples.

    Args:
      element: nest of tensors with a leading batch dimension.
      rows: numbers of the examples.
      num_rows: number of examples of the element.
    """
    numbers = [rows[i % len(rows)] for i in range(num_rows)]

    def taken(value: Any) -> Any:
        if isinstance(value, tf.SparseTensor):
            parts = [rows_of(value, number, number + 1) for number in numbers]
            return tf.sparse.concat(0, parts)
        return tf.gather(value, numbers)

    return tf.nest.map_structure(taken, element)
