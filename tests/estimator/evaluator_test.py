"""The evaluator job on the checkpoints of a training, in one process after the other."""

import json
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

import gin_estimator as ge
from gin_estimator.checkpoint import files
from gin_estimator.checkpoint.checkpoints import RUN_STATE
from gin_estimator.checkpoint.reader import Reader
from gin_estimator.estimator import evaluator
from gin_estimator.loop import job_evaluations
from gin_estimator.model_dir import claim, records
from small import eval_input, make, model_fn, train_input
from refusals import refused

EVALUATOR = json.dumps({"task": {"type": "evaluator", "index": 0}})


def estimator(model_dir, **options):
    options = {"save_checkpoints_steps": 5, "keep_checkpoint_max": None, **options}
    return make(model_dir, network=lambda: keras.layers.Dense(3), **options)


class Calls(ge.Exporter):
    name = "calls"

    def __init__(self):
        self.steps = []

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
        weights = estimator.state.variables()["network/kernel"].numpy()
        saved = estimator.get_variable_value("network/kernel")
        self.steps.append((eval_result["global_step"], is_the_final_export))
        if is_the_final_export:
            np.testing.assert_array_equal(weights, saved)


def spec(**options):
    return ge.EvalSpec(eval_input, **{"start_delay_secs": 0, "throttle_secs": 0, **options})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A training to step 20 whose evaluations an evaluator makes."""
    model_dir = tmp_path_factory.mktemp("finished")
    one = estimator(model_dir, evaluation="evaluator")
    result = ge.train_and_evaluate(one, ge.TrainSpec(train_input, 20), spec())
    assert result is None and not (model_dir / "eval").exists()
    return model_dir


@pytest.fixture
def run(finished, tmp_path, monkeypatch):
    """A copy of it, and TF_CONFIG of an evaluator."""
    monkeypatch.setenv("TF_CONFIG", EVALUATOR)
    monkeypatch.setattr(evaluator, "_POLL_SECS", 0.01)
    monkeypatch.setattr(evaluator, "_DOUBT_SECS", 0.1)
    copy = tmp_path / "run"
    tf.io.gfile.makedirs(str(copy))
    for file in finished.iterdir():
        if file.is_file():
            (copy / file.name).write_bytes(file.read_bytes())
    return copy


def evaluate(model_dir, *specs, max_steps=20, **options):
    train = ge.TrainSpec(train_input, max_steps)
    return ge.train_and_evaluate(estimator(model_dir, **options), train, specs or [spec()])


def steps(model_dir, folder="eval"):
    return [each.step for each in records.read(str(model_dir / folder))[0]]


@pytest.mark.oldest
def test_each_checkpoint_is_evaluated_and_the_last_is_final(run):
    calls = Calls()
    metrics, _ = evaluate(run, spec(exporters=[calls]))
    assert steps(run) == [0, 5, 10, 15, 20]
    assert calls.steps == [(0, False), (5, False), (10, False), (15, False), (20, True)]
    assert metrics == pytest.approx(estimator(run).evaluate(eval_input))
    assert list((run / "eval").glob("events.out.tfevents.*"))
    # Started again it returns the same and exports once more.
    again = Calls()
    assert evaluate(run, spec(exporters=[again]))[0] == pytest.approx(metrics)
    assert again.steps == [(20, True)] and steps(run) == [0, 5, 10, 15, 20]
    # A killed one continues after its last record.
    file = run / "eval" / records.EVALUATIONS
    file.write_text("".join(file.read_text().splitlines(True)[:3]) + '{"step": 15, "met')
    assert evaluate(run)[0] == metrics
    assert steps(run) == [0, 5, 10, 15, 20]


class Writes(ge.MetricWriter):
    def __init__(self):
        self.steps = {}

    def write(self, step, values, name):
        self.steps.setdefault(name, []).append(step)


def test_several_evaluations(run):
    writer = Writes()
    second = spec(name="second", every_steps=10)
    third = spec(name="third", throttle_secs=600)
    metrics, exports = evaluate(run, spec(), second, third, metric_writers=[writer])
    assert set(metrics) == {"", "second", "third"} and not any(exports.values())
    assert steps(run, "eval_second") == [0, 10, 20]
    assert steps(run, "eval_third") == [0, 20]  # The first, and the last whatever the time.
    # Those that were made after the end of the training, too.
    assert writer.steps == {
        "eval": [0, 5, 10, 15, 20],
        "eval_second": [0, 10, 20],
        "eval_third": [0, 20],
    }


class Saves(ge.Exporter):
    """Saves the next checkpoint after each evaluation, as a training does meanwhile."""

    name = "saves"

    def __init__(self, files):
        self.steps, self.files = [], files

    def save(self):
        if self.files:
            for file, content in self.files.pop(0):
                file.write_bytes(content)

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
        self.steps.append(eval_result["global_step"])
        self.save()


@pytest.mark.timeout(60)  # It would wait for ever.
def test_a_checkpoint_within_throttle_secs_is_evaluated_later(run):
    later = []
    for suffix in ("5.*", "10.*", "20.*"):
        found = [*run.glob(f"model.ckpt-{suffix}")]
        later.append([(file, file.read_bytes()) for file in found])
    ended = run / records.ENDED
    later[-1].append((ended, ended.read_bytes()))
    for file, _ in sum(later, []):
        file.unlink()
    for file in run.glob("model.ckpt-15.*"):
        file.unlink()
    exporter = Saves(later)
    evaluate(run, spec(exporters=[exporter], throttle_secs=0.5), max_steps=None)
    assert exporter.steps == steps(run) == [0, 5, 10, 20]


def test_checkpoints_that_cannot_be_read_are_skipped(run, caplog):
    (run / "model.ckpt-10.data-00000-of-00001").write_bytes(b"damaged")
    (run / "model.ckpt-20.data-00000-of-00001").write_bytes(b"damaged")
    evaluate(run, spec(), max_steps=None)
    assert steps(run) == [0, 5, 15]
    assert "step 10 is skipped" in caplog.text and "step 20 is skipped" in caplog.text


def test_best_checkpoints_by_an_evaluator(run):
    rule = ge.KeepBest("loss", 2)
    ge_spec = spec(keep_best=rule)
    evaluate(run, ge_spec)
    run_id = json.loads(Reader(files.latest(str(run))).value(RUN_STATE))["run_id"]
    lines = [json.loads(line) for line in open(run / "eval" / records.EVALUATIONS)]
    assert {line["run_id"] for line in lines} == {run_id}
    assert [line["checkpoint"] for line in lines][-1] == "model.ckpt-20"


def test_second_evaluator_is_refused(run):
    with claim.held(str(run / "eval"), file=evaluator._CLAIM):
        with pytest.raises(ge.ModelDirInUseError, match="evaluation.claim"):
            evaluate(run)
        evaluate(run, spec(name="other"))
    assert steps(run, "eval_other") == [0, 5, 10, 15, 20]


@pytest.mark.slow
@pytest.mark.parametrize("reason", [records.FAILED, records.STOPPED])
def test_an_end_before_this_job_counts_later(run, reason, monkeypatch, caplog):
    """Training may be about to continue."""
    monkeypatch.setattr(evaluator, "_DOUBT_SECS", 1.0)
    monkeypatch.setattr(evaluator, "_LOG_SECS", 0.1)
    records.write_end(str(run), records.Ended(step=20, reason=reason, details=["the reason"]))
    with caplog.at_level("INFO", logger="absl"):
        evaluate(run, spec(start_delay_secs=3), max_steps=30)
    assert "waiting for start_delay_secs, 3" in caplog.text
    assert f"training {reason} at step 20 | the reason" in caplog.text
    assert steps(run) == [0, 5, 10, 15, 20]


def test_training_from_the_start_is_evaluated_from_the_start(run):
    records.append(str(run / "eval"), records.Evaluated(step=50, metrics={"loss": 0.0}))
    evaluate(run)
    assert steps(run) == [0, 5, 10, 15, 20]


test_options_that_exclude_an_evaluator = refused(
    lambda run, options: evaluate(run, **options),
    ({"evaluation": "inline"}, "RunConfig.evaluation is 'inline'"),
    ({"save_checkpoints_steps": 0, "keep_checkpoint_max": 5}, "save_checkpoints_steps is 0"),
    fixtures=["run"],
)


def test_an_evaluator_does_not_train(run):
    with pytest.raises(ge.UserError, match="this task is an evaluator"):
        estimator(run).train(train_input, max_steps=30)
    with pytest.raises(ge.UserError, match="model_dir"):
        modules = {"network": keras.Model, "optimizer": keras.optimizers.SGD}
        ge.Estimator(model_fn, modules=modules, config=ge.RunConfig())


class Appends(ge.Hook):
    """Records evaluations as an evaluator job would, and keeps what hooks get."""

    every_steps = 1

    def __init__(self):
        self.got = []

    def after_step(self, run):
        if run.step in (6, 12) and files.latest(run.model_dir):
            run_id = json.loads(Reader(files.latest(run.model_dir)).value(RUN_STATE))["run_id"]
            for step, each in ((run.step - 1, run_id), (run.step, "of another run"), (99, run_id)):
                result = records.Evaluated(step=step, metrics={"loss": 0.5}, run_id=each)
                records.append(os.path.join(run.model_dir, "eval"), result)

    def after_evaluation(self, run, name, metrics):
        self.got.append((run.step, metrics["loss"]))
        if run.step >= 12:
            run.request_stop("good enough")


@pytest.mark.oldest
def test_training_sends_recorded_evaluations_to_hooks(tmp_path, monkeypatch):
    monkeypatch.setattr(job_evaluations, "_POLL_SECS", 0.0)
    options = {"evaluation": "evaluator", "async_checkpoint": False}
    first, second = Appends(), Appends()
    ge.train_and_evaluate(
        estimator(tmp_path, **options), ge.TrainSpec(train_input, 9, [first]), spec()
    )
    one = estimator(tmp_path, **options)
    ge.train_and_evaluate(one, ge.TrainSpec(train_input, 20, [second]), spec())
    assert first.got == [(6, 0.5)]
    assert second.got == [(12, 0.5)]  # Those that were sent before the restart are not.
    assert one.state.step == 12
