import tensorflow as tf

from pipeline.rows import slices


def test_rows_are_summed_and_dense_gradients_left_alone():
    sparse = tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0]]), [2, 0, 2], [3, 1])
    once = slices.each_row_once(sparse)
    assert once.indices.numpy().tolist() == [2, 0]
    assert once.values.numpy().tolist() == [[5.0], [2.0]]
    dense = tf.constant([1.0])
    assert slices.each_row_once(dense) is dense
