"""What happened between two calls of a hook: sums, and what they come to."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.contract.hooks import Report
from pipeline.loop.compiled_loop import Segment
from pipeline.loop.metrics import MetricSet, States, as_arrays

# Segments that a window keeps apart; adding up many at once is cheaper.
_MOST_PENDING = 64


class Window:
    """Sums over the segments since a boundary, and what they come to."""

    def __init__(self, metrics: MetricSet) -> None:
        """
        Args:
          metrics: of the mode.
        """
        self._metrics = metrics
        self._step = 0
        self._num_steps = 0
        self._seconds = 0.0
        self._loss = 0.0
        self._weight = 0.0
        self._states: list[States] = []
        self._scalars: dict[str, Any] = {}
        self._pending: list[Segment] = []
        self._report: Report | None = None

    def add(self, segment: Segment) -> None:
        """Adds what the loop did up to a boundary."""
        self._report = None
        self._seconds += segment.seconds
        self._step = segment.step
        self._num_steps += segment.num_steps
        if segment.num_steps:  # Else it only found the input's end.
            self._scalars = segment.totals.scalars
            self._pending.append(segment)
        if len(self._pending) >= _MOST_PENDING:
            self._fold()

    def report(self) -> Report:
        """The window's values; computed once."""
        if self._report is None:
            self._report = self._computed()
        return self._report

    @property
    def num_steps(self) -> int:
        """Steps in it."""
        return self._num_steps

    def state(self) -> dict[str, Any]:
        """What it holds, as JSON."""
        self._fold()
        return {
            "step": self._step,
            "num_steps": self._num_steps,
            "seconds": self._seconds,
            "loss": self._loss,
            "weight": self._weight,
            "metrics": {
                name: [value.tolist() for value in state]
                for name, state in self._totals().items()
            },
            "scalars": {name: float(value) for name, value in self._scalars.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> bool:
        """Goes on with what another one held; not if its metrics were others.

        Args:
          state: what `state` gave.

        Returns:
          Whether it does.
        """
        metrics = {
            name: [np.asarray(value) for value in values]
            for name, values in state["metrics"].items()
        }
        if not self._metrics.holds(metrics):
            return False
        self._step, self._num_steps = state["step"], state["num_steps"]
        self._seconds, self._scalars = state["seconds"], dict(state["scalars"])
        self._loss, self._weight = state["loss"], state["weight"]
        self._states = [metrics]
        return True

    def _totals(self) -> States:
        return self._states[0] if self._states else {}

    def _computed(self) -> Report:
        if len(self._pending) == 1 and not self._states:
            totals = self._pending[0].totals
            loss, weight = float(totals.loss), float(totals.weight)
            metrics = as_arrays(self._pending[0].metrics)
        else:
            self._fold()
            loss, weight = self._loss, self._weight
            metrics = self._metrics.results(self._states)
        return Report(
            step=self._step,
            num_steps=self._num_steps,
            seconds=self._seconds,
            loss=loss / weight if weight else 0.0,
            metrics=metrics,
            scalars={name: float(value) for name, value in self._scalars.items()},
        )

    def _fold(self) -> None:
        totals = [segment.totals for segment in self._pending]
        self._loss += sum(float(t.loss) for t in totals)
        self._weight += sum(float(t.weight) for t in totals)
        states = [*self._states, *(t.metrics for t in totals)]
        self._states = [self._metrics.total(states)] if states else []
        self._pending = []
