"""The declarations of summaries: what they refuse, and what they take."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge

X = tf.zeros([4, 8, 8, 1])
Y = tf.constant([0, 1, 2, 1])

REFUSED = {
    "image of a vector": (lambda: ge.image(Y), r"image\(\) got int32 \(4,\): write \["),
    "image of two channels": (lambda: ge.image(tf.zeros([4, 8, 8, 2])), "1, 3 or 4"),
    "image of ints": (
        lambda: ge.image(tf.zeros([4, 8, 8, 3], tf.int32)),
        r"write tf.cast\(x, tf.uint8\)",
    ),
    "image of none": (lambda: ge.image(X, 0), r"max_outputs of image\(\) is 0: write"),
    "image by a matrix": (
        lambda: ge.image(X, highest=tf.zeros([4, 3])),
        r"highest of float32 \(4, 3\): write one number an example",
    ),
    "image of a wrong range": (
        lambda: ge.image(X, value_range=(1, 0)),
        r"value_range of image\(\) is \(1, 0\): write \(0, 1\)",
    ),
    "image labelled by texts": (
        lambda: ge.image(X, labels={"is": tf.constant(["a"] * 4)}),
        "got 'is' of string",
    ),
    "image of no tensor": (lambda: ge.image(object()), r"image\(\) got object"),
    "histogram of strings": (
        lambda: ge.histogram(tf.constant(["a"])),
        r"write tf.cast\(x, tf.float32\)",
    ),
    "histogram of a scalar": (lambda: ge.histogram(tf.zeros([])), "scalars={'name'"),
    "text of numbers": (lambda: ge.text(Y), r"write strings \[batch\]"),
    "curve of two shapes": (
        lambda: ge.pr_curve(Y, tf.zeros([4, 3])),
        r"got shapes \(4,\) and \(4, 3\)",
    ),
    "curve of classes": (lambda: ge.pr_curve(Y, Y), r"write tf.sigmoid\(logits\)"),
    "curve of a threshold": (
        lambda: ge.pr_curve(Y, tf.zeros([4]), 1),
        "num_thresholds of pr_curve.* is 1: write 2",
    ),
    "matrix of logits": (
        lambda: ge.confusion_matrix(Y, tf.zeros([4]), 3),
        r"the predictions float32 \(4,\): write class numbers, tf.argmax",
    ),
    "matrix of too many": (
        lambda: ge.confusion_matrix(Y, Y, 5000),
        "is 5000: write 1000 or less",
    ),
    "matrix of too few names": (
        lambda: ge.confusion_matrix(Y, Y, 3, ("a", "b")),
        "2 entries for 3 classes: write one name a class",
    ),
    "matrix of one name": (
        lambda: ge.confusion_matrix(Y, Y, 3, "cat"),
        r"class_names of confusion_matrix\(\) is 'cat': write \('cat', 'dog'\)",
    ),
    "image of one name": (
        lambda: ge.image(X, class_names="cat"),
        r"class_names of image\(\) is 'cat'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    declare, message = REFUSED[case]
    with pytest.raises(ge.Refusal, match=message):
        declare()


def spec(**fields):
    loss = tf.zeros([4])
    return ge.EstimatorSpec(ge.ModeKeys.EVAL, loss=loss, **fields)


def test_a_spec_takes_summaries_by_name():
    with pytest.raises(ge.SpecError, match="summaries is list"):
        spec(summaries=[ge.image(X)])
    with pytest.raises(ge.SpecError, match=r"(?s)summary 'x' is .*: write image\(x\)"):
        spec(summaries={"x": X})
    with pytest.raises(ge.SpecError, match="the name 'accuracy', which metrics or"):
        spec(summaries={"accuracy": ge.image(X)}, metrics={"accuracy": Y})
    with pytest.raises(ge.SpecError, match="the name 'loss', which the driver"):
        spec(summaries={"loss": ge.image(X)})
    assert list(spec(summaries={"x": ge.image(X)}).summaries) == ["x"]
    assert spec().summaries == {}


def test_what_is_taken():
    assert ge.image(X[..., 0]).kind.shape == (8, 8, 1)
    assert ge.image(tf.cast(X, tf.bfloat16)).kind.dtype == "float32"
    assert ge.image(X, highest=tf.zeros([4, 1])).tensors["score"].shape == [4]
    assert not ge.histogram(X).kind.once
    assert ge.histogram(tf.Variable(X)).kind.once
    assert ge.histogram(keras.Variable(np.zeros(3))).kind.once
    assert ge.text("a word").kind.max_outputs == 1
