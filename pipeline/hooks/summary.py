"""Writes scalars, text and other summaries for TensorBoard, as event files.

An event file is a TFRecord file of `Event` protocol buffers. A point that is written
directly costs some 20 microseconds; `tf.summary` takes 400 a write, and needs the
tensorboard package, which TensorFlow 2.21 no longer installs.
"""

import os
import socket
import time
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from pipeline.contract.summaries import Seen
from pipeline.hooks import summary_values


class Writer:
    """Appends to one directory's event file, which the first value creates."""

    def __init__(self, logdir: str) -> None:
        """Takes a directory; the first value creates the file.

        Args:
          logdir: directory of the file. TensorBoard shows each directory as a run, and
            the same tag of several runs in one chart.
        """
        self._logdir = logdir
        self._file: tf.io.TFRecordWriter | None = None
        self._path = ""
        self._remarked: set[str] = set()

    @property
    def is_gone(self) -> bool:
        """Whether somebody has deleted the file, so that later points would be lost."""
        return self._file is not None and not tf.io.gfile.exists(self._path)

    def scalars(self, step: int, values: Mapping[str, Any]) -> None:
        """Writes one point for each value, and one for each element of an array.

        Args:
          step: global step of the points.
          values: floats or arrays by tag.
        """
        proto = tf.compat.v1.Summary()
        for tag, value in by_element(values).items():
            proto.value.add(tag=tag, simple_value=value)
        self._write(step, proto)

    def summaries(self, step: int, seen: Mapping[str, Seen]) -> None:
        """Writes pictures, histograms, curves; says once what is wrong with them.

        Args:
          step: global step of the summaries.
          seen: summaries by tag.
        """
        proto = tf.compat.v1.Summary()
        for tag, each in seen.items():
            proto.value.extend(summary_values.values(tag, each))
            remark = summary_values.remark(tag, each)
            if remark and tag not in self._remarked:
                self._remarked.add(tag)
                logging.warning("summary at step %d: %s", step, remark)
        if proto.value:
            self._write(step, proto)

    def text(self, step: int, tag: str, text: str) -> None:
        """Writes a text for TensorBoard's Text tab.

        Args:
          step: global step of the text.
          tag: name of the text.
          text: the text, in Markdown.
        """
        proto = tf.compat.v1.Summary()
        value = proto.value.add(tag=tag)
        value.tensor.CopyFrom(tf.make_tensor_proto([text.encode()]))
        value.metadata.plugin_data.plugin_name = "text"
        self._write(step, proto)

    def plugin(self, step: int, tag: str, name: str, content: bytes) -> None:
        """Writes what a plugin of TensorBoard reads, and nobody else.

        Args:
          step: global step.
          tag: tag under which the plugin looks for it.
          name: name of the plugin.
          content: the plugin's own protocol buffer, as bytes.
        """
        proto = tf.compat.v1.Summary()
        value = proto.value.add(tag=tag)
        # TensorBoard passes over a value without a tensor.
        value.tensor.CopyFrom(tf.make_tensor_proto(0.0))
        value.metadata.plugin_data.plugin_name = name
        value.metadata.plugin_data.content = content
        self._write(step, proto)

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, step: int, proto: Any) -> None:
        if self._file is None:
            self._file, self._path = _new_event_file(self._logdir)
        event = tf.compat.v1.Event(wall_time=time.time(), step=step, summary=proto)
        self._file.write(event.SerializeToString())
        # TensorBoard reads along, and a killed run keeps its points.
        self._file.flush()


class Writers(dict[str, Writer]):
    """Writers by directory, so that many evaluations share an event file.

    Another file is begun where a file was deleted, maybe with its model_dir.
    """

    def __getitem__(self, logdir: str) -> Writer:
        writer = super().__getitem__(logdir)
        if writer.is_gone:
            writer = self[logdir] = Writer(logdir)
        return writer

    def __missing__(self, logdir: str) -> Writer:
        return self.setdefault(logdir, Writer(logdir))


def by_element(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns floats by tag; an array's elements are `tag/0`, `tag/1`.

    Args:
      values: numbers or arrays by tag.
    """
    found = {}
    for tag, value in values.items():
        if np.ndim(value) == 0:
            found[tag] = float(value)
            continue
        for index, item in enumerate(np.ravel(value)):
            found[f"{tag}/{index}"] = float(item)
    return found


def _new_event_file(logdir: str) -> tuple[tf.io.TFRecordWriter, str]:
    """Opens a file under a name that TensorBoard looks for and nobody else uses."""
    tf.io.gfile.makedirs(logdir)
    # TensorBoard reads files in the order of their names: two files of one second need
    # the nanoseconds.
    secs, nanos = divmod(time.time_ns(), 10**9)
    unique = f"{secs}.{socket.gethostname()}.{nanos:09d}.{uuid.uuid4().hex[:8]}"
    path = os.path.join(logdir, f"events.out.tfevents.{unique}")
    file = tf.io.TFRecordWriter(path)
    # TensorBoard takes the first record for the version of the format.
    version = tf.compat.v1.Event(wall_time=time.time(), file_version="brain.Event:2")
    file.write(version.SerializeToString())
    return file, path
