"""The command line: flags, jobs, exit codes."""

import json
import os
import pathlib
import re
import subprocess
import sys

import gin
import numpy as np
import pytest
import tensorflow as tf
from absl import flags, logging

from pipeline import Estimator, ModeKeys, PeerLostError, main
from pipeline.command import flags as flags_lib
from pipeline.command import gin_config
from pipeline.launcher import processes
from pipeline.strategy import coordination
from tests import forked

ROOT = pathlib.Path(main.__file__).parent.parent

TINY = """
import models
TRAIN_STEPS = 4
Estimator.model_fn = @regressor
Estimator.modules = {'network': @linear, 'optimizer': @SGD}
TrainSpec.input_fn = @tiny_input
TrainSpec.max_steps = %TRAIN_STEPS
EvalSpec.input_fn = @tiny_input
tiny_input.rows = 6
"""


@gin.configurable(module="main_test")
def tiny_input(mode, rows: int = 2):
    x = np.ones([rows, 1], np.float32)
    data = tf.data.Dataset.from_tensor_slices(x if mode == ModeKeys.PREDICT else (x, x))
    return (data.repeat() if mode == ModeKeys.TRAIN else data).batch(2)


@pytest.fixture(autouse=True)
def tiny_gin(fresh_gin, own_folder):
    pathlib.Path("tiny.gin").write_text(TINY, encoding="utf-8")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model_dir after `train_and_evaluate`."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "tiny.gin").write_text(TINY, encoding="utf-8")
    model_dir = str(folder / "run")
    arguments = [f"--gin_file={folder}/tiny.gin", f"--model_dir={model_dir}"]
    assert main.main(["main", *arguments]) == 0
    gin.clear_config()
    return model_dir


def run(*arguments):
    return main.main(["main", "--gin_file=tiny.gin", *arguments])


def refused(capsys, *arguments):
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured.err


# Flags.


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--gin.A=1"], ["--gin_param=A=1"]),
        (["--gin.A", "1"], ["--gin_param=A=1"]),
        (["-gin.f.x='a b'"], ["--gin_param=f.x='a b'"]),
        (["--gin.a/f.x=@g(b=1)"], ["--gin_param=a/f.x=@g(b=1)"]),
        (["--gin_file=a", "--job", "train"], ["--gin_file=a", "--job", "train"]),
        (["--", "--gin.A=1"], ["--", "--gin.A=1"]),
    ],
)
def test_sugar(given, expected):
    assert flags_lib.without_sugar(given) == expected


def test_sugar_without_a_value():
    with pytest.raises(flags.Error, match="--gin.A has no value: write --gin.A=VALUE"):
        flags_lib.without_sugar(["--gin.A"])


def test_sugar_before_another_flag():
    with pytest.raises(flags.Error, match="--gin.A has no value"):
        flags_lib.without_sugar(["--gin.A", "--job=train"])


def test_no_gin_file_lists_those_that_there_are(capsys):
    pathlib.Path("gin").mkdir()
    pathlib.Path("gin/mine.gin").write_text("")
    assert main.main(["main"]) == 2
    assert "gin/mine.gin" in capsys.readouterr().err


def test_mistyped_flag(capsys):
    assert "Did you mean: model_dir" in refused(capsys, "--modeldir=x")


def test_argument_without_a_flag(capsys):
    assert "unexpected argument 'x'" in refused(capsys, "x")


def test_unknown_job(capsys):
    assert "train_and_evaluate" in refused(capsys, "--job=trian")


def test_output_belongs_to_predict(capsys):
    message = refused(capsys, "--output=x", "--job=train")
    assert "--output is for --job=predict, not --job=train" in message


def test_checkpoint_path_is_not_for_training(capsys):
    assert "warm_start_from" in refused(capsys, "--checkpoint_path=x")


@pytest.mark.parametrize("job", ["evaluate", "predict", "export"])
def test_job_that_needs_a_model_dir(capsys, job):
    assert f"--job={job} needs --model_dir" in refused(capsys, f"--job={job}")


def test_devices_of_a_single_host_only(capsys):
    message = refused(
        capsys, "--devices=GPU:0", "--execution=multi_worker", "--dry_run"
    )
    assert "execution='single_host'" in message


def test_help(capsys):
    assert main.main(["main", "--help"]) == 0
    said = capsys.readouterr().out
    assert "--dry_run" in said.replace("--[no]", "--")
    assert "--gin_file=gin/digits.gin --model_dir=runs/digits\n" in said


def test_version(capsys):
    assert main.main(["main", "--version"]) == 0
    said = capsys.readouterr().out
    assert re.match(
        r"gin-estimator .+\(Python 3.+, tensorflow 2.+, keras 3.+\)\n", said
    )


LIGHT = """
import sys, runpy
sys.argv = {}
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
except SystemExit as ended:
    heavy = {{"tensorflow", "keras", "numpy"}} & set(sys.modules)
    assert not heavy, heavy
    sys.exit(ended.code)
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["pipeline.main", "--help"], 0),
        (["pipeline", "--hlep"], 2),
        (["pipeline.main"], 2),
        (["gin_estimator.main", "--hlep"], 2),
        (["pipeline.launch", "--help"], 0),
        (["pipeline.launch", "--wrkers=2", "--", "--model_dir=m"], 2),
    ],
)
def test_flags_are_answered_without_tensorflow(arguments, code):
    done = subprocess.run(
        [sys.executable, "-c", LIGHT.format(arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr


# Configuration.


def test_configuration_error_has_no_traceback(capsys):
    message = refused(capsys, "--gin.TRAIN_STPES=3")
    assert message.startswith("error: ")
    assert "Did you mean TRAIN_STEPS?" in message


def test_debug_keeps_the_traceback():
    with pytest.raises(gin_config.ConfigError):
        run("--gin.TRAIN_STPES=3", "--debug")


def test_other_errors_keep_their_traceback(monkeypatch):
    def fail(*_):
        raise RuntimeError("disk full")

    monkeypatch.setattr(gin_config, "parse", fail)
    with pytest.raises(RuntimeError, match="disk full"):
        run("--dry_run")


def test_interrupt(monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(gin_config, "parse", interrupt)
    assert run("--dry_run") == 130
    assert "interrupted" in capsys.readouterr().err


def test_dry_run_tells_of_devices_that_are_not_here(capsys):
    assert run("--dry_run", "--devices=GPU:7") == 0
    assert "warning: devices ['GPU:7'] are not among th" in capsys.readouterr().out


def test_dry_run_prints_configuration_and_topology(capsys, monkeypatch):
    cluster = {"cluster": {"chief": ["h:1"], "worker": ["h:2"]}}
    cluster["task"] = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    assert run("--dry_run", "--model_dir=here", "--execution=multi_worker") == 0
    out = capsys.readouterr().out
    assert "TrainSpec.max_steps = %TRAIN_STEPS" in out
    assert "execution multi_worker" in out
    assert "task worker 0 of chief: 1, worker: 1" in out
    assert "model_dir here" in out
    assert not pathlib.Path("here").exists()


def test_the_flag_wins_over_gin(caplog, capsys):
    logging.use_absl_handler()
    with caplog.at_level("INFO", logger="absl"):
        assert run(
            "--dry_run", "--model_dir=b", "--gin_param=RunConfig.model_dir='a'"
        ) == (0)
    assert "model_dir b" in capsys.readouterr().out
    assert "--model_dir=b wins over gin's 'a'" in caplog.text


def test_two_runs_in_one_process():
    assert run("--dry_run") == 0
    assert run("--dry_run") == 0


# Jobs.


def test_train_and_evaluate(trained, capsys):
    assert run(f"--model_dir={trained}") == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"mae \d+\.\d{4}", lines[0])
    assert "global_step 4" in lines
    assert f"checkpoints {trained}" in lines
    following = lines[lines.index("try next:") + 1 :]
    assert len(following) == 3
    assert following[0].endswith(f"tensorboard --logdir={trained}")
    assert "--gin.TRAIN_STEPS=8" in following[2]


def test_the_written_configuration_repeats_the_run(trained, capsys):
    config = f"{trained}/config.gin"
    arguments = [f"--gin_file={config}", f"--model_dir={trained}", "--job=evaluate"]
    assert main.main(["main", *arguments]) == 0
    assert "global_step 4" in capsys.readouterr().out
    assert "Written by: python -m pipeline.main" in pathlib.Path(config).read_text()


def test_the_configuration_is_in_tensorboard(trained):
    events = b"".join(p.read_bytes() for p in pathlib.Path(trained).glob("events*"))
    assert b"TrainSpec.max_steps = %TRAIN_STEPS" in events


def test_train(trained, capsys):
    assert run(f"--model_dir={trained}", "--job=train", "--gin.TRAIN_STEPS=4") == 0
    assert f"checkpoints {trained}" in capsys.readouterr().out


EVALUATOR = '{"task": {"type": "evaluator", "index": 0}}'


def test_an_evaluator(trained, capsys, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", EVALUATOR)
    assert run(f"--model_dir={trained}") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["mae", "rmse"]
    assert lines[2].startswith("loss ")
    assert lines[3:] == ["global_step 4", f"checkpoints {trained}"]


def test_an_evaluator_without_what_it_evaluates(capsys, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", EVALUATOR)
    assert "this task is an evaluator" in refused(capsys)


def test_an_evaluator_that_is_told_to_train(trained, capsys, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", EVALUATOR)
    error = refused(capsys, f"--model_dir={trained}", "--job=train")
    assert "does not train: call train_and_evaluate, or --job=train_and_ev" in error


@pytest.mark.parametrize("job", ["predict", "export"])
def test_one_process_predicts_and_exports(tmp_path, capsys, monkeypatch, job):
    jobs = {"worker": ["h:1", "h:2"]}
    config = {"cluster": jobs, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    flags = [f"--model_dir={tmp_path}", f"--job={job}", "--execution=multi_worker"]
    assert f"--job={job} is for one process, and TF_CONFIG names 2" in refused(
        capsys, *flags
    )


def test_a_lost_peer_asks_for_another_start(monkeypatch, capsys):
    """By `os._exit`, as TensorFlow would wait for the task that is lost."""

    def lose(*_):
        raise PeerLostError("worker 1 of the cluster is lost")

    codes = []
    monkeypatch.setattr(gin_config, "parse", lose)
    monkeypatch.setattr(os, "_exit", codes.append)
    run("--dry_run")
    assert codes == [75] == [processes.LOST_PEER]
    assert "error: worker 1 of the cluster is lost" in capsys.readouterr().err


def test_row_options_come_from_gin(monkeypatch, tmp_path):
    """Those of the execution that is chosen."""
    asked = {}
    monkeypatch.setattr(
        coordination, "connected", lambda _, options: asked.update(vars(options))
    )
    jobs = {"worker": ["h:1", "h:2"]}
    config = {"cluster": jobs, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    with pytest.raises(ValueError, match="the strategy is a NoneType"):
        run(
            f"--model_dir={tmp_path}",
            "--execution=multi_worker",
            "--gin.multi_worker.heartbeat_timeout_secs=7",
            "--debug",
        )
    assert asked["heartbeat_timeout_secs"] == 7


def test_predict_writes_json_lines(trained, capsys):
    assert run(f"--model_dir={trained}", "--job=predict") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert list(json.loads(lines[0])) == ["predictions"]


def test_predict_to_a_file(trained, capsys):
    assert run(f"--model_dir={trained}", "--job=predict", "--output=p.jsonl") == 0
    assert capsys.readouterr().out == ""
    assert len(pathlib.Path("p.jsonl").read_text().splitlines()) == 6


def test_export(trained, capsys):
    assert run(f"--model_dir={trained}", "--job=export") == 0
    line = next(
        x for x in capsys.readouterr().out.splitlines() if x.startswith("SavedModel ")
    )
    assert pathlib.Path(line.partition(" ")[2], "saved_model.pb").is_file()


def test_as_a_module(tmp_path):
    command = ["-m", "pipeline.main", "--gin_file=nowhere.gin"]
    code, log = forked.finished(command, tmp_path)
    assert code == 2
    assert "error: no gin file 'nowhere.gin'" in log
    assert "Traceback" not in log


def test_what_this_project_refuses_needs_no_traceback(capsys):
    arguments = ["--model_dir=run", "--devices=GPU:7"]
    assert "devices ['GPU:7'] are not among" in refused(capsys, *arguments)
    with pytest.raises(ValueError, match="are not among"):
        run(*arguments, "--debug")


def test_what_others_raise_keeps_its_traceback(monkeypatch):
    def explode(self):
        return np.zeros(3).reshape(2, 2)

    monkeypatch.setattr(Estimator, "latest_checkpoint", explode)
    with pytest.raises(ValueError, match="cannot reshape"):
        run("--model_dir=run")
