"""The log of a command: absl's, on stderr, with TensorFlow's chatter left out."""

import logging as python_logging
import os

import tensorflow as tf
from absl import flags, logging


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
