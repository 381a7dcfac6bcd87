"""Refuses what two threads cannot do with one object at the same time."""

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from pipeline.process.refusals import RefusedRuntimeError

_Method = TypeVar("_Method", bound=Callable[..., Any])


def one_at_a_time(method: _Method) -> _Method:
    """Decorates a method of an Estimator, which one thread at a time may call.

    It would load a checkpoint into variables that another thread trains. A method may
    call others of its Estimator, as hooks do.
    """

    @functools.wraps(method)
    def alone(self: Any, *args: Any, **kwargs: Any) -> Any:
        lock = vars(self).setdefault("_in_use", threading.RLock())
        if not lock.acquire(blocking=False):
            raise RefusedRuntimeError(
                f"{method.__name__} was called while another thread uses this "
                "Estimator, whose variables both would set. Give each thread an "
                "Estimator of its own: one of the same model_dir reads its checkpoints."
            )
        try:
            return method(self, *args, **kwargs)
        finally:
            lock.release()

    return alone
