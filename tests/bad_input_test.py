"""Mistakes in input_fn: one row a mistake, see `mistakes.py`.

Those in model_fn and its modules are in `bad_model_test.py`, those at checkpoints and
folders in `bad_checkpoint_test.py`, those in whatever else is handed in in
`bad_argument_test.py`, and those on the command line in `bad_command_test.py`.
"""

import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from tests import mistakes
from tests.mistakes import X, Y, data, run, train

table = mistakes.Table()
told = table.told


@told(
    "returned None, not a tf.data.Dataset",
    "write return tf.data.Dataset.from_tensor_slices((features, labels)).batch(32)",
)
def input_fn_returns_nothing(model_dir):
    def input_fn():
        data()()

    train(model_dir, input_fn=input_fn)


@told("returned tuple (array(", "write return tf.data.Dataset")
def input_fn_returns_arrays(model_dir):
    train(model_dir, input_fn=lambda: (X, Y))


@told("input_fn is _BatchDataset", "hand in the function, not its result")
def input_fn_is_a_dataset(model_dir):
    train(model_dir, input_fn=data()())


@told("yields tuples of 3", "(features, labels); example weights go into a dict")
def input_fn_yields_weights_as_a_third(model_dir):
    def input_fn():
        return tf.data.Dataset.from_tensor_slices((X, Y, Y)).batch(16)

    train(model_dir, input_fn=input_fn)


@told("yields no features: ({}, ", "at least one tensor")
def input_fn_yields_no_features(model_dir):
    def input_fn():
        return tf.data.Dataset.from_tensor_slices(({}, Y)).batch(16)

    train(model_dir, input_fn=input_fn)


@told("features float32 [6]", "labels int64 []", "return dataset.batch(32)")
def input_fn_without_batch(model_dir):
    train(model_dir, input_fn=lambda: tf.data.Dataset.from_tensor_slices((X, Y)))


@told("features int64 []", "return dataset.batch(32)")
def input_fn_without_batch_of_scalars(model_dir):
    train(model_dir, input_fn=lambda: tf.data.Dataset.from_tensor_slices((Y, Y)))


@told(
    "requires ['batch_sise']",
    "supplied are ['config', 'input_context', 'mode', 'params']",
    "give it a default",
)
def input_fn_takes_what_nobody_gives(model_dir):
    def input_fn(mode, batch_sise):
        return data()()

    train(model_dir, input_fn=input_fn)


@told(
    "KeyError: 'TRAIN'",
    "input_fn input_fn_raises",
    "mode 'train'",
    '{"train": data()}[mode.upper()]',
)
def input_fn_raises(model_dir):
    def input_fn(mode):
        return {"train": data()}[mode.upper()]

    train(model_dir, input_fn=input_fn)


@told("the input failed in mode 'train'", "no/such/file.txt; No such file")
def input_fn_reads_a_file_that_is_not_there(model_dir):
    def input_fn():
        lines = tf.data.TextLineDataset("no/such/file.txt")
        return lines.map(lambda line: (tf.zeros([6]), 0)).batch(16)

    train(model_dir, input_fn=input_fn)


@told(
    "Cannot reshape a tensor with 6 elements to shape [3,3]",
    "mode 'train'",
    "rows.map(parse)",
)
def input_fn_fails_on_a_row(model_dir):
    def parse(x, y):
        return tf.reshape(x, [3, 3]), y

    train(model_dir, input_fn=data(change=lambda rows: rows.map(parse)))


@told(
    "the input failed in mode 'train'",
    "KeyError: 'no such column'",
    'raise KeyError("no such column")',
)
def input_fn_fails_in_numpy(model_dir):
    def parse(x):
        raise KeyError("no such column")

    def change(rows):
        rows = rows.map(lambda x, y: (tf.numpy_function(parse, [x], tf.float32), y))
        return rows.map(lambda x, y: (tf.ensure_shape(x, [6]), y))

    train(model_dir, input_fn=data(change=change))


@told("model_fn classifier_fn", "features float32 [None, None]", "network(features")
def rows_of_other_widths(model_dir):
    def input_fn():
        ragged = tf.data.Dataset.range(16).map(lambda i: (tf.ones([i + 1]), i % 3))
        return ragged.batch(16)

    train(model_dir, input_fn=input_fn)


@told(
    "features of dtype float64 in mode 'eval'",
    "float32 in mode 'train'",
    "tf.cast(x, tf.float32)",
)
def another_dtype_in_eval(model_dir):
    run(model_dir, eval_spec=ge.EvalSpec(data(X.astype(np.float64))))


@told(
    "mode 'eval'",
    "features {x: float32 [None, 6]}",
    "In mode 'train' it worked on {features: float32 [None, 6]",
)
def another_structure_in_eval(model_dir):
    run(model_dir, eval_spec=ge.EvalSpec(data({"x": X})))


@told(
    "expected axis -1 of input shape to have value 6",
    "features float32 [None, 5]",
    "In mode 'train' it worked on {features: float32 [None, 6]",
)
def another_width_in_eval(model_dir):
    run(model_dir, eval_spec=ge.EvalSpec(data(X[:, :5])))


@told("mode 'eval'", "labels None", "dataset of (features, labels)", "loss=keras")
def no_labels_in_eval(model_dir):
    run(model_dir, eval_spec=ge.EvalSpec(data(y=None)))


@told("yielded no examples in mode 'train'", "Is the split empty")
def empty_data(model_dir):
    train(model_dir, input_fn=data(X[:0], Y[:0]))


@told("yielded no examples in mode 'eval'", "Is the split empty")
def empty_data_in_eval(model_dir):
    run(model_dir, eval_spec=ge.EvalSpec(data(X[:0], Y[:0])))


@told("never ends in mode EVAL", "drop its repeat(), or give")
def endless_data_in_eval(model_dir):
    run(model_dir, eval_spec=ge.EvalSpec(data(change=lambda rows: rows.repeat())))


@told("mode 'train'", "labels None", "dataset of (features, labels)", "loss=keras")
def labels_are_missing(model_dir):
    train(model_dir, input_fn=data(y=None))


@told("takes no `labels`", "return features alone")
def labels_that_nobody_takes(model_dir):
    def model_fn(features, mode, network, optimizer):
        raise AssertionError

    train(model_dir, model_fn=model_fn)


@told("metric 'accuracy'", "Cast string to float is not supported")
def labels_of_another_dtype(model_dir):
    train(model_dir, input_fn=data(y=np.array(["a"] * 64)))


@told("must have rank (ndim) `target.ndim - 1`", "labels int64 [None, 2]", "loss=keras")
def labels_of_another_shape(model_dir):
    train(model_dir, input_fn=data(y=np.zeros([64, 2], np.int64)))


@told(
    "mode 'train', one of the steps 1 to 2",
    "a label value of 3 which is outside the valid range of [0, 3)",
    "loss=keras",
    "RunConfig(steps_per_loop=1) tells the step",
)
def labels_out_of_range(model_dir):
    train(model_dir, input_fn=data(y=Y + 1), max_steps=2)


@told("mode 'eval', one of the steps 1 to", "a label value of 3", "loss=keras")
def labels_out_of_range_in_eval(model_dir):
    run(model_dir, eval_spec=ge.EvalSpec(data(y=Y + 1)))


@told("mode 'train'", "a label value of 3", "loss=keras")
def labels_out_of_range_on_two_replicas(model_dir):
    train(model_dir, input_fn=data(y=Y + 1), devices=("CPU:0", "CPU:1"))


@told(
    "the input failed in mode 'train'",
    "element of shape (5,) where an element of shape (6,) was expected",
)
def generator_of_other_shapes(model_dir):
    def input_fn():
        specs = tf.TensorSpec([6]), tf.TensorSpec([], tf.int64)
        rows = [(X[0], Y[0]), (X[0, :5], Y[0])]
        generated = tf.data.Dataset.from_generator(
            lambda: iter(rows), output_signature=specs
        )
        return generated.batch(1)

    train(model_dir, input_fn=input_fn)


@pytest.mark.parametrize("row", table.rows)
def test_mistake(row, tmp_path):
    table.check(row, tmp_path)
