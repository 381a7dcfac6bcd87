"""What a job says at its end, and what it writes."""

import logging
import pathlib
import sys

import numpy as np
import pytest
import tensorflow as tf

from pipeline import RunConfig
from pipeline.command import flags, gin_reader, jobs, report
from pipeline.process import run_log


def test_tensorflows_chatter_is_not_logged():
    def record(path, level):
        return logging.LogRecord("absl", level, path, 1, "text", (), None)

    inside = str(pathlib.Path(tf.__file__).parent / "python/x.py")
    assert not run_log.is_wanted(record(inside, logging.INFO))
    assert run_log.is_wanted(record(inside, logging.WARNING))
    assert run_log.is_wanted(record("pipeline/contract/hooks.py", logging.INFO))


def test_saves_that_are_traced_anew_are_no_warning():
    text = "calls to <function MultiDeviceSaver.save.<locals>.tf_function_save at"
    record = logging.LogRecord("tensorflow", logging.WARNING, "x.py", 1, text, (), None)
    assert not run_log.is_wanted(record)


@pytest.mark.usefixtures("fresh_gin")
def test_tensorflows_warnings_are_there_once(monkeypatch):
    log = logging.getLogger("tensorflow")
    own, users = logging.StreamHandler(), logging.NullHandler()
    monkeypatch.setattr(log, "handlers", [own, users])
    run_log.set_up(debug=False)
    assert log.handlers == [users]


def test_next_commands_without_a_macro_for_the_steps():
    lines = list(report.next_commands("my run", None))
    assert lines[3].endswith("--model_dir='my run-2' --gin.RunConfig.tf_random_seed=1")


@pytest.mark.parametrize("found", [None, "a spec"])
def test_tensorboard_is_named_with_what_it_lacks(monkeypatch, found):
    monkeypatch.setattr(report.importlib.util, "find_spec", lambda name: found)
    line = list(report.next_commands("run", 10))[1]
    assert ("-m pip install tensorboard && " in line) == (found is None)


@pytest.mark.parametrize(("found", "name"), [(None, "linear"), ("a spec", "digits")])
def test_the_example_is_one_that_can_be_run(monkeypatch, found, name):
    monkeypatch.setattr(flags.importlib.util, "find_spec", lambda name: found)
    files = [pathlib.Path("/elsewhere/gin") / f"{n}.gin" for n in ("digits", "linear")]
    text = flags.usage(files)
    assert "\n  digits.gin\n  linear.gin\n" in text
    assert f"--gin_file={name}.gin --model_dir=runs/{name}" in text


def test_places_name_the_newest_export(tmp_path):
    for number in ("9", "10", "temp-11"):
        (tmp_path / "export" / "best" / number).mkdir(parents=True)
    lines = list(report.places(str(tmp_path)))
    assert lines[1:] == [f"SavedModel {tmp_path}/export/best/10"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.98123, "0.9812"),
        (np.float32(0.5), "0.5000"),
        (1000, "1000"),
        (np.int64(7), "7"),
        (1.5e-5, "1.5e-05"),
        (0.0, "0.0000"),
        (float("nan"), "nan"),
    ],
)
def test_number(value, text):
    assert report.number(value) == text


def test_metrics_end_with_loss_and_step():
    metrics = {"loss": 0.1, "global_step": 3, "a": {"accuracy": 1.0, "loss": 0.2}}
    assert list(report.metric_lines(metrics)) == [
        "a/accuracy 1.0000",
        "loss 0.1000",
        "a/loss 0.2000",
        "global_step 3",
    ]


def test_topology_of_devices():
    config = RunConfig(devices=("CPU:0", "CPU:1"), model_dir="d")
    assert "execution single_host on CPU:0, CPU:1" in list(
        report.topology("train", config)
    )


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.array([[1, 2]], np.int64), [[1, 2]]),
        (np.float32(0.5), 0.5),
        (np.array([b"ab", b"\xff"], object), ["ab", {"b64": "/w=="}]),
        (tf.constant([1.5]), [1.5]),
        (tf.constant([1.5], tf.bfloat16).numpy(), [1.5]),
        ({"a": (True, None)}, {"a": [True, None]}),
    ],
)
def test_to_json(value, plain):
    assert jobs.to_json(value) == plain


def test_to_json_of_anything_else():
    with pytest.raises(TypeError, match="predictions hold object .*: return tensors"):
        jobs.to_json(object())


def test_gin_files_are_listed():
    names = [path.name for path in gin_reader.available()]
    assert "digits.gin" in names


def test_an_environment_with_python3_alone(tmp_path, monkeypatch):
    python = tmp_path / "python3"
    python.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert flags.program("python") == str(python)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert flags.program("python") == "python3"
