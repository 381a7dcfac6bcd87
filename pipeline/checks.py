"""Checks of what a caller of Estimator gave, before anything is built."""

from collections.abc import Callable, Mapping
from typing import Any

from absl import logging

from pipeline import calling


def check_steps(steps: Any, max_steps: Any) -> None:
    """Checks how far to train.

    Raises:
      ValueError: both are given, or one is no int above 0.
    """
    calling.check_positive("steps", steps)
    calling.check_positive("max_steps", max_steps)
    if steps is not None and max_steps is not None:
        raise ValueError(
            f"steps ({steps}) and max_steps ({max_steps}) are both given: steps "
            "counts from here, max_steps from the beginning; give one."
        )


def check_params_taken(
    params: Any, model_fn: Callable[..., Any], factories: Mapping[str, Any]
) -> None:
    """Warns where neither model_fn nor a factory takes the `params` that were given."""
    names, takes_any = calling.declared(model_fn)
    wanted = (calling.wanted_by(f, {"params": None}) for f in factories.values())
    if params is not None and not (takes_any or "params" in names or any(wanted)):
        logging.warning(
            "params are given, and neither model_fn %s nor a factory requires `params`:"
            " only an input_fn that takes them gets them. Add the argument.",
            calling.name_of(model_fn),
        )
