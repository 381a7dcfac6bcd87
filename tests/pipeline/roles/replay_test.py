"""replay: a step that went wrong, made again from its files."""

import pathlib

import gin
import keras
import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline import main
from pipeline.driver.runtime import Runtime
from pipeline.rescue import bad_batches
from tests import fakes

X, Y = fakes.classification_data(rows=4)


def written(estimator, elements, *, total=None):
    """Writes elements as the batch of a bad step, as a training does; its folder."""
    runtime = Runtime(estimator.recipe, tf.distribute.get_strategy())
    specs = tuple(map(tf.type_spec_from_value, elements[0]))
    runtime.build("train", runtime.bound("train"), specs)
    folder = bad_batches.folder_of(estimator.model_dir, 1)
    total = total or len(elements)
    bad_batches.write(folder, bad_batches.LeftOut(elements, 5, 0, total))
    bad_batches.describe(folder, [{"reason": "the loss 9 is above 8"}])
    runtime.save_weights(folder)
    return folder


def files(model_dir):
    found = pathlib.Path(model_dir).rglob("*")
    return {str(path): path.stat().st_mtime_ns for path in found}


def test_a_finite_step_tells_its_losses_and_what_the_update_does(tmp_path):
    estimator = fakes.make_estimator(
        tmp_path, optimizer=lambda: keras.optimizers.Adam(epsilon=0.0)
    )
    x = X.copy()
    x[:, 2] = 0  # Its weights' gradient is 0, and Adam divides by its size.
    element = tf.constant(x), tf.constant(Y)
    folder = written(estimator, [element, element], total=3)
    before = files(tmp_path)
    found = ge.replay(estimator, folder)
    assert files(tmp_path) == before
    assert found.cause is None and found.reasons == ("the loss 9 is above 8",)
    assert found.missing == ("element 2 of batch-5",)
    first, second = found.elements
    assert (first.batch, first.element, second.element) == (5, 0, 1)
    losses = [loss for _, loss in first.largest_losses]
    assert losses == sorted(losses, reverse=True)
    assert np.mean(losses) == pytest.approx(first.loss, rel=1e-5)
    assert sorted(first.gradient_norms) == [
        f"network/{layer}/{name}"
        for layer in ("dense", "dense_1")
        for name in ("bias", "kernel")
    ]
    assert found.broken == ("network/dense/kernel",)
    words = "\n".join(found.lines())
    assert "the update makes these not finite: network/dense/kernel\n" in words + "\n"
    assert "not there, as other processes read them: element 2 of batch-5" in words


def test_what_the_loss_scale_makes_is_no_mistake(tmp_path):
    def model_fn(features, labels, mode, network, optimizer):
        logits = tf.cast(network(features), tf.float32)
        loss = 30 * tf.reduce_mean(tf.reduce_mean(logits, 1))  # A scalar.
        train_op = ge.TrainOp(optimizer, network.trainable_variables)
        return ge.EstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = fakes.make_estimator(
        tmp_path, model_fn=model_fn, precision="mixed_float16"
    )
    folder = written(estimator, [(tf.constant(100 * X), tf.constant(Y))])
    found = ge.replay(estimator, folder)
    (element,) = found.elements
    assert (element.cause, element.overflows, found.broken) == (None, 2.0**15, ())
    assert element.gradient_norms["network/dense_1/bias"] == pytest.approx(30 / 3**0.5)
    losses = [loss for _, loss in element.largest_losses]
    assert np.mean(losses) == pytest.approx(element.loss, rel=1e-2)


COMMAND = """
import models
Estimator.model_fn = @regressor
Estimator.modules = {'network': @linear, 'optimizer': @SGD}
"""
OTHER = "{'network': @linear, 'optimizer': @Adam}"


def test_the_command(fresh_gin, own_folder, capsys):
    pathlib.Path("tiny.gin").write_text(COMMAND, encoding="utf-8")

    def run(*arguments):
        code = main.main(["main", "--gin_file=tiny.gin", *arguments])
        gin.clear_config()
        said = capsys.readouterr()
        return code, said.out, said.err

    # The bad batch is the command's own, of a training.
    text = COMMAND + "TrainSpec.input_fn = @replay_test.rows\n"
    pathlib.Path("train.gin").write_text(text, encoding="utf-8")
    arguments = ["--gin_file=train.gin", "--model_dir=run", "--job=train"]
    main.main(["main", *arguments, "--gin.RunConfig.on_nan='record'"])
    gin.clear_config()
    error = capsys.readouterr().err
    command = "--job=replay --bad_batch=run/bad_batches/step-2"
    assert command in error

    code, said, _ = run(*command.split())
    assert code == 0
    assert "held NaN or Inf before the step: labels, example 1\n" in said
    assert "not finite alone: example 1\n" in said

    code, said, _ = run(*command.split(), "--dry_run")
    assert "run/bad_batches/step-2\n" in said
    _, said, _ = run("--job=replay", "--bad_batch=run", "--dry_run")
    assert "warning: bad_batch is 'run', which is no folder of a step" in said
    assert "Steps that are there: 2. Here" in said
    assert "which one, --bad_batch=runs/1/bad" in run("--job=replay")[2]
    assert "--bad_batch is for --job=replay" in run("--bad_batch=run")[2]
    code, _, error = run("--job=replay", "--bad_batch=nowhere")
    assert code == 2
    assert "bad_batch is 'nowhere', where no batches are that went wrong" in error
    code, _, error = run(*command.split(), f"--gin.Estimator.modules={OTHER}")
    assert code == 2
    assert "is not of this model" in error
    assert "needs the model_fn and the modules of the training" in error
    (pathlib.Path("run/bad_batches/step-2") / "checkpoint").unlink()
    _, _, error = run(*command.split())
    assert "it has no weights: a training is writing it" in error


@gin.configurable(module="replay_test")
def rows():
    x = np.ones([6, 1], np.float32)
    y = x.copy()
    y[3] = np.nan
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(2)
