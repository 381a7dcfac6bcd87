# SPDX-License-Identifier: Apache-2.0
"""Trains on while a model_dir such as `gs://bucket/run` cannot be reached, for some time.

TensorFlow repeats a failed operation for about 200 s, which nothing interrupts, and then raises an
error. So, for a path that is not on a local disk, and while a training runs there:

    one thread makes the writes of the training, in order, each again until it succeeds
    one thread asks every five seconds whether the claim exists: a long upload is not an outage
    one thread counts seconds without answer: it logs an outage, and ends the process after
    `max_secs`, or soon after a signal, with exit code 75

The training waits only where it calls `result` or `wait`: before the next checkpoint, and at its
end. For a local path, and where no training runs, `call` calls at once.
"""

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import tensorflow as tf
from absl import logging

from ..errors import EXIT_RESTART
from ..run import signals
from ..run.run import exit_now

# Errors that TensorFlow raises after it has repeated an operation.
OUTAGE = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError)

_ASK_SECS = 5.0
_LOG_SECS = 30
# Seconds after a signal, and of them without answer, that end a training; a spot VM has 30.
_SIGNAL_SECS, _SILENT_SECS = 18, 7


def is_outage(error: Exception) -> bool:
    """Returns whether an operation failed since the storage did not answer."""
    # TensorFlow's readers and writers of checkpoints raise errors of other types.
    return isinstance(error, OUTAGE) or "retry attempts failed" in str(error)


class _Storage:
    """The threads of one training."""

    def __init__(
        self, directory: str, asked: str, max_secs: float, newest: Callable[[], str | None]
    ) -> None:
        self._directory, self._asked = directory, asked
        self._max_secs, self._newest = max_secs, newest
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._error: Exception | None = None
        # Times of the question, and of the call, that have no answer yet.
        self._since: dict[str, float] = {}
        self._closed = threading.Event()
        targets = (self._make_calls, self._ask, self._count)
        self._threads = [threading.Thread(target=target, daemon=True) for target in targets]
        for thread in self._threads:
            thread.start()

    def call(self, function: Callable[[], Any]) -> Future:
        if self._error is not None:
            raise self._error
        future: Future = Future()
        self._calls.put((future, function))
        return future

    @property
    def is_silent(self) -> bool:
        """Whether a question or a call has no answer yet."""
        return bool(self._since)

    def close(self) -> None:
        """Waits for all calls, and ends the threads."""
        self._calls.put(None)
        self._threads[0].join()
        self._closed.set()

    def _make_calls(self) -> None:
        while (item := self._calls.get()) is not None:
            future, function = item
            if self._error is not None:  # Such as a lost claim: no more is written.
                future.set_exception(self._error)
                continue
            try:
                future.set_result(self._until_answered(function))
            except Exception as error:
                self._error = error
                future.set_exception(error)

    def _until_answered(self, function: Callable[[], Any]) -> Any:
        began = time.time()
        while True:
            try:
                result = function()
            except Exception as error:
                if not is_outage(error):
                    raise
                self._since["call"] = began
                time.sleep(1.0)
            else:
                self._since.pop("call", None)
                return result

    def _ask(self) -> None:
        while not self._closed.wait(_ASK_SECS):
            self._since.setdefault("question", time.time())
            with contextlib.suppress(tf.errors.OpError):
                tf.io.gfile.exists(self._asked)
                del self._since["question"]

    def _count(self) -> None:
        """Counts seconds, of which those do not count for which this process is stopped."""
        since, silent, signaled, has_logged = None, 0, 0, False
        while not self._closed.wait(1.0):
            before, since = since, min(list(self._since.values()), default=None)
            silent = silent + 1 if since is not None and since == before else 0
            signaled += signaled > 0 or signals.is_pending()
            if silent > self._max_secs:
                self.end(f"RunConfig.max_unreachable_secs is {self._max_secs:g}")
            if signaled > _SIGNAL_SECS and silent > _SILENT_SECS:
                self.end("Training was stopped by a signal")
            if silent > _LOG_SECS and not has_logged:
                left = f"training continues for {self._max_secs:g} s at most"
                logging.warning("train | %s: %s", self._outage(), left)
            elif has_logged and since is None:
                logging.info("train | %s answers again", self._directory)
            has_logged = silent > _LOG_SECS or (has_logged and since is not None)

    def end(self, reason: str) -> None:
        """Ends the process."""
        newest = self._newest()
        place = f" from {newest}" if newest else ""
        text = "%s, and %s. The same command continues%s."
        logging.error(text, reason, self._outage(), place)
        exit_now(EXIT_RESTART)

    def _outage(self) -> str:
        began = time.localtime(min(list(self._since.values()), default=time.time()))
        return f"{self._directory} has not answered since {time.strftime('%H:%M:%S', began)}"


_storages: dict[str, _Storage] = {}


@contextlib.contextmanager
def watched(
    directory: str, asked: str, *, max_secs: float, newest: Callable[[], str | None]
) -> Iterator[None]:
    """Starts the threads for the block, unless the directory is a local one.

    Args:
      directory: the model_dir.
      asked: path of a file there.
      max_secs: seconds without answer after which the process ends.
      newest: returns the path prefix of the newest complete checkpoint.
    """
    if "://" not in directory:
        yield
        return
    storage = _storages[directory] = _Storage(directory, asked, max_secs, newest)
    try:
        yield
    except OUTAGE:
        if storage.is_silent:
            storage.end("An operation failed")
        raise  # Another task of a cluster was lost.
    finally:
        storage.close()
        del _storages[directory]


def is_watched(path: str) -> bool:
    """Returns whether `call` returns before a write to this path."""
    return _of(path) is not None


def call(path: str, function: Callable[..., Any], *args: Any) -> Future:
    """Calls a function that writes to a path; in the thread of `watched` if there is one.

    Returns:
      The result, now or later.

    Raises:
      Exception: the function, or an earlier one in that thread, raised it.
    """
    storage, function = _of(path), functools.partial(function, *args)
    if storage is not None:
        return storage.call(function)
    future: Future = Future()
    future.set_result(function())
    return future


def wait(path: str) -> None:
    """Waits for all calls for a model_dir."""
    call(path, lambda: None).result()


def _of(path: str) -> _Storage | None:
    return next((s for folder, s in _storages.items() if f"{path}/".startswith(f"{folder}/")), None)
