"""Hooks, listeners and metrics that raise: one row a method, see `mistakes.py`."""

import keras
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.mistakes import user_errors
from tests import fakes, mistakes
from tests.mistakes import changed, data, train

table = mistakes.Table()
told = table.told

# `restore` has a test of its own: it takes a run that goes on.
HOOK_METHODS = (
    "begin",
    "next_step",
    "after_step",
    "after_loop",
    "after_hooks",
    "end",
    "state",
)
METRIC_METHODS = ("__init__", "update_state", "result", "reset_state")


def fail(*_, **__):
    raise KeyError("of the user's")


def raising(kind, name):
    """A class of the kind whose method `name` fails."""
    return type(f"My{kind.__name__}", (kind,), {name: fail})


def endless():
    return data(change=lambda rows: rows.repeat())()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """An Estimator that has been trained, and goes on quickly."""
    return train(tmp_path_factory.mktemp("trained"), input_fn=endless)


def told_of(run, where):
    with pytest.raises(KeyError) as info:
        run()
    (note,) = info.value.__notes__
    first, *lines = note.splitlines()
    assert first == f"This happened in {where}"
    assert lines[-1] == '    raise KeyError("of the user\'s")'
    assert user_errors.is_noted(info.value)
    assert len(lines) == 2


@pytest.mark.parametrize("name", HOOK_METHODS)
def test_a_hook_that_raises_while_training(trained, name):
    hook = raising(ge.Hook, name)()
    if name != "next_step":
        hook.every_steps = 1
    step = trained.global_step
    at = f" at step {step if name == 'begin' else step + 1}"
    told_of(
        lambda: trained.train(endless, steps=1, hooks=[hook]),
        f"hook MyHook.{name}{'' if name in ('next_step', 'state') else at}",
    )


def test_a_hook_that_raises_where_it_goes_on(tmp_path):
    hook = type("MyHook", (ge.Hook,), {"state": lambda self: 1, "restore": fail})()
    train(tmp_path, hooks=[hook], max_steps=1)
    told_of(
        lambda: train(tmp_path, hooks=[hook], max_steps=2),
        "hook MyHook.restore at step 1",
    )


@pytest.mark.parametrize("name", ["begin", "after_loop", "end"])
def test_a_hook_that_raises_while_evaluating(trained, name):
    step = trained.global_step
    told_of(
        lambda: trained.evaluate(data(), hooks=[raising(ge.Hook, name)()]),
        f"hook MyHook.{name} at step {step}",
    )


@pytest.mark.parametrize("name", ["begin", "end"])
def test_a_hook_that_raises_while_predicting(trained, name):
    hook = raising(ge.Hook, name)()
    step = trained.global_step
    told_of(
        lambda: list(trained.predict(data(), hooks=[hook])),
        f"hook MyHook.{name} at step {step}",
    )


@pytest.mark.parametrize("name", ["begin", "before_save", "after_save", "end"])
def test_a_listener_that_raises(trained, name):
    listener = raising(ge.SavingListener, name)()
    step = trained.global_step + (name != "begin")
    told_of(
        lambda: trained.train(endless, steps=1, saving_listeners=[listener]),
        f"saving listener MySavingListener.{name} at step {step}",
    )


def test_a_listener_that_returns_true_stops_the_run(tmp_path):
    class Enough(ge.SavingListener):
        def after_save(self, run):
            return run.step == 2

    estimator = fakes.make_estimator(tmp_path, save_checkpoints_steps=1)
    estimator.train(data(), max_steps=4, saving_listeners=[Enough()])
    assert estimator.global_step == 2


@pytest.mark.parametrize("name", METRIC_METHODS)
def test_a_metric_that_raises(name, tmp_path):
    factory = raising(keras.metrics.Mean, name)

    def metrics(logits):
        return {"mine": ge.metric(factory, logits)}

    where = f"metric 'mine', MyMean.{name}"
    if name == "__init__":
        where = "the factory of metric 'mine'"
    told_of(lambda: train(tmp_path, model_fn=changed(metrics=metrics)), where)


def test_a_stock_hook_of_ours_keeps_its_traceback():
    hook = ge.LoggingHook()
    with pytest.raises(AttributeError) as info:
        user_errors.call_method("hook", hook, "begin", None)
    assert not user_errors.is_noted(info.value)


# What metrics and scalars are called, and what they give.


def metric_of(result):
    """A model_fn with a metric of that result."""

    class Mine(keras.metrics.Mean):
        def result(self):
            return result(super().result())

    return changed(metrics=lambda logits: {"mine": ge.metric(Mine, logits)})


@told("metric 'mine' (Mine) has the result None", "return a number, an array, or a")
def metric_without_a_result(model_dir):
    train(model_dir, model_fn=metric_of(lambda mean: None))


@told("metric 'mine' (Mine) has the result", "return a number, an array, or a dict")
def metric_whose_result_is_text(model_dir):
    train(model_dir, model_fn=metric_of(tf.strings.as_string))


@told("metric 'mine' (Mine) does not take what it", "no rows", "raise ValueError(")
def metric_that_refuses(model_dir):
    class Mine(keras.metrics.Mean):
        def update_state(self, values):
            raise ValueError("no rows")

    train(
        model_dir,
        model_fn=changed(metrics=lambda logits: {"mine": ge.metric(Mine, logits)}),
    )


@told("metric 'mine' reports 'mine/a'", "the name of scalar 'mine/a'", "of its own")
def metric_of_several_values_and_a_scalar_of_one_name(model_dir):
    class Mine(keras.metrics.Mean):
        def result(self):
            return {"a": super().result()}

    def metrics(logits):
        return {"mine": ge.metric(Mine, logits)}

    train(
        model_dir,
        model_fn=changed(
            metrics=metrics, scalars=lambda logits: {"mine/a": logits[0, 0]}
        ),
    )


@told("metrics and scalars share the names ['rate']", "a name of its own")
def metric_and_scalar_of_one_name(model_dir):
    train(model_dir, model_fn=changed(metrics={"rate": 1.0}, scalars={"rate": 1.0}))


@pytest.mark.parametrize("field", ["metrics", "scalars"])
@pytest.mark.parametrize(
    "name",
    ["loss", "global_step", "global_step/sec", "learning_rate", "learning_rate/adam"],
)
def test_names_of_the_driver_are_refused(field, name):
    with pytest.raises(ge.SpecError, match=f"{field} has the name '{name}', which the"):
        ge.EstimatorSpec("eval", loss=1.0, **{field: {name: 1.0}})


@pytest.mark.parametrize("field", ["metrics", "scalars"])
@pytest.mark.parametrize("name", ["", " a", "a\nb", "a\x00", 3, None, b"a"])
def test_odd_names_are_refused(field, name):
    with pytest.raises(ge.SpecError, match=rf"{field} has the name .*: write"):
        ge.EstimatorSpec("eval", loss=1.0, **{field: {name: 1.0}})


@told("scalar 'rate' is Constant", "not a number: give a scalar tensor")
def scalar_that_is_no_number(model_dir):
    scalars = {"rate": keras.initializers.Constant(1)}
    train(model_dir, model_fn=changed(scalars=scalars))


@told("metric 'mine' (Mine) keeps its state in no Keras variable", "add_variable((), ")
def metric_that_counts_in_python(model_dir):
    class Mine(keras.metrics.Metric):
        count = 0

        def update_state(self, values):
            self.count += 1

        def result(self):
            return self.count

    train(
        model_dir,
        model_fn=changed(metrics=lambda logits: {"mine": ge.metric(Mine, logits)}),
    )


@told("AttributeError: 'Mine' object has no", "hook Mine.begin at step 0")
def hook_that_forgets_the_constructor(model_dir):
    class Mine(ge.StopAtStepHook):
        def __init__(self):
            pass

    train(model_dir, hooks=[Mine()])


@told("saving_listeners is SavingListener", "write saving_listeners=[...]")
def listeners_are_one_listener(model_dir):
    estimator = fakes.make_estimator(model_dir)
    estimator.train(data(), steps=1, saving_listeners=ge.SavingListener())


@told("EvalSpec.hooks holds StopIfHigher, which acts in a training", "early_stopping=")
def rule_among_the_hooks_of_an_evaluation(model_dir):
    ge.EvalSpec(data(), hooks=[ge.StopIfHigher("accuracy", 0.9)])


@told("hooks holds LossGuard, which acts in a training", "TrainSpec(input_fn, hooks=")
def guard_among_the_hooks_of_an_evaluation(model_dir):
    fakes.make_estimator(model_dir).evaluate(data(), hooks=[ge.LossGuard(max_loss=1)])


@pytest.mark.parametrize("row", table.rows)
def test_mistake(row, tmp_path):
    table.check(row, tmp_path)
