# SPDX-License-Identifier: Apache-2.0
"""Writes random files in the format of Criteo's display advertising data.

    python -m inputs.criteo data/criteo/train.txt --rows=100000
    python -m inputs.criteo data/criteo/test.txt --rows=10000 --seed=1

A line is an impression: whether it was clicked, 13 integers and 26 words of 8 hexadecimal
digits, with tabs between them and nothing for a missing value. A model can learn the clicks.
"""

import argparse
import functools
import os
import pathlib

import numpy as np

_NUM_NUMBERS, _NUM_WORDS = 13, 26
_VOCABULARY_SIZES = (20, 500, 10_000, 4, 2_000)  # Of the columns of words, repeated.
_BLOCK = 10_000


def write_criteo_like(path: str | os.PathLike[str], num_rows: int, *, seed: int = 0) -> None:
    """Writes a file of random lines; about a quarter are clicks.

    The effect of each word and number is the same for all seeds, so that files of two seeds can
    be used to train and to evaluate.

    Args:
      path: path of the file; its folder is created.
      num_rows: number of lines.
      seed: seed of the lines.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    with path.open("w", encoding="ascii") as file:
        for first in range(0, num_rows, _BLOCK):
            columns = _columns(rng, min(_BLOCK, num_rows - first))
            file.writelines("\t".join(row) + "\n" for row in zip(*columns, strict=True))


def _columns(rng: np.random.Generator, num_rows: int) -> list[np.ndarray]:
    """Returns the text of each column."""
    log_odds = np.full(num_rows, -1.5)
    columns = []
    for index in range(_NUM_NUMBERS):
        effect = rng.normal(size=num_rows)
        log_odds += 0.5 * (-1) ** index * effect
        counts = np.floor(np.exp(1.5 + effect + 0.3 * (index % 5))).astype(int)
        counts -= 3 * (index == 1)  # Criteo's second column has negative numbers.
        columns.append(_with_gaps(counts.astype(str), rng, 0.05 * (index % 4)))
    for index in range(_NUM_WORDS):
        words, effects = _vocabulary(index)
        # A few words are frequent, most are rare.
        drawn = np.floor(len(words) ** rng.random(num_rows)).astype(int) - 1
        log_odds += effects[drawn]
        columns.append(_with_gaps(words[drawn], rng, 0.04 * (index % 3)))
    click = rng.random(num_rows) < 1 / (1 + np.exp(-log_odds))
    return [click.astype(int).astype(str), *columns]


@functools.cache
def _vocabulary(index: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the words of a column, and the effect of each on the log odds of a click."""
    rng = np.random.default_rng(index)
    size = _VOCABULARY_SIZES[index % len(_VOCABULARY_SIZES)]
    words = np.char.mod("%08x", rng.integers(2**32, size=size))
    return words, rng.normal(scale=0.3, size=size)


def _with_gaps(texts: np.ndarray, rng: np.random.Generator, share: float) -> np.ndarray:
    return np.where(rng.random(len(texts)) < share, "", texts)


def main() -> None:
    """Writes the file that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("path")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    write_criteo_like(options.path, options.rows, seed=options.seed)


if __name__ == "__main__":
    main()
