"""Evaluations, predictions and exports under the average, which disturb nothing."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.driver import evaluating
from pipeline.driver.runtime import Runtime
from tests import fakes

EMA = ge.ExponentialAverage(0.9)
X, Y = fakes.classification_data(rows=64)
TRAIN = fakes.make_input_fn(
    X, Y, batch_size=8, change=lambda d: d.shuffle(64, seed=3).repeat()
)
EVAL = fakes.make_input_fn(X, Y, batch_size=32)
ONE = fakes.make_input_fn(X[:4], batch_size=1)


def make(model_dir, average=EMA, **config):
    return fakes.make_estimator(
        model_dir,
        network=lambda: fakes.network(batch_norm=True, dropout=0.5),
        average=average,
        **{"save_checkpoints_steps": 2, **config},
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """An Estimator that was trained to step 6."""
    return make(tmp_path_factory.mktemp("run")).train(TRAIN, max_steps=6)


def logits(predictions):
    return np.stack([p["logits"] for p in predictions])


def averaged_network(estimator):
    """The network with its averages for weights, made by Keras alone."""
    network = fakes.network(batch_norm=True, dropout=0.5)
    network(X[:1])
    names = (
        *("dense/kernel", "dense/bias"),
        *(f"batch_normalization/{n}" for n in ("gamma", "beta")),
        *(f"batch_normalization/moving_{n}" for n in ("mean", "variance")),
        *("dense_1/kernel", "dense_1/bias"),
    )
    dense, norm, _, head = network.layers
    variables = [*dense.variables, *norm.variables, *head.variables]
    for variable, name in zip(variables, names, strict=True):
        variable.assign(estimator.get_variable_value(f"driver/ema/network/{name}"))
    return network


def values_of(estimator):
    state = estimator._runtimes.training.modules.named_variables()
    return {name: variable.numpy() for name, variable in state.items()}


def assert_equal(ours, theirs):
    assert sorted(ours) == sorted(theirs)
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)


def test_an_evaluation_measures_both_side_by_side(run):
    metrics = run.evaluate(EVAL)
    live, average = (run.evaluate(EVAL, weights=w) for w in ("live", "average"))
    assert live["global_step"] == metrics.pop("global_step") == 6
    for name in ("loss", "accuracy", "examples"):
        assert metrics.pop(name) == live[name]
        assert metrics.pop(f"ema/{name}") == average[name]
    assert not metrics
    out = averaged_network(run)(X)
    expected = keras.losses.sparse_categorical_crossentropy(Y, out, True)
    assert average["loss"] == pytest.approx(float(np.mean(expected)), rel=1e-5)
    assert average["loss"] != live["loss"]


@pytest.mark.parametrize("which", ["evaluator", "replicas"])
def test_others_measure_the_same(run, which):
    """Another process, by the checkpoint; and on another strategy."""
    options = {}
    if which == "replicas":
        options["eval_distribute"] = tf.distribute.MirroredStrategy(
            ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
        )
    estimator = make(run.model_dir, **options)
    path = run.latest_checkpoint() if which == "evaluator" else None
    ours, theirs = run.evaluate(EVAL), estimator.evaluate(EVAL, checkpoint_path=path)
    assert theirs == {k: pytest.approx(v, rel=1e-5) for k, v in ours.items()}


def test_predictions_and_exports_take_the_average(run, tmp_path):
    expected = averaged_network(run)(X[:4])
    np.testing.assert_allclose(logits(run.predict(ONE)), expected, 1e-4, 1e-5)
    live = logits(run.predict(ONE, weights="live"))
    assert np.abs(live - expected).max() > 1e-3
    for weights, wanted in ((None, expected), ("live", live)):
        path = run.export_saved_model(
            str(tmp_path / str(weights)),
            ge.build_raw_serving_input_receiver_fn(tf.TensorSpec([None, 6])),
            weights=weights,
        )
        model = tf.saved_model.load(path)
        served = model.signatures["serving_default"](features=tf.constant(X[:4]))
        np.testing.assert_allclose(served["logits"], wanted, 1e-4, 1e-5)
        assert not any("ema/" in name for name in model.state)
        network = fakes.network(batch_norm=True, dropout=0.5)
        network(X[:1])
        weights_path = str(tmp_path / "a.weights.h5")
        run.export_weights("network", weights_path, weights=weights)
        network.load_weights(weights_path)
        np.testing.assert_allclose(network(X[:4]), wanted, 1e-4, 1e-5)


def test_there_is_no_average_to_take(tmp_path):
    estimator = make(tmp_path, None)
    with pytest.raises(ge.RefusedValueError, match="there is no average: write Run"):
        estimator.evaluate(EVAL, weights="both")
    with pytest.raises(ge.RefusedValueError, match="there is no average: write Run"):
        estimator.predict(ONE, weights="average")


def test_before_its_start_the_average_is_what_is_live(tmp_path, log):
    estimator = make(tmp_path, ge.StochasticWeightAverage(100))
    estimator.train(TRAIN, max_steps=1)
    metrics = estimator.evaluate(EVAL)
    assert metrics["swa/loss"] == metrics["loss"]
    text = "eval | step 1 | no step is in the average as yet: it is what is live"
    assert text in log()
    average = logits(estimator.predict(ONE))
    live = logits(estimator.predict(ONE, weights="live"))
    np.testing.assert_array_equal(average, live)


def test_what_can_have_no_average_is_left_as_it_is(tmp_path):
    class Module(tf.Module):
        def __init__(self):
            unknown = tf.TensorShape([None])
            self.w = tf.Variable([1.0, 2.0])
            self.any = tf.Variable([1.0], shape=unknown, trainable=False)
            self.count = tf.Variable(0)

    def model_fn(features, labels, mode, network, optimizer):
        loss = tf.reduce_sum(network.w**2) + tf.reduce_sum(network.any)
        op = ge.TrainOp(optimizer, [network.w])
        return ge.EstimatorSpec(mode, loss=loss, train_op=op)

    estimator = fakes.make_estimator(
        tmp_path, model_fn=model_fn, network=Module, average=EMA
    )
    estimator.train(TRAIN, max_steps=2)
    names = [name for name in estimator.get_variable_names() if "/ema/" in name]
    assert names == ["driver/ema/network/w"]
    assert estimator.evaluate(EVAL)["ema/loss"] > estimator.evaluate(EVAL)["loss"]


def test_pictures_are_drawn_of_both(tmp_path, log):
    def model_fn(features, labels, mode, network, optimizer, params):
        spec = fakes.classifier_fn(features, labels, mode, network, optimizer, params)
        pictures = {"logits": ge.histogram(network(features))}
        return dataclasses.replace(spec, summaries=pictures)

    estimator = fakes.make_estimator(
        tmp_path, model_fn=model_fn, average=ge.StochasticWeightAverage(1)
    )
    for step, expected in ((1, {"logits"}), (2, {"logits", "swa/logits"})):
        estimator.train(TRAIN, max_steps=step)
        _, report = evaluating.evaluate(estimator._runtimes, EVAL)
        assert report.summaries.keys() == expected
    assert "eval | step 2 | the average of 1 step" in log()


def test_metrics_of_the_average_s_names_are_refused(tmp_path):
    def model_fn(features, labels, mode, network, optimizer, params):
        spec = fakes.classifier_fn(features, labels, mode, network, optimizer, params)
        metrics = {"ema/loss": spec.metrics["accuracy"]}
        return ge.EstimatorSpec(
            mode, loss=spec.loss, train_op=spec.train_op, metrics=metrics
        )

    estimator = fakes.make_estimator(tmp_path, model_fn=model_fn, average=EMA)
    estimator.train(TRAIN, max_steps=1)
    with pytest.raises(ge.RefusedValueError, match=r"metrics \['ema/loss'\] have the"):
        estimator.evaluate(EVAL)


# Along a training.


class Busy(ge.Hook):
    """Uses the average at each step in each way, and drops what it gets."""

    every_steps = 3

    def __init__(self, estimator, folder):
        self.estimator, self.folder = estimator, folder
        self.predicted = []
        self.begun = None

    def after_step(self, run):
        estimator = self.estimator
        if self.begun is None:
            self.begun = estimator.predict(ONE)
            self.first = next(self.begun)
        estimator.evaluate(EVAL)
        self.predicted.append(
            (logits(estimator.predict(ONE)), estimator.evaluate(EVAL, weights="live"))
        )
        with pytest.raises(ZeroDivisionError):
            estimator.evaluate(EVAL, hooks=[Fails()], weights="average")
        with pytest.raises(KeyboardInterrupt):
            estimator.evaluate(EVAL, hooks=[Interrupts()], weights="average")
        with pytest.raises(ge.Refusal, match="asked for other weights of the same"):
            estimator.evaluate(EVAL, hooks=[Nested(estimator)], weights="average")
        estimator.export_saved_model(
            str(self.folder),
            ge.build_raw_serving_input_receiver_fn(tf.TensorSpec([None, 6])),
        )


class Fails(ge.Hook):
    def after_loop(self, run):
        raise ZeroDivisionError


class Interrupts(ge.Hook):
    def after_loop(self, run):
        raise KeyboardInterrupt


class Nested(ge.Hook):
    def __init__(self, estimator):
        self.estimator = estimator

    def after_loop(self, run):
        self.estimator.evaluate(EVAL, weights="live")


def test_training_is_the_same_to_the_last_bit(run, tmp_path):
    estimator = make(tmp_path / "busy", async_checkpoint=True)
    busy = Busy(estimator, tmp_path / "exports")
    estimator.train(TRAIN, max_steps=6, hooks=[busy])
    for step in (2, 4, 6):
        ours = fakes.weights(tmp_path / "busy", step)
        assert_equal(ours, fakes.weights(run.model_dir, step))
    # At the last step the average was the checkpoint's.
    predicted, _ = busy.predicted[-1]
    np.testing.assert_array_equal(predicted, logits(run.predict(ONE)))
    # A prediction that was begun at step 3 went on with that average.
    rest = [busy.first, *busy.begun]
    assert np.abs(logits(rest) - predicted).max() > 1e-3
    np.testing.assert_array_equal(logits(rest), busy.predicted[0][0])


def test_one_of_several_processes_cannot_predict_along(tmp_path, monkeypatch):
    """Modules of its own are made by all together."""
    estimator = make(tmp_path)

    class Predicts(ge.Hook):
        def end(self, run):
            peers = estimator._runtimes.training.peers
            monkeypatch.setattr(type(peers), "alone", False)
            estimator.predict(ONE, weights="live")
            with pytest.raises(ge.Refusal, match="write predict.*weights='live'"):
                estimator.predict(ONE)
            monkeypatch.undo()

    estimator.train(TRAIN, max_steps=1, hooks=[Predicts()])


class Stops(ge.Hook):
    """Asks in each pass for its end."""

    def after_loop(self, run):
        run.request_stop("enough")


def test_a_stop_of_one_pass_is_none_of_the_other(run):
    metrics = run.evaluate(EVAL, hooks=[Stops()])
    assert metrics["ema/examples"] == metrics["examples"] == 64


def test_who_goes_back_has_the_average_of_then(run, tmp_path):
    class GoesBack(ge.Hook):
        every_steps = 1
        times = 0

        def after_step(self, run):
            if run.step in (3, 5) and self.times < 2:
                self.times += 1
                run.go_back("again")

    estimator = make(tmp_path).train(TRAIN, max_steps=6, hooks=[GoesBack()])
    assert_equal(fakes.weights(estimator.model_dir), fakes.weights(run.model_dir))


def test_an_exchange_whose_end_is_broken_off_is_ended_later(run, monkeypatch):
    """A second Ctrl-C, while the weights are put back."""
    run.evaluate(EVAL, weights="live")
    before = values_of(run)
    averages = run._runtimes.training.modules.averages

    def interrupted(self):
        if self._kept:
            variable, value = self._kept[0]
            variable.assign(value)
            monkeypatch.undo()
            raise KeyboardInterrupt

    monkeypatch.setattr(type(averages), "_put_back", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.evaluate(EVAL, weights="average")
    run.evaluate(EVAL, weights="live")
    assert_equal(values_of(run), before)


def test_what_is_not_saved_is_not_lost(tmp_path):
    """Predictions under the average, of values that are in no checkpoint."""
    estimator = make(tmp_path, save_checkpoints_steps=0).train(TRAIN, max_steps=4)
    before = values_of(estimator)
    average = logits(estimator.predict(ONE))
    live = logits(estimator.predict(ONE, weights="live"))
    assert np.abs(average - live).max() > 1e-3
    assert_equal(values_of(estimator), before)
    list(estimator.predict(ONE))
    estimator.train(TRAIN, steps=2)
    assert estimator.global_step == 6
    straight = make(tmp_path / "b", save_checkpoints_steps=0)
    straight.train(TRAIN, max_steps=4)
    straight.train(TRAIN, steps=2)
    assert_equal(values_of(estimator), values_of(straight))


class Better(ge.BestExporter):
    """Notes which weights it would export."""

    def _weights_of(self, estimator):
        self.chosen = super()._weights_of(estimator)
        return self.chosen


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({"metric": "ema/accuracy", "higher_is_better": True}, "average"),
        ({"metric": "accuracy", "higher_is_better": True}, "live"),
        ({"metric": "loss", "weights": "average"}, "average"),
        ({"compare_fn": lambda best, now: True}, None),
    ],
    ids=["average", "live", "as_said", "compare_fn"],
)
def test_the_best_is_exported_with_the_weights_it_was_measured_on(
    run, options, chosen, tmp_path
):
    exporter = Better(
        None,
        ge.build_raw_serving_input_receiver_fn(tf.TensorSpec([None, 6])),
        **options,
    )
    path = exporter.export(
        run, str(tmp_path), run.latest_checkpoint(), run.evaluate(EVAL), True
    )
    assert exporter.chosen == chosen
    model = tf.saved_model.load(path)
    served = model.signatures["serving_default"](features=tf.constant(X[:4]))
    expected = logits(run.predict(ONE, weights=chosen))
    np.testing.assert_allclose(served["logits"], expected, 1e-4, 1e-5)


def test_an_exporter_s_weights_are_checked():
    with pytest.raises(ge.RefusedValueError, match="is 'ema': write 'live' or 'aver"):
        ge.FinalExporter(weights="ema")


def test_a_runtime_without_averages_exchanges_nothing(tmp_path):
    estimator = make(tmp_path, None).train(TRAIN, max_steps=1)
    runtime = estimator._runtimes.training
    assert isinstance(runtime, Runtime)
    before = values_of(estimator)
    with runtime.weights("average"):
        assert_equal(values_of(estimator), before)
