"""What a TPU runs, on CPUs: a strategy that refuses what TPUStrategy refuses.

Two CPUs are mirrored and fed by a distributed iterator. They train to the weights of
one replica, by the code that a TPU gets; what is left to TensorFlow's TPUStrategy is
to run it on other devices.
"""

import dataclasses
import functools
import re

import numpy as np
import pytest
import tensorflow as tf

from pipeline import ModeKeys
from pipeline.feed import tpu_feed
from pipeline.feed.dataset import Source
from pipeline.strategy import replicas
from tests import fakes

ROWS = 208  # Six batches of 32 and a half one, which leaves a replica without.
STEPS = 7
# Those of TPUStrategy's cross_replica_sum.
ADDED_UP = (tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.int32, tf.uint32)


class CheckedReduction(tf.distribute.ReductionToOneDevice):
    """Adds up only what a TPU's replicas can."""

    def batch_reduce_implementation(self, reduce_op, pairs, options):
        for value, _ in pairs:
            for each in value.values:
                assert isinstance(each, tf.Tensor), "a TPU adds up dense tensors"
                assert each.dtype in ADDED_UP, each.dtype
        return super().batch_reduce_implementation(reduce_op, pairs, options)


class LikeATPU(tf.distribute.MirroredStrategy):
    """MirroredStrategy on CPUs, as strict as TPUStrategy."""

    def __init__(self):
        super().__init__(["CPU:2", "CPU:3"], cross_device_ops=CheckedReduction())

    def run(self, fn, args=(), kwargs=None, options=None):
        if tf.executing_eagerly():
            raise NotImplementedError("does not support pure eager execution")
        for leaf in tf.nest.flatten((args, kwargs)):
            for value in getattr(leaf, "values", (leaf,)):
                assert value is None or value.shape.is_fully_defined(), value
                assert value is None or value.dtype != tf.string

        def checked(*args, **kwargs):
            result = fn(*args, **kwargs)
            for leaf in tf.nest.flatten(result):
                assert leaf is None or isinstance(leaf, tf.Tensor), leaf
            return result

        return super().run(checked, args, kwargs, options)


@pytest.fixture(scope="module", autouse=True)
def one_trace():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replicas, "ONE_TRACE", (*replicas.ONE_TRACE, LikeATPU))
        ask = replicas.Replicas.running

        def running(self):
            context = tf.distribute.get_replica_context()
            assert not isinstance(context.strategy, LikeATPU), "known at run time only"
            return ask(self)

        patch.setattr(replicas.Replicas, "running", running)
        yield


@pytest.fixture(scope="module")
def strategy():
    return LikeATPU()


@pytest.fixture(scope="module")
def data():
    return fakes.classification_data(ROWS)


def static_input_fn(x, y=None, *, per_replica, rows=None, repeat=False, batch_size=32):
    """As `fakes.make_input_fn`, in full batches."""

    def batched(size):
        dataset = tf.data.Dataset.from_tensor_slices(x if y is None else (x, y))
        dataset = dataset.take(rows or len(x))
        dataset = dataset.repeat() if repeat else dataset
        return dataset.batch(size, drop_remainder=True)

    def input_fn():
        return batched(batch_size)

    def input_fn_per_replica(input_context):
        return batched(input_context.get_per_replica_batch_size(batch_size))

    return input_fn_per_replica if per_replica else input_fn


def plain_input_fn(*data, rows):
    """What one replica trains on, with a ragged end."""
    return fakes.make_input_fn(*data, batch_size=32, change=lambda d: d.take(rows))


def trained(folder, input_fn, *, strategy=None, max_steps=None, **options):
    """An Estimator after training, and what its hook saw every third step."""
    recorder = fakes.Recorder(every_steps=3)
    config = options.pop("config", {})
    estimator = fakes.make_estimator(
        folder,
        network=lambda: fakes.network(l2=0.01, **options),
        params={"clip_norm": 0.2},
        train_distribute=strategy,
        **config,
    )
    estimator.train(input_fn, max_steps=max_steps, hooks=[recorder])
    return estimator, recorder.values


@dataclasses.dataclass
class Case:
    """The same training twice, on data with a ragged end."""

    per_replica: bool
    rows: int
    expected: tuple
    actual: tuple


@pytest.fixture(scope="module")
def plain(data, tmp_path_factory):
    """One replica's training on so many rows, made once."""

    @functools.cache
    def train(rows):
        folder = tmp_path_factory.mktemp("plain")
        return trained(folder, plain_input_fn(*data, rows=rows))

    return train


# A part of a global batch is no whole batch for two: only replicas' own may end so.
@pytest.fixture(scope="module", params=[(True, ROWS), (False, ROWS - 16)])
def case(request, strategy, data, plain, tmp_path_factory):
    per_replica, rows = request.param
    static = static_input_fn(*data, per_replica=per_replica, rows=rows)
    actual = trained(tmp_path_factory.mktemp("tpu"), static, strategy=strategy)
    return Case(per_replica, rows, plain(rows), actual)


def assert_same_weights(actual, expected, rtol=1e-5):
    actual, expected = (fakes.weights(e.model_dir) for e in (actual, expected))
    assert sorted(actual) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol, 2e-6, err_msg=name)


def test_trains_to_the_same_weights(case):
    assert case.actual[0].global_step == -(-case.rows // 32)
    assert_same_weights(case.actual[0], case.expected[0])


def test_reports_the_same(case):
    assert len(case.actual[1]) == len(case.expected[1]) == 3 - (case.rows < ROWS)
    for actual, expected in zip(case.actual[1], case.expected[1], strict=True):
        assert actual["examples"] == expected["examples"]
        assert actual["accuracy"] == expected["accuracy"]
        assert actual["loss"] == pytest.approx(expected["loss"], rel=1e-5)
        assert actual["learning_rate"] == expected["learning_rate"]


def test_evaluates_alike(case, data):
    actual = case.actual[0].evaluate(
        static_input_fn(*data, per_replica=case.per_replica, rows=case.rows)
    )
    expected = case.expected[0].evaluate(plain_input_fn(*data, rows=case.rows))
    assert actual.pop("loss") == pytest.approx(expected.pop("loss"), rel=1e-5)
    assert actual == expected
    assert actual["examples"] == case.rows


def test_predicts_alike_and_in_order(case, data):
    def logits(estimator, input_fn):
        return np.array([p["logits"] for p in estimator.predict(input_fn)])

    static = static_input_fn(data[0], per_replica=case.per_replica, rows=case.rows)
    actual = logits(case.actual[0], static)
    expected = logits(case.expected[0], plain_input_fn(data[0], rows=case.rows))
    assert len(actual) == case.rows
    np.testing.assert_allclose(actual, expected, 1e-4, 1e-5)


@pytest.mark.parametrize("repeat", [True, False], ids=["endless", "ends"])
def test_goes_on_with_the_next_example(strategy, data, tmp_path, repeat):
    """Endless data need no padding, and both are found again by skipping."""
    input_fn = static_input_fn(*data, per_replica=True, repeat=repeat)
    actual, _ = trained(tmp_path / "a", input_fn, strategy=strategy, max_steps=3)
    for steps in (5, STEPS - 1):
        actual.train(input_fn, max_steps=steps)
    expected, _ = trained(tmp_path / "b", input_fn, max_steps=STEPS - 1)
    assert_same_weights(actual, expected)
    assert actual.evaluate(input_fn, steps=3)["examples"] == 96
    if not repeat:  # The pass ends, and the next one begins anew.
        actual.train(input_fn)
        assert actual.global_step == STEPS
        actual.train(input_fn)
        assert actual.global_step == 2 * STEPS


@pytest.mark.parametrize("per_replica", [True, False])
def test_micro_batches(strategy, data, tmp_path, plain, per_replica):
    """Two of them a replica: the last step has one of four."""
    actual, _ = trained(
        tmp_path / "a",
        static_input_fn(*data, per_replica=per_replica, batch_size=16),
        strategy=strategy,
        config={"gradient_accumulation_steps": 2},
    )
    assert_same_weights(actual, plain(ROWS)[0])


def test_layers_that_differ_by_replica(strategy, data, tmp_path):
    """Dropout's seeds are spread, and moving averages of both come into one."""
    input_fn = static_input_fn(*data, per_replica=True)
    estimator, values = trained(
        tmp_path, input_fn, strategy=strategy, batch_norm=True, dropout=0.2
    )
    moved = fakes.weights(estimator.model_dir)
    means = [value for name, value in moved.items() if "moving_mean" in name]
    assert np.abs(means).max() > 0
    assert all(np.isfinite(value).all() for value in moved.values())
    assert np.isfinite([v["loss"] for v in values]).all()


def make_feed(input_fn, strategy, mode=ModeKeys.TRAIN):
    return tpu_feed.make_feed(Source(input_fn, mode), strategy=strategy)


def test_an_input_that_is_not_static_is_refused_before_the_first_step(
    strategy, data, tmp_path
):
    ragged = fakes.make_input_fn(*data, batch_size=32, per_replica=True)
    with pytest.raises(ValueError) as error:
        trained(tmp_path, ragged, strategy=strategy)
    text = str(error.value)
    assert re.search(r"input_fn \S+ yields in mode 'train' features of shape", text)
    assert "drop_remainder=True" in text
    assert not list(tmp_path.glob("model.ckpt*"))


@pytest.mark.parametrize(("size", "advice"), [(33, 32), (1, 2)])
def test_a_global_batch_that_replicas_cannot_share(strategy, data, size, advice):
    input_fn = static_input_fn(*data, per_replica=False, batch_size=size)
    with pytest.raises(ValueError) as error:
        make_feed(input_fn, strategy)
    assert f"yields features of shape [{size}, 6] for 2 replicas" in str(error.value)
    assert f"dataset.batch({advice}, drop_remainder=True)" in str(error.value)


def test_an_input_without_examples(strategy, data, tmp_path):
    input_fn = static_input_fn(*data, per_replica=True, rows=3)
    with pytest.raises(ValueError, match="yielded no examples"):
        trained(tmp_path, input_fn, strategy=strategy)


def test_shapes_stay_static_where_data_end(strategy, data):
    """`get_next_as_optional` would lose the batch's size."""
    feed = make_feed(static_input_fn(*data, per_replica=True), strategy)
    assert feed.element_spec[0].shape == [16, 6]
    assert feed.global_batch == 32
    assert not feed.plan.endless
    shapes = []

    @tf.function
    def step(iterator):
        _, take = feed.plan.try_take(iterator)
        (batch,) = take()
        shapes.extend(x.shape for x in batch.features.values)

    step.get_concrete_function(feed.iterator())
    assert shapes == [[16, 6], [16, 6]]


def test_several_hosts_share_global_batches():
    """Each host cuts its own replicas' parts."""
    dataset = tf.data.Dataset.range(16).batch(8, drop_remainder=True)
    hosts = [
        [x.tolist() for x in cut.as_numpy_iterator()]
        for cut in (
            tpu_feed.cut(dataset, 4, range(0, 2)),
            tpu_feed.cut(dataset, 4, range(2, 4)),
        )
    ]
    assert hosts == [
        [[0, 1], [2, 3], [8, 9], [10, 11]],
        [[4, 5], [6, 7], [12, 13], [14, 15]],
    ]


@pytest.mark.parametrize(("per_replica", "per_step"), [(True, 2), (False, 1)])
@pytest.mark.parametrize("num_steps", [2, STEPS + 1])
def test_it_starts_anywhere(strategy, data, per_replica, per_step, num_steps):
    """Two replicas take an element each, or share one; the data end at step 7."""
    calls = []
    whole = static_input_fn(*data, per_replica=per_replica)

    def starts_anywhere(dataset, first_batch):
        calls.append(first_batch)
        return dataset.skip(first_batch)

    def per_replica_fn(input_context, first_batch):
        return starts_anywhere(whole(input_context), first_batch)

    def global_fn(first_batch):
        return starts_anywhere(whole(), first_batch)

    def local(batch):
        return tf.nest.map_structure(strategy.experimental_local_results, batch)

    feed = make_feed(per_replica_fn if per_replica else global_fn, strategy)
    skipped = num_steps * feed.plan.nexts_per_step
    actual = next(feed.iterator(skipped))
    assert set(calls) == {0, num_steps * per_step}
    expected = next(make_feed(whole, strategy).iterator(skipped))
    tf.nest.map_structure(
        np.testing.assert_array_equal, *map(local, (actual, expected))
    )


def test_it_starts_in_the_middle_of_a_global_batch(strategy):
    def input_fn(first_batch):
        data = tf.data.Dataset.range(16).batch(4, drop_remainder=True)
        return data.skip(first_batch)

    dataset_of = make_feed(input_fn, strategy).dataset_of
    pipeline = tf.distribute.InputContext(num_replicas_in_sync=2)
    rows, _ = next(iter(dataset_of(pipeline, 3)))
    assert rows.numpy().tolist() == [6, 7]


def test_a_checkpoint_goes_to_one_replica(case, data, tmp_path):
    """Trained on a TPU, evaluated on every example anywhere."""
    other = fakes.make_estimator(tmp_path, network=lambda: fakes.network(l2=0.01))
    path = case.actual[0].latest_checkpoint()
    ragged = fakes.make_input_fn(*data, batch_size=30)
    assert other.evaluate(ragged, checkpoint_path=path)["examples"] == ROWS
