"""The hooks that go by evaluations, and which evaluation feeds which.

A rule that never hears of its metric would never stop anything, without a word. So a
name that no evaluation has is an error before the first step; and so is a metric that
its trace does not show, see `evaluation.check_metrics`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from pipeline.contract.run_config import RunConfig
from pipeline.hooks import early_stopping
from pipeline.hooks.metric_hook import MetricHook
from pipeline.process.refusals import RefusedValueError, near
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


class FedHooks:
    """The hooks of a training that its evaluations feed.

    Attributes:
      rules: rules of the evaluations themselves.
    """

    def __init__(
        self,
        config: RunConfig,
        train_spec: TrainSpec,
        eval_specs: Sequence[EvalSpec],
    ) -> None:
        """Takes the hooks of the training and of its evaluations.

        Args:
          config: RunConfig of the training.
          train_spec: TrainSpec with hooks of any kind.
          eval_specs: EvalSpecs along the training.

        Raises:
          ValueError: a hook goes by an evaluation that there is not.
        """
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
        self._all = (*given, *self.rules)
        for spec in eval_specs if config.save_checkpoints_steps == 0 else ():
            hooks = self.of(spec)
            if hooks and not (config.evaluates_inline and spec.every_steps):
                raise RefusedValueError(
                    f"{hooks[0].title} goes by evaluations of checkpoints, and "
                    "RunConfig(save_checkpoints_steps=0) saves none: write another "
                    "number there, or EvalSpec(every_steps=1000) where training "
                    "evaluates itself."
                )

    def of(self, spec: EvalSpec) -> list[MetricHook]:
        """Returns the hooks that go by one evaluation."""
        return [hook for hook in self._all if hook.evaluation == spec.name]


def _unknown(hook: MetricHook, names: Sequence[Any]) -> RefusedValueError:
    """Returns the error of a hook that goes by an evaluation that there is not."""
    known = [name for name in names if name is not None]
    has = ", ".join("the one without a name" if n is None else repr(n) for n in names)
    line = repr(known[0]) if known and None not in names else "None"
    return RefusedValueError(
        f"{hook.title} in TrainSpec.hooks goes by {hook.source}"
        f"{' without a name' if hook.evaluation is None else ''}, and the evaluations "
        f"are {has}: write evaluation={line}, or give it to "
        f"EvalSpec(early_stopping=...).{near(hook.evaluation or '', known)}"
    )
