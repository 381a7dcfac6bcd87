"""Fixtures: the command as a process, one training of the digits, four logical CPUs."""

import os
import pathlib
import signal
import subprocess

import pytest
import tasks
import tensorflow as tf
from absl import logging

ROOT = pathlib.Path(__file__).parents[1]

# A shell has its background jobs ignore SIGINT, nohup SIGHUP, and so would all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The command sets it as well: no test may depend on whether one has called it in this process.
logging.set_verbosity(logging.INFO)

# Before any test uses TensorFlow; tests/train divides steps between them.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks all cases but the first of a test that is `thin` as slow."""
    seen = set()
    for item in items:
        if item.get_closest_marker("thin"):
            test = item.nodeid.partition("[")[0]
            if test in seen:
                item.add_marker(pytest.mark.slow)
            seen.add(test)


def command(*flags: str, cwd: pathlib.Path = ROOT) -> subprocess.CompletedProcess:
    """Runs the command to its end."""
    return tasks.run("-m", "gin_estimator.main", *flags, cwd=cwd)


@pytest.fixture(name="command")
def command_fixture():
    return command


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Returns the model_dir and the output of `gin/digits.gin`."""
    model_dir = tmp_path_factory.mktemp("digits") / "run"
    result = command("--gin_file=gin/digits.gin", f"--model_dir={model_dir}")
    assert result.returncode == 0, result.stderr
    return model_dir, result


@pytest.fixture
def gin_folder(tmp_path, monkeypatch):
    """Makes an empty current folder from which the files of gin/ are found."""
    os.symlink(ROOT / "gin", tmp_path / "gin")
    monkeypatch.chdir(tmp_path)
    return tmp_path
