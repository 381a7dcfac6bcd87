"""Heads: tf.estimator's numbers, what it lacks, wrong arguments, and a whole run."""

import json
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import models
import pipeline as ge
from pipeline.loop.metrics import MetricSet

# Made by tests/scripts/heads_of_tf_estimator.py.
RECORDED = json.loads((pathlib.Path(__file__).parent / "heads.json").read_text())
WEIGHTS = np.float32(RECORDED["weights"])
MAKERS = {
    "binary": (models.BinaryClassHead, {"thresholds": [0.3, 0.75]}),
    "multi_class": (models.MultiClassHead, {"n_classes": 4}),
    "multi_label": (
        models.MultiLabelHead,
        {
            "n_classes": 3,
            "thresholds": [0.4],
            "classes_for_class_based_metrics": [1],
        },
    ),
    "regression": (models.RegressionHead, {"label_dimension": 2}),
    "logistic": (models.LogisticRegressionHead, {}),
    "poisson": (models.PoissonRegressionHead, {}),
}


def case(name):
    """Logits, labels and what was recorded."""
    recorded = RECORDED["cases"][name]
    logits = np.float32(recorded["logits"])
    labels = np.asarray(recorded["labels"])
    return logits, labels if labels.dtype.kind == "i" else np.float32(labels), recorded


def evaluated(head, features, logits, labels, parts=(slice(0, 7), slice(7, 11))):
    """What an evaluation over so many batches reports, and its loss."""
    specs = [
        head.create_estimator_spec(
            {k: tf.constant(v[rows]) for k, v in features.items()},
            ge.ModeKeys.EVAL,
            tf.constant(logits[rows]),
            tf.nest.map_structure(lambda x, r=rows: tf.constant(x[r]), labels),
        )
        for rows in parts
    ]
    metrics = MetricSet(specs[0].metrics)
    added = [metrics.increments(s.metrics, len(s.loss), None) for s in specs]
    sums = [
        (tf.reduce_sum(s.loss * w), tf.reduce_sum(tf.ones_like(s.loss) * w))
        for s in specs
        for w in [1.0 if s.loss_weights is None else s.loss_weights]
    ]
    losses, weights = np.sum(np.float64(sums), axis=0)
    return metrics.results(added), losses / weights


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("name", MAKERS)
def test_the_numbers_are_tf_estimators(name, weighted):
    make, fields = MAKERS[name]
    head = make(weight_column="w" if weighted else None, **fields)
    logits, labels, recorded = case(name)
    theirs = recorded["weighted" if weighted else "plain"]
    reported, loss = evaluated(head, {"w": WEIGHTS}, logits, labels)
    assert loss == pytest.approx(theirs["metrics"]["average_loss"], rel=1e-5)
    both = {key: reported[key] for key in theirs["metrics"]}
    assert both == pytest.approx(theirs["metrics"], rel=1e-5)
    assert reported.keys() - both.keys() <= {"calibration"}

    spec = head.create_estimator_spec({}, ge.ModeKeys.PREDICT, tf.constant(logits))
    given = {
        key: value.numpy().astype(str) if value.dtype == tf.string else value
        for key, value in spec.predictions.items()
    }
    assert given.keys() == theirs["predictions"].keys()
    for key, value in theirs["predictions"].items():
        if isinstance(np.ravel(value)[0], str):
            np.testing.assert_array_equal(given[key], value)
        else:
            np.testing.assert_allclose(given[key], value, rtol=1e-5, atol=1e-6)
    assert "serving_default" in spec.export_outputs


def test_several_heads_have_tf_estimators_loss():
    recorded = RECORDED["cases"]["multi"]
    labels = {
        "click": np.int64(recorded["labels"]["click"]),
        "price": np.float32(recorded["labels"]["price"]),
    }
    head = models.MultiHead(
        heads=[
            models.BinaryClassHead(weight_column="w", name="click"),
            models.RegressionHead(name="price"),
        ],
        head_weights=[2.0, 0.5],
    )
    logits = np.float32(recorded["logits"])
    reported, loss = evaluated(head, {"w": WEIGHTS}, logits, labels)
    assert loss == pytest.approx(recorded["loss"], rel=1e-6)
    alone, _ = evaluated(head.heads[0], {"w": WEIGHTS}, logits[:, :1], labels["click"])
    assert {f"{name}/click": value for name, value in alone.items()} == pytest.approx(
        {name: v for name, v in reported.items() if name.endswith("/click")}
    )
    spec = head.create_estimator_spec({}, ge.ModeKeys.PREDICT, tf.constant(logits))
    assert {"click", "price", "price/predict"} < set(spec.export_outputs)
    same = spec.export_outputs["serving_default"], spec.export_outputs["click"]
    assert same[0] is same[1]


# What tf.estimator lacks.


def test_first_arguments_need_no_name_as_in_tf_estimator():
    assert models.MultiClassHead(4) == models.MultiClassHead(n_classes=4)
    assert models.MultiLabelHead(3) == models.MultiLabelHead(n_classes=3)
    assert models.RegressionHead(2) == models.RegressionHead(label_dimension=2)
    heads = [models.RegressionHead(name="a")]
    named = models.MultiHead(heads=heads, head_weights=[0.5])
    assert models.MultiHead(heads, [0.5]) == named


def test_the_auc_within_groups():
    rng = np.random.default_rng(3)
    p, y = rng.random(400).astype(np.float32), rng.integers(2, size=400)
    groups, weights = rng.integers(7, size=400), np.float32(rng.integers(4, size=400))
    y[groups == 5] = 1  # Has no AUC.
    total = count = 0.0
    for group in set(range(7)) - {5}:
        mine = groups == group
        exact = keras.metrics.AUC(num_thresholds=5000)
        exact.update_state(y[mine], p[mine], weights[mine])
        total += float(exact.result()) * weights[mine].sum()
        count += weights[mine].sum()
    metric = models.GroupAUC(8, num_bins=10000)
    for part in (slice(0, 150), slice(150, 400)):
        metric.update_state(y[part], p[part], groups[part], weights[part])
    assert float(metric.result()) == pytest.approx(total / count, abs=1e-3)
    for group in (8, 2**32 + 1, -(2**63)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="more num_groups"):
            metric.update_state([1], [0.5], tf.constant([group], tf.int64))


def test_a_head_reports_it():
    logits, labels, _ = case("binary")
    features = {"w": WEIGHTS, "user": np.arange(11) % 2}
    head = models.BinaryClassHead(group_column="user", num_groups=2)
    reported, _ = evaluated(head, features, logits, labels)
    right = []
    for user in (0, 1):
        z, y = logits[user::2, 0], labels[user::2, 0]
        right.append(np.mean(z[y == 1][:, None] > z[y == 0]))
    assert reported["gauc"] == pytest.approx(np.average(right, weights=[6, 5]), 1e-6)


def test_an_amount_s_likelihood():
    rng = np.random.default_rng(5)
    m, raw = rng.normal(size=6), rng.normal(size=6)
    y, s = np.exp(rng.normal(size=6)), np.log1p(np.exp(raw))
    density = np.exp(-((np.log(y) - m) ** 2) / (2 * s**2)) / (
        y * s * np.sqrt(2 * np.pi)
    )
    head = models.LogNormalRegressionHead()
    logits = tf.constant(np.stack([m, raw], -1), tf.float32)
    loss = head.losses(head.targets(np.float32(y)), logits)[:, 0]
    np.testing.assert_allclose(loss, -np.log(density), rtol=1e-4, atol=1e-5)
    mean = head.predictions(logits)["predictions"][:, 0]
    np.testing.assert_allclose(mean, np.exp(m + s**2 / 2), rtol=1e-5)


def test_the_losses_of_orders():
    """By loops over lists of unequal length, one of them without anything good."""
    scores = np.float32([[1, 2, -1, 9], [0.5, 0.1, 0.3, 9], [1, 2, 3, 4]])
    labels = np.float32([[2, 0, 1, -1], [0, 0, 0, -1], [0, 3, 0, 0]])
    pairwise, softmax = [], []
    for s, y in zip(scores, labels, strict=True):
        s, y = s[y >= 0], y[y >= 0]
        pairs = [
            np.log1p(np.exp(s[j] - s[i]))
            for i in range(len(s))
            for j in range(len(s))
            if y[i] > y[j]
        ]
        pairwise.append(np.mean(pairs) if pairs else 0.0)
        log_p = s - np.log(np.exp(s).sum())
        softmax.append(-(y * log_p).sum() / y.sum() if y.sum() else 0.0)
    for make, wanted in (
        (models.PairwiseRankingHead, pairwise),
        (models.SoftmaxRankingHead, softmax),
    ):
        head = make(top_k=(2,))
        np.testing.assert_allclose(head.losses(labels, scores), wanted, rtol=1e-5)
        reported, _ = evaluated(head, {}, scores, labels, [slice(0, 3)])
        # First list: order 1, 0, 2 has its good ones second and third.
        dcg = 3 / np.log2(3)
        ideal = 3 + 1 / np.log2(3)
        # Third list: 3 is third of four, so nothing is gained in two places.
        assert reported["ndcg_2"] == pytest.approx((dcg / ideal + 0) / 2, 1e-5)
        assert reported["mrr"] == pytest.approx((1 / 2 + 1 / 3) / 2, 1e-5)


def test_ragged_lists_are_padded():
    head = models.SoftmaxRankingHead()
    targets = head.targets(tf.ragged.constant([[1], [0, 2]]))
    np.testing.assert_array_equal(targets, [[1, -1], [0, 2]])


# Labels.


def test_labels_in_words():
    binary = models.BinaryClassHead(label_vocabulary=["no", "yes"])
    words = tf.constant([["yes"], ["no"]])
    np.testing.assert_array_equal(binary.targets(words), [[1], [0]])
    several = models.MultiClassHead(n_classes=3, label_vocabulary=[10, 20, 40])
    np.testing.assert_array_equal(several.targets(tf.constant([40, 10])), [2, 0])
    any_of = models.MultiLabelHead(n_classes=3, label_vocabulary=["a", "b", "c"])
    lists = tf.ragged.constant([["c", "a", "c"], [], ["b"]])
    wanted = [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    np.testing.assert_array_equal(any_of.targets(lists), wanted)
    np.testing.assert_array_equal(any_of.targets(lists.to_sparse()), wanted)
    spec = several.create_estimator_spec({}, ge.ModeKeys.PREDICT, tf.zeros([1, 3]))
    assert spec.predictions["classes"].numpy().tolist() == [[b"10"]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="label_vocabulary"):
        binary.targets(tf.constant(["maybe"]))


@pytest.mark.parametrize(
    ("head", "labels", "words"),
    [
        (models.BinaryClassHead(), [[2]], "from 0 to 1"),
        (models.MultiClassHead(n_classes=3), [3], "n_classes - 1 = 2"),
        (models.MultiLabelHead(n_classes=2), [[0, 2]], "0 or 1 for each class"),
        (
            models.MultiLabelHead(n_classes=2),
            tf.ragged.constant([[2]]),
            "n_classes - 1 = 1",
        ),
        (models.LogisticRegressionHead(), [1.5], "probabilities from 0 to 1"),
        (models.PoissonRegressionHead(), [-1], "0 or more"),
        (models.LogNormalRegressionHead(), [0.0], "above 0"),
    ],
)
def test_labels_out_of_range_end_the_step(head, labels, words):
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
        tf.function(head.targets)(
            labels if tf.is_tensor(labels) else tf.constant(labels)
        )


@pytest.mark.parametrize("weight", [-1.0, np.nan])
def test_weights_below_0_end_the_step(weight):
    head = models.BinaryClassHead(weight_column="v")
    features = {"v": tf.constant([1, weight])}
    given = tf.constant([[1.0], [2.0]]), tf.constant([[0], [1]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="v, must .* 0 or more"):
        tf.function(head.losses_of)(features, ge.ModeKeys.EVAL, *given)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: models.BinaryClassHead(thresholds=[30]), "thresholds has 30"),
        (lambda: models.BinaryClassHead(group_column="user"), "give both"),
        (lambda: models.BinaryClassHead(label_vocabulary="ab"), "one label for each"),
        (lambda: models.MultiClassHead(n_classes=1), "n_classes is 1"),
        (lambda: models.MultiClassHead(n_classes=3, top_k=[3]), "top_k has 3"),
        (
            lambda: models.MultiLabelHead(
                n_classes=3, classes_for_class_based_metrics=[3]
            ),
            "numbers from 0 to 2",
        ),
        (lambda: models.RegressionHead(label_dimension=0), "label_dimension is 0"),
        (lambda: models.LogNormalRegressionHead(label_dimension=2), "leave it out"),
        (lambda: models.SoftmaxRankingHead(top_k=[0]), "top_k has 0"),
        (lambda: models.MultiHead(heads=[]), "a list of heads"),
        (lambda: models.MultiHead(heads=[models.RegressionHead()]), "of its own"),
        (
            lambda: models.MultiHead(
                heads=[models.RegressionHead(name="a")], head_weights=[1, 2]
            ),
            "2 numbers for 1",
        ),
    ],
)
def test_wrong_arguments(make, words):
    with pytest.raises(ge.SpecError, match=words):
        make()


BINARY = models.BinaryClassHead(weight_column="w")


@pytest.mark.parametrize(
    ("head", "features", "logits", "labels", "words"),
    [
        (BINARY, {"w": [1.0]}, [[1.0, 2.0]], [1], "logits of shape"),
        (BINARY, {"w": [1.0]}, [[1.0]], [[1, 0]], "labels of shape"),
        (BINARY, {"w": [1.0]}, [[1.0]], [1, 0], "one label for each row"),
        (BINARY, {"v": [1.0]}, [[1.0]], [1], "weight_column is 'w'"),
        (BINARY, {"w": [1.0, 2.0]}, [[1.0]], [1], "one weight an example"),
        (BINARY, {"w": [1.0]}, [[1.0]], None, "needs labels"),
        (BINARY, {"w": [1.0]}, [[1.0]], [1], "something to train"),
        (models.MultiClassHead(n_classes=3), {}, [[1.0] * 3], [1.0], "tf.int64"),
        (models.RegressionHead(), {}, [[1.0]], ["1"], "to_number"),
        (
            models.RegressionHead(loss_fn=lambda y, z: tf.reduce_mean(y - z)),
            {},
            [[1.0]],
            [1.0],
            "not their mean",
        ),
        (
            models.MultiHead(heads=[models.RegressionHead(name="a")]),
            {},
            [[1.0]],
            [1.0],
            "by the heads' names",
        ),
    ],
)
def test_what_does_not_fit_is_named(head, features, logits, labels, words):
    features = {name: tf.constant(value) for name, value in features.items()}
    labels = labels if labels is None else tf.constant(labels)
    with pytest.raises(ge.SpecError, match=words):
        head.create_estimator_spec(
            features, ge.ModeKeys.TRAIN, tf.constant(logits), labels
        )


# A whole run.


def model_fn(features, labels, mode, network, optimizer):
    """Two heads over one network, as a user writes it."""
    head = models.MultiHead(
        heads=[
            models.BinaryClassHead(name="odd", weight_column="w"),
            models.RegressionHead(name="sum"),
        ]
    )
    logits = network(features["x"], training=mode == ge.ModeKeys.TRAIN)
    return head.create_estimator_spec(
        features, mode, logits, labels, optimizer, network.trainable_variables
    )


def test_two_replicas_compute_what_one_does(tmp_path):
    """With weights, a ragged last batch, evaluation and export."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=[44, 6]).astype(np.float32)
    labels = {"odd": np.int64(x[:, 0] > 0), "sum": x.sum(1)}
    features = {"x": x, "w": np.float32(rng.integers(3, size=44))}

    def input_fn():
        return tf.data.Dataset.from_tensor_slices((features, labels)).batch(8)

    reported, weights = [], []
    for devices in (("CPU:0",), ("CPU:0", "CPU:1")):
        modules = {
            "network": lambda: keras.Sequential(
                [keras.layers.Dense(2, kernel_initializer="ones")]
            ),
            "optimizer": lambda: keras.optimizers.SGD(0.1),
        }
        config = ge.RunConfig(
            model_dir=str(tmp_path / str(len(devices))), devices=devices
        )
        estimator = ge.Estimator(model_fn, modules=modules, config=config)
        estimator.train(input_fn)
        reported.append(estimator.evaluate(input_fn))
        weights.append(estimator.get_variable_value("network/dense/kernel"))
    assert reported[0] == pytest.approx(reported[1], rel=1e-4, abs=1e-5)
    np.testing.assert_allclose(*weights, rtol=1e-5)
    assert {"auc/odd", "average_loss/sum"} < reported[0].keys()
    path = estimator.export_saved_model(str(tmp_path / "export"))
    loaded = tf.saved_model.load(path)
    assert {"serving_default", "odd", "sum"} <= set(loaded.signatures)
