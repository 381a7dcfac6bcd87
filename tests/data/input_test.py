"""From input_fn to the batches of replicas: arguments, refusals, and parts of batches."""

import collections
import functools
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import gin_estimator as ge
from data.reads import Reads
from refusals import refused
from small import strategy

Pair = collections.namedtuple("Pair", "left right")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(21, 5)).astype("float32")
Y = RNG.normal(size=21).astype("float32")


@pytest.fixture(scope="module")
def two_replicas():
    return strategy("mirrored 2")


def rows(number, size=1):
    return tf.data.Dataset.range(number).batch(size)


def test_arguments_come_by_name(tmp_path, two_replicas):
    seen = []

    def input_fn(size, config, *, mode, params, input_context, first_batch):
        seen.append((mode, params, config, input_context, first_batch))
        return rows(4, size)

    estimator = Reads(tmp_path, two_replicas).make(params={"a": 1})
    input_fn = functools.partial(input_fn, 2)
    estimator.train(input_fn, max_steps=1)
    estimator.evaluate(input_fn)
    assert len(list(estimator.predict(input_fn))) == 4
    assert [each[0] for each in seen] == ["train", "eval", "infer"]
    for _, params, config, context, first_batch in seen:
        assert (params, config, first_batch) == ({"a": 1}, estimator.config, 0)
        assert (context.num_input_pipelines, context.input_pipeline_id) == (1, 0)
    assert [each[3].num_replicas_in_sync for each in seen] == [2, 2, 2]


@pytest.mark.slow
def test_batch_sizes_of_the_run_config(tmp_path, two_replicas):
    sizes = {"train_batch_size": 8, "eval_batch_size": 6, "predict_batch_size": 2}
    found, given = [], {"width": 3}

    def of_all(params):
        found.append(params)
        return rows(24, params["batch_size"])

    def of_one(params, input_context):
        return of_all(params)

    for input_fn in (of_all, of_one):
        reads = Reads(tmp_path / input_fn.__name__, two_replicas)
        estimator = reads.make(params=given, **sizes)
        estimator.train(input_fn, steps=1)
        estimator.evaluate(input_fn)
        list(estimator.predict(input_fn))
    assert [each.pop("batch_size") for each in found] == [8, 6, 2, 4, 3, 1]
    assert found == [given] * 6 and "batch_size" not in given
    for params, input_fn, size, message in [
        (None, lambda: rows(4), 4, "train_batch_size is 4, and input_fn <lambda>.* no params"),
        ({"batch_size": 3}, of_all, 4, "'batch_size'. is 3, and RunConfig.train_batch_size is 4"),
        (Pair(1, 2), of_all, 4, "params is Pair.*expected a dict, or an object that takes"),
        ({}, of_one, 5, "global batch size is 5.*multiple of the 2 replicas. Set 4 or 6"),
    ]:
        estimator = reads.make(params=params, train_batch_size=size)
        with pytest.raises(ge.UserError, match=message):
            estimator.train(input_fn, steps=1)
        estimator.evaluate(lambda: rows(4, 2))  # Each mode has its own batch size.
    width = types.SimpleNamespace(width=3)
    estimator = reads.make(params=width, train_batch_size=4)
    estimator.train(lambda params: rows(4, params.batch_size), steps=1)
    assert not hasattr(width, "batch_size")


test_wrong_inputs_are_refused = refused(
    lambda tmp_path, input_fn: Reads(tmp_path)(input_fn, max_steps=1),
    (rows(3), "expected a function that returns"),
    (lambda path: rows(3), r"<lambda> requires \['path'\]: expected some of \['config', 'mode'"),
    (lambda: None, r"returned None: expected .* Write return tf.data.Dataset.from"),
    (lambda: X[:2], "(?s)returned array.*expected a tf.data.Dataset"),
    (lambda: tf.data.Dataset.from_tensors((1, 2, 3)), "yields tuples of 3.*Weights"),
    (lambda: tf.data.Dataset.from_tensors(((), 1)), "yields no features"),
    (
        lambda: tf.data.Dataset.from_tensors(X).map(lambda x: {"x": x, "m": None}),
        r"yields None as features\['m'\]",
    ),
    fixtures=["tmp_path"],
)


def nested(x, y):
    features = {
        "pair": (x[:, :1], Pair(x[:, 1:2], {"deep": x[:, 2:3]})),
        "ragged": tf.RaggedTensor.from_tensor(x[:, 3:4]),
        "sparse": tf.sparse.from_dense(x[:, 4:]),
        "text": tf.strings.as_string(x[:, 0]),
    }
    return features, Pair(y, y * 2)


def joined(features):
    left, pair = features["pair"]
    assert isinstance(pair, Pair)
    dense = [features["ragged"].to_tensor(shape=[None, 1]), tf.sparse.to_dense(features["sparse"])]
    number = tf.strings.to_number(features["text"])[:, tf.newaxis]
    return tf.concat([left, pair.left, pair.right["deep"], *dense, number], axis=1)


def nested_model_fn(features, labels, mode, network, optimizer):
    x = (
        joined(features)
        if isinstance(features, dict)
        else tf.concat([features, features[:, :1]], 1)
    )
    values = network(tf.ensure_shape(x, [None, 6]))[:, 0]
    if mode == ge.ModeKeys.PREDICT:
        return ge.EstimatorSpec(mode, predictions=values)
    labels = labels.left + labels.right / 2 if isinstance(labels, Pair) else labels * 2
    loss = tf.square(values - labels)
    return ge.EstimatorSpec(mode, loss=loss, train_op=ge.TrainOp(optimizer, network.variables))


NESTED = {
    "one replica": {},
    "replicas": {"train_distribute": strategy("mirrored 4")},
    "micro-batches": {"train_distribute": strategy("mirrored 2"), "gradient_accumulation_steps": 2},
}


@pytest.mark.slow
@pytest.mark.oldest
def test_nested_ragged_and_sparse_components_are_split(tmp_path):
    """In the last step a replica has one example, another one has none."""

    def results(folder, change, **config):
        size = 8 // config.get("gradient_accumulation_steps", 1)

        def input_fn():
            data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(size).map(change)
            return data.filter(lambda *_: True)  # Its length is not known.

        dense = functools.partial(keras.layers.Dense, 1, kernel_initializer="ones")
        estimator = ge.Estimator(
            nested_model_fn,
            modules={"network": dense, "optimizer": lambda: keras.optimizers.SGD(0.01)},
            config=ge.RunConfig(tmp_path / folder, **config),
        )
        estimator.train(input_fn)
        loss = estimator.evaluate(input_fn)["loss"]
        return [loss, *estimator.predict(input_fn)]

    expected = results("plain", lambda x, y: (x, y))
    for name, options in NESTED.items():
        found = results(name, nested, **options)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5, err_msg=name)


def test_components_without_a_row_for_each_example_are_refused(tmp_path, two_replicas):
    def train(features, labels=None):
        data = tf.data.Dataset.from_tensors((features, labels)).repeat(2)
        Reads(tmp_path, two_replicas)(lambda: data, max_steps=1)

    eight = np.arange(8)
    with pytest.raises(ge.UserError, match=r"yields features\['z'\] of shape \(\).*tf.repeat"):
        train({"x": eight, "z": 3})
    with pytest.raises(ge.errors.UserTypeError, match=r"yields features\['z'\] of shape \(3,\)"):
        train({"x": eight, "z": eight[:3]})
    with pytest.raises(ge.errors.UserTypeError, match=r"yields labels\[1\] of shape \(3,\)"):
        train(eight, (eight, eight[:3]))

    def unknown(number):
        return tf.repeat(tf.constant(5, tf.int64), number)

    data = tf.data.Dataset.from_tensors((3, 4)).map(lambda a, b: (unknown(a), unknown(b)))
    with pytest.raises(Exception, match="features, labels have different numbers of rows"):
        Reads(tmp_path, two_replicas)(lambda: data, max_steps=1)


def test_static_shapes_and_missing_labels(tmp_path, two_replicas):
    shapes = []

    def model_fn(features, labels, mode, weight, optimizer):
        shapes.append((features["x"].shape[0], labels))
        loss = tf.reduce_sum(features["x"], axis=1) * weight
        return ge.EstimatorSpec(mode, loss=loss, train_op=ge.TrainOp(optimizer, [weight]))

    def input_fn():
        data = tf.data.Dataset.from_tensor_slices({"x": X}).batch(8, drop_remainder=True)
        return data.map(lambda features: (features, None))

    modules = {"weight": lambda: tf.Variable(0.0), "optimizer": keras.optimizers.SGD}
    for index, replicas in enumerate([None, two_replicas]):
        config = ge.RunConfig(tmp_path / str(index), train_distribute=replicas)
        shapes.clear()
        ge.Estimator(model_fn, modules=modules, config=config).train(input_fn)
        # The build trace has the spec of a part; its number of rows may differ.
        assert shapes[0] == ((None if replicas else 8), None)
        assert {labels for _, labels in shapes} == {None}


def test_parts_with_other_numbers_of_rows_are_refused_on_one_replica(tmp_path):
    """A scalar belongs to the batch; losses are weighted by the rows of the first tensor."""

    def train(features, labels=None):
        data = tf.data.Dataset.from_tensors((features, labels))
        return Reads(tmp_path)(lambda: data, max_steps=1)

    nine = np.zeros([9], "int64")
    train(nine, {"y": nine, "scale": 3.0})
    with pytest.raises(ge.UserError, match=r"yields features\['z'\] of shape \(1,\).*weighted"):
        train({"x": nine, "z": nine[:1]})
    with pytest.raises(ge.UserError, match=r"yields labels of shape \(3,\).*batch\(32\)"):
        train(nine, nine[:3])
