"""Writes the data of the examples to files that both programs read.

Nothing is downloaded:

    python -m examples.data digits.npz
    python -m examples.data census          # a folder
    python -m examples.data topics.npz
    python -m examples.data ring.npz
"""

import pathlib
import sys

import numpy as np

from gin_estimator.inputs import digits

# In the order of the alphabet.
EDUCATIONS = ["1-school", "2-some-college", "3-bachelors", "4-doctorate"]
OCCUPATIONS = ["clerical", "craft", "farming", "sales", "service", "tech", "transport"]
CLS, SEP = 1, 2  # Word numbers; 0 is padding, 3 a masked word.
WORKCLASSES = ["government", "other", "private", "self-employed"]


def write_digits(path: str | pathlib.Path) -> None:
    """Writes scikit-learn's digits: 1,437 to train on, 360 to test on.

    Args:
      path: .npz file with `train_images` and `test_images`, float32
        `[examples, 8, 8, 1]` in [0, 1], and their labels, int64 `[examples]`.
    """
    (images, labels), (test_images, test_labels) = digits.load_digits()
    np.savez(
        path,
        train_images=images,
        train_labels=labels,
        test_images=test_images,
        test_labels=test_labels,
    )


def write_census(folder: str | pathlib.Path) -> None:
    """Writes train.csv and test.csv: a random table with the columns of a census.

    The income depends on numbers, words, pairs of words and noise.

    Args:
      folder: is created; train.csv has 8,000 rows, test.csv 2,000.
    """
    rng = np.random.default_rng(0)
    rows = 10_000
    table = {
        "age": rng.integers(17, 80, rows),
        "hours": rng.normal(40, 10, rows).clip(1, 99).round(),
        "education": rng.choice(EDUCATIONS, rows, p=[0.3, 0.4, 0.2, 0.1]),
        "occupation": rng.choice(OCCUPATIONS, rows),
        "workclass": rng.choice(WORKCLASSES, rows, p=[0.6, 0.2, 0.1, 0.1]),
    }
    level = np.searchsorted(EDUCATIONS, table["education"])
    trade = np.searchsorted(OCCUPATIONS, table["occupation"])
    pairs = rng.normal(0, 1, [len(EDUCATIONS), len(OCCUPATIONS)])
    logit = 0.08 * (table["hours"] - 40) - ((table["age"] - 48) / 15) ** 2
    logit += 0.7 * level + 1.5 * pairs[level, trade] - 1.0
    table["income"] = (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(int)

    folder = pathlib.Path(folder)
    folder.mkdir(exist_ok=True)
    lines = [",".join(map(str, row)) for row in zip(*table.values(), strict=True)]
    for name, part in (("train", lines[:8000]), ("test", lines[8000:])):
        text = "\n".join([",".join(table), *part]) + "\n"
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")


def write_topics(path: str | pathlib.Path) -> None:
    """Writes random sentences on four topics, as word numbers.

    A sentence is `[CLS]` words `[SEP]`, then zeros. Each topic has 30 words; the other words
    of a sentence are common to all topics.

    Args:
      path: .npz file with `unlabeled_ids`, int32 `[4000, 16]`; `train_ids` `[64, 16]`
        and `test_ids` `[500, 16]` with their topics, int32 `train_labels` and
        `test_labels`.
    """
    rng = np.random.default_rng(0)
    rows, length, first, own, common = 4564, 16, 4, 30, 26
    topics = rng.integers(0, 4, rows)
    ids = np.zeros([rows, length], np.int32)
    for row, topic in enumerate(topics):
        words = rng.integers(5, length - 1)
        is_own = rng.random(words) < 0.4
        of_topic = first + common + own * topic + rng.integers(0, own, words)
        of_all = first + rng.integers(0, common, words)
        sentence = [CLS, *np.where(is_own, of_topic, of_all), SEP]
        ids[row, : words + 2] = sentence
    parts = {"train": slice(4000, 4064), "test": slice(4064, None)}
    labeled = {f"{name}_ids": ids[part] for name, part in parts.items()}
    labels = {f"{n}_labels": np.int32(topics[part]) for n, part in parts.items()}
    np.savez(path, unlabeled_ids=ids[:4000], **labeled, **labels)


def write_ring(path: str | pathlib.Path) -> None:
    """Writes random points of eight clusters on a ring.

    Args:
      path: .npz file with `train_points`, float32 `[8192, 2]`, and `test_points`,
        float32 `[4096, 2]`, and `centers`, float32 `[8, 2]`, the means of the
        clusters.
    """
    rng = np.random.default_rng(0)
    angles = 2 * np.pi * np.arange(8) / 8
    centers = 2 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    points = rng.normal(centers[rng.integers(0, 8, 3 * 4096)], 0.3)
    np.savez(
        path,
        train_points=points[:8192].astype(np.float32),
        test_points=points[8192:].astype(np.float32),
        centers=centers.astype(np.float32),
    )


WRITERS = {
    "digits": write_digits,
    "census": write_census,
    "topics": write_topics,
    "ring": write_ring,
}


if __name__ == "__main__":
    file = pathlib.Path(sys.argv[1])
    WRITERS[file.stem](file)
