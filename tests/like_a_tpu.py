"""A MirroredStrategy on CPUs that refuses what TPUStrategy refuses, for tests."""

import pytest
import tensorflow as tf

# Those of TPUStrategy's cross_replica_sum.
SUMMED = (tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.int32, tf.uint32)


class CheckedReduction(tf.distribute.ReductionToOneDevice):
    def batch_reduce_implementation(self, reduce_op, pairs, options):
        for value, _ in pairs:
            for each in value.values:
                assert isinstance(each, tf.Tensor), "a TPU sums dense tensors"
                assert each.dtype in SUMMED, each.dtype
        return super().batch_reduce_implementation(reduce_op, pairs, options)


class LikeATpu(tf.distribute.MirroredStrategy):
    """Runs in graphs only, with static shapes, and with tensors as arguments and results."""

    def __init__(self, devices=("CPU:2", "CPU:3")):
        super().__init__(devices, cross_device_ops=CheckedReduction())

    def run(self, fn, args=(), kwargs=None, options=None):
        assert not tf.executing_eagerly()
        for leaf in tf.nest.flatten((args, kwargs or {})):
            for value in getattr(leaf, "values", (leaf,)):
                assert isinstance(value, tf.Tensor) and value.shape.is_fully_defined(), value
                assert value.dtype != tf.string

        def checked(*args, **kwargs):
            result = fn(*args, **kwargs)
            for leaf in tf.nest.flatten(result):
                assert leaf is None or isinstance(leaf, tf.Tensor), leaf
            return result

        return super().run(checked, args, kwargs, options)


@pytest.fixture(scope="module")
def like_a_tpu():
    """Returns the strategy; the driver takes it for a TPU's while the fixture lasts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf.distribute, "TPUStrategy", LikeATpu)
        yield LikeATpu()
