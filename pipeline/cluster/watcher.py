"""Starts a process that watches this one, and can end it whatever it does.

TensorFlow may hold Python's lock for as long as it waits for another task. No thread
and no handler of a signal runs here meanwhile. So another process ends such a wait. It
imports neither TensorFlow nor any other package that is installed, and starts fast.

    process = watcher.start(__name__, {"tasks": tasks}, code=75)

calls this module's `main` there:

    def main():
        settings = watcher.settings()
        watcher.Parent(settings).end("ps 0 is lost.")
"""

import contextlib
import ctypes
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from pipeline.process.refusals import RefusedRuntimeError

# Imports a module of this package without the package's __init__, which imports what is
# not installed for that process.
_BOOT = """
import importlib, os, sys, types
module, folder = sys.argv[1:3]
name = module.partition(".")[0]
package = sys.modules[name] = types.ModuleType(name)
package.__path__ = [folder]
main = importlib.import_module(module).main
os.write(1, sys.argv[3].encode())
main()
"""
# The other process writes it when it has all that it needs.
_READY = b"."
# A terminal's Ctrl-C and a scheduler's SIGTERM are for the process that is watched.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Time in which a process ends that was told to.
_END_SECS = 2.0
# glibc's `struct aiocb`, see `_exit_when_readable`; its size is less than these bytes.
_AIO_STRUCT = "@iiiPNqiiPP"
_AIO_BYTES = 512
# SIGEV_THREAD: the end of a read calls a function, in a thread of its own.
_CALLS_A_FUNCTION = 2
# Buffers that threads of the C library may use until this process is gone.
_kept: list[object] = []


def start(
    module: str,
    settings: Mapping[str, Any],
    *,
    code: int,
    links: Sequence[int] = (),
) -> subprocess.Popen:
    """Starts a process that watches this one.

    It inherits no open files of this process but `links`. It has to end where its stdin
    ends, for this process has ended then.

    Args:
      module: full name of the module whose `main` is called there. It imports only
        modules of this package, and Python's own.
      settings: values that `settings()` returns there; JSON can hold them.
      code: exit code of this process where the other one ends it.
      links: numbers of open files that the process inherits.

    Returns:
      The process, with unbuffered pipes for its stdin and stdout.

    Raises:
      RefusedRuntimeError: the process cannot run; nobody would watch, and say nothing.
    """
    end, trigger = os.pipe()
    # Kept open: the read that waits for a byte would take its end for the byte.
    _kept.append(trigger)
    settings = {**settings, "parent": os.getpid(), "trigger": trigger}
    command = [sys.executable, "-I", "-S", "-c", _BOOT, module, _folder()]
    # Blocked signals are inherited, so that none comes before Python is ready there.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        process = subprocess.Popen(
            [*command, _READY.decode(), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            pass_fds=[trigger, *links],
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if process.stdout.read(len(_READY)) != _READY:
        process.communicate()
        raise RefusedRuntimeError(
            f"{sys.executable} cannot run {module}, which watches the other tasks: its "
            "error stands above. Write the path of a whole Python installation before "
            "the command."
        )
    _exit_when_readable(end, code)
    return process


def settings() -> dict[str, Any]:
    """Returns the settings; called in the process that watches."""
    return json.loads(sys.argv[-1])


class Parent:
    """The process that is watched, seen by the process that watches it."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Finds the watched process in the settings.

        Args:
          settings: settings of the process that watches.
        """
        self._number = settings["parent"]
        self._trigger = settings["trigger"]

    @property
    def is_gone(self) -> bool:
        """Whether the process has ended: its children get another parent then."""
        return os.getppid() != self._number

    @property
    def is_stopped(self) -> bool:
        """Whether the process is stopped by a signal; False without /proc."""
        try:
            with open(f"/proc/{self._number}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] in "Tt"
        except (OSError, IndexError):
            return False

    def end(self, text: str) -> NoReturn:
        """Ends the process, and then this one.

        The process exits with its code where the C library can do that, see
        `_exit_when_readable`; else it gets SIGKILL.

        Args:
          text: reason, which is written to stderr.
        """
        with contextlib.suppress(OSError):
            os.write(2, f"error: {text}\n".encode())
        with contextlib.suppress(OSError):
            os.write(self._trigger, b"x")
            # A process that is stopped exits as soon as it goes on.
            os.kill(self._number, signal.SIGCONT)
        time.sleep(_END_SECS)
        if not self.is_gone:
            os.kill(self._number, signal.SIGKILL)
        os._exit(0)


def _folder() -> str:
    """Returns the folder of the whole package, in which this wing lies."""
    (folder,) = sys.modules[__name__.partition(".")[0]].__path__
    return os.path.abspath(folder)


def _exit_when_readable(end: int, code: int) -> None:
    """Has this process exit when the pipe's `end` gets a byte.

    This works whatever holds Python's lock: the C library reads in a thread of its own,
    and then calls a function of C with a number, here `_exit` with `code`. Where the C
    library cannot, `Parent.end` kills the process.

    Args:
      end: number of the open file to read from.
      code: exit code.
    """
    try:
        library = ctypes.CDLL("librt.so.1", use_errno=True)
        leave = ctypes.cast(library._exit, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return
    byte = ctypes.create_string_buffer(1)
    request = ctypes.create_string_buffer(_AIO_BYTES)
    # `struct aiocb`: the file, two numbers, buffer and size, then `struct sigevent`.
    fields = end, 0, 0, ctypes.addressof(byte), 1, code, 0, _CALLS_A_FUNCTION, leave, 0
    struct.pack_into(_AIO_STRUCT, request, 0, *fields)
    _kept.extend([byte, request])
    library.aio_read(request)
