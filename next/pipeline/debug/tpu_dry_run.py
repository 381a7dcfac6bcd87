"""tpu_dry_run: finds on a CPU the reasons for which a TPU would refuse a training.

XLA compiles the same steps as for a TPU. It knows no TPU's memory, and accepts some shapes that
depend on values, such as those of tf.boolean_mask, which a TPU may refuse.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from ..contract.spec import EstimatorSpec, ModeKeys
from ..data import tpu_input
from ..data.batch import Batch
from ..data.source import Source
from ..distribute.tables import traced_for_xla
from ..errors import UserValueError
from ..estimator.estimator import Estimator
from ..estimator.specs import EvalSpec, TrainSpec
from ..estimator.train_state import TrainState
from ..run import frames
from ..train.forward_steps import EvalStep
from ..train.host_metrics import HostMetrics
from ..train.metrics import MetricSet
from ..train.step import BoundModelFn, Step, TrainStep


def tpu_dry_run(
    estimator: Estimator,
    train_spec: TrainSpec | None,
    eval_spec: EvalSpec | Sequence[EvalSpec] = (),
    *,
    num_replicas: int = 1,
) -> Iterator[str]:
    """Checks the inputs, and compiles a training step and evaluation steps by XLA, on the CPU.

    Each step runs once, on zeros. Nothing is written.

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
    input_fns = [] if train_spec is None else [(ModeKeys.TRAIN, train_spec.input_fn)]
    input_fns += [(ModeKeys.EVAL, spec.input_fn) for spec in specs]
    with tempfile.TemporaryDirectory(prefix="tpu-dry-run-") as folder, tf.device("CPU:0"):
        config = estimator.config.alone(model_dir=folder, metric_writers=())
        alone = estimator.with_config(config)
        # An input is refused before minutes of compiling.
        sources = [Source(fn, mode, config, alone.params) for mode, fn in input_fns]
        batches = [(each, tpu_input.checked_spec(each, num_replicas)) for each in sources]
        for source, element_spec in batches:
            yield _compiled(alone, source.mode, element_spec)


def _compiled(estimator: Estimator, mode: str, element_spec: tuple[Any, Any]) -> str:
    """Compiles and runs the step of a mode; returns a line."""
    model_fn = estimator.state.bind(estimator.model_fn, mode, estimator.params)
    spec = estimator.state.build(model_fn, element_spec)
    step = (_train_step if mode == ModeKeys.TRAIN else _eval_step)(estimator.state, model_fn, spec)
    num_batches = estimator.config.gradient_accumulation_steps if mode == ModeKeys.TRAIN else 1

    def run(*batch: Any) -> list[tf.Tensor]:
        with traced_for_xla():
            totals = step([[Batch(*batch)]] * num_batches, tf.zeros([], tf.int64))
        return [each for each in tf.nest.flatten(totals) if each is not None]

    batch = tf.nest.map_structure(
        lambda each: None if each is None else tf.zeros(each.shape, each.dtype), element_spec
    )
    began = time.monotonic()
    _run_by_xla(run, batch, mode)
    return f"{mode} step: XLA compiled it in {time.monotonic() - began:.1f} s"


def _run_by_xla(run: Callable[..., Any], batch: tuple[Any, Any], mode: str) -> None:
    try:
        tf.function(run, jit_compile=True, autograph=False)(*batch)
    except tf.errors.OpError as error:
        message = str(error.message)
        lines = frames.lines(frames.in_message(message))
        raise UserValueError(
            "\n".join(
                [
                    f"XLA cannot compile the step of mode {mode!r}, so that no TPU can run it: "
                    f"{frames.words_of(message)}. Do it in input_fn, or leave it out.",
                    *lines,
                ]
            )
        ) from error


def _train_step(state: TrainState, model_fn: BoundModelFn, spec: EstimatorSpec) -> Step:
    return TrainStep(model_fn, spec, state.modules, MetricSet(spec.metrics), state.replicas)


def _eval_step(state: TrainState, model_fn: BoundModelFn, spec: EstimatorSpec) -> Step:
    shown = HostMetrics(spec).shown
    metrics = MetricSet(spec.metrics)
    return EvalStep(model_fn, metrics, state.replicas, state.global_step, shown=shown)
