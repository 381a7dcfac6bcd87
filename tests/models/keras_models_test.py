"""A Keras model as an Estimator: what `fit` and `evaluate` give, it gives."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import keras_model_fn, model_to_estimator
from pipeline import ModeKeys, RunConfig, SpecError

RNG = np.random.default_rng(7)
X = RNG.normal(size=[12, 4]).astype(np.float32)
CLASSES = RNG.integers(0, 3, 12)
NUMBERS = RNG.normal(size=12).astype(np.float32)
IDS = np.array([[1, 2, 0], [3, 0, 0], [2, 2, 1], [1, 0, 0]])
TAGS = np.array([[0, 1, 0], [1, 0, 0], [1, 1, 0], [0, 0, 0]])


def sequential(*layers):
    """Returns a model of given layers whose weights are the same each time."""
    keras.utils.set_random_seed(3)
    return keras.Sequential(list(layers))


def classes():
    model = sequential(keras.layers.Dense(3, "softmax"))
    return model, X, CLASSES, "sparse_categorical_crossentropy", ["accuracy"]


def shares():
    model = sequential(keras.layers.Dense(3, "softmax", kernel_regularizer="l2"))
    loss = keras.losses.CategoricalCrossentropy(label_smoothing=0.1)
    metrics = ["acc", keras.metrics.CategoricalCrossentropy(name="ce")]
    return model, X, np.eye(3)[CLASSES], loss, metrics


def binary():
    model = sequential(keras.layers.Dense(1, "sigmoid"))
    metrics = ["accuracy", keras.metrics.AUC(num_thresholds=20)]
    return model, X, CLASSES > 1, "binary_crossentropy", metrics


def numbers():
    def worst(labels, outputs):
        return keras.ops.max(keras.ops.abs(labels - outputs), axis=-1)

    model = sequential(keras.layers.Dense(1))
    # Keras itself would broadcast labels [12] to [12, 12] for a function.
    return model, X, NUMBERS[:, None], "mse", ["mae", worst]


def several():
    keras.utils.set_random_seed(3)
    inputs = keras.Input([4])
    outputs = {
        "kind": keras.layers.Dense(3)(inputs),
        "size": keras.layers.Dense(1)(inputs),
    }
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


KINDS = [classes, shares, binary, numbers, several, masked]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_loss_and_metrics_are_those_of_evaluate(kind):
    model, x, y, loss, metrics = kind()
    as_tensors = tf.nest.map_structure(tf.constant, y)

    spec = keras_model_fn(
        x, as_tensors, ModeKeys.EVAL, network=model, loss=loss, metrics=metrics
    )
    found = {"loss": value_of_loss(spec)}
    for name, declared in spec.metrics.items():
        built = declared.factory()
        built.update_state(*declared.args, **declared.kwargs)
        found[name] = float(built.result())

    model.compile(loss=loss, metrics=metrics)
    wanted = model.evaluate(x, y, batch_size=len(x), return_dict=True, verbose=0)
    wanted = {k: v for k, v in wanted.items() if k not in ("kind_loss", "size_loss")}
    assert found == pytest.approx(wanted, rel=1e-5)


def value_of_loss(spec):
    weights = 1.0 if spec.loss_weights is None else spec.loss_weights
    weights = tf.broadcast_to(weights, tf.shape(spec.loss))
    mean = tf.reduce_sum(spec.loss * weights) / tf.reduce_sum(weights)
    return float(mean + sum(spec.regularization_losses))


def compiled():
    """Returns a compiled model with a frozen layer and a metric of its own."""
    model = sequential(
        keras.layers.Dense(5, "tanh", name="backbone", trainable=False),
        keras.layers.Dense(1, name="head"),
    )
    rmse = keras.metrics.RootMeanSquaredError()
    metrics = ["mae", rmse, keras.losses.MeanSquaredLogarithmicError()]
    model.compile(keras.optimizers.Adam(0.1), "mse", metrics=metrics)
    return model


def batches(mode):
    data = tf.data.Dataset.from_tensor_slices((X, NUMBERS)).batch(6)
    return data.repeat() if mode == ModeKeys.TRAIN else data


def test_a_compiled_model_trains_as_by_fit(tmp_path):
    estimator = model_to_estimator(compiled, RunConfig(model_dir=str(tmp_path)))
    estimator.train(batches, steps=6)

    model = compiled()
    model.fit(X, NUMBERS, batch_size=6, epochs=3, shuffle=False, verbose=0)
    for name, weight in (("head", 0), ("head", 1), ("backbone", 0)):
        ours = estimator.get_variable_value(
            f"network/{name}/{['kernel', 'bias'][weight]}"
        )
        wanted = model.get_layer(name).get_weights()[weight]
        np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-6)
    wanted = model.evaluate(X, NUMBERS, return_dict=True, verbose=0)
    found = estimator.evaluate(batches)
    assert found.pop("global_step") == 6
    assert found == pytest.approx(wanted, rel=1e-5)
    predicted = list(estimator.predict(batches))
    np.testing.assert_allclose(predicted, model.predict(X, verbose=0), rtol=1e-5)


def test_weights_of_examples_are_not_given_to_the_network():
    features = {"x": X, "importance": np.arange(12, dtype=np.float32)}
    spec = keras_model_fn(
        features,
        NUMBERS,
        ModeKeys.EVAL,
        network=sequential(keras.layers.Dense(1)),
        loss="mse",
        weight_column="importance",
    )
    errors = (sequential(keras.layers.Dense(1))(X)[:, 0] - NUMBERS) ** 2
    wanted = np.average(errors, weights=features["importance"])
    assert value_of_loss(spec) == pytest.approx(wanted, rel=1e-5)


def test_several_outputs_are_predicted_by_name():
    model, x, *_ = several()
    spec = keras_model_fn(x, None, ModeKeys.PREDICT, network=model)
    assert {k: v.shape[1] for k, v in spec.predictions.items()} == {
        "kind": 3,
        "size": 1,
    }


@pytest.mark.parametrize(
    ("kind", "labels", "arguments", "told"),
    [
        (numbers, NUMBERS[:, None].repeat(2, 1), {}, "labels (12, 2): reshape"),
        (numbers, None, {}, "has a loss and no labels"),
        (several, {"kind": CLASSES}, {}, "'size' has a loss and no labels"),
        (several, None, {"loss": {"knd": "mse"}}, "loss holds ['knd']"),
        (several, None, {"loss": ["mse"]}, "loss has 1 entries"),
        (numbers, NUMBERS, {"metrics": [keras.metrics.AUC]}, "write a dict"),
        (numbers, NUMBERS, {"metrics": ["mae", "mae"]}, "two metrics are named 'mae'"),
        (numbers, NUMBERS, {"loss": "msee"}, "'msee' is no loss"),
        (numbers, NUMBERS, {"weight_column": "w"}, "weight_column is 'w'"),
        (
            numbers,
            NUMBERS,
            {"loss": keras.losses.MeanSquaredError(reduction="sum")},
            "reduction='sum'",
        ),
    ],
)
def test_what_does_not_fit_is_told(kind, labels, arguments, told):
    model, x, _, loss, metrics = kind()
    arguments = {"loss": loss, "metrics": metrics, **arguments}
    with pytest.raises(SpecError) as error:
        keras_model_fn(x, labels, ModeKeys.EVAL, network=model, **arguments)
    assert told in str(error.value)


def test_a_metric_that_is_none_is_told():
    model, x, y, loss, _ = numbers()
    given = {
        "loss": loss,
        "metrics": {"a": keras.metrics.MeanAbsoluteError, "b": "mea"},
    }
    spec = keras_model_fn(x, y, ModeKeys.EVAL, network=model, **given)
    assert isinstance(spec.metrics["a"].factory(), keras.metrics.MeanAbsoluteError)
    with pytest.raises(SpecError, match="'mea' is no metric"):
        spec.metrics["b"].factory()


class Own(keras.metrics.MeanAbsoluteError):
    """A metric that Keras does not know."""


def compiled_with(**options):
    def make_model():
        model = sequential(keras.layers.Dense(1))
        model.compile("sgd", "mse", **options)
        return model

    return make_model


@pytest.mark.parametrize(
    ("make_model", "told"),
    [
        (sequential(keras.layers.Dense(1)), "write a function"),
        (lambda: sequential(keras.layers.Dense(1)), "no compiled model"),
        (compiled_with(metrics=[Own(name="own")]), "'own', which Keras cannot make"),
        (compiled_with(weighted_metrics=["mae"]), "weighted_metrics: leave them out"),
    ],
    ids=["built", "not compiled", "not registered", "weighted"],
)
def test_a_model_that_is_no_compiled_factory_is_refused(make_model, told, tmp_path):
    with pytest.raises(SpecError, match=told):
        estimator = model_to_estimator(make_model, RunConfig(model_dir=str(tmp_path)))
        estimator.train(batches, steps=1)
