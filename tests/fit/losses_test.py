"""Losses and metrics that Keras trains: a table of programs against `keras.Model.fit`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import gin_estimator as ge

RNG = np.random.default_rng(0)
X = RNG.normal(size=(65, 4)).astype("float32")  # The last batch of 32 has one example.
C = RNG.integers(0, 3, 65)
R = RNG.normal(size=(65, 1)).astype("float32")
W = RNG.uniform(0.5, 2, 65).astype("float32")
H = np.eye(3, dtype="float32")[C]
losses, layers = keras.losses, keras.layers


def by_number(labels, outputs):
    """A loss of class numbers, without a name that says so."""
    return losses.sparse_categorical_crossentropy(labels, outputs)


class ByNumber(losses.Loss):
    """The same as an object."""

    def call(self, y_true, y_pred):
        return losses.sparse_categorical_crossentropy(y_true, y_pred)


class OfPairs(losses.Loss):
    """A loss of the pairs of a batch, without `call`."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        return tf.reduce_mean((y_pred * y_true - tf.transpose(y_pred)) ** 2)


def scalar(labels, outputs):
    return tf.reduce_mean(tf.square(labels - outputs))


def by_column(labels, outputs):
    """A mean over the batch of each column, as programs of NumPy take it."""
    return tf.reduce_mean(tf.square(labels - outputs), axis=0)


def of_words(labels, outputs):
    """A mean over the words of a batch, without the padding."""
    mask = tf.cast(labels > 0, tf.float32)
    found = losses.sparse_categorical_crossentropy(labels, outputs)
    return tf.reduce_sum(found * mask) / tf.reduce_sum(mask)


def packed(labels, outputs):
    """A loss whose labels have another shape than the outputs."""
    return tf.reduce_sum((labels[:, :3] - outputs) ** 2 * labels[:, 3:], -1)


def right(labels, outputs):
    """Whether class numbers are right, of labels `[batch, 1]`."""
    found = tf.argmax(outputs, axis=1)[:, tf.newaxis]
    return tf.cast(found == tf.cast(labels, tf.int64), tf.float32)


class Seen(layers.Layer):
    """Updates a metric of its inputs."""

    def __init__(self):
        super().__init__()
        self.metric = keras.metrics.Mean(name="mean_input")

    def call(self, inputs):
        self.metric.update_state(inputs)
        return inputs


class Adds(layers.Layer):
    """Adds a loss of each example."""

    def call(self, inputs):
        self.add_loss(0.01 * keras.ops.sum(inputs**2, -1))
        return inputs


class AddsMean(layers.Layer):
    """Adds a mean over the batch."""

    def call(self, inputs):
        self.add_loss(keras.ops.mean(inputs**2))
        return inputs


class Centered(layers.Layer):
    """Takes the mean of the batch off, in inference too."""

    def call(self, inputs):
        return inputs - keras.ops.mean(inputs, axis=0)


class Own(keras.Model):
    """Updates a metric of its own in `call`."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)
        self.size = keras.metrics.MeanSquaredError(name="size")

    def call(self, inputs):
        outputs = self.dense(inputs)
        self.size.update_state(tf.zeros_like(outputs), outputs)
        return outputs


def softmax():
    return keras.Sequential([layers.Dense(3, "softmax")])


def line():
    return keras.Sequential([layers.Dense(1)])


def two_outputs():
    inputs = keras.Input([4])
    number = layers.Dense(1, name="a")(inputs)
    return keras.Model(inputs, [number, layers.Dense(3, "softmax", name="b")(inputs)])


def two_masked():
    """Two outputs for each positive number of the input."""
    masked = layers.Masking()(layers.Reshape([4, 1])(layers.ReLU()(inputs := keras.Input([4]))))
    number, kind = layers.Dense(1, name="a"), layers.Dense(3, "softmax", name="b")
    return keras.Model(inputs, [number(masked), kind(masked)])


def characters():
    return keras.Sequential([layers.Dense(15), layers.Reshape([5, 3]), layers.Softmax()])


# Model, labels and weights, arguments of compile; whether two replicas train as one, or the error.
PROGRAMS = {
    "class numbers, a function": (softmax, (C,), {"loss": by_number}, True),
    "class numbers, an object": (softmax, (C,), {"loss": ByNumber()}, True),
    "class numbers, counted": (
        softmax,
        (C[:, None],),
        {"loss": "sparse_categorical_crossentropy", "metrics": [right, "accuracy"]},
        True,
    ),
    "a scalar": (line, (R,), {"loss": scalar}, True),
    "a scalar with weights": (line, (R, W), {"loss": scalar}, False),
    "by column": (softmax, (H,), {"loss": by_column}, True),
    "of pairs, in __call__": (line, (R,), {"loss": OfPairs()}, False),
    "packed": (softmax, (np.hstack([H, R**2]),), {"loss": packed}, True),
    "ctc": (characters, (C[:, None] % 2 + np.int64([[1, 0]]),), {"loss": "ctc"}, True),
    "of words": (
        characters,
        (np.maximum(RNG.integers(-3, 3, (65, 5)), 0),),
        {"loss": of_words},
        False,
    ),
    "statistics": (
        lambda: keras.Sequential([layers.BatchNormalization(), layers.Dense(1)]),
        (R,),
        {"loss": "mse"},
        False,
    ),
    "sum": (line, (R, W), {"loss": losses.MeanSquaredError("sum"), "metrics": ["mae"]}, True),
    "sum of two": (
        two_outputs,
        ((R, C),),
        {"loss": [losses.MeanSquaredError("sum"), "sparse_categorical_crossentropy"]},
        True,
    ),
    "no reduction": (line, (R,), {"loss": losses.MeanSquaredError(None)}, "reduction='sum'"),
    "dice": (softmax, (H,), {"loss": losses.Dice()}, False),
    "tversky": (softmax, (H,), {"loss": "tversky"}, False),
    "weighted metrics": (
        line,
        (R, W),
        {"loss": "mse", "metrics": ["mae"], "weighted_metrics": ["mae", "mse"]},
        True,
    ),
    "weighted metrics of two": (
        two_outputs,
        ((R, C),),
        {
            "loss": ["mse", "sparse_categorical_crossentropy"],
            "weighted_metrics": [["mae"], ["accuracy"]],
        },
        True,
    ),
    "masks of two": (
        two_masked,
        ((RNG.normal(size=(65, 4, 1)).astype("float32"), RNG.integers(0, 3, (65, 4))),),
        {
            "loss": ["mse", "sparse_categorical_crossentropy"],
            "loss_weights": [1.0, 0.5],
            "metrics": [["mae"], ["accuracy"]],
        },
        r"\['a', 'b'\] of several have masks on 2 replicas.*expected one replica",
    ),
    "a metric of a layer": (
        lambda: keras.Sequential([Seen(), layers.Dense(1)]),
        (R,),
        {"loss": "mse", "metrics": ["mae"]},
        True,
    ),
    "a metric of the model": (Own, (R,), {"loss": "mse"}, True),
    "added by example": (
        lambda: keras.Sequential([layers.Dense(3), Adds(), layers.Dense(1)]),
        (R,),
        {"loss": "mse"},
        False,
    ),
    "centered by the batch": (
        lambda: keras.Sequential([Centered(), layers.Dense(1)]),
        (R,),
        {"loss": "mse"},
        False,
    ),
    "statistics of the batch": (
        lambda: keras.Sequential([layers.BatchNormalization(), layers.Dense(1)]),
        (R,),
        {"loss": "mse"},
        False,
    ),
    "added before synchronized": (
        lambda: keras.Sequential(
            [layers.Dense(3), AddsMean(), layers.BatchNormalization(synchronized=True)]
            + [layers.Dense(1)]
        ),
        (R,),
        {"loss": "mse"},
        True,
    ),
    "synchronized": (
        lambda: keras.Sequential([layers.BatchNormalization(synchronized=True), layers.Dense(1)]),
        (R,),
        {"loss": "mse"},
        True,
    ),
}
if tuple(map(int, keras.__version__.split(".")[:2])) >= (3, 7):  # Older ones do not know it.
    by_weights = losses.MeanSquaredError("mean_with_sample_weight")
    PROGRAMS["by weights"] = (line, (R, W), {"loss": by_weights}, True)


def program(name):
    model_fn, labels, options, _ = PROGRAMS[name]

    def make():
        keras.utils.set_random_seed(3)
        model = model_fn()
        model.compile(keras.optimizers.SGD(0.005, 0.9), **options)
        return model

    return make, lambda: tf.data.Dataset.from_tensor_slices((X, *labels)).batch(32)


@pytest.fixture(scope="module")
def by_keras():
    found = {}

    def get(name):
        if name not in found:
            make, data = program(name)
            model = make()
            history = model.fit(data(), epochs=2, validation_data=data(), verbose=0)
            found[name] = model, history.history
        return found[name]

    return get


def assert_same(result, expected, *, skips=()):
    model, history = expected
    for mine, theirs in zip(result.model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
    assert result.history.keys() == history.keys()
    for key in history.keys() - skips:
        np.testing.assert_allclose(result.history[key], history[key], rtol=1e-5, err_msg=key)


# Here the loss of an epoch is by weights, which Keras counts by examples; it takes the mean over
# batches of the losses of several outputs.
SKIPS = {
    "by weights": {"loss", "val_loss"},
    "weighted metrics of two": {"a_loss", "b_loss", "val_a_loss", "val_b_loss"},
    "masks of two": {"a_loss", "b_loss", "val_a_loss", "val_b_loss"},
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_replica_trains_as_fit(tmp_path, by_keras, name):
    make, data = program(name)
    config = ge.RunConfig(str(tmp_path), save_checkpoints_steps=0)
    result = ge.fit(make, data, epochs=2, validation_data=data, config=config)
    assert_same(result, by_keras(name), skips=SKIPS.get(name, set()))


@pytest.mark.parametrize("name", PROGRAMS)
def test_two_replicas_train_as_one_or_it_is_said(tmp_path, by_keras, caplog, name):
    make, data = program(name)
    config = ge.RunConfig(str(tmp_path), devices=("CPU:0", "CPU:1"), save_checkpoints_steps=0)
    is_same = PROGRAMS[name][3]
    if isinstance(is_same, str):
        with pytest.raises(ge.UserError, match=is_same):
            ge.fit(make, data, config=config)
        return
    result = ge.fit(make, data, epochs=2, validation_data=data, config=config)
    warned = ("joins the examples", "is a sum over the batch", "Set synchronized=True")
    if is_same:
        assert_same(result, by_keras(name), skips=SKIPS.get(name, set()))
        assert not any(each in caplog.text for each in (*warned, "last batch may be smaller"))
    else:
        assert any(each in caplog.text for each in warned)
