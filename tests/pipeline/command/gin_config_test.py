"""gin_config: what is accepted, and what is built of it."""

import pathlib
import types

import gin
import keras
import pytest

from pipeline import Estimator, EvalSpec, RunConfig, TrainSpec
from pipeline.command import gin_config, gin_reader, gin_registry, gin_types
from pipeline.contract import calling
from tests.gin_samples import BASE, parse

pytestmark = pytest.mark.usefixtures("fresh_gin", "own_folder")


def test_core_classes_get_their_bindings():
    parse("RunConfig.save_checkpoints_steps = 5\n", "STEPS=20")
    config = gin_config.build(RunConfig, model_dir="d")
    assert type(config) is RunConfig
    assert (config.save_checkpoints_steps, config.model_dir) == (5, "d")
    assert config.replace(model_dir="e").model_dir == "e"
    spec = gin_config.build(TrainSpec)
    assert (spec.max_steps, spec.input_fn("train")) == (20, (4, 1))


def test_modules_are_factories_that_gin_configures():
    parse("sample_net.units = 7\nAdam.learning_rate = 0.5\n")
    modules = gin_config.bound(Estimator)["modules"]
    assert modules["network"]()["units"] == 7
    optimizer = modules["optimizer"]()
    assert type(optimizer) is keras.optimizers.Adam
    assert float(optimizer.learning_rate) == 0.5


def test_a_factory_requires_what_the_driver_supplies():
    modules = "{'network': @sample_sized, 'optimizer': @Adam}"
    parse(f"Estimator.modules = {modules}\nsample_sized.units = 7\n")
    factory = gin_config.bound(Estimator)["modules"]["network"]
    context = {"params": {"depth": 2}, "config": "the RunConfig"}
    made = calling.call_factory(factory, context, role="the factory")
    assert made == ({"depth": 2}, "the RunConfig", 7)


@pytest.mark.parametrize("name", ["Adam", "optimizers.Adam", "keras.optimizers.Adam"])
def test_keras_names_short_and_long(name):
    parse(f"{name}.epsilon = 0.25\n")
    assert gin_config.bound(Estimator)["modules"]["optimizer"]().epsilon == (0.25)


@pytest.mark.parametrize(
    "name",
    [
        "ExponentialDecay",
        "losses.MeanSquaredError",
        "metrics.MeanSquaredError",
        "regularizers.L2",
        "GlorotUniform",
        "AUC",
        "LoggingHook",
        "BestExporter",
    ],
)
def test_registered(name):
    gin_registry.register()
    assert len(gin_registry.matches(name)) == 1


def test_locked_after_parsing():
    parse()
    assert gin.config_is_locked()


def test_parsing_again_starts_anew():
    parse("sample_net.units = 7\n")
    parse()
    assert gin_config.bound(Estimator)["modules"]["network"]()["units"] == 3


def test_scoped_bindings():
    parse(
        "TrainSpec.input_fn = @train/sample_input\nsample_input.size = 1\n"
        "train/sample_input.size = 2\ntrain/sample_augment.level = 9\n"
    )
    assert gin_config.build(TrainSpec).input_fn("train") == (2, 9)
    assert gin_config.build(EvalSpec).input_fn("eval") == (1, 1)


def test_several_evaluations():
    parse(
        "train_and_evaluate.eval_spec = [@a/EvalSpec(), @b/EvalSpec()]\n"
        "a/EvalSpec.name = 'a'\nb/EvalSpec.name = 'b'\n"
    )
    assert [spec.name for spec in gin_config.eval_specs()] == ["a", "b"]
    assert gin_config.predict_spec().input_fn("infer") == (4, 1)


def test_any_parameter_of_a_function_with_kwargs():
    parse("sample_net.untyped = @sample_any()\nsample_any.whatever = 1\n")


def test_round_trip_from_the_written_text_alone():
    pathlib.Path("sample_module.py").touch()
    parse(
        "import sample_module\nsample_net.hidden = (1, 2)\n"
        "sample_net.untyped = {'f': [@sample_any, %STEPS, -1.5e-7, 'it\\'s']}\n"
        "train/sample_input.size = 2\nTrainSpec.input_fn = @train/sample_input\n",
        "STEPS=77",
    )
    text = gin_config.config_text()
    assert "import sample_module" in text
    pathlib.Path("again.gin").write_text(text, encoding="utf-8")
    gin_config.parse(["again.gin"])
    assert gin_config.config_text() == text
    assert gin_config.macro_value("STEPS") == 77
    value = gin_config.bound(Estimator)["modules"]["network"]()["untyped"]
    assert value["f"][1:] == [77, -1.5e-7, "it's"]


def test_includes_are_found_beside_the_file(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "base.gin").write_text(BASE)
    (tmp_path / "sub" / "top.gin").write_text("include 'base.gin'\nSTEPS = 3\n")
    gin_config.parse(["sub/top.gin"])
    assert gin_config.build(TrainSpec).max_steps == 3
    assert "include" not in gin_config.config_text()


def test_the_checkouts_gin_folder_is_searched():
    assert gin_reader.find_file("digits.gin").parent.name == "gin"
    assert gin_reader.find_file("gin/digits.gin").is_file()


def test_macros_of_macros():
    parse("A = %B\nB = 4\nsample_net.units = %A\n")
    assert gin_config.bound(Estimator)["modules"]["network"]()["units"] == 4


def test_functions_called_by_code_count_as_read():
    parse("sample_augment.level = 5\n")
    assert gin_config.build(TrainSpec).input_fn("train") == (4, 5)


def test_annotations_that_cannot_be_checked_pass():
    assert gin_types.accepts("unresolved" and object, 3)
    assert gin_types.accepts(types.GenericAlias(list, (int,)), [1])


def test_the_registry_that_gin_does_not_list_publicly():
    """Breaks where gin renames `gin.config._REGISTRY` or its entries' fields."""
    gin_registry.register()
    entry = gin_registry.entries()["keras.optimizers.Adam"]
    assert entry.target is keras.optimizers.Adam
    assert "learning_rate" in entry.parameters()
