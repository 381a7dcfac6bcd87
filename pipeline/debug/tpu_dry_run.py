# SPDX-License-Identifier: Apache-2.0
"""tpu_dry_run: finds on a CPU the reasons for which a TPU would refuse a training.

XLA compiles the same steps as for a TPU, except for their memory, and for shapes that depend on
values, such as those of tf.boolean_mask, which it accepts on a CPU.
"""

import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from ..contract.spec import ModeKeys
from ..data import tpu_input
from ..data.batch import Batch
from ..data.source import Source
from ..errors import UserValueError
from ..estimator.estimator import Estimator
from ..loop.specs import EvalSpec, TrainSpec
from ..run import tracebacks
from ..train.fetches import named_fetches, summaries_of
from ..train.forward_steps import EvalStep
from ..train.metrics import MetricSet
from ..train.numpy_metrics import NumpyMetrics
from ..train.step import Step, TrainStep


def tpu_dry_run(
    estimator: Estimator,
    train_spec: TrainSpec | None,
    eval_spec: EvalSpec | Sequence[EvalSpec] = (),
    *,
    num_replicas: int = 1,
) -> Iterator[str]:
    """Checks the inputs, compiles the step of each by XLA, and runs it on zeros, on the CPU.

    Args:
      estimator: the Estimator, which does not change.
      train_spec: the TrainSpec of the training; None for none.
      eval_spec: its EvalSpec, or several.
      num_replicas: number of cores of the TPU, which share each batch.

    Yields:
      A line for each step.

    Raises:
      UserValueError: a TPU cannot take an input, or XLA cannot compile a step.
    """
    specs = list(eval_spec) if isinstance(eval_spec, Sequence) else [eval_spec]
    with tempfile.TemporaryDirectory(prefix="tpu-dry-run-") as folder, tf.device("CPU:0"):
        alone = estimator.with_config(estimator.config.alone(model_dir=folder, metric_writers=()))
        sources = [
            Source(spec.input_fn, mode, alone.config, alone.params)
            for mode, given in ((ModeKeys.TRAIN, [train_spec]), (ModeKeys.EVAL, specs))
            for spec in given
            if spec is not None
        ]
        # An input is refused before minutes of compiling.
        element_specs = [tpu_input.checked_spec(source, num_replicas) for source in sources]
        for source, element_spec in zip(sources, element_specs, strict=True):
            began = time.monotonic()
            _compile(alone, source.mode, element_spec)
            yield f"{source.mode} step: XLA compiled it in {time.monotonic() - began:.1f} s"


def _compile(estimator: Estimator, mode: str, element_spec: tuple[Any, Any]) -> None:
    """Compiles the step of a mode, and runs it on zeros."""
    step = _step(estimator, mode, element_spec)
    num_batches = estimator.config.gradient_accumulation_steps if mode == ModeKeys.TRAIN else 1

    @tf.function(jit_compile=True, autograph=False)
    def run(*batch: Any) -> list[tf.Tensor]:
        totals = step([[Batch(*batch)]] * num_batches, tf.zeros([], tf.int64))
        return [each for each in tf.nest.flatten(totals) if each is not None]

    batch = tf.nest.map_structure(
        lambda each: None if each is None else tf.zeros(each.shape, each.dtype), element_spec
    )
    try:
        run(*batch)
    except tf.errors.OpError as error:
        message, _, stack = error.message.partition("The op is created at:")
        own = tracebacks.in_message(_with_paths(stack))
        text = f"XLA cannot compile the step of mode {mode!r}, so that no TPU can run it: "
        remedy = "Do this in input_fn, or leave it out."
        lines = [text + tracebacks.words_of(message), remedy, *tracebacks.lines(own)]
        raise UserValueError("\n".join(lines)) from error


def _with_paths(stack: str) -> str:
    """Returns the stack of XLA's message with the folder that all its files are in."""
    name = os.path.join("debug", os.path.basename(__file__))
    found = re.search(rf'File "([^"]*){name}"', stack)
    folder = os.path.abspath(__file__).removesuffix(f"{found[1]}{name}") if found else ""
    return re.sub(r'(?m)^ *File "', lambda _: f'  File "{folder}', stack)


def _step(estimator: Estimator, mode: str, element_spec: tuple[Any, Any]) -> Step:
    state = estimator.state
    model_fn = estimator.model.in_mode(mode)
    spec = estimator.model.build(mode, element_spec)
    metrics, summaries = MetricSet(spec.metrics), summaries_of(spec, under_xla=True)
    replicas = state.replicas
    if mode == ModeKeys.TRAIN:  # The step that hooks and TensorBoard see; others fetch nothing.
        fetches = named_fetches([*spec.tensors, *summaries], spec, "EstimatorSpec.tensors")
        return TrainStep(model_fn, spec, state.modules, metrics, replicas, fetches=fetches)
    names = [*NumpyMetrics(spec).names, *summaries]
    fetches = named_fetches(names, spec, "numpy_metric()")
    return EvalStep(model_fn, metrics, replicas, state.global_step, fetches=fetches)
