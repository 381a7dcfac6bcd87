"""Hooks of a training: the steps of their calls, their reports, and the files of stock hooks."""

import dataclasses
import re
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import gin_estimator as ge
from gin_estimator.cluster.stuck_tasks import Answer
from gin_estimator.contract.hooks import RunContext
from gin_estimator.hooks import cluster_hook
from small import checkpoints, eval_input, make, model_fn, points, poisoned, train_input


class Recorder(ge.Hook):
    """Records its calls and reports."""

    def __init__(self, every_steps=None):
        self.every_steps = every_steps
        self.calls = []

    def after_step(self, run):
        self.calls.append((run.step, run.report))

    def end(self, run):
        self.calls.append(("end", run.report))


class Own(Recorder):
    def next_step(self, step):
        return next((each for each in (4, 9) if each > step), None)


class Loops(ge.Hook):
    def __init__(self):
        self.calls = []

    def after_loop(self, run):
        self.calls.append((run.step, run.report.num_steps))


def test_hooks_are_called_exactly_at_their_steps(tmp_path):
    threes, own, loops = Recorder(3), Own(), Loops()
    make(tmp_path, max_loop_secs=600).train(train_input, [threes, own, loops], max_steps=10)
    assert [step for step, _ in threes.calls] == [3, 6, 9, "end"]
    assert [step for step, _ in own.calls] == [4, 9, "end"]
    assert [report.num_steps for _, report in threes.calls] == [3, 3, 3, 1]
    assert [report.num_examples for _, report in threes.calls] == [24, 24, 24, 8]
    # Calls begin with one step and double, and end at each step of a hook.
    assert [step for step, _ in loops.calls] == [1, 3, 4, 6, 9, 10]
    assert sum(number for _, number in loops.calls) == 10
    report = threes.calls[0][1]
    assert report.step == 3 and report.seconds > 0
    assert report.steps_per_sec == pytest.approx(3 / report.seconds)
    assert report.examples_per_sec == pytest.approx(24 / report.seconds)
    assert set(report.metrics) == {"accuracy"}
    assert report.scalars["learning_rate"] == pytest.approx(0.1)


class NotAhead(ge.Hook):
    def next_step(self, step):
        return step


def test_hooks_that_cannot_be_called_are_refused(tmp_path):
    one, hook = make(tmp_path), Recorder(1)
    for hooks, text in (
        ([NotAhead()], r"NotAhead.next_step\(0\) returned 0.*Return 1"),
        ([hook, hook], "twice"),
        *(([Recorder(every)], f"Recorder.every_steps is {every}") for every in (0, 2.5, True)),
    ):
        with pytest.raises(ge.UserError, match=text):
            one.train(train_input, hooks, max_steps=1)
    for hook in (ge.LoggingHook(1), ge.hooks.TensorHook(1)):
        with pytest.raises(ge.errors.UserTypeError, match=f"has a {type(hook).__name__}"):
            one.evaluate(eval_input, hooks=[hook])


def test_reasons_to_stop_accumulate(tmp_path):
    class Stop(ge.Hook):
        every_steps = 2

        def __init__(self, reason):
            self.reason = reason

        def after_step(self, run):
            run.request_stop(self.reason)

    one = make(tmp_path)
    one.train(train_input, [Stop("a"), Stop("b"), Stop("a")], max_steps=9)
    assert one.last_run.stop_reasons == ["a", "b"]
    with pytest.raises(ge.errors.UserTypeError, match="request_stop.reason is 5: expected a text"):
        one.last_run.request_stop(5)
    assert one.last_run.stop_reason == "a; b"
    assert checkpoints(tmp_path) == [0, 2]


def test_stop_at_step(tmp_path):
    one = make(tmp_path, save_checkpoints_steps=4)
    one.train(train_input, [ge.hooks.StopAtStepHook(num_steps=3)])
    assert one.state.step == 3
    one.train(train_input, [ge.hooks.StopAtStepHook(num_steps=3)])  # A finished run does not count.
    assert one.state.step == 6
    one.train(train_input, [ge.hooks.StopAtStepHook(last_step=8)])
    assert one.state.step == 8
    one.train(train_input, [ge.hooks.StopAtStepHook(last_step=5)])
    assert one.state.step == 9
    with pytest.raises(RuntimeError, match="killed"):
        one.train(train_input, [ge.hooks.StopAtStepHook(num_steps=6), Fail(13)])
    again = make(tmp_path)
    again.train(train_input, [ge.hooks.StopAtStepHook(num_steps=6)])  # From step 12.
    assert again.state.step == 15
    for options in ({}, {"num_steps": 1, "last_step": 2}, {"last_step": 0}, {"last_step": "5"}):
        with pytest.raises(ge.errors.UserValueError, match="expected one int greater than 0"):
            ge.hooks.StopAtStepHook(**options)


class Fail(ge.Hook):
    """Saves nothing at its step, and fails there."""

    def __init__(self, at):
        self.every_steps = at

    def after_step(self, run):
        raise RuntimeError("killed")


class Listener(ge.SavingListener):
    def __init__(self, stop_at=None):
        self.calls = []
        self.stop_at = stop_at

    def begin(self, run):
        self.calls.append("begin")

    def before_save(self, run):
        self.calls.append(("before", run.step, run.report.num_steps))

    def after_save(self, run):
        self.calls.append(("after", run.step, run.report.num_steps))
        return run.step == self.stop_at

    def end(self, run):
        self.calls.append("end")


def test_saving_listeners(tmp_path):
    listener = Listener(stop_at=4)
    one = make(tmp_path, save_checkpoints_steps=2, log_step_count_steps=None)
    one.train(train_input, saving_listeners=[listener], max_steps=9)
    pairs = [(name, step, step and 2) for step in (0, 2, 4) for name in ("before", "after")]
    assert listener.calls == ["begin", *pairs, "end"]
    assert one.last_run.stop_reason == "Listener.after_save returned True"
    again = Listener()
    one.train(train_input, saving_listeners=[again], max_steps=4)
    assert again.calls == ["begin", "end"]
    assert checkpoints(tmp_path) == [0, 2, 4]


def arrays_fn(features, labels, mode, network, optimizer):
    spec = model_fn(features, labels, mode, network, optimizer)
    probabilities = tf.nn.softmax(network(features, training=False))
    f1 = ge.metric(keras.metrics.F1Score, tf.one_hot(labels, 3), probabilities)
    scalars = {"batch_mean": tf.reduce_mean(features)}
    return dataclasses.replace(spec, metrics={**spec.metrics, "f1": f1}, scalars=scalars)


def test_reports_and_points_for_tensorboard(tmp_path):
    rate = keras.optimizers.schedules.PiecewiseConstantDecay([1, 3], [0.4, 0.2, 0.1])
    optimizer = lambda: keras.optimizers.SGD(rate)  # noqa: E731
    options = {"save_summary_steps": 2, "save_checkpoints_steps": 3}
    one = make(tmp_path, fn=arrays_fn, optimizer=optimizer, **options)
    seen = []

    class Look(ge.Hook):
        every_steps = 2

        def after_step(self, run):
            seen.append(sorted(points(tmp_path)["loss"]))  # Points are on disk at once.

    each, both = Recorder(1), Recorder(2)
    spec = ge.EvalSpec(eval_input, name="test")
    train = ge.TrainSpec(train_input, 5, [Look(), each, both])
    metrics, _ = ge.train_and_evaluate(one, train, spec)
    losses = [report.loss for _, report in each.calls]
    means = [np.mean(losses[:2]), np.mean(losses[2:4])]
    assert [report.loss for _, report in both.calls[:2]] == pytest.approx(means)
    assert seen == [[2], [2, 4]]
    found = points(tmp_path)
    assert set(found) == {
        *("loss", "accuracy", "f1/0", "f1/1", "f1/2", "batch_mean", "learning_rate"),
        *("global_step/sec", "examples/sec", "model"),
    } | ({"input_wait"} & set(found))
    assert found["loss"] == pytest.approx({2: means[0], 4: means[1], 5: losses[4]})
    # The rate of the step itself, which the schedule computes from the updates before.
    assert found["learning_rate"] == pytest.approx({2: 0.4, 4: 0.2, 5: 0.1})
    evaluated = points(tmp_path / "eval_test")
    assert set(evaluated) == {"loss", "accuracy", "f1/0", "f1/1", "f1/2"}
    assert evaluated["loss"] == pytest.approx({3: evaluated["loss"][3], 5: metrics["loss"]})
    one.evaluate(eval_input, name="more")
    assert points(tmp_path / "eval_more")["loss"] == pytest.approx({5: metrics["loss"]})


def test_event_files_have_a_value_and_are_replaced_if_they_are_deleted(tmp_path):
    class Delete(ge.Hook):
        every_steps = 3

        def after_step(self, run):
            for path in tmp_path.glob("events.*"):
                path.unlink()

    one = make(tmp_path, save_summary_steps=None)
    one.train(train_input, max_steps=2)
    assert not list(tmp_path.rglob("events.*"))
    one.evaluate(eval_input)  # An evaluation has no steps between points.
    assert not list(tmp_path.glob("events.*"))
    assert set(points(tmp_path / "eval")) == {"loss", "accuracy"}
    one.train(train_input, [ge.hooks.StepCounterHook(2)], max_steps=5)
    assert {tag: sorted(each) for tag, each in points(tmp_path).items()} == {
        "global_step/sec": [4, 5]
    }
    one.train(train_input, [ge.SummaryHook(2), Delete()], max_steps=11)
    assert sorted(points(tmp_path)["loss"]) == [10, 11]


def test_log_lines(tmp_path, caplog):
    caplog.set_level("INFO", logger="absl")
    one = make(tmp_path, log_step_count_steps=2)
    one.train(train_input, max_steps=3)
    one.evaluate(eval_input, name="test")
    lines = [record.getMessage() for record in caplog.records]
    [first, last] = [line for line in lines if "steps/s" in line]
    assert first.startswith("train | step 2 | ") and " examples/s" in first
    assert " | accuracy 0." in first and " | ETA 0:00:0" in first and first.endswith("to step 3")
    assert last.startswith("train | step 3 | ") and "ETA" not in last
    assert any(line.startswith("eval test | step 3 | loss ") for line in lines)
    assert "train | ended at step 3 | max_steps is 3" in lines
    caplog.clear()
    one.train(train_input, max_steps=3)
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert warnings == ["train | step 3 is at max_steps 3 already"]


def test_a_state_is_restored_or_dropped(tmp_path, caplog):
    class Count(ge.Hook):
        every_steps = 1
        count = 0

        def after_step(self, run):
            self.count += 1

        def state(self):
            return self.count

        def restore(self, run, state):
            self.count = state

    one, hook = make(tmp_path), Count()
    one.train(train_input, [hook], max_steps=2)
    hook = Count()
    one.train(train_input, [hook], max_steps=3)
    assert hook.count == 3
    caplog.set_level("INFO", logger="absl")
    one.train(train_input, max_steps=4)
    assert "states of hooks that are gone: ['Count']" in caplog.text


def test_a_nan_ends_training_before_other_hooks_and_checkpoints(tmp_path):
    every = Recorder(1)
    one = make(tmp_path, save_summary_steps=1, save_checkpoints_steps=2)
    with pytest.raises(ge.NanLossDuringTrainingError, match="in step 4"):
        one.train(poisoned, [every], max_steps=9)
    assert [step for step, _ in every.calls] == [1, 2, 3]
    assert checkpoints(tmp_path) == [0, 2]
    assert sorted(points(tmp_path)["loss"]) == [1, 2, 3]


def test_a_warning_of_nan_names_the_first_step(tmp_path, caplog):
    make(tmp_path, on_nan="warn").train(poisoned, max_steps=9)
    assert "the loss is NaN or infinite in step 4." in caplog.text


class Reports(ge.Hook):
    """Keeps what its reports have, and ends the process at a step."""

    def __init__(self, every_steps, ends_at=None):
        self.every_steps, self.ends_at, self.found = every_steps, ends_at, []

    def after_loop(self, run):
        if run.step == self.ends_at:
            raise KeyboardInterrupt

    def after_step(self, run):
        report = run.report
        numbers = [report.step, report.num_steps, report.num_examples]
        self.found.append([*numbers, report.loss, report.metrics["accuracy"]])


def test_reports_over_a_kill_are_those_of_a_training_without_one(tmp_path):
    whole, before, after = Reports(10), Reports(10, ends_at=8), Reports(10)
    options = {"save_checkpoints_steps": 4, "tf_random_seed": 1}
    make(tmp_path / "whole", **options).train(train_input, [whole], max_steps=20)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "killed", **options).train(train_input, [before], max_steps=20)
    make(tmp_path / "killed", **options).train(train_input, [after], max_steps=20)
    np.testing.assert_allclose(after.found, whole.found, 1e-6)
    assert whole.found[0][:3] == [10, 10, 80]


@pytest.mark.parametrize("continues, num_steps", [(False, 6), (True, 10)])
def test_a_report_of_the_next_training_has_what_end_got_if_the_hook_says_so(
    tmp_path, continues, num_steps
):
    first, second = Reports(10), Reports(10)
    first.continues_report = second.continues_report = continues
    make(tmp_path).train(train_input, [first], max_steps=4)
    make(tmp_path).train(train_input, [second], max_steps=10)
    assert [row[1] for row in second.found] == [num_steps]


def test_steps_that_end_got_are_not_reported_again_after_a_stop_by_an_evaluation(tmp_path):
    class StopsAfterEvaluation(Reports):
        def after_evaluation(self, run, name, metrics):
            run.request_stop("enough")

    options = {"save_checkpoints_steps": 4}
    first, second = StopsAfterEvaluation(10), StopsAfterEvaluation(10)
    spec = ge.TrainSpec(train_input, 20, [first])
    ge.train_and_evaluate(make(tmp_path, **options), spec, ge.EvalSpec(eval_input))
    make(tmp_path, **options).train(train_input, [second], max_steps=10)
    assert [row[1] for row in second.found] == [6]


def test_the_chief_logs_which_tasks_answer(monkeypatch, caplog):
    caplog.set_level("INFO", "absl")
    answers = {"a:1": Answer.RUNS, "b:1": Answer.RUNS}
    monkeypatch.setattr(cluster_hook, "ask", lambda address: answers[address])
    monkeypatch.setattr(cluster_hook, "_ASK_SECS", 0.05)
    hook = cluster_hook.ClusterHook({"worker 1": "a:1", "worker 2": "b:1"})
    run = RunContext("m", 7)

    def wait_for(pattern):
        end = time.monotonic() + 30
        while not any(re.search(pattern, text) for text in caplog.messages):
            assert time.monotonic() < end, caplog.messages
            hook.after_loop(run)  # Steps are made, so that only changes are logged.

    hook.begin(run)
    try:
        while len(hook._answers) < 2:
            hook.after_loop(run)
        answers["b:1"] = Answer.ENDED
        both = r"worker 1 answers for 0:\d\d:\d\d, worker 2 is away for 0:00:0\d"
        wait_for(rf"^cluster \| step 7, 0:00:00 ago \| {both}")
        answers["b:1"] = Answer.RUNS
        wait_for("worker 2 answers")
    finally:
        hook.close()
