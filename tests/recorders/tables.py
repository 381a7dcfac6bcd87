"""Records logits and losses of tf.estimator's models for tests/models/tables_test.py.

    python3.11 -m venv VENV && VENV/bin/pip install tensorflow-cpu==2.15.1
    VENV/bin/python tests/recorders/tables.py \
        tests/models/estimator.json

Data and initial weights are in the file, so that only the losses of ten steps and the
logits before and after them come from tf.estimator.
"""

import json
import sys
import tempfile

import numpy as np
import tensorflow as tf

ROWS, BATCH, STEPS = 16, 8, 10
HIDDEN = [5, 4]
SIZES = {"word": 5, "hour": 3, "tags": 6, "pairs": 10}
EMBEDDED = {"word": 4, "tags": 3}
columns = tf.feature_column
legacy = tf.keras.optimizers.legacy
rng = np.random.default_rng(3)


def data():
    """Numbers, ids and bags of ids, by feature, and both kinds of labels."""
    found = {
        "age": rng.normal(size=ROWS).round(3).tolist(),
        "income": rng.normal(size=ROWS).round(3).tolist(),
        "tags": [rng.integers(6, size=n % 4).tolist() for n in range(ROWS)],
    }
    for name in ("word", "hour", "pairs"):
        found[name] = rng.integers(SIZES[name], size=ROWS).tolist()
    labels = {
        "classifier": rng.integers(2, size=ROWS).tolist(),
        "regressor": rng.normal(size=ROWS).round(3).tolist(),
    }
    return found, labels


def input_fn(features, labels, steps):
    ragged = tf.ragged.constant(features["tags"], dtype=tf.int64)
    tensors = {**features, "tags": ragged.to_sparse()}
    rows = tf.data.Dataset.from_tensor_slices((tensors, labels))
    return rows.repeat().batch(BATCH).take(steps)


class Losses(tf.compat.v1.train.SessionRunHook):
    def __init__(self):
        self.values = []

    def before_run(self, context):
        *_, loss = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.LOSSES)
        return tf.compat.v1.train.SessionRunArgs(loss)

    def after_run(self, context, run_values):
        self.values.append(float(run_values.results))


def feature_columns():
    numbers = [columns.numeric_column(name) for name in ("age", "income")]
    ids = {
        name: columns.categorical_column_with_identity(name, size) for name, size in SIZES.items()
    }
    deep = [columns.embedding_column(ids[k], dim) for k, dim in EMBEDDED.items()]
    deep += [columns.indicator_column(ids["hour"]), *numbers]
    return [*numbers, *ids.values()], deep


def make(model, kind, model_dir):
    wide, deep = feature_columns()
    config = tf.estimator.RunConfig(model_dir, tf_random_seed=5, save_checkpoints_steps=STEPS)
    name = f"{model}{kind.capitalize()}"
    ftrl = legacy.Ftrl(0.2, l1_regularization_strength=0.003)
    adagrad = legacy.Adagrad(0.05)
    options = {
        "Linear": {"feature_columns": wide, "optimizer": ftrl},
        "DNN": {"feature_columns": deep, "hidden_units": HIDDEN, "optimizer": adagrad},
        "DNNLinearCombined": {
            "linear_feature_columns": wide,
            "linear_optimizer": ftrl,
            "dnn_feature_columns": deep,
            "dnn_hidden_units": HIDDEN,
            "dnn_optimizer": adagrad,
        },
    }[model]
    return getattr(tf.estimator, name)(config=config, **options)


def logits(estimator, features, labels, step):
    key = "logits" if "Classifier" in type(estimator).__name__ else "predictions"
    found = estimator.predict(
        lambda: input_fn(features, labels, ROWS // BATCH),
        checkpoint_path=f"{estimator.model_dir}/model.ckpt-{step}",
    )
    return [float(each[key][0]) for each in found]


def weights(model_dir):
    """The deep part's initial values, by variable; the wide part's are 0."""
    reader = tf.train.load_checkpoint(f"{model_dir}/model.ckpt-0")
    return {
        name: reader.get_tensor(name).tolist()
        for name in reader.get_variable_to_shape_map()
        if ("hiddenlayer" in name or "dnn/logits" in name or "embedding_weights" in name)
        and "training" not in name
        and "agrad" not in name
    }


def recorded(model, kind, features, labels):
    """Trains ten steps: losses, initial weights, logits before and after."""
    folder, hook = tempfile.mkdtemp(), Losses()
    estimator = make(model, kind, folder)
    estimator.train(lambda: input_fn(features, labels, STEPS), hooks=[hook])
    return {
        "weights": weights(folder),
        "losses": hook.values,
        "logits_before": logits(estimator, features, labels, 0),
        "logits_after": logits(estimator, features, labels, STEPS),
    }


def main():
    features, labels = data()
    cases = {
        f"{model}{kind.capitalize()}": recorded(model, kind, features, given)
        for model in ("Linear", "DNN", "DNNLinearCombined")
        for kind, given in labels.items()
    }
    with open(sys.argv[1], "w") as file:
        # The deep columns lie side by side in alphabetical order of these names.
        file.write(f'{{"tensorflow": "{tf.__version__}",\n')
        file.write(f'"features": {json.dumps(features)},\n')
        file.write(f'"labels": {json.dumps(labels)},\n"cases": {{\n')
        lines = (f'"{name}": {json.dumps(case)}' for name, case in cases.items())
        file.write(",\n".join(lines) + "\n}}\n")


if __name__ == "__main__":
    main()
