"""Averages of the weights: their law, what uses them, and that training does not see them."""

import logging
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import gin_estimator as ge
from small import X, eval_input, features_input, make, model_fn, strategy, train_input

EMA = ge.ExponentialAverage(0.8)
STEPS = 6
RECEIVER = ge.build_raw_serving_input_receiver_fn(tf.TensorSpec([None, 4]))


def make_network():
    keras.utils.set_random_seed(1)
    layers = keras.layers
    return keras.Sequential([layers.Dense(5), layers.BatchNormalization(), layers.Dense(3)])


def averaged(model_dir, average=EMA, **options):
    options = {"save_checkpoints_steps": 1, "keep_checkpoint_max": None, **options}
    options["network"] = options.get("network", make_network)
    return make(model_dir, average=average, tf_random_seed=1, **options)


def by_step(model_dir, prefix="network/"):
    """Returns the values of each variable by step, from the checkpoints."""
    found = {}
    for step in range(STEPS + 1):
        reader = tf.train.load_checkpoint(f"{model_dir}/model.ckpt-{step}")
        for key in reader.get_variable_to_shape_map():
            module, _, path = key.partition("/.ATTR")[0].partition("/")
            name = f"{module}/{path.partition('/')[2]}"
            if name.startswith(prefix) and "seed_generator" not in name:
                found.setdefault(name.removeprefix(prefix), []).append(reader.get_tensor(key))
    return found


def weight(average, step, counted):
    """Returns how much a step counts among all that count up to a later one."""
    if isinstance(average, ge.StochasticWeightAverage):
        return 1.0
    is_first = step == counted[0] and not average.debias
    return average.decay ** ((counted[-1] - step) // average.every) * (
        1.0 if is_first else 1 - average.decay
    )


def expected(values, average, step):
    counted = [s for s in range(1, step + 1) if s > average.start_step]
    counted = [s for s in counted if (s - average.start_step) % average.every == 0]
    shares = [weight(average, s, counted) for s in counted]
    return sum(w * values[s].astype("float64") for w, s in zip(shares, counted, strict=True)) / sum(
        shares
    )


def logits(predictions):
    return np.stack([each["logits"] for each in predictions])


class Uses(ge.Hook):
    """Uses the average during the training, also in ways that fail."""

    every_steps = 3

    def __init__(self, estimator, folder):
        self.estimator, self.folder = estimator, folder
        self.lazy, self.errors, self.predicted = None, [], {}

    def after_step(self, run):
        one = self.estimator
        if self.lazy is None:
            self.lazy = one.predict(features_input)
            next(self.lazy)
        self.predicted[run.step] = logits(one.predict(features_input))
        one.evaluate(eval_input)
        for hook in (Nested(one), Fails()):
            try:
                one.evaluate(eval_input, hooks=[hook], weights="average")
            except (ge.errors.UserRuntimeError, ZeroDivisionError) as error:
                self.errors.append(str(error))

    def end(self, run):
        with pytest.raises(ge.errors.UserRuntimeError, match="the weights of the Estimator were"):
            next(self.lazy) and [*self.lazy]


class Nested(ge.Hook):
    def __init__(self, estimator):
        self.estimator = estimator

    def after_loop(self, run):
        self.estimator.evaluate(eval_input, weights="live")


class Fails(ge.Hook):
    def after_loop(self, run):
        raise ZeroDivisionError("a mistake in a hook")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Returns an Estimator after STEPS steps in which a hook used the average."""
    estimator = averaged(tmp_path_factory.mktemp("run"))
    hook = Uses(estimator, tmp_path_factory.mktemp("exports"))
    exporters = [
        ge.BestExporter(name, RECEIVER, metric=name, higher_is_better=False)
        for name in ("loss", "ema/loss")
    ]
    metrics, _ = ge.train_and_evaluate(
        estimator,
        ge.TrainSpec(train_input, STEPS, [hook]),
        ge.EvalSpec(eval_input, every_steps=STEPS, exporters=exporters),
    )
    return estimator, hook, metrics


def test_average_follows_the_formula_and_training_is_the_same(run, tmp_path):
    estimator, hook, _ = run
    live, averages = (by_step(estimator.model_dir, p) for p in ("network/", "driver/ema/network/"))
    assert live.keys() == averages.keys() and "batch_normalization/moving_mean" in live
    for name, values in averages.items():
        np.testing.assert_array_equal(values[1], live[name][1])  # To the last bit.
        for step in range(1, STEPS + 1):
            np.testing.assert_allclose(
                values[step], expected(live[name], EMA, step), rtol=2e-6, atol=1e-7
            )
    plain = averaged(tmp_path, None).train(train_input, max_steps=STEPS)
    for name, values in by_step(plain.model_dir).items():
        np.testing.assert_array_equal(values, live[name])
    assert any("uses the same Estimator" in error for error in hook.errors)
    assert "a mistake in a hook" in hook.errors


def test_evaluations_predictions_and_exports_choose_weights(run, tmp_path):
    estimator, hook, metrics = run
    live = estimator.evaluate(eval_input, weights="live")
    average = estimator.evaluate(eval_input, weights="average")
    assert live.keys() == average.keys() and live["loss"] != average["loss"]
    expected = {**live, **{f"ema/{n}": v for n, v in average.items() if n != "global_step"}}
    assert estimator.evaluate(eval_input) == pytest.approx(expected, rel=1e-6)
    assert metrics == pytest.approx(expected, rel=1e-6)
    network = make_network()
    network(X[:1])
    for weights in ("live", "average", None):
        path = estimator.export_weights("network", str(tmp_path / "a.weights.h5"), weights=weights)
        network.load_weights(path)
        rows = logits(estimator.predict(features_input, weights=weights))
        np.testing.assert_allclose(rows, network(X), rtol=1e-5, atol=1e-6)
        if weights != "live":
            np.testing.assert_array_equal(rows, hook.predicted[STEPS])
        for name in ("loss", "ema/loss") if weights is not None else ():
            [path] = pathlib.Path(estimator.model_dir, "export", name).glob("[0-9]*")
            served = tf.saved_model.load(str(path)).signatures["serving_default"]
            is_equal = np.allclose(
                served(features=tf.constant(X))["logits"], rows, rtol=1e-5, atol=1e-6
            )
            assert is_equal == ((name == "loss") == (weights == "live"))


@pytest.mark.slow
def test_a_checkpoint_continues_its_averages_or_starts_them(run, tmp_path, caplog):
    averaged(tmp_path).train(train_input, max_steps=3)
    again = averaged(tmp_path).train(train_input, max_steps=STEPS)
    whole = by_step(run[0].model_dir, "driver/ema")
    for name, values in by_step(again.model_dir, "driver/ema").items():
        np.testing.assert_array_equal(values, whole[name])
    with caplog.at_level(logging.WARNING):
        other = averaged(tmp_path, ge.StochasticWeightAverage(100))
        other.train(train_input, max_steps=STEPS + 1)
        assert "they start again" in caplog.text and "of driver/ema/" in caplog.text
        metrics = other.evaluate(eval_input)  # No step counts yet.
        assert metrics["swa/loss"] == pytest.approx(metrics["loss"], rel=1e-6)
        averaged(tmp_path, None).train(train_input, max_steps=STEPS + 2)
        assert "such as driver/swa/network" in caplog.text and "dropped" in caplog.text


def test_a_new_run_begins_with_the_average(run, tmp_path):
    settings = ge.WarmStartSettings(run[0].model_dir, weights="average")
    one = ge.Estimator(
        model_fn,
        str(tmp_path),
        warm_start_from=settings,
        modules={"network": make_network, "optimizer": keras.optimizers.SGD},
    )
    average = run[0].evaluate(eval_input, weights="average")
    assert one.evaluate(eval_input)["loss"] == pytest.approx(average["loss"], rel=1e-6)


CASES = {
    "mirrored 2": ge.StochasticWeightAverage(1, every=2, modules=["network/dense.*"]),
    "central 2": ge.ExponentialAverage(0.8, start_step=1, debias=False),
    "default": ge.ExponentialAverage(0.8, debias=False, every=2, serve="live", evaluate="live"),
    "mirrored 4": ge.ExponentialAverage(0.8),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_average_is_that_of_the_formula_on_each_strategy(name, tmp_path):
    average = CASES[name]
    one = averaged(tmp_path, average, train_distribute=strategy(name))
    one.train(train_input, max_steps=STEPS)
    live = by_step(tmp_path)
    averages = by_step(tmp_path, f"driver/{average.kind}/network/")
    chosen = {n for n in live if average.modules is None or n.startswith("dense")}
    assert averages.keys() == chosen
    for variable, values in averages.items():
        for step in range(3, STEPS + 1):
            np.testing.assert_allclose(
                values[step], expected(live[variable], average, step), rtol=1e-5, atol=1e-6
            )
    metrics, prefix = one.evaluate(eval_input), f"{average.kind}/loss"
    assert (prefix in metrics) == (average.evaluate == "both")
    measured = one.evaluate(eval_input, weights="average")["loss"]
    assert measured == pytest.approx(metrics.get(prefix, measured), rel=1e-6) != metrics["loss"]


def test_refusals(tmp_path):
    one = make(tmp_path)
    for call in (
        lambda: one.evaluate(eval_input, weights="both"),
        lambda: list(one.predict(features_input, weights="average")),
        lambda: one.export_saved_model(str(tmp_path), RECEIVER, weights="average"),
    ):
        with pytest.raises(
            ge.errors.UserValueError, match="RunConfig.average is None: expected 'live'"
        ):
            call()
    for options, text in (
        ({"decay": 1.0}, "decay is 1.0: expected a number between 0 and 1"),
        ({"modules": "(a"}, "modules is '.a': expected regular expressions"),
        ({"serve": "both"}, "serve is 'both': expected 'average' or 'live'"),
        ({"every": 0}, "every is 0: expected an int > 0"),
    ):
        with pytest.raises(ge.errors.UserValueError, match=text):
            ge.ExponentialAverage(**options)
    with pytest.raises(ge.errors.UserTypeError, match="average is 0.9: expected an average"):
        ge.RunConfig(average=0.9)
    with pytest.raises(ge.errors.UserValueError, match="FinalExporter.weights is 'ema'"):
        ge.FinalExporter(weights="ema")
    with pytest.raises(ge.errors.SpecError, match="modules has 'net', which matches no floating"):
        averaged(tmp_path, ge.ExponentialAverage(modules="net")).train(train_input, max_steps=1)
    with pytest.raises(ge.errors.SpecError, match="has use_ema=True, and RunConfig.average"):
        averaged(tmp_path, optimizer=lambda: keras.optimizers.SGD(0.1, use_ema=True)).train(
            train_input, max_steps=1
        )
