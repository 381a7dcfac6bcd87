"""tpu_dry_run finds errors of TPU runs on a CPU."""

import dataclasses

import numpy as np
import pytest
import small
import tensorflow as tf

import gin_estimator as ge
from gin_estimator import main
from refusals import refused


def static_input():
    return tf.data.Dataset.from_tensor_slices((small.X, small.Y)).batch(8, drop_remainder=True)


def make(folder, fn=small.model_fn, **options):
    return small.make(folder / "run", fn=fn, execution="tpu", **options)


def dry_run(estimator, input_fn=static_input, **options):
    spec = ge.TrainSpec(input_fn, max_steps=100)
    return list(ge.debug.tpu_dry_run(estimator, spec, ge.EvalSpec(input_fn), **options))


def test_both_steps_are_compiled_and_nothing_is_written(tmp_path):
    lines = dry_run(make(tmp_path, gradient_accumulation_steps=2), num_replicas=2)
    assert [line.partition(": XLA compiled")[0] for line in lines] == ["train step", "eval step"]
    assert not (tmp_path / "run").exists()


def texts():
    data = tf.data.Dataset.from_tensor_slices(([["a"]] * 8, small.Y[:8]))
    return data.batch(8, drop_remainder=True)


def ragged():
    rows = tf.ragged.constant([[1.0], [1.0, 2.0]] * 4)
    return tf.data.Dataset.from_tensor_slices((rows, small.Y[:8])).batch(8, drop_remainder=True)


test_inputs_that_a_tpu_cannot_take = refused(
    lambda tmp_path, fn, number: dry_run(make(tmp_path), fn, num_replicas=number),
    (small.train_input, 1, r"expected a static shape. Use batch\(..., drop_remainder=True\)"),
    (texts, 1, "expected numbers. Map strings to ids in input_fn"),
    (ragged, 1, "expected a dense tensor"),
    (static_input, 3, "for 3 replicas: expected a number of rows that is a multiple of 3"),
    fixtures=["tmp_path"],
)


@pytest.mark.slow
def test_numpy_metrics_and_summaries_are_compiled_and_refused(tmp_path):
    def make_fn(**options):
        def model_fn(features, labels, mode, network, optimizer):
            spec = small.model_fn(features, labels, mode, network, optimizer)
            shown = {name: make(features) for name, make in options.items()}
            return dataclasses.replace(spec, **shown)

        return model_fn

    def summaries(x):
        return {
            "x": ge.summary.histogram(x),
            "picture": ge.summary.image(x[:, None], highest=x[:, 0]),
        }

    shown = {
        "metrics": lambda x: {"sum": ge.numpy_metric(np.sum, x)},
        "summaries": summaries,
        "tensors": lambda x: {"ids": x},
    }
    assert len(dry_run(make(tmp_path, make_fn(**shown)))) == 2
    for options, text in (
        (
            {"summaries": lambda x: {"x": ge.summary.text(tf.constant(["a"]))}},
            "has the texts .'x'.: expected none on a TPU",
        ),
        (
            {"metrics": lambda x: {"sum": ge.numpy_metric(np.sum, tf.reduce_sum(x))}},
            r"numpy_metric\(\) has .*expected tensors \[batch, ...\]",
        ),
        (
            {"metrics": lambda x: {"names": ge.numpy_metric(len, tf.constant(["a"] * 8))}},
            "XLA cannot compile the step of mode 'eval'",
        ),
    ):
        with pytest.raises(ge.UserError, match=text):
            dry_run(make(tmp_path, make_fn(**options)))


@pytest.mark.slow
def test_an_operation_that_xla_cannot_compile(tmp_path):
    def prints(features, labels, mode, network, optimizer):
        if mode == ge.ModeKeys.EVAL:
            tf.print("evaluated", features)
        return small.model_fn(features, labels, mode, network, optimizer)

    with pytest.raises(ge.errors.UserValueError) as error:
        dry_run(make(tmp_path, prints))
    text = str(error.value)
    assert text.startswith("XLA cannot compile the step of mode 'eval'")
    assert "StringFormat" in text
    assert f'File "{__file__}", line' in text and "pipeline" not in text
    assert 'tf.print("evaluated", features)' in text
    assert len(text.splitlines()) < 12


@pytest.mark.slow
def test_the_command(gin_folder, capsys):
    flags = ["main", "--gin_file=linear.gin", "--execution=tpu", "--dry_run"]
    assert main.main(flags) == 2
    assert "drop_remainder=True" in capsys.readouterr().err
    assert main.main([*flags, "--gin.numpy_input_fn.drop_remainder=True"]) == 0
    assert "eval step: XLA compiled it in" in capsys.readouterr().out
    assert [path.name for path in gin_folder.iterdir()] == ["gin"]
