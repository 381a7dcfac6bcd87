"""Functions that gin knows, and a configuration of them, for tests of the gin layer."""

import pathlib
from collections.abc import Callable, Sequence
from typing import Literal, Optional

import gin
import pytest

from pipeline.command import gin_config

BASE = """
STEPS = 10
Estimator.model_fn = @sample_model_fn
Estimator.modules = {'network': @sample_net, 'optimizer': @Adam}
TrainSpec.input_fn = @sample_input
TrainSpec.max_steps = %STEPS
EvalSpec.input_fn = @sample_input
"""


@gin.configurable(module="sample")
def sample_model_fn(features, labels, mode, network, optimizer, rate: float = 0.1):
    """Never called."""


@gin.configurable(module="sample")
def sample_net(
    units: int = 3,
    name: str = "net",
    bias: bool = True,
    shape: tuple[int, int] = (1, 2),
    hidden: Sequence[int] = (),
    padding: Literal["same", "valid"] = "same",
    activation: str | Callable = "relu",
    scale: Optional[float] = None,  # noqa: UP045
    options: dict[str, int] | None = None,
    untyped=None,
):
    """Returns its arguments."""
    return dict(locals())


@gin.configurable(module="sample")
def sample_input(mode, size: int = 4):
    return _helper(size)


def _helper(size):
    return sample_augment(size)


@gin.configurable(module="sample")
def sample_augment(size, level: int = 1):
    return (size, level)


@gin.configurable(module="sample")
def sample_any(**kwargs):
    return kwargs


@gin.configurable(module="sample")
def sample_needy(*, name, mode=None):
    return name


@gin.configurable(module="sample")
def sample_seeking(mode, input_context, params, config, first_batch):
    """Never called."""


@gin.configurable(module="sample")
def sample_sized(params, config, units: int = 3):
    """The factory of a module that requires what the driver supplies."""
    return params, config, units


def parse(text="", *params):
    """Writes BASE and the text as run.gin, here, and parses it."""
    pathlib.Path("run.gin").write_text(BASE + text, encoding="utf-8")
    gin_config.parse(["run.gin"], params)


def error_of(text="", *params):
    """What `parse` is refused with."""
    with pytest.raises(gin_config.ConfigError) as caught:
        parse(text, *params)
    return str(caught.value)
