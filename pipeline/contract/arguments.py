"""Checks the arguments that a caller of Estimator gave, before anything is built.

A mistake is refused at the caller's own line, rather than after an hour of training.
"""

from collections.abc import Callable, Mapping
from typing import Any

from absl import logging

from pipeline.cluster.tf_config import EVALUATOR
from pipeline.contract import calling
from pipeline.contract import params as params_lib
from pipeline.contract.hooks import Hook, SavingListener
from pipeline.contract.model_fn import check_model_fn
from pipeline.contract.run_config import RunConfig
from pipeline.mistakes import checks
from pipeline.model_dir import paths
from pipeline.process import package
from pipeline.process.refusals import RefusedTypeError, RefusedValueError


def contract(
    model_fn: Callable[..., Any],
    modules: Mapping[str, Callable[..., Any]] | None,
    params: Any,
) -> tuple[dict[str, Callable[..., Any]], Any]:
    """Checks the arguments that say what is trained.

    Args:
      model_fn: the user's function.
      modules: factories by name, or None.
      params: hyperparameters, see `params.checked`.

    Returns:
      The factories by name, and a copy of the params.

    Raises:
      TypeError: an argument has a wrong type, or model_fn does not take a module.
      ValueError: Keras runs on another backend than TensorFlow.
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
      field: argument that gave the name, for the message.
      name: the name; None for the evaluation without one.

    Raises:
      TypeError: the name is no string.
      ValueError: the name leads out of model_dir, or no folder can have it.
    """
    checks.check_kind(field, name, str, "'test'")
    paths.check_folders(field, name or "")
    if name and (name.startswith("/") or ".." in name.split("/")):
        raise RefusedValueError(
            f"{field} is {name!r}, which leads out of the directories of evaluations: "
            "write a name such as 'test' or 'test/clean'."
        )


def run_config(config: RunConfig | None, model_dir: Any) -> RunConfig:
    """Returns the RunConfig of an Estimator, with a `model_dir`.

    Args:
      config: the caller's RunConfig; None for the defaults.
      model_dir: directory that was given to the Estimator itself, as tf.estimator
        allows; None for that of `config`.

    Raises:
      TypeError: `config` is no RunConfig, or stands in the place of `model_dir`.
      ValueError: two different directories are given, or none to an evaluator.
    """
    checks.check_kind("config", config, RunConfig, "RunConfig(model_dir='runs/1')")
    config = config or RunConfig()
    if isinstance(model_dir, (RunConfig, Mapping)):
        name = "config" if isinstance(model_dir, RunConfig) else "modules"
        raise RefusedTypeError(
            f"Estimator's second argument, model_dir, is a {type(model_dir).__name__}: "
            f"write {name}=... by name."
        )
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
    """Checks that this task of the cluster trains; a ValueError says what to call."""
    if config.task_type == EVALUATOR:
        raise RefusedValueError(
            f"this task is an evaluator ({config.cluster}), which does not train: call "
            "train_and_evaluate, or --job=train_and_evaluate."
        )


def training(config: RunConfig, steps: Any, max_steps: Any, listeners: Any) -> None:
    """Checks a call of `train`.

    Args:
      config: the RunConfig of the Estimator.
      steps: steps to train from here, or None.
      max_steps: global step to train to, or None.
      listeners: saving listeners. A warning is logged where nothing will be saved, and
        so the user's own listeners will not be called.

    Raises:
      TypeError: a listener is no SavingListener.
      ValueError: this task is the evaluator; steps and max_steps are both given; or
        one of them is no int above 0.
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


def check_batch_sizes(params: Any, config: RunConfig) -> None:
    """Checks that a batch size is said once: in `params` or in the RunConfig.

    Args:
      params: hyperparameters as `params.checked` returned them.
      config: the RunConfig of the Estimator.

    Raises:
      ValueError: both say one.
    """
    fields = ("train_batch_size", "eval_batch_size", "predict_batch_size")
    given = [f"{name}={size}" for name in fields if (size := getattr(config, name))]
    if given and params_lib.has(params, "batch_size"):
        raise RefusedValueError(
            f"params has a batch_size, under which input_fn is to find that of "
            f"RunConfig({', '.join(given)}): leave it out of params, or give it "
            "another name there."
        )


def _check_params_taken(
    model_fn: Callable[..., Any], factories: Mapping[str, Any]
) -> None:
    """Logs a warning where neither model_fn nor a factory takes the `params`."""
    names, takes_any = calling.declared(model_fn)
    wanted = (calling.wanted_by(f, {"params": None}) for f in factories.values())
    if not (takes_any or "params" in names or any(wanted)):
        logging.warning(
            "params are given, and neither model_fn %s nor a factory requires `params`:"
            " only an input_fn that takes them gets them. Add the argument.",
            calling.name_of(model_fn),
        )


def evaluation(steps: Any, name: Any, hooks: Any) -> None:
    """Checks arguments of `Estimator.evaluate`.

    Raises:
      TypeError: `name` or `hooks` is of another kind.
      ValueError: `steps` is not positive, or no folder can have the name.
    """
    checks.check_positive("steps", steps)
    evaluation_name("name", name)
    evaluation_hooks("hooks", hooks)


def evaluation_hooks(name: str, hooks: Any) -> None:
    """Checks the hooks of an evaluation, which calls `begin`, `after_loop` and `end`.

    Args:
      name: name of the argument.
      hooks: list or tuple of hooks.

    Raises:
      TypeError: `hooks` is no list, or holds what is no hook.
      ValueError: a hook acts in a training alone, and would do nothing.
    """
    checks.check_all(name, hooks, Hook)
    for hook in hooks:
        own, base = type(hook), Hook
        is_called = own.after_loop is not base.after_loop or own.end is not base.end
        waits = own.after_step is not base.after_step
        waits = waits or own.after_evaluation is not base.after_evaluation
        acts = hook.wants_losses or hook.sets_rates or hook.leaves_out
        if acts or (waits and not is_called):
            raise RefusedValueError(
                f"{name} holds {own.__name__}, which acts in a training, and an "
                "evaluation calls begin, after_loop and end of its hooks alone: write "
                "TrainSpec(input_fn, hooks=[...]), or EvalSpec(input_fn, "
                "early_stopping=...) for a rule."
            )


def all_checkpoints(value: Any, checkpoint_path: str | None) -> bool:
    """Returns whether to evaluate all checkpoints, once the arguments are checked.

    Args:
      value: argument `all_checkpoints` of `Estimator.evaluate`.
      checkpoint_path: its argument of that name.

    Raises:
      TypeError: `value` is no bool.
      ValueError: both are given.
    """
    checks.check_kind("all_checkpoints", value, bool, "True")
    if value and checkpoint_path is not None:
        raise RefusedValueError(
            f"all_checkpoints=True and checkpoint_path={checkpoint_path!r} exclude "
            "each other: leave one of them out."
        )
    return bool(value)
