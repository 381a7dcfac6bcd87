"""Who gets which argument, and what is said where one is missing or left over."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from pipeline import EstimatorSpec, ModeKeys, SpecError
from pipeline.contract import calling
from pipeline.contract import model_fn as model_fn_lib
from pipeline.contract.model_fn import check_model_fn
from pipeline.mistakes import checks

EVAL = ModeKeys.EVAL


def spec_fn(features, mode):
    return EstimatorSpec(mode, loss=features)


def call_model_fn(model_fn, *, mode=EVAL, labels=None, **modules):
    context = {"params": {"rate": 0.1}, "config": "config", "step": tf.constant(7)}
    return model_fn_lib.call_model_fn(
        model_fn,
        features=tf.constant([1.0]),
        labels=labels,
        mode=mode,
        modules=modules,
        context=context,
    )


def test_each_argument_arrives_by_name():
    seen = {}

    def model_fn(step, network, mode, features, *, config, params, labels):
        seen.update(locals())
        return spec_fn(features, mode)

    call_model_fn(model_fn, labels="labels", network="network")
    del seen["seen"]
    assert int(seen.pop("step")) == 7
    assert seen.pop("features").numpy() == [1.0]
    assert seen == {
        "network": "network",
        "mode": EVAL,
        "config": "config",
        "params": {"rate": 0.1},
        "labels": "labels",
    }


def test_only_what_is_declared_is_given():
    def input_fn(mode, batch_size=4):
        return mode, batch_size

    supplied = {"mode": "train", "params": {}, "input_context": None}
    assert calling.call(input_fn, supplied, role="input_fn") == ("train", 4)
    assert calling.call(lambda: 3, supplied, role="input_fn") == 3
    everything = calling.call(lambda **kw: kw, supplied, role="input_fn")
    assert everything == supplied


def test_a_required_argument_of_nobody_names_both_lists():
    def model_fn(features, mode, net):
        raise AssertionError("not reached")

    with pytest.raises(TypeError) as error:
        call_model_fn(model_fn, network=1)
    assert (
        "model_fn test_a_required_argument_of_nobody_names_both_lists.<locals>.model_fn"
        " requires ['net'], which nobody supplies; supplied are ['config', 'features', "
        "'labels', 'mode', 'network', 'params', 'step']."
    ) in str(error.value)


def _decorated(fn):
    """Like gin's: keeps the signature and may know values of its own."""

    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **{**wrapper.known, **kwargs})

    wrapper.known = {}
    return wrapper


def test_a_decorator_may_supply_a_required_argument():
    @_decorated
    def input_fn(mode, rows):
        return mode, rows

    input_fn.known = {"rows": 5}
    assert calling.call(input_fn, {"mode": "eval"}, role="input_fn") == ("eval", 5)


def test_a_decorator_that_does_not_is_told_who_supplies_what():
    @_decorated
    def input_fn(mode, rows):
        raise AssertionError("not reached")

    with pytest.raises(TypeError) as error:
        calling.call(input_fn, {"mode": "eval"}, role="input_fn")
    assert "requires ['rows'], which nobody supplies" in str(error.value)
    assert "missing 1 required positional argument" in str(error.value)


def test_a_type_error_of_the_users_own_passes_unchanged():
    def input_fn():
        return 1 + "a"

    with pytest.raises(TypeError, match="unsupported operand"):
        calling.call(input_fn, {}, role="input_fn")


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (spec_fn, "spec_fn"),
        (functools.partial(functools.partial(spec_fn)), "spec_fn"),
        (_decorated(spec_fn), "spec_fn"),
        ("".join, "str.join"),
        (functools.partial("".join), "str.join"),
    ],
)
def test_names_for_messages(fn, name):
    assert calling.name_of(fn) == name


def test_an_object_is_named_by_its_class():
    class Model:
        def __call__(self, features, mode):
            return spec_fn(features, mode)

    assert calling.name_of(Model()).endswith("Model")
    assert call_model_fn(Model()).mode == EVAL


@pytest.mark.parametrize(
    ("model_fn", "modules", "has_labels", "text"),
    [
        (None, [], False, "model_fn is None, not a callable: hand in"),
        (
            spec_fn,
            ["params", "step", "network"],
            False,
            "modules ['params', 'step'] have names that model_fn's own arguments use ("
            "['features', 'labels', 'mode', 'params', 'config', 'step']): rename them.",
        ),
        (
            lambda x, mode: None,
            [],
            False,
            "takes ['x', 'mode'] and no `features`: write def model_fn(features, ",
        ),
        (
            spec_fn,
            ["network", "optimizer"],
            False,
            "model_fn spec_fn does not take the modules ['network', 'optimizer']: it "
            "declares ['features', 'mode']; modules are ['network', 'optimizer']. Add",
        ),
        (
            spec_fn,
            [],
            True,
            "model_fn spec_fn takes no `labels`, but input_fn returns labels: add the",
        ),
    ],
)
def test_check_model_fn_refuses(model_fn, modules, has_labels, text):
    with pytest.raises(TypeError) as error:
        check_model_fn(model_fn, modules, has_labels=has_labels)
    assert text in str(error.value)


@pytest.mark.parametrize("model_fn", [spec_fn, _decorated(spec_fn)])
def test_check_model_fn_allows_features_alone(model_fn):
    check_model_fn(model_fn, [], has_labels=False)


def test_check_model_fn_lets_kwargs_take_anything():
    check_model_fn(lambda **kw: None, ["network"], has_labels=True)


@pytest.mark.parametrize(
    ("model_fn", "text"),
    [
        (
            lambda features, mode: EstimatorSpec(mode),
            "<lambda>: mode 'eval' needs loss: write EstimatorSpec(mode, ",
        ),
        (
            lambda features: None,
            "<lambda> returned None in mode 'eval', not an EstimatorSpec. Does every ",
        ),
        (
            lambda features: EstimatorSpec("infer", predictions=features),
            "<lambda> was called in mode 'eval' and returned a spec of mode 'infer': ",
        ),
    ],
)
def test_an_answer_that_breaks_the_contract_names_the_model_fn(model_fn, text):
    with pytest.raises(SpecError) as error:
        call_model_fn(model_fn)
    assert str(error.value).startswith("model_fn ")
    assert text in str(error.value)


@pytest.mark.parametrize("value", [None, 1, np.int64(3)])
def test_counts_that_are_taken(value):
    checks.check_positive("steps", value)


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "1"])
def test_counts_that_are_refused(value):
    with pytest.raises(ValueError) as error:
        checks.check_positive("steps", value)
    assert str(error.value) == f"steps is {value!r}: write an int > 0, or None."
