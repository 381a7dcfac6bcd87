"""What users of tf.estimator write by habit: it works, or is told what to write."""

import json

import keras
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.mistakes import habits
from tests import fakes, mistakes
from tests.mistakes import changed, data, train

table = mistakes.Table()
told = table.told
MODULES = {"network": fakes.network, "optimizer": fakes.adam}


# What works.


def test_model_dir_may_be_the_estimators(tmp_path):
    path = str(tmp_path)
    assert ge.Estimator(changed(), modules=MODULES, model_dir=path).model_dir == path
    assert ge.Estimator(changed(), path, modules=MODULES).model_dir == path
    config = ge.RunConfig(model_dir=path + "/")
    both = ge.Estimator(changed(), modules=MODULES, model_dir=path, config=config)
    assert both.model_dir == path
    with pytest.raises(
        ValueError, match="model_dir is 'elsewhere' and RunConfig.*: gi"
    ):
        ge.Estimator(changed(), model_dir="elsewhere", modules=MODULES, config=config)


def test_arguments_come_in_tf_estimators_order(tmp_path):
    def model_fn(features, labels, mode, network, optimizer):
        logits = network(features)
        if mode == ge.ModeKeys.PREDICT:
            return ge.EstimatorSpec(mode, {"logits": logits})
        loss = keras.losses.sparse_categorical_crossentropy(labels, logits, True)
        train_op = ge.TrainOp(optimizer, network.trainable_variables)
        mean = {"mean": tf.reduce_mean(logits)}
        return ge.EstimatorSpec(mode, {"logits": logits}, loss, train_op, mean)

    estimator = fakes.make_estimator(tmp_path, model_fn=model_fn)
    recorder = fakes.Recorder()
    estimator.train(data(), [recorder], None, 3)
    assert recorder.steps == [3]
    assert "mean" in estimator.evaluate(data(), 2)
    assert "mean" in estimator.evaluate(data(), None, None, None, "again")
    estimator.train(data(), max_steps=4, hooks=None, saving_listeners=None)
    (logits,) = next(estimator.predict(data(), "logits", None)).values()
    assert logits.shape == (3,)


def test_an_input_fn_of_tpu_estimator_reads_its_batch_size(tmp_path):
    x, y = fakes.classification_data(rows=24)
    sizes = {"train_batch_size": 8, "eval_batch_size": 6, "predict_batch_size": 2}
    found = []

    def input_fn(params):
        found.append(params["batch_size"])
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(found[-1])

    estimator = fakes.make_estimator(tmp_path, params={"clip_norm": 1.0}, **sizes)
    estimator.train(input_fn, max_steps=1)
    assert estimator.evaluate(input_fn)["examples"] == 24
    assert len(list(estimator.predict(input_fn))) == 24
    assert found == [8, 6, 2] and estimator.params == {"clip_norm": 1.0}
    with pytest.raises(ValueError, match=r"params has a batch_size.*eval_batch_size=6"):
        fakes.make_estimator(tmp_path, params={"batch_size": 3}, eval_batch_size=6)


def test_specs_take_tf_estimators_order_and_its_none():
    hook, exporter = ge.LoggingHook(1), ge.LatestExporter()
    assert ge.TrainSpec(data, 3, [hook], None).hooks == [hook]
    spec = ge.EvalSpec(data, None, "test", None, [exporter], 5, 6)
    assert (spec.name, list(spec.hooks), spec.throttle_secs) == ("test", [], 6)


def test_too_many_arguments_are_pythons_to_refuse(tmp_path):
    estimator = fakes.make_estimator(tmp_path)
    with pytest.raises(TypeError, match="positional argument"):
        estimator.train(data(), [], 1, None, [], "more")
    with pytest.raises(TypeError):
        estimator.train(data(), [], hooks=[])


def test_an_estimators_methods_may_be_overridden(tmp_path):
    class Mine(ge.Estimator):
        def evaluate(self, *args, **kwargs):
            return {**super().evaluate(*args, **kwargs), "mine": 1}

    estimator = Mine(
        changed(), modules=MODULES, config=ge.RunConfig(model_dir=str(tmp_path))
    )
    specs = ge.TrainSpec(data(), max_steps=1), ge.EvalSpec(data())
    metrics, _ = ge.train_and_evaluate(estimator, *specs)
    assert metrics["mine"] == 1


# What is told.


@pytest.mark.parametrize("name", habits.RUN_CONFIG)
def test_fields_of_a_run_config_that_are_gone(name):
    with pytest.raises(TypeError, match=f"RunConfig takes no {name}: write "):
        ge.RunConfig(**{name: None})


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: ge.RunConfig(save_checkpoints_step=3),
            "RunConfig takes no save_checkpoints_step. Did you mean save_checkpoints_s",
        ),
        (
            lambda: ge.TrainSpec(data, steps=3),
            "TrainSpec takes no steps. Did you mean max_steps? It takes input_fn, max_",
        ),
        (lambda: ge.EvalSpec(data, step=3), "EvalSpec takes no step. Did you mean st"),
        (
            lambda: ge.Estimator(modle_fn=changed()),
            "Estimator takes no modle_fn. Did you mean model_fn",
        ),
        (
            lambda: ge.Estimator(changed(), modules=MODULES).train(data(), stepz=3),
            "Estimator.train takes no stepz. Did you mean steps",
        ),
        (
            lambda: ge.EstimatorSpec("eval", los=1.0),
            "EstimatorSpec takes no los. Did you mean loss",
        ),
        (
            lambda: ge.TrainOp(optimiser=None),
            "TrainOp takes no optimiser. Did you mean optimizer?",
        ),
        (lambda: ge.KeepBest("loss", kk=3), "KeepBest takes no kk. Did you mean k?"),
        (
            lambda: ge.ExponentialAverage(decya=0.9),
            "ExponentialAverage takes no decya. Did you mean decay?",
        ),
    ],
)
def test_the_nearest_name_is_told(call, words):
    with pytest.raises(TypeError) as error:
        call()
    assert words in str(error.value)


@pytest.mark.parametrize("name", habits.ESTIMATOR)
def test_arguments_of_an_estimator_that_are_gone(name):
    with pytest.raises(TypeError, match=f"Estimator takes no {name}: write "):
        ge.Estimator(changed(), **{name: None})


@pytest.mark.parametrize("name", habits.ESTIMATOR_SPEC)
def test_fields_of_a_spec_that_are_gone(name):
    with pytest.raises(TypeError, match=f"^EstimatorSpec takes no {name}: write "):
        ge.EstimatorSpec("eval", **{name: None})


def test_other_errors_have_no_hint():
    assert habits.hint(TypeError("f() got an unexpected keyword argument 'a'")) is None
    assert habits.hint(AttributeError("no 'a'", name="a", obj=None)) is None


@told("EstimatorSpec takes no training_hooks: write hooks", "TrainSpec(input_fn, hooks")
def hooks_in_the_spec(model_dir):
    train(model_dir, model_fn=changed(training_hooks=[]))


@told("has no attribute 'minimize'", "train_op=TrainOp(optimizer, network.trainable")
def minimize_in_model_fn(model_dir):
    def model_fn(features, labels, mode, network, optimizer):
        optimizer.minimize(labels)

    train(model_dir, model_fn=model_fn)


@told("applies gradients by an optimizer itself", "train_op=TrainOp(optimizer")
def gradients_applied_in_model_fn(model_dir):
    def model_fn(features, labels, mode, network, optimizer):
        with tf.GradientTape() as tape:
            spec = changed()(features, labels, mode, network, optimizer)
        gradients = tape.gradient(spec.loss, network.trainable_variables)
        optimizer.apply_gradients(
            zip(gradients, network.trainable_variables, strict=True)
        )
        return spec

    train(model_dir, model_fn=model_fn)


@told("variables ['iteration'] itself", "Build the optimizer in a factory", "make_opti")
def optimizer_in_model_fn(model_dir):
    def model_fn(features, labels, mode, network, optimizer):
        return changed()(features, labels, mode, network, keras.optimizers.SGD())

    train(model_dir, model_fn=model_fn)


@told("hooks holds SessionHook", "It is a session hook", "after_step(run)")
def session_hook(model_dir):
    class SessionHook:
        def before_run(self, run_context):
            pass

    train(model_dir, hooks=[SessionHook()])


@told("hooks holds TerminateOnNaN", "Write RunConfig(on_nan='stop')")
def keras_callback_for_nan(model_dir):
    train(model_dir, hooks=[keras.callbacks.TerminateOnNaN()])


@told("hooks holds LambdaCallback", "It is a Keras callback", "run.report")
def keras_callback(model_dir):
    train(model_dir, hooks=[keras.callbacks.LambdaCallback()])


@told("this task is an evaluator", "which does not train: call train_and_evaluate")
def training_on_the_evaluator(model_dir):
    cluster = {"chief": ["a:1"], "evaluator": ["b:1"]}
    tf_config = {"cluster": cluster, "task": {"type": "evaluator", "index": 0}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TF_CONFIG", json.dumps(tf_config))
        estimator = fakes.make_estimator(model_dir)
    estimator.train(data(), max_steps=1)


def test_listeners_are_warned_of_where_nothing_is_saved(tmp_path, caplog):
    class Mine(ge.SavingListener):
        pass

    estimator = fakes.make_estimator(tmp_path, save_checkpoints_steps=0)
    estimator.train(data(), max_steps=1, saving_listeners=[Mine()])
    assert "saving_listeners Mine will not be called" in caplog.text


@pytest.mark.parametrize("row", table.rows)
def test_mistake(row, tmp_path):
    table.check(row, tmp_path)
