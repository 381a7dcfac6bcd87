# SPDX-License-Identifier: Apache-2.0
"""Adds up the steps between two reports."""

import contextlib
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..contract.hooks import Report, RunContext
from ..contract.summaries import Summary
from ..train.compiled_loop import Steps
from ..train.metrics import MetricSet
from ..train.totals import Totals

# A checkpoint has the steps of a hook only if their metrics have at most so many numbers.
_MAX_NUMBERS = 10_000


class Accumulator:
    """The steps since the last report of one hook, or of an evaluation."""

    def __init__(
        self,
        metrics: MetricSet,
        tensors: Sequence[str] = (),
        summaries: Mapping[str, Summary] | None = None,
        *,
        has_losses: bool = False,
    ) -> None:
        """Begins without steps.

        Args:
          metrics: metrics of model_fn.
          tensors: names of the tensors that reports have.
          summaries: summaries of model_fn that reports have, by name.
          has_losses: whether reports have the loss of each step.
        """
        self._metrics = metrics
        self._tensors = tensors
        self._summaries = summaries or {}
        self._has_losses = has_losses
        self._steps: Steps | None = None

    @property
    def num_steps(self) -> int:
        """Number of steps."""
        return 0 if self._steps is None else self._steps.num_steps

    def clear(self) -> None:
        """Begins again without steps."""
        self._steps = None

    def add(self, steps: Steps) -> None:
        """Adds the steps of one compiled call."""
        self._steps = steps if self._steps is None else self._steps.then(steps)

    def state(self) -> dict[str, Any] | None:
        """Returns the steps as JSON; None for none, or if their metrics have too many numbers."""
        if self._steps is None:
            return None
        steps, totals = self._steps, self._steps.totals
        metrics = tf.nest.map_structure(np.asarray, totals.metrics)
        if sum(array.size for array in tf.nest.flatten(metrics)) > _MAX_NUMBERS:
            return None
        return {
            "num_steps": steps.num_steps,
            "seconds": steps.seconds,
            "input_seconds": steps.input_seconds,
            "losses": np.asarray(steps.losses).tolist() if self._has_losses else [],
            "totals": [float(each) for each in (totals.loss, totals.weight, totals.examples)],
            "metrics": tf.nest.map_structure(np.ndarray.tolist, metrics),
        }

    def restore(self, state: Mapping[str, Any] | None, step: int) -> None:
        """Continues after the steps of a checkpoint, if that has them and the same metrics.

        Args:
          state: a result of `state`.
          step: global step of the checkpoint.
        """
        self._steps = None
        zeros = self._metrics.zeros()
        if state is None or state["metrics"].keys() != zeros.keys():
            return
        metrics = {n: [np.asarray(each) for each in state["metrics"][n]] for n in zeros}
        if any(
            [array.shape for array in metrics[n]] != [tuple(zero.shape) for zero in zeros[n]]
            for n in zeros
        ):
            return
        self._steps = Steps(
            step=step,
            num_steps=state["num_steps"],
            seconds=state["seconds"],
            totals=Totals(*state["totals"], metrics, {}),
            examples=0,
            input_ended=False,
            input_seconds=state["input_seconds"],
            losses=np.asarray(state["losses"]),
        )

    def report(self, step: int) -> Report:
        """Returns the results up to global step `step`; NaN and no metrics without steps."""
        steps = self._steps
        if steps is None:
            return Report(step, 0, 0, 0.0, math.nan, {}, {})
        totals = steps.totals
        fetched = totals.fetched[0] if totals.fetched else {}
        return Report(
            step=step,
            num_steps=steps.num_steps,
            num_examples=int(totals.examples),
            seconds=steps.seconds,
            loss=totals.mean_loss(),
            metrics=self._metrics.results(totals.metrics),
            scalars=totals.mean_scalars(),
            tensors={n: fetched[n] for n in self._tensors if n in fetched},
            summaries={n: s.of(fetched[n]) for n, s in self._summaries.items() if n in fetched},
            input_seconds=steps.input_seconds,
            losses=steps.losses if self._has_losses else (),
        )

    @contextlib.contextmanager
    def reported(self, run: RunContext, *, clears: bool = True) -> Iterator[None]:
        """Makes `run.report` the report of these steps in the block.

        Args:
          run: the run that is passed to a hook in the block.
          clears: whether the next report begins after the block.
        """
        run.read_report = functools.cache(lambda: self.report(run.step))
        yield
        if clears:
            self.clear()
