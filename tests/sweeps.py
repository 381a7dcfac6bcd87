"""Runs sweeps whose trials run a test's own program, without TensorFlow.

A sweep starts `fake_main` in place of `pipeline.main`, so that a trial takes
milliseconds. A test says in a few lines what each trial does.
"""

import os
import subprocess
import sys
import time
import uuid

import psutil

from pipeline import sweep
from tests import patience
from tests.clusters import ROOT

SWEEP = """
import sys
from pipeline import sweep
sys.exit(sweep.main(["sweep", *sys.argv[1:]], module="fake_main"))
"""
# Plays pipeline.main: runs the test's program. In it are `values` by name as texts,
# `folder` (the model_dir), `number` of the trial, and what follows.
FAKE_MAIN = """
import json, os, signal, sys, time
here = os.environ["FAKE_DIR"]
flags = [argument.lstrip("-").split("=", 1) for argument in sys.argv[1:]]
values = dict(text.split("=", 1) for name, *rest in flags for text in rest
              if name == "gin_param")
checks = ["dry_run"] in flags
folder = dict(each for each in flags if len(each) == 2).get("model_dir", "")
number = int(folder[-4:]) if folder else None

def evaluations(name="eval"):
    path = os.path.join(folder, name, "evaluations.jsonl")
    return open(path).read().count("\\n") if os.path.exists(path) else 0

def evaluated(step, name="eval", **metrics):
    os.makedirs(os.path.join(folder, name), exist_ok=True)
    line = {"step": step, "time": 0.0, "metrics": metrics, "checkpoint": None}
    with open(os.path.join(folder, name, "evaluations.jsonl"), "a") as file:
        file.write(json.dumps(line) + "\\n")

def say_there(name):
    open(os.path.join(here, name), "w").close()

def wait_for(name):
    while not os.path.exists(os.path.join(here, name)):
        time.sleep(0.01)

if checks:
    exec(open(os.path.join(here, "check.py")).read())
else:
    exec(open(os.path.join(here, "program.py")).read())
"""
# A program: three evaluations, the better the higher X is; a kill is survived.
CURVE = """
for step in range(evaluations() + 1, 4):
    evaluated(step, accuracy=float(values["X"]) * step)
"""
SEARCH = "--search=X=uniform(0, 1)"


class Sweeps:
    """A folder for sweeps of one program, and the ways to run them."""

    def __init__(self, folder, program, check=""):
        self.folder = folder
        self.sweep_dir = folder / "sweep"
        self.mark = uuid.uuid4().hex
        (folder / "fake_main.py").write_text(FAKE_MAIN)
        (folder / "program.py").write_text(program)
        (folder / "check.py").write_text(check)

    @property
    def environ(self):
        return {
            "PYTHONPATH": f"{ROOT}{os.pathsep}{self.folder}",
            "FAKE_DIR": str(self.folder),
            "SWEEP_TEST": self.mark,
        }

    def arguments(self, *more, after=()):
        own = () if "--collect" in more else (SEARCH, "--metric=accuracy")
        own = own if not any(a.startswith("--search") for a in more) else own[1:]
        end = () if "--collect" in more else ("--", "--gin_file=gin/digits.gin", *after)
        return [f"--sweep_dir={self.sweep_dir}", *own, *more, *end]

    def run(self, *more, after=()):
        """Runs a sweep in this process; returns its exit code."""
        argv = ["sweep", *self.arguments(*more, after=after)]
        return sweep.main(argv, module="fake_main")

    def start(self, *more):
        """Starts a sweep in a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-c", SWEEP, *self.arguments(*more)],
            cwd=ROOT,
            env={**os.environ, **self.environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def wait_for(self, *names):
        is_over = patience.deadline(20)
        while not all((self.folder / name).exists() for name in names):
            assert not is_over(), f"{names} did not come"
            time.sleep(0.01)

    def wait_until_none_is_left(self):
        is_over = patience.deadline(10)
        while left := [p for p in psutil.process_iter() if self._is_ours(p)]:
            assert not is_over(), left
            time.sleep(0.01)

    def table(self):
        """The lines of trials.csv after the first, as lists of cells."""
        text = (self.sweep_dir / "trials.csv").read_text()
        return [line.split(",") for line in text.splitlines()[1:]]

    def states(self):
        return [row[1] for row in self.table()]

    def _is_ours(self, process):
        try:
            ours = process.environ().get("SWEEP_TEST") == self.mark
            return (
                ours
                and process.pid != os.getpid()
                and process.status() != psutil.STATUS_ZOMBIE
            )
        except psutil.Error:
            return False
