"""The classifier against numpy, and what it refuses."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import checks, classifier, mlp
from pipeline import ModeKeys, SpecError

LOGITS = np.array([[2.0, -1.0, 0.5], [0.1, 0.2, 0.3], [-3.0, 4.0, 1.0]], np.float32)
LABELS = np.array([0, 2, 0])
BINARY_LOGITS = np.array([[2.0], [-1.0], [0.3], [-4.0]], np.float32)
BINARY_LABELS = np.array([1, 1, 0, 0])


def identity():
    """Gives its features as logits; has variables only for the TrainOp."""
    layer = keras.layers.Dense(1)
    layer.build((None, 1))
    network = keras.Sequential([keras.layers.Activation("linear")])
    network.extra = layer
    return network


def classify(logits, labels, mode=ModeKeys.EVAL, **kwargs):
    return classifier(tf.constant(logits), labels, mode, identity(), **kwargs)


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def value_of(spec, name):
    entry = spec.metrics[name]
    built = entry.factory()
    built.update_state(*entry.args, **entry.kwargs)
    return float(built.result())


@pytest.mark.parametrize(
    "labels",
    [
        LABELS,
        LABELS[:, None],
        LABELS.astype(np.uint8),
        np.eye(3)[LABELS],
        np.eye(3, dtype=np.int32)[LABELS],
        {"label": LABELS},
    ],
    ids=["sparse", "column", "uint8", "one_hot", "one_hot_int", "dict_of_one"],
)
def test_loss_of_several_classes(labels):
    spec = classify(LOGITS, labels)
    expected = -log_softmax(LOGITS)[np.arange(3), LABELS]
    np.testing.assert_allclose(spec.loss, expected, rtol=1e-5)
    assert spec.loss_weights is None
    assert set(spec.metrics) == {"accuracy"}
    assert value_of(spec, "accuracy") == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    "labels",
    [BINARY_LABELS, BINARY_LABELS[:, None], BINARY_LABELS.astype(float)],
    ids=["int", "column", "float"],
)
def test_binary_loss_is_that_of_the_sigmoid(labels):
    spec = classify(BINARY_LOGITS, labels)
    p = 1 / (1 + np.exp(-BINARY_LOGITS[:, 0]))
    expected = -np.log(np.where(BINARY_LABELS == 1, p, 1 - p))
    np.testing.assert_allclose(spec.loss, expected, rtol=1e-5)
    assert value_of(spec, "accuracy") == 0.5
    assert value_of(spec, "precision") == 0.5
    assert value_of(spec, "recall") == 0.5
    assert value_of(spec, "auc") == pytest.approx(0.75, abs=0.01)


def test_binary_soft_labels():
    soft = np.array([0.9, 0.2, 0.5, 0.0], np.float32)
    loss = classify(BINARY_LOGITS, soft).loss
    expected = keras.losses.binary_crossentropy(soft[:, None], BINARY_LOGITS, True)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


@pytest.mark.parametrize("one_hot", [False, True])
def test_label_smoothing_is_that_of_keras(one_hot):
    dense = np.eye(3, dtype=np.float32)[LABELS]
    loss = classify(LOGITS, dense if one_hot else LABELS, label_smoothing=0.3).loss
    expected = -((dense * 0.7 + 0.1) * log_softmax(LOGITS)).sum(-1)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    keras_loss = keras.losses.categorical_crossentropy(dense, LOGITS, True, 0.3)
    np.testing.assert_allclose(loss, keras_loss, rtol=1e-5)


def test_binary_label_smoothing_is_that_of_keras():
    loss = classify(BINARY_LOGITS, BINARY_LABELS, label_smoothing=0.2).loss
    expected = keras.losses.binary_crossentropy(
        BINARY_LABELS[:, None].astype(np.float32), BINARY_LOGITS, True, 0.2
    )
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


@pytest.mark.parametrize("labels", [LABELS, np.eye(3)[LABELS]], ids=["sparse", "dense"])
def test_class_weights_are_loss_weights(labels):
    spec = classify(LOGITS, labels, class_weights=[1.0, 2.0, 5.0])
    np.testing.assert_allclose(spec.loss_weights, [1.0, 5.0, 1.0])
    np.testing.assert_allclose(
        spec.loss, -log_softmax(LOGITS)[range(3), LABELS], rtol=1e-5
    )


def test_binary_class_weights():
    spec = classify(BINARY_LOGITS, BINARY_LABELS, class_weights=(1.0, 3.0))
    np.testing.assert_allclose(spec.loss_weights, [3.0, 3.0, 1.0, 1.0])


def test_predictions():
    spec = classify(LOGITS, None, ModeKeys.PREDICT)
    np.testing.assert_allclose(spec.predictions["logits"], LOGITS)
    np.testing.assert_allclose(
        spec.predictions["probabilities"], np.exp(log_softmax(LOGITS)), rtol=1e-5
    )
    np.testing.assert_array_equal(spec.predictions["classes"], [0, 2, 1])
    assert spec.loss is None


def test_binary_predictions_have_two_probabilities():
    predictions = classify(BINARY_LOGITS, None, ModeKeys.PREDICT).predictions
    assert predictions["logits"].shape == (4, 1)
    p = 1 / (1 + np.exp(-BINARY_LOGITS[:, 0]))
    np.testing.assert_allclose(
        predictions["probabilities"], np.stack([1 - p, p], -1), rtol=1e-5
    )
    np.testing.assert_array_equal(predictions["classes"], [1, 0, 1, 0])


def test_further_metrics_in_eval_alone():
    def top_2():
        return keras.metrics.SparseTopKCategoricalAccuracy(k=2)

    spec = classify(LOGITS, LABELS, metrics={"top_2": top_2})
    assert value_of(spec, "top_2") == pytest.approx(2 / 3)
    trained = classifier(
        tf.constant(LOGITS),
        LABELS,
        ModeKeys.TRAIN,
        mlp(num_outputs=3),
        keras.optimizers.SGD(),
        metrics={"top_2": top_2},
    )
    assert set(trained.metrics) == {"accuracy"}


def test_binary_metric_over_the_last_axis_counts_every_example():
    spec = classify(
        BINARY_LOGITS, BINARY_LABELS, metrics={"keras": keras.metrics.BinaryAccuracy}
    )
    built = spec.metrics["keras"].factory()
    built.update_state(*spec.metrics["keras"].args)
    assert float(built.count) == 4


def test_train_op_and_regularization():
    network, optimizer = mlp(hidden=(4,), num_outputs=3, l2=0.1), keras.optimizers.SGD()
    spec = classifier(
        tf.constant(LOGITS), LABELS, ModeKeys.TRAIN, network, optimizer, clip_norm=2.0
    )
    (train_op,) = spec.train_op
    assert train_op.optimizer is optimizer
    assert train_op.clip_norm == 2.0
    assert len(train_op.variables) == 4
    kernels = [v for v in network.trainable_variables if v.name == "kernel"]
    expected = [0.1 * np.square(v.numpy()).sum() for v in kernels]
    np.testing.assert_allclose(spec.regularization_losses, expected, rtol=1e-5)


def test_training_flag_in_train_alone():
    network = mlp(hidden=(64,), num_outputs=3, dropout=0.5)
    x = tf.constant(LOGITS)

    def loss(mode):
        return classifier(x, LABELS, mode, network, keras.optimizers.SGD()).loss.numpy()

    assert np.array_equal(loss(ModeKeys.EVAL), loss(ModeKeys.EVAL))
    assert not np.array_equal(loss(ModeKeys.TRAIN), loss(ModeKeys.TRAIN))


def test_sgd_steps_lower_the_loss():
    keras.utils.set_random_seed(1)
    x = tf.random.normal([64, 5])
    y = tf.cast(tf.reduce_sum(x, -1) > 0, tf.int32)
    network, optimizer = mlp(num_outputs=2), keras.optimizers.SGD(0.5)
    losses = []
    for _ in range(10):
        with tf.GradientTape() as tape:
            spec = classifier(x, y, ModeKeys.TRAIN, network, optimizer)
            loss = tf.reduce_mean(spec.loss)
        (train_op,) = spec.train_op
        gradients = tape.gradient(loss, [v.value for v in train_op.variables])
        optimizer.apply(gradients, train_op.variables)
        losses.append(float(loss))
    assert losses[-1] < 0.5 * losses[0]


def test_in_a_graph_with_a_batch_of_unknown_size():
    network, optimizer = mlp(num_outputs=1), keras.optimizers.SGD()
    network(tf.zeros([1, 3]))

    @tf.function(
        input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec([None], tf.int64)]
    )
    def step(x, y):
        return classifier(
            x, y, ModeKeys.TRAIN, network, optimizer, class_weights=[1, 2]
        ).loss

    assert step(tf.zeros([5, 3]), tf.zeros([5], tf.int64)).shape == (5,)


def test_features_in_a_dict():
    spec = classifier({"x": tf.constant(LOGITS)}, LABELS, ModeKeys.EVAL, identity())
    assert spec.loss.shape == (3,)
    features = {"x": tf.constant(LOGITS), "id": tf.zeros([3])}
    spec = classifier(features, LABELS, ModeKeys.EVAL, identity(), feature_key="x")
    assert spec.loss.shape == (3,)
    with pytest.raises(SpecError, match=r"feature_key is 'y'.*\['id', 'x'\]"):
        classifier(features, LABELS, ModeKeys.EVAL, identity(), feature_key="y")


@pytest.mark.parametrize(
    ("logits", "labels", "kwargs", "text"),
    [
        (LOGITS, None, {}, "mode 'eval' needs labels"),
        (LOGITS, np.zeros([2], int), {}, r"shape \(2,\) and logits \(3, 3\)"),
        (LOGITS, np.zeros([3, 4]), {}, r"shape \(3, 4\) and logits \(3, 3\)"),
        (LOGITS, np.zeros([3, 3, 1]), {}, r"shape \(3, 3, 1\)"),
        (LOGITS, LABELS * 1.0, {}, r"float64.*tf.cast\(labels, tf.int64\)"),
        (LOGITS, {"a": LABELS, "b": LABELS}, {}, r"labels hold \['a', 'b'\]"),
        (LOGITS[0], LABELS, {}, r"shape \(3,\) into \(3,\), and \[batch, units\]"),
        (LOGITS[:, None], LABELS, {}, r"into \(3, 1, 3\)"),
        (LOGITS, LABELS, {"class_weights": [1.0]}, "1 entries for 3 classes"),
        (LOGITS, LABELS, {"label_smoothing": 1.0}, "label_smoothing is 1.0: write a"),
        (LOGITS.astype(np.uint8), LABELS, {}, r"uint8 of shape \(3, 3\)"),
    ],
)
def test_errors(logits, labels, kwargs, text):
    with pytest.raises(SpecError, match=text):
        classify(logits, labels, **kwargs)


def test_a_binary_label_other_than_0_and_1_is_not_silent():
    with pytest.raises(tf.errors.InvalidArgumentError, match="outside the valid range"):
        classify(BINARY_LOGITS, np.array([0, 1, 2, 1]))


@pytest.mark.parametrize(
    "last",
    [
        lambda: keras.layers.Dense(3, activation="softmax"),
        lambda: keras.layers.Dense(1, activation="sigmoid"),
        lambda: keras.layers.Softmax(),
    ],
    ids=["softmax", "sigmoid", "layer"],
)
def test_probabilities_instead_of_logits(last):
    network = keras.Sequential([last()])
    with pytest.raises(SpecError, match="gives probabilities.*leave its activation"):
        classifier(tf.constant(LOGITS), LABELS, ModeKeys.EVAL, network)


def test_no_optimizer_in_train():
    with pytest.raises(SpecError, match="TrainOp.optimizer is None"):
        classifier(tf.constant(LOGITS), LABELS, ModeKeys.TRAIN, mlp())


def test_labels_of_unknown_rank():
    @tf.function(input_signature=[tf.TensorSpec(None)], autograph=False)
    def trace(labels):
        return checks.labels_of(labels, ModeKeys.TRAIN)

    with pytest.raises(SpecError, match="no known rank"):
        trace.get_concrete_function()


def test_a_network_of_several_outputs():
    with pytest.raises(SpecError, match="returned dict .*not one tensor"):
        checks.network_output({"a": tf.zeros([2])}, inputs=tf.zeros([2, 2]))


def pictures(mode=ModeKeys.EVAL, **options):
    network = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(3)])
    x = tf.random.stateless_uniform([4, 5, 5, 1], seed=[1, 2])
    optimizer = keras.optimizers.SGD()
    return classifier(x, [0, 1, 2, 5 % 3], mode, network, optimizer, **options)


def test_confusions_and_the_worst_mistakes_are_shown_in_eval():
    spec = pictures()
    assert set(spec.summaries) == {"confusion", "mistakes"}
    mistakes = spec.summaries["mistakes"]
    np.testing.assert_array_equal(mistakes.tensors["score"], spec.loss)
    assert [word for word, _ in mistakes.kind.words] == ["is", "taken for", "loss"]
    assert (mistakes.kind.max_outputs, mistakes.kind.columns) == (9, 3)
    assert pictures(ModeKeys.TRAIN).summaries == {}
    assert set(pictures(num_mistakes=0).summaries) == {"confusion"}
    assert set(pictures(show_confusion=False).summaries) == {"mistakes"}
    assert set(classify(LOGITS, LABELS).summaries) == {"confusion"}
    named = pictures(class_names=("a", "b", "c")).summaries["confusion"]
    assert named.kind.class_names == ("a", "b", "c")
    with pytest.raises(SpecError, match="2 entries for 3 classes"):
        pictures(class_names=("a", "b"))
