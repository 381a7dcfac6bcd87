# SPDX-License-Identifier: Apache-2.0
"""Logs which tasks of a cluster are there, and since when a step is waited for."""

import threading
import time
from collections.abc import Mapping

from absl import logging

from ..cluster.stuck_tasks import Answer, ask
from ..contract.hooks import Hook, RunContext
from ..run.durations import clock

_ASK_SECS = 60.0
_QUIET_SECS = 600.0  # Between two lines if steps are made and all tasks run.
_WORDS = {Answer.RUNS: "answers", Answer.ENDED: "is away", Answer.SILENT: "is silent"}


class ClusterHook(Hook):
    """Asks the other tasks each minute, in a thread: the main thread may wait for them."""

    def __init__(self, others: Mapping[str, str]) -> None:
        """Takes the addresses of the other tasks, by name."""
        self._others = others
        self._answers: dict[str, tuple[Answer, float]] = {}  # The last answers, and since when.
        self._closed = threading.Event()
        self._stepped_at = time.monotonic()

    def begin(self, run: RunContext) -> None:
        """Starts a thread; a training that returned to a checkpoint has ended the last one."""
        self._stepped_at, self._closed = time.monotonic(), threading.Event()
        args = run, self._closed
        threading.Thread(target=self._watch, args=args, daemon=True).start()

    def after_loop(self, run: RunContext) -> None:
        """Notes that steps were made."""
        self._stepped_at = time.monotonic()

    def close(self) -> None:
        """Ends the thread."""
        self._closed.set()

    def _watch(self, run: RunContext, closed: threading.Event) -> None:
        logged_at = time.monotonic()
        while not closed.wait(_ASK_SECS):
            changed = self._ask()
            now = time.monotonic()
            secs = now - self._stepped_at
            waits = secs >= _ASK_SECS or any(
                a is not Answer.RUNS for a, _ in self._answers.values()
            )
            if waits or changed or now - logged_at >= _QUIET_SECS:
                logged_at = now
                tasks = ", ".join(
                    f"{name} {_WORDS[answer]} for {clock(now - since)}"
                    for name, (answer, since) in self._answers.items()
                )
                logging.info("cluster | step %d, %s ago | %s", run.step, clock(secs), tasks)

    def _ask(self) -> bool:
        """Asks all tasks; returns whether one answers otherwise than before."""
        changed = False
        for name, address in self._others.items():
            answer, (before, _) = ask(address), self._answers.get(name, (None, 0.0))
            if answer is not before:
                self._answers[name] = answer, time.monotonic()
                changed = changed or before is not None
        return changed
