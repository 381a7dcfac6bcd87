"""What a sweep's own event file says, read by TensorFlow and by TensorBoard's code."""

import tensorflow as tf
from tensorboard.plugins.hparams import api_pb2, metadata

from pipeline import main
from pipeline.command import gin_config
from pipeline.trials import hparams, search
from pipeline.trials.definition import Definition
from pipeline.trials.goal import Goal

SPACE = search.read(
    [
        "RATE=log(1e-4, 1e-1)",
        "n=int(1, 500)",
        "units=choice(64, 128.0)",
        "flag=choice(True, False)",
        "net=choice(@cnn, 'mlp', 3)",
    ]
)


def test_the_columns_of_the_hparams_tab(tmp_path):
    goal = Goal(metric="accuracy", maximize=True)
    for _ in range(2):  # Written once.
        hparams.write(tmp_path, SPACE, goal, "eval_test")
    (path,) = tmp_path.iterdir()
    # Checksums are checked.
    records = [r.numpy() for r in tf.data.TFRecordDataset(str(path))]
    version, event = map(tf.compat.v1.Event.FromString, records)
    assert version.file_version == "brain.Event:2"
    (value,) = event.summary.value
    assert value.tag == metadata.EXPERIMENT_TAG
    assert value.metadata.plugin_data.plugin_name == metadata.PLUGIN_NAME
    assert tf.make_ndarray(value.tensor).shape == (0,)
    found = metadata.parse_experiment_plugin_data(value.metadata.plugin_data.content)
    kinds = {info.name: info.type for info in found.hparam_infos}
    assert kinds == {
        "RATE": api_pb2.DATA_TYPE_FLOAT64,
        "n": api_pb2.DATA_TYPE_FLOAT64,
        "units": api_pb2.DATA_TYPE_FLOAT64,
        "flag": api_pb2.DATA_TYPE_BOOL,
        "net": api_pb2.DATA_TYPE_STRING,
    }
    bounds = found.hparam_infos[0].domain_interval
    assert (bounds.min_value, bounds.max_value) == (1e-4, 1e-1)
    assert {info.differs for info in found.hparam_infos} == {True}
    (metric,) = found.metric_infos
    assert (metric.name.group, metric.name.tag) == ("eval_test", "accuracy")


def test_columns_have_the_names_that_trainings_write(fresh_gin):
    dimensions = search.read(
        ["LEARNING_RATE=log(1e-4, 1)", "cnn.dense=choice(1, (2,))"]
    )
    bindings = search.bindings(dimensions, {"LEARNING_RATE": 0.5, "cnn.dense": "(2,)"})
    gin_config.parse(["digits.gin"], bindings)
    found = gin_config.hparams()
    assert {each.name: found[each.name] for each in dimensions} == {
        "LEARNING_RATE": 0.5,
        "cnn.dense": "(2,)",
    }


def test_the_check_prints_the_configuration_and_then_what_is_of_this_machine(
    fresh_gin, capfd
):
    goal = Goal(metric="accuracy", maximize=True)
    space = search.read(["cnn.dropout=uniform(0, 0.5)"])
    definition = Definition(
        dimensions=space, goal=goal, arguments=["--gin_file=digits.gin"]
    )
    command = definition.check_command(python="python")
    assert main.main(["main", *command[3:]]) == 0
    text, _, rest = capfd.readouterr().out.partition("\njob ")
    assert text.rstrip("\n") == gin_config.config_text().rstrip("\n")
    assert "\nmodel_dir (a temporary one)" in rest
    space = search.read(["cnn.dropuot=uniform(0, 0.5)"])
    definition = Definition(dimensions=space, goal=goal, arguments=definition.arguments)
    assert main.main(["main", *definition.check_command(python="python")[3:]]) == 2
    assert "Did you mean dropout?" in capfd.readouterr().err
