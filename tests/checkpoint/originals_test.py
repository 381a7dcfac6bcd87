"""Originals of TensorFlow 2.15.1 continue: predictions, and the losses of the next ten steps.

`tests/record.py originals` trained them and recorded the numbers.
"""

import json
import logging
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import gin_estimator as ge

ORIGINALS = pathlib.Path(__file__).parent / "originals"
RECORDED = json.loads((ORIGINALS / "recorded.json").read_text())
WHOLE = {"vars_to_warm_start": [".*", "optimizer/.*"], "learning_rates_and_iterations": True}
TABLE = "network/embedding/embeddings"


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
    return keras.Sequential([keras.layers.Embedding(rows, 4), pooling, keras.layers.Dense(3)])


def batch_normalized():
    layers = [keras.layers.Dense(5, "tanh"), keras.layers.BatchNormalization()]
    return keras.Sequential([*layers, keras.layers.Dense(3)])


def adam():
    return keras.optimizers.Adam(0.05, epsilon=1e-8)


def table(there):
    return {"var_name_to_prev_var_name": {TABLE: there}}


CASES = {
    "dense": (dense, adam, {}),
    "convolution": (convolution, adam, {}),
    "lstm": (lstm, adam, {}),
    "embedding": (embedding, adam, table("words/table")),
    "partitioned": (lambda: embedding(7), adam, table("table")),
    "adam_v2": (dense, adam, {}),
    "momentum": (dense, lambda: keras.optimizers.SGD(0.05, momentum=0.9), {}),
    "adagrad": (dense, lambda: keras.optimizers.Adagrad(0.05, epsilon=0.0), {}),
    "ftrl": (dense, lambda: keras.optimizers.Ftrl(0.05, l1_regularization_strength=0.01), {}),
    "rmsprop": (dense, lambda: keras.optimizers.RMSprop(0.05, momentum=0.5, epsilon=1e-7), {}),
}


def model_fn(features, labels, mode, network, optimizer):
    logits = network(features, training=mode == ge.ModeKeys.TRAIN)
    if mode == ge.ModeKeys.PREDICT:
        return ge.EstimatorSpec(mode, predictions={"logits": logits})
    return ge.EstimatorSpec(
        mode,
        loss=keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True),
        train_op=ge.TrainOp(optimizer, network.trainable_variables),
    )


def two_replicas():
    # The default of CPUs mixes up the gradients of several strategies in one process.
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())


def warm(model_dir, network, optimizer, source, options=WHOLE, **config):
    path = ORIGINALS / source
    path = path / "model.ckpt-5" if (path / "model.ckpt-5.index").exists() else path
    return ge.Estimator(
        model_fn,
        modules={"network": network, "optimizer": optimizer},
        config=ge.RunConfig(str(model_dir), save_summary_steps=0, **config),
        warm_start_from=ge.WarmStartSettings(str(path), **options),
    )


def batch(name):
    recorded = RECORDED[name]
    kind = np.int64 if isinstance(recorded["x"][0][0], int) else np.float32
    return np.array(recorded["x"], kind), np.array(recorded["y"])


def predicted(estimator, x):
    def input_fn():
        return tf.data.Dataset.from_tensor_slices(x).batch(len(x))

    return [each["logits"] for each in estimator.predict(input_fn)]


class Losses(ge.Hook):
    every_steps = 1

    def begin(self, run):
        self.found = []

    def after_step(self, run):
        self.found.append(run.report.loss)


def next_losses(estimator, x, y, steps=10):
    losses = Losses()

    def input_fn():
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(len(x)).repeat()

    estimator.train(input_fn, [losses], steps=steps)
    return losses.found


def check_continues(model_dir, name, **config):
    network, optimizer, options = CASES[name]
    x, y = batch(name)
    estimator = warm(model_dir, network, optimizer, name, {**WHOLE, **options}, **config)
    logits = predicted(estimator, x)
    np.testing.assert_allclose(logits, RECORDED[name]["logits"], atol=1e-5)
    losses = next_losses(estimator, x, y)
    np.testing.assert_allclose(losses, RECORDED[name]["losses"], atol=1e-4)
    assert estimator.get_variable_value("optimizer/iteration") == 15


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name != "momentum"])
def test_original_continues(name, tmp_path):
    check_continues(tmp_path, name)


def test_original_with_momentum_continues(tmp_path):
    check_continues(tmp_path, "momentum")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["convolution", "rmsprop"])
def test_original_continues_on_two_replicas(name, tmp_path):
    # Unsynchronized BatchNormalization has the statistics of one replica's half.
    network, optimizer, options = CASES[name]
    strategy = two_replicas()
    if name == "rmsprop":
        check_continues(tmp_path, name, train_distribute=strategy)
        return
    options = {**WHOLE, **options}
    estimator = warm(tmp_path, network, optimizer, name, options, train_distribute=strategy)
    logits = predicted(estimator, batch(name)[0])
    np.testing.assert_allclose(logits, RECORDED[name]["logits"], atol=1e-5)


@pytest.mark.slow
def test_original_continues_on_two_replicas_after_a_restart(tmp_path):
    x, y = batch("dense")
    losses = []
    for _ in range(2):
        two = two_replicas()
        estimator = warm(tmp_path, dense, adam, "dense", train_distribute=two)
        losses += next_losses(estimator, x, y, steps=5)
    np.testing.assert_allclose(losses, RECORDED["dense"]["losses"], atol=1e-4)


@pytest.mark.slow
def test_model_of_keras_2_saved_by_objects_continues(tmp_path):
    x, y = batch("keras")
    estimator = warm(tmp_path, batch_normalized, adam, "keras/objects")
    losses = next_losses(estimator, x, y)
    np.testing.assert_allclose(losses, RECORDED["keras"]["losses"], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["model.keras", "model.weights.h5", "legacy.h5"])
def test_file_of_keras_2(file, tmp_path):
    estimator = warm(tmp_path, batch_normalized, adam, f"keras/{file}", {})
    logits = predicted(estimator, batch("keras")[0])
    np.testing.assert_allclose(logits, RECORDED["keras"]["logits"], atol=1e-5)


@pytest.mark.slow
def test_table_moves_to_another_vocabulary_as_in_tf_estimator(tmp_path, caplog):
    info = ge.VocabInfo(
        *(str(ORIGINALS / "new_words.txt"), 6, 2, str(ORIGINALS / "old_words.txt")),
        backup_initializer=keras.initializers.Constant(0.25),
    )
    options = WHOLE | table("words/table") | {"var_name_to_vocab_info": {TABLE: info}}
    estimator = warm(tmp_path, lambda: embedding(8), adam, "embedding", options)
    x, y = batch("embedding")
    with caplog.at_level(logging.INFO, "absl"):
        next_losses(estimator, x, y, steps=1)
    assert f"{TABLE} from words/table (3 of 6 words)" in caplog.text
    first = values(f"{tmp_path}/model.ckpt-0")
    recorded = RECORDED["vocabulary"]
    np.testing.assert_array_equal(first[TABLE], np.float32(recorded["table"]))
    theirs = tf.train.load_checkpoint(str(ORIGINALS / "embedding/model.ckpt-5"))
    theirs = theirs.get_tensor("words/table/Adam")
    new, old = [(ORIGINALS / f"{each}_words.txt").read_text().split() for each in ("new", "old")]
    for row, word in enumerate(new):
        expected = theirs[old.index(word)] if word in old else np.zeros(4)
        np.testing.assert_array_equal(first[f"optimizer/momentum/{TABLE}"][row], expected)


def values(path):
    reader = tf.train.load_checkpoint(path)
    found = {}
    for key in reader.get_variable_to_shape_map():
        module, _, rest = key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE").partition("/")
        found["/".join([module, *rest.split("/")[1:]])] = reader.get_tensor(key)
    return found


@pytest.mark.slow
def test_saved_models_predict_the_same(tmp_path):
    """The SavedModel of tf.estimator, and one of a run that is only warm-started from it."""
    theirs = tf.saved_model.load(str(ORIGINALS / "saved_model"))
    estimator = warm(tmp_path / "run", dense, adam, "saved_model", {})
    x, _ = batch("dense")
    predicted(estimator, x)  # So that the features are known.
    ours = tf.saved_model.load(estimator.export_saved_model(str(tmp_path / "export")))
    theirs = theirs.signatures["serving_default"](x=tf.constant(x))["logits"]
    ours = ours.signatures["serving_default"](features=tf.constant(x))["logits"]
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    np.testing.assert_allclose(ours, RECORDED["dense"]["logits"], atol=1e-5)


@pytest.mark.slow
def test_init_fn_converts_an_lstm_cell_of_tensorflow_1(tmp_path):
    """Its gates have the order i, j, f, o, and 1 is added to the forget gate."""

    def init_fn(modules):
        reader = tf.train.load_checkpoint(str(ORIGINALS / "cell/model.ckpt-5"))

        def reordered(name):
            i, j, f, o = np.split(reader.get_tensor(name), 4, axis=-1)
            return np.concatenate([i, f, j, o], axis=-1)

        kernel = reordered("rnn/basic_lstm_cell/kernel")
        bias = reordered("rnn/basic_lstm_cell/bias")
        units = bias.size // 4
        bias[units : 2 * units] += 1.0
        modules["network"].layers[1].set_weights([kernel[:-units], kernel[-units:], bias])

    options = {"vars_to_warm_start": "network/dense/.*", "init_fn": init_fn}
    estimator = warm(tmp_path, lstm, adam, "cell", options)
    logits = predicted(estimator, batch("cell")[0])
    np.testing.assert_allclose(logits, RECORDED["cell"]["logits"], atol=1e-5)
