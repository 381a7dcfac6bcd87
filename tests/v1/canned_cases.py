"""Canned estimators of TensorFlow 1 and 2 on made-up rows, by v1 or by TensorFlow 2.15."""

import numpy as np

rng = np.random.default_rng(7)
ROWS = 24
X = {
    "x": rng.normal(size=[ROWS, 2]).astype("float32"),
    "w": rng.integers(1, 4, ROWS).astype("float32"),
}
LABELS = {
    "two": (X["x"].sum(1) > 0).astype("int64"),
    "three": rng.integers(0, 3, ROWS),
    "number": (X["x"] @ [[1.0], [2.0]]).astype("float32"),
}
CASES = {
    "linear_two": ("LinearClassifier", "two", {}),
    "linear_three": ("LinearClassifier", "three", {"n_classes": 3}),
    "linear_weighted": ("LinearRegressor", "number", {"weight_column": "w"}),
    "linear_sgd": ("LinearRegressor", "number", {"optimizer": "SGD"}),
    "baseline_two": ("BaselineClassifier", "two", {}),
    "baseline_number": ("BaselineRegressor", "number", {}),
}


def evaluated(tf, module, name):
    """Trains three steps, and returns the evaluation of all rows."""
    kind, label, options = CASES[name]
    if kind.startswith("Linear"):
        columns = [tf.feature_column.numeric_column("x", shape=[2])]
        options = {**options, "feature_columns": columns}
    data = lambda n: tf.data.Dataset.from_tensor_slices((X, LABELS[label])).batch(n)  # noqa: E731
    estimator = getattr(module, kind)(**options)
    estimator.train(lambda: data(8))
    return estimator.evaluate(lambda: data(ROWS))
