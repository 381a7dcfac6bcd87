"""Adds up the steps between two reports."""

import contextlib
import functools
import math
from collections.abc import Iterator, Mapping, Sequence

from ..contract.hooks import Report, Run
from ..contract.summaries import Kind
from ..train.loop import Steps
from ..train.metrics import MetricSet
from ..train.shown import summaries_of


class Accumulator:
    """The steps since the last report of one hook, or of an evaluation."""

    def __init__(
        self,
        metrics: MetricSet,
        tensors: Sequence[str] = (),
        kinds: Mapping[str, Kind] | None = None,
        *,
        has_losses: bool = False,
    ) -> None:
        """Begins without steps.

        Args:
          metrics: metrics of model_fn.
          tensors: names of the tensors that reports have.
          kinds: kinds of the summaries that reports have, by name.
          has_losses: whether reports have the loss of each step.
        """
        self._metrics = metrics
        self._tensors = tensors
        self._kinds = kinds or {}
        self._has_losses = has_losses
        self._steps: Steps | None = None

    def clear(self) -> None:
        """Begins again without steps."""
        self._steps = None

    def add(self, steps: Steps) -> None:
        """Adds the steps of one compiled call."""
        self._steps = steps if self._steps is None else self._steps.then(steps)

    def report(self, step: int) -> Report:
        """Returns the results up to global step `step`; NaN and no metrics without steps."""
        steps = self._steps
        if steps is None:
            return Report(step, 0, 0, 0.0, math.nan, {}, {})
        totals = steps.totals
        shown = totals.shown[0] if totals.shown else {"tensors": {}, "summaries": {}}
        return Report(
            step=step,
            num_steps=steps.num_steps,
            num_examples=int(totals.examples),
            seconds=steps.seconds,
            loss=totals.mean_loss(),
            metrics=self._metrics.results(totals.metrics),
            scalars=totals.mean_scalars(),
            tensors={n: shown["tensors"][n] for n in self._tensors if n in shown["tensors"]},
            summaries=summaries_of(shown["summaries"], self._kinds),
            input_seconds=steps.input_seconds,
            losses=steps.losses if self._has_losses else (),
        )

    @contextlib.contextmanager
    def reported(self, run: Run, *, clears: bool = True) -> Iterator[None]:
        """Makes `run.report` the report of these steps in the block.

        Args:
          run: the run that is passed to a hook in the block.
          clears: whether the next report begins after the block.
        """
        run.read_report = functools.cache(lambda: self.report(run.step))
        yield
        if clears:
            self.clear()
