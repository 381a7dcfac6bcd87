"""gin_config: what is refused, and in which words."""

import pathlib
import types

import pytest

from pipeline import Estimator, RunConfig
from pipeline.command import gin_config, gin_registry
from pipeline.command.gin_config import ConfigError
from tests.gin_samples import error_of, parse

pytestmark = pytest.mark.usefixtures("fresh_gin", "own_folder")


def test_missing_file_names_places_and_near_names():
    with pytest.raises(ConfigError, match=r"(?s)digtis.gin.*Did you mean digits.gin"):
        gin_config.parse(["digtis.gin"])
    with pytest.raises(ConfigError, match=str(pathlib.Path.cwd())):
        gin_config.parse(["x.gin"])


def test_files_that_include_each_other(tmp_path):
    (tmp_path / "a.gin").write_text("include 'b.gin'\n")
    (tmp_path / "b.gin").write_text("include 'a.gin'\n")
    with pytest.raises(ConfigError, match="include each other"):
        gin_config.parse(["a.gin"])


def test_missing_include_names_the_line():
    assert "run.gin line 8: include 'nowhere.gin'" in error_of("include 'nowhere.gin'")


def test_syntax_error_names_file_line_and_text():
    message = error_of("sample_net.units = = 3\n")
    assert "run.gin line 8" in message
    assert "sample_net.units = = 3" in message


def test_bracket_that_is_never_closed():
    assert "run.gin line" in error_of("sample_net.hidden = (1, 2\n")


def test_unknown_function_gets_did_you_mean():
    message = error_of("sample_nte.units = 3\n")
    assert "run.gin line 8: sample_nte.units = 3" in message
    assert "Did you mean sample_net" in message


def test_unknown_reference():
    assert "Did you mean Adam" in error_of("Estimator.modules = {'a': [@Adm]}\n")


def test_unknown_parameter_lists_the_others():
    message = error_of("sample_net.unit = 3\n")
    assert "sample_net has no parameter 'unit'. Did you mean units?" in message
    assert "padding" in message


def test_keras_kwargs_do_not_hide_a_typo():
    assert "Did you mean learning_rate?" in error_of("Adam.lerning_rate = 1.0\n")


def test_ambiguous_name():
    message = error_of("MeanSquaredError.name = 'm'\n")
    assert "losses.MeanSquaredError or metrics.MeanSquaredError" in message


def test_missing_import_of_the_users_module():
    pathlib.Path("my_nets.py").write_text(
        "import gin\n@gin.configurable\ndef my_net(): pass\n", encoding="utf-8"
    )
    message = error_of("Estimator.modules = {'network': @my_net}\n")
    assert "my_net is defined in my_nets" in message
    assert "\n  import my_nets\n" in message


def test_missing_import_of_the_users_package():
    source = "import gin\n@gin.configurable\ndef my_net(): pass\n"
    for folder, file in (
        ("a-b", "nets.py"),
        ("c", "my-nets.py"),
        ("nets", "__init__.py"),
    ):
        pathlib.Path(folder).mkdir()
        pathlib.Path(folder, file).write_text(source, encoding="utf-8")
    pathlib.Path("gone.py").symlink_to("nowhere.py")
    message = error_of("Estimator.modules = {'network': @my_net}\n")
    assert "my_net is defined in nets, which no gin file imports" in message


def test_import_of_no_module():
    assert "no module named 'modles'. Did you mean models?" in error_of("import modles")


@pytest.mark.parametrize("folder", ["", "gin"])
def test_import_of_what_lies_beside_the_gin_file(folder, tmp_path, monkeypatch):
    (tmp_path / "a project" / folder).mkdir(parents=True)
    (tmp_path / "a project" / "my_models").mkdir()
    (tmp_path / "a project" / folder / "run.gin").write_text("import my_models.nets\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as error:
        gin_config.parse([str(pathlib.Path("a project", folder, "run.gin"))])
    assert (
        "no module named 'my_models'. It lies in 'a project': cd 'a project', or"
        in (str(error.value))
    )
    assert "PYTHONPATH='a project' before the command" in str(error.value)


def test_import_that_fails_inside_keeps_its_traceback():
    pathlib.Path("broken.py").write_text("import not_installed\n", encoding="utf-8")
    with pytest.raises(ModuleNotFoundError, match="not_installed"):
        parse("import broken\n")


def test_gin_tf_is_gone():
    assert "Delete the line" in error_of("import gin.tf.external_configurables\n")


def test_dynamic_registration():
    assert "@gin.configurable" in error_of("from __gin__ import dynamic_registration\n")


@pytest.mark.parametrize(
    ("binding", "said"),
    [
        ("units = 'x'", "units takes int, got 'x' of type str"),
        ("units = '5'", "Write it without quotes: 5."),
        ("units = 1e3", "takes int, got 1000.0 of type float. Write 1000."),
        ("units = True", "takes int, got True of type bool"),
        ("units = None", "takes int, got None"),
        ("name = 3", "takes str, got 3"),
        ("bias = 1", "takes bool, got 1"),
        ("shape = (1, 2, 3)", "takes tuple[int, int]"),
        ("hidden = 'abc'", "Sequence[int], got 'abc'"),
        ("hidden = [1, 'a']", "Sequence[int], got [1, 'a']"),
        ("padding = 'smae'", "Literal['same', 'valid'], got 'smae'"),
        ("scale = 'x'", "float"),
        ("options = {'a': 'b'}", "dict[str, int]"),
        ("units = @sample_any", "takes int, got @sample_any"),
    ],
)
def test_wrong_type(binding, said):
    message = error_of(f"sample_net.{binding}\n")
    assert "run.gin line 8" in message
    assert said in message


@pytest.mark.parametrize(
    "binding",
    [
        "scale = 3",
        "scale = None",
        "shape = [1, 2]",
        "hidden = ()",
        "activation = @sample_any",
        "options = {'a': 1}",
        "units = @sample_any()",
        "untyped = {'a': (1, None)}",
    ],
)
def test_right_type(binding):
    parse(f"sample_net.{binding}\n")


def test_wrong_type_by_macro_names_both_lines():
    message = error_of("", "STEPS='x'")
    assert "TrainSpec.max_steps takes int" in message
    assert "%STEPS is set in --gin_param: STEPS='x'" in message


def test_binding_that_nothing_reads():
    message = error_of("sample_any.x = 1\n")
    assert "nothing reads these lines" in message
    assert "run.gin line 8: sample_any.x = 1" in message
    assert "refer to @sample_any" in message


def test_binding_in_a_scope_that_is_never_entered():
    assert "refer to @eval/sample_net" in error_of("eval/sample_net.units = 1\n")


def test_macro_that_nobody_refers_to():
    message = error_of("", "STPES=5")
    assert "--gin_param: STPES=5" in message
    assert "no binding in use has %STPES. Did you mean STEPS?" in message


def test_macro_read_only_by_what_nothing_reads():
    message = error_of("SIZE = 4\nsample_any.x = %SIZE\n")
    assert "%SIZE" in message
    assert "sample_any.x" in message


def test_undefined_macro():
    message = error_of("sample_net.units = %STPES\n")
    assert "nothing defines %STPES. Did you mean %STEPS?" in message


@pytest.mark.parametrize(
    ("param", "written"),
    [
        ("RunConfig.model_dir=/tmp/x", "--gin_param=\"RunConfig.model_dir='/tmp/x'\""),
        ("sample_net.name=abc", "--gin_param=\"sample_net.name='abc'\""),
        ("sample_net.name=abc", "--gin.sample_net.name=\"'abc'\""),
        ("sample_net.bias=true", "--gin.sample_net.bias=True"),
        ("sample_net.name=a$b", "--gin.sample_net.name=''\"'\"'a$b'"),
        ("sample_net.shape=[a, b]", "each string in it into quotes of its own"),
        ("sample_net", "a binding is NAME=VALUE"),
        ("sample_net.units=", "a binding is NAME=VALUE"),
    ],
)
def test_quotes_that_the_shell_took_away(param, written):
    assert written in error_of("", param)


def test_built_object_where_a_factory_belongs():
    message = error_of("Estimator.modules = {'network': @sample_net()}\n")
    assert "Write @sample_net instead of @sample_net()." in message


def test_built_object_by_way_of_a_macro():
    message = error_of("NET = @sample_net()\nEstimator.modules = {'network': %NET}\n")
    assert "Write @sample_net instead of @sample_net()." in message


def test_factory_where_an_object_belongs():
    message = error_of("TrainSpec.hooks = [@LoggingHook]\n")
    assert "Write @LoggingHook() instead of @LoggingHook." in message


def test_what_the_flags_set():
    assert "bind its fields" in error_of("Estimator.config = None\n")
    assert "TF_CONFIG" in error_of("RunConfig.cluster = None\n")


def test_value_that_run_config_refuses():
    parse("RunConfig.precision = 'f16'\n")
    with pytest.raises(ConfigError, match="write one of 'float32'") as caught:
        gin_config.build(RunConfig)
    assert "In call to" not in str(caught.value)


def test_required_left_open():
    assert "gin refuses the configuration" in error_of(
        "sample_net.units = %gin.REQUIRED\n"
    )


@pytest.mark.parametrize(
    ("job", "missing"),
    [
        ("train", "Estimator.model_fn = @classifier"),
        ("train_and_evaluate", "Estimator.model_fn = @classifier"),
    ],
)
def test_core_binding_that_is_missing(job, missing):
    gin_config.parse([], ["RunConfig.model_dir='d'"])
    with pytest.raises(ConfigError, match="Estimator.model_fn, which is not set") as e:
        gin_config.require(job)
    assert missing in str(e.value)


def test_what_each_job_needs():
    gin_config.parse([], ["Estimator.model_fn=@sample_model_fn"])
    with pytest.raises(ConfigError, match="TrainSpec.input_fn"):
        gin_config.require("train")
    with pytest.raises(ConfigError, match="EvalSpec.input_fn"):
        gin_config.require("predict")
    gin_config.parse(
        [],
        [
            "Estimator.model_fn=@sample_model_fn",
            "PredictSpec.input_fn=@sample_input",
        ],
    )
    gin_config.require("predict")
    gin_config.require("export")


@pytest.mark.parametrize(
    "text",
    [
        "TrainSpec.input_fn = @sample_needy\n",
        "Estimator.modules = {'network': @sample_needy, 'optimizer': @Adam}\n",
        "sample_net.untyped = [@sample_needy()]\n",
    ],
)
def test_argument_without_default_that_nobody_sets(text):
    message = error_of(text)
    assert "sample_needy.name has no default and is not set" in message
    assert "write sample_needy.name = ..." in message
    parse(f"{text}sample_needy.name = 'a'\nsample_needy.mode = 'm'\n")


def test_arguments_that_the_driver_supplies():
    parse("TrainSpec.input_fn = @sample_seeking\n")
    parse("Estimator.modules = {'network': @sample_sized}\n")


def test_model_fn_that_does_not_take_a_module():
    parse("Estimator.modules = {'net': @sample_net}\n")
    with pytest.raises(ConfigError, match="does not take the modules"):
        gin_config.build(Estimator, config=RunConfig(model_dir="d"))


def test_gin_config_that_is_not_installed():
    empty = types.ModuleType("gin")
    with pytest.raises(ImportError, match="pip install gin-config"):
        gin_registry.check_installed(empty)


def test_a_module_that_was_written_beside_a_checkout(monkeypatch):
    """Installed, there is no package `pipeline`: the message has the name to write."""

    def import_module(name):
        raise ModuleNotFoundError("No module named 'pipeline'", name="pipeline")

    monkeypatch.setattr(gin_config.importlib, "import_module", import_module)
    monkeypatch.setattr(gin_config.package, "IS_INSTALLED", True)
    monkeypatch.setattr(gin_config.package, "NAME", "gin_estimator")
    message = error_of("import my_models\n")
    assert "my_models imports pipeline, which is called gin_estimator once" in message
    assert "write import gin_estimator as ge." in message


def test_a_checkout_beside_what_is_installed(monkeypatch):
    """As by `gin-estimator` in a checkout's folder: its classes are others."""
    monkeypatch.setattr(gin_config.package, "IS_INSTALLED", True)
    message = error_of("import json\n")
    assert (
        f"json uses the checkout {gin_config.package.PACKAGE_ROOT}, and this is"
        in message
    )
    assert "write python -m pipeline.main, or pip install --editable" in message
