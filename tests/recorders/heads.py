"""Records the numbers of tf.estimator's heads for tests/models/heads_test.py.

    python3.11 -m venv VENV && VENV/bin/pip install tensorflow-cpu==2.15.1
    VENV/bin/python tests/recorders/heads.py tests/models/heads.json

Each case has its labels, logits and weights in the file, so that only tf.estimator's
numbers come from here.
"""

import json
import sys

import numpy as np
import tensorflow as tf

HEADS = tf.estimator
rng = np.random.default_rng(11)


def logits(width):
    return (2 * rng.normal(size=[11, width])).round(3)


CASES = {
    "binary": (
        lambda column: HEADS.BinaryClassHead(weight_column=column, thresholds=[0.3, 0.75]),
        logits(1),
        rng.integers(2, size=[11, 1]),
    ),
    "multi_class": (
        lambda column: HEADS.MultiClassHead(4, weight_column=column),
        logits(4),
        rng.integers(4, size=[11, 1]),
    ),
    "multi_label": (
        lambda column: HEADS.MultiLabelHead(
            3, weight_column=column, thresholds=[0.4], classes_for_class_based_metrics=[1]
        ),
        logits(3),
        rng.integers(2, size=[11, 3]),
    ),
    "regression": (
        lambda column: HEADS.RegressionHead(label_dimension=2, weight_column=column),
        logits(2),
        logits(2),
    ),
    "logistic": (
        lambda column: HEADS.LogisticRegressionHead(weight_column=column),
        logits(1),
        rng.random(size=[11, 1]).round(3),
    ),
    "poisson": (
        lambda column: HEADS.PoissonRegressionHead(weight_column=column),
        logits(1),
        rng.integers(6, size=[11, 1]),
    ),
}
WEIGHTS = rng.integers(0, 5, size=[11]) / 2


def plain(value):
    value = np.asarray(value)
    if value.dtype.kind in "SO":
        return np.vectorize(bytes.decode)(value).tolist()
    return value.astype(np.float64).tolist()


def recorded(head, labels, logits, weights):
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
        HEADS.BinaryClassHead(weight_column="w", name="click"),
        HEADS.RegressionHead(name="price"),
    ]
    head = HEADS.MultiHead(heads, head_weights=[2.0, 0.5])
    given, clicks = logits(2), rng.integers(2, size=[11, 1])
    prices = logits(1)
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


def main():
    cases = {}
    for name, (make, given, labels) in CASES.items():
        cases[name] = {"logits": given.tolist(), "labels": labels.tolist()}
        cases[name]["plain"] = recorded(make(None), labels, given, WEIGHTS)
        cases[name]["weighted"] = recorded(make("w"), labels, given, WEIGHTS)
    cases["multi"] = multi()
    values = {"tensorflow": tf.__version__, "weights": WEIGHTS.tolist(), "cases": cases}
    with open(sys.argv[1], "w") as file:
        json.dump(values, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
