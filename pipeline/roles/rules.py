"""The hooks that go by evaluations: which evaluation feeds which, and whether it can.

A rule that never hears of its metric would never stop anything, without a word. So a
name that no evaluation has, or a metric that its trace does not show, is an error
before the first step.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from absl import logging

from pipeline.contract.hooks import Hook, Run
from pipeline.driver.estimator import Estimator
from pipeline.hooks import early_stopping
from pipeline.hooks.metric_hook import MetricHook
from pipeline.process.refusals import Refusal, RefusedValueError, near
from pipeline.roles.specs import EvalSpec, TrainSpec


def rules_of(eval_specs: Sequence[EvalSpec]) -> list[MetricHook]:
    """Returns the rules of evaluations, each bound to the name of its own.

    Args:
      eval_specs: EvalSpecs, each of its own name.
    """
    return [
        dataclasses.replace(rule, evaluation=spec.name)
        for spec in eval_specs
        for rule in spec.early_stopping
    ]


class FedHooks(Hook):
    """Checks at the beginning of a training that its evaluations feed its hooks.

    It traces the evaluations whose metrics are asked for, in all processes, as they
    would in their first evaluation.
    """

    def __init__(
        self,
        estimator: Estimator,
        train_spec: TrainSpec,
        eval_specs: Sequence[EvalSpec],
    ) -> None:
        """Takes the hooks of the training and of its evaluations.

        Args:
          estimator: Estimator that trains or evaluates.
          train_spec: TrainSpec with hooks of any kind.
          eval_specs: EvalSpecs along the training.

        Raises:
          ValueError: a hook goes by an evaluation that there is not.
        """
        self._estimator = estimator
        self.rules = rules_of(eval_specs)
        given = [hook for hook in train_spec.hooks if isinstance(hook, MetricHook)]
        names = [spec.name for spec in eval_specs]
        for hook in given:
            if hook.evaluation not in names:
                raise _unknown(hook, names)
        kept = {
            (spec.name, each.metric) for spec in eval_specs for each in spec.keep_best
        }
        for hook in early_stopping.that_restore(given):
            if (hook.evaluation, hook.metric) not in kept:
                raise RefusedValueError(
                    f"{hook.title} goes back to the best checkpoint, and none is kept: "
                    "give it to EvalSpec(early_stopping=...), which has it stay, or "
                    f"write EvalSpec(keep_best=KeepBest({hook.metric!r}))."
                )
        self._fed = [
            (spec, [h for h in (*given, *self.rules) if h.evaluation == spec.name])
            for spec in eval_specs
        ]
        config = estimator.config
        for spec, hooks in self._fed if config.save_checkpoints_steps == 0 else ():
            if hooks and not (config.evaluates_inline and spec.every_steps):
                raise RefusedValueError(
                    f"{hooks[0].title} goes by evaluations of checkpoints, and "
                    "RunConfig(save_checkpoints_steps=0) saves none: write another "
                    "number there, or EvalSpec(every_steps=1000) where training "
                    "evaluates itself."
                )

    @property
    def has_any(self) -> bool:
        """Whether any hook goes by an evaluation."""
        return any(hooks for _, hooks in self._fed)

    def begin(self, run: Run) -> None:
        """Traces the evaluations that hooks go by, and looks for their metrics.

        Beside an evaluator job the data of an evaluation may be out of reach here. The
        evaluator traces them at its own start, in any case.
        """
        config = self._estimator.config
        if config.evaluates_inline:
            self.check()
        elif not config.num_ps_replicas:  # There it would take modules of its own.
            try:
                self.check()
            except Refusal:
                raise
            except Exception as error:
                logging.warning(
                    "train | the metrics that %s goes by cannot be checked here: %s",
                    ", ".join(hook.title for _, hooks in self._fed for hook in hooks),
                    error,
                )

    def check(self) -> None:
        """Does what `begin` does, where nothing is trained.

        Raises:
          ValueError: a hook's metric is not among those of its evaluation.
          TypeError: it is no scalar.
        """
        for spec, hooks in self._fed:
            if not hooks:
                continue
            try:
                metrics = self._estimator.eval_metrics(spec.data_fn)
            except Exception as error:
                error.add_note(
                    "This was found before training: the evaluation that "
                    f"{hooks[0].title} goes by would fail."
                )
                raise
            for hook in hooks:
                hook.check_metric(metrics)


def _unknown(hook: MetricHook, names: Sequence[Any]) -> RefusedValueError:
    """Returns the error of a hook that goes by an evaluation that there is not."""
    known = [name for name in names if name is not None]
    has = ", ".join("the one without a name" if n is None else repr(n) for n in names)
    line = "None" if None in names else repr(known[0])
    return RefusedValueError(
        f"{hook.title} in TrainSpec.hooks goes by {hook.source}"
        f"{' without a name' if hook.evaluation is None else ''}, and the evaluations "
        f"are {has}: write evaluation={line}, or give it to "
        f"EvalSpec(early_stopping=...).{near(hook.evaluation or '', known)}"
    )
