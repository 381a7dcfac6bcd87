"""What is said of a run at its start: parameters and hyperparameters."""

import logging as python_logging
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import logging
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2

import pipeline as ge
from pipeline.command import gin_config
from pipeline.contract.hooks import Run
from pipeline.strategy import sharding
from pipeline.strategy.modules import Modules
from pipeline.tools import description
from tests import fakes

X, Y = fakes.classification_data(32)
SESSION, END = "_hparams_/session_start_info", "_hparams_/session_end_info"


def table_of(**factories):
    strategy = tf.distribute.get_strategy()
    return description.parameter_table(Modules(factories, strategy))


def frozen():
    layer = keras.layers.Dense(4, use_bias=False)
    layer.trainable = False
    return layer


def test_layers_and_totals():
    def network():
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input([8]),
                layers.Dense(16, "relu"),
                layers.BatchNormalization(),
                layers.Dropout(0.5, seed=1),
                frozen(),
            ]
        )

    head = tf.Variable(np.zeros([4, 250_000], np.float16))
    lines = table_of(
        network=network,
        head=lambda: head,
        count=lambda: tf.Variable(3, trainable=False),
        optimizer=keras.optimizers.SGD,
    )
    head, *rows = lines
    assert head == "parameters 1,000,273 (1,000,176 trainable, 97 not) | 2.0 MB"
    assert len({len(row) for row in rows}) == 1, "columns"
    assert [re.split("  +", row) for row in rows] == [
        ["network/dense", "(8, 16) (16,)", "144", "0.6 kB"],
        [
            "network/batch_normalization",
            "(16,) (16,) (16,) (16,) | 32 not trainable",
            "64",
            "0.3 kB",
        ],
        ["network/dense_1", "(16, 4) | all not trainable", "64", "0.3 kB"],
        ["head", "(4, 250000)", "1,000,000", "2.0 MB"],
        ["count", "() | all not trainable", "1", "0.0 kB"],
        ["optimizer", "SGD, 2 variables", "2", "0.0 kB"],
    ]


def test_what_is_long_is_cut_and_the_rest_is_counted():
    def network():
        layers = [keras.layers.Dense(2) for _ in range(30)]
        return keras.Sequential([keras.Input([2]), *layers])

    head, *lines = table_of(network=network, many=lambda: keras.layers.LSTM(3))
    assert head.startswith("parameters 180 (180 trainable, 0 not)")
    assert len(lines) == 21
    assert lines[-1].split() == [
        "network/...",
        "10",
        "more",
        "layers",
        "60",
        "0.2",
        "kB",
    ]


class Cut(tf.Module):
    """A table in shards, as parameter servers hold it."""

    def __init__(self):
        super().__init__()
        shards = [tf.Variable(tf.zeros([rows, 4])) for rows in (3, 2)]
        self.table = sharding.ShardedVariable(shards)


def test_a_table_in_shards_counts_as_a_whole():
    head, row = table_of(embedding=Cut)
    assert head == "parameters 20 (20 trainable, 0 not) | 0.1 kB"
    assert re.split("  +", row)[1:3] == ["(5, 4)", "20"]


@pytest.mark.parametrize("shape", [[None, 2], None])
def test_a_variable_of_any_size_has_a_row(shape):
    table = table_of(log=lambda: tf.Variable([[1.0, 2.0]], shape=shape))
    assert [row.split()[0] for row in table] == ["parameters", "log"]


def test_nothing_to_count():
    assert table_of() == ["parameters 0 (0 trainable, 0 not) | 0.0 kB"]


@pytest.fixture
def train(tmp_path, caplog):
    """Trains to a step; returns what was logged of the parameters since."""
    made = {}

    def to(step, again=False, **options):
        if again or not made:
            options = {"save_summary_steps": 2, "params": {"size": 3}, **options}
            made["it"] = fakes.make_estimator(tmp_path, **options)
        before = logging.get_verbosity()
        logging.set_verbosity(logging.INFO)
        caplog.clear()
        with caplog.at_level(python_logging.INFO, logger="absl"):
            made["it"].train(
                fakes.make_input_fn(X, Y, batch_size=8, change=lambda d: d.repeat()),
                max_steps=step,
            )
        logging.set_verbosity(before)
        texts = [record.getMessage() for record in caplog.records]
        return [text for text in texts if text.startswith("train | parameters")]

    return to


def events(folder):
    read = EventAccumulator(str(folder))
    read.Reload()
    return read


def hparams_of(folder):
    metadata = events(folder).SummaryMetadata(SESSION)
    assert metadata.plugin_data.plugin_name == "hparams"
    content = metadata.plugin_data.content
    info = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info
    assert info.start_time_secs > 1.6e9
    kinds = {name: info.hparams[name].WhichOneof("kind") for name in info.hparams}
    return {name: getattr(info.hparams[name], kind) for name, kind in kinds.items()}


def test_it_is_said_once(train, tmp_path):
    (text,) = train(2)
    assert text.splitlines()[0] == (
        "train | parameters 83 (83 trainable, 0 not) | 0.3 kB"
    )
    assert len(text.splitlines()) == 4
    assert train(4) == []
    (value,) = events(tmp_path).Tensors("parameters")
    assert value.step == 0
    assert b"network/dense_1" in value.tensor_proto.string_val[0]
    assert hparams_of(tmp_path) == {"size": 3.0}
    # Else HParams shows a run that goes on for ever.
    content = events(tmp_path).SummaryMetadata(END).plugin_data.content
    info = plugin_data_pb2.HParamsPluginData.FromString(content).session_end_info
    assert info.status == api_pb2.STATUS_SUCCESS
    assert info.end_time_secs > 1.6e9


def test_without_summaries_there_are_no_events(train, tmp_path):
    assert len(train(2, save_summary_steps=None)) == 1
    assert not list(tmp_path.glob("events.*"))


def test_hyperparameters_of_all_kinds(tmp_path):
    long = "x" * 20_000
    given = {"rate": 1e-3, "size": 3, "on": True, "net": "@cnn", "ä": long}
    hook = description.DescriptionHook([], given, writes_events=True)
    for step in (0, 5):  # Training goes back, and begins again.
        run = Run(str(tmp_path), step, None)
        hook.begin(run)
    run.request_stop("preempted")
    hook.end(run)
    assert END not in events(tmp_path).PluginTagToContent("hparams")
    assert hparams_of(tmp_path) == given
    assert len(list(tmp_path.glob("events.*"))) == 1


def test_gin_says_what_was_bound():
    gin_config.parse(
        ["gin/digits.gin"], ["cnn.dropout=0.3", "BATCH_SIZE=32", "Adam.name='mine'"]
    )
    found = gin_config.hparams()
    assert found["BATCH_SIZE"] == 32
    assert found["cnn.dropout"] == 0.3
    assert found["cnn.filters"] == "(16, 32)"
    assert found["Estimator.model_fn"] == "@classifier"
    assert found["Adam.name"] == "mine"
    assert found["BestExporter.higher_is_better"] is True
    # Its value is the macro's.
    assert "digits_input_fn.batch_size" not in found
    assert "Estimator.modules" not in found
    ge.RunConfig(hparams=found)
