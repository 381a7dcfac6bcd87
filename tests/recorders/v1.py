"""Records a half-trained model_dir of TensorFlow 2.15 for tests/v1/tensorflow_2_15_test.py.

python3.11 -m venv VENV && VENV/bin/pip install tensorflow-cpu==2.15.1
VENV/bin/python tests/recorders/v1.py tests/v1/tensorflow_2_15
"""

import json
import os
import pathlib
import shutil
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "v1"))

import half_trained
import tensorflow.compat.v1 as tf


class Losses(tf.train.SessionRunHook):
    def __init__(self):
        self.losses = []

    def before_run(self, run_context):
        return tf.train.SessionRunArgs("the_loss:0")

    def after_run(self, run_context, run_values):
        self.losses.append(float(run_values.results))


def main(folder):
    tf.disable_v2_behavior()
    path, hook = tempfile.mkdtemp(), Losses()
    estimator = half_trained.estimator(tf, path)
    estimator.train(half_trained.input_fn(tf), max_steps=half_trained.HALF)
    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(path):
        is_half = name.startswith(f"model.ckpt-{half_trained.HALF}.") and ".meta" not in name
        if name == "checkpoint" or is_half:
            shutil.copy(os.path.join(path, name), folder)
    recorded = {"defaults": half_trained.defaults(tf)}
    recorded["half"] = numbers(estimator)
    estimator.train(half_trained.input_fn(tf), hooks=[hook], max_steps=half_trained.ALL)
    recorded |= {"losses": hook.losses, "end": numbers(estimator)}
    names = estimator.get_variable_names()
    recorded["values"] = {n: estimator.get_variable_value(n).tolist() for n in sorted(names)}
    with open(os.path.join(folder, "numbers.json"), "w") as file:
        json.dump(recorded, file)


def numbers(estimator):
    found = estimator.evaluate(half_trained.input_fn(tf, 1))
    return {name: float(value) for name, value in found.items()}


main(sys.argv[1])
