"""The Estimator: what it refuses, and what it keeps between its calls."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from tests import fakes

X, Y = fakes.classification_data(rows=24)
TRAIN = fakes.make_input_fn(X, Y, batch_size=8, change=lambda d: d.repeat())
EVAL = fakes.make_input_fn(X, Y, batch_size=16)
PREDICT = fakes.make_input_fn(X, batch_size=16)
EMPTY = fakes.make_input_fn(X[:0], Y[:0], batch_size=8)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    estimator = fakes.make_estimator(tmp_path_factory.mktemp("trained"))
    return estimator.train(TRAIN, max_steps=2)


@pytest.fixture
def fresh(tmp_path):
    return fakes.make_estimator(tmp_path)


def test_the_contract_is_checked_before_anything_is_built():
    with pytest.raises(TypeError, match=r"does not take the modules \['networks'\]"):
        ge.Estimator(fakes.classifier_fn, modules={"networks": fakes.network})
    with pytest.raises(TypeError, match="model_fn is None, not a callable"):
        ge.Estimator(None)


def test_another_backend_is_refused(monkeypatch):
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    with pytest.raises(ValueError) as error:
        ge.Estimator(fakes.classifier_fn)
    assert "Keras runs on the backend 'jax': set the environment variable " in str(
        error.value
    )


def test_without_a_model_dir_one_is_made(caplog):
    with caplog.at_level("WARNING", logger="absl"):
        estimator = ge.Estimator(lambda features: None)
    assert tf.io.gfile.isdir(estimator.model_dir)
    assert f"model_dir is not set; using {estimator.model_dir}" in caplog.text
    assert estimator.config.model_dir == estimator.model_dir


@pytest.mark.parametrize(
    ("second", "name"), [({"network": print}, "modules"), (ge.RunConfig(), "config")]
)
def test_the_second_argument_is_tf_estimators_model_dir(second, name):
    with pytest.raises(TypeError, match=f"model_dir, is a .*: write {name}=... by"):
        ge.Estimator(lambda features: None, second)


def test_params_are_a_copy():
    params = {"rate": 1}
    estimator = ge.Estimator(
        lambda features: None, params=params, config=ge.RunConfig(model_dir="unused")
    )
    params["rate"] = 2
    estimator.params["rate"] = 3
    assert estimator.params == {"rate": 1}


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda e: e.train(TRAIN, steps=1, max_steps=2),
            "steps (1) and max_steps (2) are both given: steps counts from here, ",
        ),
        (
            lambda e: e.train(TRAIN, steps=0),
            "steps is 0: write an int > 0, or None.",
        ),
        (lambda e: e.train(TRAIN, max_steps=-3), "max_steps is -3: write an int > 0"),
        (lambda e: e.train(TRAIN, max_steps=2**63), "write an int < 2**63, or None."),
        (lambda e: e.train(TRAIN, max_steps=True), "max_steps is True: write an int"),
        (lambda e: e.evaluate(EVAL, steps=1.5), "steps is 1.5: write an int > 0"),
        (
            lambda e: e.evaluate(TRAIN),
            "input_fn make_input_fn.<locals>.input_fn never ends in mode EVAL: drop "
            "its repeat(), or give evaluate(..., steps=100).",
        ),
        (
            lambda e: e.train(EMPTY),
            "input_fn make_input_fn.<locals>.input_fn yielded no examples in mode "
            "'train'. Is the split empty, a filter too strict, or drop_remainder=True",
        ),
        (lambda e: e.evaluate(EMPTY), "yielded no examples in mode 'eval'. Is the spl"),
        (
            lambda e: e.get_variable_names(),
            " has no checkpoint: train first.",
        ),
        (lambda e: e.get_variable_value("a"), " has no checkpoint: train first."),
        (
            lambda e: e.export_weights("net", "a.weights.h5"),
            "module 'net' of ['network', 'optimizer'] is no Keras model that this Est",
        ),
        (
            lambda e: e.export_weights("network", "a.weights.h5"),
            "train, evaluate or predict first.",
        ),
    ],
)
def test_refuses(call, text, fresh):
    with pytest.raises(ValueError) as error:
        call(fresh)
    assert text in str(error.value)


def test_labels_that_model_fn_does_not_take(tmp_path):
    def model_fn(features, mode, network):
        loss = tf.reduce_sum(network(features), 1)
        return ge.EstimatorSpec(mode, loss=loss, predictions=loss)

    config = ge.RunConfig(model_dir=str(tmp_path))
    estimator = ge.Estimator(
        model_fn, modules={"network": fakes.network}, config=config
    )
    with pytest.raises(TypeError, match="takes no `labels`, but input_fn returns lab"):
        estimator.evaluate(EVAL)
    # Predicting leaves labels aside, and features alone are an input.
    assert len(list(estimator.predict(EVAL))) == 24
    assert estimator.evaluate(PREDICT)["global_step"] == 0


def test_a_finite_input_without_steps_is_read_to_its_end(fresh):
    fresh.train(EVAL)
    assert fresh.global_step == 2
    fresh.train(EVAL)
    assert fresh.global_step == 4


def test_model_fn_is_given_what_it_declares(tmp_path):
    seen = {}

    def model_fn(features, labels, mode, params, config, step, network, optimizer):
        seen[mode] = {
            "labels": labels,
            "params": params,
            "config": config,
            "step": step,
        }
        return fakes.classifier_fn(features, labels, mode, network, optimizer, params)

    estimator = fakes.make_estimator(tmp_path, model_fn=model_fn, params={"a": 1})
    estimator.train(TRAIN, max_steps=1)
    estimator.evaluate(EVAL)
    list(estimator.predict(EVAL))
    assert set(seen) == set(ge.ModeKeys.ALL)
    for each in seen.values():
        assert each["params"] == {"a": 1}
        assert each["config"] is estimator.config
        assert each["step"].dtype == tf.int64
    assert seen[ge.ModeKeys.PREDICT]["labels"] is None
    assert seen[ge.ModeKeys.EVAL]["labels"] is not None


def test_the_step_that_model_fn_sees(tmp_path):
    def model_fn(features, labels, mode, step, network, optimizer, params):
        spec = fakes.classifier_fn(features, labels, mode, network, optimizer, params)
        return ge.EstimatorSpec(
            mode, loss=spec.loss, train_op=spec.train_op, scalars={"step": step}
        )

    estimator = fakes.make_estimator(tmp_path, model_fn=model_fn)
    hook = fakes.Recorder(1)
    estimator.train(TRAIN, max_steps=3, hooks=[hook])
    # The updates made before it.
    assert [values["step"] for values in hook.values] == [0, 1, 2]


def test_a_spec_of_another_shape_is_named(tmp_path):
    def model_fn(features, labels, mode, network, optimizer):
        return ge.EstimatorSpec(mode, predictions=features)

    estimator = fakes.make_estimator(tmp_path, model_fn=model_fn)
    with pytest.raises(ge.SpecError, match=r"model_fn \S+model_fn: mode 'eval' needs"):
        estimator.evaluate(EVAL)


def test_evaluating_nothing_trained_is_said(fresh, caplog):
    with caplog.at_level("WARNING", logger="absl"):
        metrics = fresh.evaluate(EVAL)
    assert "has no checkpoint: evaluating initial values." in caplog.text
    assert metrics["global_step"] == 0


def test_an_older_checkpoint_is_evaluated(trained):
    path = f"{trained.model_dir}/model.ckpt-0"
    old = trained.evaluate(EVAL, checkpoint_path=path)
    new = trained.evaluate(EVAL)
    assert (old["global_step"], new["global_step"]) == (0, 2)
    assert old["loss"] != new["loss"]
    assert list(new) == ["loss", "accuracy", "examples", "global_step"]


def test_some_steps_are_evaluated(trained):
    assert trained.evaluate(EVAL, steps=1)["examples"] == 16
    assert trained.evaluate(TRAIN, steps=4)["examples"] == 32


def test_where_evaluations_go(trained):
    assert trained.eval_dir() == f"{trained.model_dir}/eval"
    assert trained.eval_dir("test") == f"{trained.model_dir}/eval_test"
    trained.evaluate(EVAL, name="test")
    assert tf.io.gfile.listdir(trained.eval_dir("test"))


def test_predictions(trained):
    whole = list(trained.predict(PREDICT, yield_single_examples=False))
    assert [batch["logits"].shape for batch in whole] == [(16, 3), (8, 3)]
    single = list(trained.predict(PREDICT))
    assert len(single) == 24
    np.testing.assert_array_equal(single[17]["logits"], whole[1]["logits"][1])
    (only, *_) = trained.predict(PREDICT, predict_keys="label")
    assert list(only) == ["label"]


def test_predictions_are_computed_when_they_are_asked_for(trained):
    class Counts(ge.Hook):
        calls = ()

        def begin(self, run):
            self.calls = (*self.calls, "begin")

        def end(self, run):
            self.calls = (*self.calls, "end")

    hook = Counts()
    generator = trained.predict(PREDICT, hooks=[hook])
    assert hook.calls == ()
    next(generator)
    assert hook.calls == ("begin",)
    list(generator)
    assert hook.calls == ("begin", "end")


def test_wrong_keys_are_named(trained):
    with pytest.raises(ValueError, match=r"predict_keys \['class'\] are not among"):
        next(trained.predict(PREDICT, predict_keys=["class"]))


def test_variables_by_name(trained):
    names = trained.get_variable_names()
    assert {"network/dense/kernel", "driver/global_step"} <= set(names)
    assert trained.get_variable_value("network/dense_1/bias").shape == (3,)
    assert trained.get_variable_value("driver/global_step") == 2


def test_weights_for_keras(trained, tmp_path):
    path = trained.export_weights("network", str(tmp_path / "a.weights.h5"))
    model = fakes.network()
    model.build([None, 6])
    model.load_weights(path)
    logits = [p["logits"] for p in trained.predict(PREDICT)]
    np.testing.assert_allclose(model(X), logits, rtol=1e-5, atol=1e-6)


class During(ge.Hook):
    """Does something once, in the middle of training."""

    every_steps = 2

    def __init__(self, action):
        self.action = action

    def after_step(self, run):
        self.action()


def test_evaluating_while_training_takes_what_is_live(fresh):
    steps = []
    during = During(lambda: steps.append(fresh.evaluate(EVAL)["global_step"]))
    fresh.train(TRAIN, max_steps=5, hooks=[during])
    assert steps == [2, 4]


def test_a_checkpoint_is_not_loaded_into_what_is_training(fresh):
    path = f"{fresh.model_dir}/model.ckpt-0"
    during = During(lambda: fresh.evaluate(EVAL, checkpoint_path=path))
    with pytest.raises(RuntimeError) as error:
        fresh.train(TRAIN, max_steps=5, hooks=[during])
    assert (
        f"checkpoint {path} cannot be loaded while this Estimator trains; evaluate it "
        "in an Estimator of its own." in str(error.value)
    )
    # It is not training any more.
    assert fresh.evaluate(EVAL)["global_step"] == 0


@pytest.mark.filterwarnings("ignore:`build:UserWarning")
def test_layers_of_evaluation_alone_are_refused_while_training(tmp_path):
    class TwoHeads(keras.Model):
        def __init__(self):
            super().__init__()
            self.one, self.two = keras.layers.Dense(3), keras.layers.Dense(3)

        def call(self, x, training=False):
            return self.one(x) if training else self.two(x)

    estimator = fakes.make_estimator(tmp_path, network=TwoHeads)
    during = During(lambda: estimator.evaluate(EVAL))
    with pytest.raises(ge.SpecError) as error:
        estimator.train(TRAIN, max_steps=4, hooks=[during])
    assert (
        "model_fn uses ['network/dense_1/bias', 'network/dense_1/kernel'] in mode "
        "'eval' and not in TRAIN, so that they would be in no checkpoint: call those "
        "layers in TRAIN too, or build them in their factory." in str(error.value)
    )


OPTIONS = {
    "jit_compile": {"jit_compile": True},
    "run_eagerly": {"run_eagerly": True},
    "eager_and_undecided": {"run_eagerly": True, "jit_compile": None},
    "eager_replicas": {"run_eagerly": True, "devices": ("CPU:0", "CPU:1")},
}


@pytest.mark.parametrize("jit_compile", [False, None])
def test_eager_steps_are_plain_python(jit_compile, tmp_path):
    modes = []

    def model_fn(features, labels, mode, network, optimizer, params):
        if tf.executing_eagerly():
            modes.append(mode)
        return fakes.classifier_fn(features, labels, mode, network, optimizer, params)

    estimator = fakes.make_estimator(
        tmp_path, model_fn=model_fn, run_eagerly=True, jit_compile=jit_compile
    )
    estimator.train(TRAIN, max_steps=2)
    estimator.evaluate(EVAL)
    list(estimator.predict(PREDICT))
    assert modes == ["train"] * 2 + ["eval"] * 2 + ["infer"] * 2


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Three steps on ragged batches: 10, 10 and 4."""
    return run_three_steps(tmp_path_factory.mktemp("reference"))


def run_three_steps(model_dir, **config):
    estimator = fakes.make_estimator(model_dir, **config)
    estimator.train(fakes.make_input_fn(X, Y, batch_size=7), max_steps=4)
    metrics = estimator.evaluate(EVAL)
    logits = [p["logits"] for p in estimator.predict(PREDICT)]
    return fakes.weights(model_dir), metrics, logits


@pytest.mark.parametrize("name", OPTIONS)
def test_the_same_numbers_compiled_or_eager(name, reference, tmp_path):
    weights, metrics, logits = run_three_steps(tmp_path, **OPTIONS[name])
    for key, value in reference[0].items():
        np.testing.assert_allclose(weights[key], value, 1e-4, 1e-5, err_msg=key)
    assert metrics == pytest.approx(reference[1], rel=1e-4)
    np.testing.assert_allclose(logits, reference[2], 1e-4, 1e-5)


def test_fixed_batches_that_do_not_split_evenly(tmp_path):
    """5 rows for 2 replicas have static shapes, and count for what they hold."""
    weights = []
    for devices in (("CPU:0",), ("CPU:0", "CPU:1")):
        model_dir = tmp_path / str(len(devices))
        estimator = fakes.make_estimator(model_dir, devices=devices)

        def input_fn():
            data = tf.data.Dataset.from_tensor_slices((X, Y))
            return data.batch(5, drop_remainder=True)

        estimator.train(input_fn)
        weights.append(fakes.weights(model_dir))
    for key, value in weights[0].items():
        if not key.startswith("driver"):
            np.testing.assert_allclose(weights[1][key], value, 1e-4, 1e-5, err_msg=key)
