"""Log lines: short on a terminal, with absl's prefix elsewhere."""

import contextlib
import os
import pty
import re
import subprocess
import sys

import pytest
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
    """Runs a program on a terminal of unknown size; returns what it writes there."""
    controller, terminal = pty.openpty()
    env = {**os.environ, "TERM": "xterm", **environment}
    command, parts = [sys.executable, "-c", program], []
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=terminal, stderr=terminal):
        os.close(terminal)
        with contextlib.suppress(OSError):  # At the end of the program.
            while part := os.read(controller, 65536):
                parts.append(part)
    os.close(controller)
    return b"".join(parts).decode().replace("\r\n", "\n")


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


TRAINING = """
import tempfile, time
import gin_estimator as ge, keras, numpy as np, tensorflow as tf

ones = np.ones([40, 1], "f")
data = tf.data.Dataset.from_tensor_slices((ones, ones)).batch(1)
config = ge.RunConfig(tempfile.mkdtemp(), log_step_count_steps=2, save_checkpoints_steps=20)

def make():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

def fn(features, labels, mode, network, optimizer):
    loss = tf.square(network(features) - labels)[:, 0]
    return ge.EstimatorSpec(mode, loss=loss, train_op=ge.TrainOp(optimizer, network.variables))

def main():
    ge.fit(make, lambda: data, epochs=2)
    print("now")
    modules = {"network": lambda: keras.layers.Dense(1), "optimizer": keras.optimizers.SGD}
    spec = ge.TrainSpec(lambda: data.repeat(), max_steps=40)
    one, began = ge.Estimator(fn, modules=modules, config=config), time.monotonic()
    ge.train_and_evaluate(one, spec, ge.EvalSpec(lambda: data))
    print("seconds", time.monotonic() - began)

ge.run(main)
"""


BAR = """
from gin_estimator.run.progress import Progress
bar = Progress("train", total=10)
bar.close()
"""


def test_a_terminal_that_gives_no_size_has_a_bar():
    assert "train:   0%|" in on_terminal(BAR)


@pytest.mark.slow
@pytest.mark.parametrize(("main", "lines"), [("ge.run(main)", ["train | step 80"]), ("main()", [])])
def test_a_training_on_a_terminal_has_a_bar_and_a_line_a_second(main, lines):
    fit, text = on_terminal(TRAINING.replace("ge.run(main)", main)).split("now\n")
    assert "train:" in fit and "/80 [" in fit
    assert re.findall(r"train \| step \d+", fit) == lines  # Epochs are enough.
    assert re.findall(r"^.*(epoch \d/2) \| loss", fit, re.M) == ["epoch 1/2", "epoch 2/2"]

    assert "train:" in text and "/40 [" in text and not re.search(r"config \|\s*$", text, re.M)
    lines = re.findall(r"(?:\x1b\[1m)?\d\d:\d\d:\d\d [^\r\n]+", text)
    assert all(len(line) <= 100 for line in lines)
    bold = [line for line in lines if "\x1b[1m" in line]
    assert bold == [line for line in lines if " eval | " in line] and len(bold) == 2
    steps = [line for line in lines if " train | step " in line]
    assert 1 <= len(steps) <= 2 + float(text.partition("seconds ")[2].split()[0])
