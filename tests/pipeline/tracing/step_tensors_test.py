"""Tensors of model_fn that hooks are given: which values, in which order, when.

On two workers they are looked at in `players.py`, with parameter servers in
`parameter_server_test.py`, of several parts in `nested_features_test.py`.
"""

import logging

import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.tracing.step_tensors import StepTensors
from tests import fakes

X, Y = fakes.classification_data(rows=72)
WORDS = np.array([b"w%d\0" % i for i in range(len(X))], object)


def model_fn(features, labels, mode, network, optimizer):
    spec = fakes.classifier_fn(features["x"], labels, mode, network, optimizer, {})
    layer = network.layers[0]
    return ge.EstimatorSpec(
        mode,
        loss=spec.loss,
        train_op=spec.train_op,
        metrics=spec.metrics,
        summaries={"x": ge.histogram(features["x"])},
        tensors={
            "words": features["word"],
            "x/half": tf.cast(features["x"], tf.bfloat16),
            "is_one": labels == 1,
            "kernel": layer.kernel,
            "first": features["word"][0],
        },
    )


class Seen(ge.Hook):
    """Keeps tensors by step, and what summaries each report had."""

    every_steps = 1
    wants_tensors = True

    def __init__(self):
        self.tensors, self.summaries = {}, []

    def begin(self, run):
        assert run.report.tensors == {}

    def after_step(self, run):
        self.tensors[run.step] = run.report.tensors
        self.summaries += [run.step] if run.report.summaries else []


def trained(folder, hooks, *, rows=72, steps=None, **config):
    options = {"save_checkpoints_steps": 0, **config}
    estimator = fakes.make_estimator(folder, model_fn=model_fn, **options)
    features = {"x": X[:rows], "word": WORDS[:rows]}
    input_fn = fakes.make_input_fn(features, Y[:rows], batch_size=32)
    estimator.train(input_fn, max_steps=steps, hooks=hooks)
    return estimator


def test_examples_come_in_the_order_of_the_input(tmp_path):
    hook, ends = Seen(), [32, 64, 72]
    trained(tmp_path, [hook], run_eagerly=True, save_summary_steps=2)
    assert list(hook.tensors) == [1, 2, 3]
    for start, end, found in zip([0, *ends], ends, hook.tensors.values(), strict=False):
        assert found["words"].tolist() == WORDS[start:end].tolist()
        np.testing.assert_array_equal(found["is_one"], Y[start:end] == 1)
        half = tf.cast(X[start:end], tf.bfloat16).numpy()
        assert found["x/half"].dtype == half.dtype
        np.testing.assert_array_equal(found["x/half"], half)
        assert found["kernel"].shape == (6, 8)
        assert found["first"].shape == () and found["first"].item() == WORDS[start]
    assert hook.summaries == [2]


def test_lines_of_a_run_that_is_broken_off_and_goes_on(tmp_path, caplog):
    def logged():
        hooks = [
            ge.TensorHook(2, ["kernel"], formatter=lambda x: str(x["kernel"].shape)),
            ge.TensorHook(None, ("first",), at_end=True),
        ]
        eager = {"run_eagerly": True, "save_checkpoints_steps": 1}
        trained(tmp_path, hooks, rows=96, steps=steps, **eager)
        lines = [each.getMessage() for each in caplog.records]
        return [line for line in lines if line.startswith("train | step")]

    caplog.set_level(logging.INFO)
    steps = 1
    assert logged() == ["train | step 1 | first b'w0\\x00'"]
    caplog.clear()
    steps = 2
    assert logged() == [
        "train | step 2 | (6, 8)",
        "train | step 2 | first b'w32\\x00'",
    ]


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (
            ge.TensorHook(1, ["ids"]),
            r"wants \['ids'\] of EstimatorSpec, whose tensors ",
        ),
        (
            ge.TensorHook(1),
            r"wants tensors of .* are \[\]: write Esti.*={'ids': tensor",
        ),
    ],
)
def test_a_tensor_that_is_none_is_refused_before_training(tmp_path, hook, message):
    with pytest.raises(ValueError, match=message):
        fakes.make_estimator(tmp_path).train(
            fakes.make_input_fn(X, Y, batch_size=32), max_steps=1, hooks=[hook]
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensors": "ids"}, r"tensors is 'ids': write tensors=\['ids'\]"),
        ({"tensors": [1]}, r"tensors is \[1\]: write tensors=\['ids'\]"),
        ({"formatter": "x"}, "formatter is 'x': write formatter=str"),
        ({"every_steps": -1}, "TensorHook.every_steps"),
    ],
)
def test_a_bad_argument_is_told(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        ge.TensorHook(**options)


def declared(fn, rows=None, **options):
    """Returns `StepTensors` of `fn`'s result for a batch, and its spec."""
    made = []

    @tf.function(autograph=False)
    def trace(x):
        tensors = {"t": fn(x)}
        spec = ge.EstimatorSpec("infer", predictions=x, tensors=tensors)
        made.append(StepTensors(spec.tensors, rows=rows, **options))

    trace.get_concrete_function(tf.TensorSpec([rows, 4]))
    return made[0]


def spec_of(*values):
    return ge.EstimatorSpec("infer", predictions=1.0, tensors={"t": values[0]})


KERNEL = tf.Variable(tf.ones([4, 2]))


@pytest.mark.parametrize(
    ("fn", "rows", "joins"),
    [
        (lambda x: x @ KERNEL, None, True),
        (lambda x: x @ KERNEL, 4, True),
        (lambda x: tf.random.normal([4, 2]) @ tf.transpose(KERNEL), 4, True),
        (lambda x: tf.reshape(x, [-1]), 4, True),
        (lambda x: KERNEL * 2, 4, False),
        (lambda x: tf.matmul(x, x, transpose_a=True), 4, False),
        (lambda x: tf.reduce_mean(x, 0), None, False),
        (lambda x: x[0, 0], None, False),
        (lambda x: KERNEL + 0, None, False),
    ],
)
def test_which_tensors_have_a_row_for_each_example(fn, rows, joins):
    tensors = declared(fn, rows)
    values = [tf.cast(fn(tf.ones([4, 4])), tf.float32)] * 2
    states = [tensors.of(spec_of(value), None) for value in values]
    (key,) = states[0]
    both = {k: tf.concat([s[key][k] for s in states], 0) for k in states[0][key]}
    shape = tensors.seen({key: both})["t"].shape
    whole = values[0].shape
    assert shape == ((2 * whole[0], *whole[1:]) if joins else whole)


def test_examples_of_all_processes_are_joined_and_stand_ins_left_out():
    tensors = declared(lambda x: tf.strings.as_string(x))
    contents = []
    exchange = [lambda content: contents.append(content) or [content]]
    for rows, share in (([[b"a\0"], [b""]], None), ([[b"x"]], 0.0), ([[b"b"]], 1.0)):
        share = None if share is None else tf.constant(share)
        states = tensors.of(spec_of(tf.constant(rows)), share)
        if share is None or share > 0:
            tensors.seen(states, exchange[0])
        else:
            (state,) = states.values()
            assert state["parts"].numpy().tolist() == [[0, 1, 1]]
    found = tensors.seen(states, lambda _: contents)["t"]
    assert found.tolist() == [[b"a\0"], [b""], [b"b"]]


@pytest.mark.parametrize(
    ("fn", "shape"), [(lambda x: x, (0, 4)), (lambda x: x[0], (4,))]
)
def test_a_step_without_examples_has_none(fn, shape):
    tensors = declared(fn)
    value = fn(tf.ones([1, 4]))
    assert tensors.seen(tensors.of(spec_of(value), 0.0))["t"].shape == shape


def test_bfloat16_goes_from_process_to_process():
    tensors = declared(lambda x: tf.cast(x, tf.bfloat16))
    value = tf.cast([[1.0, 2.0, 3.0, 0.5]], tf.bfloat16)
    found = tensors.seen(tensors.of(spec_of(value), None), lambda own: [own, own])["t"]
    assert found.dtype == value.numpy().dtype
    assert found.tolist() == [[1.0, 2.0, 3.0, 0.5]] * 2


def test_examples_of_other_shapes_make_up_no_array():
    tensors = declared(lambda x: x)
    states = [tensors.of(spec_of(tf.ones([2, n])), None) for n in (3, 5)]
    (key,) = states[0]
    both = {k: tf.concat([s[key][k] for s in states], 0) for k in states[0][key]}
    with pytest.raises(ge.SpecError, match=r"shapes \[\(3,\), \(5,\)\] in one step"):
        tensors.seen({key: both})


@pytest.mark.parametrize(
    ("fn", "options", "message"),
    [
        (tf.strings.as_string, {}, "of strings, which XLA does not compile"),
        (tf.identity, {"micro_batches": 2}, r"write RunConfig\(jit_compile=False\)"),
    ],
)
def test_what_xla_cannot_compile_is_refused(fn, options, message):
    with pytest.raises(ge.SpecError, match=message):
        declared(fn, under_xla=True, **options).zeros()


def test_a_batch_with_other_tensors_is_refused():
    with pytest.raises(ge.SpecError, match="give the same ones for each"):
        declared(lambda x: x).of(spec_of(tf.constant(1.0)), None)
