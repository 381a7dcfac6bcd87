"""absl's log without TensorFlow's chatter: a command's, and that of plain Python."""

import contextlib
import functools
import logging as python_logging
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import tensorflow as tf
from absl import flags, logging

_Method = TypeVar("_Method", bound=Callable[..., Any])


def set_up(*, debug: bool) -> None:
    """Logs to stderr from INFO on.

    Args:
      debug: from DEBUG on, TensorFlow's own notes included.
    """
    # Ours are apart; absl's own keep their defaults, and it warns until told so.
    flags.FLAGS.mark_as_parsed()
    logging.use_absl_handler()
    logging.set_stderrthreshold("debug" if debug else "info")
    logging.set_verbosity(logging.DEBUG if debug else logging.INFO)
    handler = logging.get_absl_handler()
    handler.removeFilter(is_wanted)
    if not debug:
        handler.addFilter(is_wanted)
        tf.get_logger().setLevel("WARNING")


def is_wanted(record: python_logging.LogRecord) -> bool:
    """False for what TensorFlow notes on how it saves."""
    chatter = record.pathname.startswith(os.path.dirname(tf.__file__))
    return record.levelno > python_logging.INFO or not chatter


@contextlib.contextmanager
def shown(wanted: bool) -> Iterator[None]:
    """Lets INFO through inside, where the program left the log as it found it.

    A program that has set a level, of absl's logger or of Python's root logger, has
    said what it wants to see, and gets that.

    Args:
      wanted: whether to do so.
    """
    log, root = logging.get_absl_logger(), python_logging.getLogger()
    untouched = log.level == python_logging.NOTSET
    untouched = untouched and root.level == python_logging.WARNING
    if not (wanted and untouched):
        yield
        return
    log.setLevel(python_logging.INFO)
    log.addFilter(is_wanted)
    try:
        yield
    finally:
        log.removeFilter(is_wanted)
        log.setLevel(python_logging.NOTSET)


def shows(method: _Method) -> _Method:
    """Decorates a method of an object that has a `config`, see `shown`."""

    @functools.wraps(method)
    def showing(self: Any, *args: Any, **kwargs: Any) -> Any:
        with shown(self.config.progress):
            return method(self, *args, **kwargs)

    return showing
