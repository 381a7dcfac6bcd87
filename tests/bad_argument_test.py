"""Mistakes in numbers, hooks, specs, params: one row a mistake, see `mistakes.py`."""

import keras
import pytest

import pipeline as ge
from tests import fakes, mistakes
from tests.mistakes import X, Y, changed, data, run, train

table = mistakes.Table()
told = table.told


@told("steps is 0: write an int > 0")
def no_steps(model_dir):
    fakes.make_estimator(model_dir).train(data(), steps=0)


@told("steps is '100': write an int > 0")
def steps_as_text(model_dir):
    fakes.make_estimator(model_dir).train(data(), steps="100")


@told("steps (1) and max_steps (1)", "give one")
def both_steps(model_dir):
    fakes.make_estimator(model_dir).train(data(), steps=1, max_steps=1)


@told("TrainSpec.max_steps is '100': write an int > 0")
def max_steps_as_text(model_dir):
    ge.TrainSpec(data(), max_steps="100")


@told("EvalSpec.steps is 0: write an int > 0")
def evaluation_of_no_steps(model_dir):
    ge.EvalSpec(data(), steps=0)


@told("EvalSpec.throttle_secs is '60': write a number >= 0, throttle_secs=60")
def throttle_as_text(model_dir):
    ge.EvalSpec(data(), throttle_secs="60")


@told("hooks holds the class Recorder", "write Recorder()")
def hook_is_a_class(model_dir):
    train(model_dir, hooks=[fakes.Recorder])


@told("TrainSpec.hooks holds the class Recorder", "write Recorder()")
def hook_of_the_spec_is_a_class(model_dir):
    ge.TrainSpec(data(), hooks=[fakes.Recorder])


@told("hooks is Recorder", "write hooks=[...]")
def hooks_are_one_hook(model_dir):
    train(model_dir, hooks=fakes.Recorder())


@told("hooks holds TerminateOnNaN", "a subclass of pipeline.Hook")
def hook_of_keras(model_dir):
    train(model_dir, hooks=[keras.callbacks.TerminateOnNaN()])


@told("hooks holds the class Recorder", "write Recorder()")
def hook_of_an_evaluation_is_a_class(model_dir):
    train(model_dir).evaluate(data(), hooks=[fakes.Recorder])


@told("saving_listeners holds the class SavingListener", "write SavingListener()")
def saving_listener_is_a_class(model_dir):
    estimator = fakes.make_estimator(model_dir)
    estimator.train(data(), max_steps=1, saving_listeners=[ge.SavingListener])


@told("EvalSpec.exporters holds the class FinalExporter", "write FinalExporter()")
def exporter_is_a_class(model_dir):
    ge.EvalSpec(data(), exporters=[ge.FinalExporter])


@told("compares 'acuracy'", "it has ['accuracy', ")
def exporter_of_an_unknown_metric(model_dir):
    exporter = ge.BestExporter(metric="acuracy", higher_is_better=True)
    run(model_dir, eval_spec=ge.EvalSpec(data(), exporters=[exporter]))


@told("[None, None]", "EvalSpec(name=...)")
def two_evaluations_without_names(model_dir):
    run(model_dir, eval_spec=[ge.EvalSpec(data()), ge.EvalSpec(data())])


@told("eval_spec is function", "not an EvalSpec: write EvalSpec(input_fn)")
def eval_spec_is_an_input_fn(model_dir):
    run(model_dir, eval_spec=data())


@told("eval_spec is function", "not an EvalSpec: write EvalSpec(input_fn)")
def eval_spec_is_a_list_of_input_fns(model_dir):
    run(model_dir, eval_spec=[ge.EvalSpec(data()), data()])


@told("train_spec is function", "TrainSpec(input_fn, max_steps=1000), EvalSpec(input_")
def both_specs_are_input_fns(model_dir):
    ge.train_and_evaluate(fakes.make_estimator(model_dir), data(), data())


@told("train_spec is function", "TrainSpec(input_fn, max_steps=1000)")
def train_spec_is_an_input_fn(model_dir):
    ge.train_and_evaluate(fakes.make_estimator(model_dir), data(), ge.EvalSpec(data()))


@told("config is dict", "config=RunConfig(model_dir='runs/1')")
def config_is_a_dict(model_dir):
    ge.Estimator(fakes.classifier_fn, config={"model_dir": str(model_dir)})


@told("modules is list", "modules={'network': make_network}")
def modules_are_a_list(model_dir):
    ge.Estimator(fakes.classifier_fn, modules=[fakes.network, fakes.adam])


@told("params is list ['a']", "params={'learning_rate': 0.1}")
def params_are_a_list(model_dir):
    ge.Estimator(changed(), modules={}, params=["a"])


@told("model_fn is Sequential", "a network: write def model_fn(features")
def model_fn_is_a_model(model_dir):
    ge.Estimator(fakes.network(), modules={"network": fakes.network})


@told("KeyError: 'scale'", "mode 'train'", 'params["scale"]')
def a_parameter_that_is_not_there(model_dir):
    def model_fn(features, labels, mode, network, optimizer, params):
        return changed()(features * params["scale"], labels, mode, network, optimizer)

    train(model_dir, model_fn=model_fn, params={"sclae": 2})


@told("a global batch of 15", "2 replicas: write 14 or 16")
def batch_that_replicas_cannot_share(model_dir):
    train(
        model_dir,
        input_fn=fakes.make_input_fn(X, Y, batch_size=15, per_replica=True),
        devices=("CPU:0", "CPU:1"),
    )


@pytest.mark.parametrize("row", table.rows)
def test_mistake(row, tmp_path):
    table.check(row, tmp_path)
