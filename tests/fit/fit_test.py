"""`ge.fit` against `keras.Model.fit` on one replica, and what it refuses."""

import importlib.util
import inspect
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import logging

import gin_estimator as ge

RNG = np.random.default_rng(0)
X = RNG.normal(size=(97, 4)).astype("float32")
Y = RNG.integers(0, 3, 97)
W = RNG.uniform(0.5, 2, 97).astype("float32")
CLASS_WEIGHT = {0: 2.0, 2: 0.5}


def make_model():
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(8, "relu"), keras.layers.Dense(3, "softmax")]
    model = keras.Sequential(layers)
    model.compile(
        keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


def batches(*parts):
    return lambda: tf.data.Dataset.from_tensor_slices(parts).batch(32)


data = batches(X, Y)


def difference(model, other):
    pairs = zip(model.get_weights(), other.get_weights(), strict=True)
    return max(np.abs(a - b).max() for a, b in pairs)


def by_keras(make, input_fn, validation=None, **options):
    model = make()
    evaluated = None if validation is None else validation()
    fitted = model.fit(input_fn(), validation_data=evaluated, verbose=0, **options)
    return model, fitted.history


def assert_same(result, expected):
    model, history = expected
    assert difference(result.model, model) < 1e-5
    assert result.history.keys() == history.keys()
    for name, values in history.items():
        assert result.history[name] == pytest.approx(values, abs=1e-5), name


@pytest.mark.oldest
def test_losses_metrics_and_weights_are_those_of_fit(tmp_path):
    expected = by_keras(make_model, data, data, epochs=3)
    options = {"validation_data": data, "config": ge.RunConfig(str(tmp_path))}
    ge.fit(make_model, data, epochs=1, **options)
    result = ge.fit(make_model, data, epochs=3, **options)  # More epochs continue.
    assert_same(result, expected)
    assert len((tmp_path / "eval/evaluations.jsonl").read_text().splitlines()) == 3
    evaluated = result.estimator.evaluate(data)
    assert evaluated["loss"] == pytest.approx(result.history["val_loss"][-1], abs=1e-6)
    assert result.model.evaluate(X, Y, verbose=0)[1] == pytest.approx(evaluated["accuracy"])
    # Keras may save the model, and train it on.
    result.model.save(tmp_path / "model.keras")
    loaded, reference = keras.models.load_model(tmp_path / "model.keras"), expected[0]
    for model in (loaded, reference):
        model.fit(data(), verbose=0)
    assert difference(loaded, reference) < 1e-5


def test_a_line_for_each_epoch_where_the_log_shows_only_warnings(
    tmp_path, capsys, caplog, monkeypatch
):
    monkeypatch.setattr(logging, "get_verbosity", lambda: logging.WARNING)
    unknown = lambda: data().filter(lambda *_: True)  # noqa: E731
    result = ge.fit(make_model, unknown, epochs=2, config=ge.RunConfig(str(tmp_path / "a")))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    assert "loss" in lines[0] and "accuracy" in lines[0]
    # Steps are counted if the data do not know their number.
    assert len(result.history["loss"]) == 2 and result.estimator.last_run.step == 8
    last = {name: f"{values[-1]:.4g}" for name, values in result.history.items()}
    values = f"loss={last['loss']}, accuracy={last['accuracy']}"
    assert repr(result) == f"FitResult(epochs=2, {values}, model_dir={str(tmp_path / 'a')!r})"
    caplog.clear()
    ge.fit(make_model, unknown, epochs=2, config=ge.RunConfig(str(tmp_path / "a")))
    assert f"epochs is 2, and {tmp_path / 'a'} has 2 of earlier calls" in caplog.text
    assert "nothing is trained. Set epochs=4, or another model_dir." in caplog.text


def test_a_model_dir_has_one_number_of_steps_and_one_first_epoch(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(logging, "get_verbosity", lambda: logging.WARNING)
    config = ge.RunConfig(str(tmp_path))
    ge.fit(make_model, data, verbose=0, config=config)
    assert not capsys.readouterr().out
    for options, remedy in (
        ({"steps_per_epoch": 3}, "steps_per_epoch=4"),
        ({"initial_epoch": 1}, "initial_epoch=0"),
    ):
        with pytest.raises(ge.errors.UserValueError, match=f"Set {remedy}, or another model_dir"):
            ge.fit(make_model, data, epochs=3, config=config, **options)


def test_two_replicas_train_as_one_on_ragged_batches(tmp_path):
    config = ge.RunConfig(str(tmp_path), devices=("CPU:0", "CPU:1"))
    result = ge.fit(make_model, data, epochs=3, config=config)
    assert_same(result, by_keras(make_model, data, epochs=3))


@pytest.mark.thin
@pytest.mark.parametrize("one_hot", [True, False])
def test_weights_of_classes_and_of_examples(tmp_path, one_hot):
    def make():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.layers.Dense(3, "softmax")])
        loss = "categorical_crossentropy" if one_hot else "sparse_categorical_crossentropy"
        model.compile("sgd", loss, metrics=["accuracy"])
        return model

    factors = np.float32([CLASS_WEIGHT.get(label, 1) for label in Y])
    input_fn, same = data, batches(X, Y, factors)
    if one_hot:  # Keras refuses weights of classes and examples together.
        labels = np.eye(3)[Y]
        input_fn, same = batches(X, labels, W), batches(X, labels, factors * W)
    options = {"validation_data": input_fn, "class_weight": CLASS_WEIGHT}
    result = ge.fit(make, input_fn, epochs=2, config=ge.RunConfig(str(tmp_path)), **options)
    assert_same(result, by_keras(make, same, input_fn, epochs=2))


def test_dicts_of_inputs_and_two_outputs(tmp_path):
    def make():
        keras.utils.set_random_seed(3)
        inputs = {name: keras.Input([2], name=name) for name in ("a", "b")}
        joined = keras.layers.Concatenate()([inputs["a"], inputs["b"]])
        kind = keras.layers.Dense(3, "softmax", name="kind")(joined)
        size = keras.layers.Dense(1, name="size")(joined)
        model = keras.Model(inputs, {"kind": kind, "size": size})
        loss = {"kind": "sparse_categorical_crossentropy", "size": "mse"}
        model.compile("sgd", loss, loss_weights={"kind": 1.0, "size": 0.5})
        return model

    # Keras gives the short last batch the weight of a whole one in the losses of outputs.
    labels = {"kind": Y[:96], "size": X[:96, :1]}
    input_fn = batches({"a": X[:96, :2], "b": X[:96, 2:]}, labels)
    result = ge.fit(make, input_fn, epochs=2, config=ge.RunConfig(str(tmp_path)))
    assert_same(result, by_keras(make, input_fn, epochs=2))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(8, "relu")
        self.classes = keras.layers.Dense(3, "softmax", dtype="float32")

    def call(self, inputs):
        return self.classes(self.hidden(inputs))


@pytest.mark.thin
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_a_subclassed_model_in_the_precision_of_keras_or_of_the_run(tmp_path, policy):
    def make():
        keras.utils.set_random_seed(3)
        model = Subclassed()
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    by_config, config = policy == "mixed_bfloat16", ge.RunConfig(str(tmp_path))
    if by_config:
        result = ge.fit(make, data, epochs=2, config=config.replace(precision=policy))
    keras.config.set_dtype_policy(policy)
    try:
        if not by_config:
            result = ge.fit(make, data, epochs=2, config=config)
        expected = by_keras(make, data, epochs=2)
    finally:
        keras.config.set_dtype_policy("float32")
    assert result.model.hidden.compute_dtype == policy.removeprefix("mixed_")
    assert_same(result, expected)


@pytest.mark.slow
def test_xla(tmp_path):
    config = ge.RunConfig(str(tmp_path), jit_compile=True)
    result = ge.fit(make_model, data, epochs=2, config=config)
    assert_same(result, by_keras(make_model, data, epochs=2))


class Break(ge.Hook):
    """Ends a training with an error."""

    def __init__(self, step):
        self._step, self.every_steps = step, 1

    def after_step(self, run):
        if run.step == self._step:
            raise KeyboardInterrupt


def callbacks(validates):
    stop = {"patience": 2, "min_delta": 10, "restore_best_weights": True}
    return [
        keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=10, factor=0.5),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        # Keras finds its direction by the metrics that its own fit makes.
        keras.callbacks.EarlyStopping("accuracy", patience=9),
        *([keras.callbacks.EarlyStopping("val_loss", **stop)] if validates else []),
    ]


@pytest.mark.thin
@pytest.mark.parametrize("step", [8, 6, 9])
@pytest.mark.parametrize("validates", [True, False])
def test_callbacks_work_as_in_fit_also_in_a_training_that_was_interrupted(
    tmp_path, step, validates, caplog
):
    validation, epochs = (data, 5) if validates else (None, 3)
    config = ge.RunConfig(str(tmp_path), save_checkpoints_steps=2)

    def fit(*hooks):
        given = callbacks(validates)
        options = {"epochs": epochs, "validation_data": validation, "callbacks": given}
        return ge.fit(make_model, data, hooks=hooks, config=config, **options), given

    with pytest.raises(KeyboardInterrupt):
        fit(Break(step))
    result, given = fit()
    again = callbacks(validates)
    assert_same(result, by_keras(make_model, data, validation, epochs=epochs, callbacks=again))
    assert given[2].best == pytest.approx(max(result.history["accuracy"]))
    loss = result.model.evaluate(data(), verbose=0)[0]
    assert result.estimator.evaluate(data)["loss"] == pytest.approx(loss, abs=1e-6)
    last, _ = fit()
    reason = "EarlyStopping_1 set model.stop_training in an" if validates else "has 3 of"
    assert f"{reason} earlier call" in caplog.text
    assert last.history == result.history and difference(last.model, result.model) == 0


def uncompiled():
    return keras.Sequential([keras.layers.Dense(1)])


def compiled(**options):
    def make():
        model = uncompiled()
        model.compile("sgd", "mse", **options)
        return model

    return make


def custom_step():
    class Custom(keras.Sequential):
        def train_step(self, *args):
            return super().train_step(*args)

    model = Custom([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def custom_fit():
    class Custom(keras.Sequential):
        preprocessor = tf.abs

        def fit(self, x, *args, **options):
            return super().fit(x.map(self.preprocessor), *args, **options)

    model = Custom([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def model_of(layer, metrics=None):
    model = keras.Sequential([layer, keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=metrics)
    return model


def in_float16(optimizer="sgd", **options):
    model = keras.Sequential([keras.layers.Dense(1)])
    model.dtype_policy = "mixed_float16"
    model.compile(optimizer, "mse", **options)
    return model


def scaled():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), initial_scale=8.0)


FLOAT16 = ge.RunConfig("m", precision="mixed_float16")


MISTAKES = {
    "float16": (
        {"make_model": in_float16},
        r"scales the loss.*set_dtype_policy\('mixed_float16'\)",
    ),
    "auto_scale_loss": (
        {"make_model": lambda: in_float16(auto_scale_loss=False), "config": FLOAT16},
        "auto_scale_loss is False in model.compile: expected True in mixed_float16",
    ),
    "loss scale": (
        {"make_model": lambda: in_float16(scaled()), "config": FLOAT16},
        r"LossScaleOptimizer are \(8.0, 2000\): expected \(32768.0, 2000\)",
    ),
    "single examples": (
        {"x": lambda: tf.data.Dataset.from_tensor_slices((X, Y))},
        r"x yields single examples.*Return dataset.batch\(32\)",
    ),
    "no function": ({"make_model": 3}, "make_model is 3: expected a function"),
    "uncompiled": ({"make_model": uncompiled}, "is not a compiled Keras model"),
    "custom step": (
        {
            "make_model": custom_step,
            "config": ge.RunConfig("m", gradient_accumulation_steps=2),
        },
        "gradient_accumulation_steps is 2, and Custom.train_step is overridden",
    ),
    "custom fit": ({"make_model": custom_fit}, "Custom.fit is overridden, and ge.fit does not"),
    "eager": ({"make_model": compiled(run_eagerly=True)}, "RunConfig.run_eagerly=True"),
    "xla": ({"make_model": compiled(jit_compile=True)}, "RunConfig.jit_compile=True"),
    "no epochs": ({"epochs": 0}, "epochs is 0: expected an int > 0. Set epochs=10"),
    "endless": ({"x": lambda: data().repeat()}, "endless data.*steps_per_epoch=100"),
    "empty": ({"x": lambda: data().take(0)}, "empty dataset"),
    "input_context": ({"x": lambda input_context: data()}, "takes input_context"),
    "an argument": ({"x": lambda files: data()}, r"requires \['files'\]"),
    "class weight": ({"class_weight": [1.0]}, "class_weight is .*expected a dict"),
    "evaluator": (
        {"validation_data": data, "config": ge.RunConfig("m", evaluation="evaluator")},
        "Set evaluation='inline'",
    ),
    "profile": (
        {"callbacks": [keras.callbacks.TensorBoard("b", profile_batch=(1, 2))]},
        "profile_batch is set",
    ),
    "no callback": ({"callbacks": [print]}, "expected a list of Callback"),
}


def test_compile_as_on_a_gpu_where_its_default_is_xla(tmp_path, monkeypatch):
    monkeypatch.setattr(keras.Model, "_resolve_auto_jit_compile", lambda self: True)
    ge.fit(make_model, X, Y, config=ge.RunConfig(str(tmp_path)))


def test_the_arguments_are_those_of_keras_and_wrong_names_are_errors_with_the_nearest():
    theirs = list(inspect.signature(keras.Model.fit).parameters)[1:]
    assert list(inspect.signature(ge.fit).parameters) == ["make_model", *theirs, "hooks", "config"]
    for name, message in {
        "epoch": "no argument 'epoch'. Did you mean epochs?",
        "validation": "no argument 'validation'. Write instead: validation_data=input_fn",
        "input_fn": "no argument 'input_fn'. Write instead: x=input_fn",
        "x": "two values for x",
    }.items():
        with pytest.raises(ge.errors.UserTypeError, match=re.escape(message)):
            ge.fit(make_model, X, Y, **{name: 3})
    with pytest.raises(ge.errors.UserTypeError, match="fit has no value for make_model"):
        ge.fit(x=X, y=Y)
    with pytest.raises(ge.errors.UserTypeError, match="20 values without names: .* by name"):
        ge.fit(make_model, *range(19))


def test_tensorboard_has_to_be_installed(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ge.errors.UserValueError, match="Run python -m pip install tensorboard"):
        ge.fit(make_model, data, callbacks=[keras.callbacks.TensorBoard("b")])


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_refused_with_the_remedy(name, tmp_path):
    given, message = MISTAKES[name]
    arguments = {"make_model": make_model, "x": data}
    arguments |= {"config": ge.RunConfig(str(tmp_path))}
    with pytest.raises(ge.UserError, match=message):
        ge.fit(**{**arguments, **given})


class Adds(keras.layers.Dense):
    """Is its own loss."""

    def call(self, inputs):
        outputs = super().call(inputs)
        self.add_loss(keras.ops.mean(outputs**2))
        return outputs


def test_lists_for_each_output_names_of_functions_and_features_alone_are_those_of_keras(tmp_path):
    def config(name):
        return ge.RunConfig(str(tmp_path / name), save_checkpoints_steps=0)

    def make():
        def meanError(y, p):  # noqa: N802
            return keras.ops.abs(y - p)

        own = lambda y, p: (y - p) ** 2  # noqa: E731
        return model_of(keras.layers.Dense(2), [[own, meanError, "mae"]])

    floats = batches(X, Y.astype("float32"))
    result = ge.fit(make, floats, config=config("names"))
    assert result.history.keys() == by_keras(make, floats)[1].keys()
    assert {"lambda", "mean_error"} < result.history.keys()

    def alone():
        model = keras.Sequential([Adds(1, kernel_initializer="ones")])
        model.compile("sgd")
        return model

    assert_same(ge.fit(alone, batches(X), config=config("x")), by_keras(alone, batches(X)))


def stateful():
    keras.utils.set_random_seed(3)
    layers = [keras.layers.LSTM(3, stateful=True), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input(batch_shape=(8, 5, 2)), *layers])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def test_the_state_of_a_stateful_rnn_is_that_of_fit_also_after_a_kill(tmp_path):
    x = RNG.normal(size=(32, 5, 2)).astype("float32")
    input_fn = lambda: tf.data.Dataset.from_tensor_slices((x, x[:, 0, :1])).batch(8, True)  # noqa: E731
    config = ge.RunConfig(str(tmp_path), save_checkpoints_steps=3)
    options = {"epochs": 2, "validation_data": input_fn, "config": config}
    with pytest.raises(KeyboardInterrupt):
        ge.fit(stateful, input_fn, hooks=[Break(7)], **options)
    result = ge.fit(stateful, input_fn, **options)
    expected = by_keras(stateful, input_fn, input_fn, epochs=2)
    assert_same(result, expected)
    states = [np.stack(each.layers[0].states) for each in (result.model, expected[0])]
    np.testing.assert_allclose(*states, atol=1e-5)
    assert np.any(states[0])
    two = ge.RunConfig(str(tmp_path / "two"), devices=("CPU:0", "CPU:1"))
    with pytest.raises(ge.errors.SpecError, match="layer 'lstm.*' has stateful=True on 2 replicas"):
        ge.fit(stateful, input_fn, config=two)
