"""Evaluations along a training, as its loop sees them at each stop.

`Evaluation` is what the roles implement, for evaluations that the training makes and
for those of an evaluator job. `Evaluations` are all of one training.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pipeline.contract.hooks import Run
from pipeline.hooks.preemption import PreemptionHook

# The name under which a checkpoint keeps the state of an evaluation, with a number from
# the second one on.
STATE = "_Evaluation"

# An evaluation that became known: name of the EvalSpec or None, and the metrics.
Known = tuple[str | None, Mapping[str, Any]]


class Evaluation(Protocol):
    """An evaluation along a training, made here or in an evaluator job.

    All processes make these calls together, but for `state`: one writes the checkpoint.
    """

    def check(self) -> None:
        """Raises what would fail later; called once, before anything is said."""

    def begin(self, run: Run, signals: Sequence[PreemptionHook]) -> None:
        """Begins, after the hooks have; a signal may break an evaluation off."""

    def state(self, run: Run) -> Any:
        """Returns JSON for `restore`, saved with a checkpoint; None for nothing."""

    def restore(self, run: Run, state: Any) -> None:
        """Goes on from a checkpoint, whose `state` is given; called after `begin`."""

    def next_step(self, step: int) -> int | None:
        """Returns the first step after `step` at which to stop for it, or None."""

    def decide(self, run: Run, *, saved: bool) -> bool:
        """Decides whether to evaluate at this stop.

        Args:
          run: run at its first step, at a stop, or finished.
          saved: whether a checkpoint of this step is saved at this stop.

        Returns:
          Whether one has to be, for this evaluation.
        """

    def at_stop(self, run: Run) -> Sequence[Known]:
        """Evaluates if that was decided; returns what became known, for the hooks."""


class Evaluations:
    """All evaluations along a training, in their order.

    Attributes:
      by_name: evaluations by the names under which checkpoints keep their states.
    """

    def __init__(self, by_name: Mapping[str, Evaluation]) -> None:
        """Takes the evaluations by their names."""
        self.by_name = by_name

    def begin(
        self, run: Run, signals: Sequence[PreemptionHook], states: Mapping[str, Any]
    ) -> None:
        """Begins, or goes on from what a checkpoint holds.

        Args:
          run: run at its first step.
          signals: hooks that note signals.
          states: states of hooks and evaluations by name.
        """
        for name, evaluation in self.by_name.items():
            evaluation.begin(run, signals)
            if name in states:
                evaluation.restore(run, states[name])

    def states(self, run: Run) -> dict[str, Any]:
        """Returns the states that are to be saved, by name."""
        found = {name: each.state(run) for name, each in self.by_name.items()}
        return {name: state for name, state in found.items() if state is not None}

    def next_step(self, step: int) -> int | None:
        """Returns the first step after `step` at which to stop, or None."""
        steps = [each.next_step(step) for each in self.by_name.values()]
        return min((step for step in steps if step is not None), default=None)

    def decide(self, run: Run, *, saved: bool) -> bool:
        """Decides which to make at this stop; returns whether one needs a checkpoint.

        Args:
          run: run at its first step, at a stop, or finished.
          saved: whether a checkpoint of this step is saved at this stop.
        """
        return any([each.decide(run, saved=saved) for each in self.by_name.values()])

    def make(
        self, run: Run, tell: Callable[[Run, str | None, Any], None], *, alone: bool
    ) -> list[Exception]:
        """Makes those that were decided; tells the hooks of each at once.

        Args:
          run: run at the stop.
          tell: function that tells the hooks of an evaluation.
          alone: whether no other process trains in step with this one. Others may still
            be evaluating where this one fails, and would wait for it: it raises then.

        Returns:
          The errors of those that failed; the others were made all the same.
        """
        failures: list[Exception] = []
        for evaluation in self.by_name.values():
            if run.going_back is not None:  # This step is given up.
                break
            try:
                known = evaluation.at_stop(run)
            except Exception as error:
                if not alone:
                    raise
                failures.append(error)
                continue
            for name, metrics in known:
                tell(run, name, metrics)
        return failures
