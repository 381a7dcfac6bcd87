"""Launched trainings: two workers with an evaluator, and kills with restarts."""

import json
import re
import signal

import psutil
import pytest

from gin_estimator.model_dir import records
from tasks import PROGRAMS, ROOT, Task

pytestmark = pytest.mark.slow


def launched(folder, name, *arguments):
    return Task(
        name, ["-m", "gin_estimator.main", "launch", *arguments], folder, cwd=ROOT, fresh=True
    )


def process_of(task, kind, index):
    """Returns the process of one task of a cluster."""
    for child in psutil.Process(task.process.pid).children(recursive=True):
        try:
            config = json.loads(child.environ().get("TF_CONFIG", "{}"))
            if config.get("task") == {"type": kind, "index": index}:
                return child
        except psutil.Error:
            continue
    raise AssertionError(f"no process of {kind} {index}")


def test_two_workers_and_an_evaluator(tmp_path):
    model_dir = tmp_path / "run"
    task = launched(
        tmp_path,
        "command",
        "--workers=2",
        "--evaluator",
        "--max_restarts=1",
        "--",
        "--gin_file=gin/digits.gin",
        f"--model_dir={model_dir}",
        "--gin.TRAIN_STEPS=300",
        "--gin_param=RunConfig.save_checkpoints_steps=100",
        "--gin_param=EvalSpec.start_delay_secs=0",
    )
    task.wait_for("eval | step 0", 300)
    process_of(task, "evaluator", 0).send_signal(signal.SIGKILL)  # It is started again alone.
    assert task.wait(300) == 0, task.output
    assert "evaluator 0 was killed by SIGKILL: starting it again" in task.output
    [accuracy] = re.findall(r"^\[evaluator 0\] accuracy (.*)$", task.output, re.MULTILINE)
    assert float(accuracy) > 0.9
    assert not re.search(r"^\[worker 0\] accuracy", task.output, re.MULTILINE)
    assert [each.step for each in records.read(str(model_dir / "eval"))[0]] == [0, 100, 200, 300]


def test_kills_and_restarts_change_nothing(tmp_path):
    program = [PROGRAMS / "train.py", tmp_path / "killed", 120, "sleep=0.02"]
    task = launched(tmp_path, "killed", "--workers=2", "--max_restarts=2", "--", *program)
    for text in ("STEP 60", "STEP 110"):
        task.wait_for(f"[worker 1] {text}", 300)
        process_of(task, "worker", 1).send_signal(signal.SIGKILL)
    assert task.wait(300) == 0, task.output
    assert task.output.count("starting all tasks again") == 2
    whole = launched(
        tmp_path, "whole", "--workers=2", "--", program[0], tmp_path / "whole", 120, "sleep=0.0"
    )
    assert whole.wait(300) == 0, whole.output
    weights = [re.findall(r"WEIGHTS (.*)", each.output)[-1] for each in (task, whole)]
    assert weights[0] == weights[1]
