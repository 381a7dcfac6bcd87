import pytest
import tensorflow as tf

from inputs import batching
from pipeline import ModeKeys


def make(mode=ModeKeys.TRAIN, replicas=1, **arguments):
    input_context = tf.distribute.InputContext(1, 0, replicas)
    return batching.make_batching(mode, input_context, **arguments)


def test_no_context_is_one_pipeline_and_one_replica():
    plan = batching.make_batching(ModeKeys.TRAIN, None, batch_size=7)
    assert (plan.num_pipelines, plan.pipeline_id, plan.batch_size) == (1, 0, 7)


def test_batch_sizes():
    assert make(replicas=4, batch_size=8).batch_size == 2
    assert make(replicas=4, batch_size_per_replica=8).batch_size == 8


@pytest.mark.parametrize(
    "arguments", [{}, {"batch_size": 8, "batch_size_per_replica": 2}]
)
def test_exactly_one_batch_size(arguments):
    with pytest.raises(ValueError, match="give exactly one, batch_size"):
        make(**arguments)


def test_global_batch_that_does_not_divide():
    with pytest.raises(
        ValueError, match="batch_size=10 is .* among 4 replicas. .*batch_size=8 or 12,"
    ):
        make(replicas=4, batch_size=10)
    with pytest.raises(ValueError, match="batch_size=3 is .*Write batch_size=4,"):
        make(replicas=4, batch_size=3)


@pytest.mark.parametrize("name", ["batch_size", "batch_size_per_replica"])
@pytest.mark.parametrize("number", [0, -1, 2.5, "8", True])
def test_batch_size_that_is_no_number(name, number):
    with pytest.raises(ValueError, match=f"{name} is {number!r}, not a positive"):
        make(**{name: number})


def test_num_epochs_that_is_no_number():
    with pytest.raises(ValueError, match="num_epochs is 0, not a positive integer"):
        make(batch_size=1, num_epochs=0)


def test_unknown_mode():
    with pytest.raises(ValueError, match="mode is 'training', not one of"):
        make(mode="training", batch_size=1)


def test_training_that_repeats_forever_has_a_static_batch_size_by_itself():
    assert make(batch_size=1).drop_remainder
    assert not make(batch_size=1, num_epochs=1).drop_remainder
    assert make(batch_size=1, num_epochs=1, drop_remainder=True).drop_remainder
    assert not make(ModeKeys.EVAL, batch_size=1).drop_remainder
    assert make(ModeKeys.EVAL, batch_size=1, drop_remainder=True).drop_remainder
