"""Keras models: loss, metrics and weights are those of `evaluate` and `fit`."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from gin_estimator.models import keras_model_fn, model_to_estimator

import gin_estimator as ge
from gin_estimator import ModeKeys

RNG = np.random.default_rng(7)
X = RNG.normal(size=[13, 4]).astype(np.float32)
CLASSES = RNG.integers(0, 3, 13)
NUMBERS = RNG.normal(size=13).astype(np.float32)
WEIGHTS = np.float32(RNG.integers(1, 4, 13))
IDS = RNG.integers(0, 4, [13, 3])
TAGS = RNG.integers(0, 2, [13, 3])


def sequential(*layers):
    keras.utils.set_random_seed(3)
    return keras.Sequential(list(layers))


def numbers_of_classes():
    model = sequential(keras.layers.Dense(3, "softmax"))
    return model, X, CLASSES, "sparse_categorical_crossentropy", ["accuracy"]


def probabilities():
    model = sequential(keras.layers.Dense(3, "softmax", kernel_regularizer="l2"))
    loss = keras.losses.CategoricalCrossentropy(label_smoothing=0.1)
    metrics = ["acc", keras.metrics.CategoricalCrossentropy(name="ce")]
    return model, X, np.eye(3)[CLASSES], loss, metrics


def binary():
    model = sequential(keras.layers.Dense(1, "sigmoid"))
    return model, X, CLASSES > 1, "crossentropy", ["accuracy", keras.metrics.AUC(num_thresholds=20)]


def regression():
    def worst(labels, outputs):
        return keras.ops.max(keras.ops.abs(labels - outputs), axis=-1)

    # Keras would broadcast labels [13] to [13, 13] for a function.
    return sequential(keras.layers.Dense(1)), X, NUMBERS[:, None], "mse", ["mae", worst]


def several_outputs():
    keras.utils.set_random_seed(3)
    inputs = keras.Input([4])
    outputs = {"kind": keras.layers.Dense(3)(inputs), "size": keras.layers.Dense(1)(inputs)}
    crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loss = {"kind": crossentropy, "size": "mae"}
    metrics = {"kind": ["accuracy"], "size": ["mse", "mae"]}
    labels = {"kind": CLASSES, "size": NUMBERS}
    return keras.Model(inputs, outputs), X, labels, loss, metrics


def masked():
    model = sequential(
        keras.layers.Embedding(4, 3, mask_zero=True),
        keras.layers.GRU(2, return_sequences=True),
        keras.layers.Dense(1, "sigmoid"),
    )
    return model, IDS, TAGS[..., None], "binary_crossentropy", ["accuracy"]


KINDS = [numbers_of_classes, probabilities, binary, regression, several_outputs, masked]


def value_of_loss(spec):
    weights = 1.0 if spec.loss_weights is None else spec.loss_weights
    weights = tf.broadcast_to(weights, tf.shape(spec.loss))
    mean = tf.reduce_sum(spec.loss * weights) / tf.reduce_sum(weights)
    return float(mean + sum(spec.regularization_losses))


def results(spec):
    found = {"loss": value_of_loss(spec)}
    for name, declared in spec.metrics.items():
        metric = declared.factory()
        metric.update_state(*declared.args, **declared.kwargs)
        found[name] = float(metric.result())
    return found


@pytest.mark.thin
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "weighted",
    [pytest.param(False, id="plain", marks=pytest.mark.slow), pytest.param(True, id="weighted")],
)
def test_loss_and_metrics_are_those_of_evaluate(kind, weighted):
    model, x, y, loss, metrics = kind()
    labels = tf.nest.map_structure(tf.constant, y)
    column = {"weight_column": "w"} if weighted else {}
    features = {"x": x, "w": tf.constant(WEIGHTS)} if weighted else x
    spec = keras_model_fn(
        features, labels, ModeKeys.EVAL, model, loss=loss, metrics=metrics, **column
    )
    found = results(spec)

    weights = {"sample_weight": WEIGHTS} if weighted else {}
    if kind is masked and weighted:  # Keras takes weights of examples for weights of steps.
        weights = {"sample_weight": np.repeat(WEIGHTS[:, None], 3, 1)}
    model.compile(loss=loss, metrics=metrics)
    expected = model.evaluate(x, y, batch_size=13, return_dict=True, verbose=0, **weights)
    assert found == pytest.approx(expected, rel=1e-5)


def compiled(frozen=True):
    """Returns a compiled model with a frozen layer and an own metric."""
    keras.utils.set_random_seed(3)  # Before the layers, which draw their seeds.
    model = sequential(
        keras.layers.Dense(5, "tanh", name="backbone", trainable=not frozen),
        keras.layers.Dense(1, name="head", kernel_regularizer="l2"),
    )

    class Own(keras.metrics.MeanAbsoluteError):
        """A metric that Keras cannot find by its name."""

    metrics = [Own(name="own"), keras.metrics.RootMeanSquaredError()]
    model.compile(keras.optimizers.Adam(0.1), "mse", metrics=metrics)
    return model


def batches(mode):
    data = tf.data.Dataset.from_tensor_slices(({"x": X, "w": WEIGHTS}, NUMBERS)).batch(6)
    return data.repeat(3) if mode == ModeKeys.TRAIN else data


TWO = {"devices": ("CPU:0", "CPU:1")}
CONFIGS = {
    "default": {},
    "mirrored 2": TWO,
    "mirrored 4": {"devices": tuple(f"CPU:{i}" for i in range(4))},
    "central 2": {**TWO, "train_distribute": ge.central_storage},
}


@pytest.fixture(scope="module")
def fitted():
    model = compiled()
    data = {"sample_weight": WEIGHTS, "batch_size": 6, "verbose": 0}
    model.fit(X, NUMBERS, epochs=3, shuffle=False, **data)
    return model, model.evaluate(X, NUMBERS, return_dict=True, **data)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_a_compiled_model_trains_as_by_fit(tmp_path, fitted, name):
    """With weights, a frozen layer, and a last batch of one example."""
    model, expected = fitted
    config = ge.RunConfig(model_dir=str(tmp_path), **CONFIGS[name])
    estimator = model_to_estimator(compiled, config, weight_column="w")
    estimator.train(batches)
    for layer, weight in (("head", "kernel"), ("head", "bias"), ("backbone", "kernel")):
        actual = estimator.get_variable_value(f"network/{layer}/{weight}")
        wanted = getattr(model.get_layer(layer), weight)
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6)
    found = estimator.evaluate(batches)
    assert found.pop("global_step") == 9
    assert found == pytest.approx(expected, rel=1e-5)
    if name == "mirrored 2":
        predicted = list(estimator.predict(batches))
        np.testing.assert_allclose(predicted, model.predict(X, verbose=0), rtol=1e-5, atol=1e-6)


def test_outputs_are_predicted_in_float32_by_name():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model, x, *_ = several_outputs()
    finally:
        keras.config.set_dtype_policy("float32")
    spec = keras_model_fn(x, None, ModeKeys.PREDICT, model)
    assert {name: each.shape[1] for name, each in spec.predictions.items()} == {
        "kind": 3,
        "size": 1,
    }
    assert all(each.dtype == tf.float32 for each in spec.predictions.values())


@pytest.mark.parametrize(
    ("kind", "labels", "arguments", "text"),
    [
        (regression, NUMBERS[:, None].repeat(2, 1), {}, r"\(13, 1\) and its labels .* \(13, 2\)"),
        (regression, None, {}, "a loss or a metric and no labels"),
        (several_outputs, {"kind": CLASSES}, {}, "output 'size' has a loss .* and no labels"),
        (several_outputs, None, {"loss": {"knd": "mse"}}, r"loss has \['knd'\]"),
        (several_outputs, None, {"loss": ["mse"]}, "loss has 1 entries"),
        (regression, NUMBERS, {"metrics": [keras.metrics.AUC]}, "has no name"),
        (regression, NUMBERS, {"metrics": ["mae", "mae"]}, "'mae' twice"),
        (regression, NUMBERS, {"loss": "msee"}, "loss is 'msee'"),
        (regression, NUMBERS, {"weight_column": "w"}, "weight_column is 'w'"),
        (
            regression,
            NUMBERS,
            {"loss": keras.losses.MeanSquaredError(reduction="sum")},
            "reduction='sum'",
        ),
    ],
)
def test_what_does_not_fit_is_refused(kind, labels, arguments, text):
    model, x, _, loss, metrics = kind()
    arguments = {"loss": loss, "metrics": metrics, **arguments}
    with pytest.raises(ge.errors.SpecError, match=text):
        keras_model_fn(x, labels, ModeKeys.EVAL, model, **arguments)


def test_what_is_not_a_factory_of_compiled_models_is_refused(tmp_path):
    config = ge.RunConfig(model_dir=str(tmp_path))
    with pytest.raises(TypeError, match="make_model is .*: expected a function"):
        model_to_estimator(sequential(keras.layers.Dense(1)), config)
    estimator = model_to_estimator(lambda: sequential(keras.layers.Dense(1)), config)
    with pytest.raises(ge.errors.SpecError, match="not a compiled Keras model"):
        estimator.train(batches, steps=1)

    class Custom(keras.Sequential):
        def train_step(self, *args):
            return super().train_step(*args)

    def custom():
        model = Custom([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    with pytest.raises(ge.errors.SpecError, match="Custom.train_step is overridden.*Call ge.fit"):
        model_to_estimator(custom, config).train(batches, steps=1)
    metrics = {"a": keras.metrics.MeanAbsoluteError, "b": "mea"}
    model, x, y, loss, _ = regression()
    spec = keras_model_fn(x, y, ModeKeys.EVAL, model, loss=loss, metrics=metrics)
    assert isinstance(spec.metrics["a"].factory(), keras.metrics.MeanAbsoluteError)
    with pytest.raises(ge.errors.SpecError, match="'mea', which Keras cannot make"):
        spec.metrics["b"].factory()
