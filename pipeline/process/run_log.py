"""Logs by absl, without TensorFlow's chatter, in a command and in a notebook.

Chatter is what TensorFlow says of itself on any machine: how it saves, that it uses
oneDNN, that a machine without a GPU has none. Its warnings and errors stay. All of it
stays where the environment variable TF_CPP_MIN_LOG_LEVEL asks for it by 0 or 1.

TensorFlow writes from Python, by its logger, and from C++, straight to stderr, before
it reads any setting. So there are a filter of the loggers, the environment variable,
and a filter process on stderr while TensorFlow is imported.
"""

import contextlib
import functools
import logging as python_logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from absl import flags, logging

from pipeline.process import import_hook

_Method = TypeVar("_Method", bound=Callable[..., Any])

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# The user's own setting, read before this module makes one.
_GIVEN = os.environ.get(_LEVEL)
_LOGGERS = ("absl", "tensorflow")
# A machine with NVIDIA's driver has one of these files.
_DRIVERS = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg")
_TRACED_ANEW = ("AsyncCheckpointHelper._copy_to_cpu", "MultiDeviceSaver.save.")
_ALWAYS = (
    r"^WARNING: All log messages before absl::InitializeLog\(\)",
    r"^I\d{4} .*(port|cpu_feature_guard)\.cc:\d+\]",
    r"^To enable the following instructions: ",
)
_WITHOUT_A_DRIVER = (
    r"^I\d{4} .*cudart_stub\.cc:\d+\]",
    r"^E\d{4} .* failed call to cuInit: ",
)
# The program of the filter. It is a process of its own, and no thread, so that the last
# words of this process come through when it aborts.
_FILTER = """
import re, sys
chatter = re.compile(sys.argv[1].encode())
for line in sys.stdin.buffer:
    if not chatter.search(line):
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
"""


def leave_out_chatter() -> None:
    """Leaves the chatter out of what TensorFlow writes, from its import on."""
    os.environ.setdefault(_LEVEL, "2")
    if not _is_unwanted():
        return
    for name in _LOGGERS:
        python_logging.getLogger(name).addFilter(is_wanted)
    import_hook.surround(("tensorflow",), _quiet_import)


def keep_chatter() -> None:
    """Lets TensorFlow write all that it does, unless the user's environment differs."""
    for name in _LOGGERS:
        python_logging.getLogger(name).removeFilter(is_wanted)
    os.environ[_LEVEL] = _GIVEN or "0"


def given(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment as the user set it, for another program of ours.

    Args:
      environ: environment of this process.
    """
    ours = {} if _GIVEN is None else {_LEVEL: _GIVEN}
    return {name: text for name, text in environ.items() if name != _LEVEL} | ours


def set_up(*, debug: bool) -> None:
    """Logs to stderr from INFO on.

    Args:
      debug: whether to log from DEBUG on, with TensorFlow's chatter.
    """
    # absl warns at each line until its own flags are parsed. The command parses its
    # flags apart from absl's, whose defaults stay.
    flags.FLAGS.mark_as_parsed()
    logging.use_absl_handler()
    # TensorFlow writes for itself where it is imported before any log is set up, and
    # each of its warnings would be there twice.
    own = python_logging.getLogger("tensorflow")
    for handler in list(own.handlers):
        if type(handler) is python_logging.StreamHandler:
            own.removeHandler(handler)
    logging.set_stderrthreshold("debug" if debug else "info")
    logging.set_verbosity(logging.DEBUG if debug else logging.INFO)
    if debug:
        keep_chatter()
    else:
        leave_out_chatter()


def is_wanted(record: python_logging.LogRecord) -> bool:
    """Whether a record of the log is none of TensorFlow's notes on how it saves."""
    if record.levelno > python_logging.INFO:
        # TensorFlow warns of a function that is traced again and again. Here each
        # Estimator has such a function of its own, traced once, to copy its values,
        # and TensorFlow makes one for each save beside parameter servers.
        text = record.getMessage()
        return not any(name in text for name in _TRACED_ANEW)
    return f"{os.sep}tensorflow{os.sep}python{os.sep}" not in record.pathname


def open_streams() -> None:
    """Opens stdin, stdout and stderr on the null device where they are closed.

    Otherwise the next file that is opened gets their number: text for stderr would go
    into a checkpoint.
    """
    # A new file gets the lowest free number.
    number = os.open(os.devnull, os.O_RDWR)
    while number <= 2:
        number = os.open(os.devnull, os.O_RDWR)
    os.close(number)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (for the process's life)


@contextlib.contextmanager
def shown(wanted: bool) -> Iterator[None]:
    """Lets INFO through in the block, where the program left the log as it found it.

    A program that has set a level, of absl's logger or of Python's root logger, has
    said what it wants to see, and gets that.

    Args:
      wanted: whether INFO is to be seen; False changes nothing.
    """
    log, root = logging.get_absl_logger(), python_logging.getLogger()
    untouched = log.level == python_logging.NOTSET
    untouched = untouched and root.level == python_logging.WARNING
    if not (wanted and untouched):
        yield
        return
    log.setLevel(python_logging.INFO)
    try:
        yield
    finally:
        log.setLevel(python_logging.NOTSET)


def shows(method: _Method) -> _Method:
    """Decorates a method of an object with a `config` to run in a block of `shown`."""

    @functools.wraps(method)
    def showing(self: Any, *args: Any, **kwargs: Any) -> Any:
        with shown(self.config.progress):
            return method(self, *args, **kwargs)

    return showing


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Leaves chatter out of all that is written to stderr in the block, by C++ too."""
    with contextlib.ExitStack() as stack:
        if _is_unwanted():
            # Where the filter cannot be started there is chatter, and nothing worse.
            with contextlib.suppress(OSError, ValueError):
                _start_filter(stack)
        yield


@contextlib.contextmanager
def _quiet_import() -> Iterator[None]:
    """Leaves chatter out of the import of TensorFlow, and of its look for GPUs.

    TensorFlow looks for them where it is first used, which a program of one's own may
    do before there is an Estimator. Where there may be one, the program may yet choose
    which of them it sees.
    """
    with quiet():
        yield
        if _is_unwanted() and not _has_driver():
            sys.modules["tensorflow"].config.list_physical_devices("GPU")


def _is_unwanted() -> bool:
    return os.environ.get(_LEVEL) not in ("0", "1")


def _has_driver() -> bool:
    return any(os.path.exists(path) for path in _DRIVERS)


def _start_filter(stack: contextlib.ExitStack) -> None:
    """Puts a filter process before stderr until `stack` is closed."""
    patterns = _ALWAYS if _has_driver() else (*_ALWAYS, *_WITHOUT_A_DRIVER)
    stderr = stack.enter_context(os.fdopen(os.dup(2), "wb", buffering=0))
    reader = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _FILTER, "|".join(patterns)],
        stdin=subprocess.PIPE,
        stdout=stderr,
        # A terminal's Ctrl-C is not for the filter, which ends with this process.
        process_group=0,
    )
    stack.callback(_await, reader)
    os.dup2(reader.stdin.fileno(), 2)
    reader.stdin.close()
    stack.callback(os.dup2, stderr.fileno(), 2)


def _await(reader: subprocess.Popen) -> None:
    """Waits until the filter has passed on all that it read, five seconds at most."""
    # Not forever: a process that was started in the block may hold the pipe open.
    with contextlib.suppress(subprocess.TimeoutExpired):
        reader.wait(timeout=5)
