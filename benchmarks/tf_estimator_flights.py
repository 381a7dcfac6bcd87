"""Trains tf.estimator on the flights, for this folder's comparisons; TensorFlow 2.15.

    python3.11 -m venv VENV && VENV/bin/pip install tensorflow-cpu==2.15.1
    python -m benchmarks.flights --estimator_python=VENV/bin/python
    python -m benchmarks.tables --estimator_python=VENV/bin/python

It imports nothing of this project. Its first argument is a folder that
`flights_columns` wrote. With `turns` as second one, each line on its standard input is
a number of steps of a DNNLinearCombinedClassifier; when they are done it writes a line.
Else that is JSON: how to train it; it writes the probabilities of November and December
after each of some steps, as `<step>.npz` in the folder.
"""

import json
import os
import pathlib
import sys
import tempfile

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import numpy as np
import tensorflow as tf
from tf_estimator_turns import Asked

_V1 = tf.compat.v1
_FC = tf.feature_column
_K = tf.keras.optimizers
BATCH_SIZE = 512


def columns_of(folder):
    """Returns the wide columns, and the deep ones."""
    wide, deep, categories = [], [], {}
    for column in json.loads((folder / "columns.json").read_text()):
        name, kind = column["name"], column["kind"]
        if kind == "number":
            number = _FC.numeric_column(name, normalizer_fn=normalizer(column))
            wide.append(number)
            deep.append(number)
            continue
        if kind == "cross":
            # Of words their names, of ids their columns, as it wants them.
            keys = [categories.get(part, part) for part in column["of"]]
            found = _FC.crossed_column(keys, column["buckets"])
        elif kind == "id":
            found = _FC.categorical_column_with_identity(name, column["size"])
            categories[name] = found
        else:
            found = _FC.categorical_column_with_vocabulary_list(
                name, column["vocabulary"], num_oov_buckets=1
            )
        wide.append(found)
        if column["embedding"]:
            deep.append(_FC.embedding_column(found, column["embedding"]))
    return wide, deep


def normalizer(column):
    """Returns the function of a number that the schema declares."""

    def normalized(x):
        if column.get("log"):
            x = tf.sign(x) * tf.math.log1p(tf.abs(x))
        return (x - column["mean"]) / column["std"]

    return normalized


def dataset(arrays, shuffle):
    """Returns batches, gathered whole from arrays in memory."""
    features = {name: tf.constant(each) for name, each in arrays.items()}
    labels = features.pop("late")
    rows = tf.data.Dataset.range(len(arrays["late"]))
    if shuffle:
        rows = rows.shuffle(len(arrays["late"])).repeat()

    def gather(which):
        found = {name: tf.gather(each, which) for name, each in features.items()}
        return found, tf.gather(labels, which)

    batches = rows.batch(BATCH_SIZE).map(gather, num_parallel_calls=tf.data.AUTOTUNE)
    return batches.prefetch(tf.data.AUTOTUNE)


def classifier(folder, settings):
    """Returns the DNNLinearCombinedClassifier of some settings."""
    wide, deep = columns_of(folder)
    rate = settings["rate"]
    if settings.get("decay_steps"):
        rate = _K.schedules.CosineDecay(rate, settings["decay_steps"])
    return tf.estimator.DNNLinearCombinedClassifier(
        linear_feature_columns=wide,
        linear_optimizer=lambda: _K.legacy.Ftrl(settings["wide_rate"]),
        dnn_feature_columns=deep,
        dnn_optimizer=lambda: getattr(_K.legacy, settings["optimizer"])(rate),
        dnn_hidden_units=settings["hidden"],
        dnn_dropout=settings["dropout"] or None,
        config=tf.estimator.RunConfig(
            tempfile.mkdtemp(),
            tf_random_seed=settings["seed"],
            save_checkpoints_secs=None,
            save_checkpoints_steps=10**9,
        ),
    )


def main():
    """Trains as it is asked."""
    _V1.logging.set_verbosity(_V1.logging.ERROR)
    folder, how = pathlib.Path(sys.argv[1]), sys.argv[2]
    parts = {path.stem: dict(np.load(path)) for path in folder.glob("*.npz")}
    train = lambda: dataset(parts["train"], shuffle=True)  # noqa: E731
    if how == "turns":
        settings = {"optimizer": "Adam", "rate": 0.001, "wide_rate": 0.05}
        settings |= {"hidden": [128, 64], "dropout": 0.3, "seed": 0}
        classifier(folder, settings).train(train, hooks=[Asked()])
        return
    settings = json.loads(how)
    estimator = classifier(folder, settings)
    for step in settings["steps"]:
        estimator.train(train, max_steps=step)
        found = {}
        for part in ("november", "december"):
            arrays = parts[part]
            each = estimator.predict(lambda: dataset(arrays, shuffle=False))  # noqa: B023
            found[part] = np.array([one["probabilities"][1] for one in each])
        np.savez(folder / f"{step}.npz", **found)


if __name__ == "__main__":
    main()
