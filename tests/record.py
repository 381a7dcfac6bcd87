"""Records the numbers of TensorFlow 2.15.1 that tests compare with.

    python3.11 -m venv VENV && VENV/bin/pip install tensorflow-cpu==2.15.1
    VENV/bin/python tests/record.py feature_columns   # rows, for tests/inputs/schema_test.py
    VENV/bin/python tests/record.py heads             # for tests/models/heads_test.py
    VENV/bin/python tests/record.py tables            # for tests/models/tables_test.py
    VENV/bin/python tests/record.py originals         # for tests/checkpoint/originals_test.py

Data, labels and initial weights are in the files, so that only results come from here.
"""

import json
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import tensorflow as tf
from tensorflow.python.feature_column.feature_column_v2 import FeatureTransformationCache

TESTS = pathlib.Path(__file__).parent
fc = tf.feature_column
legacy = tf.keras.optimizers.legacy
v1 = tf.compat.v1


def write(path, values, indent=None):
    (TESTS / path).write_text(json.dumps(values, indent=indent) + "\n")


class Losses(v1.train.SessionRunHook):
    """Keeps the loss of each step."""

    def begin(self):
        self.values = []
        # An Estimator adds it once more.
        self.loss = v1.get_collection(v1.GraphKeys.LOSSES)[-1]

    def before_run(self, context):
        return v1.train.SessionRunArgs(self.loss)

    def after_run(self, context, run_values):
        self.values.append(float(run_values.results))


# Rows of tf.feature_column.

# The last is not UTF-8, and stands in JSON as Python's 'surrogateescape' has it.
COLUMN_WORDS = ["EWR", "JFK", "LGA", "Zürich", "a b", "a\0b", "a_X_b", "7", " ", "\udcff\udcfe"]
COLUMN_IDS = [0, 1, 2, -1, 10, 5, -(2**40), 2**63 - 1, -(2**63) + 1, 3]
HOURS = [5.99, 6.0, 8.5, 9.0, 23.0, -1.0, 0.0, 12.0, 12.0, 100.0]
TAGS = [["a", "b"], [], ["c"], ["a", "a", "c"], [], ["Zürich"], ["7"], [], ["b"], ["c"]]
COLUMNS = {
    "word": tf.constant([w.encode("utf-8", "surrogateescape") for w in COLUMN_WORDS]),
    "id": tf.constant(COLUMN_IDS, tf.int64),
    "hour": tf.constant(HOURS),
    "tags": tf.ragged.constant(TAGS).to_sparse(),
}
BUCKETS = [6.0, 9.0, 12.0, 15.0]

hours = fc.bucketized_column(fc.numeric_column("hour"), BUCKETS)
PARTS = {
    "word": {"kind": "word", "hash_buckets": 7},
    "id": {"kind": "id", "hash_buckets": 7},
    "hour": {"kind": "number", "buckets": BUCKETS},
    "tags": {"kind": "bag of words", "hash_buckets": 7},
}


def cross(*of):
    """A cross of columns, and the schema's."""
    parts = [hours if part == "hour" else part for part in of]
    ours = {"kind": "cross", "of": of, "hash_buckets": 1000}
    return fc.crossed_column(parts, 1000), ours


COLUMN_CASES = {
    "hashed words": (
        fc.categorical_column_with_hash_bucket("word", 1000),
        {"kind": "word", "column": "word", "hash_buckets": 1000},
    ),
    "hashed ids": (
        fc.categorical_column_with_hash_bucket("id", 1000, dtype=tf.int64),
        {"kind": "id", "column": "id", "hash_buckets": 1000},
    ),
    "hashed bag": (
        fc.categorical_column_with_hash_bucket("tags", 1000),
        {"kind": "bag of words", "column": "tags", "hash_buckets": 1000},
    ),
    "words": (
        fc.categorical_column_with_vocabulary_list("word", COLUMN_WORDS[:4], num_oov_buckets=5),
        {"kind": "word", "column": "word", "vocabulary": COLUMN_WORDS[:4], "unknown": 5},
    ),
    "ids": (
        fc.categorical_column_with_vocabulary_list("id", [10, 2, -5], num_oov_buckets=5),
        {"kind": "id", "column": "id", "vocabulary": [10, 2, -5], "unknown": 5},
    ),
    "bag": (
        fc.categorical_column_with_vocabulary_list("tags", ["c", "a"], num_oov_buckets=2),
        {"kind": "bag of words", "column": "tags", "vocabulary": ["c", "a"], "unknown": 2},
    ),
    "buckets": (hours, {"kind": "number", "column": "hour", "buckets": BUCKETS}),
    "cross of words and ids": cross("word", "id"),
    "cross of ids and words": cross("id", "word"),
    "cross of words and buckets": cross("word", "hour"),
    "cross of a bag": cross("tags", "word"),
    "cross of four": cross("hour", "tags", "id", "word"),
}


def rows(column):
    """The rows of each example."""
    cache = FeatureTransformationCache(COLUMNS)
    found = column.get_sparse_tensors(cache, None).id_tensor
    return tf.RaggedTensor.from_sparse(tf.sparse.reorder(found)).to_list()


def feature_columns():
    columns = {"word": COLUMN_WORDS, "id": COLUMN_IDS, "hour": HOURS, "tags": TAGS}
    cases = {
        name: {"feature": feature, "rows": rows(column)}
        for name, (column, feature) in COLUMN_CASES.items()
    }
    made_by = f"tensorflow {tf.__version__}"
    found = {"made by": made_by, "columns": columns, "parts": PARTS, "cases": cases}
    write("inputs/feature_columns.json", found, indent=1)


# Heads.

HEAD_RNG = np.random.default_rng(11)


def drawn(width):
    return (2 * HEAD_RNG.normal(size=[11, width])).round(3)


HEAD_CASES = {
    "binary": (
        lambda column: tf.estimator.BinaryClassHead(weight_column=column, thresholds=[0.3, 0.75]),
        drawn(1),
        HEAD_RNG.integers(2, size=[11, 1]),
    ),
    "multi_class": (
        lambda column: tf.estimator.MultiClassHead(4, weight_column=column),
        drawn(4),
        HEAD_RNG.integers(4, size=[11, 1]),
    ),
    "multi_label": (
        lambda column: tf.estimator.MultiLabelHead(
            3, weight_column=column, thresholds=[0.4], classes_for_class_based_metrics=[1]
        ),
        drawn(3),
        HEAD_RNG.integers(2, size=[11, 3]),
    ),
    "regression": (
        lambda column: tf.estimator.RegressionHead(label_dimension=2, weight_column=column),
        drawn(2),
        drawn(2),
    ),
    "logistic": (
        lambda column: tf.estimator.LogisticRegressionHead(weight_column=column),
        drawn(1),
        HEAD_RNG.random(size=[11, 1]).round(3),
    ),
    "poisson": (
        lambda column: tf.estimator.PoissonRegressionHead(weight_column=column),
        drawn(1),
        HEAD_RNG.integers(6, size=[11, 1]),
    ),
}
WEIGHTS = HEAD_RNG.integers(0, 5, size=[11]) / 2


def plain(value):
    value = np.asarray(value)
    if value.dtype.kind in "SO":
        return np.vectorize(bytes.decode)(value).tolist()
    return value.astype(np.float64).tolist()


def head_results(head, labels, logits, weights):
    """Its loss, predictions, and metrics over two batches of unequal size."""
    labels = np.asarray(labels)
    kind = tf.float32 if labels.dtype.kind == "f" else tf.int64
    metrics = head.metrics()
    for rows in (slice(0, 7), slice(7, 11)):
        head.update_metrics(
            metrics,
            {"w": tf.constant(weights[rows], tf.float32)},
            tf.constant(logits[rows], tf.float32),
            tf.constant(labels[rows], kind),
        )
    predictions = head.predictions(tf.constant(logits, tf.float32))
    # Keys are 'logits', or pairs of a head's name and such a one.
    return {
        "metrics": {k: float(v.result()) for k, v in metrics.items()},
        "predictions": {k: plain(v) for k, v in predictions.items()},
    }


def multi():
    """Two heads over one tensor of logits."""
    heads = [
        tf.estimator.BinaryClassHead(weight_column="w", name="click"),
        tf.estimator.RegressionHead(name="price"),
    ]
    head = tf.estimator.MultiHead(heads, head_weights=[2.0, 0.5])
    given, clicks = drawn(2), HEAD_RNG.integers(2, size=[11, 1])
    prices = drawn(1)
    loss = head.loss(
        {"click": tf.constant(clicks, tf.int64), "price": tf.constant(prices, tf.float32)},
        tf.constant(given, tf.float32),
        {"w": tf.constant(WEIGHTS, tf.float32)},
        tf.estimator.ModeKeys.TRAIN,
    )
    return {
        "logits": given.tolist(),
        "labels": {"click": clicks.tolist(), "price": prices.tolist()},
        "loss": float(loss),
    }


def heads():
    cases = {}
    for name, (make, given, labels) in HEAD_CASES.items():
        cases[name] = {"logits": given.tolist(), "labels": labels.tolist()}
        cases[name]["plain"] = head_results(make(None), labels, given, WEIGHTS)
        cases[name]["weighted"] = head_results(make("w"), labels, given, WEIGHTS)
    cases["multi"] = multi()
    values = {"tensorflow": tf.__version__, "weights": WEIGHTS.tolist(), "cases": cases}
    write("models/heads.json", values, indent=1)


# Models of tables.

ROWS, BATCH, STEPS = 16, 8, 10
HIDDEN = [5, 4]
SIZES = {"word": 5, "hour": 3, "tags": 6, "pairs": 10}
EMBEDDED = {"word": 4, "tags": 3}
TABLE_RNG = np.random.default_rng(3)


def table_data():
    """Numbers, ids and bags of ids, by feature, and both kinds of labels."""
    found = {
        "age": TABLE_RNG.normal(size=ROWS).round(3).tolist(),
        "income": TABLE_RNG.normal(size=ROWS).round(3).tolist(),
        "tags": [TABLE_RNG.integers(6, size=n % 4).tolist() for n in range(ROWS)],
    }
    for name in ("word", "hour", "pairs"):
        found[name] = TABLE_RNG.integers(SIZES[name], size=ROWS).tolist()
    labels = {
        "classifier": TABLE_RNG.integers(2, size=ROWS).tolist(),
        "regressor": TABLE_RNG.normal(size=ROWS).round(3).tolist(),
    }
    return found, labels


def table_input(features, labels, steps):
    ragged = tf.ragged.constant(features["tags"], dtype=tf.int64)
    tensors = {**features, "tags": ragged.to_sparse()}
    rows = tf.data.Dataset.from_tensor_slices((tensors, labels))
    return rows.repeat().batch(BATCH).take(steps)


def wide_and_deep():
    numbers = [fc.numeric_column(name) for name in ("age", "income")]
    ids = {name: fc.categorical_column_with_identity(name, size) for name, size in SIZES.items()}
    deep = [fc.embedding_column(ids[k], dim) for k, dim in EMBEDDED.items()]
    deep += [fc.indicator_column(ids["hour"]), *numbers]
    return [*numbers, *ids.values()], deep


def canned(model, kind, model_dir):
    wide, deep = wide_and_deep()
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


def logits_at(estimator, features, labels, step):
    key = "logits" if "Classifier" in type(estimator).__name__ else "predictions"
    found = estimator.predict(
        lambda: table_input(features, labels, ROWS // BATCH),
        checkpoint_path=f"{estimator.model_dir}/model.ckpt-{step}",
    )
    return [float(each[key][0]) for each in found]


def deep_weights(model_dir):
    """The deep part's initial values, by variable; the wide part's are 0."""
    reader = tf.train.load_checkpoint(f"{model_dir}/model.ckpt-0")
    return {
        name: reader.get_tensor(name).tolist()
        for name in reader.get_variable_to_shape_map()
        if ("hiddenlayer" in name or "dnn/logits" in name or "embedding_weights" in name)
        and "training" not in name
        and "agrad" not in name
    }


def trained_table(model, kind, features, labels):
    """Trains ten steps: losses, initial weights, logits before and after."""
    folder, hook = tempfile.mkdtemp(), Losses()
    estimator = canned(model, kind, folder)
    estimator.train(lambda: table_input(features, labels, STEPS), hooks=[hook])
    return {
        "weights": deep_weights(folder),
        "losses": hook.values,
        "logits_before": logits_at(estimator, features, labels, 0),
        "logits_after": logits_at(estimator, features, labels, STEPS),
    }


def tables():
    features, labels = table_data()
    cases = {
        f"{model}{kind.capitalize()}": trained_table(model, kind, features, given)
        for model in ("Linear", "DNN", "DNNLinearCombined")
        for kind, given in labels.items()
    }
    values = {"tensorflow": tf.__version__, "features": features, "labels": labels, "cases": cases}
    write("models/estimator.json", values)


# Small models, trained on one batch.

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
    made = legacy.Adam(0.05, epsilon=1e-8)
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


def originals():
    """Trains small models; leaves their checkpoints, predictions, and the losses of next steps."""
    out = TESTS / "checkpoint/originals"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    recorded = {"tensorflow": tf.__version__, "keras": keras_model(out)}
    with tf.Graph().as_default():
        for name in CASES:
            recorded[name] = trained(name, out)
        recorded["vocabulary"] = vocabulary(out)
    write("checkpoint/originals/recorded.json", recorded)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
