"""Mistakes at checkpoints and model_dir: one row a mistake, see `mistakes.py`."""

import keras
import pytest
import tensorflow as tf

import pipeline as ge
from tests import fakes, mistakes
from tests.mistakes import X, data, train

table = mistakes.Table()
told = table.told


@told(
    "model.ckpt-4 is not of this model",
    "in the model and not in the checkpoint: ['network/sequential/",
    "in the checkpoint and not in the model: ['network/dense_1/kernel'",
    "of another shape",
    "another model_dir",
)
def checkpoint_of_another_model(model_dir):
    train(model_dir)

    def deeper():
        return keras.Sequential([fakes.network(), keras.layers.Dense(3)])

    train(model_dir, network=deeper, max_steps=8)


@told(
    "of another shape: ['network/dense/kernel: [5, 8] in the model, [6, 8] saved'",
    "another model_dir",
)
def checkpoint_of_another_width(model_dir):
    train(model_dir)
    train(model_dir, input_fn=data(X[:, :5]), max_steps=8)


@told(
    "ckpt-100 is not of this model",
    "in the model and not in the checkpoint",
    "another model_dir",
)
def checkpoint_of_another_project(model_dir):
    checkpoint = tf.train.Checkpoint(weights=tf.Variable([1.0, 2.0]))
    tf.train.CheckpointManager(checkpoint, str(model_dir), 1).save(100)
    train(model_dir, max_steps=200)


@told("weights' ends in no step", "another model_dir")
def checkpoint_of_another_project_without_a_step(model_dir):
    checkpoint = tf.train.Checkpoint(weights=tf.Variable([1.0, 2.0]))
    checkpoint.write(f"{model_dir}/weights")
    (model_dir / "checkpoint").write_text('model_checkpoint_path: "weights"')
    train(model_dir)


@told("model.ckpt-77'", "write a prefix such as", "model.ckpt-4'")
def checkpoint_path_that_is_not_there(model_dir):
    train(model_dir).evaluate(data(), checkpoint_path=f"{model_dir}/model.ckpt-77")


@told("model.ckpt-4.index'", "model.ckpt-4', without .index")
def checkpoint_path_of_the_index(model_dir):
    path = f"{model_dir}/model.ckpt-4.index"
    next(train(model_dir).predict(data(), checkpoint_path=path))


@told("/no/such/run'", "runs/a/model.ckpt-1000")
def warm_start_from_nowhere(model_dir):
    ge.Estimator(
        fakes.classifier_fn,
        modules={"network": fakes.network, "optimizer": fakes.adam},
        config=ge.RunConfig(model_dir=str(model_dir)),
        warm_start_from="no/such/run",
    ).train(data(), max_steps=1)


@told("'network/('", "no regular expression", "'network/.*'")
def warm_start_by_no_regular_expression(model_dir):
    ge.WarmStartSettings(str(model_dir), vars_to_warm_start="network/(")


@told("model.ckpt-4: of another shape are ['network/dense/kernel: [5, 8]", "It holds")
def warm_start_from_another_model(model_dir):
    train(model_dir / "first")
    ge.Estimator(
        fakes.classifier_fn,
        modules={"network": fakes.network, "optimizer": fakes.adam},
        config=ge.RunConfig(model_dir=str(model_dir / "second")),
        warm_start_from=str(model_dir / "first"),
    ).train(data(X[:, :5]), max_steps=1)


@told("gives dict {'x': ", "build_raw_serving_input_receiver_fn(tf.TensorSpec(")
def export_of_a_placeholder(model_dir):
    def serving_input_receiver_fn():
        return {"x": tf.TensorSpec([None, 6])}

    train(model_dir).export_saved_model(model_dir / "e", serving_input_receiver_fn)


@told("has no checkpoint to export", "train first, or give checkpoint_path")
def export_before_training(model_dir):
    fakes.make_estimator(model_dir).export_saved_model(f"{model_dir}/export")


@told("checkpoint_path='no/model.ckpt-1'", "leave it out for the latest")
def export_of_a_checkpoint_that_is_not_there(model_dir):
    fakes.make_estimator(model_dir).export_saved_model(
        f"{model_dir}/export", checkpoint_path="no/model.ckpt-1"
    )


@told("no input was seen yet", "serving_input_receiver_fn=build_raw")
def export_without_an_input(model_dir):
    train(model_dir)
    fakes.make_estimator(model_dir).export_saved_model(f"{model_dir}/export")


@told("'network/dense/kernal'", "write one of ['driver/global_step'")
def variable_of_a_wrong_name(model_dir):
    train(model_dir).get_variable_value("network/dense/kernal")


@told("/file' cannot be made", "is not a directory", "--model_dir=runs/1")
def model_dir_is_a_file(model_dir):
    (model_dir / "file").write_text("")
    train(model_dir / "file")


@told("/file/run' cannot be made", "is not a directory", "--model_dir=runs/1")
def model_dir_below_a_file(model_dir):
    (model_dir / "file").write_text("")
    train(model_dir / "file" / "run")


@told("'/proc/no/such/mount' cannot be made", "mounted", "--model_dir=runs/1")
def model_dir_that_cannot_be_made(model_dir):
    train("/proc/no/such/mount")


@told("'s4://bucket/run'", "not implemented", "--model_dir=runs/1")
def model_dir_of_an_unknown_file_system(model_dir):
    train("s4://bucket/run")


@told("model_dir is ''", "model_dir='runs/1'")
def model_dir_is_empty(model_dir):
    train("")


@pytest.mark.parametrize("row", table.rows)
def test_mistake(row, tmp_path):
    table.check(row, tmp_path)
