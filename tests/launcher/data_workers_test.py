"""Training batches that data workers make."""

import re
import signal

import psutil
import pytest
import tensorflow as tf

import gin_estimator as ge
from gin_estimator import launch
from gin_estimator.data import data_service
from tasks import PROGRAMS, ROOT, Task
from small import make, train_input


def in_python(features, labels):
    return tf.numpy_function(lambda x: x, [features], tf.float32), labels


@pytest.mark.slow
def test_each_example_comes_once_and_a_killed_data_worker_is_said(tmp_path):
    command = ["-m", "gin_estimator.main", "launch", "--data_workers=2", "--"]
    program = [PROGRAMS / "data_workers.py", tmp_path, 1000]
    task = Task("launcher", [*command, *program], tmp_path, cwd=ROOT, fresh=True)
    task.wait_for("WAITING", 300)
    for child in psutil.Process(task.process.pid).children():
        if "WorkerServer" in " ".join(child.cmdline()):
            killed = child
    killed.kill()
    task.wait_for("examples that it had taken are not trained on in this pass", 30)
    (tmp_path / "go").touch()
    task.send(signal.SIGTERM)
    assert task.wait(100) == 75, task.output
    assert re.findall(r"TIMES (.*)", task.output) == ["{1: 1000}"]
    assert "GIN_ESTIMATOR_DATA_SERVICE is set. After a restart" in task.output
    assert "examples again, since data workers yield examples in no fixed order" in task.output


@pytest.mark.parametrize(
    "change, expected",
    [
        (lambda data: data.take(2), r"uses take\(\), which each data worker would apply"),
        (lambda data: data.map(in_python), "calls Python code"),
    ],
)
def test_data_that_data_workers_would_change(change, expected, tmp_path, monkeypatch):
    monkeypatch.setenv(data_service.ADDRESS, "grpc://127.0.0.1:1")
    estimator = make(tmp_path)
    with pytest.raises(ge.errors.UserValueError, match=expected):
        estimator.train(lambda: change(train_input()), max_steps=1)


@pytest.mark.parametrize("flags", [["--workers=2"], ["--ps=1"]])
def test_one_process_trains(flags, capsys):
    after = ["--", "--gin_file=gin/digits.gin", "--model_dir=m"]
    with pytest.raises(SystemExit, match="2"):
        launch.main(["launch", "--data_workers=1", *flags, *after])
    assert "--data_workers is 1" in capsys.readouterr().err
