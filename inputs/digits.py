# SPDX-License-Identifier: Apache-2.0
"""The 1,797 scanned digits of scikit-learn: real data without a download."""

import gin
import numpy as np
import tensorflow as tf

from gin_estimator import errors

from .arrays import array_dataset
from .batching import make_batching

Arrays = tuple[np.ndarray, np.ndarray]


@gin.configurable
def digits_input_fn(
    mode: str,
    input_context: tf.distribute.InputContext | None = None,
    *,
    batch_size: int | None = None,
    batch_size_per_replica: int | None = None,
    seed: int | None = 0,
    num_epochs: int | None = None,
    drop_remainder: bool = False,
    first_batch: int = 0,
) -> tf.data.Dataset:
    """Returns digits from 0 to 9: 1,437 in TRAIN, 360 others in EVAL and PREDICT.

    Features are images, float32 `[batch, 8, 8, 1]` in [0, 1]; labels are int64 `[batch]`.

    Args:
      mode: one of `ModeKeys`; PREDICT yields images only.
      input_context: this pipeline; None for one pipeline of one replica.
      batch_size: examples in a global batch. Set exactly one of the two batch sizes.
      batch_size_per_replica: examples in a batch of one replica.
      seed: seed of the order in TRAIN; None for another order in each run, and after
        a restart.
      num_epochs: passes in TRAIN; None without end.
      drop_remainder: whether an incomplete last batch is dropped, as a TPU needs.
      first_batch: number of this pipeline's batches to leave out at the start.
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
    """Returns images and labels for training, and others for tests.

    Every fifth example of each class is for tests, so that both parts have the same shares.

    Raises:
      UserValueError: scikit-learn is not installed.
    """
    try:
        from sklearn import datasets
    except ModuleNotFoundError as error:
        if error.name != "sklearn":
            raise
        raise errors.UserValueError(
            "digits_input_fn needs scikit-learn: pip install scikit-learn."
        ) from error
    digits = datasets.load_digits()
    images = (digits.images / 16.0).astype(np.float32)[..., np.newaxis]
    labels = digits.target.astype(np.int64)
    is_test = np.zeros(len(labels), bool)
    is_test[np.argsort(labels, kind="stable")[::5]] = True
    return (images[~is_test], labels[~is_test]), (images[is_test], labels[is_test])
