# SPDX-License-Identifier: Apache-2.0
"""Names of tf.estimator and Keras that do not exist here, and the line to write instead."""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

from ..errors import UserTypeError

_Target = TypeVar("_Target", bound=Callable[..., Any])

_HOOKS = "pass hooks to train(), evaluate(), TrainSpec or EvalSpec"
_NO_SESSION = "leave it out: there are no sessions"
_TF_CONFIG = "set the addresses in TF_CONFIG"


def _early_stopping(arguments: str) -> str:
    return f"EvalSpec(early_stopping=EarlyStopping({arguments}))"


_HIGHER = _early_stopping("'loss', 'max', threshold=100.0")
_LOWER = _early_stopping("'loss', 'min', threshold=0.1")
_NO_INCREASE = _early_stopping("'accuracy', 'max', patience_steps=5000")
_NO_DECREASE = _early_stopping("'loss', 'min', patience_steps=5000")

# Of tf.estimator's stop_if_..._hook, Keras' EarlyStopping and ReduceLROnPlateau, and old rules.
_PATIENCE = (
    "patience",
    "max_steps",
    "max_evaluations",
    "max_steps_without_increase",
    "max_steps_without_decrease",
)
_EACH_EVALUATION = "leave it out: each evaluation counts"
_RULE = {
    **dict.fromkeys(_PATIENCE, "patience_steps=5000, in global steps"),
    "metric_name": "metric='accuracy'",
    "monitor": "metric='accuracy'",
    "higher_is_better": "mode='max' or mode='min'",
    "estimator": "leave it out, and pass the rule to EvalSpec(early_stopping=...)",
    "eval_dir": "evaluation='test', the name of an EvalSpec",
    "run_every_secs": _EACH_EVALUATION,
    "run_every_steps": _EACH_EVALUATION,
    "start_from_epoch": "min_steps=1000",
    "restore_best_weights": "restore_best=True",
    "baseline": "leave it out: an improvement is over the best evaluation",
    "min_lr": "min_rate=1e-6",
    "cooldown": "cooldown_steps=1000",
}

# Arguments, by class or function; `*` is what values without names may be.
ARGUMENTS = {
    "fit": {
        "*": "hooks and config by name",
        "input_fn": "x=input_fn",
        "validation": "validation_data=input_fn",
        "validation_input_fn": "validation_data=input_fn",
        "max_steps": "epochs=1, steps_per_epoch=100",
        "model_dir": "config=RunConfig(model_dir)",
        "model": "make_model, a function that makes and compiles the model",
    },
    "Estimator": {
        "use_tpu": "config=RunConfig(execution='tpu')",
        "train_batch_size": "config=RunConfig(train_batch_size=64)",
        "eval_batch_size": "config=RunConfig(eval_batch_size=64)",
        "predict_batch_size": "config=RunConfig(predict_batch_size=64)",
        "export_to_tpu": "leave it out: an export runs on any device",
        "eval_on_tpu": "config=RunConfig(eval_distribute=...)",
    },
    "RunConfig": {
        "session_config": "devices=('GPU:0',), or tf.config for the rest",
        "session_creation_timeout_secs": _NO_SESSION,
        "device_fn": "devices=('GPU:0',), or a strategy as train_distribute",
        "protocol": _NO_SESSION,
        "experimental_distribute": "train_distribute and eval_distribute",
        "experimental_max_worker_delay_secs": "leave it out: workers wait for each other",
        "checkpoint_save_graph_def": "leave it out: checkpoints have no graph",
        "max_call_secs": "max_loop_secs=5.0",
        "max_restores": "max_skipped_steps=3",
        "tpu_config": "execution='tpu', steps_per_loop=1000",
        "master": _TF_CONFIG,
        "evaluation_master": _TF_CONFIG,
    },
    "EarlyStopping": _RULE,
    "ReduceOnPlateau": _RULE,
    "EstimatorSpec": {
        "training_hooks": _HOOKS,
        "training_chief_hooks": f"{_HOOKS}; run.is_chief is True in the chief",
        "evaluation_hooks": _HOOKS,
        "prediction_hooks": "pass hooks to predict()",
        "scaffold": "Estimator(warm_start_from=...) for initial values",
        "scaffold_fn": "Estimator(warm_start_from=...) for initial values",
        "eval_metrics": "metrics={'auc': metric(keras.metrics.AUC, labels, probabilities)}, or "
        "numpy_metric(fn, labels, predicted) for a function of arrays",
        "host_call": "scalars={'name': value}",
    },
    "ServingInputReceiver": {
        "features": "to_features, a function of the tensors that are sent",
        "receiver_tensors": "receiver_specs={'x': tf.TensorSpec([None, 4])}",
    },
}

_MODELS = "gin_estimator.models"
_TABLES = "a network and a head of gin_estimator.models, see docs/tables.md"
_NOT_HERE = "a class of scikit-learn or TensorFlow Decision Forests"
_HEADS = ("BinaryClass", "LogisticRegression", "MultiClass", "Multi", "MultiLabel")
_HEADS += ("PoissonRegression", "Regression")

# Attributes of the package.
NAMES = {
    "Run": "RunContext",
    "host_metric": "numpy_metric",
    "unfrozen": "trainable_variables(network, frozen='backbone/.*')",
    "ClaimedError": "ModelDirInUseError",
    "PeerLostError": "TaskLostError",
    "UnreadableCheckpointError": "CorruptCheckpointError",
    "single_host": "RunConfig(execution='single_host'), the default",
    **{f"{name}Head": f"{_MODELS}.{name}Head" for name in _HEADS},
    **{
        f"{model}{kind}": _NOT_HERE if model == "BoostedTrees" else _TABLES
        for model in ("Baseline", "BoostedTrees", "DNN", "DNNLinearCombined", "Linear")
        for kind in ("Classifier", "Estimator", "Regressor")
    },
    "Head": f"{_MODELS}.Head",
    "add_metrics": "EstimatorSpec(metrics={'accuracy': ...})",
    "export": "gin_estimator.ServingInputReceiver and so on, without export",
    "models": "from gin_estimator import models",
    "inputs": "from gin_estimator import inputs",
    "classifier_parse_example_spec": "inputs.tfrecord_input_fn with label_key",
    "regressor_parse_example_spec": "inputs.tfrecord_input_fn with label_key",
    "FinalOpsHook": "Hook.end(run)",
    "GlobalStepWaiterHook": "leave it out: workers start together",
    "InMemoryEvaluatorHook": "train_and_evaluate, which evaluates live weights",
    "SecondOrStepTimer": "Hook.every_steps",
    "SessionRunArgs": "EstimatorSpec(tensors={'x': x}) and Hook.wants_tensors",
    "SessionRunContext": "the argument run of Hook.after_step",
    "SessionRunValues": "run.report.tensors in Hook.after_step",
    "TPUConfig": "RunConfig(execution='tpu', steps_per_loop=100)",
    "SessionRunHook": "Hook",
    "CheckpointSaverHook": "RunConfig(save_checkpoints_steps=1000)",
    "CheckpointSaverListener": "SavingListener",
    "LoggingTensorHook": "hooks.TensorHook",
    "NanHook": "RunConfig(on_nan='stop'), the default",
    "NanTensorHook": "RunConfig(on_nan='stop'), the default",
    "SummarySaverHook": "RunConfig(save_summary_steps=100)",
    "FeedFnHook": "an input_fn that returns a tf.data.Dataset",
    "stop_if_higher_hook": _HIGHER,
    "stop_if_lower_hook": _LOWER,
    "stop_if_no_increase_hook": _NO_INCREASE,
    "stop_if_no_decrease_hook": _NO_DECREASE,
    "make_early_stopping_hook": "a Hook; its after_evaluation calls run.request_stop('REASON')",
    "StopIfHigher": _HIGHER,
    "StopIfLower": _LOWER,
    "StopIfNoIncrease": _NO_INCREASE,
    "StopIfNoDecrease": _NO_DECREASE,
    "StopIfDiverged": _early_stopping("'loss', check_finite=True"),
    "ReduceLROnPlateau": "ReduceOnPlateau('loss', patience_steps=5000) in TrainSpec.hooks",
    "PreemptionHook": "leave it out: each training saves and stops at a signal",
    "TPUEstimator": "Estimator with RunConfig(execution='tpu')",
    "TPUEstimatorSpec": "EstimatorSpec",
    "WarmStartSettings": "Estimator(warm_start_from=...)",
}


def hint(name: str, known: Iterable[str], old: dict[str, str]) -> str:
    """Returns ` Write ...` for an old name, ` Did you mean ...?` for a near one, or nothing."""
    if name in old:
        return f" Write instead: {old[name]}."
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {near[0]}?" if near else ""


def reject_unknown_arguments(target: _Target) -> _Target:
    """Decorates a class or function: an unknown argument is an error with the line to write."""
    is_class, owner = isinstance(target, type), target.__name__
    call: Callable[..., Any] = target.__init__ if is_class else target
    parameters = list(inspect.signature(call).parameters.values())[1 if is_class else 0 :]
    known = [each.name for each in parameters]
    without_names = sum(each.kind is not each.KEYWORD_ONLY for each in parameters)

    @functools.wraps(call)
    def checked(*args: Any, **kwargs: Any) -> Any:
        old = ARGUMENTS.get(owner, {})
        for name in kwargs:
            if name not in known:
                raise UserTypeError(
                    f"{owner} has no argument {name!r}.{hint(name, known, old)} "
                    f"Its arguments are {', '.join(known)}."
                )
        given = len(args) - is_class
        if given > without_names:
            raise UserTypeError(
                f"{owner} has {given} values without names: expected at most {without_names}, "
                f"{', '.join(known[:without_names])}.{hint('*', (), old)}"
            )
        if not is_class:
            _check_once(owner, parameters, known[:given], kwargs)
        return call(*args, **kwargs)

    if not is_class:
        return cast(_Target, checked)
    target.__init__ = checked
    return target


def _check_once(
    owner: str,
    parameters: Sequence[inspect.Parameter],
    without_names: Sequence[str],
    by_name: Iterable[str],
) -> None:
    """Refuses an argument that is given twice, and a required one that is not given."""
    for each in parameters:
        name = each.name
        if name in without_names and name in by_name:
            raise UserTypeError(
                f"{owner} has two values for {name}, one of them without its name: expected one. "
                f"The values without names are {', '.join(without_names)}."
            )
        if each.default is each.empty and name not in (*without_names, *by_name):
            raise UserTypeError(f"{owner} has no value for {name}: expected one. Set {name}=....")


def kind_of_hook(value: Any) -> str:
    """Returns a sentence for a hook of tf.estimator or Keras; nothing for other objects."""
    if hasattr(value, "before_run") or hasattr(value, "after_run"):
        return " It is a session hook: write its after_run as after_step(run), with every_steps."
    if hasattr(value, "on_epoch_end") or hasattr(value, "on_train_batch_end"):
        return (
            " It is a Keras callback: write its on_train_batch_end as after_step(run), with "
            "every_steps."
        )
    return ""
