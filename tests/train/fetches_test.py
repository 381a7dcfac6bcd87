"""Tensors of single steps for hooks, and how often model_fn is traced."""

import collections
import dataclasses
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import gin_estimator as ge
from two_vectors import X, Y, data, losses, modules

SGD = {"optimizer": lambda: keras.optimizers.SGD(0.1)}


class Tensors(ge.Hook):
    """Keeps the tensors of its steps."""

    def __init__(self, every_steps, wants):
        self.every_steps, self.wants_tensors = every_steps, wants
        self.seen = {}

    def after_step(self, run):
        self.seen[run.step] = run.report.tensors


def model_fn(features, labels, mode, a, b, optimizer):
    loss = losses(features[0], labels, a, b)[0]
    return ge.EstimatorSpec(
        mode,
        loss=loss,
        train_op=ge.TrainOp(optimizer, [a, b]),
        tensors={"x": features[0], "label": labels, "loss_of_each": loss},
    )


def train(folder, hooks, strategy=None, *, size=32, fn=model_fn, **config):
    config = ge.RunConfig(str(folder), train_distribute=strategy, **config)
    estimator = ge.Estimator(fn, modules=modules(**SGD), config=config)
    return estimator.train(lambda: data(size), hooks=hooks)


@pytest.mark.slow
@pytest.mark.parametrize("accumulated", [1, 3])
def test_tensors_of_a_step_are_in_the_order_of_the_input(tmp_path, strategy, accumulated):
    # 97 rows: the last step has one row, or one micro-batch of three with one row.
    hooks = [Tensors(1, True), Tensors(2, ["label"]), Tensors(2, False)]
    size = 32 // accumulated + 1
    config = {"save_checkpoints_steps": 0, "gradient_accumulation_steps": accumulated}
    estimator = train(tmp_path, hooks, strategy, size=size, **config)
    every, second, none = (hook.seen for hook in hooks)
    for step, tensors in every.items():
        rows = slice((step - 1) * accumulated * size, step * accumulated * size)
        np.testing.assert_array_equal(tensors["x"], X[rows])
        np.testing.assert_array_equal(tensors["label"], Y[rows])
        assert len(tensors["loss_of_each"]) == len(X[rows])
    assert list(every) == [1, 2, 3]
    assert {step: set(tensors) for step, tensors in second.items()} == {2: {"label"}}
    assert none == {2: {}}
    plain = train(tmp_path, [], strategy, size=size, **config)
    for name in "ab":
        ours, theirs = (each.state.modules[name].numpy() for each in (estimator, plain))
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_tensors_are_logged_and_host_metrics_are_not_computed(tmp_path, caplog):
    def never(labels):
        raise AssertionError

    def with_numpy_metric(features, labels, mode, a, b, optimizer):
        spec = model_fn(features, labels, mode, a, b, optimizer)
        return dataclasses.replace(spec, metrics={"never": ge.numpy_metric(never, labels)})

    caplog.set_level("INFO", logger="absl")
    train(tmp_path, [ge.hooks.TensorHook(3, ["label"])], fn=with_numpy_metric, size=4)
    [line] = [text for text in caplog.messages if text.startswith("train | step 3 | label = ")]
    assert line.endswith(str(Y[8:12]))
    train(tmp_path / "large", [ge.hooks.TensorHook(1, ["label"])], fn=with_numpy_metric, size=8)
    [line] = [text for text in caplog.messages if text.startswith("train | step 1 | label = [8],")]
    assert f"mean {Y[:8].mean():.4g}, from {Y[:8].min():.4g} to " in line


def test_a_tensor_that_is_not_there_is_refused_before_training(tmp_path):
    with pytest.raises(ge.UserError, match=r"wants_tensors has \['y'\].*'label'"):
        train(tmp_path, [Tensors(1, ["y"])])


@pytest.mark.slow
@pytest.mark.parametrize(
    "one_or_two", ["default", pytest.param("mirrored 2", marks=pytest.mark.slow)], indirect=True
)
def test_programs_are_traced_once_for_each_shape(tmp_path, one_or_two):
    traces = collections.Counter()

    def counted(features, labels, mode, a, b, optimizer):
        traces[mode] += 1
        if mode == ge.ModeKeys.PREDICT:
            return ge.EstimatorSpec(mode, predictions=features[0] @ a[:, tf.newaxis])
        return model_fn(features, labels, mode, a, b, optimizer)

    def new_input_fn(size, static=False):
        return lambda: data(size).take(2) if not static else data(size).take(2).map(fixed(size))

    def fixed(size):
        def set_shapes(features, labels):
            x, weights = features
            x, weights = tf.ensure_shape(x, [size, 3]), tf.ensure_shape(weights, [size])
            return (x, weights), tf.ensure_shape(labels, [size])

        return set_shapes

    config = ge.RunConfig(str(tmp_path), train_distribute=one_or_two)
    estimator = ge.Estimator(counted, modules=modules(**SGD), config=config)

    def use(size, static=False):
        estimator.train(new_input_fn(size, static), steps=2)
        metrics = [estimator.evaluate(new_input_fn(size, static)) for _ in range(3)]
        predictions = list(estimator.predict(new_input_fn(size, static)))
        assert len(predictions) == 2 * size
        a, b = (estimator.state.modules[name].numpy() for name in "ab")
        np.testing.assert_allclose(predictions, X[: 2 * size] @ a[:, None], rtol=1e-4, atol=1e-5)
        expected = np.mean((X[: 2 * size] @ (a + b) - Y[: 2 * size]) ** 2)
        assert metrics[-1]["loss"] == pytest.approx(expected, rel=1e-4)

    use(16)
    once = dict(traces)
    use(16)
    use(24)
    assert traces == once
    use(8, static=True)
    first = dict(traces)
    use(12, static=True)  # Programs for another static size.
    use(8, static=True)
    use(16)
    grown = {mode: traces[mode] - first[mode] for mode in traces}
    assert all(count <= once[mode] for mode, count in grown.items())


def test_waiting_for_input_is_measured(tmp_path):
    reports = []

    class Keep(ge.Hook):
        every_steps = 3

        def after_step(self, run):
            reports.append(run.report)

    def wait():
        time.sleep(0.1)
        return 0

    def with_wait(features, labels):
        with tf.control_dependencies([tf.py_function(wait, [], tf.int64)]):
            return tf.nest.map_structure(tf.identity, (features, labels))

    config = ge.RunConfig(str(tmp_path))
    estimator = ge.Estimator(model_fn, modules=modules(**SGD), config=config)
    estimator.train(lambda: data().map(with_wait), max_steps=3, hooks=[Keep()])
    [report] = reports
    assert 0.1 < report.input_seconds < report.seconds
    assert 0 < report.input_wait <= 1
