"""The 1,797 scanned digits of scikit-learn: real data without a download."""

import gin
import numpy as np
import tensorflow as tf

from pipeline import RefusedImportError
from pipeline.process import later

from .batching import make_batching
from .numpy_input import array_dataset

sklearn_datasets = later.module("sklearn.datasets")

Arrays = tuple[np.ndarray, np.ndarray]


@gin.configurable
def digits_input_fn(
    mode: str,
    input_context: tf.distribute.InputContext | None = None,
    *,
    batch_size: int | None = None,
    batch_size_per_replica: int | None = None,
    seed: int = 0,
    num_epochs: int | None = None,
    drop_remainder: bool = False,
    first_batch: int = 0,
) -> tf.data.Dataset:
    """Yields digits 0 to 9: 1,437 to train on, 360 others for EVAL and PREDICT.

    Features are images, float32 `[batch, 8, 8, 1]` in [0, 1]; labels int64 `[batch]`.

    Args:
      mode: one of `ModeKeys`. PREDICT yields images alone.
      input_context: this pipeline; None is one pipeline that feeds one replica.
      batch_size: examples in a global batch. Exactly one of the two batch sizes is
        given.
      batch_size_per_replica: examples in the batch of one replica.
      seed: seed of the order in TRAIN, an integer. EVAL and PREDICT keep the order.
      num_epochs: passes in TRAIN; None is forever. EVAL and PREDICT make one.
      drop_remainder: whether an incomplete last batch is left out, in every mode. All
        batches then have one shape, which a TPU needs.
      first_batch: batches of this pipeline to leave out, for a run that goes on.

    Raises:
      ModuleNotFoundError: scikit-learn is not installed.
      ValueError: an argument is refused by `make_batching`.
    """
    batching = make_batching(
        mode,
        input_context,
        batch_size=batch_size,
        batch_size_per_replica=batch_size_per_replica,
        num_epochs=num_epochs,
        drop_remainder=drop_remainder,
        first_batch=first_batch,
    )
    train, test = load_digits()
    images, labels = train if batching.is_training else test
    return array_dataset(images, labels, batching=batching, shuffle=True, seed=seed)


def load_digits() -> tuple[Arrays, Arrays]:
    """Loads images and labels to train on, and to test on, always the same.

    Every fifth example of each class is for testing, so that the classes have the same
    shares in both parts.

    Returns:
      `(images, labels)` of the one part and of the other: float32
      `[examples, 8, 8, 1]` in [0, 1], and int64 `[examples]`.

    Raises:
      ModuleNotFoundError: scikit-learn is not installed.
    """
    if sklearn_datasets is None:
        raise RefusedImportError(
            "digits_input_fn reads its images from scikit-learn, which is not "
            "installed: python -m pip install scikit-learn"
        )
    digits = sklearn_datasets.load_digits()
    images = (digits.images / 16.0).astype(np.float32)[..., np.newaxis]
    labels = digits.target.astype(np.int64)
    is_test = np.zeros(len(labels), bool)
    is_test[np.argsort(labels, kind="stable")[::5]] = True
    return (images[~is_test], labels[~is_test]), (images[is_test], labels[is_test])
