"""What an Estimator was made of, handed on as one object."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from pipeline.checkpoints.warm_start import WarmStartSettings
from pipeline.contract.run_config import RunConfig


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What a user gave to make an Estimator.

    Attributes:
      model_fn: see `pipeline.contract.model_fn`.
      factories: of the modules, by name.
      config: how to run.
      params: for model_fn, input_fn and the factories that require them.
      warm_start_from: values to begin with where model_dir has no checkpoint, or None.
    """

    model_fn: Callable[..., Any]
    factories: Mapping[str, Callable[..., Any]]
    config: RunConfig
    params: Any = None
    warm_start_from: WarmStartSettings | None = None

    @property
    def context(self) -> dict[str, Any]:
        """What the user's functions may take by name: `params` and `config`."""
        return {"params": self.params, "config": self.config}
