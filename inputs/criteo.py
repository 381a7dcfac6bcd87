"""Writes files in the format of the Criteo display-advertising data, for tests.

    python -m inputs.criteo data/criteo/train.txt --rows=100000
    python -m inputs.criteo data/criteo/test.txt --rows=10000 --seed=1

A line is an impression: whether it was clicked, 13 numbers and 26 words, with tabs
between them and nothing where a value is missing. The real files have 45 million lines;
these are drawn, and a model can learn them.
"""

import argparse
import functools
import os
import pathlib

import numpy as np

NUMBERS = tuple(f"number_{n}" for n in range(1, 14))
WORDS = tuple(f"word_{n}" for n in range(1, 27))
NAMES = ("click", *NUMBERS, *WORDS)
# Different ids of the columns, in turn.
_SIZES = (20, 500, 10_000, 4, 2_000)
_ROWS_AT_ONCE = 10_000


def write_criteo_like(
    path: str | os.PathLike[str], num_rows: int, *, seed: int = 0
) -> None:
    """Writes a file of lines as Criteo's: `click`, 13 integers, 26 words of 8 digits.

    What an id or a number says about the click is the same for every seed, so that
    files of two seeds serve for training and evaluation. About a quarter are clicks.

    Args:
      path: the file; its folders are made.
      num_rows: number of lines.
      seed: the same seed and number of rows give the same file.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    with open(path, "w", encoding="ascii") as file:
        for first in range(0, num_rows, _ROWS_AT_ONCE):
            rows = min(_ROWS_AT_ONCE, num_rows - first)
            file.writelines("\t".join(row) + "\n" for row in _rows(rng, rows))


def _rows(rng: np.random.Generator, rows: int) -> zip:
    """Returns rows of texts."""
    score = np.full(rows, -1.5)
    numbers, words = [], []
    for column in range(len(NUMBERS)):
        # Of counts: most are small, few large. The second column has negatives.
        of_click = rng.normal(size=rows)
        value = np.floor(np.exp(1.5 + of_click + 0.3 * (column % 5))).astype(int)
        value -= 3 * (column == 1)
        score += 0.5 * (-1) ** column * of_click
        numbers.append(_with_gaps(value.astype(str), rng, 0.05 * (column % 4)))
    for column in range(len(WORDS)):
        ids, effects = _vocabulary(column)
        # Few ids are frequent.
        which = np.floor(len(ids) ** rng.random(rows)).astype(int) - 1
        score += effects[which]
        words.append(_with_gaps(ids[which], rng, 0.04 * (column % 3)))
    click = rng.random(rows) < 1 / (1 + np.exp(-score))
    return zip(click.astype(int).astype(str), *numbers, *words, strict=True)


@functools.cache
def _vocabulary(column: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of a column, and what each adds to the log-odds of a click."""
    rng = np.random.default_rng(column)
    size = _SIZES[column % len(_SIZES)]
    ids = np.char.mod("%08x", rng.integers(2**32, size=size))
    return ids, rng.normal(scale=0.3, size=size)


def _with_gaps(texts: np.ndarray, rng: np.random.Generator, share: float) -> np.ndarray:
    return np.where(rng.random(len(texts)) < share, "", texts)


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("path")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    write_criteo_like(given.path, given.rows, seed=given.seed)


if __name__ == "__main__":
    _main()
