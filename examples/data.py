"""Data of the examples, as files that both programs read; nothing is downloaded.

python -m examples.data digits.npz
"""

import pathlib
import sys

import numpy as np

from inputs import digits


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


WRITERS = {"digits": write_digits}


if __name__ == "__main__":
    file = pathlib.Path(sys.argv[1])
    WRITERS[file.stem](file)
