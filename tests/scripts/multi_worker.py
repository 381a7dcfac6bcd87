"""What each process of a multi-worker cluster does in the tests; see `tests.clusters`.

A process has one cluster, which takes seconds to form, so that a scenario holds many
cases; what they come to is asserted in the test.
"""

import time

import keras
import numpy as np
import tensorflow as tf

import pipeline as ge
from tests import (
    clusters,
    fakes,
    kinds,
    players,
    row_tables,
    shown,
    shuffled,
    tabled_training,
)
from tests.dropout_masks import mask_fn, mask_network
from tests.resumed_workers import (
    TASK,
    another_model_dir,
    damaged_checkpoint,
    endless,
    goes_on,
    make_estimator,
    starts_anywhere,
)

# All processes take the same branch.


def together(folder):
    """Many short runs, one after the other."""
    cases = (
        unequal_data,
        unequal_data_of_unknown_length,
        a_hook_in_one_process,
        saves_by_the_clock,
        nan_in_one_process,
        leaves_out,
        leaves_out_a_spike,
        dropout,
        play,
        rows,
        tables,
        transformer,
        batch_normalization,
        evaluates_along,
        goes_on,
        starts_anywhere,
        shuffled.each_once,
        damaged_checkpoint,
        another_model_dir,
    )
    return {case.__name__: case(folder / case.__name__) for case in cases}


def unequal_data_of_unknown_length(folder):
    """The same where each step has to find out whether any data are left."""
    return unequal_data(folder, change=lambda data: data.filter(lambda *_: True))


def unequal_data(folder, change=lambda dataset: dataset):
    """The first process has 500 examples, the second 460."""
    x, y = fakes.classification_data()

    def input_fn(mode, input_context):
        rows = (500, 460)[input_context.input_pipeline_id]
        data = change(tf.data.Dataset.from_tensor_slices((x[:rows], y[:rows])))
        return data.batch(input_context.get_per_replica_batch_size(32))

    estimator = make_estimator(folder, model_fn=fakes.in_order_fn)
    recorder = fakes.Recorder()
    estimator.train(input_fn, hooks=[recorder])
    (values,) = recorder.values
    found = estimator.evaluate(input_fn)
    return {
        "step": estimator.global_step,
        "trained": values["examples"],
        "evaluated": found["examples"],
        "order": found["order"],
    }


class StopAt(ge.Hook):
    """Asks for a stop, in one process."""

    def __init__(self, step):
        self.every_steps = step
        self.reasons = None

    def after_step(self, run):
        if TASK == 1:
            run.request_stop("enough")

    def end(self, run):
        self.reasons = run.stop_reasons


def a_hook_in_one_process(folder):
    """Only the second process has a hook of every 7 steps, and it stops all at 21."""
    estimator = make_estimator(folder, steps_per_loop=10)
    stop, seen = StopAt(21), fakes.Recorder(7)
    hooks = [stop, seen] if TASK == 1 else [StopAt(1000)]
    estimator.train(endless(), max_steps=50, hooks=hooks)
    return {
        "step": estimator.global_step,
        "reasons": hooks[0].reasons,
        "seen": seen.steps,
    }


class Slow(ge.Hook):
    """Each step takes its time, other in each process."""

    every_steps = 1

    def after_step(self, run):
        time.sleep(0.02 + 0.01 * TASK)


def saves_by_the_clock(folder):
    estimator = make_estimator(folder, save_checkpoints_secs=0.2)
    estimator.train(endless(), max_steps=40, hooks=[Slow()])
    return sorted(path.name for path in (folder / "input").glob("*.index"))


def nan_in_one_process(folder):
    """The second process' data are infinite from its 6th batch on."""

    def input_fn(mode, input_context):
        x = np.ones([64, 6], np.float32)
        x[40:] = np.inf if input_context.input_pipeline_id == 1 else 1
        y = np.zeros([64], np.int64)
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(8).repeat()

    try:
        make_estimator(folder).train(input_fn, max_steps=20)
    except ge.NanLossDuringTrainingError as error:
        return str(error)


def leaves_out_a_spike(folder):
    """The same of a batch with a finite loss, which only the second process has."""
    without = folder.parent / leaves_out.__name__ / "theirs"
    return leaves_out(folder, 1e6, [ge.LossGuard(spike=30.0, window=4)], without)


def leaves_out(folder, value=np.nan, hooks=(), without=None):
    """The 6th batch of the second process is bad, and left out by both; 32 of 29.

    Args:
      folder: folder of the trainings.
      value: what is bad in it.
      hooks: hooks of the training.
      without: model_dir of a training that never had the batch; None makes one.
    """
    x, y = fakes.classification_data()
    bad = x.copy()
    bad[5 * 16] = value

    def train(name, on_nan, left_out=()):
        def input_fn(mode, input_context):
            second = input_context.input_pipeline_id == 1
            rows = 460 if second else 500
            values = bad if second else x
            kept = [row for row in range(rows) if row // 16 + 1 not in left_out]
            data = tf.data.Dataset.from_tensor_slices((values[kept], y[kept]))
            return data.batch(input_context.get_per_replica_batch_size(32))

        model_dir = folder / name
        make_estimator(
            model_dir, model_fn=fakes.far_fn, on_nan=on_nan, save_checkpoints_steps=4
        ).train(input_fn, hooks=hooks)
        return model_dir

    ours = fakes.weights(train("ours", "restore"))
    theirs = fakes.weights(without or train("theirs", "stop", left_out=[6]))
    differing = [k for k in ours if not np.array_equal(ours[k], theirs[k])]
    files = sorted(
        str(path.relative_to(folder / "ours" / "bad_batches"))
        for path in (folder / "ours" / "bad_batches").glob("*/batch-*/*")
    )
    step = make_estimator(folder / "ours").global_step
    return {"step": step, "differing": differing, "files": files}


def dropout(folder):
    """What either process drops, in a first step and after a restore."""

    def input_fn(mode, input_context):
        row = input_context.input_pipeline_id
        one = np.eye(2, dtype=np.float32)[row : row + 1]
        return tf.data.Dataset.from_tensors(one).repeat()

    for steps in (1, 2):
        make_estimator(
            folder,
            model_fn=mask_fn,
            network=mask_network,
            optimizer=lambda: keras.optimizers.SGD(1.0),
        ).train(input_fn, max_steps=steps)
    (name,) = (key for key in fakes.weights(folder, 0) if "kernel" in key)
    kernels = [fakes.weights(folder, step)[name] for step in range(3)]
    return [(kernels[i] != kernels[i + 1]).tolist() for i in range(2)]


def play(folder):
    return players.play(folder, execution="multi_worker")


def rows(folder):
    """With micro-batches, too."""
    return row_tables.train(config(folder, gradient_accumulation_steps=2))


def tables(folder):
    return tabled_training.train(config(folder))


def transformer(folder):
    return kinds.train(config(folder))


def config(folder, **options):
    return ge.RunConfig(model_dir=str(folder), execution="multi_worker", **options)


def batch_normalization(folder):
    """Its statistics differ between processes until a checkpoint, or an evaluation."""
    estimator = make_estimator(
        folder,
        network=lambda: fakes.network(batch_norm=True, dropout=0.2),
        average=ge.ExponentialAverage(0.9),
    )
    estimator.train(endless(lambda d: d.shuffle(200, seed=1)), max_steps=30)
    live = estimator._runtimes.training.modules.named_variables()
    kept = fakes.weights(folder)
    name = "network/batch_normalization/moving_mean"
    means = [live[each].numpy().tolist() for each in (name, f"driver/ema/{name}")]
    x, y = fakes.classification_data(200)
    metrics = estimator.evaluate(
        fakes.make_input_fn(x, y, batch_size=16, per_replica=True)
    )
    predicted = list(estimator.predict(fakes.make_input_fn(x, batch_size=200)))
    return {
        "moving_mean": means,
        "finite": bool(all(np.isfinite(value).all() for value in kept.values())),
        "loss": metrics["loss"],
        "average_loss": metrics["ema/loss"],
        "predicted_loss": _loss(predicted, y),
    }


def _loss(predicted, y):
    logits = np.stack([each["logits"] for each in predicted])
    losses = keras.losses.sparse_categorical_crossentropy(y, logits, True)
    return float(np.mean(losses))


def evaluates_along(folder):
    """Their clocks disagree on when the next evaluation is due."""
    estimator = make_estimator(
        folder,
        model_fn=shown.model_fn,
        save_checkpoints_steps=10,
        save_summary_steps=11,
    )
    found = ge.train_and_evaluate(
        estimator,
        ge.TrainSpec(endless(), max_steps=22),
        ge.EvalSpec(
            fakes.make_input_fn(
                *fakes.classification_data(200), batch_size=16, per_replica=True
            ),
            throttle_secs=0 if TASK == 1 else 1000,
            exporters=[ge.BestExporter()],
        ),
    )
    metrics, exports = found
    return {
        "examples": metrics["examples"],
        "step": metrics["global_step"],
        "exports": exports,
    }


class Fails(ge.Hook):
    """A mistake of the user's, in one process."""

    every_steps = 5

    def after_step(self, run):
        if TASK == 1:
            raise RuntimeError("the user's mistake")


def fails(folder):
    make_estimator(folder / "run").train(endless(), max_steps=1000, hooks=[Fails()])


if __name__ == "__main__":
    clusters.main({"together": together, "fails": fails})
