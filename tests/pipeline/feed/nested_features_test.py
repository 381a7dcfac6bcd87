"""Features as tuples, and as dicts in dicts; and global batches that are not whole."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.feed.batch import Plan
from pipeline.mistakes import user_errors
from pipeline.strategy.replicas import Replicas
from tests import fakes

X, Y = fakes.classification_data(rows=72)
Pair = collections.namedtuple("Pair", "left right")


def nested(x):
    return {"pair": (x[:, :2], x[:, 2:3]), "more": {"deep": Pair(x[:, 3:4], x[:, 4:])}}


def model_fn(features, labels, mode, network, optimizer):
    left, right = features["pair"]
    deep = features["more"]["deep"]
    x = tf.concat([left, right, deep.left, deep.right], 1)
    spec = fakes.classifier_fn(x, labels, mode, network, optimizer, {})
    half = tf.cast(deep.right, tf.bfloat16)
    tensors = {"right": half, "text": tf.strings.as_string(right), "first": left[0, 0]}
    return dataclasses.replace(spec, tensors=tensors)


class Seen(ge.Hook):
    """Keeps the tensors of each step."""

    every_steps = 1
    wants_tensors = True

    def __init__(self):
        self.tensors = []

    def after_step(self, run):
        self.tensors.append(run.report.tensors)


def test_every_mode_takes_them(tmp_path):
    """In four parts they come to what the rows of one array do in one.

    So do tensors for hooks. The last batch of 8 leaves three parts without an example.
    """
    hook = Seen()

    def found(folder, model_fn, change, hooks=(), **config):
        estimator = fakes.make_estimator(folder, model_fn=model_fn, **config)
        size = 32 if "devices" in config else 64

        def input_fn():
            batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(size)
            return batches.map(lambda x, y: (change(x), y))

        estimator.train(input_fn, max_steps=2, hooks=hooks)
        logits = [each["logits"] for each in estimator.predict(input_fn)]
        return estimator, [estimator.evaluate(input_fn)["loss"], *np.ravel(logits)]

    in_parts = {"devices": ("CPU:0", "CPU:1"), "gradient_accumulation_steps": 2}
    estimator, given = found(tmp_path / "nested", model_fn, nested, [hook], **in_parts)
    _, plain = found(
        tmp_path / "plain", fakes.classifier_fn, lambda x: x, run_eagerly=True
    )
    np.testing.assert_allclose(given, plain, atol=1e-5)
    for rows, given in zip((slice(0, 64), slice(64, 72)), hook.tensors, strict=True):
        right = tf.cast(X[rows, 4:], tf.bfloat16).numpy()
        assert given["right"].dtype == right.dtype
        np.testing.assert_array_equal(given["right"], right)
        text = tf.strings.as_string(X[rows, 2:3]).numpy()
        assert given["text"].tolist() == text.tolist()
        assert given["first"] == X[rows][0, 0]
    exported = tf.saved_model.load(estimator.export_saved_model(str(tmp_path / "out")))
    names = ["more_deep_0", "more_deep_1", "pair_0", "pair_1"]
    parts = tf.nest.flatten(nested(tf.constant(X[:3])))
    sent = dict(zip(names, parts, strict=True))
    logits = exported.signatures["serving_default"](**sent)["logits"]
    np.testing.assert_allclose(np.ravel(logits), plain[1:10], atol=1e-5)


def test_a_tuple_of_features_is_not_taken_for_features_and_labels(tmp_path):
    def pair_fn(features, labels, mode, network, optimizer):
        x = tf.concat([features[0], features[1]], 1)
        return fakes.classifier_fn(x, labels, mode, network, optimizer, {})

    pairs = tf.data.Dataset.from_tensor_slices((X[:, :2], X[:, 2:])).batch(32)
    labels = tf.data.Dataset.from_tensor_slices(Y).batch(32)
    both = tf.data.Dataset.zip((pairs, labels))
    estimator = fakes.make_estimator(tmp_path, model_fn=pair_fn, run_eagerly=True)
    estimator.train(lambda: both, max_steps=1)
    with pytest.raises(
        TypeError, match=r"write dataset.map\(lambda a, b: \(\(a, b\), "
    ):
        list(estimator.predict(lambda: pairs))
    alone = pairs.map(lambda a, b: ((a, b), None))
    assert len(list(estimator.predict(lambda: alone))) == 72


PLAN = Plan(endless=True, replicas=Replicas(2, 2), splits=True)


def test_a_batch_without_labels_is_divided():
    dataset = tf.data.Dataset.from_tensors(X[:5]).map(lambda x: ((x, {"x": x}), None))
    (first,), (second,) = PLAN.take(iter(dataset))
    assert first.labels is None and second.labels is None
    np.testing.assert_array_equal(second.features[1]["x"], X[2:5])


@pytest.mark.parametrize(
    ("element", "message"),
    [
        (({"x": X[:4], "z": X[0, 0]}, Y[:4]), r"features\['z'\] of shape \(\), which"),
        (
            ({"x": X[:4], "z": X[:3]}, Y[:4]),
            r"features\['z'\] of shape \(3, 6\)",
        ),
        ((X[:4], Y[:3]), r"yields labels of shape \(3,\), which has no row for each"),
    ],
)
def test_a_batch_that_cannot_be_divided_is_refused(element, message):
    with pytest.raises(TypeError, match=message):
        PLAN.take(iter(tf.data.Dataset.from_tensors(element)))


def test_a_batch_of_unequal_rows_is_refused_in_its_step():
    spec = tf.TensorSpec([], tf.int32)

    @tf.function(autograph=False, input_signature=[spec, spec])
    def step(rows, labels):
        element = {"x": tf.ones([rows, 2]), "y": tf.ones([rows])}, tf.ones([labels])
        return [batch.labels for (batch,) in PLAN.take(iter([element]))]

    assert [each.shape for each in step(5, 5)] == [2, 3]
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        step(4, 3)
    words = user_errors.words_of(error.value)
    assert "features['x'], features['y'], labels of unequal numbers of rows" in words
    assert words.endswith("between replicas: 4 4 3")


def test_none_among_features_is_refused(tmp_path):
    data = tf.data.Dataset.from_tensors(X).map(lambda x: {"x": x, "m": None})
    with pytest.raises(TypeError, match=r"yields None for features\['m'\]: leave it"):
        fakes.make_estimator(tmp_path).train(lambda: data, max_steps=1)
