"""A launcher whose tasks run a test's own program, and import no TensorFlow."""

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
# Plays pipeline.main: runs the test's program, which knows which task it is.
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
# In a program: ends by itself long after any test has failed.
SLEEP = "started(task); time.sleep(60)\n"


class Launched:
    """A launcher and all that it started."""

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
            # As a shell does it, so that its group can be signalled as a terminal does.
            process_group=0,
        )

    def wait_for(self, *names):
        is_over = patience.deadline(15)
        while not all((self.folder / name).exists() for name in names):
            assert not is_over(), f"{names} did not start"
            time.sleep(0.01)

    def finish(self):
        """Returns exit code, stdout and stderr; nothing is left by then."""
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
