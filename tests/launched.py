"""Runs the launcher with tasks that run a test's own program, without TensorFlow.

The launcher starts `fake_main` in place of `pipeline.main`, so that a task is there at
once, and a test says in a few lines what each task does.
"""

import os
import subprocess
import sys
import time
import uuid

import psutil

from tests import patience
from tests.clusters import ROOT

LAUNCHER = """
import os, signal, sys
from pipeline import launch
signal.signal(signal.SIGHUP, getattr(signal, os.environ.get("ON_SIGHUP", "SIG_DFL")))
sys.exit(launch.main(["launch", *sys.argv[1:]], module="fake_main"))
"""
# Plays pipeline.main: runs the test's program, which finds its name in `task`.
FAKE_MAIN = """
import json, os, signal, subprocess, sys, time
config = json.loads(os.environ["TF_CONFIG"])
task = "{type} {index}".format(**config["task"])

def started(name):
    "Says that a task is there."
    open(os.path.join(os.environ["FAKE_DIR"], name), "w").close()

def wait_for(name):
    while not os.path.exists(os.path.join(os.environ["FAKE_DIR"], name)):
        time.sleep(0.01)

exec(open(os.path.join(os.environ["FAKE_DIR"], "program.py")).read())
"""
# A line of a program: it ends by itself, long after any test has failed.
SLEEP = "started(task); time.sleep(60)\n"


class Launched:
    """A launcher, and the processes that it started, known by a mark."""

    def __init__(self, folder, program, arguments, after):
        self.folder = folder
        (folder / "fake_main.py").write_text(FAKE_MAIN)
        (folder / "program.py").write_text(program)
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, *arguments, "--", *after],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}",
                "FAKE_DIR": str(folder),
                "LAUNCH_TEST": self.mark,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A group of its own, as from a shell: a terminal signals all of a group.
            process_group=0,
        )

    def wait_for(self, *names):
        is_over = patience.deadline(15)
        while not all((self.folder / name).exists() for name in names):
            assert not is_over(), f"{names} did not start"
            time.sleep(0.01)

    def finish(self):
        """Waits for the end of all processes; returns exit code, stdout and stderr."""
        out, err = self.process.communicate(timeout=patience.stretched(20))
        assert not self.left(), err
        return self.process.returncode, out, err

    def left(self):
        return [p for p in psutil.process_iter() if self.is_ours(p)]

    def is_ours(self, process):
        try:
            ours = process.environ().get("LAUNCH_TEST") == self.mark
            return ours and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False
