# SPDX-License-Identifier: Apache-2.0
"""fast_dev_run: a whole training in one step."""

import copy
import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from absl import logging

from ..contract.hooks import Hook
from ..errors import UserRuntimeError
from ..estimator.estimator import Estimator, train_and_evaluate
from ..loop.specs import EvalSpec, TrainSpec
from .summed_loss import summed_loss


def fast_dev_run(
    estimator: Estimator,
    train_spec: TrainSpec,
    eval_spec: EvalSpec | Sequence[EvalSpec] = (),
    *,
    predict_input_fn: Callable[..., Any] | None = None,
) -> dict[str, Any] | None:
    """Does everything once, to find in seconds the errors that a training meets in hours.

    It trains a step from the initial values, calls all hooks at it, saves, evaluates a batch, calls
    all exporters, and predicts a batch. It writes to a temporary directory, and metric writers get
    nothing. The Estimator does not change; hooks are copied, not deeply.

    Args:
      estimator: the Estimator.
      train_spec: the TrainSpec of the training.
      eval_spec: its EvalSpec, or several.
      predict_input_fn: data to predict; None for those of the first EvalSpec, in mode PREDICT.

    Returns:
      The metrics of the evaluation; of several by name. None without an EvalSpec.

    Raises:
      UserRuntimeError: TF_CONFIG has several tasks.
    """
    config = estimator.config
    if len(config.cluster.tasks) > 1 or config.task_type == "evaluator":
        raise UserRuntimeError(
            f"TF_CONFIG: this task is {config.cluster.name} of {len(config.cluster.tasks)}: "
            "expected one process for fast_dev_run. Unset TF_CONFIG."
        )
    specs = list(eval_spec) if isinstance(eval_spec, Sequence) else [eval_spec]
    with tempfile.TemporaryDirectory(prefix="fast-dev-run-") as folder:
        tried = estimator.with_config(
            config.replace(
                model_dir=folder,
                save_checkpoints_steps=1,
                save_summary_steps=1,
                log_step_count_steps=1,
                evaluation="inline",
                metric_writers=(),
            )
        )
        hooks = [_at_each_step(hook) for hook in train_spec.hooks]
        result = train_and_evaluate(
            tried,
            dataclasses.replace(train_spec, max_steps=1, hooks=hooks),
            [dataclasses.replace(spec, steps=1) for spec in specs],
        )
        if warning := summed_loss(tried, train_spec.input_fn):
            logging.warning("fast_dev_run | %s", warning)
        input_fn = predict_input_fn or (specs[0].input_fn if specs else None)
        if input_fn is not None:
            next(tried.predict(input_fn, yield_single_examples=False))
    logging.info("fast_dev_run | no error")
    return None if result is None else result[0]


def _at_each_step(hook: Hook) -> Hook:
    """Returns a copy whose `after_step` is called at each step."""
    own = copy.copy(hook)
    vars(own)["next_step"] = lambda step: step + 1  # A frozen dataclass has no other way.
    return own
