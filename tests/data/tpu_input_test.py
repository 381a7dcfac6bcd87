"""The runner of a TPU on logical CPUs: trains, evaluates and predicts as one replica."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import gin_estimator as ge
from gin_estimator.data import tpu_input
from like_a_tpu import like_a_tpu  # noqa: F401
from two_vectors import Reports

# Six batches of 32 and half of one, which leaves one of two replicas without examples.
NUM_ROWS = 208
_RNG = np.random.default_rng(0)
X = _RNG.normal(size=(NUM_ROWS, 6)).astype("float32")
Y = _RNG.integers(3, size=NUM_ROWS)


def model_fn(features, labels, mode, network, optimizer):
    logits = network(features["x"], training=mode == ge.ModeKeys.TRAIN)
    if mode == ge.ModeKeys.PREDICT:
        return ge.EstimatorSpec(mode, predictions={"logits": logits})
    return ge.EstimatorSpec(
        mode,
        loss=keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True),
        regularization_losses=[0.01 * tf.reduce_sum(network.layers[0].kernel ** 2)],
        train_op=ge.TrainOp(optimizer, network.trainable_variables, clip_norm=0.2),
        metrics={"accuracy": ge.metric(keras.metrics.SparseCategoricalAccuracy, labels, logits)},
        scalars={"logit": tf.reduce_mean(logits)},
    )


def make_input_fn(*, per_replica, ends=True, size=32, rows=NUM_ROWS, drop_remainder=True):
    def batched(mode, size):
        features = {"x": X[:rows]}
        data = features if mode == ge.ModeKeys.PREDICT else (features, Y[:rows])
        data = tf.data.Dataset.from_tensor_slices(data)
        data = data if ends or mode != ge.ModeKeys.TRAIN else data.repeat()
        return data.batch(size, drop_remainder=drop_remainder)

    def global_input_fn(mode):
        return batched(mode, size)

    def replica_input_fn(mode, input_context):
        return batched(mode, input_context.get_per_replica_batch_size(size))

    return replica_input_fn if per_replica else global_input_fn


def network(*layers):
    def make():
        dense = [keras.layers.Dense(8, "relu"), *(layer() for layer in layers)]
        return keras.Sequential([*dense, keras.layers.Dense(3)])

    return make


def make_estimator(folder, strategy, *layers, **config):
    config = {"save_checkpoints_steps": 100, "tf_random_seed": 1, **config}
    return ge.Estimator(
        model_fn,
        modules={
            "network": network(*layers),
            "optimizer": lambda: keras.optimizers.Adam(0.01),
        },
        config=ge.RunConfig(str(folder), train_distribute=strategy, **config),
    )


def trained(folder, strategy, input_fn, max_steps=None, **options):
    estimator, hook = make_estimator(folder, strategy, **options), Reports()
    estimator.train(input_fn, max_steps=max_steps, hooks=[hook])
    return estimator, hook.reports


def weights(estimator):
    names = estimator.get_variable_names()
    values = {name: estimator.get_variable_value(name) for name in names}
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def assert_same_weights(actual, expected):
    actual, expected = weights(actual), weights(expected)
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, 1e-5, 2e-6, err_msg=name)


def logits(estimator, input_fn):
    return np.array([each["logits"] for each in estimator.predict(input_fn)])


# Of global batches, the input drops those that the replicas cannot share.
@pytest.mark.slow
@pytest.mark.parametrize(("per_replica", "rows"), [(True, NUM_ROWS), (False, 192)])
def test_a_tpu_does_as_one_replica(tmp_path, like_a_tpu, per_replica, rows):  # noqa: F811
    input_fn = make_input_fn(per_replica=per_replica, rows=rows)
    plain = make_input_fn(per_replica=False, rows=rows, drop_remainder=False)
    actual, reports = trained(tmp_path / "tpu", like_a_tpu, input_fn)
    expected, expected_reports = trained(tmp_path / "one", None, plain)
    assert_same_weights(actual, expected)
    assert len(reports) == len(expected_reports) == -(-rows // 32)
    for report, other in zip(reports, expected_reports, strict=True):
        assert report.num_examples == other.num_examples
        assert report.loss == pytest.approx(other.loss, rel=1e-5)
        assert report.scalars == pytest.approx(other.scalars, rel=1e-4, abs=1e-6)
    assert actual.evaluate(input_fn) == pytest.approx(expected.evaluate(plain), rel=1e-5)
    predicted = logits(actual, input_fn)
    assert predicted.shape == (rows, 3)
    np.testing.assert_allclose(predicted, logits(expected, plain), 1e-4, 1e-5)


def first_batch_input_fn(mode, input_context, first_batch):
    data = make_input_fn(per_replica=True)(mode, input_context)
    return data.skip(first_batch).apply(tf.data.experimental.assert_cardinality(13 - first_batch))


@pytest.mark.slow
def test_a_resumed_run_calls_an_input_fn_that_starts_anywhere(tmp_path, like_a_tpu):  # noqa: F811
    for steps in (3, 5):
        actual, _ = trained(tmp_path / "tpu", like_a_tpu, first_batch_input_fn, steps)
    plain = make_input_fn(per_replica=False)
    assert_same_weights(actual, trained(tmp_path / "one", None, plain, 5)[0])


def test_several_hosts_share_global_batches():
    dataset = tf.data.Dataset.range(16).batch(8, drop_remainder=True)
    hosts = [
        [part.tolist() for part in tpu_input.split(dataset, 4, parts).as_numpy_iterator()]
        for parts in (range(0, 2), range(2, 4))
    ]
    assert hosts == [[[0, 1], [2, 3], [8, 9], [10, 11]], [[4, 5], [6, 7], [12, 13], [14, 15]]]


@pytest.mark.slow
@pytest.mark.parametrize(("per_replica", "ends"), [(True, True), (False, False)])
def test_a_resumed_run_continues_with_the_next_example(tmp_path, like_a_tpu, per_replica, ends):  # noqa: F811
    input_fn = make_input_fn(per_replica=per_replica, ends=ends)
    for steps in (3, 5):
        actual, _ = trained(tmp_path / "tpu", like_a_tpu, input_fn, steps)
    plain = make_input_fn(per_replica=False)
    assert_same_weights(actual, trained(tmp_path / "one", None, plain, 5)[0])


@pytest.mark.slow
@pytest.mark.parametrize("per_replica", [True, False])
def test_micro_batches(tmp_path, like_a_tpu, per_replica):  # noqa: F811
    input_fn = make_input_fn(per_replica=per_replica, size=16)
    actual, reports = trained(tmp_path / "tpu", like_a_tpu, input_fn, gradient_accumulation_steps=2)
    expected, _ = trained(
        tmp_path / "one", None, make_input_fn(per_replica=False, drop_remainder=False)
    )
    assert [report.num_examples for report in reports] == [32] * 6 + [16]
    assert_same_weights(actual, expected)


@pytest.mark.slow
def test_dropout_and_statistics(tmp_path, like_a_tpu):  # noqa: F811
    estimator = make_estimator(
        tmp_path,
        like_a_tpu,
        keras.layers.BatchNormalization,
        lambda: keras.layers.Dropout(0.5),
    )
    estimator.train(make_input_fn(per_replica=True))
    values = weights(estimator)
    assert all(np.isfinite(value).all() for value in values.values())
    assert any("moving_mean" in name and np.abs(values[name]).max() > 0 for name in values)


REFUSED = [
    (
        lambda: tf.data.Dataset.from_tensor_slices({"x": X}).batch(32),
        r"features\['x'\] .*static shape",
    ),
    (
        lambda: tf.data.Dataset.from_tensors({"x": ["a", "b"]}),
        r"features\['x'\] .*expected numbers",
    ),
    (
        lambda: tf.data.Dataset.from_tensors((X[:2], tf.ragged.constant([[1], [1, 2]]))),
        "labels as Ragged.*expected a dense tensor",
    ),
    (lambda: tf.data.Dataset.from_tensors(X[:33]), r"\(33, 6\) for 2 replicas: expected a number"),
    (lambda: tf.data.Dataset.from_tensors(1.0), "for 2 replicas: expected a number"),
]


@pytest.mark.parametrize(("input_fn", "text"), REFUSED)
def test_data_that_a_tpu_cannot_take(tmp_path, like_a_tpu, input_fn, text):  # noqa: F811
    with pytest.raises(ge.errors.UserValueError, match=text):
        make_estimator(tmp_path, like_a_tpu).train(input_fn)
    assert not list(tmp_path.glob("model.ckpt*"))


def test_an_empty_evaluation(tmp_path, like_a_tpu):  # noqa: F811
    estimator = make_estimator(tmp_path, like_a_tpu)
    estimator.train(make_input_fn(per_replica=True), max_steps=1)
    with pytest.raises(ge.errors.UserValueError, match="mode 'eval', returned an empty dataset"):
        estimator.evaluate(make_input_fn(per_replica=True, rows=3))
