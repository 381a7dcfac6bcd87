"""Tables of users' mistakes and of the messages that answer them, and their check.

Each row makes a mistake by the public API and lists the texts that have to be in the
message: the value at fault, and the line to write instead. The error is a refusal of
this project, or an error of the user's own function with a note that says where.
"""

import keras
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.mistakes import user_errors
from tests import fakes

X, Y = fakes.classification_data(64)


class Table:
    """The mistakes of a test file by name, one row each.

        table = Table()

        @table.told("returned None", "write return tf.data.Dataset")
        def input_fn_returns_nothing(model_dir): ...

        @pytest.mark.parametrize("row", table.rows)
        def test_mistake(row, tmp_path):
            table.check(row, tmp_path)

    A row is a function of a model_dir, which makes the mistake there.
    """

    def __init__(self):
        self.rows = {}

    def told(self, *texts):
        """Adds the function below to the table, with the texts of its message."""

        def add(mistake):
            self.rows[mistake.__name__] = (mistake, texts)
            return mistake

        return add

    def check(self, row, model_dir):
        """Checks that the message of a mistake is ours, has the texts, and is short."""
        mistake, texts = self.rows[row]
        with pytest.raises(Exception) as info:
            mistake(model_dir)
        error = info.value
        assert user_errors.is_ours(error) or user_errors.is_noted(error), repr(error)
        assert not isinstance(error, tf.errors.OpError), repr(error)
        message = user_errors.text_of(error)
        for text in texts:
            assert text in message, message
        # TensorFlow's own message is a page with the frames of its files.
        assert "site-packages" not in message, message
        assert len(message.splitlines()) < 25, message


def data(x=X, y=Y, **options):
    return fakes.make_input_fn(x, y, batch_size=16, **options)


def train(model_dir, *, input_fn=None, max_steps=4, hooks=(), **options):
    estimator = fakes.make_estimator(model_dir, **options)
    return estimator.train(input_fn or data(), max_steps=max_steps, hooks=hooks)


def run(model_dir, *, eval_spec=None, input_fn=None, **options):
    estimator = fakes.make_estimator(model_dir, **options)
    ge.train_and_evaluate(
        estimator,
        ge.TrainSpec(input_fn or data(), max_steps=4),
        eval_spec or ge.EvalSpec(data()),
    )


def changed(**changes):
    """Returns a model_fn whose spec has other fields; a field of None is left out."""

    def model_fn(features, labels, mode, network, optimizer):
        logits = network(features)
        fields = {
            "loss": keras.losses.sparse_categorical_crossentropy(labels, logits, True),
            "train_op": ge.TrainOp(optimizer, network.trainable_variables),
        }
        made = {k: v(logits) if callable(v) else v for k, v in changes.items()}
        return ge.EstimatorSpec(mode, **{**fields, **made})

    return model_fn
