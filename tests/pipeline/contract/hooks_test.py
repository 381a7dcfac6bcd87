"""The stock hooks: when they ask to be called, and what they write."""

import logging as python_logging

import numpy as np
import pytest
import tensorflow as tf
from absl import logging
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import pipeline as ge
from pipeline import Hook
from pipeline.contract.hooks import Report, Run
from pipeline.hooks import limits, stock
from tests import fakes


def report(step=20, num_steps=10, seconds=0.5, **fields):
    fields = {"loss": 0.3123456, "metrics": {}, "scalars": {}, **fields}
    return Report(step=step, num_steps=num_steps, seconds=seconds, **fields)


def make_run(step, max_step=100, model_dir="model_dir", **fields):
    run = Run(str(model_dir), step, max_step)
    run.read_report = lambda: report(step=run.step, **fields)
    return run


@pytest.fixture
def absl_log(caplog):
    before = logging.get_verbosity()
    logging.set_verbosity(logging.INFO)
    with caplog.at_level(python_logging.INFO, logger="absl"):
        yield caplog
    logging.set_verbosity(before)


@pytest.mark.parametrize(
    ("step", "expected"), [(0, 100), (99, 100), (100, 200), (250, 300)]
)
def test_a_hook_asks_for_multiples_of_its_interval(step, expected):
    hook = Hook()
    assert hook.next_step(step) is None
    hook.every_steps = 100
    assert hook.next_step(step) == expected


def test_a_report_puts_its_values_together():
    values = report(metrics={"accuracy": 0.5}, scalars={"learning_rate": 0.1}).values()
    assert list(values) == ["loss", "accuracy", "learning_rate"]
    assert report().steps_per_sec == 20
    assert report(seconds=0.0).steps_per_sec == 0


def test_a_log_line():
    line = stock.log_line(
        "train",
        report(
            step=1200,
            metrics={"accuracy": 0.91, "iou": np.array([0.5, 1.0])},
            scalars={"learning_rate": 1e-4},
        ),
    )
    assert line == (
        "train | step 1200 | 20.0 steps/s | loss 0.3123 | accuracy 0.91 | "
        "iou (mean) 0.75 | learning_rate 0.0001"
    )


def test_lines_in_a_log(absl_log):
    hook = stock.LoggingHook(10)
    run = make_run(0)
    hook.begin(run)
    run.step = 10
    hook.after_step(run)
    run.step = 14
    hook.end(run)
    hook.end(make_run(14))  # Nothing since.
    assert [r.getMessage() for r in absl_log.records] == [
        "train | step 10 | 20.0 steps/s | loss 0.3123 | ETA 0:00:04 to step 100",
        "train | step 14 | 20.0 steps/s | loss 0.3123 | ETA 0:00:04 to step 100",
        "train | step 14 | 20.0 steps/s | loss 0.3123 | ETA 0:00:04 to step 100",
    ]


def test_a_line_that_was_logged_is_not_logged_again(absl_log):
    hook = stock.LoggingHook(10)
    run = make_run(5)
    hook.begin(run)
    hook.end(run)
    run.step = 10
    hook.after_step(run)
    hook.end(run)
    assert len(absl_log.records) == 1


@pytest.mark.parametrize(
    "arguments", [{}, {"num_steps": 1, "last_step": 2}], ids=["neither", "both"]
)
def test_stop_at_step_takes_one_of_both(arguments):
    with pytest.raises(ValueError) as error:
        limits.StopAtStepHook(**arguments)
    assert "StopAtStepHook takes one of num_steps (" in str(error.value)
    assert "write StopAtStepHook(last_step=1000)." in str(error.value)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: stock.SummaryHook(-1),
            "SummaryHook.every_steps is -1: write an int",
        ),
        (
            lambda: stock.LoggingHook(2.5),
            "of at least 0, every_steps=100, or None for",
        ),
        (
            lambda: stock.StepCounterHook(True),
            "StepCounterHook.every_steps is True: ",
        ),
        (
            lambda: limits.StopAtStepHook(num_steps=0),
            "num_steps is 0: write an int of",
        ),
        (
            lambda: limits.StopAtStepHook(last_step=1.5),
            "at least 1, last_step=100.",
        ),
        (
            lambda: stock.ProfilerHook(first_step=0),
            "ProfilerHook.first_step is 0: ",
        ),
        (
            lambda: stock.ProfilerHook(num_steps=-2),
            "ProfilerHook.num_steps is -2: ",
        ),
    ],
)
def test_counts_of_steps_are_checked(make, text):
    with pytest.raises(ValueError) as error:
        make()
    assert text in str(error.value)


def test_an_interval_of_ones_own_is_checked():
    hook = fakes.Recorder(-1)
    with pytest.raises(ValueError, match="Recorder.every_steps is -1: write an int"):
        hook.next_step(3)


def test_stop_at_step_counts_from_the_runs_beginning():
    hook = limits.StopAtStepHook(num_steps=5)
    run = make_run(10)
    hook.begin(run)
    assert hook.next_step(10) == 15
    hook.after_step(run)
    assert run.stop_reasons == []
    run.step = 15
    hook.after_step(run)
    assert run.stop_reasons == ["step 15 was reached"]


def test_a_bad_loss_ends_the_run_and_names_the_step():
    run = make_run(20)
    stock.NanHook().after_loop(run)
    run.nonfinite_step = 17
    with pytest.raises(ge.NanLossDuringTrainingError) as error:
        stock.NanHook().after_loop(run)
    assert str(error.value).startswith(
        "the loss was NaN or infinite at step 17. No checkpoint was saved after it. "
        "Lower the learning rate, clip the gradient (TrainOp(..., clip_norm=1.0)), "
        "leave out such batches by RunConfig(on_nan='restore'), or go on regardless "
        "with on_nan='warn'."
    )


def test_a_bad_loss_may_be_warned_of(absl_log):
    run = make_run(20)
    run.nonfinite_step = 17
    stock.NanHook(fail_on_nan_loss=False).after_loop(run)
    assert "the loss was NaN or infinite at step 17; training goes on." in absl_log.text


def test_the_profiler_asks_for_its_two_ends_alone():
    hook = stock.ProfilerHook(first_step=100, num_steps=10)
    steps = [hook.next_step(step) for step in (0, 99, 100, 109, 110)]
    assert steps == [100, 100, 110, 110, None]


def test_the_profiler_goes_on_where_a_training_goes_back(tmp_path, monkeypatch):
    calls = []
    profiler = stock.tf.profiler.experimental
    monkeypatch.setattr(profiler, "start", lambda logdir: calls.append("start"))
    monkeypatch.setattr(profiler, "stop", lambda: calls.append("stop"))
    hook = stock.ProfilerHook(first_step=100, num_steps=10)
    run = make_run(100)
    for run.step in (100, 100, 110):
        hook.after_step(run)
    assert calls == ["start", "stop"]


def points(logdir):
    """`(step, value)`s by tag."""
    events = EventAccumulator(str(logdir))
    events.Reload()
    return {
        tag: [(e.step, e.value) for e in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_summaries_of_each_window(tmp_path):
    hook = stock.SummaryHook(10)
    run = make_run(0, model_dir=tmp_path, metrics={"iou": np.array([0.5, 1.0])})
    hook.begin(run)
    for run.step in (10, 20):
        hook.after_step(run)
    run.step = 23
    hook.end(run)
    written = points(tmp_path)
    assert [step for step, _ in written["loss"]] == [10, 20, 23]
    assert written["iou/1"][0] == (10, 1.0)
    assert written["global_step/sec"][0] == (10, 20.0)


def test_a_window_of_no_steps_is_not_written(tmp_path):
    hook = stock.SummaryHook(10)
    run = make_run(5, model_dir=tmp_path, num_steps=0)
    hook.begin(run)
    hook.end(run)
    assert not list(tmp_path.iterdir())


def test_the_speed_alone(tmp_path):
    hook = stock.StepCounterHook(10)
    run = make_run(10, model_dir=tmp_path)
    hook.begin(run)
    hook.after_step(run)
    assert points(tmp_path) == {"global_step/sec": [(10, 20.0)]}
    hook.end(run)


def exploding_fn(features, labels, mode, network, optimizer, params, step):
    """`classifier_fn`, with a loss of `params['bad']` at update number 7."""
    spec = fakes.classifier_fn(features, labels, mode, network, optimizer, params)
    factor = tf.where(tf.equal(step, 6), params["bad"], 1.0)
    return ge.EstimatorSpec(
        mode, loss=spec.loss * factor, train_op=spec.train_op, metrics=spec.metrics
    )


X, Y = fakes.classification_data(rows=48)
TRAIN = fakes.make_input_fn(X, Y, batch_size=8, change=lambda d: d.repeat())
EVAL = fakes.make_input_fn(X, Y, batch_size=48)


def test_hooks_logs_and_checkpoints_each_keep_their_steps(tmp_path, absl_log):
    estimator = fakes.make_estimator(
        tmp_path, save_checkpoints_steps=4, log_step_count_steps=5
    )
    hook = fakes.Recorder(3)
    estimator.train(TRAIN, max_steps=10, hooks=[hook])
    assert hook.steps == [3, 6, 9, 10]
    assert [values["examples"] for values in hook.values] == [24, 24, 24, 8]
    assert fakes.checkpoint_steps(tmp_path) == [0, 4, 8, 10]
    lines = [r.getMessage() for r in absl_log.records]
    lines = [line for line in lines if line.startswith("train | step")]
    assert [line.split(" | ")[1] for line in lines] == ["step 5", "step 10"]
    assert "examples 40" in lines[0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_no_checkpoint_after_a_bad_loss(bad, tmp_path):
    estimator = fakes.make_estimator(
        tmp_path,
        model_fn=exploding_fn,
        params={"bad": bad},
        save_checkpoints_steps=4,
        save_summary_steps=2,
    )
    hook = fakes.Recorder(3)
    with pytest.raises(ge.NanLossDuringTrainingError, match="at step 7\\."):
        estimator.train(TRAIN, max_steps=12, hooks=[hook])
    assert fakes.checkpoint_steps(tmp_path) == [0, 4]
    assert hook.steps == [3, 6]
    # What led up to it is there to look at.
    assert [step for step, _ in points(tmp_path)["loss"]] == [2, 4, 6]
    for name, value in fakes.weights(estimator.latest_checkpoint()).items():
        if value.dtype.kind == "f":
            assert np.all(np.isfinite(value)), name


@pytest.fixture(scope="module")
def warned(tmp_path_factory):
    """A run over a bad loss, with summaries, and the profile of some steps."""
    model_dir = tmp_path_factory.mktemp("warned")
    estimator = fakes.make_estimator(
        model_dir,
        model_fn=exploding_fn,
        params={"bad": float("inf")},
        on_nan="warn",
        save_checkpoints_steps=0,
        save_summary_steps=4,
    )
    profiler = stock.ProfilerHook(first_step=2, num_steps=2)
    estimator.train(TRAIN, max_steps=10, hooks=[profiler])
    estimator.evaluate(EVAL)
    return model_dir


def test_on_nan_warn_goes_on(warned):
    losses = dict(points(warned)["loss"])
    assert list(losses) == [4, 8, 10]
    assert np.isfinite(losses[4])
    assert not np.isfinite(losses[8])


def test_training_and_evaluation_share_their_tags(warned):
    train, evaluation = points(warned), points(warned / "eval")
    assert set(evaluation) == {"loss", "accuracy", "examples"}
    speed = {"global_step/sec", "examples/sec", "input_wait"}
    assert set(train) == {*evaluation, *speed, "learning_rate"}
    assert evaluation["examples"] == [(10, 48.0)]
    assert [value for _, value in train["examples"]] == [32.0, 32.0, 16.0]


def test_the_profile_lies_where_tensorboard_looks(warned):
    assert list(warned.glob("plugins/profile/*/*.xplane.pb"))


def test_a_hook_that_does_not_say_when_is_refused():
    class Mine(Hook):
        def after_step(self, run):
            raise AssertionError

    class Never(Mine):
        every_steps = None

    with pytest.raises(ValueError, match=r"Mine.every_steps is not set.*= 100"):
        Mine().next_step(0)
    assert Never().next_step(0) is None
    assert Hook().next_step(0) is None
