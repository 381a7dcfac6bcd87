"""Predictions: in the input's order, when they are asked for, example by example."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline import ModeKeys
from pipeline.feed import feed as input_lib
from pipeline.feed.dataset import Source
from pipeline.loop import predictions
from pipeline.strategy.peers import Peers


def test_the_order_is_kept_and_stand_ins_are_left_out():
    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    feed = input_lib.make_feed(
        Source(lambda: tf.data.Dataset.range(5).batch(4), ModeKeys.PREDICT),
        peers=Peers(strategy),
    )
    calls = []

    def compiled(features):
        calls.append(len(features))
        return [{"double": 2 * f} for f in features]

    result = predictions.predict(compiled, feed)
    assert calls == []
    assert [p["double"].tolist() for p in result] == [[0, 2], [4, 6], [8]]
    assert calls == [2, 2]


BATCH = {"a": np.array([1, 2]), "b": np.array([[3, 4], [5, 6]])}


@pytest.mark.parametrize(
    ("keys", "chosen"), [(None, ["a", "b"]), ("b", ["b"]), (["b", "a"], ["b", "a"])]
)
def test_keys_choose(keys, chosen):
    assert list(predictions.choose(BATCH, keys)) == chosen


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        (
            BATCH,
            "predict_keys ['c'] are not among the predictions: write some of "
            "['a', 'b'].",
        ),
        (
            BATCH["a"],
            "predict_keys is ['a', 'c'], and predictions are no dict: leave "
            "predict_keys out, or return predictions={'name': tensor} from model_fn.",
        ),
    ],
)
def test_keys_that_there_are_not(batch, text):
    with pytest.raises(ValueError) as error:
        predictions.choose(batch, ["a", "c"])
    assert str(error.value) == text


def test_examples_of_a_nest():
    first, second = predictions.examples(BATCH)
    assert first["a"] == 1
    assert second["b"].tolist() == [5, 6]
    assert list(predictions.examples(np.array([7, 8]))) == [7, 8]


@pytest.mark.parametrize(
    "batch",
    [{"a": np.zeros(2), "b": np.zeros(3)}, {"a": np.zeros(2), "b": np.float32(1)}],
)
def test_examples_need_one_batch_dimension(batch):
    with pytest.raises(ValueError) as error:
        list(predictions.examples(batch))
    assert "do not share a batch dimension: give them one, or call predict(" in str(
        error.value
    )
