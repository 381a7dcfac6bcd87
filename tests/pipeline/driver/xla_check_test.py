"""What fails on a CPU before a TPU is rented."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import models
import pipeline as ge
from pipeline import ModeKeys, main
from pipeline.driver import xla_check
from pipeline.feed import tpu_feed
from pipeline.strategy import tpu
from tests import fakes

ROWS = 64
DIGITS = ["main", "--gin_file=digits.gin", "--dry_run", "--execution=tpu"]
pytestmark = pytest.mark.usefixtures("fresh_gin")


def compiled(
    model_fn=fakes.classifier_fn, *, input_fn=None, network=fakes.network, **config
):
    if input_fn is None:
        data = fakes.classification_data(ROWS)
        input_fn = static(*data)
    return list(
        xla_check.compile_steps(
            model_fn,
            {"network": network, "optimizer": fakes.adam},
            [(ModeKeys.TRAIN, input_fn), (ModeKeys.EVAL, input_fn)],
            config=ge.RunConfig(execution="tpu", **config),
        )
    )


def static(x, y=None):
    def input_fn():
        data = tf.data.Dataset.from_tensor_slices(x if y is None else (x, y))
        return data.batch(16, drop_remainder=True)

    return input_fn


def with_change(change):
    """The classifier on features that `change` made."""

    def model_fn(features, labels, mode, network, optimizer, params):
        features = change(features)
        return fakes.classifier_fn(features, labels, mode, network, optimizer, params)

    return model_fn


def test_one_line_a_step():
    lines = compiled(
        network=lambda: fakes.network(batch_norm=True, dropout=0.2, l2=0.01)
    )
    assert [line.partition(",")[0] for line in lines] == [
        "train step: XLA compiled",
        "eval step: XLA compiled",
    ]


def test_the_whole_train_step_is_compiled(monkeypatch):
    """Forward, backward and update: the update's operations are in what XLA gets."""
    seen = {}
    ops = xla_check._ops

    def spy(graph):
        found = ops(graph)
        seen[len(seen)] = found
        return found

    monkeypatch.setattr(xla_check, "_ops", spy)
    compiled()
    train, evaluate = seen.values()
    assert "TanhGrad" in train
    assert "AssignSubVariableOp" in train
    assert "TanhGrad" not in evaluate


def test_micro_batches_are_compiled_too():
    assert len(compiled(gradient_accumulation_steps=2)) == 2


def strings(x):
    tf.strings.length(tf.strings.as_string(x))
    return x + tf.strings.to_number(tf.strings.as_string(x))


def prints(x):
    tf.print("sum", tf.reduce_sum(x))
    return x


def by_numpy(x):
    return tf.ensure_shape(tf.numpy_function(np.tanh, [x], tf.float32), x.shape)


def by_python(x):
    return tf.ensure_shape(tf.py_function(tf.tanh, [x], tf.float32), x.shape)


def grows(x):
    """A loop whose state changes its shape."""
    _, x = tf.while_loop(
        lambda i, _: i < 3,
        lambda i, a: (i + 1, tf.concat([a, a], 1)),
        (0, x),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([16, None])),
    )
    return tf.ensure_shape(x, [16, 48])


@pytest.mark.parametrize(
    ("change", "named", "line"),
    [
        (strings, "XLA cannot compile AsString", "tf.strings.as_string(x)"),
        (prints, "StringFormat (tf.print)", 'tf.print("sum", tf.reduce_sum(x))'),
        (by_numpy, "PyFunc (tf.numpy_function)", "tf.numpy_function(np.tanh"),
        (by_python, "EagerPyFunc (tf.py_function)", "tf.py_function(tf.tanh"),
        (grows, "XLA refuses it, and so would a TPU: Input and output shapes", "while"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_xla_refuses(change, named, line):
    with pytest.raises(ValueError) as error:
        compiled(with_change(change))
    text = str(error.value)
    assert text.startswith("train step: ")
    assert named in text
    assert "xla_check_test.py, line " in text
    assert line in text.splitlines()[-1]
    assert f"in {change.__name__}" in text


@pytest.mark.parametrize("module", [tf, keras, xla_check, tpu_feed, ge])
def test_lines_of_libraries_and_of_the_driver_are_not_the_users(module):
    lines = [f'File "{file}", line 1, in f' for file in (__file__, module.__file__)]
    text = xla_check._refused("\n".join(["Detected at", *lines]))
    assert f"  {__file__}, line 1, in f" in text


def test_a_table_belongs_in_input_fn():
    def lookup(x):
        found = table.lookup(tf.cast(x, tf.int64))
        return x + tf.cast(found, tf.float32)

    keys = tf.constant([1], tf.int64)
    values = tf.lookup.KeyValueTensorInitializer(keys, keys)
    table = tf.lookup.StaticHashTable(values, 0)
    with pytest.raises(ValueError, match=r"a lookup table\), .*do it in input_fn"):
        compiled(with_change(lookup))


def test_shapes_by_values_are_noted():
    """XLA on a CPU takes them, which says nothing of a TPU."""

    def change(x):
        positive = tf.reduce_sum(tf.boolean_mask(x, x > 0))
        return x + positive

    lines = compiled(with_change(change))
    assert len(lines) == 4
    assert "tf.where of one argument or tf.boolean_mask: the result's shape" in lines[1]


def spec(shape=(16, 3), dtype=tf.float32):
    return tf.TensorSpec(shape, dtype)


def refused(features, labels=None):
    with pytest.raises(ValueError) as error:
        tpu_feed.check_static((features, labels), input_fn="mine", mode="train")
    return str(error.value)


def test_a_static_input_passes():
    features = {"a": spec(), "b": [spec([16]), spec([16], tf.bfloat16)]}
    tpu_feed.check_static(
        (features, spec([16], tf.int64)), input_fn="mine", mode="eval"
    )


def test_a_batch_of_any_size():
    text = refused({"image": spec([None, 8, 8])})
    assert "input_fn mine yields in mode 'train' features['image']" in text
    assert "of shape [None, 8, 8]" in text
    assert "dataset.batch(BATCH, drop_remainder=True)" in text


def test_labels_are_named():
    assert "labels of shape [None]" in refused(spec(), spec([None]))


def test_rows_of_any_length():
    text = refused({"tokens": [spec(), spec([16, None])]})
    assert "features['tokens'][1] of shape [16, None]" in text
    assert "of dimension 1 it does not know the size" in text
    assert "padded_shapes" in text


def test_an_unknown_rank():
    assert "of shape [...]" in refused(tf.TensorSpec(None))


@pytest.mark.parametrize("dtype", [tf.string, tf.variant])
def test_types_of_the_host(dtype):
    text = refused({"word": spec([16], dtype)})
    assert f"features['word'] of type tf.{dtype.name}" in text
    assert "map it to ids in input_fn" in text


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        (tf.RaggedTensorSpec([16, None]), "x.to_tensor(shape=[BATCH, LENGTH])"),
        (tf.SparseTensorSpec([16, 9]), "dataset.map(tf.sparse.to_dense)"),
        (tf.OptionalSpec(spec()), "dense tensors only"),
    ],
    ids=["ragged", "sparse", "other"],
)
def test_what_is_not_dense(given, advice):
    assert advice in refused({"x": given})


def test_the_check_comes_before_the_compiler():
    x, y = fakes.classification_data(ROWS)

    def ragged():
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(16)

    with pytest.raises(ValueError, match="drop_remainder=True"):
        compiled(input_fn=ragged)


@pytest.mark.parametrize("layer", [keras.layers.Embedding, models.Embedding])
def test_integer_features_are_fed_as_they_are(layer):
    tokens = np.arange(ROWS, dtype=np.int32)

    def network():
        return keras.Sequential([layer(ROWS, 4), fakes.network()])

    lines = compiled(input_fn=static(tokens, tokens % 3), network=network)
    assert len(lines) == 2


def test_dry_run_of_the_digits(capsys, tmp_path):
    model_dir = tmp_path / "none"
    assert main.main([*DIGITS, f"--model_dir={model_dir}"]) == 2
    said = capsys.readouterr()
    assert "XLA compiled" not in said.out  # Inputs are checked first.
    text = said.err
    assert "digits_input_fn yields in mode 'eval' features of shape" in text
    assert "drop_remainder=True" in text
    assert main.main([*DIGITS, "--gin.digits_input_fn.drop_remainder=True"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "Estimator.model_fn = @classifier" in lines
    assert any(line.startswith("execution tpu") for line in lines)
    assert [line.partition(",")[0] for line in lines[-2:]] == [
        "train step: XLA compiled",
        "eval step: XLA compiled",
    ]
    assert not model_dir.exists()


def test_a_dry_run_for_so_many_cores(capsys):
    arguments = [*DIGITS, "--gin.digits_input_fn.drop_remainder=True"]
    assert main.main([*arguments, "--gin.tpu.num_replicas=6"]) == 2
    assert "does not divide among 6 replicas" in capsys.readouterr().err


def test_which_tpu_is_for_execution_tpu(capsys):
    arguments = ["main", "--gin_file=digits.gin", "--dry_run", "--tpu=mine"]
    assert main.main(arguments) == 2
    assert "add --execution=tpu, or leave them out" in capsys.readouterr().err


def test_the_flags_reach_the_row(capsys, monkeypatch):
    given = {}

    def connected(*which):
        given["which"] = which
        raise OSError("enough")

    monkeypatch.setattr(tpu, "connected", connected)
    with pytest.raises(OSError, match="enough"):
        main.main(
            [
                *(flag for flag in DIGITS if flag != "--dry_run"),
                *("--tpu=mine", "--tpu_zone=us-central1-b", "--tpu_project=p"),
                "--gin.tpu.num_replicas=4",
            ]
        )
    assert given["which"] == ("mine", "us-central1-b", "p", 4)


def test_a_tpu_that_is_not_there_is_said_in_a_line(capsys, tmp_path):
    """Without what gin adds of the call."""
    arguments = ["main", "--gin_file=digits.gin", "--execution=tpu", "--tpu=local"]
    assert main.main([*arguments, f"--model_dir={tmp_path}"]) == 2
    text = capsys.readouterr().err
    assert "\nerror: --tpu=local: no TPU was found (" in f"\n{text}"
    assert "In call to configurable" not in text
