"""Whole clusters by one command, on real data: `python -m pipeline.launch`."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from tests import fakes, patience
from tests.clusters import ROOT

DIGITS = ("--gin_file=gin/digits.gin",)
# Steps on values that may be some steps old come out otherwise each time: seven runs
# had 0.978 to 0.994, where one process has 0.989.
MARGIN = {"multi_worker": 0.01, "parameter_server": 0.03}


def command(module, *flags):
    return [sys.executable, "-m", f"pipeline.{module}", *flags]


def environment():
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONUNBUFFERED": "1"}


def run(module, *flags, timeout=180):
    """The exit code and the output of a command, which leaves no process behind."""
    with subprocess.Popen(
        command(module, *flags),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            text, _ = process.communicate(timeout=patience.stretched(timeout))
        except subprocess.TimeoutExpired:
            process.terminate()
            raise
    return process.returncode, text


@contextlib.contextmanager
def launched(log, *flags):
    """The launcher, which writes to `log`, and is ended if it still runs."""
    with (
        open(log, "w") as stream,
        subprocess.Popen(
            command("launch", *flags),
            cwd=ROOT,
            env=environment(),
            stdout=stream,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()


def accuracy_in(text):
    (found,) = set(re.findall(r"^(?:\[\w+ \d+\] )?accuracy ([\d.]+)$", text, re.M))
    return float(found)


def running_on(model_dir):
    """Processes whose command names this model_dir."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(model_dir) in part for part in process.info["cmdline"] or ()):
            found.append(process.info["cmdline"])
    return found


@pytest.fixture(scope="module")
def accuracy_of_one(tmp_path_factory):
    model_dir = tmp_path_factory.mktemp("one")
    code, text = run("main", *DIGITS, f"--model_dir={model_dir}")
    assert code == 0, text[-3000:]
    return accuracy_in(text)


# The launcher's flags and main's.
CLUSTERS = {
    "multi_worker": (["--workers=2"], []),
    "parameter_server": (
        ["--workers=2", "--ps=1", "--evaluator"],
        ["--execution=parameter_server"],
    ),
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_cluster_is_as_good_as_one_process(name, accuracy_of_one, tmp_path):
    model_dir = tmp_path / "run"
    tasks, flags = CLUSTERS[name]
    code, text = run(
        "launch", *tasks, "--", *DIGITS, *flags, f"--model_dir={model_dir}"
    )
    assert code == 0, text[-3000:]
    assert accuracy_in(text) == pytest.approx(accuracy_of_one, abs=MARGIN[name])
    assert "global_step 1000" in text
    assert running_on(model_dir) == []


def test_a_killed_worker_ends_the_cluster_and_is_named(tmp_path):
    model_dir, log = tmp_path / "run", tmp_path / "log"
    flags = ["--workers=2", "--", *DIGITS, f"--model_dir={model_dir}"]
    with launched(log, *flags, "--gin.TRAIN_STEPS=1000000") as launcher:
        _wait_for(log, "train | step 200 ")
        worker = _task(launcher, index=1)
        began = time.monotonic()
        worker.send_signal(signal.SIGKILL)
        code = launcher.wait(timeout=patience.stretched(90))
    assert code == 128 + signal.SIGKILL
    assert time.monotonic() - began < patience.stretched(60)
    assert "worker 1 was killed by SIGKILL" in log.read_text()
    assert running_on(model_dir) == []


# So long that a signal comes in the middle, with a checkpoint every fifty.
SHORT = [
    *(*DIGITS, "--job=train", "--gin.TRAIN_STEPS=500"),
    "--gin.RunConfig.save_checkpoints_steps=50",
]


@pytest.fixture(scope="module")
def weights_of_whole(tmp_path_factory):
    model_dir = tmp_path_factory.mktemp("whole")
    code, text = run("launch", "--workers=2", "--", *SHORT, f"--model_dir={model_dir}")
    assert code == 0, text[-3000:]
    return fakes.weights(model_dir)


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (signal.SIGKILL, "worker 1 was killed by SIGKILL"),
        (signal.SIGTERM, "exited with 75 (to be started again)"),
    ],
    ids=["killed", "terminated"],
)
def test_a_restarted_cluster_ends_as_if_nothing_had_happened(
    number, reason, weights_of_whole, tmp_path
):
    """One worker gets a signal in the middle; the weights are those of a run without.

    After SIGTERM both have saved, at the same step.
    """
    model_dir, log = tmp_path / "run", tmp_path / "log"
    flags = ["--workers=2", "--max_restarts=1", "--", *SHORT]
    with launched(log, *flags, f"--model_dir={model_dir}") as launcher:
        _wait_for(log, "checkpoint | step 100 ")
        _task(launcher, index=1).send_signal(number)
        code = launcher.wait(timeout=patience.stretched(180))
    text = log.read_text()
    assert code == 0, text[-3000:]
    assert f"{reason}; restart 1 of 1" in text
    saved = re.findall(r"^\[(.+)\] a signal ended training, .+-(\d+) was", text, re.M)
    if number == signal.SIGTERM:
        assert sorted(task for task, _ in saved) == ["worker 0", "worker 1"]
        assert len({step for _, step in saved}) == 1
    found = fakes.weights(model_dir)
    assert sorted(found) == sorted(weights_of_whole)
    for name, value in weights_of_whole.items():
        np.testing.assert_allclose(found[name], value, 1e-5, 1e-6, err_msg=name)


def test_servers_worker_is_replaced_alone_and_a_signal_to_all_saves(tmp_path):
    model_dir, log = tmp_path / "run", tmp_path / "log"
    flags = ["--workers=2", "--ps=1", "--max_restarts=1", "--", *DIGITS]
    flags += ["--job=train", f"--model_dir={model_dir}"]
    with launched(log, *flags, "--gin.TRAIN_STEPS=1000000") as launcher:
        _wait_for(log, "train | step 200 ")
        first = _task(launcher, index=1)
        config = first.environ()["TF_CONFIG"]
        first.send_signal(signal.SIGKILL)
        _wait_for(log, "worker 1 of chief: 1, worker: 2, ps: 1 | serving at", times=2)
        assert _task(launcher, index=1).environ()["TF_CONFIG"] == config
        # The chief finds it again in the steps that follow.
        _wait_for(log, "train | step ", times=log.read_text().count("train | ") + 3)
        launcher.send_signal(signal.SIGTERM)
        code = launcher.wait(timeout=patience.stretched(60))
    text = log.read_text()
    assert code == 75, text[-3000:]
    assert "worker 1 was killed by SIGKILL; restart 1 of 1, of this task alone" in text
    assert "did not end within" not in text
    # By one chief all along, whose count is exact.
    (step,) = re.findall(r"\[chief 0\] .*ended at step (\d+) \| preempted", text)
    assert fakes.checkpoint_steps(model_dir)[-1] == int(step)
    (updates,) = [v for k, v in fakes.weights(model_dir).items() if "iteration" in k]
    assert updates == int(step)
    assert running_on(model_dir) == []


def _wait_for(log, text, *, times=1, timeout=90):
    is_over = patience.deadline(timeout)
    while log.read_text().count(text) < times:
        assert not is_over(), log.read_text()[-3000:]
        time.sleep(0.1)


def _task(launcher, index):
    """The process of a task, told by its TF_CONFIG."""
    for process in psutil.Process(launcher.pid).children(recursive=True):
        if f'"index": {index}' in process.environ().get("TF_CONFIG", ""):
            return process
    raise AssertionError(f"no task of index {index}")
