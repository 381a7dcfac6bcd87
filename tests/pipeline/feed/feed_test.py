"""From input_fn to the batches of replicas: what arrives where, once, and in order."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline import ModeKeys, RunConfig
from pipeline.feed import feed as input_lib
from pipeline.feed.batch import rows_in, rows_of
from pipeline.feed.dataset import Source
from pipeline.strategy.peers import Peers
from pipeline.strategy.replicas import Replicas

TRAIN, EVAL, PREDICT = ModeKeys.ALL


@pytest.fixture(scope="module")
def two_replicas():
    return tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


def rows(number):
    return tf.data.Dataset.range(number).map(lambda i: ([i], -i))


class WithAnother(Peers):
    """The first of two processes, of which the other's data have `length` batches."""

    def __init__(self, length):
        super().__init__(tf.distribute.get_strategy())
        self.replicas = Replicas(total=2, local=1, process=0, num_processes=2)
        self._length = length

    def gather(self, numbers):
        return [list(numbers), [self._length]]


def make_feed(
    input_fn,
    *,
    mode=TRAIN,
    strategy=None,
    peers=None,
    num_micro_batches=1,
    **context,
):
    return input_lib.make_feed(
        Source(input_fn, mode, {"params": {}, "config": None, **context}),
        peers=peers or Peers(strategy or tf.distribute.get_strategy()),
        num_micro_batches=num_micro_batches,
    )


def steps_of(feed, iterator=None, most=20):
    """Per step, replica and micro-batch: the features that count, as a list."""
    iterator = iter(feed.dataset) if iterator is None else iterator
    steps = []
    for _ in range(most if feed.plan.num_steps is None else feed.plan.num_steps):
        if not feed.plan.asks:
            batches = feed.plan.take(iterator)
        else:
            more, take = feed.plan.try_take(iterator)
            if not bool(more):
                break
            batches = take()
        steps.append([[_counted(b) for b in replica] for replica in batches])
    return steps


def _counted(batch):
    if batch.share is not None and not float(batch.share):
        # A copy of a real batch, so that every replica runs the same operations.
        assert len(batch.features)
        return "stand-in"
    np.testing.assert_array_equal(batch.labels, -batch.features[:, 0])
    return batch.features[:, 0].numpy().tolist()


def test_one_replica_takes_one_batch_a_step():
    feed = make_feed(lambda: rows(5).batch(2))
    assert steps_of(feed) == [[[[0, 1]]], [[[2, 3]]], [[[4]]]]


def test_endless_data_are_not_asked_whether_they_end():
    feed = make_feed(lambda: rows(3).repeat().batch(2))
    assert feed.plan.endless
    assert steps_of(feed, most=2) == [[[[0, 1]]], [[[2, 0]]]]


def test_a_global_batch_is_cut_into_equal_parts(two_replicas):
    feed = make_feed(lambda: rows(7).batch(4), strategy=two_replicas)
    assert feed.plan.splits
    assert steps_of(feed) == [[[[0, 1]], [[2, 3]]], [[[4]], [[5, 6]]]]


def test_a_replica_without_rows_gets_a_stand_in(two_replicas):
    feed = make_feed(lambda: rows(5).batch(4), strategy=two_replicas)
    assert steps_of(feed)[1] == [["stand-in"], [[4]]]


def test_batches_for_replicas_come_in_their_order(two_replicas):
    def input_fn(input_context):
        return rows(5).batch(input_context.get_per_replica_batch_size(4))

    feed = make_feed(input_fn, strategy=two_replicas)
    assert not feed.plan.splits
    assert steps_of(feed) == [[[[0, 1]], [[2, 3]]], [[[4]], ["stand-in"]]]


def test_processes_agree_once_on_the_steps_of_a_pass():
    def input_fn(input_context):
        return rows(5).batch(2)

    feed = make_feed(input_fn, peers=WithAnother(4))
    assert (feed.plan.num_steps, feed.plan.asks) == (4, False)
    assert steps_of(feed) == [[[[0, 1]]], [[[2, 3]]], [[[4]]], [["stand-in"]]]
    accumulating = make_feed(input_fn, peers=WithAnother(4), num_micro_batches=2)
    assert accumulating.plan.num_steps == 2
    assert steps_of(accumulating) == [[[[0, 1], [2, 3]]], [[[4], "stand-in"]]]


def test_what_starts_anywhere_is_padded_where_its_data_have_ended():
    def input_fn(input_context, first_batch):
        return rows(5).batch(2).skip(first_batch)

    feed = make_feed(input_fn, peers=WithAnother(5))
    assert steps_of(feed, feed.iterator(2))[:2] == [[[[4]]], [["stand-in"]]]
    assert steps_of(feed, feed.iterator(4))[:1] == [[["stand-in"]]]


def test_what_starts_anywhere_yields_the_same_kind():
    def input_fn(first_batch):
        return rows(6).batch(2, drop_remainder=bool(first_batch))

    feed = make_feed(input_fn)
    with pytest.raises(TypeError, match=r"shape=\(2, .* with first_batch=1, and at"):
        feed.iterator(1)


def test_first_batch_is_for_those_that_name_it():
    def others(features=None):
        return rows(4).batch(2)

    def any_of_them(mode, **options):
        assert "first_batch" not in options
        return others(**{"features": options.get("features")})

    for input_fn in (others, any_of_them):
        feed = make_feed(input_fn)
        assert not feed.starts_anywhere and feed.saves_position
        assert steps_of(feed, feed.iterator(1)) == [[[[2, 3]]]]


def test_processes_with_equal_parts_need_no_stand_ins():
    feed = make_feed(lambda input_context: rows(6).batch(2), peers=WithAnother(3))
    assert (feed.plan.num_steps, feed.plan.padded) == (3, False)
    assert steps_of(feed) == [[[[0, 1]]], [[[2, 3]]], [[[4, 5]]]]


@pytest.mark.parametrize(
    ("change", "length"),
    [
        (lambda data: data.filter(lambda *_: True), 3),
        (lambda data: data, tf.data.UNKNOWN_CARDINALITY),
        (lambda data: data, tf.data.INFINITE_CARDINALITY),
    ],
    ids=["unknown_here", "unknown_there", "endless_there"],
)
def test_a_length_that_one_does_not_know_is_found_out_by_all(change, length):
    def input_fn(input_context):
        return change(rows(6).batch(2))

    plan = make_feed(input_fn, peers=WithAnother(length)).plan
    assert (plan.endless, plan.num_steps, plan.padded, plan.asks) == (
        False,
        None,
        True,
        True,
    )


def test_processes_with_endless_data_do_not_ask():
    plan = make_feed(
        lambda input_context: rows(6).repeat().batch(2),
        peers=WithAnother(tf.data.INFINITE_CARDINALITY),
    ).plan
    assert plan.endless and not (plan.num_steps or plan.padded or plan.asks)


@pytest.mark.parametrize("splits", [True, False])
def test_micro_batches(splits, two_replicas):
    def global_batches():
        return rows(10).batch(4)

    def replica_batches(input_context):
        return rows(10).batch(input_context.get_per_replica_batch_size(4))

    feed = make_feed(
        global_batches if splits else replica_batches,
        strategy=two_replicas,
        num_micro_batches=2,
    )
    assert feed.plan.nexts_per_step == (2 if splits else 4)
    first, last = steps_of(feed)
    assert first == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    flat = [batch for replica in last for batch in replica if batch != "stand-in"]
    assert sorted(sum(flat, [])) == [8, 9]


def test_fixed_shapes_stay_fixed_on_one_replica(two_replicas):
    def input_fn():
        return rows(8).batch(4, drop_remainder=True)

    features, _ = make_feed(input_fn).element_spec
    assert features.shape == (4, 1)
    features, labels = make_feed(input_fn, strategy=two_replicas).element_spec
    assert features.shape.as_list() == [None, 1]
    assert labels.shape.as_list() == [None]


def test_labels_may_be_missing():
    feed = make_feed(lambda: tf.data.Dataset.range(4).batch(2))
    assert feed.element_spec[1] is None
    (batch,) = feed.plan.try_take(iter(feed.dataset))[1]()[0]
    assert batch.labels is None


def test_features_may_be_a_nest(two_replicas):
    def input_fn():
        data = tf.data.Dataset.range(4).map(lambda i: ({"a": i, "b": (i, [i])}, i))
        return data.batch(4)

    feed = make_feed(input_fn, strategy=two_replicas)
    _, ((second,)) = feed.plan.try_take(iter(feed.dataset))[1]()
    assert second.features["b"][1].numpy().tolist() == [[2], [3]]


def test_arguments_arrive_by_name(two_replicas):
    seen = {}

    def input_fn(mode, params, config, input_context):
        seen.update(locals())
        return rows(2).batch(1)

    make_feed(
        input_fn, mode=EVAL, strategy=two_replicas, params={"a": 1}, config="config"
    )
    context = seen["input_context"]
    assert (seen["mode"], seen["params"], seen["config"]) == (EVAL, {"a": 1}, "config")
    assert context.num_input_pipelines == 1
    assert context.input_pipeline_id == 0
    assert context.num_replicas_in_sync == 2


def _needs_path(path):
    raise AssertionError("not reached")


@pytest.mark.parametrize(
    ("input_fn", "text"),
    [
        (
            tf.data.Dataset.range(1),
            ", not a callable: hand in the function, not its result.",
        ),
        (
            _needs_path,
            "input_fn _needs_path requires ['path'], which nobody supplies; supplied "
            "are ['config', 'input_context', 'mode', 'params'].",
        ),
        (
            lambda: np.zeros(3),
            "input_fn <lambda> returned ndarray array([0., 0., 0.]), not a tf.data.",
        ),
        (
            lambda: tf.data.Dataset.from_tensors((1, 2, 3)),
            "input_fn <lambda> yields tuples of 3: (TensorSpec(shape=(), dtype=tf.int32"
            ", name=None), ",
        ),
    ],
)
def test_what_is_no_input_is_refused(input_fn, text):
    with pytest.raises(TypeError) as error:
        make_feed(input_fn)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("element", "number"),
    [
        (tf.zeros([3, 2]), 3),
        ({"a": tf.zeros([4]), "b": tf.zeros([4, 2])}, 4),
        (tf.constant(1.0), 1),
        (tf.ragged.constant([[1], [2, 3]]), 2),
        (tf.sparse.from_dense([[1, 0], [0, 1], [1, 1]]), 3),
    ],
    ids=["tensor", "nest", "scalar", "ragged", "sparse"],
)
def test_rows_in_a_batch(element, number):
    assert int(rows_in(element)) == number


def test_the_size_of_ragged_and_sparse_batches_is_known_where_it_is_fixed():
    rows = tf.data.Dataset.from_tensor_slices(tf.eye(4))
    sizes = []
    for convert in (tf.RaggedTensor.from_tensor, tf.sparse.from_dense):
        for fixed in (True, False):
            data = rows.batch(2, drop_remainder=fixed).map(convert)
            data.map(lambda each: sizes.append(rows_in(each)) or 0)
    assert [size if isinstance(size, int) else None for size in sizes] == [
        *[2, None, 2, None]
    ]


def test_one_tensor_of_known_size_tells_that_of_the_others():
    kinds = {
        "a": tf.RaggedTensorSpec([None, None], tf.int64, 1),
        "b": tf.TensorSpec([8, 3]),
        "c": tf.TensorSpec([]),
    }
    sizes = []
    tf.function(lambda batch: sizes.append(rows_in(batch))).get_concrete_function(kinds)
    assert sizes == [8]


def test_ragged_and_sparse_features_are_cut_too(two_replicas):
    ragged = tf.ragged.constant([[1], [2, 3], [], [4]])
    sparse = tf.sparse.from_dense([[1, 0], [0, 2], [3, 0], [0, 4]])

    def input_fn():
        data = tf.data.Dataset.from_tensor_slices({"r": ragged, "s": sparse})
        return data.batch(4)

    feed = make_feed(input_fn, strategy=two_replicas)
    _, ((second,)) = feed.plan.try_take(iter(feed.dataset))[1]()
    assert second.features["r"].to_list() == [[], [4]]
    dense = tf.sparse.to_dense(second.features["s"])
    assert dense.numpy().tolist() == [[3, 0], [0, 4]]


def test_parts_of_a_batch_of_fixed_size_may_have_any_size(two_replicas):
    """What a model is built for: of a kind that says so, whatever kind it is."""

    def input_fn():
        rows = tf.data.Dataset.from_tensor_slices(tf.eye(4)).batch(4, True)
        ragged = rows.map(tf.RaggedTensor.from_tensor)
        sparse = rows.map(tf.sparse.from_dense)
        return tf.data.Dataset.zip({"r": ragged, "s": sparse, "t": rows})

    features, _ = make_feed(input_fn, strategy=two_replicas).element_spec
    shapes = {name: spec.shape.as_list() for name, spec in features.items()}
    assert shapes == {"r": [None, 4], "s": [None, 4], "t": [None, 4]}
    cut = rows_of(tf.sparse.eye(4), tf.constant(1), tf.constant(3))
    assert tf.sparse.to_dense(cut).numpy().tolist() == [[0, 1, 0, 0], [0, 0, 1, 0]]


SIZES = RunConfig(train_batch_size=8, eval_batch_size=6, predict_batch_size=2)


@pytest.mark.parametrize(("mode", "size"), zip(ModeKeys.ALL, (8, 6, 2), strict=True))
def test_an_input_fn_finds_its_batch_size_in_its_own_copy_of_params(
    two_replicas, mode, size
):
    found, params = [], {"width": 3}

    def of_all(params):
        found.append(params)
        return rows(24).batch(params["batch_size"])

    def of_one(params, input_context):
        return of_all(params)

    options = {"mode": mode, "strategy": two_replicas, "config": SIZES}
    feeds = [make_feed(fn, params=params, **options) for fn in (of_all, of_one)]
    assert found == [{"width": 3, "batch_size": each} for each in (size, size // 2)]
    assert params == {"width": 3}
    # Both make the same global batches.
    assert [len(steps_of(feed)) for feed in feeds] == [24 // size] * 2


def test_a_batch_size_in_params_has_equal_parts_and_somebody_to_find_it(two_replicas):
    def of_one(params, input_context):
        raise AssertionError

    options = {"strategy": two_replicas, "config": RunConfig(train_batch_size=5)}
    with pytest.raises(ValueError, match="a global batch of 5 .* write 4 or 6"):
        make_feed(of_one, **options)
    message = (
        r"train_batch_size is 5, and input_fn .*of_none takes no params to find .*"
    )

    def of_none(mode, input_context):
        raise AssertionError

    with pytest.raises(TypeError, match=message + r"take params and write dataset\."):
        make_feed(of_none, **options)
    # Each mode has its own.
    assert len(steps_of(make_feed(lambda: rows(4).batch(2), mode=EVAL, **options))) == 2
