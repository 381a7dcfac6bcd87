"""Summaries: what TensorBoard shows of one step and of a whole evaluation."""

import logging
import math
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import gin_estimator as ge
from small import make, strategy

RNG = np.random.default_rng(0)
ROWS, BATCH = 22, 8  # The last batch has six examples.
X = RNG.normal(size=(ROWS, 4)).astype("float32")
Y = RNG.integers(3, size=ROWS)
CLASSES = X[:, :3].argmax(1)
SCORE = RNG.permutation(ROWS).astype("float32")
DATA = {"x": X, "score": SCORE, "id": np.arange(ROWS, dtype="float32")}


def input_fn():
    return tf.data.Dataset.from_tensor_slices((DATA, Y)).batch(BATCH)


def model_fn(features, labels, mode, network, optimizer):
    logits = network(features["x"])
    summaries = {}
    if TAKES:
        pixels = tf.tile(features["id"][:, None, None] / 255, [1, 2, 3])
        summaries = {
            "first": ge.summary.image(pixels, 3),
            "worst": ge.summary.image(pixels, 3, highest=features["score"]),
            "text": ge.summary.text(tf.strings.as_string(tf.cast(features["id"], tf.int32)), 2),
            "x": ge.summary.histogram(features["x"]),
            "kernel": ge.summary.histogram(network.kernel),
            "curve": ge.summary.pr_curve(labels == 1, tf.nn.sigmoid(features["x"][:, 0]), 5),
            "matrix": ge.summary.confusion_matrix(
                labels, tf.argmax(features["x"][:, :3], -1), 3, "abc"
            ),
        }
    return ge.EstimatorSpec(
        mode,
        loss=keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True),
        train_op=ge.TrainOp(optimizer, network.trainable_variables),
        tensors={"id": features["id"]},
        summaries=summaries,
    )


TAKES = True


def network():
    return keras.layers.Dense(3, kernel_initializer="zeros")


def values(folder):
    """Returns `{tag: {step: value}}` of the event files in a folder; the values are tensors."""
    found = {}
    for path in sorted(pathlib.Path(folder).glob("events.*")):
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            for value in event.summary.value:
                if value.HasField("tensor"):
                    found.setdefault(value.tag, {})[event.step] = value
    return found


def array(value):
    return tf.make_ndarray(value.tensor)


def ids(value):
    """Returns the first pixel of each picture."""
    width, height, *pictures = array(value)
    assert (width, height) == (b"3", b"2")
    return [int(tf.io.decode_png(each)[0, 0, 0]) for each in pictures]


def check(found, rows):
    """Checks the summaries of some rows at one step."""
    rows = np.arange(ROWS)[rows]
    assert ids(found["first"]) == rows[:3].tolist()
    assert ids(found["worst"]) == rows[np.argsort(-SCORE[rows])][:3].tolist()
    assert array(found["text"]).tolist() == [str(i).encode() for i in rows[:2]]
    left, right, counts = array(found["x"]).T
    assert counts.sum() == X[rows].size and (left[1:] == right[:-1]).all()
    below = (X[rows] < left[15]).sum()
    assert abs(counts[:15].sum() - below) <= 4  # Buckets are 2 % wide.
    assert left[0] <= X[rows].min() <= left[0] * 0.97 and right[-1] >= X[rows].max()
    probability, label = 1 / (1 + np.exp(-X[rows, 0])), Y[rows] == 1
    for index, threshold in enumerate([0, 0.25, 0.5, 0.75, 1]):
        taken = probability >= threshold
        counts = [
            (taken & label).sum(),
            (taken & ~label).sum(),
            (~taken & ~label).sum(),
            (~taken & label).sum(),
        ]
        np.testing.assert_array_equal(array(found["curve"])[:4, index], counts)
    assert found["curve"].metadata.plugin_data.content == b"\x10\x05"
    matrix = tf.math.confusion_matrix(Y[rows], CLASSES[rows], 3).numpy()
    [table] = array(found["matrix/table"])
    for name, row in zip("abc", matrix, strict=True):
        assert f"| **{name}** | {' | '.join(map(str, row))} |" in table.decode()
    _, _, picture = array(found["matrix"])
    pixels = tf.io.decode_png(picture).numpy()[::86, ::86, 0]
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    np.testing.assert_array_equal(pixels, np.round(255 * (1 - shares)))


class Ids(ge.Hook):
    """Wants tensors, and summaries if it `takes` them, at other steps than TensorBoard."""

    every_steps = 3
    wants_tensors = wants_summaries = True

    def after_step(self, run):
        self.tensors, self.summaries = run.report.tensors, run.report.summaries


@pytest.mark.thin
@pytest.mark.parametrize("name", ["default", "mirrored 2"])
def test_summaries_of_steps_and_of_evaluations(name, tmp_path, monkeypatch):
    hook, weights = Ids(), []
    for takes in (True, False):
        monkeypatch.setitem(globals(), "TAKES", takes)
        one = make(
            tmp_path / str(takes),
            fn=model_fn,
            network=network,
            save_summary_steps=2,
            train_distribute=strategy(name),
        )
        spec = ge.EvalSpec(input_fn)
        ge.train_and_evaluate(one, ge.TrainSpec(input_fn, 3, [hook] if takes else []), spec)
        weights.append(one.get_variable_value("network/kernel"))
    np.testing.assert_array_equal(*weights)
    found = values(tmp_path / "True")
    names = {"first", "worst", "text", "x", "kernel", "curve", "matrix", "matrix/table"}
    assert names <= set(found) and all(set(found[each]) == {2} for each in names)
    check({tag: by_step[2] for tag, by_step in found.items() if tag in names}, slice(8, 16))
    assert array(found["kernel"][2])[:, 2].sum() == 12  # Once, not by replica.
    evaluated = values(tmp_path / "True/eval")
    assert set(evaluated) == names
    check({tag: by_step[3] for tag, by_step in evaluated.items()}, slice(None))
    assert hook.tensors["id"].tolist() == list(range(16, 22))
    assert hook.summaries["text"].tensors["text"].tolist() == [b"16", b"17"]
    assert not set(values(tmp_path / "False")) & names


def test_steps_compute_tensors_and_summaries_only_if_a_hook_wants_them(tmp_path):
    computed = {"x": [], "id": []}

    def counted(name, tensor):
        def count(array):
            computed[name].append(int(array.ravel()[0]))
            return array

        result = tf.numpy_function(count, [tensor], tensor.dtype, stateful=False)
        return tf.ensure_shape(result, tensor.shape)

    def counting_fn(features, labels, mode, network, optimizer):
        spec = model_fn(features, labels, mode, network, optimizer)
        ids = features["id"] // BATCH + 1  # The steps, in a training of one pass.
        return ge.EstimatorSpec(
            mode,
            loss=spec.loss,
            train_op=spec.train_op,
            tensors={"id": counted("id", ids)},
            summaries={"x": ge.summary.histogram(counted("x", ids))},
        )

    one = make(tmp_path, fn=counting_fn, network=network, save_summary_steps=2)
    one.train(input_fn, [ge.hooks.TensorHook(3)])
    assert computed == {"x": [2], "id": [2, 3]}


def test_values_out_of_range_are_left_out_and_logged_once(tmp_path, caplog):
    def bad_fn(features, labels, mode, network, optimizer):
        spec = model_fn(features, labels, mode, network, optimizer)
        x = tf.where(features["x"] > 1, math.nan, features["x"])
        summaries = {
            "nan": ge.summary.histogram(x),
            "logits": ge.summary.pr_curve(labels == 1, features["x"][:, 0]),
            "picture": ge.summary.image(tf.reshape(x, [-1, 2, 2]), 1, value_range=(-1, 1)),
            "none": ge.summary.histogram(x * math.nan),
        }
        return ge.EstimatorSpec(mode, loss=spec.loss, train_op=spec.train_op, summaries=summaries)

    one = make(tmp_path, fn=bad_fn, network=network, save_summary_steps=1)
    with caplog.at_level(logging.WARNING):
        one.train(input_fn, max_steps=2)
    warned = [line for line in caplog.messages if "leaves out" in line]
    assert len(warned) == 3 and f"'nan' leaves out {(X[:8] > 1).sum()} values" in warned[0]
    found = values(tmp_path)
    assert set(found["picture"]) == {1, 2} and "none" not in found
    assert array(found["nan"][1])[:, 2].sum() == (X[:8] <= 1).sum()


@pytest.mark.parametrize(
    "make_summary, text",
    [
        (
            lambda: ge.summary.image(tf.zeros([2, 3])),
            r"image.. got float32 \(2, 3\): expected uint8",
        ),
        (lambda: ge.summary.image(tf.zeros([2, 3, 3], tf.int32)), "got int32"),
        (lambda: ge.summary.image(tf.zeros([2, 3, 3]), 0), "max_outputs=0.: expected an int >= 1"),
        (
            lambda: ge.summary.image(tf.zeros([2, 3, 3]), value_range=(1, 0)),
            "expected a pair such as",
        ),
        (lambda: ge.summary.image(tf.zeros([2, 3, 3]), highest=tf.zeros([2, 1])), "got highest of"),
        (lambda: ge.summary.text(tf.zeros([2])), "text.. got float32"),
        (lambda: ge.summary.histogram(1.0), "EstimatorSpec.scalars"),
        (lambda: ge.summary.histogram(["a"]), "histogram.. got string"),
        (lambda: ge.summary.histogram(object()), "expected a tensor"),
        (lambda: ge.summary.pr_curve([0, 1], [[0.0], [1.0]]), "got the shapes"),
        (lambda: ge.summary.pr_curve([0, 1], [0, 1]), "expected floats from 0 to 1"),
        (lambda: ge.summary.pr_curve([0], [0.0], 1), "num_thresholds=1.: expected an int >= 2"),
        (lambda: ge.summary.confusion_matrix([0.0], [0], 2), "expected class numbers"),
        (lambda: ge.summary.confusion_matrix([0], [0], 1001), "expected an int from 1 to 1000"),
        (lambda: ge.summary.confusion_matrix([0], [0], 2, ["a"]), "1 class_names for 2 classes"),
        (
            lambda: ge.EstimatorSpec("infer", {"x": [1.0]}, summaries={"x": 1.0}),
            r"summaries\['x'\] is 1.0: expected a summary",
        ),
        (
            lambda: ge.EstimatorSpec(
                "infer", {"x": [1.0]}, summaries={"loss": ge.summary.text("a")}
            ),
            "summary called 'loss'",
        ),
    ],
)
def test_refusals(make_summary, text):
    with pytest.raises(ge.errors.SpecError, match=text):
        make_summary()


def test_texts_are_refused_under_xla(tmp_path):
    one = make(tmp_path, fn=model_fn, network=network, jit_compile=True)
    with pytest.raises(ge.errors.SpecError, match="has the texts .'text'.: expected none on a TPU"):
        one.train(input_fn, max_steps=1)
