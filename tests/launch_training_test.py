"""Whole clusters by one command, on real data: `python -m pipeline.launch`."""

import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from tests import fakes
from tests.clusters import ROOT

DIGITS = ("--gin_file=gin/digits.gin",)


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
            text, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.terminate()
            raise
    return process.returncode, text


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


# The launcher's flags, main's, and how near the accuracy comes. One of the 360 test
# images is 0.003, and asynchronous updates come in another order each time.
CLUSTERS = {
    "multi_worker": (["--workers=2"], [], 0.01),
    "parameter_server": (
        ["--workers=2", "--ps=1", "--evaluator"],
        ["--execution=parameter_server"],
        0.02,
    ),
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_cluster_is_as_good_as_one_process(name, accuracy_of_one, tmp_path):
    model_dir = tmp_path / "run"
    tasks, flags, tolerance = CLUSTERS[name]
    code, text = run(
        "launch", *tasks, "--", *DIGITS, *flags, f"--model_dir={model_dir}"
    )
    assert code == 0, text[-3000:]
    assert accuracy_in(text) == pytest.approx(accuracy_of_one, abs=tolerance)
    assert "global_step 1000" in text
    assert running_on(model_dir) == []


def test_a_killed_worker_ends_the_cluster_and_is_named(tmp_path):
    model_dir, log = tmp_path / "run", tmp_path / "log"
    flags = ["--workers=2", "--", *DIGITS, f"--model_dir={model_dir}"]
    with (
        open(log, "w") as stream,
        subprocess.Popen(
            command("launch", *flags, "--gin.TRAIN_STEPS=1000000"),
            cwd=ROOT,
            env=environment(),
            stdout=stream,
            stderr=subprocess.STDOUT,
        ) as launcher,
    ):
        try:
            _wait_for(log, "train | step 200 ")
            worker = _task(launcher, index=1)
            began = time.monotonic()
            worker.send_signal(signal.SIGKILL)
            code = launcher.wait(timeout=90)
        finally:
            launcher.terminate()
    assert code == 128 + signal.SIGKILL
    assert time.monotonic() - began < 60
    assert "worker 1 was killed by SIGKILL" in log.read_text()
    assert running_on(model_dir) == []


def test_a_restarted_cluster_ends_as_if_nothing_had_happened(tmp_path):
    """A worker is killed in the middle; the weights are those of a run without."""
    flags = [*DIGITS, "--job=train", "--gin.TRAIN_STEPS=600"]
    flags += ["--gin.RunConfig.save_checkpoints_steps=100"]
    whole, log = tmp_path / "whole", tmp_path / "log"
    code, text = run("launch", "--workers=2", "--", *flags, f"--model_dir={whole}")
    assert code == 0, text[-3000:]
    model_dir = tmp_path / "killed"
    launch = ["--workers=2", "--max_restarts=1", "--"]
    with (
        open(log, "w") as stream,
        subprocess.Popen(
            command("launch", *launch, *flags, f"--model_dir={model_dir}"),
            cwd=ROOT,
            env=environment(),
            stdout=stream,
            stderr=subprocess.STDOUT,
        ) as launcher,
    ):
        try:
            _wait_for(log, "checkpoint | step 200 ")
            _task(launcher, index=1).send_signal(signal.SIGKILL)
            code = launcher.wait(timeout=120)
        finally:
            launcher.terminate()
    assert code == 0, log.read_text()[-3000:]
    assert "was killed by SIGKILL; restart 1 of 1" in log.read_text()
    expected, found = fakes.weights(whole), fakes.weights(model_dir)
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, 1e-5, 1e-6, err_msg=name)


def _wait_for(log, text, timeout=90):
    deadline = time.monotonic() + timeout
    while text not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.1)


def _task(launcher, index):
    """The process of a task, told by its TF_CONFIG."""
    for process in psutil.Process(launcher.pid).children(recursive=True):
        if f'"index": {index}' in process.environ().get("TF_CONFIG", ""):
            return process
    raise AssertionError(f"no task of index {index}")
