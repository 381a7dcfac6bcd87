"""Heads: the numbers of tf.estimator 2.15.1, labels, refusals, and whole runs."""

import functools
import json
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from gin_estimator.models import (
    AccuracyBaseline,
    BinaryClassHead,
    LogisticRegressionHead,
    MultiClassHead,
    MultiHead,
    MultiLabelHead,
    PoissonRegressionHead,
    RegressionHead,
)

import gin_estimator as ge
from gin_estimator import ModeKeys
from refusals import refused

# Recorded with TensorFlow 2.15.1.
RECORDED = json.loads((pathlib.Path(__file__).parent / "heads.json").read_text())
WEIGHTS = np.float32(RECORDED["weights"])
HEADS = {
    "binary": (BinaryClassHead, {"thresholds": [0.3, 0.75]}),
    "multi_class": (MultiClassHead, {"n_classes": 4}),
    "multi_label": (
        MultiLabelHead,
        {"n_classes": 3, "thresholds": [0.4], "classes_for_class_based_metrics": [1]},
    ),
    "regression": (RegressionHead, {"label_dimension": 2}),
    "logistic": (LogisticRegressionHead, {}),
    "poisson": (PoissonRegressionHead, {}),
}


def case(name):
    """Returns logits, labels, and recorded results."""
    recorded = RECORDED["cases"][name]
    labels = np.asarray(recorded["labels"])
    labels = labels if labels.dtype.kind == "i" else np.float32(labels)
    return np.float32(recorded["logits"]), labels, recorded


def results_of(declared, parts):
    """Returns the results of metrics that are declared for each part."""
    metrics = {name: each.factory() for name, each in declared.items()}
    for part in parts:
        for name, each in part.items():
            metrics[name].update_state(*each.args, **each.kwargs)
    return {name: float(each.result()) for name, each in metrics.items()}


def evaluated(head, features, logits, labels):
    """Returns the metrics, and the sums and weights of the losses, of two unequal batches."""
    specs = [
        head.create_estimator_spec(
            {name: tf.constant(value[rows]) for name, value in features.items()},
            ModeKeys.EVAL,
            tf.constant(logits[rows]),
            tf.nest.map_structure(lambda value, rows=rows: tf.constant(value[rows]), labels),
        )
        for rows in (slice(0, 7), slice(7, 11))
    ]
    total = weight = 0.0
    for spec in specs:
        weights = 1.0 if spec.loss_weights is None else spec.loss_weights
        total += np.sum(spec.loss * weights)
        weight += np.sum(tf.ones_like(spec.loss) * weights)
    return results_of(specs[0].metrics, [spec.metrics for spec in specs]), total, weight


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("name", HEADS)
def test_the_numbers_are_those_of_tf_estimator(name, weighted):
    factory, options = HEADS[name]
    head = factory(weight_column="w" if weighted else None, **options)
    logits, labels, recorded = case(name)
    recorded = recorded["weighted" if weighted else "plain"]
    metrics, total, weight = evaluated(head, {"w": WEIGHTS}, logits, labels)
    assert total / weight == pytest.approx(recorded["metrics"]["average_loss"], rel=1e-5)
    assert metrics == pytest.approx(recorded["metrics"], rel=1e-5)

    spec = head.create_estimator_spec({}, ModeKeys.PREDICT, tf.constant(logits))
    assert spec.predictions.keys() == recorded["predictions"].keys()
    for key, expected in recorded["predictions"].items():
        actual = spec.predictions[key].numpy()
        if actual.dtype.kind == "O":
            np.testing.assert_array_equal(actual.astype(str), expected)
        else:
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


SIGNATURES = {
    "binary": {"serving_default", "predict", "classification", "regression"},
    "multi_class": {"serving_default", "predict", "classification"},
    "multi_label": {"serving_default", "predict", "classification"},
    "regression": {"serving_default", "predict", "regression"},
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    factory, options = HEADS[name]
    logits, _, _ = case(name)
    outputs = factory(**options).create_estimator_spec({}, "infer", logits).export_outputs
    assert outputs.keys() == SIGNATURES[name]
    default = outputs["serving_default"].keys()
    assert default == ({"outputs"} if name == "regression" else {"scores", "classes"})


def test_several_heads():
    recorded = RECORDED["cases"]["multi"]
    labels = {
        "click": np.int64(recorded["labels"]["click"]),
        "price": np.float32(recorded["labels"]["price"]),
    }
    click = BinaryClassHead(weight_column="w", name="click")
    head = MultiHead([click, RegressionHead(name="price")], [2.0, 0.5])
    logits = np.float32(recorded["logits"])
    metrics, total, weight = evaluated(head, {"w": WEIGHTS}, logits, labels)
    assert total / weight == pytest.approx(recorded["loss"], rel=1e-6)
    alone, _, _ = evaluated(click, {"w": WEIGHTS}, logits[:, :1], labels["click"])
    assert metrics == metrics | {f"{name}/click": value for name, value in alone.items()}
    assert "average_loss/price" in metrics
    by_name = {"click": logits[:, :1], "price": logits[:, 1:]}
    for each in (tf.constant(logits), by_name):
        spec = head.create_estimator_spec({}, ModeKeys.PREDICT, each)
        assert {"click/logits", "price/predictions"} <= spec.predictions.keys()
        assert {"click", "price", "click/predict"} <= spec.export_outputs.keys()
        assert spec.export_outputs["serving_default"] is spec.export_outputs["click"]


def test_top_k_and_baseline():
    logits = [[3.0, 2.0, 1.0, 0.0], [3.0, 2.0, 1.0, 0.0]]
    head = MultiClassHead(4, top_k=(2,))
    spec = head.create_estimator_spec({}, "eval", logits, tf.constant([1, 3]))
    assert results_of(spec.metrics, [spec.metrics])["top_2_accuracy"] == 0.5
    baseline = AccuracyBaseline()
    baseline.update_state([[0.0], [1.0], [0.0]], [[1.0], [1.0], [2.0]])
    assert float(baseline.result()) == 0.75


def test_labels_in_words():
    binary = BinaryClassHead(label_vocabulary=["no", "yes"])
    np.testing.assert_array_equal(binary.targets(tf.constant([["yes"], ["no"]])), [[1], [0]])
    several = MultiClassHead(3, label_vocabulary=[10, 20, 40])
    np.testing.assert_array_equal(several.targets(tf.constant([40, 10])), [2, 0])
    spec = several.create_estimator_spec({}, ModeKeys.PREDICT, tf.zeros([1, 3]))
    assert spec.predictions["classes"].numpy().tolist() == [[b"10"]]
    any_of = MultiLabelHead(3, label_vocabulary=["a", "b", "c"])
    lists = tf.ragged.constant([["c", "a", "c"], [], ["b"]])
    for labels in (lists, lists.to_sparse()):
        np.testing.assert_array_equal(any_of.targets(labels), [[1, 0, 1], [0, 0, 0], [0, 1, 0]])
        assert any_of.create_estimator_spec({}, "eval", tf.zeros([3, 3]), labels).loss.shape == [3]
    with pytest.raises(tf.errors.InvalidArgumentError, match="label_vocabulary.*maybe"):
        binary.targets(tf.constant(["maybe"]))


OP = ge.TrainOp(keras.optimizers.SGD(), [tf.Variable(0.0)])


@pytest.mark.parametrize(
    ("head", "labels", "text"),
    [
        (BinaryClassHead(), [[2]], "labels: expected 0 to 1.*2"),
        (MultiClassHead(3), [3], "labels: expected 0 to 2.*3"),
        (MultiLabelHead(2), [[0, 2]], "labels: expected 0 to 1.*2"),
        (MultiLabelHead(2), tf.ragged.constant([[2]]), "labels: expected 0 to 1.*2"),
        (LogisticRegressionHead(), [1.5], "labels: expected 0 to 1.*1.5"),
        (PoissonRegressionHead(), [-1], "labels: expected 0 or more.*-1"),
        (BinaryClassHead(weight_column="w"), [[1]], "weight_column w: expected 0 or more.*nan"),
    ],
)
def test_a_label_or_weight_out_of_range_ends_the_step(head, labels, text):
    labels = labels if tf.is_tensor(labels) else tf.constant(labels)
    features = {"w": tf.constant([np.nan])}
    logits = tf.zeros([1, head.logits_dimension])

    def loss():
        return head.create_estimator_spec(features, "train", logits, labels, train_op=OP).loss

    with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s){text}"):
        tf.function(loss, autograph=False)()


test_wrong_arguments = refused(
    lambda make: make(),
    (lambda: BinaryClassHead(thresholds=[30]), "thresholds has 30: expected probabilities"),
    (lambda: BinaryClassHead(label_vocabulary="ab"), "expected 2 different labels"),
    (lambda: MultiClassHead(1), "n_classes is 1: expected an int > 1"),
    (lambda: MultiHead([]), "expected heads with different names"),
    (lambda: MultiHead([RegressionHead()]), "expected heads with different names"),
)


BINARY = BinaryClassHead(weight_column="w")


test_what_does_not_fit_is_refused = refused(
    lambda head, features, logits, labels: head.create_estimator_spec(
        {name: tf.constant(value) for name, value in features.items()},
        ModeKeys.TRAIN,
        tf.constant(logits),
        None if labels is None else tf.constant(labels),
    ),
    (BINARY, {"w": [1.0]}, [[1.0, 2.0]], [1], r"BinaryClassHead expects \[batch, 1\]"),
    (BINARY, {"w": [1.0]}, [[1.0]], [[1, 0]], "labels have shape"),
    (BINARY, {"w": [1.0]}, [[1.0]], [1, 0], "one label for each row"),
    (BINARY, {"v": [1.0]}, [[1.0]], [1], "weight_column is 'w': expected .*'v'"),
    (BINARY, {"w": [[1.0, 2.0]]}, [[1.0]], [1], "one weight for each"),
    (BINARY, {"w": [1.0]}, [[1.0]], None, "labels is None in mode TRAIN"),
    (BINARY, {"w": [1.0]}, [[1.0]], [1], "neither of optimizer and train_op"),
    (MultiClassHead(3), {}, [[1.0] * 3], [1.0], "tf.int64"),
    (RegressionHead(), {}, [[1.0]], ["1"], "to_number"),
    (RegressionHead(loss_fn=lambda y, z: tf.reduce_mean(y)), {}, [[1.0]], [1.0], "without a"),
    (MultiHead([RegressionHead(name="a")]), {}, [[1.0]], [1.0], r"the entries \['a'\]"),
    (RegressionHead(loss_reduction="none"), {}, [[1.0]], [1.0], "neither|'mean' or 'sum'"),
)


# Whole runs.

RNG = np.random.default_rng(0)
X = RNG.normal(size=[44, 6]).astype(np.float32)
FEATURES = {"x": X, "w": np.float32(RNG.integers(3, size=44))}
LABELS = {"odd": np.int64(X[:, 0] > 0), "sum": np.float32(X.sum(1))}


def input_fn():
    return tf.data.Dataset.from_tensor_slices((FEATURES, LABELS)).batch(8)


def run(folder, loss_reduction, **config):
    """Trains two heads on one network; returns kernel, evaluation and estimator."""

    def model_fn(features, labels, mode, network, optimizer):
        heads = [BinaryClassHead(name="odd", weight_column="w"), RegressionHead(name="sum")]
        head = MultiHead(heads, loss_reduction=loss_reduction)
        logits = network(features["x"], training=mode == ModeKeys.TRAIN)
        return head.create_estimator_spec(
            features,
            mode,
            logits,
            labels,
            optimizer,
            network.trainable_variables,
            regularization_losses=network.losses,
        )

    def network():
        dense = keras.layers.Dense(2, kernel_initializer="ones", kernel_regularizer="l2")
        return keras.Sequential([dense])

    modules = {"network": network, "optimizer": lambda: keras.optimizers.SGD(0.01)}
    config = ge.RunConfig(model_dir=str(folder), **config)
    estimator = ge.Estimator(model_fn, modules=modules, config=config)
    estimator.train(input_fn)
    kernel = estimator.get_variable_value("network/dense/kernel")
    return kernel, estimator.evaluate(input_fn), estimator


TWO = {"devices": ("CPU:0", "CPU:1")}
CONFIGS = {
    "mirrored 2": TWO,
    "mirrored 4": {"devices": tuple(f"CPU:{i}" for i in range(4))},
    "central 2": {**TWO, "train_distribute": ge.central_storage},
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Returns the outcome of one replica by loss_reduction."""
    return functools.cache(lambda kind: run(tmp_path_factory.mktemp(kind), kind))


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("kind", ["mean", "sum"])
def test_replicas_train_what_one_does(alone, tmp_path, name, kind):
    kernel, metrics, _ = run(tmp_path, kind, **CONFIGS[name])
    np.testing.assert_allclose(kernel, alone(kind)[0], rtol=1e-5, atol=1e-6)
    assert metrics == pytest.approx(alone(kind)[1], rel=1e-5, abs=1e-6)


@pytest.mark.slow
def test_a_sum_is_the_mean_times_the_batch(alone):
    """As in compat.v1: the canned loss is the sum, `average_loss` the mean."""
    loss, average = alone("sum")[1]["loss"], alone("sum")[1]["average_loss/sum"]
    assert loss > 4 * average
    assert np.abs(alone("sum")[0] - alone("mean")[0]).max() > 0.01


@pytest.mark.slow
def test_signatures_of_several_heads_are_exported(alone, tmp_path):
    path = alone("sum")[2].export_saved_model(str(tmp_path))
    loaded = tf.saved_model.load(path)
    assert {"serving_default", "odd", "sum", "sum/predict"} <= set(loaded.signatures)
