"""The contract: arguments, copies of params, seeds, threads, RunConfig."""

import argparse
import copy
import dataclasses
import functools
import importlib
import json
import os
import random
import subprocess
import sys
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from mistakes import X, Y, data, make, make_network, train, with_spec

import gin_estimator as ge
from refusals import refused
from small import Do


def weights(estimator):
    return np.concatenate([w.numpy().ravel() for w in estimator.state.modules["network"].weights])


def seeded(model_fn=None, modules=(), seed=3, **options):
    config = ge.RunConfig(tf_random_seed=seed, save_checkpoints_steps=0, **options)
    return make(model_fn, config, modules=dict(modules))


# RunConfig.


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("steps_per_loop", True, "is True: expected an int > 0. Set steps_per_loop=1000."),
        ("steps_per_loop", None, "is None: expected an int > 0"),
        ("steps_per_loop", "30s", "is '30s': expected an int > 0"),
        ("tf_random_seed", 2**32, "expected an int from 0 to 4294967295 or None"),
        ("save_checkpoints_secs", float("nan"), "is nan: expected a number > 0 or None"),
        ("save_checkpoints_secs", float("inf"), "is inf: expected a number > 0 or None"),
        ("keep_checkpoint_steps", 5, r"expected a list of global steps. Set .*\[1000, 5000\]"),
        ("keep_checkpoint_max", -1, "expected an int > -1 or None"),
        ("max_loop_secs", np.zeros(3), "expected a number > 0"),
        ("precision", "half", "expected 'float32', 'mixed_bfloat16' or 'mixed_float16'"),
        ("jit_compile", 1, "is 1: expected True or False"),
        ("train_distribute", "mirrored", "expected a tf.distribute strategy, or a function"),
        ("devices", 3, "is 3: expected a list or None"),
        ("evaluation", "none", "expected 'auto', 'inline' or 'evaluator'"),
    ],
)
def test_a_wrong_value_is_refused(field, value, error):
    with pytest.raises(ge.UserError, match=rf"^RunConfig\.{field} is .*") as info:
        ge.RunConfig(**{field: value})
    info.match(error)
    assert isinstance(info.value, ValueError | TypeError)


@pytest.mark.parametrize("name", [name for name in ge.RunConfig.__dataclass_fields__])
def test_any_value_is_taken_or_refused_by_name(name):
    for value in (object, object(), {}, (1,), [[]], b"x", "", -1, 1e300, np.zeros(2), lambda: 0):
        try:
            ge.RunConfig(**{name: value})
        except ge.UserError as error:
            assert name in str(error)


def test_numbers_of_numpy_are_numbers():
    config = ge.RunConfig(steps_per_loop=np.int64(5), max_loop_secs=np.float32(1))
    assert config.changes() == {"steps_per_loop": 5, "max_loop_secs": 1}


test_options_that_do_not_fit_are_refused = refused(
    lambda options: ge.RunConfig(**options),
    ({"save_checkpoints_steps": 1, "save_checkpoints_secs": 1}, "expected one of them"),
    ({"save_checkpoints_steps": 0, "keep_checkpoint_max": 3}, "Leave out keep_checkpoint_max"),
    ({"run_eagerly": True, "jit_compile": True}, "run_eagerly is True, and jit_compile is"),
    ({"session_config": 1}, "no argument 'session_config'. Write instead: devices="),
    ({"sav_summary_steps": 1}, "Did you mean save_summary_steps?"),
)


def test_the_defaults_are_those_of_tf_estimator():
    config = ge.RunConfig()
    names = (
        *("save_summary_steps", "save_checkpoints_steps", "save_checkpoints_secs"),
        *("keep_checkpoint_max", "keep_checkpoint_every_n_hours", "log_step_count_steps"),
    )
    assert [getattr(config, name) for name in names] == [100, None, None, 5, 10000, 100]
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.model_dir = "a"
    with pytest.raises(TypeError):
        ge.RunConfig("a", 3)


def test_replace_unsets_the_other_interval():
    config = ge.RunConfig(save_checkpoints_steps=5).replace(save_checkpoints_secs=60)
    assert (config.save_checkpoints_steps, config.save_checkpoints_secs) == (None, 60)
    assert config.replace(steps_per_loop=7).save_checkpoints_secs == 60


def test_model_dir_is_that_of_the_config_or_of_the_estimator(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    model_fn, modules = (lambda features, **modules: None), {"network": make_network}
    folder = os.fspath(tmp_path / "a")
    for estimator in (
        ge.Estimator(model_fn, tmp_path / "a", modules=modules),
        ge.Estimator(model_fn, config=ge.RunConfig(tmp_path / "a"), modules=modules),
        ge.Estimator(model_fn, f"file://{folder}", ge.RunConfig(tmp_path / "a"), modules=modules),
        ge.Estimator(model_fn, "link/", ge.RunConfig("b/../a"), modules=modules),
        ge.Estimator(model_fn, "~/a", modules=modules),
    ):
        assert estimator.model_dir == estimator.config.model_dir == folder
    temporary = ge.Estimator(model_fn, config=ge.RunConfig(), modules=modules)
    assert os.path.isdir(temporary.model_dir)


def test_a_working_directory_that_was_deleted_is_refused(tmp_path, monkeypatch):
    (tmp_path / "deleted").mkdir()
    monkeypatch.chdir(tmp_path / "deleted")
    (tmp_path / "deleted").rmdir()
    with pytest.raises(ge.UserError, match="model_dir is 'run' below .*Set an absolute path"):
        ge.RunConfig("run")
    assert ge.RunConfig(tmp_path / "run").model_dir == str(tmp_path / "run")


# Names of tf.estimator, positions of arguments.


test_names_that_do_not_exist_have_a_hint = refused(
    lambda name: getattr(ge, name),
    ("TPUEstimator", "Estimator with RunConfig"),
    ("SessionRunHook", "Write instead: Hook"),
    ("EstimatorSpecs", "Did you mean EstimatorSpec?"),
    error=AttributeError,
)


def test_each_name_of_tf_estimator_is_here_or_has_a_hint():
    """Those of TensorFlow 2.15, and some of TensorFlow 1."""
    own = "BinaryClass MultiClass MultiLabel Multi Regression LogisticRegression PoissonRegression"
    canned = "Baseline BoostedTrees DNN DNNLinearCombined Linear"
    names = f"""
        BestExporter CheckpointSaverHook CheckpointSaverListener Estimator EstimatorSpec EvalSpec
        Exporter FeedFnHook FinalExporter FinalOpsHook GlobalStepWaiterHook Head LatestExporter
        LoggingTensorHook ModeKeys NanLossDuringTrainingError NanTensorHook ProfilerHook RunConfig
        SecondOrStepTimer SessionRunArgs SessionRunContext SessionRunHook SessionRunValues
        StepCounterHook StopAtStepHook SummarySaverHook TrainSpec VocabInfo WarmStartSettings
        add_metrics classifier_parse_example_spec regressor_parse_example_spec train_and_evaluate
        InMemoryEvaluatorHook TPUConfig TPUEstimator TPUEstimatorSpec
        {" ".join(f"{name}Head" for name in own.split())}
        {" ".join(f"{m}{k}" for m in canned.split() for k in ("Classifier", "Estimator"))}
    """.split()
    for name in set(names) - set(ge.__all__):
        with pytest.raises(AttributeError, match="Write instead: "):
            getattr(ge, name)
    program = (
        "import gin_estimator as ge\ntry:\n    ge.export\nexcept AttributeError as e: print(e)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "Write instead: gin_estimator.ServingInputReceiver" in done.stdout
    importlib.import_module("gin_estimator.export.receivers")
    with pytest.raises(AttributeError, match="Write instead: gin_estimator.PredictOutput"):
        ge.export.PredictOutput  # noqa: B018


def test_arguments_have_the_order_of_tf_estimator(tmp_path):
    spec = ge.EstimatorSpec("infer", {"x": tf.zeros([1])})
    assert set(spec.predictions) == {"x"}
    estimator = make(config=ge.RunConfig(save_checkpoints_steps=0))
    assert estimator.train(data(), None, 1) is estimator
    assert estimator.state.step == 1
    assert ge.EvalSpec(data(), None, "a", None, None).hooks == ()
    assert ge.TrainSpec(data(), 3, None, None).saving_listeners == ()


def test_a_spec_is_valid_in_each_mode_and_can_be_replaced():
    variable = tf.Variable(1.0)
    op = ge.TrainOp(keras.optimizers.SGD(), [variable])
    for mode in ("train", "eval", "infer"):
        spec = ge.EstimatorSpec(
            mode,
            {"x": tf.zeros([2])},
            loss=tf.zeros([2]),
            train_op=op,
            eval_metric_ops={"a": tf.zeros([2])},
        )
        assert list(spec.metrics) == ["a"]
        assert len(spec.train_op) == (mode == "train")
        assert dataclasses.replace(spec, loss=tf.ones([2])).metrics == spec.metrics


test_names_of_results_are_checked = refused(
    lambda name: ge.EstimatorSpec("eval", loss=tf.zeros([2]), metrics={name: tf.zeros([2])}),
    *((n, "called .*: expected") for n in ("", " a", "a\n", 3, "learning_rate/x", "global_step")),
)


def test_a_model_fn_is_anything_that_can_be_called():
    class Model:
        def __call__(self, features, labels, mode, network, optimizer):
            return with_spec()(features, labels, mode, network, optimizer)

        def method(self, features, labels, mode, network, optimizer):
            return self(features, labels, mode, network, optimizer)

    def scaled(features, labels, mode, network, optimizer, scale):
        return with_spec()(features * scale, labels, mode, network, optimizer)

    for model_fn in (Model(), Model().method, functools.partial(scaled, scale=2.0)):
        assert train(model_fn, max_steps=1).state.step == 1
    # In a unit test it runs as it is.
    spec = Model()(X, Y, "train", network=make_network(), optimizer=keras.optimizers.SGD())
    assert spec.loss.shape == [64]


# params and config.


@pytest.mark.parametrize("kind", [dict, argparse.Namespace])
def test_each_function_gets_its_own_copy_of_params(kind):
    table = tf.Variable(1.0)
    seen = []

    def model_fn(features, labels, mode, network, optimizer, params, config):
        seen.append(params)
        change(params)
        assert config.tf_random_seed == 3
        return with_spec()(features, labels, mode, network, optimizer)

    def change(params):
        rates = params["rates"] if kind is dict else params.rates
        assert rates == [1]
        rates.append(2)
        assert (params["table"] if kind is dict else params.table) is table

    def network(params, config):
        change(params)
        return make_network()

    def input_fn(params):
        change(params)
        return data()()

    params = kind(rates=[1], table=table)
    before = copy.copy(vars(params) if kind is argparse.Namespace else params)
    estimator = ge.Estimator(
        model_fn,
        config=ge.RunConfig(tf_random_seed=3, save_checkpoints_steps=0),
        params=params,
        modules={"network": network, "optimizer": keras.optimizers.SGD},
    )
    estimator.train(input_fn, max_steps=2)
    assert len(seen) >= 2
    assert before["rates"] == [1]


# Random numbers and threads.


def random_network():
    return keras.Sequential([keras.layers.Dropout(0.5), keras.layers.Dense(3)])


def random_variable():
    return tf.Variable(np.random.normal(size=3) + random.random() + tf.random.normal([3]).numpy())


def noisy(features, labels, mode, network, noise, optimizer):
    features = network(features + tf.random.normal([6]), training=mode == "train")
    features += tf.cast(noise, tf.float32)
    loss = keras.losses.sparse_categorical_crossentropy(labels, features, True)
    return ge.EstimatorSpec(
        mode, loss=loss, train_op=ge.TrainOp(optimizer, network.trainable_variables)
    )


def shuffled():
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(64).repeat().batch(16)


def trained(seed=3, max_steps=3):
    estimator = seeded(noisy, {"network": random_network, "noise": random_variable}, seed)
    return weights(estimator.train(shuffled, max_steps=max_steps))


@pytest.mark.oldest
def test_a_seed_decides_all_numbers_and_leaves_those_of_the_program():
    first = trained()
    random.seed(5), np.random.seed(5), tf.random.set_seed(5)
    random.random(), np.random.normal(), tf.random.normal([])
    state, numpy = random.getstate(), np.random.get_state()
    np.testing.assert_array_equal(trained(), first)
    assert random.getstate() == state
    assert all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), numpy, strict=True))
    assert not np.allclose(trained(4), first)


def test_equal_networks_have_other_weights():
    def model_fn(features, mode, one, two, optimizer):
        loss = tf.square(one(features) - two(features))
        return ge.EstimatorSpec(
            mode, loss=loss, train_op=ge.TrainOp(optimizer, one.trainable_variables)
        )

    modules = {"one": make_network, "two": make_network, "optimizer": keras.optimizers.SGD}
    config = ge.RunConfig(tf_random_seed=3, save_checkpoints_steps=0)
    estimator = ge.Estimator(model_fn, config=config, modules=modules)
    estimator.train(data(y=None), max_steps=1)
    one, two = (estimator.state.modules[name].weights[0].numpy() for name in ("one", "two"))
    assert not np.allclose(one, two, atol=0.1)


@pytest.mark.slow
def test_estimators_in_two_threads_train_as_alone():
    def trained(seed):
        estimator = seeded(modules={"network": random_network}, seed=seed)
        return weights(estimator.train(shuffled, max_steps=3))

    expected = [trained(seed) for seed in (3, 4)]
    results = {}

    def work(seed):
        results[seed] = [trained(seed) for _ in range(3)]

    threads = [threading.Thread(target=work, args=[seed]) for seed in (3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for seed, alone in zip((3, 4), expected, strict=True):
        for result in results[seed]:
            np.testing.assert_array_equal(result, alone)


def test_a_second_thread_in_one_estimator_is_refused_and_a_hook_is_not():
    errors = []

    def work():
        with pytest.raises(RuntimeError, match="another thread uses it") as info:
            estimator.evaluate(data())
        errors.append(info.value)

    def evaluate(run):
        if run.step == 2:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join(60)
            assert np.isfinite(estimator.evaluate(data())["loss"])

    modules = {"network": random_network, "noise": random_variable}
    estimator = seeded(noisy, modules)
    estimator.train(shuffled, hooks=[Do(evaluate, every_steps=2)], max_steps=4)
    assert errors
    np.testing.assert_array_equal(weights(estimator), trained(max_steps=4))


def test_a_factory_may_return_a_model_with_weights():
    def network():
        model = make_network()
        model.build([None, 6])
        model.set_weights([np.full([6, 3], 0.5), np.zeros(3)])
        return model

    class Frozen(keras.optimizers.SGD):
        pass

    estimator = seeded(modules={"network": network, "optimizer": lambda: Frozen(0.0)})
    estimator.train(data(), max_steps=1)
    assert np.all(weights(estimator)[:18] == 0.5)


def test_what_has_no_effect_is_warned_of(caplog):
    caplog.set_level("INFO", logger="absl")

    def model_fn(features, labels, mode, network, optimizer):
        tf.summary.scalar("spread", tf.reduce_max(features), step=0)
        return with_spec()(features, labels, mode, network, optimizer)

    def network():
        table = keras.layers.Embedding(400_000, 8)
        return keras.Sequential([table, keras.layers.Flatten(), keras.layers.Dense(3)])

    config = ge.RunConfig(save_checkpoints_steps=0, steps_per_loop=7)
    estimator = make(model_fn, config, params={"a": 1}, modules={"network": network})
    ids = data(np.zeros([64, 1], "int64"))
    estimator.train(ids, max_steps=1, saving_listeners=[ge.SavingListener()])
    for text in (
        "config | save_checkpoints_steps 0, steps_per_loop 7",
        "params has no effect",
        "saving_listeners have no effect",
        "tf.summary of spread in model_fn has no effect",
        "is a keras.layers.Embedding of 12 MB",
    ):
        assert text in caplog.text, text


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("losses", ["handed in", "added", "forgotten"])
def test_what_a_network_forgets_in_training_is_warned_of(training, losses, caplog):
    def network():
        dense = keras.layers.Dense(3, kernel_regularizer="l2")
        return keras.Sequential(
            [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5), dense]
        )

    def model_fn(features, labels, mode, network, optimizer):
        logits = network(features, training=True) if training else network(features)
        loss = tf.reduce_sum(logits, 1)
        return ge.EstimatorSpec(
            mode,
            loss=loss + tf.add_n(network.losses) if losses == "added" else loss,
            train_op=ge.TrainOp(optimizer, network.trainable_variables),
            regularization_losses=network.losses if losses == "handed in" else (),
        )

    train(model_fn, modules={"network": network})
    assert ("Dropout and BatchNormalization in inference" in caplog.text) == (not training)
    assert ("regularizers whose losses have no effect" in caplog.text) == (losses == "forgotten")


def test_networks_that_are_not_trained_are_not_warned_of(caplog):
    def frozen():
        return keras.Sequential([keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)])

    def model_fn(features, labels, mode, network, frozen, unused, optimizer):
        features = frozen(features, training=False)
        return with_spec()(features, labels, mode, network, optimizer)

    train(model_fn, modules={"frozen": frozen, "unused": frozen})
    assert "in inference" not in caplog.text


def test_other_errors_keep_their_type_and_get_one_note():
    def model_fn(features, labels, mode, network, optimizer):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as info:
        train(model_fn)
    [note] = info.value.__notes__
    assert note.startswith("This happened in model_fn model_fn, mode 'train', features float32")
    assert f'File "{__file__}"' in note


def test_a_copy_of_a_config_keeps_its_cluster(monkeypatch):
    cluster = {"worker": ["a:1", "b:1"]}
    task = {"cluster": cluster, "task": {"type": "evaluator", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(task))
    config = ge.RunConfig("runs/1")
    monkeypatch.delenv("TF_CONFIG")
    assert config.replace(save_summary_steps=5).task_type == "evaluator"
    with pytest.raises(ge.UserError, match="save_summary_steps"):
        config.replace(save_summary_steps=-1)
