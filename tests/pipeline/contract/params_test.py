"""Hyperparameters: a copy for each who gets them, of the type that they came in."""

import argparse
import collections
import dataclasses
import threading
import types

import gin
import keras
import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.contract import calling, params
from tests import fakes
from tests.mistakes import changed, data


class HParams(dict):
    """A dict whose values are attributes, too."""

    __getattr__ = dict.__getitem__


@dataclasses.dataclass
class Sizes:
    hidden: list


HELD = [
    {"hidden": [1, 2]},
    HParams(hidden=[1, 2]),
    types.SimpleNamespace(hidden=[1, 2]),
    argparse.Namespace(hidden=[1, 2]),
    Sizes([1, 2]),
]


def hidden(held):
    return held["hidden"] if type(held) is dict else held.hidden


@pytest.mark.parametrize("held", HELD, ids=lambda held: type(held).__name__)
def test_each_call_has_a_copy_of_its_own(tmp_path, held):
    seen = []

    def model_fn(features, labels, mode, network, optimizer, params):
        assert type(params) is type(held)
        hidden(params).append(3)
        seen.append(hidden(params))
        return changed()(features, labels, mode, network, optimizer)

    estimator = fakes.make_estimator(tmp_path, model_fn=model_fn, params=held)
    estimator.train(data(), max_steps=1)
    assert len(seen) > 1
    assert seen == [[1, 2, 3]] * len(seen)
    assert hidden(held) == [1, 2]
    hidden(estimator.params).append(4)
    assert hidden(estimator.params) == [1, 2]


def test_what_cannot_be_copied_and_state_stay_the_same():
    lock, variable = threading.Lock(), tf.Variable(1.0)
    model, array = keras.Sequential(), np.zeros(2)
    held = {"lock": [lock], "state": (variable, model), "array": array}
    copied = params.own(held)
    assert copied["lock"][0] is lock and copied["lock"] is not held["lock"]
    assert copied["state"][0] is variable and copied["state"][1] is model
    assert copied["array"] is not array


def test_state_in_an_object_stays_the_same():
    variable, model, rows = tf.Variable(1.0), keras.Sequential(), [1]
    Pair = collections.namedtuple("Pair", "first second")
    held = argparse.Namespace(
        pair=Pair(variable, rows), sizes=Sizes([{"model": model}]), me=[]
    )
    held.me.append(held)
    copied = params.own(held)
    assert copied is not held and copied.me[0] is copied
    assert copied.pair.first is variable and copied.pair.second is not rows
    assert copied.sizes.hidden[0]["model"] is model


@pytest.mark.parametrize(
    "value", ["a", 3, True, [1], (1,), {1}, np.ones(2), dict, lambda: 1]
)
def test_params_have_names(value):
    with pytest.raises(
        TypeError, match=r"params is .*: write params=\{'learning_rate'"
    ):
        ge.Estimator(changed(), modules={}, params=value)


def takes_none():
    return 0


def takes_both(params, config, size=3):
    return params, config, size


def has_defaults(params=1, *, config=2):
    return params, config


def takes_any(**options):
    return options


class Config:
    def __init__(self, config):
        self.config = config


class Default:
    def __init__(self, config="own"):
        self.config = config


CONTEXT = {"params": {"a": 1}, "config": "the RunConfig"}


def made(factory):
    return calling.call_factory(factory, CONTEXT, role="the factory")


def test_a_factory_gets_what_it_requires():
    assert made(takes_none) == 0
    assert made(takes_both) == ({"a": 1}, "the RunConfig", 3)
    assert made(lambda params: params) == {"a": 1}
    assert made(Config).config == "the RunConfig"
    made(takes_both)[0]["a"] = 2
    assert CONTEXT["params"] == {"a": 1}


def test_a_default_of_dots_is_given(fresh_gin):
    def left_out(size, config=..., params=...):
        return params, config, size

    bound = gin.external_configurable(left_out, "left_out", denylist=["config"])
    gin.bind_parameter("left_out.size", 3)
    assert made(bound) == ({"a": 1}, "the RunConfig", 3)
    assert bound() == (..., ..., 3)


def test_a_default_is_kept():
    assert made(has_defaults) == (1, 2)
    assert made(takes_any) == {}
    assert made(Default).config == "own"
    assert isinstance(made(keras.optimizers.Adam), keras.optimizers.Adam)


def test_another_argument_is_asked_for():
    with pytest.raises(TypeError, match=r"requires \['units'\].*lambda: Dense\(units="):
        made(keras.layers.Dense)


def test_what_gin_binds_wins():
    bound = gin.external_configurable(takes_both, "takes_both_bound")
    free = gin.external_configurable(takes_both, "takes_both_free")
    of_class = gin.external_configurable(Config, "ConfigBound")
    with gin.unlock_config():
        gin.bind_parameter("takes_both_bound.params", "gin's")
        gin.bind_parameter("takes_both_bound.config", "gin's, too")
        gin.bind_parameter("ConfigBound.config", "gin's")
        gin.bind_parameter("takes_both_free.size", 4)
    try:
        assert made(bound) == ("gin's", "gin's, too", 3)
        assert made(of_class).config == "gin's"
        assert made(free) == ({"a": 1}, "the RunConfig", 4)
    finally:
        gin.clear_config()


def test_a_factory_that_fails_is_called_once():
    calls = []

    def fails(params):
        calls.append(params)
        raise TypeError("missing an argument, it says")

    with pytest.raises(TypeError, match="it says"):
        made(gin.external_configurable(fails, "fails_in_its_body"))
    assert len(calls) == 1


def test_modules_are_made_of_params(tmp_path):
    def make_network(params, config):
        assert config.model_dir == str(tmp_path)
        return fakes.network(units=params["units"])

    estimator = fakes.make_estimator(
        tmp_path, network=make_network, params={"units": 5}
    )
    estimator.train(data(), max_steps=1)
    assert estimator.get_variable_value("network/dense/kernel").shape == (6, 5)


def test_params_that_nobody_takes_are_said(tmp_path, caplog):
    options = {"model_fn": changed(), "params": {"units": 5}}
    fakes.make_estimator(tmp_path, **options)
    assert "params are given, and neither model_fn" in caplog.text
    caplog.clear()
    fakes.make_estimator(tmp_path, **options, network=lambda params: fakes.network())
    assert "params are given" not in caplog.text


@dataclasses.dataclass(frozen=True)
class Frozen:
    width: int = 3


@pytest.mark.parametrize("given", [{"width": 3}, types.SimpleNamespace(width=3)])
def test_an_entry_is_added_to_a_copy(given):
    with_size = params.with_entry(given, "batch_size", 8)
    assert params.has(with_size, "batch_size") and not params.has(given, "batch_size")
    assert params.flat(with_size) == {"width": 3, "batch_size": 8}
    assert type(with_size) is type(given)


def test_an_entry_that_params_do_not_take_is_refused():
    with pytest.raises(TypeError, match="params is Frozen, which takes no batch_size"):
        params.with_entry(Frozen(), "batch_size", 8)
