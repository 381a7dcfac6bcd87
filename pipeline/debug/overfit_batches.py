# SPDX-License-Identifier: Apache-2.0
"""overfit_batches: a training on a few batches, which any right model can learn by heart."""

import dataclasses
import functools
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ..contract.checks import check, integer
from ..contract.spec import ModeKeys
from ..errors import UserRuntimeError, UserValueError
from ..estimator.estimator import Estimator, train_and_evaluate
from ..loop.specs import EvalSpec, TrainSpec
from ..model_dir.files import check_writable, read_json, write_atomic

_MARKER = "overfit_batches.json"


def overfit_batches(
    estimator: Estimator,
    train_spec: TrainSpec,
    eval_spec: EvalSpec | Sequence[EvalSpec] = (),
    num_batches: int = 1,
) -> Any:
    """Trains and evaluates on the first batches of the training data alone.

    If the model and its loss are right, the loss becomes almost 0. The batches are read once and
    kept in memory, shuffled and augmented as they are.

    Args:
      estimator: an Estimator whose model_dir has no other checkpoints.
      train_spec: its input_fn yields the batches; `max_steps` ends the training.
      eval_spec: an EvalSpec, or several, which all evaluate these batches.
      num_batches: number of steps that take each batch once.

    Returns:
      The result of `train_and_evaluate`.

    Raises:
      UserRuntimeError: parameter servers train, whose workers read for themselves.
      UserValueError: model_dir has checkpoints of a training on other data.
    """
    check("overfit_batches.num_batches", num_batches, integer(1, example=1))
    if estimator.config.cluster.has_servers:
        raise UserRuntimeError(
            "overfit_batches keeps batches in memory, and the workers of parameter servers read "
            "for themselves: expected one machine. Set execution='single_host'."
        )
    _mark(estimator, num_batches)
    specs = list(eval_spec) if isinstance(eval_spec, Sequence) else [eval_spec]
    batches = _Batches(
        train_spec.input_fn, num_batches * estimator.config.gradient_accumulation_steps
    )
    evaluated = batches.input_fn(endless=False)
    return train_and_evaluate(
        estimator,
        dataclasses.replace(train_spec, input_fn=batches.input_fn(endless=True)),
        [dataclasses.replace(spec, input_fn=evaluated, steps=None) for spec in specs],
    )


class _Batches:
    """The first batches of an input_fn in mode TRAIN, which each pipeline reads once."""

    def __init__(self, input_fn: Callable[..., Any], num_per_replica: int) -> None:
        self._input_fn = input_fn
        self._num_per_replica = num_per_replica
        self._read: dict[int, tf.data.Dataset] = {}

    def input_fn(self, *, endless: bool) -> Callable[..., tf.data.Dataset]:
        """Returns an input_fn with the same arguments that yields these batches."""

        @functools.wraps(self._input_fn)
        def batches(**arguments: Any) -> tf.data.Dataset:
            dataset = self._dataset(arguments)
            dataset = dataset.repeat() if endless else dataset
            return dataset.skip(arguments.get("first_batch", 0))

        return batches

    def _dataset(self, arguments: dict[str, Any]) -> tf.data.Dataset:
        context = arguments.get("input_context")
        pipeline = context.input_pipeline_id if context else 0
        if pipeline not in self._read:
            given = {"mode": ModeKeys.TRAIN, "first_batch": 0}
            dataset = self._input_fn(**{k: given.get(k, v) for k, v in arguments.items()})
            replicas = context.num_replicas_in_sync // context.num_input_pipelines if context else 1
            elements = [
                tf.data.Dataset.from_tensors(element)
                for element in dataset.take(self._num_per_replica * replicas)
            ]
            # Without elements the dataset has the error of any empty input.
            self._read[pipeline] = functools.reduce(
                tf.data.Dataset.concatenate, elements or [dataset.take(0)]
            )
        return self._read[pipeline]


def _mark(estimator: Estimator, num_batches: int) -> None:
    """Writes to a new model_dir that it belongs to a few batches.

    Raises:
      UserValueError: its checkpoints are of another training.
    """
    path = os.path.join(estimator.model_dir, _MARKER)
    if estimator.latest_checkpoint() is None:
        if estimator.config.is_chief:
            check_writable(estimator.model_dir)
            write_atomic(path, json.dumps({"num_batches": num_batches}))
        return
    marked = read_json(path, lambda content: content["num_batches"])
    if marked != num_batches:
        raise UserValueError(
            f"overfit_batches is {num_batches}, and {estimator.model_dir} has checkpoints of a "
            f"training on {f'{marked} batches' if marked else 'all data'}: expected a new "
            "directory. Set another model_dir."
        )
