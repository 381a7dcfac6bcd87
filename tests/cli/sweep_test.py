"""Sweeps. The trials of most tests are small programs that need no TensorFlow."""

import contextlib
import csv
import fcntl
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from gin_estimator import sweep as sweep_command

pytest.importorskip("optuna")

PROGRAM = """
import json, os, pathlib, signal, sys, time
flags = dict(each[2:].split("=", 1) for each in sys.argv[1:])
model_dir = pathlib.Path(flags["model_dir"])
(model_dir / "eval").mkdir(exist_ok=True)
record = model_dir / "eval" / "evaluations.jsonl"
with open(model_dir / "starts", "a") as file:
    file.write(flags["x"] + "\\n")
number = int(model_dir.name[-4:])
print("slot", os.environ.get("SLOT"))

def evaluate(step, value, **metrics):
    line = {"step": step, "metrics": {"loss": value, **metrics}, "checkpoint": f"model.ckpt-{step}"}
    with open(record, "a") as file:
        file.write(json.dumps(line) + "\\n")
    print(f"step {step}")

def steps():
    return len(record.read_text().splitlines()) if record.exists() else 0

def finish(step):
    (model_dir / "training_ended.json").write_text(json.dumps({"step": step, "reason": "finished"}))

x = float(flags["x"])
"""
RUN = "for step in range(steps() + 1, 4):\n    evaluate(step, (x - 0.3) ** 2 + 1 / step)\nfinish(3)"


class Sweep:
    """A sweep in a folder, as processes."""

    def __init__(self, folder, program=RUN):
        self.folder = folder
        (folder / "program.py").write_text(PROGRAM + textwrap.dedent(program))

    def _arguments(self, flags, after=("program.py",), search="x=uniform(0, 1)"):
        own = ["--sweep_dir=sweep", "--metric=loss", "--pruner=none", f"--search={search}", *flags]
        return [*own, "--", *after]

    def start(self, *flags, **options):
        command = [sys.executable, "-m", "gin_estimator.main", "sweep"]
        command += self._arguments(flags, **options)
        return subprocess.Popen(
            command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, *flags, **options):
        """Runs a sweep in this process, which has imported Optuna."""
        return self.main(*self._arguments(flags, **options))

    def main(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(out):
            with contextlib.redirect_stderr(err):
                code = sweep_command.main(["sweep", *arguments])
        self.out, self.err = out.getvalue(), err.getvalue()
        return code

    def rows(self):
        with open(self.folder / "sweep" / "trials.csv", newline="") as file:
            return list(csv.DictReader(file))

    def starts(self, number):
        path = self.folder / "sweep" / f"trial-{number:04d}" / "starts"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def wait_for_start(self, number):
        end = time.monotonic() + 120
        while not self.starts(number) and time.monotonic() < end:
            time.sleep(0.05)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    sweep = Sweep(tmp_path_factory.mktemp("finished"))
    assert sweep.run("--trials=4") == 0, sweep.err
    return sweep


def test_the_table_has_the_best_first(finished):
    rows = finished.rows()
    values = [float(row["loss"]) for row in rows]
    assert values == sorted(values) and len(rows) == 4
    assert all(float(r["loss"]) == (float(r["x"]) - 0.3) ** 2 + 1 / 3 for r in rows)
    best = rows[0]
    assert f"--x={best['x']} --model_dir=sweep/trial-{int(best['trial']):04d}" in finished.out
    assert "step 3" in (finished.folder / "sweep" / "trial-0000.log").read_text()


def test_tensorboard_shows_the_search_and_the_metric(finished):
    pytest.importorskip("tensorboard")
    # These do not import TensorFlow.
    from tensorboard.compat.proto import event_pb2
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New
    from tensorboard.plugins.hparams import metadata

    [path] = (finished.folder / "sweep").glob("events.out.tfevents.*")
    reader = PyRecordReader_New(str(path))
    reader.GetNext()
    reader.GetNext()
    [value] = event_pb2.Event.FromString(reader.record()).summary.value
    shown = metadata.parse_experiment_plugin_data(value.metadata.plugin_data.content)
    assert [each.name for each in shown.hparam_infos] == ["x"]
    assert [(each.name.group, each.name.tag) for each in shown.metric_infos] == [("eval", "loss")]


def test_more_trials_are_added_one_in_each_slot_and_ended_ones_not_repeated(finished):
    before = {row["trial"]: row for row in finished.rows()}
    assert finished.run("--trials=6", "--slot=SLOT=a", "--slot=SLOT=b") == 0, finished.err
    after = {row["trial"]: row for row in finished.rows()}
    assert len(after) == 6 and all(after[key] == row for key, row in before.items())
    assert [finished.starts(number) for number in range(6)] == [1] * 6
    for number, slot in ((4, "a"), (5, "b")):
        log = finished.folder / "sweep" / f"trial-{number:04d}.log"
        assert f"slot {slot}" in log.read_text()


def test_another_sweep_in_the_folder_is_refused(finished):
    assert finished.run("--trials=6", search="x=uniform(0, 2)") == 2
    assert "belongs to another sweep" in finished.err and "x=uniform(0, 2)" in finished.err
    with open(finished.folder / "sweep" / "lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert finished.run("--trials=6") == 2
    assert f"is in use by a sweep, process {os.getpid()} on " in finished.err


@pytest.mark.slow
def test_a_sweep_that_was_killed_equals_one_that_was_not(finished, tmp_path):
    program = "time.sleep(0.2 if steps() else 1)\n" + RUN.replace(
        "\n", "\n    time.sleep(0.2)\n", 1
    )
    sweep = Sweep(tmp_path, program)
    for number in (0, 1):
        process = sweep.start("--trials=4")
        sweep.wait_for_start(number)
        process.kill()
        process.communicate()
    assert sweep.run("--trials=4") == 0, sweep.err
    whole = {row["trial"]: row for row in finished.rows()}
    assert all(whole[row["trial"]] == row for row in sweep.rows())
    for number in range(4):
        record = tmp_path / "sweep" / f"trial-{number:04d}" / "eval" / "evaluations.jsonl"
        assert [json.loads(line)["step"] for line in open(record)] == [1, 2, 3]


@pytest.mark.slow
def test_exit_codes_of_trials(tmp_path):
    program = """
    if number == 0 and not steps():
        evaluate(1, 1.0)
        sys.exit(75)  # Started again.
    if number in (1, 2):
        print("the reason")
        sys.exit(3)
    evaluate(2, float("nan") if number == 3 else 0.5)
    """
    sweep = Sweep(tmp_path, program)
    assert sweep.run("--trials=5", "--grace_secs=10") == 0, sweep.err
    rows = {int(row["trial"]): row for row in sweep.rows()}
    states = [rows[number]["state"] for number in range(5)]
    assert states == ["complete", "fail", "fail", "fail", "complete"]
    assert sweep.starts(0) == 2 and "exited with 3" in rows[1]["why"]
    assert "the reason" in sweep.err and "nan" in rows[3]["why"]


def test_three_failures_in_a_row_end_the_sweep(tmp_path):
    sweep = Sweep(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    assert sweep.run("--trials=9") == 1
    assert len(sweep.rows()) == 3 and "SIGKILL" in sweep.rows()[0]["why"]


@pytest.mark.slow
def test_a_signal_lets_trials_save_and_end(tmp_path):
    program = """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    if steps():
        finish(1)
        sys.exit()
    evaluate(1, 0.5)
    time.sleep(100)
    """
    sweep = Sweep(tmp_path, program)
    process = sweep.start("--trials=1")
    sweep.wait_for_start(0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 75
    assert sweep.run("--trials=1") == 0, sweep.err
    assert sweep.rows()[0]["state"] == "complete"


@pytest.mark.slow
def test_bad_trials_are_pruned(tmp_path):
    program = """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    evaluate(1, float(number))
    if number == 6:
        time.sleep(100)
    """
    sweep = Sweep(tmp_path, program)
    assert sweep.run("--trials=7", "--pruner=median") == 0, sweep.err
    row = sweep.rows()[-1]
    assert (row["trial"], row["state"], row["loss"]) == ("6", "pruned", "6.0")


def test_commands_are_printed_and_collected(tmp_path):
    sweep = Sweep(tmp_path)
    assert sweep.run("--trials=2", "--print_commands", "--sampler=random") == 0, sweep.err
    first, second = sweep.out.splitlines()
    os.makedirs(tmp_path / "sweep" / "trial-0000")
    subprocess.run(first, shell=True, cwd=tmp_path, check=True)
    assert sweep.main("--collect", "--sweep_dir=sweep") == 0, sweep.err
    assert "trial 1 has not ended" in sweep.out and "complete" in sweep.out
    assert sweep.run("--trials=2", "--print_commands", "--sampler=random") == 0
    assert sweep.out.splitlines() == [second]
    flags = ["--metric=loss", "--search=x=uniform(0, 1)", "--trials=1", "--print_commands"]
    assert sweep.main(*flags, "--", "program.py") == 0, sweep.err
    assert "--model_dir=runs/program-sweep/trial-0000" in sweep.out


@pytest.mark.parametrize(
    "flags, after, message",
    [
        (["--search=y=loguniform(1, 2)"], ["program.py"], r"Did you mean log\?"),
        (["--search=y=log(2, 1)"], ["program.py"], "such as x=uniform.*low=2.0"),
        (["--search=x=int(1, 5)"], ["program.py"], "x twice"),
        ([], ["program.py", "--model_dir=m"], "expected no --model_dir"),
        ([], ["program.py", "--x=1"], "x is set by --search and after --"),
        (["--sweep_dir=gs://a/b"], ["program.py"], "expected a local folder"),
        (["--metric=goodness"], ["program.py"], "Set --maximize or --minimize"),
        (["--sampler=grid"], ["program.py"], "inf combinations: expected at most 100000"),
    ],
)
def test_mistakes_are_refused_before_the_first_trial(tmp_path, flags, after, message):
    sweep = Sweep(tmp_path)
    assert sweep.run(*flags, after=after) == 2
    assert re.search(message, sweep.err) and "Traceback" not in sweep.err
    assert not list(tmp_path.glob("sweep/trial*"))


@pytest.mark.slow
def test_a_grid_has_each_combination_once(tmp_path):
    sweep = Sweep(tmp_path, "evaluate(1, x)\nfinish(1)")
    search = "x=int(1, 5, 2)"
    assert sweep.run("--trials=9", "--sampler=grid", search=search) == 0, sweep.err
    assert sorted(row["x"] for row in sweep.rows()) == ["1", "3", "5"]


def test_an_unknown_metric_ends_the_sweep_with_near_names(tmp_path):
    sweep = Sweep(tmp_path, "evaluate(1, 0.5, accuracy=0.9)\ntime.sleep(100)")
    assert sweep.run("--metric=acuracy", "--maximize") == 2
    assert "Did you mean accuracy?" in sweep.err


DIGITS = ["--gin_file=digits.gin", "--gin.TRAIN_STEPS=40"]


@pytest.mark.slow
def test_names_are_checked_by_a_dry_run(tmp_path):
    sweep = Sweep(tmp_path)
    search = "cnn.dropuot=uniform(0, 0.5)"
    assert sweep.run(after=DIGITS, search=search) == 2
    assert "dropuot" in sweep.err and not (tmp_path / "sweep").exists()


@pytest.mark.slow
def test_digits(tmp_path):
    sweep = Sweep(tmp_path)
    flags = ["--metric=accuracy", "--trials=2", "--seed=1"]
    search = "LEARNING_RATE=log(1e-4, 1e-2)"
    process = sweep.start(*flags, after=DIGITS, search=search)
    end = time.monotonic() + 300
    while not list(tmp_path.glob("sweep/trial-0000/model.ckpt-*")) and time.monotonic() < end:
        time.sleep(0.1)
    process.kill()
    process.communicate()
    assert sweep.run(*flags, after=DIGITS, search=search) == 0, sweep.err
    assert [row["state"] for row in sweep.rows()] == ["complete"] * 2
    assert re.search("best: gin-estimator --gin_file=digits.gin", sweep.out)
    model_dir = pathlib.Path(tmp_path, "sweep", "trial-0000")
    steps = [json.loads(line)["step"] for line in open(model_dir / "eval" / "evaluations.jsonl")]
    assert len(steps) == len(set(steps))
