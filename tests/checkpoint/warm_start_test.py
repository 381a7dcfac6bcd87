"""Warm starts through an Estimator: what they set, when, and what the log has."""

import json
import pathlib
import re

import keras
import numpy as np
import pytest
import tasks
import tensorflow as tf

import gin_estimator as ge

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 2)).astype("float32")
Y = RNG.integers(3, size=16)
HEAD = "network/second/kernel"


class TwoHeads(keras.Model):
    """PREDICT does not call the second head."""

    def __init__(self):
        super().__init__()
        self.body = keras.layers.Dense(4)
        self.norm = keras.layers.BatchNormalization(momentum=0.5)
        self.heads = {
            "first": keras.layers.Dense(3),
            "second": keras.layers.Dense(3, name="second"),
        }

    def call(self, x, training=False, both=True):
        x = self.norm(self.body(x), training=training)
        return self.heads["first"](x) + (self.heads["second"](x) if both else 0.0)


def model_fn(features, labels, mode, network, optimizer):
    both = mode != ge.ModeKeys.PREDICT
    logits = network(features, training=mode == ge.ModeKeys.TRAIN, both=both)
    if not both:
        return ge.EstimatorSpec(mode, predictions={"logits": logits})
    return ge.EstimatorSpec(
        mode,
        loss=keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True),
        train_op=ge.TrainOp(optimizer, network.trainable_variables),
    )


def train_input():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(8).repeat()


def eval_input():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)


def predict_input():
    return tf.data.Dataset.from_tensor_slices(X).batch(8)


def two_replicas():
    # The default of CPUs mixes up the gradients of several strategies in one process.
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())


def make(model_dir, warm_start_from=None, *, fn=model_fn, modules=(), **options):
    modules = {
        "network": TwoHeads,
        "optimizer": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        **dict(modules),
    }
    config = ge.RunConfig(str(model_dir), save_summary_steps=0, **options)
    return ge.Estimator(fn, None, config, None, warm_start_from, modules=modules)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return make(tmp_path_factory.mktemp("trained")).train(train_input, max_steps=2)


def values(path):
    reader = tf.train.load_checkpoint(str(path))
    found = {}
    for key in reader.get_variable_to_shape_map():
        module, _, rest = key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE").partition("/")
        found["/".join([module, *rest.split("/")[1:]])] = reader.get_tensor(key)
    return found


@pytest.mark.slow
def test_once_though_predictions_come_first(trained, tmp_path, caplog):
    warm = make(tmp_path, trained.model_dir)
    with caplog.at_level("INFO", "absl"):
        predicted = [each["logits"] for each in warm.predict(predict_input)]
    expected = [each["logits"] for each in trained.predict(predict_input)]
    np.testing.assert_allclose(predicted, expected, rtol=1e-6, atol=1e-7)
    assert "has no checkpoint: the weights are those of warm_start_from." in caplog.text
    assert warm.evaluate(eval_input)["loss"] == pytest.approx(trained.evaluate(eval_input)["loss"])
    with caplog.at_level("INFO", "absl"):
        warm.train(train_input, max_steps=1)
    theirs, first = values(trained.latest_checkpoint()), values(tmp_path / "model.ckpt-0")
    network = {name for name in theirs if name.startswith("network/")}
    assert {HEAD, "network/batch_normalization/moving_mean"} < network
    for name in network:
        np.testing.assert_array_equal(first[name], theirs[name], err_msg=name)
    assert first["driver/global_step"] == first["optimizer/iteration"] == 0
    assert theirs[f"optimizer/momentum/{HEAD}"].any()
    assert not first[f"optimizer/momentum/{HEAD}"].any()
    assert f"warm start | {HEAD} from {HEAD}" in caplog.text
    # From now on its checkpoints are used.
    again = make(tmp_path, trained.model_dir).train(train_input, steps=1)
    assert again.last_run.step == 2


def test_expression_for_layers_that_are_built_later(trained, tmp_path):
    chosen = ge.WarmStartSettings(trained.model_dir, [HEAD, "network/third/.*"])
    warm = make(tmp_path, chosen)
    list(warm.predict(predict_input))
    with pytest.raises(
        ge.errors.UserValueError, match=re.escape("has 'network/third/.*': expected a")
    ):
        warm.train(train_input, max_steps=1)


def test_export_of_a_model_that_is_only_warm_started(trained, tmp_path):
    warm = make(tmp_path / "run", trained.model_dir)
    path = warm.export_saved_model(str(tmp_path / "export"), input_fn=predict_input)
    served = tf.saved_model.load(path).signatures["serving_default"]
    served = served(features=tf.constant(X))["logits"]
    expected = [each["logits"] for each in trained.predict(predict_input)]
    np.testing.assert_allclose(served, expected, rtol=1e-5, atol=1e-6)


def test_an_export_is_a_source(trained, tmp_path):
    list(trained.predict(predict_input))  # So that the features are known.
    exported = trained.export_saved_model(str(tmp_path / "export"), input_fn=predict_input)
    warm = make(tmp_path / "run", ge.WarmStartSettings(exported, "network/(dense|batch).*"))
    with pytest.raises(ge.errors.UserValueError, match="SavedModel"):
        make(exported).train(train_input, max_steps=1)
    warm.train(train_input, max_steps=1)
    first, theirs = values(tmp_path / "run/model.ckpt-0"), values(trained.latest_checkpoint())
    for name in ("network/dense_1/bias", "network/batch_normalization/moving_mean"):
        np.testing.assert_array_equal(first[name], theirs[name], err_msg=name)
    parent = make(tmp_path / "b", str(tmp_path / "export"))
    with pytest.raises(ge.errors.UserValueError, match="expected the prefix of a checkpoint"):
        list(parent.predict(predict_input))


class Wide(keras.Model):
    """Layers in attributes, a list and a dict."""

    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(3)
        self.more = [keras.layers.Dense(3), keras.layers.LSTM(3)]
        self.heads = {"a": keras.layers.Dense(3), "b": keras.layers.Dense(3)}

    def call(self, x):
        x = self.more[1](self.more[0](self.first(x))[:, None])
        return self.heads["a"](x) + self.heads["b"](x)


def wide_fn(features, labels, mode, network, optimizer, other=None):
    logits = network(features) + (other(features) if other else 0.0)
    if mode == ge.ModeKeys.PREDICT:
        return ge.EstimatorSpec(mode, predictions={"logits": logits})
    loss = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    op = ge.TrainOp(optimizer, network.trainable_variables)
    return ge.EstimatorSpec(mode, loss=loss, train_op=op)


@pytest.mark.slow
def test_files_of_keras(tmp_path):
    theirs = Wide()
    expected = theirs(X)
    theirs.save_weights(weights := str(tmp_path / "a.weights.h5"))
    theirs.save(whole := str(tmp_path / "a.keras"))
    one = {"network": Wide}
    for path in (weights, whole):
        warm = make(tmp_path / "run", path, fn=wide_fn, modules=one)
        predicted = [each["logits"] for each in warm.predict(predict_input)]
        np.testing.assert_allclose(predicted, expected, rtol=1e-5, atol=1e-6)
    two = make(tmp_path / "run", weights, fn=wide_fn, modules={**one, "other": Wide})
    with pytest.raises(ge.errors.UserValueError, match=r"to be set: \['network', 'other'\]"):
        list(two.predict(predict_input))
    narrow = {"network": lambda: keras.Sequential([keras.layers.Dense(3)])}
    with pytest.raises(ge.CheckpointMismatchError, match="does not fit module 'network'"):
        list(make(tmp_path / "run", weights, fn=wide_fn, modules=narrow).predict(predict_input))
    for path in map(pathlib.Path, (weights, whole)):
        path.write_bytes(path.read_bytes()[:1000])
        with pytest.raises(ge.CorruptCheckpointError, match="Use another file"):
            list(make(tmp_path / "run", str(path), fn=wide_fn, modules=one).predict(predict_input))


def test_init_fn_on_two_replicas(trained, tmp_path, caplog):
    def init_fn(modules):
        modules["network"].heads["first"].bias.assign([1.0, 2.0, 3.0])

    two = two_replicas()
    settings = ge.WarmStartSettings(trained.model_dir, HEAD, init_fn=init_fn)
    with caplog.at_level("INFO", "absl"):
        make(tmp_path, settings, train_distribute=two).train(train_input, max_steps=1)
    first = values(tmp_path / "model.ckpt-0")
    assert first["network/dense_1/bias"].tolist() == [1.0, 2.0, 3.0]
    np.testing.assert_array_equal(first[HEAD], trained.get_variable_value(HEAD))
    assert "warm start | network/dense_1/bias from init_fn" in caplog.text
    wrong = ge.WarmStartSettings(init_fn=lambda modules: {"network": 1})
    with pytest.raises(
        ge.errors.UserTypeError, match=r"init_fn returned \{'network': 1\}: expected None"
    ):
        make(tmp_path / "wrong", wrong).train(train_input, max_steps=1)


def test_frozen_variables_stay(tmp_path):
    def frozen_fn(features, labels, mode, network, optimizer):
        spec = model_fn(features, labels, mode, network, optimizer)
        kept = ge.trainable_variables(network, frozen=["dense/.*", ".*/gamma"])
        return ge.EstimatorSpec(mode, loss=spec.loss, train_op=ge.TrainOp(optimizer, kept))

    make(tmp_path, fn=frozen_fn).train(train_input, max_steps=1)
    first, last = values(tmp_path / "model.ckpt-0"), values(tmp_path / "model.ckpt-1")
    moved = {name for name in first if np.any(first[name] != last[name])}
    assert {"network/batch_normalization/beta", HEAD, "network/dense_1/kernel"} <= moved
    frozen = {"network/dense/kernel", "network/dense/bias", "network/batch_normalization/gamma"}
    assert frozen < first.keys() - moved


@pytest.mark.parametrize(
    ("frozen", "text"),
    [
        ("bodi/.*", "frozen is 'bodi/.*', which matches no trainable variable"),
        ("batch_normalization/moving_mean", "which matches no trainable variable"),
        (".*", "frozen is '.*', which leaves nothing to train"),
        ("(", "frozen is '(': expected a regular expression"),
    ],
)
def test_wrong_expressions_of_frozen_variables(frozen, text):
    network = keras.Sequential([keras.Input([2]), keras.layers.BatchNormalization()])
    with pytest.raises(ge.UserError, match=re.escape(text)):
        ge.trainable_variables(network, frozen=frozen)


def test_unfrozen_of_something_else():
    with pytest.raises(ge.errors.UserTypeError, match="module is 3: expected a module"):
        ge.trainable_variables(3, frozen="a")


def test_model_dir_of_another_program(tmp_path):
    """It is refused, whatever the name of its checkpoint is."""
    path = f"{tmp_path}/ckpt-3"
    variable = tf.Variable([1.0])
    tf.train.Checkpoint(a=variable).write(path)
    tf.compat.v1.train.update_checkpoint_state(str(tmp_path), path)
    with pytest.raises(
        ge.UserError, match=r"written by another program .*warm_start_from"
    ) as error:
        make(tmp_path).train(train_input, max_steps=1)
    assert "keys by objects" in str(error.value)


def test_wrong_kind_of_source(tmp_path):
    with pytest.raises(
        ge.errors.UserTypeError, match="Estimator.warm_start_from is 3: expected WarmStart"
    ):
        make(tmp_path, 3)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "code"), [("same", 0), ("different", 2)])
def test_workers_that_set_different_values_are_stopped(kind, code, tmp_path):
    with tasks.workers(tmp_path, kind, tmp_path / "run", program="warm_start.py") as both:
        assert [task.wait() for task in both] == [code, code], both[0].output
    if kind == "same":
        assert json.loads(both[0].output.splitlines()[-1]) == [1.0, 1.0, 1.0]
    else:
        assert "warm_start_from sets different values in different" in both[0].output
