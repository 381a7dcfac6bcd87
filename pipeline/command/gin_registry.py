"""Registers what gin can configure, and finds it by name.

gin has no public listing of its registry; `entries` is the one place that reads it. The
other gin files see `Entry`s: a function or class, and the parameters that gin may set.
"""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from types import ModuleType
from typing import Any

import gin
import keras
import tensorflow as tf

from pipeline.command import jobs
from pipeline.contract import averages, run_config
from pipeline.contract.hooks import Hook, Tool
from pipeline.driver import estimator
from pipeline.export import exporters, receivers
from pipeline.hooks import (
    early_stopping,
    limits,
    loss_guard,
    plateau,
    preemption,
    stock,
)
from pipeline.process.refusals import RefusedImportError
from pipeline.roles import keep_best, learning_rates, specs, train_and_evaluate
from pipeline.strategy import strategies
from pipeline.tools import files, trackers
from pipeline.warm_start import vocabulary, warm_start_settings

CORE = "pipeline"

# Files of the driver whose public classes gin knows, with their base.
_BASES = {
    preemption: Hook,
    stock: Hook,
    loss_guard: Hook,
    limits: Hook,
    early_stopping: Hook,
    plateau: Hook,
    files: Tool,
    trackers: Tool,
    exporters: exporters.Exporter,
}
_KERAS = {
    "keras.optimizers": (keras.optimizers, keras.optimizers.Optimizer),
    "keras.optimizers.schedules": (
        keras.optimizers.schedules,
        keras.optimizers.schedules.LearningRateSchedule,
    ),
    "keras.losses": (keras.losses, keras.losses.Loss),
    "keras.metrics": (keras.metrics, keras.metrics.Metric),
    "keras.regularizers": (keras.regularizers, keras.regularizers.Regularizer),
    "keras.initializers": (keras.initializers, keras.initializers.Initializer),
}


def check_installed(module: ModuleType) -> None:
    """Checks that `import gin` found gin-config.

    Without gin-config, Python imports any folder named gin as an empty namespace
    package, such as the folder of the gin files. The first use would then fail with an
    AttributeError.

    Raises:
      ImportError: gin-config is not installed; says what to install.
    """
    if not hasattr(module, "configurable"):
        found = list(getattr(module, "__path__", ()))
        raise RefusedImportError(
            f"gin-config is not installed: `import gin` found only {found}. Run "
            "pip install gin-config."
        )


check_installed(gin)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One parameter of a configurable; `annotation` is resolved where it can be."""

    annotation: Any
    default: Any

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is inspect.Parameter.empty


@dataclasses.dataclass(frozen=True)
class Entry:
    """A function or class that gin can configure.

    Attributes:
      selector: its full name, such as 'keras.optimizers.Adam'.
      target: the function or class itself, without gin's wrapper.
      allowlist: the only parameters that gin may set; empty for all.
      denylist: parameters that gin may not set.
    """

    selector: str
    target: Callable[..., Any]
    allowlist: tuple[str, ...]
    denylist: tuple[str, ...]

    @property
    def name(self) -> str:
        """The last part of the selector."""
        return self.selector.rpartition(".")[2]

    @property
    def is_library(self) -> bool:
        """Whether `register` registered it: Keras', TensorFlow's, the driver's."""
        return self.selector.startswith(("keras.", "tf.", f"{CORE}."))

    def parameters(self) -> dict[str, Parameter]:
        """Returns the parameters that gin may set, by name."""
        found = {}
        for fn in _constructors(self.target):
            hints = _hints(fn)
            for name, parameter in inspect.signature(fn).parameters.items():
                if name == "self" or parameter.kind in (
                    parameter.VAR_POSITIONAL,
                    parameter.VAR_KEYWORD,
                    parameter.POSITIONAL_ONLY,
                ):
                    continue
                annotation = hints.get(name, parameter.annotation)
                # A text that cannot be resolved says nothing of a type.
                if isinstance(annotation, str):
                    annotation = parameter.empty
                found.setdefault(name, Parameter(annotation, parameter.default))
        allowed = self.allowlist or tuple(found)
        return {
            n: p for n, p in found.items() if n in allowed and n not in self.denylist
        }

    def takes_any(self) -> bool:
        """Returns whether `**kwargs` may have any name: not those of Keras."""
        last = _constructors(self.target)[-1]
        kinds = [p.kind for p in inspect.signature(last).parameters.values()]
        return inspect.Parameter.VAR_KEYWORD in kinds and not self.is_library


def entries() -> dict[str, Entry]:
    """Returns every configurable by its selector."""
    registry = gin.config._REGISTRY  # There is no public listing.
    found = {}
    for selector, item in registry.items():
        # gin's own: macro, constant, singleton.
        if not selector.startswith("gin."):
            allow, deny = tuple(item.allowlist or ()), tuple(item.denylist or ())
            found[selector] = Entry(selector, item.wrapped, allow, deny)
    return found


def matches(name: str) -> list[Entry]:
    """Returns the configurables that `name` may mean: a selector, or its last parts."""
    known = entries()
    # A whole selector wins over one that merely ends so, as in gin.
    if name in known:
        return [known[name]]
    return [e for selector, e in known.items() if selector.endswith(f".{name}")]


def short_name(entry: Entry) -> str:
    """Returns the shortest end of an entry's selector that means this entry alone."""
    parts = entry.selector.split(".")
    for count in range(1, len(parts)):
        name = ".".join(parts[-count:])
        if matches(name) == [entry]:
            return name
    return entry.selector


@functools.cache
def register() -> None:
    """Registers the driver's classes and Keras' for gin, once a process.

    Names that are used twice, such as MeanSquaredError, are told apart by more of the
    selector: `losses.MeanSquaredError`.
    """
    # The denied parameters come from the flags or are handed over by the driver.
    _add(estimator.Estimator, denylist=["config"])
    _add(run_config.RunConfig, denylist=["cluster"])
    for average in averages.KINDS:
        _add(average)
    _add(warm_start_settings.WarmStartSettings)
    _add(vocabulary.VocabInfo)
    _add(specs.TrainSpec)
    _add(specs.EvalSpec)
    _add(keep_best.KeepBest)
    _add(jobs.PredictSpec)
    _add(jobs.ExportSpec)
    _add(train_and_evaluate.train_and_evaluate, denylist=["estimator", "train_spec"])
    _add(learning_rates.find_learning_rate, denylist=["estimator", "input_fn"])
    for row in strategies.ROWS:
        _add(row, denylist=["config"])
    for module, base in _BASES.items():
        for item in _subclasses(module, base):
            if item is not base:
                _add(item)
    _add(receivers.build_raw_serving_input_receiver_fn)
    _add(receivers.build_parsing_serving_input_receiver_fn)
    # A gin file describes by these the tensors that a server is sent.
    gin.external_configurable(tf.TensorSpec, module="tf")
    gin.external_configurable(tf.io.FixedLenFeature, module="tf.io")
    for package, (module, base) in _KERAS.items():
        for item in _subclasses(module, base):
            gin.external_configurable(item, module=package)


def _add(item: Callable[..., Any], denylist: list[str] | None = None) -> None:
    gin.external_configurable(item, module=CORE, denylist=denylist)


def _subclasses(module: ModuleType, base: type) -> list[type]:
    """Returns the public classes below `base`, without Keras' aliases (`adam`)."""
    public = {name: item for name, item in vars(module).items() if name[0] != "_"}
    return [
        item
        for name, item in public.items()
        if inspect.isclass(item) and issubclass(item, base) and item.__name__ == name
    ]


def _constructors(target: Callable[..., Any]) -> list[Callable[..., Any]]:
    """Returns the functions whose parameters `target` takes.

    A class takes its base class's parameters, too, if its constructor has `**kwargs`.
    """
    if not inspect.isclass(target):
        return [target]
    found = []
    for base in target.__mro__:
        if base is object or "__init__" not in vars(base):
            continue
        found.append(base.__init__)
        kinds = [p.kind for p in inspect.signature(base.__init__).parameters.values()]
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            break
    return found or [target]


def _hints(fn: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(fn)
    # An annotation is any code of the user's, and may name what only type checkers
    # import. Its types are then not checked.
    except Exception:
        return {}


def is_constant(name: str) -> bool:
    """Returns whether `%name` is a constant that gin knows, such as `%gin.REQUIRED`."""
    try:
        gin.query_parameter(name)
    except ValueError:
        return False
    return True
