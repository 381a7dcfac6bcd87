"""A task that is started again while the others go on: processes without TensorFlow."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from pipeline.launcher import processes

ROOT = pathlib.Path(__file__).parent.parent.parent.parent
# Notes its starts; fails where the case says so, once the others are there.
PROGRAM = """
import json, os, pathlib, signal, sys, time
folder = pathlib.Path(os.environ["FOLDER"])
task = os.environ.get("TASK") or "{type} {index}".format(
    **json.loads(os.environ["TF_CONFIG"])["task"]
)
with open(folder / task, "a") as starts:
    starts.write(os.environ.get("TF_CONFIG", "") + "\\n")

def starts_of(name):
    path = folder / name
    return len(path.read_text().splitlines()) if path.exists() else 0

def wait_for(name, number=1):
    end = time.monotonic() + 15
    while starts_of(name) < number:
        if time.monotonic() > end:
            sys.exit(f"{task}: no start {number} of {name}")
        time.sleep(0.01)

"""
LAUNCHER = """
import sys
from pipeline import launch
sys.exit(launch.main(["launch", *sys.argv[1:]], module="fake_main"))
"""


def run(folder, programs, *, allowed=1, replaceable=("worker",), **options):
    """The outcome of tasks by their programs, the restarts, and each one's starts."""
    restarts = processes.Restarts(allowed)
    tasks = [
        processes.Task(
            name=name,
            command=[sys.executable, "-c", PROGRAM + program],
            environ={**os.environ, "FOLDER": str(folder), "TASK": name},
            leads=name == "chief",
            replaceable=name in replaceable,
        )
        for name, program in programs.items()
    ]
    outcome = processes.run_once(
        tasks, grace_secs=10, exit_secs=10, restarts=restarts, **options
    )
    starts = {name: len((folder / name).read_text().splitlines()) for name in programs}
    return outcome, restarts.done, starts


DIES_ONCE = "if starts_of(task) == 1: os.kill(os.getpid(), signal.SIGKILL)\n"


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ("os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
        ("sys.exit(75)", "exited with 75 (to be started again)"),
    ],
    ids=["killed", "asks"],
)
def test_one_that_dies_is_started_again_alone(tmp_path, capfd, ends, said):
    programs = {
        "chief": "wait_for('worker', 2)",
        "worker": f"if starts_of(task) == 1: {ends}",
    }
    outcome, restarts, starts = run(tmp_path, programs, allowed=3)
    assert (outcome.code, restarts) == (0, 1)
    assert starts == {"chief": 1, "worker": 2}
    words = f"worker {said}; restart 1 of 3, of this task alone: process "
    assert words in capfd.readouterr().err


def test_when_none_is_left_it_ends_all(tmp_path):
    programs = {"chief": "time.sleep(60)", "worker": "wait_for('chief'); sys.exit(3)"}
    outcome, restarts, starts = run(tmp_path, programs, allowed=2)
    assert (outcome.code, outcome.reason) == (3, "worker exited with 3")
    assert restarts == 2
    assert starts == {"chief": 1, "worker": 3}


REFUSED = {
    "a_mistake": ("time.sleep(60)", "wait_for('chief'); sys.exit(2)", 2),
    # It would wait for a chief that is gone.
    "the_chief_has_ended": ("", "time.sleep(0.7); sys.exit(3)", 3),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_another_start_would_not_mend(tmp_path, case):
    chief, worker, code = REFUSED[case]
    outcome, restarts, starts = run(tmp_path, {"chief": chief, "worker": worker})
    assert (outcome.code, restarts) == (code, 0)
    assert starts == {"chief": 1, "worker": 1}


CLUSTERS = {
    "a_worker_of_servers": (["--ps=1"], "worker 1", ["worker 1"]),
    "an_evaluator": (["--evaluator"], "evaluator 0", ["evaluator 0"]),
    "a_server": (["--ps=1"], "ps 0", ["chief 0", "worker 0", "worker 1", "ps 0"]),
    "a_worker_in_step": ([], "worker 1", ["worker 0", "worker 1"]),
}


@pytest.mark.parametrize("case", CLUSTERS)
def test_who_is_started_again_with_whom(tmp_path, case):
    flags, dying, again = CLUSTERS[case]
    leader = "chief 0" if "--ps=1" in flags else "worker 0"
    program = f"""
if task == {dying!r}:
    for name in {[leader, *again]!r}:
        wait_for(name)
    {DIES_ONCE}
elif task == {leader!r}:
    wait_for({dying!r}, 2)
elif starts_of(task) == 1 and task in {again!r}:
    time.sleep(60)
"""
    (tmp_path / "fake_main.py").write_text(PROGRAM + program)
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHER, "--workers=2", "--max_restarts=1", *flags]
        + ["--", "--model_dir=m"],
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
            "FOLDER": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert f"{dying} was killed by SIGKILL; restart 1 of 1" in done.stderr
    starts = {p.name: p.read_text().splitlines() for p in tmp_path.glob("* ?")}
    assert sorted(name for name in starts if len(starts[name]) == 2) == sorted(again)
    first, second = starts[dying]
    # Alone, it comes back where the others look for it.
    assert (first == second) == (len(again) == 1)
    assert json.loads(first)["task"] == json.loads(second)["task"]
