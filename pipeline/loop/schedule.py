# SPDX-License-Identifier: Apache-2.0
"""Decides the next boundary, for all processes."""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

from ..contract.hooks import RunContext
from ..distribute.replicas import Replicas
from ..run import signals
from ..train.compiled_loop import Detail
from .checkpointing import Checkpointing
from .engine import Engine
from .hook_list import HookList
from .parts import Boundary, Evaluations

PREEMPTED = "preempted"
END_OF_INPUT = "the input ended"


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The next boundary of a training: the next step of any part.

    `agree` is the only exchange between processes that the loop makes. It decides, and changes
    nothing.

    Attributes:
      replicas: replicas that train.
      engine: knows the end of the data.
      hooks: ask for steps, with or without tensors.
      checkpoints: are due by steps and by time.
      evaluations: are due by steps, at checkpoints and at the end.
    """

    replicas: Replicas
    engine: Engine
    hooks: HookList
    checkpoints: Checkpointing
    evaluations: Evaluations

    def agree(self, run: RunContext) -> Boundary:
        """Returns the next boundary of all processes; each of them must call it."""
        step, answers = run.step, self._exchange(run)
        reasons = self._stop_reasons(run, answers)
        stops = bool(reasons) or run.is_at_end
        is_due = answers.is_late or self.checkpoints.is_due(step)
        evaluates: tuple[str, ...] = ()
        if not answers.is_preempted:
            evaluates = self.evaluations.due(
                step, answers.flags, at_checkpoint=is_due, is_final=stops
            )
        is_new = self.checkpoints.saved_step is None
        saves = is_due or is_new or stops or self.evaluations.need_checkpoint(evaluates)
        return Boundary(
            next_step=int(answers.next_step),
            detail=answers.detail,
            saves=saves and not self.checkpoints.is_saved(step),
            evaluates=evaluates,
            skips=self.engine.skips(step),
            stops=stops,
            stop_reasons=reasons,
            is_preempted=answers.is_preempted,
        )

    def _exchange(self, run: RunContext) -> "_Answers":
        """Sends the next steps and the facts of this process to all others."""
        parts = self.hooks, self.checkpoints, self.evaluations, self.engine
        next_steps = [part.next_step(run.step) for part in parts]
        end = math.inf if run.max_step is None else run.max_step
        numbers = [
            min(*next_steps, end),
            *self.hooks.next_steps_with_tensors(),
            bool(run.stop_reasons),
            signals.is_pending(),
            self.checkpoints.is_late(),
            *self.evaluations.flags(run),
        ]
        by_number = list(zip(*self.replicas.gather(numbers), strict=True))
        steps, facts = map(min, by_number[:3]), [any(each) for each in by_number[3:]]
        return _Answers(*steps, *facts[:3], facts[3:])

    def _stop_reasons(self, run: RunContext, answers: "_Answers") -> tuple[str, ...]:
        reasons = list(run.stop_reasons)
        if self.engine.has_ended:
            reasons.append(END_OF_INPUT)
        if answers.is_preempted:
            reasons.append(PREEMPTED)
        if answers.asks_to_stop and not reasons:
            reasons.append("another process asked to stop")
        return tuple(dict.fromkeys(reasons))


class _Answers(NamedTuple):
    """The answers of all processes: the smallest step, and facts of any of them.

    Attributes:
      next_step: next step of any part.
      tensors_at: next step of a hook that wants tensors.
      summaries_at: next step of a hook that wants summaries.
      asks_to_stop: whether a hook has asked to stop.
      is_preempted: whether a signal has arrived.
      is_late: whether a checkpoint is due by the clock.
      flags: `Evaluations.flags`.
    """

    next_step: float
    tensors_at: float
    summaries_at: float
    asks_to_stop: bool
    is_preempted: bool
    is_late: bool
    flags: Sequence[bool]

    @property
    def detail(self) -> Detail:
        """Results of the last step before the boundary."""
        if self.next_step == self.summaries_at:
            return Detail.SUMMARIES
        return Detail.TENSORS if self.next_step == self.tensors_at else Detail.SUMS
