"""Configures the driver by gin: reads, checks, binds and locks, and builds from that.

gin files and bindings become statements (gin_reader). These are checked against the
registry (gin_checks), and for lines that nothing reads (gin_reach). Then gin binds
them. Every mistake is a `ConfigError` that says what to write; gin itself never sees a
wrong line.
"""

import importlib
import inspect
import itertools
import pathlib
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gin

from pipeline.command import gin_checks, gin_reach, gin_reader, gin_registry
from pipeline.command.gin_reader import ConfigError
from pipeline.command.gin_registry import Entry, Parameter
from pipeline.command.jobs import PredictSpec
from pipeline.contract import params
from pipeline.model_dir import paths
from pipeline.process import package, refusals
from pipeline.roles import train_and_evaluate
from pipeline.roles.specs import EvalSpec

__all__ = [
    "ConfigError",
    "bound",
    "build",
    "config_text",
    "configured",
    "eval_specs",
    "has_evaluations",
    "hparams",
    "macro_value",
    "parse",
    "plain",
    "predict_spec",
    "require",
]

# Each job needs one parameter of each of its tuples. An error asks for the first.
_MODEL_FN = ("Estimator.model_fn",)
_TRAIN_INPUT = ("TrainSpec.input_fn",)
_EVAL_INPUT = ("EvalSpec.input_fn", "train_and_evaluate.eval_spec")
_PREDICT_INPUT = (*_EVAL_INPUT, "PredictSpec.input_fn")
_NEEDS = {
    "train_and_evaluate": (_MODEL_FN, _TRAIN_INPUT, _EVAL_INPUT),
    "train": (_MODEL_FN, _TRAIN_INPUT),
    "find_learning_rate": (_MODEL_FN, _TRAIN_INPUT),
    "replay": (_MODEL_FN,),
    "inspect": (_MODEL_FN, _TRAIN_INPUT),
    "evaluate": (_MODEL_FN, _EVAL_INPUT),
    "predict": (_MODEL_FN, _PREDICT_INPUT),
    "export": (_MODEL_FN, (*_PREDICT_INPUT, "ExportSpec.serving_input_receiver_fn")),
}
_EXAMPLES = {"model_fn": "@classifier", "input_fn": "@tfds_input_fn"}

# Most characters of a default value in the list of all that can be configured.
_MOST_CHARACTERS = 40


def parse(gin_files: Sequence[str], gin_params: Sequence[str] = ()) -> None:
    """Reads, checks, binds and locks a configuration, in place of the one before.

    Args:
      gin_files: paths, or names of files in `gin_reader.places()`.
      gin_params: bindings that win over the files': 'function.parameter=VALUE',
        'MACRO=VALUE', 'import module'.

    Raises:
      ConfigError: the configuration is wrong, or it imports a module that is missing.
    """
    config = gin_reader.read(gin_files, gin_params)
    gin.clear_config()
    gin_registry.register()
    for statement in config.imports:
        _import(statement)
        if other := package.other_copy():
            raise ConfigError(
                f"{statement.location}\n{statement.module} uses the checkout {other}, "
                f"and this is {package.PACKAGE_ROOT}: write python -m "
                f"{package.CHECKOUT_NAME}.main, or pip install --editable the checkout."
            )
    resolved = gin_checks.check(config)
    gin_reach.check_read(config, resolved)
    try:
        gin.parse_config(config.text())
        gin.finalize()
    except (ValueError, SyntaxError, KeyError) as error:
        # The checks do not know all that gin refuses, such as an unset %gin.REQUIRED.
        raise ConfigError(f"gin refuses the configuration: {error}") from error


def require(job: str) -> None:
    """Checks that the configuration has the parameters that a job needs.

    Args:
      job: one of `flags.JOBS`.

    Raises:
      ConfigError: a parameter is not set; names it, with the line to write.
    """
    for alternatives in _NEEDS[job]:
        if not any(map(_is_bound, alternatives)):
            name = alternatives[0]
            example = _EXAMPLES[name.partition(".")[2]]
            raise ConfigError(
                f"--job={job} needs {name}, which is not set: write\n"
                f"  {name} = {example}\nin the gin file, for example."
            )


def bound(configurable: Callable[..., Any]) -> dict[str, Any]:
    """Returns the arguments that gin binds for one of the driver's classes, by name."""
    return gin.get_bindings(configurable)


def configured(configurable: Callable[..., Any]) -> Callable[..., Any]:
    """Returns one of the driver's functions with gin's bindings as its defaults."""
    return gin.get_configurable(configurable)


def build(configurable: Callable[..., Any], **supplied: Any) -> Any:
    """Makes an object of one of the driver's classes, with the arguments of gin.

    Args:
      configurable: `RunConfig`, `Estimator`, `TrainSpec` or another.
      **supplied: arguments that win over gin's.

    Raises:
      ConfigError: the class refuses its arguments.
    """
    try:
        return configured(configurable)(**supplied)
    except (TypeError, ValueError) as error:
        raise ConfigError(plain(error)) from error


def eval_specs() -> list[Any]:
    """Returns `train_and_evaluate.eval_spec` as a list, or the one EvalSpec."""
    specs = gin.get_bindings(train_and_evaluate.train_and_evaluate).get("eval_spec")
    if specs is None:
        return [build(EvalSpec)]
    return list(specs) if isinstance(specs, (list, tuple)) else [specs]


def has_evaluations() -> bool:
    """Returns whether the configuration has an evaluation."""
    return any(map(_is_bound, _EVAL_INPUT))


def predict_spec() -> PredictSpec:
    """Returns the PredictSpec; where it has no input_fn, with the first EvalSpec's."""
    if _is_bound("PredictSpec.input_fn"):
        return build(PredictSpec)
    return build(PredictSpec, input_fn=eval_specs()[0].input_fn)


def config_text() -> str:
    """Returns the whole configuration as one gin file, with imports, without includes.

    A run is repeated from this text alone. gin's operative configuration would not do:
    it holds only the functions that were called so far, and loses values that are not
    literals.
    """
    return gin.config_str()


def hparams() -> dict[str, Any]:
    """Returns macros and bindings whose values are plain, by name, as hyperparameters.

    A parameter that is bound to a macro is left out, for the macro is there; and so is
    the place, which is other in each run.
    """
    return {
        binding.key: value if isinstance(value, params.Scalar) else repr(value)
        for binding in gin_reader.read((), [config_text()]).bindings
        if _is_plain(value := binding.value) and binding.key != "RunConfig.model_dir"
    }


def _is_plain(value: Any) -> bool:
    """Returns whether a value is a number, bool, string, reference, or a list of such.

    `@cnn` says as much as a number.
    """
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(each, params.Scalar) for each in value)
    return isinstance(value, params.Scalar | gin_reader.Reference)


def macro_value(name: str) -> Any:
    """Returns the value of a macro; None where it is not bound."""
    bound = gin.get_bindings(
        f"{name}/gin.macro", resolve_references=False, inherit_scopes=False
    )
    return bound.get("value")


def _is_bound(parameter: str) -> bool:
    name, _, parameter = parameter.partition(".")
    selector = f"{gin_registry.CORE}.{name}"
    return parameter in gin.get_bindings(selector, resolve_references=False)


def plain(error: Exception) -> str:
    """Returns an error's text without the lines that gin adds about the call."""
    return str(error).partition("\n  In call to configurable")[0]


def _import(statement: gin_reader.Import) -> None:
    try:
        importlib.import_module(statement.module)
    except SyntaxError as error:
        raise ConfigError(
            f"{statement.location}\n{error.filename} line {error.lineno} is no "
            f"Python: {type(error).__name__}: {error.msg}\n  {error.text or ''}"
        ) from error
    except ModuleNotFoundError as error:
        # gin imports `package.thing` for `from package import thing`, which need not be
        # a module: the error's own name says what is missing.
        missing = error.name or ""
        # The user's module was written beside a checkout.
        if package.IS_INSTALLED and missing.partition(".")[0] == package.CHECKOUT_NAME:
            raise ConfigError(
                f"{statement.location}\n{statement.module} imports {missing}, which is "
                f"called {package.NAME} once it is installed: write import "
                f"{package.NAME} as ge."
            ) from error
        if not f"{statement.module}.".startswith(f"{missing}."):
            raise
        names = {name: package.library(name) for name in package.LIBRARIES}
        hint = refusals.near(missing, list(names.values()))
        if missing in names:
            hint = f" This project's is {names[missing]}: import {names[missing]}."
        # A module of the user's own is nearer.
        hint = _beside(statement, missing) or hint
        raise ConfigError(
            f"{statement.location}\nno module named {missing!r}.{hint} It is looked "
            "for beside the running script, in the current folder and among the "
            "installed packages."
        ) from error


def _beside(statement: gin_reader.Import, missing: str) -> str:
    """Says how to make a module known that lies beside the gin file, or above it."""
    file = pathlib.Path(statement.location.source)
    for folder in file.parents[:2] if file.is_file() else ():
        if any((folder / name).exists() for name in (missing, f"{missing}.py")):
            place = shlex.quote(paths.shown(str(folder)))
            return (
                f" It lies in {place}: cd {place}, or write PYTHONPATH={place} before "
                "the command."
            )
    return ""


def listed(gin_files: Sequence[str], gin_params: Sequence[str]) -> Iterator[str]:
    """Yields lines for the user: each configurable with its arguments, by group.

    Args:
      gin_files: gin files whose imports are listed, too; may be empty.
      gin_params: bindings, and imports to be listed.

    Raises:
      ConfigError: a file or a binding is wrong.
    """
    ours = [f"import {package.library(name)}" for name in package.LIBRARIES]
    parse(gin_files, [*gin_params, *ours])
    entries = sorted(gin_registry.entries().values(), key=lambda e: (_group(e), e.name))
    for group, members in itertools.groupby(entries, _group):
        yield f"\n{group}"
        for entry in members:
            yield f"  {gin_registry.short_name(entry)}"
            for name, parameter in entry.parameters().items():
                yield f"    {name}{_value(parameter)}"


def _group(entry: Entry) -> str:
    """Returns the heading of a configurable: models, inputs, pipeline, keras.losses."""
    if entry.is_library:
        return entry.selector.rpartition(".")[0]
    module = getattr(entry.target, "__module__", None) or entry.selector
    parts = module.removeprefix(f"{package.INSTALLED_NAME}.").split(".")
    return parts[0]


def _value(parameter: Parameter) -> str:
    """Returns a parameter's default as text, cut where it is long."""
    if parameter.required:
        return "  (required)"
    default = parameter.default
    named = inspect.isclass(default) or inspect.isfunction(default)
    text = default.__name__ if named else repr(default)
    short = text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."
    return f" = {short}"
