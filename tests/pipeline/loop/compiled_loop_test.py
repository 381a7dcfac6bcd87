"""One compiled loop, over iterators of several types."""

import tensorflow as tf

from tests import fakes

ROWS = 40


def batches(size, *, drop_remainder):
    x, y = fakes.classification_data(ROWS)

    def input_fn():
        rows = tf.data.Dataset.from_tensor_slices((x, y))
        return rows.batch(size, drop_remainder=drop_remainder)

    return input_fn


def test_replicas_share_batches_of_one_size_then_of_another(tmp_path):
    """The replicas' parts are of one kind, the batches that they are cut from are not.

    In `batches(20)` the size is known before it runs, and the loop is compiled for it.
    """
    two = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    estimator = fakes.make_estimator(tmp_path, train_distribute=two)
    for size, drop, steps in ((20, True, 2), (10, True, 4), (16, False, 3)):
        input_fn = batches(size, drop_remainder=drop)
        before = estimator.global_step
        estimator.train(input_fn)
        assert estimator.global_step == before + steps
        assert estimator.evaluate(input_fn)["examples"] == ROWS
        assert len(list(estimator.predict(input_fn))) == ROWS
