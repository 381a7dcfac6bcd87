# SPDX-License-Identifier: Apache-2.0
"""Sends the numbers of a training to metric writers."""

import copy
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from ..contract.hooks import Hook, MetricWriter, RunContext
from ..contract.run_config import RunConfig
from .events import by_element
from .summary_hook import values_of

# Calls that wait for a remote writer; more points are dropped.
MAX_WAITING = 1000
# Seconds for which the end of a training waits for remote writers.
END_SECS = 5.0


class MetricWritersHook(Hook):
    """Calls the writers after some steps, and after each evaluation, in the process that leads."""

    def __init__(
        self, config: RunConfig, writers: Sequence[MetricWriter], hparams: Mapping[str, Any]
    ) -> None:
        """Takes a RunConfig, the writers, and the hyperparameters by name."""
        self.every_steps = config.save_summary_steps or None
        self._writers = writers
        self._hparams = hparams
        # An evaluator job calls the writers for its evaluations.
        self._writes_evaluations = not config.has_evaluator or config.task_type == "evaluator"
        self._calls: list[_Calls] = []

    def begin(self, run: RunContext) -> None:
        """Begins the writers."""
        if run.is_chief:
            self._calls = [(_InThread if w.is_remote else _Calls)(w) for w in self._writers]
            for calls in self._calls:
                calls.call("begin", copy.copy(run), self._hparams)

    def after_step(self, run: RunContext) -> None:
        """Writes the results of the steps."""
        if self._calls and run.report.num_steps:
            self._write(run.step, values_of(run.report), "train")

    def after_evaluation(self, run: RunContext, name: str, metrics: Mapping[str, Any]) -> None:
        """Writes the results of an evaluation."""
        if self._writes_evaluations:
            values = {key: value for key, value in metrics.items() if key != "global_step"}
            self._write(metrics["global_step"], values, f"eval_{name}" if name else "eval")

    def end(self, run: RunContext) -> None:
        """Writes the results of the rest of the steps."""
        self.after_step(run)

    def close(self) -> None:
        """Ends the writers; called at the end of each training, also after an error."""
        calls, self._calls = self._calls, []
        for each in calls:
            each.call("end")
        deadline = time.monotonic() + END_SECS
        for each in calls:
            each.wait(deadline)

    def _write(self, step: int, values: Mapping[str, Any], name: str) -> None:
        for calls in self._calls:
            calls.call("write", step, by_element(values), name)


class _Calls:
    """Calls a writer; logs its first error."""

    def __init__(self, writer: MetricWriter) -> None:
        self._writer, self._name = writer, type(writer).__name__
        self._has_failed = self._is_closed = False
        self._num_dropped = 0

    def call(self, method: str, *args: Any) -> None:
        """Calls a method, unless the writer could not begin."""
        if self._is_closed:
            self._num_dropped += method == "write"
            return
        try:
            getattr(self._writer, method)(*args)
        except Exception as error:  # Training is worth more than any of its curves.
            self._is_closed = method == "begin"
            self._num_dropped += method == "write"
            if not self._has_failed:
                logging.warning(
                    "%s.%s failed: %s: %s. Training continues; further errors of it are not "
                    "logged.",
                    self._name,
                    method,
                    type(error).__name__,
                    error,
                )
            self._has_failed = True

    def wait(self, deadline: float) -> None:
        """Waits for the calls before, and logs how many points were dropped."""
        if self._num_dropped:
            logging.warning("%s: %d points were dropped.", self._name, self._num_dropped)


class _InThread(_Calls):
    """Calls a writer in a thread, so that a server that does not answer stops nothing."""

    def __init__(self, writer: MetricWriter) -> None:
        super().__init__(writer)
        self._queue: queue.Queue[tuple[Any, ...]] = queue.Queue()
        self._current = ""  # Method that is being called.
        self._is_abandoned = False
        name = f"metrics-{self._name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, method: str, *args: Any) -> None:
        """Puts a call into the queue; drops a point if too many calls wait."""
        if method == "write" and self._queue.qsize() >= MAX_WAITING:
            self._num_dropped += 1
        else:
            self._queue.put((method, *args))

    def wait(self, deadline: float) -> None:
        """Waits for the calls before, or abandons the writer."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._is_abandoned = True
            self._writer.abandon()
            left = [self._current, *(method for method, *_ in list(self._queue.queue))]
            self._num_dropped += left.count("write")
            logging.warning("%s.%s has not returned in time.", self._name, self._current)
        super().wait(deadline)

    def _run(self) -> None:
        while self._current != "end" and not self._is_abandoned:
            self._current, *args = self._queue.get()
            super().call(self._current, *args)
