import pytest
import tensorflow as tf

import pipeline as ge
from pipeline import worker_input, worker_iterators

CONTEXT = {"config": ge.RunConfig(), "params": {}}


class Servers:
    """What `make_worker_feed` asks of a strategy."""

    num_workers = 2
    num_replicas_in_sync = 1


def feed_of(input_fn, **options):
    return worker_input.make_worker_feed(
        input_fn, "train", strategy=Servers(), context=CONTEXT, **options
    )


def values(dataset):
    return [batch.tolist() for batch in dataset.as_numpy_iterator()]


def elsewhere(dataset):
    """The dataset as a worker makes it of its graph."""
    variant = tf.raw_ops.DatasetFromGraph(graph_def=worker_iterators.graph_of(dataset))
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
        worker_iterators.graph_of(calls_python())
