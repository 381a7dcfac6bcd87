"""Bits per byte of counts of three bytes, which gin/stdlib_lm.gin is measured against.

    python -m benchmarks.order_2_model [--json]

A byte's probability after two others is counted on the training files, and mixed with
that after one, and that after none (Jelinek and Mercer 1980; weights as Dirichlet
priors, MacKay and Peto 1995). The priors are the best of a few for the held-out files,
which favours this model.
"""

import argparse
import itertools
import json
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np

import inputs

PRIORS = (0.3, 1.0, 3.0, 10.0, 30.0)


def counts_of(files: Iterable[str]) -> np.ndarray:
    """Returns how often each byte follows each pair of bytes, int64 `[65536, 256]`.

    Args:
      files: paths; two line ends stand before each.
    """
    counts = np.zeros(2**24, np.int64)
    for path in files:
        counts += np.bincount(_triples(path), minlength=2**24)
    return counts.reshape(2**16, 2**8)


def bits_per_byte(
    counts: np.ndarray, held_out: np.ndarray, priors: Sequence[float]
) -> float:
    """Returns the mean of -log2 of the held-out bytes' probabilities.

    Args:
      counts: `counts_of` the training files.
      held_out: `counts_of` the others.
      priors: weights of what is mixed in: of the probability by no byte, by one, and by
        an even one.
    """
    by_two, by_one, even = priors
    pairs = counts.reshape(2**8, 2**8, 2**8).sum(0)
    single = pairs.sum(0)
    none = (single + even / 256) / (single.sum() + even)
    one = (pairs + by_one * none) / (pairs.sum(1, keepdims=True) + by_one)
    rows, following = np.nonzero(held_out)
    times = held_out[rows, following]
    mixed = counts[rows, following] + by_two * one[rows % 2**8, following]
    probabilities = mixed / (counts.sum(1)[rows] + by_two)
    return float(-(times * np.log2(probabilities)).sum() / times.sum())


def _triples(path: str) -> np.ndarray:
    text = np.frombuffer(b"\n\n" + pathlib.Path(path).read_bytes(), np.uint8)
    text = text.astype(np.int64)
    return (text[:-2] << 16) + (text[1:-1] << 8) + text[2:]


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the figure, and with --json as JSON in the last line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="figures as the last line")
    options = parser.parse_args(argv)
    counts = counts_of(inputs.standard_library("train"))
    held_out = counts_of(inputs.standard_library("held_out"))
    tried = itertools.product(PRIORS, PRIORS, (1.0,))
    bits = min(bits_per_byte(counts, held_out, priors) for priors in tried)
    print(f"{bits:.3f} bits per byte on {held_out.sum():,} bytes held out")
    if options.json:
        print(json.dumps({"bits_per_byte": round(bits, 4)}))


if __name__ == "__main__":
    main()
