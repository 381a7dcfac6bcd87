import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.loop.gradients import Gradient
from pipeline.rows import slices


def after_two_updates(make_optimizer, change):
    """A table trained on batches in which ids repeat."""
    table = tf.Variable(np.ones([5, 2], np.float32))
    optimizer = make_optimizer(0.1)
    optimizer.build([table])
    for ids in ([1, 1, 3], [3, 4, 4]):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.embedding_lookup(table, ids) ** 2)
        optimizer.apply([change(tape.gradient(loss, table))], [table])
    return table.numpy()


@pytest.mark.parametrize(
    "optimizer",
    [keras.optimizers.Adam, keras.optimizers.Adagrad, keras.optimizers.RMSprop],
)
def test_a_sparse_gradient_updates_as_the_dense_one(optimizer):
    dense = after_two_updates(optimizer, tf.convert_to_tensor)
    sparse = after_two_updates(optimizer, slices.each_row_once)
    np.testing.assert_allclose(sparse, dense, rtol=1e-6)


def test_sums_and_means_by_weight():
    mean = Gradient([tf.constant([1.0, 2.0])], 3.0)
    total = mean.as_sum()
    assert total.values[0].numpy().tolist() == [3.0, 6.0]
    assert total.as_mean().values[0].numpy().tolist() == [1.0, 2.0]
    nothing = Gradient([tf.constant([0.0])], tf.constant(0.0))
    assert nothing.as_mean().values[0].numpy().tolist() == [0.0]
