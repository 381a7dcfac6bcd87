"""train_and_evaluate: training with evaluations at its checkpoints, and exports."""

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from absl import logging

from pipeline import calling
from pipeline.estimator import Estimator
from pipeline.export import Exporter
from pipeline.hooks import Hook, Run
from pipeline.model_fn import kind_of
from pipeline.saving import SavingListener


@dataclasses.dataclass(frozen=True)
class TrainSpec:
    """What to train on and how far.

    Attributes:
      input_fn: see `pipeline.input_fn`.
      max_steps: global step to train to; None for the end of the input.
      hooks: watch the training.
      saving_listeners: told of each checkpoint.
    """

    input_fn: Callable[..., Any]
    _: dataclasses.KW_ONLY
    max_steps: int | None = None
    hooks: Sequence[Hook] = ()
    saving_listeners: Sequence[SavingListener] = ()

    def __post_init__(self) -> None:
        _check_input_fn("TrainSpec", self.input_fn)
        calling.check_positive("TrainSpec.max_steps", self.max_steps)
        _check_all("TrainSpec.hooks", self.hooks, Hook)
        _check_all("TrainSpec.saving_listeners", self.saving_listeners, SavingListener)


@dataclasses.dataclass(frozen=True)
class EvalSpec:
    """What to evaluate on, how often, and what to export.

    Attributes:
      input_fn: see `pipeline.input_fn`.
      steps: most steps; None for every example, once.
      name: where there are several evaluations; goes into the events' directory.
      hooks: watch the evaluation.
      exporters: called after each.
      start_delay_secs: wait of an evaluator job before its first evaluation.
      throttle_secs: least time between evaluations; a checkpoint that comes sooner is
        passed over. The last one is always evaluated.
    """

    input_fn: Callable[..., Any]
    _: dataclasses.KW_ONLY
    steps: int | None = None
    name: str | None = None
    hooks: Sequence[Hook] = ()
    exporters: Sequence[Exporter] = ()
    start_delay_secs: float = 120
    throttle_secs: float = 600

    def __post_init__(self) -> None:
        _check_input_fn("EvalSpec", self.input_fn)
        calling.check_positive("EvalSpec.steps", self.steps)
        _check_all("EvalSpec.hooks", self.hooks, Hook)
        if isinstance(self.exporters, Exporter):
            object.__setattr__(self, "exporters", (self.exporters,))
        _check_all("EvalSpec.exporters", self.exporters, Exporter)
        names = [exporter.name for exporter in self.exporters]
        if len(set(names)) < len(names):
            raise ValueError(
                f"EvalSpec.exporters share the names {names}, and so a directory: "
                "give each its own, BestExporter(name='best_loss')."
            )
        for field in ("start_delay_secs", "throttle_secs"):
            if getattr(self, field) < 0:
                raise ValueError(
                    f"EvalSpec.{field} is {getattr(self, field)}; it must be >= 0."
                )


def train_and_evaluate(
    estimator: Estimator,
    train_spec: TrainSpec,
    eval_spec: EvalSpec | Sequence[EvalSpec],
) -> tuple[dict[str, Any], list[Any]]:
    """Trains to `max_steps`; evaluates and exports at checkpoints and at the end.

    In one process the live weights are evaluated, and the training input goes on where
    it was. Where training has reached max_steps before, what is there is evaluated and
    exported all the same.

    Args:
      estimator: what to train.
      train_spec: on what, how far.
      eval_spec: one or several, each of its own name.

    Returns:
      The last evaluation's metrics, by the evaluation's name where there are several;
      and what each exporter returned for it.

    Raises:
      ValueError: several evaluations of one name.
    """
    specs = [eval_spec] if isinstance(eval_spec, EvalSpec) else list(eval_spec)
    names = [spec.name for spec in specs]
    if not specs or len(set(names)) < len(names):
        raise ValueError(
            f"eval_spec names its evaluations {names}: give at least one, and each its "
            "own EvalSpec(name=...)."
        )
    evaluations = [_Evaluation(estimator, spec) for spec in specs]
    estimator.train(
        train_spec.input_fn,
        max_steps=train_spec.max_steps,
        hooks=train_spec.hooks,
        saving_listeners=[*train_spec.saving_listeners, *evaluations],
    )
    results = [evaluation.finish() for evaluation in evaluations]
    exported = [path for _, paths in results for path in paths]
    if len(specs) == 1:
        return results[0][0], exported
    return {
        n: metrics for n, (metrics, _) in zip(names, results, strict=True)
    }, exported


class _Evaluation(SavingListener):
    """One EvalSpec along a training run."""

    def __init__(
        self,
        estimator: Estimator,
        spec: EvalSpec,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._estimator = estimator
        self._spec = spec
        self._clock = clock
        self._last_time = clock()
        self._last_result: dict[str, Any] | None = None

    def after_save(self, run: Run) -> None:
        """Evaluates the checkpoint, unless it is the first or comes too soon.

        The last one is left to `finish`, which knows that it is the last.
        """
        if run.step == run.first_step or run.finished or run.step == run.max_step:
            return
        wait = self._spec.throttle_secs - (self._clock() - self._last_time)
        if wait > 0:
            logging.info(
                "eval | step %d is passed over; the next evaluation is that of the "
                "first checkpoint in %.0f s (throttle_secs=%g)",
                run.step,
                wait,
                self._spec.throttle_secs,
            )
            return
        self._evaluate(is_final=False)

    def finish(self) -> tuple[dict[str, Any], list[str | None]]:
        """The last evaluation, and its exports."""
        return self._evaluate(is_final=True)

    def _evaluate(self, *, is_final: bool) -> tuple[dict[str, Any], list[str | None]]:
        spec, estimator = self._spec, self._estimator
        step = estimator.global_step
        if self._last_result is None or self._last_result["global_step"] != step:
            self._last_result = estimator.evaluate(
                spec.input_fn, steps=spec.steps, hooks=spec.hooks, name=spec.name
            )
        result = self._last_result
        self._last_time = self._clock()
        exported = [
            exporter.export(
                estimator,
                os.path.join(estimator.model_dir, "export", exporter.name),
                estimator.loaded_checkpoint,
                result,
                is_final,
            )
            for exporter in spec.exporters
        ]
        return result, exported


def _check_input_fn(owner: str, input_fn: Any) -> None:
    if not callable(input_fn):
        raise TypeError(
            f"{owner}.input_fn is {kind_of(input_fn)}, not a callable: hand in the "
            "function, not its result."
        )


def _check_all(name: str, values: Any, kind: type) -> None:
    values = values if isinstance(values, (list, tuple)) else [values]
    for value in values:
        if not isinstance(value, kind):
            raise TypeError(f"{name} holds {kind_of(value)}, not a {kind.__name__}.")
