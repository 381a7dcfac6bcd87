"""Takes what users of tf.estimator write by habit, or says what to write instead.

Where the meaning is the same, tf.estimator's order of arguments and its None are taken.
A name that is gone is an error with the line to write instead.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.process.refusals import RefusedTypeError, near

_HOOKS = (
    "hooks watch the loop from outside: train(..., hooks=[...]), TrainSpec(input_fn, "
    "hooks=[...]) or EvalSpec(input_fn, hooks=[...])"
)
# Arguments of EstimatorSpec and TPUEstimatorSpec.
ESTIMATOR_SPEC = {
    "training_hooks": _HOOKS,
    "training_chief_hooks": f"{_HOOKS}; run.leads is True in the chief",
    "evaluation_hooks": _HOOKS,
    "prediction_hooks": "predict(..., hooks=[...])",
    "scaffold": "every variable of the modules is saved; initial values of another "
    "checkpoint are Estimator(warm_start_from=...)",
    "scaffold_fn": "initial values of another checkpoint are Estimator("
    "warm_start_from=...)",
    "eval_metrics": "metrics={'accuracy': metric(keras.metrics."
    "SparseCategoricalAccuracy, labels, logits)}, or {'f1': host_metric(f1, labels, "
    "predicted)} for a function of NumPy arrays",
    "host_call": "scalars={'name': value}, or summaries={'name': image(x)}",
}
_SESSION = "there are no sessions"
RUN_CONFIG = {
    "session_config": f"{_SESSION}: devices=('GPU:0',) chooses devices, "
    "tf.config.experimental.set_memory_growth and tf.config.threading do the rest",
    "session_creation_timeout_secs": f"{_SESSION}: leave it out",
    "device_fn": "devices=('GPU:0',), or a strategy as train_distribute=",
    "protocol": "leave it out",
    "experimental_distribute": "train_distribute= and eval_distribute=",
    "experimental_max_worker_delay_secs": "leave it out: workers wait for each other",
    "checkpoint_save_graph_def": "leave it out: a checkpoint has no graph",
    "tpu_config": "execution='tpu' and steps_per_loop=1000",
    "master": "TF_CONFIG, or --tpu, says where the others are",
    "evaluation_master": "TF_CONFIG says where the others are",
}
ESTIMATOR = {
    "use_tpu": "config=RunConfig(execution='tpu')",
    "train_batch_size": "config=RunConfig(train_batch_size=64)",
    "eval_batch_size": "config=RunConfig(eval_batch_size=64)",
    "predict_batch_size": "config=RunConfig(predict_batch_size=64)",
    "export_to_tpu": "leave it out",
    "eval_on_tpu": "config=RunConfig(eval_distribute=...)",
}
# Arguments of ServingInputReceiver.
RECEIVER = {
    "features": "to_features, which returns them of what is sent",
    "receiver_tensors": "receiver_specs={'x': tf.TensorSpec([None, 4])}",
    "receiver_tensors_alternatives": "alternatives={'examples': another receiver}",
}
# What tf.estimator calls otherwise.
NAMES = {
    "SessionRunHook": "Hook",
    "CheckpointSaverHook": "RunConfig(save_checkpoints_steps=1000)",
    "CheckpointSaverListener": "SavingListener",
    "LoggingTensorHook": "TensorHook",
    "NanTensorHook": "RunConfig(on_nan='stop'), which is the default",
    "SummarySaverHook": "RunConfig(save_summary_steps=100)",
    "TPUEstimator": "Estimator, with RunConfig(execution='tpu')",
    "TPUEstimatorSpec": "EstimatorSpec",
}
_RULE = "EvalSpec(input_fn, early_stopping="
# Keras' callbacks that go by a metric, and tf.estimator's hook of the same purpose.
RULES = {
    "EarlyStopping": f"{_RULE}StopIfNoIncrease('accuracy', max_evaluations=5))",
    "ReduceLROnPlateau": "TrainSpec(input_fn, hooks=[ReduceOnPlateau('loss', "
    "max_evaluations=3)])",
    "TerminateOnNaN": "RunConfig(on_nan='stop'), which is the default",
    "_StopOnPredicateHook": f"{_RULE}StopIfNoIncrease('accuracy', max_steps=5000))",
}
# Arguments of tf.estimator's hooks, and of Keras' callbacks of the same purpose.
RULE = {
    "estimator": f"{_RULE}...)",
    "metric_name": "'accuracy' as the first argument",
    "monitor": "'accuracy' as the first argument",
    "max_steps_without_increase": "max_steps=5000",
    "max_steps_without_decrease": "max_steps=5000",
    "patience": "max_evaluations=5",
    "eval_dir": "evaluation='test' in TrainSpec.hooks, and nothing in an EvalSpec",
    "run_every_secs": "nothing: each evaluation counts once",
    "run_every_steps": "nothing: each evaluation counts once",
    "restore_best_weights": "restore_best=True",
    "start_from_epoch": "min_steps=1000",
    "mode": "StopIfNoIncrease or StopIfNoDecrease; higher_is_better of ReduceOnPlateau",
    "min_lr": "min_rate=1e-6",
    "cooldown": "cooldown_steps=1000",
}
# Functions of tf.estimator.experimental, by what has their place here.
STOP_HOOKS = {
    "stop_if_higher_hook": f"{_RULE}StopIfHigher('accuracy', 0.9))",
    "stop_if_lower_hook": f"{_RULE}StopIfLower('loss', 0.01))",
    "stop_if_no_increase_hook": RULES["_StopOnPredicateHook"],
    "stop_if_no_decrease_hook": f"{_RULE}StopIfNoDecrease('loss', max_steps=5000))",
    "make_early_stopping_hook": "a subclass of Hook, whose after_evaluation calls "
    "run.request_stop('reason')",
}


def known(
    *,
    positional: Sequence[str] = (),
    gone: Mapping[str, str] | None = None,
    empty: Sequence[str] = (),
) -> Callable[[Any], Any]:
    """Decorates a method or a class, so that it takes tf.estimator's arguments.

    Args:
      positional: names of its arguments, in tf.estimator's order.
      gone: the line to write instead of each argument that is gone, by its name.
      empty: names of arguments that may be None for an empty list.

    Returns:
      The decorator; it wraps a class's constructor. A call with an argument that is
      gone, or that there never was, raises a TypeError.
    """
    hints = gone or {}

    def decorate(made: Any) -> Any:
        if isinstance(made, type):
            made.__init__ = decorate(made.__init__)
            return made
        owner = made.__qualname__.removesuffix(".__init__")
        parameters = list(inspect.signature(made).parameters.values())[1:]
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        names = [p.name for p in parameters]

        @functools.wraps(made)
        def called(self: Any, *args: Any, **kwargs: Any) -> Any:
            for name in filter(hints.__contains__, kwargs):
                raise RefusedTypeError(f"{owner} takes no {name}: write {hints[name]}.")
            for name in () if takes_any else kwargs.keys() - set(names):
                raise RefusedTypeError(
                    f"{owner} takes no {name}.{near(name, names)} It takes "
                    f"{', '.join(names)}."
                )
            by_name = dict(zip(positional, args, strict=False))
            # Too many or given twice: Python's own error is right.
            if len(args) <= len(positional) and not by_name.keys() & kwargs.keys():
                args, kwargs = (), {**by_name, **kwargs}
            none = [k for k in empty if k in kwargs and kwargs[k] is None]
            return made(self, *args, **{k: kwargs[k] for k in kwargs if k not in none})

        return called

    return decorate


def hint(error: Exception) -> str | None:
    """Returns the line to write instead of a habit, from the error that it raised.

    Args:
      error: an error of the user's model_fn.

    Returns:
      The line; None where no habit is known to raise this error.
    """
    if isinstance(error, AttributeError) and error.name == "minimize":
        return (
            "The driver computes and applies the gradients: write EstimatorSpec(mode, "
            "loss=loss, train_op=TrainOp(optimizer, network.trainable_variables))."
        )
    return None


def kind_of_hook(value: Any) -> str:
    """Returns a hint for tf.estimator's or Keras' hook in a hook's place, or ""."""
    line = RULES.get(type(value).__name__)
    if line is not None:
        return f" Write {line}."
    if hasattr(value, "before_run") or hasattr(value, "after_run"):
        return (
            " It is a session hook, and there are no sessions: its after_run is "
            "after_step(run), at each every_steps."
        )
    if hasattr(value, "on_epoch_end") or hasattr(value, "on_train_batch_end"):
        return (
            " It is a Keras callback: its on_train_batch_end is after_step(run), at "
            "each every_steps, with the logs in run.report."
        )
    return ""


estimator = known(
    positional=("model_fn", "model_dir", "config", "params", "warm_start_from"),
    gone=ESTIMATOR,
)
estimator_spec = known(gone=ESTIMATOR_SPEC)
# What tf.estimator did not have: names alone are told.
named = known()
run_config = known(gone=RUN_CONFIG)
rule = known(gone=RULE)
receiver = known(gone=RECEIVER)
train_spec = known(
    positional=("input_fn", "max_steps", "hooks", "saving_listeners"),
    empty=("hooks", "saving_listeners"),
)
eval_spec = known(
    positional=(
        "input_fn",
        "steps",
        "name",
        "hooks",
        "exporters",
        "start_delay_secs",
        "throttle_secs",
    ),
    empty=("hooks", "exporters"),
)
train = known(
    positional=("input_fn", "hooks", "steps", "max_steps", "saving_listeners"),
    empty=("hooks", "saving_listeners"),
)
evaluate = known(
    positional=("input_fn", "steps", "hooks", "checkpoint_path", "name"),
    empty=("hooks",),
)
predict = known(
    positional=("input_fn", "predict_keys", "hooks", "checkpoint_path"),
    empty=("hooks",),
)
