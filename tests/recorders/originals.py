"""Trains small models on TensorFlow 2.15.1 for tests/checkpoint/originals_test.py.

    python3.11 -m venv VENV && VENV/bin/pip install tensorflow-cpu==2.15.1
    VENV/bin/python tests/recorders/originals.py \
        tests/checkpoint/originals

Each original leaves its checkpoint, and in `recorded.json` its predictions there and
the losses of the next steps, all on one batch.
"""

import json
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
FIRST, NEXT = 5, 10
rng = np.random.default_rng(5)
X = rng.normal(size=[12, 6]).round(3).astype(np.float32)
Y = rng.integers(3, size=[12])
IMAGES = rng.normal(size=[8, 6, 6, 1]).round(3).astype(np.float32)
WORDS = ["ant", "bee", "cat", "dog", "eel"]
NEW_WORDS = ["dog", "fox", "ant", "gnu", "bee", "hen"]
IDS = np.array([[0, 1], [2, 3], [4, 0], [5, 2]])


def dense(x, training):
    return v1.layers.dense(v1.layers.dense(x, 5, tf.nn.tanh), 3)


def convolution(x, training):
    x = v1.layers.conv2d(x, 3, 3, activation=tf.nn.relu)
    x = v1.layers.batch_normalization(x, momentum=0.9, training=training)
    return v1.layers.dense(v1.layers.flatten(x), 3)


def lstm(x, training):
    x = tf.keras.layers.LSTM(4)(tf.reshape(x, [-1, 3, 2]))
    return v1.layers.dense(x, 3)


def cell(x, training):
    made = v1.nn.rnn_cell.BasicLSTMCell(4)
    x, _ = v1.nn.dynamic_rnn(made, tf.reshape(x, [-1, 3, 2]), dtype=tf.float32)
    return v1.layers.dense(x[:, -1], 3)


def embedding(x, training):
    rows = len(NEW_WORDS) + 2 if training == "new" else len(WORDS) + 1
    table = v1.get_variable("words/table", [rows, 4])
    return v1.layers.dense(tf.reduce_mean(tf.gather(table, x), 1), 3)


def partitioned(x, training):
    cut = v1.fixed_size_partitioner(3)
    table = v1.get_variable("table", [7, 4], partitioner=cut)
    x = v1.nn.embedding_lookup(table, x, partition_strategy="div")
    return v1.layers.dense(tf.reduce_mean(x, 1), 3)


def adam():
    return v1.train.AdamOptimizer(0.05)


def adam_v2():
    made = tf.keras.optimizers.legacy.Adam(0.05, epsilon=1e-8)
    made.iterations = v1.train.get_or_create_global_step()
    return made


OPTIMIZERS = {
    "momentum": lambda: v1.train.MomentumOptimizer(0.05, 0.9),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.05),
    "ftrl": lambda: v1.train.FtrlOptimizer(0.05, l1_regularization_strength=0.01),
    "rmsprop": lambda: v1.train.RMSPropOptimizer(0.05, momentum=0.5, epsilon=1e-7),
}
CASES = {
    "dense": (dense, adam, X, Y),
    "convolution": (convolution, adam, IMAGES, Y[:8]),
    "lstm": (lstm, adam, X, Y),
    "cell": (cell, adam, X, Y),
    "embedding": (embedding, adam, IDS, Y[:4]),
    "partitioned": (partitioned, adam, IDS, Y[:4]),
    "adam_v2": (dense, adam_v2, X, Y),
    **{name: (dense, make, X, Y) for name, make in OPTIMIZERS.items()},
}


def model_fn_of(network, optimizer, is_new=False):
    def model_fn(features, labels, mode):
        training = mode == tf.estimator.ModeKeys.TRAIN
        logits = network(features, "new" if is_new else training)
        if mode == tf.estimator.ModeKeys.PREDICT:
            served = tf.estimator.export.PredictOutput({"logits": logits})
            return tf.estimator.EstimatorSpec(
                mode, predictions={"logits": logits}, export_outputs={"serving_default": served}
            )
        loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
        step = v1.train.get_or_create_global_step()
        made = optimizer()
        with tf.control_dependencies(v1.get_collection("update_ops")):
            if hasattr(made, "get_updates"):
                op = made.get_updates(loss, v1.trainable_variables())[0]
            else:
                op = made.minimize(loss, step)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=op)

    return model_fn


class Losses(v1.train.SessionRunHook):
    def begin(self):
        self.values = []
        # The Estimator adds it once more.
        self.loss = v1.get_collection(v1.GraphKeys.LOSSES)[0]

    def before_run(self, context):
        return v1.train.SessionRunArgs(self.loss)

    def after_run(self, context, values):
        self.values.append(float(values.results))


def data(x, y=None):
    rows = x if y is None else (x, y)
    return lambda: tf.data.Dataset.from_tensors(rows).repeat(None if y is not None else 1)


def kept(estimator, folder):
    """Copies the newest checkpoint without its graph."""
    folder.mkdir(parents=True, exist_ok=True)
    for end in ("index", "data-00000-of-00001"):
        shutil.copy(f"{estimator.latest_checkpoint()}.{end}", folder)


def trained(name, out):
    network, optimizer, x, y = CASES[name]
    config = tf.estimator.RunConfig(tf_random_seed=7, model_dir=tempfile.mkdtemp())
    estimator = tf.estimator.Estimator(model_fn_of(network, optimizer), config=config)
    estimator.train(data(x, y), max_steps=FIRST)
    kept(estimator, out / name)
    logits = [p["logits"].tolist() for p in estimator.predict(data(x))]
    if name == "dense":
        saved_model(estimator, out)
    losses = Losses()
    estimator.train(data(x, y), hooks=[losses], max_steps=FIRST + NEXT)
    return {"x": x.tolist(), "y": y.tolist(), "logits": logits, "losses": losses.values}


def saved_model(estimator, out):
    def serving():
        x = v1.placeholder(tf.float32, [None, 6])
        return tf.estimator.export.TensorServingInputReceiver(x, {"x": x})

    path = estimator.export_saved_model(tempfile.mkdtemp(), serving)
    shutil.copytree(path.decode(), out / "saved_model")


def vocabulary(out):
    """What tf.estimator makes of the embedding on another vocabulary."""
    files = {}
    for name, words in (("old", WORDS), ("new", NEW_WORDS)):
        path = out / f"{name}_words.txt"
        path.write_text("".join(f"{word}\n" for word in words))
        files[name] = str(path)
    info = tf.estimator.VocabInfo(
        files["new"],
        len(NEW_WORDS),
        2,
        files["old"],
        backup_initializer=lambda shape, **_: tf.fill(shape, 0.25),
    )
    network, optimizer, x, y = CASES["embedding"]
    config = tf.estimator.RunConfig(tf_random_seed=7, model_dir=tempfile.mkdtemp())
    estimator = tf.estimator.Estimator(
        model_fn_of(network, lambda: v1.train.GradientDescentOptimizer(0.0), True),
        config=config,
        warm_start_from=tf.estimator.WarmStartSettings(
            str(out / "embedding/model.ckpt-5"), var_name_to_vocab_info={"words/table": info}
        ),
    )
    estimator.train(data(x, y), max_steps=1)
    logits = [p["logits"].tolist() for p in estimator.predict(data(x))]
    return {"table": estimator.get_variable_value("words/table").tolist(), "logits": logits}


def keras_model(out):
    tf.keras.utils.set_random_seed(3)
    model = tf.keras.Sequential(
        [
            tf.keras.Input([6]),
            tf.keras.layers.Dense(5, "tanh"),
            tf.keras.layers.BatchNormalization(),
            tf.keras.layers.Dense(3),
        ]
    )
    optimizer = tf.keras.optimizers.Adam(0.05, epsilon=1e-8)
    model.compile(optimizer, tf.keras.losses.SparseCategoricalCrossentropy(True))
    model.fit(X, Y, batch_size=len(X), epochs=FIRST, shuffle=False, verbose=0)
    folder = out / "keras"
    folder.mkdir()
    tf.train.Checkpoint(model=model, optimizer=optimizer).write(str(folder / "objects"))
    model.save(folder / "model.keras")
    model.save_weights(folder / "model.weights.h5")
    model.save_weights(folder / "legacy.h5")
    logits = model(X).numpy().tolist()
    history = model.fit(X, Y, batch_size=len(X), epochs=NEXT, shuffle=False, verbose=0)
    return {"x": X.tolist(), "y": Y.tolist(), "logits": logits, "losses": history.history["loss"]}


def main():
    out = pathlib.Path(sys.argv[1]).absolute()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    recorded = {"tensorflow": tf.__version__, "keras": keras_model(out)}
    with tf.Graph().as_default():
        for name in CASES:
            recorded[name] = trained(name, out)
        recorded["vocabulary"] = vocabulary(out)
    (out / "recorded.json").write_text(json.dumps(recorded) + "\n")


if __name__ == "__main__":
    main()
