"""init_fn, files of Keras, and variables that are left out of training by name."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.foreign.keras_file import KerasFile
from pipeline.strategy import peers, variables
from pipeline.warm_start.warm_start import warm_start
from tests import fakes


def network():
    inputs = keras.Input([2])
    x = keras.layers.Dense(3, name="body")(inputs)
    x = keras.layers.BatchNormalization()(x)
    return keras.Model(inputs, keras.layers.Dense(3)(x) + keras.layers.Dense(3)(x))


class Wide(keras.Model):
    """Layers in attributes, a list and a dict, which Keras' file has by other names."""

    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(3)
        self.more = [keras.layers.Dense(3), keras.layers.LSTM(3)]
        self.heads = {"a": keras.layers.Dense(3), "b": keras.layers.Dense(3)}

    def call(self, x):
        x = self.more[0](self.first(x))
        x = self.more[1](x[:, None])
        return self.heads["a"](x) + self.heads["b"](x)


def state_of(**modules):
    return {
        name: {k: variables.raw(v) for k, v in variables.named_state(m).items()}
        for name, m in modules.items()
    }


def filled(model):
    model(tf.zeros([1, 2]))
    rng = np.random.default_rng(3)
    for variable in model.variables:
        if variable.dtype == "float32":
            variable.assign(rng.normal(size=variable.shape))
    return model


@pytest.mark.parametrize("make", [network, Wide])
@pytest.mark.parametrize("file", ["a.weights.h5", "a.keras"])
def test_a_file_of_keras_by_the_names_that_keras_gives(make, file, tmp_path):
    theirs, ours = filled(make()), make()
    ours.compile("adam")  # An optimizer, which Keras saves besides.
    if file == "a.keras":
        theirs.save(f"{tmp_path}/{file}")
    else:
        theirs.save_weights(f"{tmp_path}/{file}")
    ours(tf.zeros([1, 2]))
    warm_start(state_of(net=ours), f"{tmp_path}/{file}", modules={"net": ours})
    for here, there in zip(ours.weights, theirs.weights, strict=True):
        np.testing.assert_array_equal(here, there)
    assert "save_own_variables" not in vars(ours.layers[1])


def test_a_file_of_one_model_and_two_that_it_fits(tmp_path):
    filled(network()).save_weights(path := f"{tmp_path}/a.weights.h5")
    two = {"a": network(), "b": network()}
    with pytest.raises(ge.CheckpointMismatchError) as error:
        warm_start(state_of(**two), path, modules=two)
    assert "no name there is one of ['a/body/kernel'" in str(error.value)
    settings = ge.WarmStartSettings(path, vars_to_warm_start="b/.*")
    warm_start(state_of(**two), settings, modules=two)


def test_a_damaged_file_of_keras(tmp_path):
    filled(network()).save(path := f"{tmp_path}/a.keras")
    content = (tmp_path / "a.keras").read_bytes()
    (tmp_path / "a.keras").write_bytes(content[:1000])
    with pytest.raises(ge.UnreadableCheckpointError, match="Give another file"):
        KerasFile(path)


X, Y = fakes.classification_data(rows=8)
DATA = fakes.make_input_fn(X, Y, batch_size=8)


def initialized(model_dir, init_fn, **config):
    return fakes.make_estimator(
        model_dir,
        params={},
        network=lambda: fakes.network(batch_norm=True),
        warm_start_from=ge.WarmStartSettings(init_fn=init_fn),
        **config,
    )


def test_an_init_fn_sets_anything_and_the_table_shows_what(tmp_path, log):
    def init_fn(modules):
        modules["network"].layers[-1].bias.assign([1.0, 2.0, 3.0])

    two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    estimator = initialized(tmp_path, init_fn, train_distribute=two)
    next(estimator.predict(fakes.make_input_fn(X, batch_size=8)))
    estimator.train(DATA)
    first = fakes.weights(tmp_path, step=0)
    (bias,) = (v for k, v in first.items() if re.match(r"network/\d+/dense_1/bias/", k))
    assert bias.tolist() == [1.0, 2.0, 3.0]
    (table,) = [text for text in log() if text.startswith("warm start | ")]
    assert table.splitlines()[:4] == [
        "warm start | 1 of 10 from init_fn",
        "  taken over                     from there",
        "  network/dense_1/bias           init_fn",
        "  left as it is                  why",
    ]
    assert "  network/dense/*                not set by init_fn  (2)\n" in table


@pytest.mark.parametrize(
    ("init_fn", "text"),
    [
        (
            lambda modules: {"network": 1},
            "init_fn returned dict {'network': 1}, and is",
        ),
        (3, "WarmStartSettings.init_fn is int 3: write a function of the modules"),
        (None, "ckpt_to_initialize_from is None: write the path of a checkpoint"),
    ],
)
def test_an_init_fn_that_is_none(init_fn, text, tmp_path):
    with pytest.raises((TypeError, ValueError)) as error:
        initialized(tmp_path, init_fn).train(DATA)
    assert text in str(error.value)


def test_an_init_fn_that_sets_other_values_elsewhere(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(peers.Peers, "same", lambda _, number: told.append(number))
    for value in (1.0, 2.0):

        def init_fn(modules, value=value):
            modules["network"].layers[-1].bias.assign([value, 0.0, 0.0])

        with pytest.raises(ValueError, match="has set other values in this process th"):
            initialized(tmp_path, init_fn).train(DATA)
    assert len({*told}) == 2


def test_what_is_frozen_by_name_stays(tmp_path):
    def model_fn(features, labels, mode, network, optimizer, params):
        spec = fakes.classifier_fn(features, labels, mode, network, optimizer, params)
        trained = ge.unfrozen(network, frozen=["dense/.*", ".*/gamma"])
        assert len(trained) == 3
        return ge.EstimatorSpec(
            mode, loss=spec.loss, train_op=ge.TrainOp(optimizer, trained)
        )

    estimator = fakes.make_estimator(
        tmp_path,
        params={},
        model_fn=model_fn,
        network=lambda: fakes.network(batch_norm=True),
    )
    estimator.train(DATA)
    first, last = (fakes.weights(tmp_path, step=step) for step in (0, 1))
    moved = {k for k in first if np.any(first[k] != last[k]) and k[:8] == "network/"}
    moved = {k.split("/", 2)[2].partition("/.ATTR")[0] for k in moved}
    assert moved >= {"batch_normalization/beta", "dense_1/kernel", "dense_1/bias"}
    assert not moved & {"dense/kernel", "dense/bias", "batch_normalization/gamma"}


@pytest.mark.parametrize(
    ("module", "frozen", "text"),
    [
        (network, "bodi/.*", "frozen='bodi/.*' matches no trainable variable in full"),
        (network, "batch_normalization/moving_mean", "matches no trainable variable"),
        (network, ".*", "frozen='.*' leaves nothing to train of ['batch_norm"),
        (network, "(", "frozen has '(', which is no regular expression"),
        (lambda: 3, "a", "unfrozen is given int 3: write unfrozen(network"),
    ],
)
def test_what_cannot_be_frozen(module, frozen, text):
    with pytest.raises((TypeError, ValueError)) as error:
        ge.unfrozen(module(), frozen)
    assert text in str(error.value)
