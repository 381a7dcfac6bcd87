"""Who evaluates, and an evaluator beside a training, in one process and in two."""

import os
import pathlib
import re
import time

import pytest

import pipeline as ge
from pipeline.cluster import tf_config
from tests import clusters, fakes, forked, patience
from tests.evaluator_world import EVAL, TRAIN

EVALUATOR = tf_config.Cluster(task_type="evaluator")


def test_an_evaluator_evaluates_and_exports(tmp_path):
    trainer = fakes.make_estimator(
        tmp_path, save_checkpoints_steps=2, evaluation="evaluator"
    )
    train_spec = ge.TrainSpec(TRAIN, max_steps=4)
    assert ge.train_and_evaluate(trainer, train_spec, ge.EvalSpec(EVAL)) is None
    assert not (tmp_path / "eval").exists()
    job = fakes.make_estimator(tmp_path, cluster=EVALUATOR)
    spec = ge.EvalSpec(EVAL, throttle_secs=0, exporters=[ge.FinalExporter()])
    metrics, (export,) = ge.train_and_evaluate(job, train_spec, spec)
    assert metrics["global_step"] == 4
    assert metrics["examples"] == 40
    assert metrics["loss"] == pytest.approx(trainer.evaluate(EVAL)["loss"], rel=1e-5)
    assert pathlib.Path(export, "saved_model.pb").exists()
    assert not list((tmp_path / "readers").iterdir())


@pytest.mark.parametrize(
    ("evaluation", "listed", "inline"),
    [
        ("auto", False, True),
        ("auto", True, False),
        ("inline", True, True),
        ("evaluator", False, False),
    ],
)
def test_who_evaluates(evaluation, listed, inline):
    training = tf_config.Cluster(has_evaluator=listed)
    config = ge.RunConfig(evaluation=evaluation, cluster=training)
    assert config.evaluates_inline is inline


def test_an_evaluator_needs_a_model_dir():
    config = ge.RunConfig(cluster=EVALUATOR)
    with pytest.raises(ValueError) as error:
        ge.Estimator(fakes.classifier_fn, config=config)
    assert "RunConfig.model_dir is not set, and this task is an evaluator" in str(
        error.value
    )


NUM_STEPS = 30


def start(role, folder):
    log = folder / f"{role}.log"
    command = ["-m", "tests.scripts.two_roles", role, str(folder)]
    process = forked.Program(command, {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}, log)
    return clusters.Task(role, process, log, log.with_suffix(".json"))


def test_a_trainer_and_a_slow_evaluator(tmp_path):
    """Retention keeps two, and an evaluation lasts until there are three newer ones."""
    model_dir = tmp_path / "run"
    tasks = [start("evaluator", tmp_path)]
    try:
        is_over = patience.deadline(120)
        while not (model_dir / "readers").exists():
            assert not is_over()
            time.sleep(0.05)
        tasks.append(start("trainer", tmp_path))
        clusters.wait(tasks)
    finally:
        for task in tasks:
            task.kill()
            task.process.wait()
    assert [task.code for task in tasks] == [0, 0], [task.text for task in tasks]
    evaluator, log = tasks[0].result, tasks[0].text
    steps = evaluator["steps"]
    assert steps == sorted(set(steps))
    assert 1 < len(steps) < NUM_STEPS
    # Each was read in full after it had been evaluated; none had been deleted. The
    # last one twice, where the end was not known yet.
    assert evaluator["read"] in (steps, [*steps, NUM_STEPS])
    assert evaluator["global_step"] == steps[-1] == NUM_STEPS
    end = "training has finished at step 30. The last checkpoint, of step 30, was"
    assert end in log
    gone = {int(step) for step in re.findall(r"eval \| step (\d+) is skipped", log)}
    assert not gone & set(steps)
    assert fakes.checkpoint_steps(model_dir)[-2:] == [29, 30]
    # One that is started when all is over.
    later = fakes.make_estimator(model_dir, cluster=EVALUATOR)
    train_spec = ge.TrainSpec(TRAIN, max_steps=NUM_STEPS)
    metrics, _ = ge.train_and_evaluate(later, train_spec, ge.EvalSpec(EVAL))
    assert metrics["global_step"] == NUM_STEPS
