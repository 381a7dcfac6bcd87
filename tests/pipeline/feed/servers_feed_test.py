import types

import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.feed import position, servers_feed
from pipeline.feed.batch import Plan
from pipeline.feed.dataset import Source
from pipeline.feed.feed import Feed

CONTEXT = {"config": ge.RunConfig(), "params": {}}


class Servers:
    """What `make_worker_feed` asks of a strategy."""

    num_workers = 2
    num_replicas_in_sync = 1
    resume_input = True


def feed_of(input_fn, **options):
    return servers_feed.make_worker_feed(
        Source(input_fn, "train", CONTEXT), strategy=Servers(), **options
    )


def values(dataset):
    return [batch.tolist() for batch in dataset.as_numpy_iterator()]


def elsewhere(dataset):
    """The dataset as a worker makes it of its graph."""
    variant = tf.raw_ops.DatasetFromGraph(graph_def=servers_feed.graph_of(dataset))
    return tf.data.experimental.from_variant(variant, dataset.element_spec)


def test_each_worker_has_a_pipeline_of_its_own():
    seen = []

    def input_fn(input_context):
        seen.append(input_context)
        index = input_context.input_pipeline_id
        data = tf.data.Dataset.range(10).shard(2, index)
        return data.batch(input_context.get_per_replica_batch_size(3))

    feed = feed_of(input_fn, num_micro_batches=2)
    assert [(c.num_input_pipelines, c.input_pipeline_id) for c in seen] == [
        (2, 0),
        (2, 1),
    ]
    assert values(feed.feeds[1].dataset) == [[1, 3, 5], [7, 9]]
    assert not feed.plan.endless and feed.plan.nexts_per_step == 2


def test_an_input_fn_without_context_is_dealt_out_in_one_order():
    def input_fn():
        data = tf.data.Dataset.range(40).shuffle(40, reshuffle_each_iteration=False)
        return data.batch(4)

    feed = feed_of(input_fn)
    batches = [batch for f in feed.feeds for batch in values(elsewhere(f.dataset))]
    rows = [row for batch in batches for row in batch]
    assert sorted(rows) == list(range(40))


def test_data_that_end_on_one_worker_end():
    def input_fn(input_context):
        data = tf.data.Dataset.range(4).batch(2)
        return data if input_context.input_pipeline_id else data.repeat()

    assert not feed_of(input_fn).plan.endless


def test_batches_of_different_static_sizes_get_one_spec():
    def input_fn(input_context):
        size = 2 + input_context.input_pipeline_id
        return tf.data.Dataset.range(6).batch(size, drop_remainder=True)

    feed = feed_of(input_fn)
    assert feed.element_spec[0].shape.as_list() == [None]
    assert values(feed.feeds[1].dataset) == [[0, 1, 2], [3, 4, 5]]


def test_different_kinds_of_data_are_refused():
    def input_fn(input_context):
        data = tf.data.Dataset.range(6).batch(2)
        return data if input_context.input_pipeline_id else data.map(lambda x: {"x": x})

    with pytest.raises(ValueError, match="other kinds of data"):
        feed_of(input_fn)


def test_a_graph_does_the_same_elsewhere():
    data = tf.data.Dataset.range(5).map(lambda x: x * 2)
    assert list(elsewhere(data).as_numpy_iterator()) == [0, 2, 4, 6, 8]


@pytest.mark.parametrize(
    "calls_python",
    [
        lambda: tf.data.Dataset.from_generator(
            lambda: iter([1]), output_signature=tf.TensorSpec([], tf.int32)
        ),
        lambda: tf.data.Dataset.range(3).map(
            lambda x: tf.numpy_function(lambda y: y, [x], tf.int64)
        ),
    ],
)
def test_data_that_call_python_are_refused(calls_python):
    with pytest.raises(ValueError, match="TFRecord"):
        servers_feed.graph_of(calls_python())


class Iterators:
    """In the place of those of workers: knows where they stand."""

    def __init__(self, feeds, strategy, *, steps, start_there=False):
        self.feeds, self.steps, self.start_there = feeds, list(steps), start_there


@pytest.fixture
def opened(monkeypatch):
    monkeypatch.setattr(servers_feed, "WorkerIterators", Iterators)

    def open_(
        path, *, num_workers=2, resume_input=True, without=None, batches=1, **options
    ):
        data = tf.data.Dataset.range(10)
        strategy = types.SimpleNamespace(
            num_workers=num_workers, resume_input=resume_input
        )
        state = {"input_start": tf.Variable(0, dtype=tf.int64)}
        modules = types.SimpleNamespace(strategy=strategy, step=7, driver_state=state)
        feeds = [Feed(data, Plan(False, num_micro_batches=batches))] * num_workers
        feed = servers_feed.WorkerFeed(feeds, without)
        return servers_feed.WorkerInput(feed, modules, path, **options)

    return open_


@pytest.fixture
def path(tmp_path, opened):
    """A checkpoint at which two workers had done 3 and 4 steps."""
    path = str(tmp_path / "model.ckpt-7")
    source = opened(None)
    source.iterator.steps = [3, 4]
    assert source.save(path)
    return path


def test_a_resumed_run_goes_on_in_the_data(opened, path):
    source = opened(path)
    assert (source.iterator.steps, source.resumed) == ([3, 4], True)
    assert source.begin_anew().steps == [0, 0]
    assert not source.resumed


def test_larger_steps_leave_out_all_that_was_read(opened, path):
    assert opened(path, batches=2).iterator.steps == [2, 2]


def test_an_input_fn_that_starts_anywhere_is_called_for_what_is_left(opened, path):
    def input_fn(input_context, first_batch):
        data = tf.data.Dataset.range(20).shard(2, input_context.input_pipeline_id)
        return data.batch(1).skip(first_batch)

    source = opened(path, without=feed_of(input_fn).without)
    assert source.iterator.start_there
    left = [values(feed.dataset)[0] for feed in source.iterator.feeds]
    assert (source.iterator.steps, left) == ([3, 4], [[6], [9]])
    assert (
        feed_of(lambda first_batch: tf.data.Dataset.range(4).batch(2)).without is None
    )


@pytest.mark.parametrize(
    "options", [{"num_workers": 3}, {"resume_input": False}], ids=str
)
def test_data_that_begin_anew(opened, path, options):
    source = opened(path, **options)
    assert (any(source.iterator.steps), source.resumed) == (False, False)


def test_another_number_of_workers_is_another_input(opened, path):
    with pytest.raises(ValueError, match="of 2 workers, and there are 3: start 2 wo"):
        opened(path, num_workers=3, changed_input="error")
    assert not opened(path, num_workers=3, changed_input="anew").resumed


@pytest.mark.parametrize("damage", ["cut", "of_another_strategy", "none"])
def test_a_position_that_is_no_use(opened, path, damage):
    prefix = position.position_path(path)
    if damage == "cut":
        with open(f"{prefix}.data-00000-of-00001", "wb"):
            pass
    elif damage == "of_another_strategy":
        position.save_position(iter(tf.data.Dataset.range(3)), prefix)
    else:
        path = None
    assert not opened(path).resumed
