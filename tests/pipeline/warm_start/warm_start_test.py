"""Warm start: what comes along, what stays, and what the log says of it."""

import ast
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import logging as absl_logging

import pipeline as ge
from pipeline.checkpoints import checkpoint
from pipeline.warm_start.warm_start import warm_start
from tests import fakes

TABLE = tf.lookup.experimental.MutableHashTable
SAVED = {"net": {"a/kernel": [1.0, 2.0], "b": [3.0]}, "driver": {"global_step": [7]}}
OTHER = {"net": {"a/kernel": [0.0, 0.0], "b": [0.0]}, "driver": {"global_step": [0]}}


OPTIMIZERS = {"optimizer": keras.optimizers.SGD()}


def state(**modules):
    """State by module and name; a number or a list becomes a variable."""
    return {
        module: {
            name: tf.Variable(value) if isinstance(value, (list, int, float)) else value
            for name, value in named.items()
        }
        for module, named in modules.items()
    }


def save(directory, saved):
    return checkpoint.Saver(str(directory), saved).save(1)


def values(of):
    return {
        f"{m}/{n}": v.numpy().tolist()
        for m, named in of.items()
        for n, v in named.items()
    }


def test_it_takes_all_of_the_model(tmp_path):
    """Frozen weights and statistics too, but neither an optimizer nor a stream."""
    left = {
        "optimizer": {"iteration": 3, "momentum/net/b": [2.0]},
        "net": {"dropout/seed_generator_state": [1, 2]},
    }
    path = save(tmp_path, state(**SAVED | left | {"net": SAVED["net"] | left["net"]}))
    other = state(
        net=OTHER["net"] | {"dropout/seed_generator_state": [7, 7]},
        optimizer={"iteration": 0, "momentum/net/b": [0.0]},
        driver={"global_step": [0]},
    )
    other["net"]["b"] = tf.Variable([0.0], trainable=False)
    warm_start(other, path, modules=OPTIMIZERS)
    assert values(other) == {
        "net/a/kernel": [1.0, 2.0],
        "net/b": [3.0],
        "net/dropout/seed_generator_state": [7, 7],
        "optimizer/iteration": 0,
        "optimizer/momentum/net/b": [0.0],
        "driver/global_step": [0],
    }


OPTIMIZER = {"iteration": 3, "learning_rate": 0.5, "u_product": 0.25, "m/net/b": [2.0]}


@pytest.mark.parametrize(
    ("options", "taken"),
    [
        ({"vars_to_warm_start": ".*"}, {"m/net/b"}),
        ({"vars_to_warm_start": ["optimizer/iteration", "net/b"]}, {"iteration"}),
        (
            {"learning_rates_and_iterations": True},
            {"iteration", "learning_rate", "u_product"},
        ),
        (
            {"vars_to_warm_start": ".*", "learning_rates_and_iterations": True},
            {*OPTIMIZER},
        ),
    ],
)
def test_learning_rates_and_iterations_come_only_where_asked_for(
    options, taken, tmp_path
):
    path = save(tmp_path, state(**SAVED, optimizer=OPTIMIZER))
    own = {name: [0.0] if name[0] == "m" else 0 * v for name, v in OPTIMIZER.items()}
    other = state(**OTHER, optimizer=own)
    settings = ge.WarmStartSettings(path, **options)
    warm_start(other, settings, modules=OPTIMIZERS)
    found = {n: v.numpy().tolist() for n, v in other["optimizer"].items()}
    assert found == own | {name: OPTIMIZER[name] for name in taken}


@pytest.mark.parametrize(
    ("chosen", "taken"),
    [
        (".*/kernel", {"net/a/kernel"}),
        (["net/a/.*", "net/b"], {"net/a/kernel", "net/b"}),
        (".*", {"net/a/kernel", "net/b"}),
    ],
)
def test_warm_start_by_name(chosen, taken, tmp_path):
    save(tmp_path, state(**SAVED))
    other = state(**OTHER)
    settings = ge.WarmStartSettings(str(tmp_path), vars_to_warm_start=chosen)
    warm_start(other, settings)
    changed = {n for n, v in values(other).items() if any(v)}
    # The step is the run's own, whatever the expression.
    assert changed == taken


def test_warm_start_from_other_names_is_logged(tmp_path, log):
    path = save(tmp_path, state(**SAVED))
    other = state(head={"kernel": [0.0, 0.0]})
    settings = ge.WarmStartSettings(
        path, var_name_to_prev_var_name={"head/kernel": "net/a/kernel"}
    )
    warm_start(other, settings)
    assert values(other) == {"head/kernel": [1.0, 2.0]}
    assert log()[-1] == (
        f"warm start | 1 of 1 from {path}\n"
        "  taken over   from there\n"
        "  head/kernel  net/a/kernel"
    )


def test_warm_start_from_what_is_not_there(tmp_path):
    path = save(tmp_path, state(**SAVED))
    other = state(net={"a/kernel": [0.0], "c": [0.0]})
    with pytest.raises(ge.CheckpointMismatchError) as error:
        warm_start(other, path)
    assert (
        f"cannot start warm from {path}: it lacks ['net/c']; of another shape are "
        "['net/a/kernel: [1] in the model, [2] saved']. It holds ['driver/global_step'"
    ) in str(error.value)
    assert str(error.value).endswith(
        "Nothing that was chosen fits: leave warm_start_from out."
    )
    assert values(other) == {"net/a/kernel": [0.0], "net/c": [0.0]}


def test_warm_start_of_another_head_says_how_to_take_the_rest(tmp_path):
    net = {"a-1/kernel": [1.0], "a-1/bias": [2.0], "b/kernel": [3.0], "c": [4.0]}
    save(tmp_path, state(**SAVED | {"net": net}, top={"x/y": [5.0], "z": [6.0]}))
    other = {**net, "b/kernel": [0.0, 0.0]}
    model = {"net": other, "top": {"x/y": [0.0], "z": [0.0]}}
    with pytest.raises(ge.CheckpointMismatchError) as error:
        warm_start(state(**model), str(tmp_path))
    line = re.search(
        r"WarmStartSettings\('/.*', vars_to_warm_start=(.*)\)\.$", str(error.value)
    )
    chosen = ast.literal_eval(line[1])
    assert chosen == [r"net/a\-1/.*", "net/c", "top/.*"]
    again = state(**model)
    warm_start(again, ge.WarmStartSettings(str(tmp_path), vars_to_warm_start=chosen))
    assert values(again)["net/a-1/bias"] == [2.0]
    assert values(again)["top/z"] == [6.0]
    assert values(again)["net/b/kernel"] == [0.0, 0.0]


@pytest.mark.parametrize("source", ["absent", "", "model.ckpt-9"])
def test_warm_start_from_no_checkpoint(source, tmp_path):
    with pytest.raises(ValueError) as error:
        warm_start(state(**OTHER), str(tmp_path / source))
    assert "no checkpoint to start warm from at" in str(error.value)
    words = "give a model_dir, a prefix such as runs/a/model.ckpt-1000, or runs/a/best."
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"vars_to_warm_start": "nett/.*"}, "nett/.*"),
        ({"var_name_to_prev_var_name": {"net/x": "net/b"}}, "net/x"),
    ],
)
def test_warm_start_by_a_name_that_is_not_there(options, text, tmp_path):
    path = save(tmp_path, state(**SAVED))
    with pytest.raises(ValueError) as error:
        warm_start(state(**OTHER), ge.WarmStartSettings(path, **options))
    assert text in str(error.value)


def test_a_table_comes_along(tmp_path):
    words = [TABLE(tf.string, tf.int64, -1) for _ in range(2)]
    words[0].insert("a", tf.constant(5, tf.int64))
    path = save(tmp_path, state(**SAVED, words={"": words[0]}))
    warm_start(state(**OTHER, words={"": words[1]}), path)
    assert int(words[1].lookup(tf.constant("a"))) == 5


def test_one_table_fills_two(tmp_path):
    words = [TABLE(tf.string, tf.int64, -1) for _ in range(3)]
    words[0].insert("a", tf.constant(5, tf.int64))
    path = save(tmp_path, state(**SAVED, words={"": words[0]}))
    names = dict.fromkeys(("first", "second"), "words")
    settings = ge.WarmStartSettings(path, "first|second", names)
    warm_start(state(**OTHER, first={"": words[1]}, second={"": words[2]}), settings)
    assert [int(table.lookup(tf.constant("a"))) for table in words[1:]] == [5, 5]


def test_the_table_in_the_log_is_short_and_its_whole_is_for_debugging(
    tmp_path, log, caplog
):
    many = {f"block_{i}/layer_{j}/kernel": 1.0 for i in range(9) for j in range(9)}
    path = save(tmp_path, state(**SAVED | {"net": many}, optimizer={"iteration": 1}))
    other = state(net=many, optimizer={"iteration": 1}, head={"kernel": 1.0})
    settings = ge.WarmStartSettings(path, vars_to_warm_start="net/.*")
    absl_logging.set_verbosity(absl_logging.DEBUG)
    with caplog.at_level("DEBUG", logger="absl"):
        warm_start(other, settings, modules=OPTIMIZERS)
    short, whole = (text.splitlines() for text in log()[-2:])
    assert short == [
        f"warm start | 81 of 83 from {path}",
        "  taken over           from there",
        *[f"  net/block_{i}/*        net/block_{i}/*  (9)" for i in range(9)],
        "  left as it is        why",
        "  optimizer/iteration  not in vars_to_warm_start",
        "  head/kernel          not in vars_to_warm_start",
    ]
    assert len(whole) == 1 + 1 + 81 + 1 + 2
    assert len({line.index("n", 40) for line in whole[2:83]}) == 1


# The rest is on a run of a network with state of many kinds.

X, Y = fakes.classification_data(rows=16)
TRAIN = fakes.make_input_fn(X, Y, batch_size=8, change=lambda d: d.repeat())
PREDICT = fakes.make_input_fn(X, batch_size=16)
CONFIG = {"save_summary_steps": None, "log_step_count_steps": None}


class TwoHeads(keras.Model):
    """A network of which PREDICT does not call the second head."""

    def __init__(self):
        super().__init__()
        self.body = keras.layers.Dense(4)
        self.norm = keras.layers.BatchNormalization(momentum=0.5)
        self.first = keras.layers.Dense(fakes.NUM_CLASSES)
        self.second = keras.layers.Dense(fakes.NUM_CLASSES, name="second")

    def call(self, x, training=False, both=True):
        x = self.norm(self.body(x), training=training)
        return self.first(x) + (self.second(x) if both else 0.0)


def model_fn(features, labels, mode, network, optimizer):
    both = mode != ge.ModeKeys.PREDICT
    logits = network(features, training=mode == ge.ModeKeys.TRAIN, both=both)
    if not both:
        return ge.EstimatorSpec(mode, predictions=logits)
    return ge.EstimatorSpec(
        mode,
        loss=keras.losses.sparse_categorical_crossentropy(labels, logits, True),
        train_op=ge.TrainOp(optimizer, network.trainable_variables),
    )


def make(model_dir, **options):
    return ge.Estimator(
        model_fn,
        modules={"network": TwoHeads, "optimizer": lambda: keras.optimizers.SGD(0.1)},
        config=ge.RunConfig(model_dir=str(model_dir), async_checkpoint=False, **CONFIG),
        **options,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return make(tmp_path_factory.mktemp("trained")).train(TRAIN, max_steps=2)


def network_of(path):
    names = checkpoint.read_names(path)
    return {n: checkpoint.read_value(path, n) for n in names if n[:8] == "network/"}


@pytest.mark.parametrize("predicted", [False, True])
def test_all_of_a_network_comes_though_prediction_came_first(
    predicted, trained, tmp_path, log
):
    """Layers that PREDICT does not use are built later, statistics are not trained."""
    warm = make(tmp_path, warm_start_from=trained.model_dir)
    if predicted:
        list(warm.predict(PREDICT))
    warm.train(TRAIN, max_steps=1)
    theirs = network_of(trained.latest_checkpoint())
    first = network_of(f"{tmp_path}/model.ckpt-0")
    assert {"network/second/kernel", "network/batch_normalization/moving_mean"} <= set(
        theirs
    )
    for name, value in theirs.items():
        np.testing.assert_array_equal(first[name], value, err_msg=name)
    heads = [line.split("\n")[0] for line in log() if line.startswith("warm start")]
    end = f"from {trained.latest_checkpoint()}"
    assert heads == (
        [f"warm start | 8 of 10 {end}", f"warm start | 2 of 2 {end}"]
        if predicted
        else [f"warm start | 10 of 12 {end}"]
    )


def test_an_expression_for_what_is_built_later(trained, tmp_path):
    settings = ge.WarmStartSettings(
        trained.model_dir,
        vars_to_warm_start="network/third/.*",
        var_name_to_prev_var_name={"network/second/bias": "network/second/bias"},
    )
    warm = make(tmp_path, warm_start_from=settings)
    list(warm.predict(PREDICT))  # It may come to be in another mode.
    with pytest.raises(ValueError, match=r"'network/third/.*' chooses no variable: w"):
        warm.train(TRAIN, max_steps=1)


def test_a_look_before_training_is_at_what_it_starts_warm_from(
    trained, tmp_path, caplog
):
    list(make(tmp_path, warm_start_from=trained.model_dir).predict(PREDICT))
    text = "has no checkpoint: predicting what training would start warm from."
    assert text in caplog.text


def test_warm_start_once(trained, tmp_path):
    warm = make(tmp_path, warm_start_from=trained.model_dir)
    warm.train(TRAIN, max_steps=1)
    name = "network/second/kernel"
    theirs = trained.get_variable_value(name)
    first = checkpoint.read_value(f"{tmp_path}/model.ckpt-0", name)
    np.testing.assert_array_equal(first, theirs)
    after = warm.get_variable_value(name)
    assert np.any(after != theirs)
    # A checkpoint of its own comes first from now on.
    again = make(tmp_path, warm_start_from=trained.model_dir)
    again.train(TRAIN, steps=1)
    assert again.global_step == 2
    np.testing.assert_array_equal(
        checkpoint.read_value(f"{tmp_path}/model.ckpt-1", name), after
    )
