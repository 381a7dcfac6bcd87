"""Checks of what a caller of Estimator gave, before anything is built."""

from collections.abc import Callable, Mapping
from typing import Any

from absl import logging

from pipeline.cluster.tf_config import EVALUATOR
from pipeline.contract import calling, checks
from pipeline.contract import params as params_lib
from pipeline.contract.hooks import SavingListener
from pipeline.contract.model_fn import check_model_fn
from pipeline.contract.run_config import RunConfig
from pipeline.model_dir import paths
from pipeline.process import package
from pipeline.process.refusals import RefusedValueError


def contract(
    model_fn: Callable[..., Any],
    modules: Mapping[str, Callable[..., Any]] | None,
    params: Any,
) -> tuple[dict[str, Callable[..., Any]], Any]:
    """Checks what is trained.

    Args:
      model_fn: the user's.
      modules: factory by name, or None.
      params: see `params.checked`.

    Returns:
      The factories, and a copy of the params.

    Raises:
      TypeError: an argument of another kind, or that model_fn does not take.
      ValueError: another Keras backend than TensorFlow.
    """
    checks.check_backend()
    checks.check_kind("modules", modules, Mapping, "{'network': make_network}")
    factories = dict(modules or {})
    check_model_fn(model_fn, list(factories), has_labels=False)
    own = params_lib.checked(params)
    if params is not None:
        _check_params_taken(model_fn, factories)
    return factories, own


def evaluation_name(field: str, name: Any) -> None:
    """Checks the name of an evaluation, which becomes a part of its directories.

    Args:
      field: where it was given, for the message.
      name: None for none.

    Raises:
      TypeError: it is no string.
      ValueError: it leads out of model_dir.
    """
    checks.check_kind(field, name, str, "'test'")
    if name and (name.startswith("/") or ".." in name.split("/")):
        raise RefusedValueError(
            f"{field} is {name!r}, which leads out of the directories of evaluations: "
            "write a name such as 'test' or 'test/clean'."
        )


def run_config(config: RunConfig | None, model_dir: Any) -> RunConfig:
    """How to run, with a `model_dir`.

    Args:
      config: None for the defaults.
      model_dir: tf.estimator's other place for it, or None.

    Raises:
      TypeError: no RunConfig.
      ValueError: two different ones, or none for an evaluator.
    """
    checks.check_kind("config", config, RunConfig, "RunConfig(model_dir='runs/1')")
    config = config or RunConfig()
    if model_dir is None:
        return config.with_model_dir()
    given = config.replace(model_dir=model_dir).with_model_dir()
    own = config.model_dir
    if own is not None and paths.normal(own) != given.model_dir:
        raise RefusedValueError(
            f"model_dir is {model_dir!r} and RunConfig.model_dir is {own!r}: give one."
        )
    return given


def check_trains(config: RunConfig) -> None:
    """Checks that this task is one that trains.

    Raises:
      ValueError: it evaluates.
    """
    if config.task_type == EVALUATOR:
        raise RefusedValueError(
            f"this task is an evaluator ({config.cluster}), which does not train: call "
            "train_and_evaluate, or --job=train_and_evaluate."
        )


def training(config: RunConfig, steps: Any, max_steps: Any, listeners: Any) -> None:
    """Checks a call of `train`.

    Args:
      config: how it runs.
      steps: steps from here, or None.
      max_steps: global step to train to, or None.
      listeners: those of a caller are warned of where nothing is saved.

    Raises:
      TypeError: a listener that is none.
      ValueError: this task evaluates; or steps and max_steps are both given, or one is
        no int above 0.
    """
    check_trains(config)
    checks.check_positive("steps", steps)
    checks.check_positive("max_steps", max_steps)
    if steps is not None and max_steps is not None:
        raise RefusedValueError(
            f"steps ({steps}) and max_steps ({max_steps}) are both given: steps "
            "counts from here, max_steps from the beginning; give one."
        )
    checks.check_all("saving_listeners", listeners, SavingListener)
    kinds = [type(each) for each in listeners]
    names = [kind.__name__ for kind in kinds if not package.defines(kind)]
    if names and config.save_checkpoints_steps == 0:
        logging.warning(
            "saving_listeners %s will not be called: RunConfig(save_checkpoints_steps"
            "=0) saves nothing. Write another number there.",
            ", ".join(names),
        )


def _check_params_taken(
    model_fn: Callable[..., Any], factories: Mapping[str, Any]
) -> None:
    """Warns where neither model_fn nor a factory takes the `params` that were given."""
    names, takes_any = calling.declared(model_fn)
    wanted = (calling.wanted_by(f, {"params": None}) for f in factories.values())
    if not (takes_any or "params" in names or any(wanted)):
        logging.warning(
            "params are given, and neither model_fn %s nor a factory requires `params`:"
            " only an input_fn that takes them gets them. Add the argument.",
            calling.name_of(model_fn),
        )
