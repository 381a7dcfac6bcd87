"""Originals of TensorFlow 2.15.1 go on here: predictions, and the losses that follow.

tests/scripts/originals_of_tf_estimator.py has trained them, and recorded the numbers.
"""

import json
import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.checkpoints import checkpoint
from tests import fakes

ORIGINALS = pathlib.Path(__file__).parent / "originals"
RECORDED = json.loads((ORIGINALS / "recorded.json").read_text())
ALL = {"vars_to_warm_start": ".*", "learning_rates_and_iterations": True}


def dense():
    return keras.Sequential([keras.layers.Dense(5, "tanh"), keras.layers.Dense(3)])


def convolution():
    return keras.Sequential(
        [
            keras.layers.Conv2D(3, 3, activation="relu"),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ]
    )


def lstm():
    layers = [keras.layers.Reshape([3, 2]), keras.layers.LSTM(4), keras.layers.Dense(3)]
    return keras.Sequential(layers)


def embedding(rows=6):
    pooling = keras.layers.GlobalAveragePooling1D()
    layers = [keras.layers.Embedding(rows, 4), pooling, keras.layers.Dense(3)]
    return keras.Sequential(layers)


def adam():
    return keras.optimizers.Adam(0.05, epsilon=1e-8)


def table(there):
    return {"var_name_to_prev_var_name": {"network/embedding/embeddings": there}}


OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adagrad": lambda: keras.optimizers.Adagrad(0.05, epsilon=0.0),
    "ftrl": lambda: keras.optimizers.Ftrl(0.05, l1_regularization_strength=0.01),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.05, momentum=0.5, epsilon=1e-7),
}
CASES = {
    "convolution": (convolution, adam, {}),
    "lstm": (lstm, adam, {}),
    "embedding": (embedding, adam, table("words/table")),
    "partitioned": (lambda: embedding(7), adam, table("table")),
    "adam_v2": (dense, adam, {}),
    **{name: (dense, make, {}) for name, make in OPTIMIZERS.items()},
}


def warm(model_dir, network, optimizer, source, options=ALL, **config):
    return fakes.make_estimator(
        model_dir,
        model_fn=fakes.classifier_fn,
        network=network,
        optimizer=optimizer,
        params={},
        warm_start_from=ge.WarmStartSettings(str(ORIGINALS / source), **options),
        **config,
    )


def batch(name):
    recorded = RECORDED[name]
    kind = np.int64 if isinstance(recorded["x"][0][0], int) else np.float32
    return np.array(recorded["x"], kind), np.array(recorded["y"])


def predicted(estimator, x):
    input_fn = fakes.make_input_fn(x, batch_size=len(x))
    return [each["logits"] for each in estimator.predict(input_fn)]


def next_losses(estimator, x, y, steps=10):
    recorder = fakes.Recorder(every_steps=1)
    input_fn = fakes.make_input_fn(x, y, batch_size=len(x), change=lambda d: d.repeat())
    estimator.train(input_fn, steps=steps, hooks=[recorder])
    return [values["loss"] for values in recorder.values]


@pytest.mark.parametrize("name", CASES)
def test_an_original_goes_on(name, tmp_path):
    network, optimizer, options = CASES[name]
    x, y = batch(name)
    estimator = warm(tmp_path, network, optimizer, name, {**ALL, **options})
    losses = next_losses(estimator, x, y)
    np.testing.assert_allclose(losses, RECORDED[name]["losses"], atol=1e-4)
    first = fakes.weights(tmp_path, step=0)
    assert first["optimizer/000/iteration/.ATTRIBUTES/VARIABLE_VALUE"] == 5
    if network is not dense:
        logits = predicted_at_first(estimator, x)
        np.testing.assert_allclose(logits, RECORDED[name]["logits"], atol=1e-5)


def test_an_original_goes_on_on_two_replicas_and_after_a_restart(tmp_path):
    """What was taken over is not taken again."""
    x, y = batch("dense")
    losses = []
    for _ in range(2):
        two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        estimator = warm(tmp_path, dense, adam, "dense", train_distribute=two)
        losses += next_losses(estimator, x, y, steps=5)
    np.testing.assert_allclose(losses, RECORDED["dense"]["losses"], atol=1e-4)
    assert estimator.global_step == 10


def predicted_at_first(estimator, x):
    input_fn = fakes.make_input_fn(x, batch_size=len(x))
    path = f"{estimator.model_dir}/model.ckpt-0"
    return [e["logits"] for e in estimator.predict(input_fn, checkpoint_path=path)]


def test_an_init_fn_takes_a_cell_of_another_order(tmp_path):
    """As docs/old_values.md shows it."""
    text = (pathlib.Path(ge.__file__).parents[1] / "docs/old_values.md").read_text()
    (code,) = re.findall(r"```python\n(def init_fn.*?)```", text, re.DOTALL)
    cell = str(ORIGINALS / "cell/model.ckpt-5")
    names = {"tf": tf, "np": np, "WarmStartSettings": ge.WarmStartSettings}
    exec(code.replace("old/model_dir", cell), names)
    estimator = fakes.make_estimator(
        tmp_path, network=lstm, params={}, warm_start_from=names["settings"]
    )
    logits = predicted(estimator, batch("cell")[0])
    np.testing.assert_allclose(logits, RECORDED["cell"]["logits"], atol=1e-5)


def batch_normalized():
    layers = [keras.layers.Dense(5, "tanh"), keras.layers.BatchNormalization()]
    return keras.Sequential([*layers, keras.layers.Dense(3)])


@pytest.mark.parametrize("file", ["objects", "model.keras"])
def test_a_model_of_keras_2_goes_on_with_its_optimizer(file, tmp_path):
    x, y = batch("keras")
    estimator = warm(tmp_path, batch_normalized, adam, f"keras/{file}")
    losses = next_losses(estimator, x, y)
    np.testing.assert_allclose(losses, RECORDED["keras"]["losses"], atol=1e-4)


@pytest.mark.parametrize("file", ["model.weights.h5", "legacy.h5"])
def test_weights_of_keras_2_come_along(file, tmp_path, log):
    estimator = warm(tmp_path, batch_normalized, adam, f"keras/{file}", {})
    logits = predicted(estimator, batch("keras")[0])
    np.testing.assert_allclose(logits, RECORDED["keras"]["logits"], atol=1e-5)
    (table,) = [text for text in log() if text.startswith("warm start | 8 of ")]
    there = "batch_normalization/moving_variance"
    there = "layers/batch_normalization/vars/3" if "weights" in file else there
    assert f"network/batch_normalization/moving_variance  {there}\n" in table


def test_a_table_moves_to_another_vocabulary(tmp_path, log):
    """As tf.estimator moves it; the slots go along, new words' begin at 0."""
    words = "network/embedding/embeddings"
    info = ge.VocabInfo(
        *(str(ORIGINALS / "new_words.txt"), 6, 2, str(ORIGINALS / "old_words.txt")),
        backup_initializer=keras.initializers.Constant(0.25),
    )
    options = ALL | table("words/table") | {"var_name_to_vocab_info": {words: info}}
    estimator = warm(tmp_path, lambda: embedding(8), adam, "embedding", options)
    x, y = batch("embedding")
    next_losses(estimator, x, y, steps=1)
    logits = predicted_at_first(estimator, x)
    recorded = RECORDED["vocabulary"]
    np.testing.assert_allclose(logits, recorded["logits"], atol=1e-5)
    first = f"{tmp_path}/model.ckpt-0"
    moved = checkpoint.read_value(first, words)
    np.testing.assert_array_equal(moved, np.float32(recorded["table"]))
    theirs = tf.train.load_checkpoint(str(ORIGINALS / "embedding/model.ckpt-5"))
    theirs = theirs.get_tensor("words/table/Adam")
    slot = checkpoint.read_value(first, f"optimizer/momentum/{words}")
    new, old = (info_words(name) for name in ("new", "old"))
    for row, word in enumerate(new):
        wanted = theirs[old.index(word)] if word in old else np.zeros(4)
        np.testing.assert_array_equal(slot[row], wanted)
    said = "words/table (3 of 6 words, rows there without one: 1)\n"
    assert f"  {words}                     {said}" in "".join(log())


def info_words(name):
    return (ORIGINALS / f"{name}_words.txt").read_text().split()


def test_saved_models_predict_the_same(tmp_path):
    """The one that tf.estimator exported, and ours of its values, taken from it."""
    theirs = tf.saved_model.load(str(ORIGINALS / "saved_model"))
    estimator = warm(tmp_path / "run", dense, adam, "saved_model", {})
    x, y = batch("dense")
    next_losses(estimator, x, y, steps=1)
    first = f"{tmp_path}/run/model.ckpt-0"
    path = estimator.export_saved_model(str(tmp_path / "export"), checkpoint_path=first)
    ours = tf.saved_model.load(path)
    x = tf.constant(x)
    theirs = theirs.signatures["serving_default"](x=x)["logits"]
    ours = ours.signatures["serving_default"](features=x)["logits"]
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    np.testing.assert_allclose(ours, RECORDED["dense"]["logits"], atol=1e-5)
