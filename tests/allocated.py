"""How much memory tensors take, as TensorFlow's allocator counts it.

    made, peak = allocated.by(lambda: tf.zeros([1024]))
    assert peak == 4096

oneDNN's allocator counts. On processors without AVX-512 TensorFlow takes another one
that does not, unless the environment asks for oneDNN: TF_ENABLE_ONEDNN_OPTS=1.
"""

import pytest
import tensorflow as tf

_CPU = "CPU:0"


def by(work):
    """What `work` returns, and the most bytes that it took besides what was there."""
    memory = tf.config.experimental
    try:
        before = memory.get_memory_info(_CPU)["current"]
    except ValueError as error:
        pytest.skip(f"{error}; TF_ENABLE_ONEDNN_OPTS=1 has another allocator")
    memory.reset_memory_stats(_CPU)
    result = work()
    peak = memory.get_memory_info(_CPU)["peak"]
    if not peak:
        pytest.skip("this build of TensorFlow does not count the memory of CPUs")
    return result, peak - before
