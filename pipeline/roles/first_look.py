"""A first look at a program: everything once, or a few batches again and again.

`fast_dev_run` finds in seconds what would end a training hours later: an exporter, a
hook, an evaluation that fails. `overfit_batches` shows whether the model can learn at
all: on a few batches the loss has to fall to nearly nothing.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from pipeline.checkpoints import checkpoint
from pipeline.cluster import tf_config
from pipeline.contract.hooks import Hook
from pipeline.contract.spec import ModeKeys
from pipeline.driver.estimator import Estimator
from pipeline.mistakes import checks
from pipeline.model_dir import atomic_file
from pipeline.process.refusals import RefusedRuntimeError, RefusedValueError
from pipeline.roles import specs
from pipeline.roles.specs import EvalSpec, Result, TrainSpec
from pipeline.roles.train_and_evaluate import train_and_evaluate

# Says that the checkpoints of a model_dir are of a few batches.
MARKER = "overfit_batches.json"


def fast_dev_run(
    estimator: Estimator,
    train_spec: TrainSpec,
    eval_spec: EvalSpec | Sequence[EvalSpec],
    *,
    predict_input_fn: Callable[..., Any] | None = None,
) -> dict[str, Any] | None:
    """Does everything once: a step, a save, an evaluation of one batch, every export.

    All hooks are called at that step, whatever their `every_steps`, and every exporter.
    A batch is predicted. All of it goes to a model_dir of its own, which is deleted;
    `RunConfig.tools` get nothing, and the Estimator itself is left as it is. Where
    several processes train in step, all make this call, and nothing is predicted.

    Args:
      estimator: Estimator of the model.
      train_spec: TrainSpec as for `train_and_evaluate`.
      eval_spec: EvalSpec, or several.
      predict_input_fn: function that returns the data to predict; None for that of the
        first EvalSpec, in PREDICT mode.

    Returns:
      The metrics of the evaluation, as `train_and_evaluate` returns them; None where
      this process did not evaluate.

    Raises:
      Exception: the error that a training would have met later.
    """
    eval_specs = specs.as_list(eval_spec)
    config = estimator.config
    if config.task_type == tf_config.EVALUATOR:
        logging.info("fast_dev_run | the training evaluates: nothing to do here")
        return None
    began = time.monotonic()
    with _own_model_dir(estimator) as folder:
        recipe = estimator.recipe
        tried = Estimator(
            recipe.model_fn,
            modules=recipe.factories,
            config=config.replace(
                model_dir=folder,
                save_checkpoints_steps=1,
                save_summary_steps=1,
                log_step_count_steps=1,
                evaluation="inline",
                tools=(),  # Theirs may be a server, which is to have real runs alone.
            ),
            params=recipe.params or None,
            warm_start_from=recipe.warm_start_from,
        )
        with _called_at_each_step(train_spec.hooks):
            result = train_and_evaluate(
                tried,
                dataclasses.replace(train_spec, max_steps=1),
                [_of_one_batch(spec) for spec in eval_specs],
            )
        if result is None:
            return None
        done = ["a step", "a checkpoint", f"{len(eval_specs)} evaluations of a batch"]
        done.append(f"{len([path for path in result[1] if path])} exports")
        if len(config.cluster.training_tasks) <= 1:
            input_fn = predict_input_fn or eval_specs[0].input_fn
            next(tried.predict(input_fn, yield_single_examples=False))
            done.append("a prediction")
    if config.is_chief:
        text = "fast_dev_run | %s: all well in %.1f s"
        logging.info(text, ", ".join(done), time.monotonic() - began)
    return result[0]


def overfit_batches(
    estimator: Estimator,
    train_spec: TrainSpec,
    eval_spec: EvalSpec | Sequence[EvalSpec],
    num_batches: int = 1,
) -> Result | None:
    """Trains and evaluates on the first batches of the training data alone.

    They are read once, and kept in memory as they are: shuffled, cropped, augmented.

    Args:
      estimator: Estimator to train, in a model_dir without other checkpoints.
      train_spec: TrainSpec; its input_fn gives the batches.
      eval_spec: EvalSpec, or several, which all evaluate these batches.
      num_batches: number of steps that go over all of them once.

    Returns:
      What `train_and_evaluate` returns.

    Raises:
      ValueError: model_dir has checkpoints of a training on other data.
      RuntimeError: parameter servers train, whose workers read for themselves.
    """
    eval_specs = specs.as_list(eval_spec)
    train_spec, eval_specs = on_fixed_batches(
        estimator, train_spec, eval_specs, num_batches
    )
    return train_and_evaluate(estimator, train_spec, eval_specs)


def on_fixed_batches(
    estimator: Estimator,
    train_spec: TrainSpec,
    eval_specs: Sequence[EvalSpec],
    num_batches: int,
) -> tuple[TrainSpec, list[EvalSpec]]:
    """Returns specs that read the first batches of the training data alone.

    Args:
      estimator: Estimator that is to train by them.
      train_spec: TrainSpec; its input_fn gives the batches.
      eval_specs: EvalSpecs, which are to evaluate these batches.
      num_batches: number of steps that go over all of them once.

    Raises:
      ValueError: model_dir has checkpoints of a training on other data.
      RuntimeError: parameter servers train, whose workers read for themselves.
    """
    checks.check_count("overfit_batches.num_batches", num_batches, least=1)
    config = estimator.config
    if config.num_ps_replicas:
        raise RefusedRuntimeError(
            "overfit_batches keeps batches in memory, and workers of parameter servers "
            "read for themselves: run it on one machine, --execution=single_host."
        )
    _mark(estimator, num_batches)
    fixed = _FixedBatches(
        train_spec.input_fn, num_batches, config.gradient_accumulation_steps
    )
    return dataclasses.replace(train_spec, input_fn=fixed.input_fn(again=True)), [
        dataclasses.replace(
            spec, input_fn=fixed.input_fn(again=False), steps=None, input_mode=None
        )
        for spec in eval_specs
    ]


class _FixedBatches:
    """The first batches of an input_fn in TRAIN, read once by each pipeline."""

    def __init__(
        self, input_fn: Callable[..., Any], num_batches: int, num_micro_batches: int
    ) -> None:
        self._input_fn = input_fn
        self._num_elements = num_batches * num_micro_batches
        self._read: dict[int, tf.data.Dataset] = {}

    def input_fn(self, *, again: bool) -> Callable[..., Any]:
        """Returns an input_fn of these batches, once or again and again.

        It takes the arguments that the user's does.
        """

        @functools.wraps(self._input_fn)
        def fixed(**supplied: Any) -> tf.data.Dataset:
            first = supplied.get("first_batch", 0)
            dataset = self._dataset(supplied)
            return (dataset.repeat() if again else dataset).skip(first)

        return fixed

    def _dataset(self, supplied: dict[str, Any]) -> tf.data.Dataset:
        context = supplied.get("input_context")
        pipeline = context.input_pipeline_id if context else 0
        if pipeline not in self._read:
            arguments = {**supplied, "mode": ModeKeys.TRAIN, "first_batch": 0}
            dataset = self._input_fn(**{k: arguments[k] for k in supplied})
            number = self._num_elements
            if context:  # An element is one replica's batch.
                number *= context.num_replicas_in_sync // context.num_input_pipelines
            elements = [
                tf.data.Dataset.from_tensors(element)
                for element in itertools.islice(dataset, number)
            ]
            # An empty one is told as any empty input is.
            self._read[pipeline] = (
                functools.reduce(lambda head, tail: head.concatenate(tail), elements)
                if elements
                else dataset.take(0)
            )
        return self._read[pipeline]


@contextlib.contextmanager
def _own_model_dir(estimator: Estimator) -> Iterator[str]:
    """Yields a folder, and deletes it; several processes share theirs by model_dir.

    Raises:
      ValueError: a run that was killed has left its folder.
    """
    config = estimator.config
    is_shared = len(config.cluster.training_tasks) > 1
    folder = os.path.join(estimator.model_dir, "fast_dev_run") if is_shared else None
    folder = folder or tempfile.mkdtemp()
    # It would not train: the step is made. A run that begins now has no such checkpoint
    # before all processes have looked.
    if (left := checkpoint.latest(folder)) and checkpoint.step_of(left):
        raise RefusedValueError(
            f"{folder} is left of a run that was killed: delete it."
        )
    try:
        yield folder
    finally:
        if config.is_chief and tf.io.gfile.isdir(folder):
            tf.io.gfile.rmtree(folder)


@contextlib.contextmanager
def _called_at_each_step(hooks: Sequence[Hook]) -> Iterator[None]:
    """Has hooks called at each step of the block, whatever they ask for."""
    # On the object itself: the class, by which errors name a hook, stays the user's.
    watching = [hook for hook in hooks if type(hook).after_step is not Hook.after_step]
    before = [vars(hook).copy() for hook in watching]
    for hook in watching:
        vars(hook)["next_step"] = lambda step: step + 1
    try:
        yield
    finally:
        for hook, own in zip(watching, before, strict=True):
            vars(hook).pop("next_step", None)  # A hook may be there twice.
            if "next_step" in own:
                vars(hook)["next_step"] = own["next_step"]


def _of_one_batch(spec: EvalSpec) -> EvalSpec:
    return dataclasses.replace(spec, steps=1, start_delay_secs=0, throttle_secs=0)


def _mark(estimator: Estimator, num_batches: int) -> None:
    """Notes in model_dir that it is of a few batches.

    Raises:
      ValueError: its checkpoints are of another training.
    """
    path = os.path.join(estimator.model_dir, MARKER)
    if estimator.latest_checkpoint() is None:
        if estimator.config.is_chief:
            atomic_file.write(path, f"{json.dumps({'batches': num_batches})}\n")
        return
    marked = atomic_file.read_json(path, dict, instead="they may be of all data")
    if (marked or {}).get("batches") != num_batches:
        of = f"{marked['batches']} batches" if marked else "all of its data"
        raise RefusedValueError(
            f"overfit_batches is {num_batches}, and {estimator.model_dir} has "
            f"checkpoints of a training on {of}: write another --model_dir."
        )
