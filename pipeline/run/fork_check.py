# SPDX-License-Identifier: Apache-2.0
"""Refuses TensorFlow's work in a process that was forked after it had begun."""

import os

from ..errors import UserRuntimeError

_process: int | None = None


def check() -> None:
    """Remembers the process of the first call.

    Raises:
      UserRuntimeError: this process was forked from it.
    """
    global _process
    if _process not in (None, os.getpid()):
        raise UserRuntimeError(
            f"an Estimator was used in process {_process}, from which this one was forked: "
            "expected a new process, since TensorFlow's threads are not copied, and it would wait "
            "for them without end. Set multiprocessing.set_start_method('spawn')."
        )
    _process = os.getpid()
