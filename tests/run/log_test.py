"""Log lines: short on a terminal, with absl's prefix elsewhere."""

import os
import pty
import re
import subprocess
import sys

from conftest import ROOT

PROGRAM = """
import sys, time
import gin_estimator as ge
from absl import logging
from gin_estimator.run import log

def main():
    logging.info("eval | step 5 | loss 0.5")
    logging.info("train | step 5")
    logging.warning("a warning")

ge.run(main)
"""


def on_terminal(program, **environment):
    """Runs a program whose stderr is a terminal; returns what it writes there."""
    controller, terminal = pty.openpty()
    try:
        env = {**os.environ, "TERM": "xterm", **environment}
        subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=env, stderr=terminal)
        return os.read(controller, 65536).decode().replace("\r\n", "\n")
    finally:
        os.close(controller)
        os.close(terminal)


def test_lines_on_a_terminal_are_short_and_results_stand_out():
    first, second, third = on_terminal(PROGRAM).splitlines()
    time = r"\d\d:\d\d:\d\d"
    assert re.fullmatch(rf"\x1b\[1m{time} eval \| step 5 \| loss 0.5\x1b\[0m", first)
    assert len(second) == len("00:00:00 train | step 5")
    assert third.startswith("\x1b[33m") and third.endswith(" WARNING: a warning\x1b[0m")
    assert "\x1b" not in on_terminal(PROGRAM, NO_COLOR="1")


def test_clusters_and_files_have_the_prefix_of_absl():
    in_file = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, stderr=subprocess.PIPE, text=True
    ).stderr
    for text in (in_file, on_terminal(PROGRAM, TF_CONFIG='{"cluster": {}}')):
        assert "eval" in text and "\x1b" not in text
        assert all(line[0] in "IW" and "<string>:" in line for line in text.splitlines())
