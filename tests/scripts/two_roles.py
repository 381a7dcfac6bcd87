"""The trainer or the evaluator of a training; writes what it did as JSON.

python -m tests.scripts.two_roles trainer FOLDER
python -m tests.scripts.two_roles evaluator FOLDER

The training is in FOLDER/run, what they did in FOLDER/trainer.json and evaluator.json.
"""

import json
import os
import pathlib
import sys
import time

import tensorflow as tf

import pipeline as ge
from pipeline.checkpoints import checkpoint
from pipeline.model_dir import end_marker
from pipeline.process import run_log
from tests import fakes

NUM_STEPS = 30
KEEP_MAX = 2
SECS_PER_STEP = 0.1

X, Y = fakes.classification_data(rows=40)
TRAIN = fakes.make_input_fn(X, Y, batch_size=8, change=lambda d: d.repeat())
EVAL = fakes.make_input_fn(X, Y, batch_size=20)


class Slow(ge.Hook):
    """Takes its time, and keeps the steps."""

    every_steps = 1

    def __init__(self):
        self.evaluated = []

    def begin(self, run):
        self.evaluated.append(run.step)

    def after_step(self, run):
        time.sleep(SECS_PER_STEP)

    def end(self, run):
        """An evaluation lasts until retention would have deleted its checkpoint."""
        if run.max_step is not None:
            return
        deadline = time.monotonic() + 60
        while end_marker.read(run.model_dir) is None:
            newest = checkpoint.step_of(checkpoint.committed(run.model_dir)[-1])
            if newest > run.step + KEEP_MAX or time.monotonic() > deadline:
                return
            time.sleep(0.02)


class Reads(ge.Exporter):
    """Reads all of the checkpoint, after the evaluation."""

    default_name = "reads"

    def __init__(self):
        super().__init__()
        self.steps = []

    def export(
        self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export
    ):
        reader = tf.train.load_checkpoint(checkpoint_path)
        for key in reader.get_variable_to_shape_map():
            reader.get_tensor(key)
        self.steps.append(checkpoint.step_of(checkpoint_path))


def main(role, folder):
    if role == "evaluator":
        task = {"task": {"type": "evaluator", "index": 0}}
        os.environ["TF_CONFIG"] = json.dumps(task)
    run_log.set_up(debug=False)
    estimator = fakes.make_estimator(
        pathlib.Path(folder, "run"),
        save_checkpoints_steps=1,
        keep_checkpoint_max=KEEP_MAX,
        async_checkpoint=True,
        evaluation="evaluator",
    )
    slow, reads = Slow(), Reads()
    result = ge.train_and_evaluate(
        estimator,
        ge.TrainSpec(TRAIN, max_steps=NUM_STEPS, hooks=[slow]),
        ge.EvalSpec(
            EVAL,
            start_delay_secs=0,
            throttle_secs=0,
            hooks=[slow],
            exporters=[reads],
        ),
    )
    done = {"steps": slow.evaluated, "read": reads.steps}
    if result is not None:
        done["global_step"] = result[0]["global_step"]
    pathlib.Path(folder, f"{role}.json").write_text(json.dumps(done))


if __name__ == "__main__":
    main(*sys.argv[1:])
