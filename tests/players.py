"""Two players who move in turn, a scalar, a tensor: what they come to on any strategy.

The loss of d is -d, that of g is d * g; both start at 0 and move at rate 1. d moves
each step, g each second one, after d. A hook sees the examples of each step.
"""

import keras
import numpy as np
import tensorflow as tf

import pipeline as ge
from tests import fakes

STEPS = 4
# 1 + 1 + 1 + 1; and -2 after the second step, -4 after the fourth.
EXPECTED = {"d": 4.0, "g": -6.0, "first_mean": 3.5, "second_mean": 11.5}
# The sums of i * x[i] over 0 to 7, and 8 to 15.
EXPECTED |= {"first_order": 140.0, "second_order": 364.0}


class Recorder(fakes.Recorder):
    """Keeps the order of the tensor `x` of each step, too."""

    wants_tensors = ("x",)

    def after_step(self, run):
        super().after_step(run)
        self.values[-1]["order"] = fakes.order_of(run.report.tensors["x"])


def model_fn(features, labels, mode, d, g, optimizer, second):
    del labels
    each = tf.zeros_like(features)
    return ge.EstimatorSpec(
        mode,
        loss=each + d,
        train_op=[
            ge.TrainOp(optimizer, [d], loss=each - d),
            ge.TrainOp(second, [g], loss=each + d * g, every=2, sequential=True),
        ],
        scalars={"mean": tf.reduce_mean(features)},
        tensors={"x": features},
    )


def input_fn(mode, input_context):
    """0 to 15, endless, in global batches of 8."""
    del mode
    x = np.arange(16, dtype=np.float32)
    batches = tf.data.Dataset.from_tensor_slices((x, x)).batch(
        input_context.get_per_replica_batch_size(8)
    )
    mine = batches.shard(
        input_context.num_input_pipelines, input_context.input_pipeline_id
    )
    return mine.repeat()


def play(model_dir, **config):
    """Trains, and returns what `EXPECTED` holds, by the same names."""
    estimator = ge.Estimator(
        model_fn,
        modules={
            "d": lambda: tf.Variable(0.0),
            "g": lambda: tf.Variable(0.0),
            "second": lambda: keras.optimizers.SGD(1.0),
            "optimizer": lambda: keras.optimizers.SGD(1.0),
        },
        config=ge.RunConfig(model_dir=str(model_dir), **config),
    )
    recorder = Recorder(every_steps=1)
    estimator.train(input_fn, max_steps=STEPS, hooks=[recorder])
    first, second, *_ = recorder.values
    return {
        "d": float(estimator.get_variable_value("d")),
        "g": float(estimator.get_variable_value("g")),
        **{f"first_{key}": first[key] for key in ("mean", "order")},
        **{f"second_{key}": second[key] for key in ("mean", "order")},
    }
