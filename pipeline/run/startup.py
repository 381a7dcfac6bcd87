# SPDX-License-Identifier: Apache-2.0
"""Hides the lines that TensorFlow writes to stderr at its start on a machine without a GPU.

TensorFlow writes them in C++, and not all obey TF_CPP_MIN_LOG_LEVEL. grep reads file descriptor 2
in the meantime, so that no other line is lost, also if this process dies.
"""

import contextlib
import glob
import importlib.abc
import importlib.machinery
import os
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_SET_HERE = "GIN_ESTIMATOR_SET_LOG_LEVEL"  # Also in child processes, which inherit the level.
# Extended regular expressions.
_ALWAYS = (
    r"^WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR",
    r" cpu_feature_guard\.cc:[0-9]+] This TensorFlow binary is optimized",
    r"^To enable the following instructions: .* rebuild TensorFlow",
    r" port\.cc:[0-9]+] oneDNN custom operations are on",
    r" (cuda_[a-z]+|computation_placer)\.cc:[0-9]+] (Unable to register|computation placer al)",
    r"TF-TRT Warning: Could not find TensorRT",
)
# With a GPU, these lines say why TensorFlow does not use it.
_WITHOUT_GPU = (
    r" cudart_stub\.cc:[0-9]+] Could not find cuda drivers",
    r" cuda_[a-z]+\.cc:[0-9]+] failed call to cuInit",
)
_LAST_LINES_SECS = 2.0
_lock = threading.Lock()


def prepare() -> None:
    """Hides TensorFlow's INFO lines and those of its import, unless the user has set a level."""
    if _LEVEL not in os.environ:
        os.environ.update({_LEVEL: "1", _SET_HERE: "1"})
    if _is_set_here() and "tensorflow" not in sys.modules:
        sys.meta_path.insert(0, _QuietImport)


def _is_set_here() -> bool:
    """Returns whether the level is that of this project, set here or in a parent process."""
    return os.environ.get(_LEVEL) == os.environ.get(_SET_HERE)


class _QuietImport(importlib.abc.MetaPathFinder):
    """Makes the first import of TensorFlow quiet: by the program, by Keras or by the driver."""

    @staticmethod
    def find_spec(name: str, path: Any, target: Any = None) -> Any:
        """Returns the usual spec of TensorFlow, with a quiet loader; None for other modules."""
        if name != "tensorflow":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                with quiet():
                    execute(module)

            spec.loader.exec_module = exec_module
        return spec


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Drops known lines of TensorFlow from stderr in the block; passes on all others, in order.

    Does nothing if the user has set TF_CPP_MIN_LOG_LEVEL.
    """
    if not _is_set_here() or not _lock.acquire(blocking=False):
        yield
        return
    try:
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):  # stderr is closed, or there is no grep.
                _redirect(stack)
            yield
    finally:
        _lock.release()


def _redirect(stack: contextlib.ExitStack) -> None:
    """Sends file descriptor 2 through the filter until the stack is closed."""
    has_gpu = glob.glob("/dev/nvidia[0-9]*")
    known = "|".join(_ALWAYS if has_gpu else _ALWAYS + _WITHOUT_GPU)
    stderr = os.dup(2)
    stack.callback(os.close, stderr)
    # In a session of its own, Ctrl-C does not end it before it has written the last lines.
    process = subprocess.Popen(
        ["grep", "--line-buffered", "--text", "--invert-match", "--extended-regexp", "-e", known],
        env={**os.environ, "LC_ALL": "C"},
        stdin=subprocess.PIPE,
        stdout=stderr,
        stderr=stderr,
        start_new_session=True,
    )

    def restore() -> None:
        _flush()
        os.dup2(stderr, 2)
        process.stdin.close()
        # A process that was forked meanwhile may hold the pipe; the filter then waits for it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LAST_LINES_SECS)

    stack.callback(restore)
    _flush()
    os.dup2(process.stdin.fileno(), 2)


def _flush() -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
