"""The arguments that an Estimator was made of, handed on as one object."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from pipeline.contract import arguments
from pipeline.contract import params as params_lib
from pipeline.contract.run_config import RunConfig
from pipeline.warm_start.warm_start_settings import WarmStartSettings


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The arguments that a user gave to make an Estimator, checked.

    Attributes:
      model_fn: function of the user, see `pipeline.contract.model_fn`.
      factories: factories of the modules, by name.
      config: RunConfig.
      params: hyperparameters for model_fn, input_fn and factories that require them.
      warm_start_from: values to begin with where model_dir has no checkpoint, or None.
    """

    model_fn: Callable[..., Any]
    factories: Mapping[str, Callable[..., Any]]
    config: RunConfig
    params: Any = None
    warm_start_from: WarmStartSettings | None = None

    def __post_init__(self) -> None:
        arguments.check_batch_sizes(self.params, self.config)

    @property
    def context(self) -> dict[str, Any]:
        """The arguments that the user's functions may take by name, besides data."""
        return {"params": self.params, "config": self.config}

    @property
    def hparams(self) -> dict[str, params_lib.Scalar]:
        """The hyperparameters to show: numbers, bools and strings by name."""
        return {**params_lib.flat(self.params), **(self.config.hparams or {})}
