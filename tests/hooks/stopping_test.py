"""Trainings that rules and limits end, that return to their best weights, that lower their rates.

The model learns nothing: its metric is a function of the step, so that each rule ends a training
at a known step.
"""

import dataclasses
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import gin_estimator as ge
import small
from small import checkpoints, data, eval_input, make, poisoned, train_input, weights

# By tens of steps.
VALUES = [0.1, 0.2, 0.3, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0, 0.0]


def model_fn(features, labels, mode, network, optimizer, step):
    spec = small.model_fn(features, labels, mode, network, optimizer)
    value = tf.gather(tf.constant(VALUES), tf.minimum(step // 10, len(VALUES) - 1))
    return dataclasses.replace(spec, metrics={"score": tf.fill([tf.shape(features)[0]], value)})


def unknown_length():
    return data(4).shuffle(10, seed=1).filter(lambda x, y: True)


class Rates(ge.Hook):
    """Records the learning rate of each step."""

    every_steps = 1

    def __init__(self):
        self.found = {}

    def after_step(self, run):
        self.found[run.step] = round(float(run.report.scalars["learning_rate"]), 6)


class KillAt(ge.Hook):
    def __init__(self, step):
        self.every_steps = step

    def after_step(self, run):
        raise KeyboardInterrupt


def run(model_dir, *rules, max_steps=100, hooks=(), optimizer=None, train=(), one=None, **config):
    """Trains a new Estimator, or `one`; returns it and the metrics."""
    options = {"save_checkpoints_steps": 10, "save_summary_steps": None, "tf_random_seed": 1}
    one = one or make(model_dir, fn=model_fn, optimizer=optimizer, **{**options, **config})
    spec = ge.EvalSpec(eval_input, early_stopping=rules)
    train_spec = ge.TrainSpec(
        **{"input_fn": train_input, "max_steps": max_steps, "hooks": hooks, **dict(train)}
    )
    results = ge.train_and_evaluate(one, train_spec, spec)
    return one, results and results[0]


def ended(model_dir):
    content = json.loads((model_dir / "training_ended.json").read_text())
    return content["reason"], content["step"], content["details"]


RULE = ge.EarlyStopping("score", "max", patience_steps=20)
REASON = "EarlyStopping('score'): no increase in 20 steps; best 0.6 at step 30, 0.4 at step 50"


@pytest.mark.slow
def test_a_rule_ends_a_training_also_after_a_kill_and_at_once_when_started_again(tmp_path, caplog):
    caplog.set_level("INFO", logger="absl")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    one, metrics = run(whole, RULE)
    assert metrics["global_step"] == 50 and one.last_run.stop_reasons == [REASON]
    assert ended(whole) == ("stopped", 50, [REASON])
    with pytest.raises(KeyboardInterrupt):
        run(killed, RULE, hooks=[KillAt(37)])
    other, _ = run(killed, RULE)
    assert ended(killed) == ended(whole)
    assert checkpoints(killed) == checkpoints(whole)
    np.testing.assert_array_equal(weights(one), weights(other))
    again, metrics = run(whole, RULE)
    assert ended(whole) == ("stopped", 50, [REASON])
    assert again.last_run.step == 50 and metrics["global_step"] == 50
    # With more patience, or without a rule, training continues.
    run(whole, ge.EarlyStopping("score", "max", patience_steps=40), one=again)
    assert again.last_run.step == 70
    assert f"train | continues after a stop: {REASON}" in caplog.text
    run(whole, max_steps=80, one=again)
    assert ended(whole) == ("finished", 80, [])
    # A rule that the last evaluation fulfils stops nothing: the training has ended.
    run(whole, ge.EarlyStopping("score", "min", threshold=0.05), one=again, max_steps=90)
    assert ended(whole) == ("finished", 90, [])
    run(whole, ge.EarlyStopping("score", "min", threshold=0.05), one=again, max_steps=100)
    assert ended(whole)[:2] == ("stopped", 90)


@pytest.mark.slow
def test_the_best_weights_are_restored(tmp_path):
    rule = ge.EarlyStopping("score", "max", patience_steps=30, restore_best=True)
    plain, _ = run(tmp_path / "plain", max_steps=30)
    model_dir = tmp_path / "run"
    one, metrics = run(model_dir, rule, keep_checkpoint_max=2)
    assert (metrics["global_step"], metrics["score"]) == (30, pytest.approx(0.6))
    assert checkpoints(model_dir) == [30]
    np.testing.assert_array_equal(weights(one), weights(plain))
    reason, step, details = ended(model_dir)
    assert (reason, step) == ("stopped", 30) and "best 0.6 at step 30" in details[0]
    again, metrics = run(model_dir, rule)  # Ends at once.
    assert metrics["global_step"] == 30 and ended(model_dir)[1:] == (30, details)
    assert checkpoints(model_dir) == [30]
    run(model_dir, RULE, one=again)  # Another rule continues.
    assert again.last_run.step == 50


def test_rules_get_the_name_of_their_evaluation_once():
    rule = ge.EarlyStopping("loss", patience_steps=1, restore_best=True)
    spec = ge.EvalSpec(eval_input, name="dev", early_stopping=rule)
    for each in (spec, dataclasses.replace(spec, steps=1)):
        assert [rule.evaluation for rule in each.early_stopping] == ["dev"]
        assert each.keep_best == (ge.KeepBest("loss", higher_is_better=False),)
    of_average = ge.EarlyStopping("ema/scores/f1", patience_steps=1)
    ge.EvalSpec(eval_input, early_stopping=of_average).check_metrics(["scores", "ema/scores"])


def test_wrong_rules_are_refused_before_the_first_step(tmp_path):
    def refused(text, *rules, **options):
        with pytest.raises(ge.UserError, match=text):
            run(tmp_path, *rules, **options)

    def higher(metric, **options):
        return ge.EarlyStopping(metric, "max", threshold=1.0, **options)

    refused(r"\['loss', 'score'\]. Did you mean score", higher("scores"))
    restoring = higher("score", patience_steps=1, restore_best=True)
    refused("save_checkpoints_steps", restoring, save_checkpoints_steps=0)
    refused("restore_best is True: expected it in an EvalSpec", hooks=[restoring])
    refused("evaluation is 'dev'", hooks=[higher("score", evaluation="dev")])
    refused("expected no evaluation. Leave", higher("score", evaluation="dev"))
    refused(r"\['adam'\].*\['optimizer'\]", hooks=[halves(optimizers=["adam"])])
    refused("returns endless data", train={"max_epochs": 2})
    refused("max_epochs is 0", train={"max_epochs": 0})
    refused("max_secs is '5x'", train={"max_secs": "5x"})
    with pytest.raises(ge.errors.UserTypeError, match="expected a list of EarlyStopping objects"):
        ge.EvalSpec(eval_input, early_stopping=ge.EarlyStopping)
    with pytest.raises(
        ge.errors.UserValueError, match=r"EarlyStopping\('score'\).evaluation is ''"
    ):
        make(tmp_path, fn=model_fn).train(train_input, [higher("score")], max_steps=1)
    assert not checkpoints(tmp_path)


def halves(**options):  # The score is never lower than at the first evaluation.
    return ge.ReduceOnPlateau("score", "min", **{"factor": 0.5, "patience_steps": 1, **options})


def schedule():
    return keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.5, 100, 1.0))


def constant():
    return keras.optimizers.SGD(0.5)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [constant, schedule])
def test_rates_are_lowered_also_after_a_kill(optimizer, tmp_path):
    options = {"optimizer": optimizer, "save_checkpoints_steps": 2, "max_steps": 10}
    rates = Rates()
    one, _ = run(tmp_path / "whole", hooks=[rates, halves()], **options)
    # The evaluations of steps 4, 6 and 8 show no improvement over that of step 2.
    assert rates.found == {
        n: 0.5 if n <= 4 else 0.25 if n <= 6 else 0.125 if n <= 8 else 0.0625 for n in range(1, 11)
    }
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", hooks=[KillAt(7), halves()], **options)
    rates = Rates()
    two, _ = run(tmp_path / "killed", hooks=[rates, halves()], **options)
    assert rates.found == {7: 0.125, 8: 0.125, 9: 0.0625, 10: 0.0625}
    np.testing.assert_array_equal(weights(one), weights(two))
    rates = Rates()
    two.train(train_input, [rates], max_steps=11)  # Without the hook the rate is as configured.
    assert rates.found == {11: 0.5}


@pytest.mark.slow
def test_limits_of_rates_and_two_replicas(tmp_path):
    options = {"optimizer": constant, "save_checkpoints_steps": 2}
    rates = Rates()
    hooks = [rates, halves(min_rate=0.2, optimizers=["optimizer"])]
    run(tmp_path, hooks=hooks, max_steps=9, devices=("CPU:0", "CPU:1"), **options)
    assert [rates.found[n] for n in (3, 5, 7, 9)] == [0.5, 0.25, 0.2, 0.2]


def without_dropout():
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(3)])


def all_stops(folder, **config):
    """Ends a training in each way; returns the step, the reasons, and a metric with the weights."""
    best = ge.EarlyStopping("score", "max", patience_steps=30, restore_best=True)
    passes = {"input_fn": eval_input, "max_epochs": 3, "max_steps": None}
    trainings = {
        "rule": ([RULE], {}),
        "best": ([best], {}),
        "passes": ([], {"train": passes}),
        "rates": ([], {"hooks": [halves()], "max_steps": 50}),
        "hook": ([], {"hooks": [ge.hooks.StopAtStepHook(3)]}),
        "average": ([], {"average": ge.ExponentialAverage(0.9), "max_steps": 20}),
        "skipped": ([], {"train": {"input_fn": poisoned}, "on_nan": "restore", "max_steps": 11}),
    }
    found = {}
    for name, (rules, options) in trainings.items():
        one, metrics = run(f"{folder}/{name}", *rules, network=without_dropout, **options, **config)
        values = [metrics["score"], *weights(one).tolist()]
        found[name] = [one.state.step, one.last_run.stop_reasons, values]
    return found


def assert_same_stops(actual, expected):
    for name, (*end, values) in expected.items():
        assert actual[name][:-1] == end
        np.testing.assert_allclose(actual[name][-1], values, 1e-5, 1e-6, err_msg=name)


@pytest.mark.slow
def test_two_replicas_end_as_one(tmp_path):
    expected = all_stops(tmp_path / "one")
    assert {name: step for name, (step, *_) in expected.items()} == {
        **{"rule": 50, "best": 30, "passes": 15, "hook": 3},
        **{"rates": 50, "average": 20, "skipped": 11},
    }
    assert_same_stops(all_stops(tmp_path / "two", devices=("CPU:0", "CPU:1")), expected)


@pytest.mark.slow
@pytest.mark.parametrize(  # The first kill of each input is at the end of a pass.
    "input_fn, steps, kill",
    [(eval_input, 5, 10), (eval_input, 5, 6), (unknown_length, 10, 20), (unknown_length, 10, 11)],
)
def test_passes_count_over_restarts(input_fn, steps, kill, tmp_path):
    def train(model_dir, max_epochs, *hooks, one=None):
        options = {"save_checkpoints_steps": kill, "save_summary_steps": None}
        one = one or make(model_dir, fn=model_fn, tf_random_seed=1, **options)
        ge.train_and_evaluate(one, ge.TrainSpec(input_fn, hooks=hooks, max_epochs=max_epochs))
        assert ended(model_dir)[0] == "finished"
        return one

    whole = train(tmp_path / "whole", 3)
    assert whole.state.step == 3 * steps
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "killed", 3, KillAt(kill + 1))
    again = train(tmp_path / "killed", 3)
    np.testing.assert_array_equal(weights(again), weights(whole))
    train(tmp_path / "killed", 3, one=again)
    assert again.state.step == 3 * steps  # Nothing is left to do.
    train(tmp_path / "killed", 4, one=again)
    assert again.state.step == 4 * steps


def test_seconds_count_over_restarts(tmp_path):
    one = make(tmp_path, fn=model_fn, max_loop_secs=0.05, save_checkpoints_steps=10**6)
    ge.train_and_evaluate(one, ge.TrainSpec(train_input, max_secs=0.3))
    step = one.state.step
    assert step and ended(tmp_path) == ("stopped", step, ["StopAfterSecsHook: 0.3 s"])
    ge.train_and_evaluate(one, ge.TrainSpec(train_input, max_secs="0.3s"))
    assert one.state.step == step
    ge.train_and_evaluate(one, ge.TrainSpec(train_input, max_secs=600, max_steps=step + 5))
    assert ended(tmp_path) == ("finished", step + 5, [])


def test_the_profiler_records_once(tmp_path):
    one = make(tmp_path, save_checkpoints_steps=100, save_summary_steps=None)
    one.train(train_input, [ge.ProfilerHook(3, 2)], max_steps=8)
    assert len(list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))) == 1
    cut_short = ge.ProfilerHook(10, 50, str(tmp_path / "cut"))
    one.train(train_input, [cut_short], max_steps=12)
    assert len(list(tmp_path.glob("cut/plugins/profile/*/*.xplane.pb"))) == 1
