"""Two replicas train as one: losses that are sums, clipping, and optimizers of the program."""

import json
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

import gin_estimator.v1 as tf

pytestmark = pytest.mark.oldest

RNG = np.random.default_rng(0)
X = RNG.normal(size=[48, 3]).astype("float32")
Y = (X.sum(axis=1, keepdims=True) * 3 + 1).astype("float32")
TWO = ("CPU:0", "CPU:1")


def weight_decay(t):
    """Returns an optimizer in the style of BERT's, for a TensorFlow."""

    class AdamWeightDecay(t.train.Optimizer):
        def __init__(self, learning_rate):
            super().__init__(False, "AdamWeightDecay")
            self.learning_rate = learning_rate

        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
            assignments = []
            for grad, param in grads_and_vars:
                if grad is None:
                    continue
                base = re.match("^(.*):\\d+$", param.name).group(1)
                slot = {
                    n: t.get_variable(
                        f"{base}/adam_{n}",
                        param.shape.as_list(),
                        trainable=False,
                        initializer=t.zeros_initializer(),
                    )
                    for n in "mv"
                }
                m = 0.9 * slot["m"] + 0.1 * grad
                v = 0.999 * slot["v"] + 0.001 * t.square(grad)
                update = m / (t.sqrt(v) + 1e-6) + 0.01 * param
                new = param - self.learning_rate * update
                assignments += [param.assign(new), slot["m"].assign(m), slot["v"].assign(v)]
            with t.control_dependencies(assignments):  # The rates read the step.
                return t.group(t.assign_add(global_step, 1), name=name)

    return AdamWeightDecay


def of_parts(t):
    """Returns an optimizer that overrides the parts of TensorFlow's, with a slot."""

    class Decayed(t.train.Optimizer):
        def __init__(self, rate):
            super().__init__(False, "Decayed")
            self._rate = rate

        def _prepare(self):
            self._tensor = t.convert_to_tensor(self._rate)

        def _create_slots(self, var_list):
            for v in var_list:
                self._zeros_slot(v, "m", self._name)
                self._zeros_slot(v, "n", self._name)

        def _resource_apply_dense(self, grad, var):
            m = self.get_slot(var, "m")
            new = m.assign(0.9 * m + grad)
            with t.control_dependencies([new]):
                return t.assign_sub(var, self._tensor * new)

    return Decayed


OPTIMIZERS = {
    "parts": lambda t, rate: of_parts(t)(rate),
    "own": lambda t, rate: weight_decay(t)(rate),
    "momentum": lambda t, rate: t.train.MomentumOptimizer(rate, 0.9),
}


def graph(t, x, y, loss_of, optimizer):
    """Returns loss and train_op of a small network, for a TensorFlow."""
    w = t.get_variable("w", [3, 1], initializer=t.constant_initializer(0.5))
    b = t.get_variable("b", [1], initializer=t.zeros_initializer())
    mean = t.get_variable("mean", [], initializer=t.zeros_initializer(), trainable=False)
    loss = loss_of(t, t.square(t.matmul(x, w) + b - y))
    step = t.train.get_or_create_global_step()
    rate = t.train.exponential_decay(0.05, step, 2, 0.9)
    gradients, _ = t.clip_by_global_norm(t.gradients(loss, [w, b]), 1.0)
    update = optimizer(t, rate).apply_gradients(zip(gradients, [w, b], strict=True), step)
    with t.control_dependencies([update]):
        return loss, t.group(t.assign(mean, 0.5 * mean + 0.5 * t.reduce_mean(x)), update)


def expected(loss_of, optimizer, steps=6):
    with tf1.Graph().as_default(), tf1.Session() as session:
        tf1.enable_resource_variables()
        x, y = tf1.placeholder("float32", [None, 3]), tf1.placeholder("float32", [None, 1])
        loss, train_op = graph(tf1, x, y, loss_of, optimizer)
        session.run(tf1.global_variables_initializer())
        for i in range(steps):
            session.run(train_op, {x: X[8 * i : 8 * i + 8], y: Y[8 * i : 8 * i + 8]})
        return {v.op.name: session.run(v) for v in tf1.global_variables()}


LOSSES = {
    "mean": lambda t, losses: t.reduce_mean(losses),
    "sum": lambda t, losses: t.reduce_sum(losses),
}


@pytest.mark.parametrize("devices", [TWO[:1], TWO])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("loss", LOSSES)
def test_replicas_train_as_a_session(loss, optimizer, devices, tmp_path):
    make = OPTIMIZERS[optimizer]

    def model_fn(features, labels, mode):
        value, train_op = graph(tf, features, labels, LOSSES[loss], make)
        return tf.estimator.EstimatorSpec(mode, loss=value, train_op=train_op)

    config = tf.estimator.RunConfig(str(tmp_path), devices=devices)
    estimator = tf.estimator.Estimator(model_fn, config=config)

    def input_fn():
        return tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)

    estimator.train(input_fn)
    values = expected(LOSSES[loss], make)
    errors = np.square(X @ values["w"] + values["b"] - Y)
    parts = errors[:47], errors[47:]  # Of 23 and 24 examples, and of none and one.
    by_batch = [part.mean() if loss == "mean" else part.sum() for part in parts]

    def uneven():
        return tf.data.Dataset.from_tensor_slices((X, Y)).batch(47)

    for each in (estimator, tf.estimator.Estimator(model_fn, config=config)):
        assert each.evaluate(uneven)["loss"] == pytest.approx(np.mean(by_batch), rel=1e-4)
    for name, value in values.items():
        found = estimator.get_variable_value(name)
        np.testing.assert_allclose(found, value, rtol=2e-5, atol=1e-6, err_msg=name)


def test_clips_of_contrib_are_of_the_gradient_of_all_replicas(tmp_path):
    def weights(name, devices, train_op):
        def model_fn(features, labels, mode):
            w = tf.get_variable("w", [3, 1], initializer=tf.constant_initializer(0.5))
            loss = tf.reduce_mean(tf.square(tf.matmul(features, w) - labels))
            spec = tf.estimator.EstimatorSpec
            return spec(mode, loss=loss, train_op=train_op(loss, tf.train.get_global_step()))

        config = tf.estimator.RunConfig(f"{tmp_path}/{name}{len(devices)}", devices=devices)
        estimator = tf.estimator.Estimator(model_fn, config=config)
        estimator.train(lambda: tf.data.Dataset.from_tensor_slices((X, Y)).batch(8))
        return estimator.get_variable_value("w")

    def wrapped(loss, step):
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        optimizer = tf.tpu.CrossShardOptimizer(optimizer)
        return tf.contrib.estimator.clip_gradients_by_norm(optimizer, 0.5).minimize(loss, step)

    def optimized(loss, step):
        return tf.contrib.layers.optimize_loss(loss, step, 0.1, "SGD", clip_gradients=0.5)

    one = weights("wrapped", TWO[:1], wrapped)
    np.testing.assert_allclose(weights("wrapped", TWO, wrapped), one, rtol=1e-5)
    np.testing.assert_allclose(weights("optimized", TWO[:1], optimized), one, rtol=1e-5)
    np.testing.assert_allclose(weights("optimized", TWO, optimized), one, rtol=1e-5)


def test_sums_over_sparse_features_are_found(tmp_path):
    """The loss of a canned estimator is a sum."""
    words = RNG.integers(3, size=[48, 2])

    def input_fn():
        data = tf.data.Dataset.from_tensor_slices((words, Y)).batch(8)
        return data.map(lambda x, y: ({"word": tf.sparse.from_dense(x)}, y))

    def weights(devices):
        column = tf.feature_column.categorical_column_with_identity("word", 3)
        config = tf.estimator.RunConfig(f"{tmp_path}/{len(devices)}", devices=devices)
        estimator = tf.estimator.LinearRegressor([column], config=config).train(input_fn)
        return estimator.get_variable_value("linear/linear_model/word/weights")

    np.testing.assert_allclose(weights(TWO), weights(TWO[:1]), rtol=1e-5)


def test_sums_of_a_program_for_tpus_are_found(tmp_path):
    """Its shapes depend on params['batch_size'], the rows of one replica."""

    def model_fn(features, labels, mode, params):
        x = tf.reshape(features, [params["batch_size"], -1])
        w = tf.get_variable("w", [x.shape[1], 1], initializer=tf.constant_initializer(0.5))
        errors = tf.matmul(x, w) - labels
        loss = tf.reduce_sum(tf.square(errors))
        train_op = tf.train.GradientDescentOptimizer(0.01).minimize(loss)
        return tf.estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    def input_fn(params):
        data = tf.data.Dataset.from_tensor_slices((X, Y))
        return data.batch(params["batch_size"], drop_remainder=True)

    def weights(devices):
        config = tf.estimator.tpu.RunConfig(f"{tmp_path}/{len(devices)}", devices=devices)
        estimator = tf.estimator.tpu.TPUEstimator(model_fn, config=config, train_batch_size=8)
        return estimator.train(input_fn).get_variable_value("w")

    np.testing.assert_allclose(weights(TWO), weights(TWO[:1]), rtol=1e-5)


def test_a_program_knows_the_number_of_workers(monkeypatch):
    task = {"type": "worker", "index": 1}
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": task}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    config = tf.estimator.RunConfig()
    assert (config.num_worker_replicas, config.global_id_in_cluster) == (2, 1)
