"""Keras models with their own `train_step`, against `keras.Model.fit` on one replica."""

import json
import signal
from unittest import mock

import keras
import numpy as np
import pytest
import tasks
import tensorflow as tf

import gin_estimator as ge
from gin_estimator.keras_fit import own_steps

PROGRAM = tasks.PROGRAMS / "fit_own.py"
RNG = np.random.default_rng(0)
X = RNG.uniform(size=(65, 6)).astype("float32")  # The last batch of 32 has one example.
Y = RNG.integers(0, 3, 65)
ONE, TWO = None, ("CPU:0", "CPU:1")


class VAE(keras.Model):
    """The variational autoencoder of Keras' examples, whose noise is a part of the data."""

    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential([keras.Input([6]), keras.layers.Dense(4)])
        self.decoder = keras.Sequential([keras.layers.Dense(6, "sigmoid")])
        self.total_tracker = keras.metrics.Mean(name="total_loss")
        self.kl_tracker = keras.metrics.Mean(name="kl_loss")
        self.light = keras.metrics.Sum(name="light")

    @property
    def metrics(self):
        return [self.total_tracker, self.kl_tracker, self.light]

    def losses_of(self, data):
        mean, log_var = tf.split(self.encoder(data), 2, axis=-1)
        decoded = self.decoder(mean + tf.exp(0.5 * log_var) * data[:, :2])
        found = tf.reduce_mean(
            tf.reduce_sum(keras.losses.binary_crossentropy(data[:, None], decoded[:, None]), -1)
        )
        kl = tf.reduce_mean(-0.5 * tf.reduce_sum(1 + log_var - mean**2 - tf.exp(log_var), 1))
        return found + kl, kl

    def train_step(self, data):
        with tf.GradientTape() as tape:
            total, kl = self.losses_of(data)
        grads = tape.gradient(total, self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights, strict=True))
        self.total_tracker.update_state(total)
        self.kl_tracker.update_state(kl)
        self.light.update_state(tf.reduce_sum(data, -1))
        return {m.name.replace("total_", ""): m.result() for m in self.metrics}

    def test_step(self, data):
        total, kl = self.losses_of(data)
        self.total_tracker.update_state(total)
        self.kl_tracker.update_state(kl)
        return {m.name.replace("total_", ""): m.result() for m in self.metrics}


def make_vae():
    keras.utils.set_random_seed(3)
    model = VAE()
    model.compile(keras.optimizers.Adam(0.01, global_clipnorm=0.5))
    return model


class GAN(keras.Model):
    """A GAN with two optimizers in order, whose noise is a part of the data."""

    def __init__(self):
        super().__init__()
        layers = keras.layers
        self.discriminator = keras.Sequential([layers.Dense(5, "leaky_relu"), layers.Dense(1)])
        self.generator = keras.Sequential([layers.Dense(5, "tanh"), layers.Dense(6)])
        self.d_metric = keras.metrics.Mean(name="d_loss")
        self.g_metric = keras.metrics.Mean(name="g_loss")

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    @property
    def metrics(self):
        return [self.d_metric, self.g_metric]

    def train_step(self, real):
        size = tf.shape(real)[0]
        noise = tf.reverse(real, [-1])[:, :3]
        images = tf.concat([self.generator(noise), real], 0)
        labels = tf.concat([tf.ones([size, 1]), tf.zeros([size, 1])], 0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(images))
        grads = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply_gradients(
            zip(grads, self.discriminator.trainable_weights, strict=True)
        )
        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(tf.zeros([size, 1]), self.discriminator(self.generator(noise)))
        grads = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply(grads, self.generator.trainable_weights)
        self.d_metric.update_state(d_loss)
        self.g_metric.update_state(g_loss)
        return {"d_loss": self.d_metric.result(), "g_loss": self.g_metric.result()}


def make_gan():
    keras.utils.set_random_seed(3)
    model = GAN()
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.optimizers.RMSprop(0.01, clipvalue=0.1),
        keras.losses.BinaryCrossentropy(from_logits=True),
    )
    return model


class Distiller(keras.Model):
    """A student that learns from a teacher, by `compute_loss`; `train_step` is that of Keras."""

    def __init__(self):
        super().__init__()
        self.teacher = keras.Sequential([keras.Input([6]), keras.layers.Dense(3)])
        self.teacher.trainable = False
        self.student = keras.Sequential([keras.layers.Dense(4, "relu"), keras.layers.Dense(3)])

    def call(self, x, training=False):
        return self.student(x, training=training)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        soft = keras.losses.kl_divergence(
            tf.nn.softmax(self.teacher(x) / 3), tf.nn.softmax(y_pred / 3)
        )
        return super().compute_loss(x, y, y_pred, sample_weight) + keras.ops.mean(soft)


def number(labels, outputs):
    """A metric function that returns one number for a batch."""
    return tf.reduce_mean(tf.square(outputs))


def make_distiller():
    keras.utils.set_random_seed(3)
    model = Distiller()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, 0.9), loss, metrics=["accuracy", number])
    return model


class Momentum(keras.Model):
    """A step that takes the mean of losses, and assigns a moving average of its weights."""

    def __init__(self):
        super().__init__()
        self.net = keras.Sequential([keras.Input([6]), keras.layers.Dense(3)])
        self.average = keras.models.clone_model(self.net)
        self.norms = [tf.Variable(0.0, trainable=False)]  # Keras does not list it.

    def call(self, x):
        return self.average(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            target = tf.one_hot(y, 3) + 0.1 * tf.stop_gradient(self.average(x))
            loss = tf.reduce_mean(self.loss(target, self.net(x)))
        grads = tape.gradient(loss, self.net.trainable_variables)
        self.optimizer.apply(grads, self.net.trainable_variables)
        for mean, value in zip(self.average.weights, self.net.weights, strict=True):
            mean.assign(0.9 * mean + 0.1 * value)
        self.norms[0].assign(0.9 * self.norms[0] + tf.norm(self.net.weights[0]))
        return {"error": loss}


def make_momentum():
    keras.utils.set_random_seed(3)
    model = Momentum()
    model.compile(keras.optimizers.Adam(0.01), keras.losses.MeanSquaredError(None))
    return model


def of(*parts):
    return lambda: tf.data.Dataset.from_tensor_slices(parts if parts[1:] else parts[0]).batch(32)


PROGRAMS = {
    "vae": (make_vae, of(X), True),
    "gan": (make_gan, of(X), False),
    "distiller": (make_distiller, of(X, Y), True),
    "momentum": (make_momentum, of(X, Y), False),
}


@pytest.fixture(scope="module")
def by_keras():
    """Returns the model and the history of `fit` on one replica by program."""
    found = {}

    def get(name):
        if name not in found:
            make, data, validates = PROGRAMS[name]
            model = make()
            history = model.fit(
                data(), epochs=2, verbose=0, validation_data=data() if validates else None
            )
            found[name] = model, history.history
        return found[name]

    return get


@pytest.mark.parametrize("devices", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_own_steps_train_as_fit_does_on_ragged_batches(tmp_path, by_keras, name, devices):
    make, data, validates = PROGRAMS[name]
    model, history = by_keras(name)
    config = ge.RunConfig(str(tmp_path), devices=devices)
    validation = data if validates else None
    ge.fit(make, data, epochs=1, validation_data=validation, config=config)
    result = ge.fit(make, data, epochs=2, validation_data=validation, config=config)
    for mine, theirs in zip(result.model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
    if name == "momentum":
        np.testing.assert_allclose(result.model.norms, model.norms, rtol=1e-5)
    assert set(history) <= set(result.history) <= {*history, "loss"}
    for key, values in history.items():
        np.testing.assert_allclose(result.history[key], values, atol=1e-5, rtol=1e-6, err_msg=key)


def result_of(output):
    lines = [line for line in output.splitlines() if line.startswith("RESULT")]
    return json.loads(lines[-1].removeprefix("RESULT"))


@pytest.fixture(scope="module")
def gan_alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    done = tasks.run(PROGRAM, folder / "run", "single_host")
    assert done.returncode == 0, done.stderr
    return result_of(done.stdout), folder / "run"


@pytest.mark.slow
def test_a_killed_training_continues_bit_for_bit_with_both_optimizers(tmp_path, gan_alone):
    expected, model_dir = gan_alone
    saved = {name for name, _ in tf.train.list_variables(str(model_dir))}
    slots = {
        f"{optimizer}/{slot}" for optimizer, _, slot, *_ in (f"{n}///".split("/") for n in saved)
    }
    assert slots >= {"d_optimizer/momentum", "d_optimizer/velocity", "g_optimizer/velocity"}
    arguments = [PROGRAM, tmp_path / "run", "single_host"]
    task = tasks.Task("killed", arguments, tmp_path)
    task.wait_for("STEP 5\n")
    task.send(signal.SIGKILL)
    task.wait()
    done = tasks.run(*arguments)
    assert done.returncode == 0, done.stderr
    assert result_of(done.stdout) == expected  # The weights and slots, and the history.


@pytest.mark.slow
def test_two_workers_train_a_gan_as_one(tmp_path, gan_alone):
    arguments = (tmp_path / "run", "multi_worker")
    with tasks.workers(tmp_path, *arguments, program="fit_own.py") as both:
        assert [task.wait() for task in both] == [0, 0], both[0].output
        results = [result_of(task.output) for task in both]
    for found in results:
        for mine, other in zip(found["weights"], gan_alone[0]["weights"], strict=True):
            np.testing.assert_allclose(mine, other, atol=1e-5)


class Joined(keras.Model):
    """A step whose loss is a function of its network's outputs."""

    def __init__(self, loss_of, layers=()):
        super().__init__()
        self.loss_of = loss_of
        self.net = keras.Sequential([keras.Input([6]), keras.layers.Dense(3), *layers])

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.loss_of(tf.cast(self.net(data, training=True), tf.float32))
        grads = tape.gradient(loss, self.net.trainable_variables)
        self.optimizer.apply(grads, self.net.trainable_variables)
        return {"loss": loss}


def contrast(outputs):
    """A loss with the other examples as negatives."""
    scores = tf.matmul(outputs, outputs, transpose_b=True)
    return tf.reduce_mean(tf.reduce_logsumexp(scores, -1) - tf.linalg.diag_part(scores))


class Noise(keras.layers.Layer):
    """Takes random numbers in place of its inputs, as the generator of a GAN does."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, x):
        return keras.random.normal(keras.ops.shape(x), seed=self.seeds)


def mean_of_squares(outputs):
    return tf.reduce_mean(outputs**2)


def synchronized():
    return keras.layers.BatchNormalization(synchronized=True)


JOINS = {
    "negatives": (contrast, (), True),
    "sum": (lambda outputs: tf.reduce_sum(outputs**2), (), True),
    "statistics": (
        lambda outputs: tf.reduce_mean(outputs**4),
        [keras.layers.BatchNormalization],
        True,
    ),
    "sum, synchronized": (lambda outputs: tf.reduce_sum(outputs**2), [synchronized], True),
    "mean, synchronized": (mean_of_squares, [synchronized], False),
    "mean": (mean_of_squares, (), False),
    "masks": (mean_of_squares, [keras.layers.Masking], False),
    "noise": (mean_of_squares, [Noise, lambda: keras.layers.Dense(2)], False),
}


@pytest.mark.parametrize("name", JOINS)
def test_a_step_that_joins_examples_is_warned_of(tmp_path, caplog, name):
    loss_of, kinds, joins = JOINS[name]

    def make():
        model = Joined(loss_of, [kind() for kind in kinds])
        model.compile("sgd")
        return model

    config = ge.RunConfig(str(tmp_path), devices=TWO, save_checkpoints_steps=0)
    ge.fit(make, of(X), config=config)
    assert ("Joined.train_step joins the examples" in caplog.text) == joins
    assert ("layers that mask positions" in caplog.text) == (name == "masks")
    assert ("get equally many examples" in caplog.text) == ("synchronized" in name)


def test_what_a_step_cannot_have_is_refused(tmp_path):
    def fit(make=make_vae, **options):
        ge.fit(make, of(X), config=ge.RunConfig(str(tmp_path), **options))

    with pytest.raises(ge.UserError, match=r"precision is 'mixed_float16', and VAE.train_step is"):
        fit(precision="mixed_float16")
    with pytest.raises(ge.UserError, match="jit_compile is True for a train_step on 2 replicas"):
        fit(jit_compile=True, devices=TWO)
    on_servers = mock.Mock(cluster=mock.Mock(has_servers=True))
    with pytest.raises(ge.UserError, match="on parameter servers.*execution='multi_worker'"):
        own_steps.check_own_steps("VAE.train_step is overridden", on_servers)

    def total():
        model = Joined(lambda outputs: tf.reduce_mean(outputs**2))
        model.size = keras.metrics.Sum(name="size")
        step = model.train_step
        model.train_step = lambda data: model.size.update_state(tf.size(data)) or step(data)
        model.compile("sgd")
        return model

    with pytest.raises(ge.UserError, match=r"'size' \(Sum\) got one number .* on 2 replicas"):
        fit(total, devices=TWO)

    def nothing():
        model = make_vae()
        model.train_step = lambda data: None
        return model

    with pytest.raises(ge.UserError, match="returned None: expected a dict"):
        fit(nothing)
