# SPDX-License-Identifier: Apache-2.0
"""Writes event files for TensorBoard.

TensorFlow's own writer of scalars needs the tensorboard package, which TensorFlow 2.21 does not
install. An event file is a TFRecord file of `Event` protocol buffers.
"""

import os
import socket
import tempfile
import time
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from ..contract.summaries import Summary
from ..model_dir import storage_watchdog
from .drawing import num_left_out


class EventWriter:
    """Appends points to one event file in a folder; the first point creates the file."""

    def __init__(self, folder: str) -> None:
        """Sets the folder, which TensorBoard shows as a run."""
        self._folder = folder
        self._file: tf.io.TFRecordWriter | None = None
        self._path = self._file_name = ""
        self._local: tempfile.TemporaryDirectory | None = None
        self._warned: set[str] = set()

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Writes one point for each number, and for each element of an array as `name/0`.

        Points of a local folder are on disk when the method returns. A file that was deleted is
        replaced.
        """
        summary = tf.compat.v1.Summary()
        for name, value in by_element(values).items():
            summary.value.add(tag=name, simple_value=value)
        self._write(step, summary)

    def write_summaries(self, step: int, summaries: Mapping[str, Summary]) -> None:
        """Writes pictures, texts and curves; warns once of values that they leave out."""
        event = tf.compat.v1.Summary()
        for name, summary in summaries.items():
            event.value.extend(summary.draw(name, summary.tensors))
            number = num_left_out(summary.tensors)
            if number and name not in self._warned:
                self._warned.add(name)
                logging.warning(
                    "summary %r leaves out %d values of step %d that are not finite or out of "
                    "range: expected probabilities from 0 to 1, and class numbers below "
                    "num_classes.",
                    name,
                    number,
                    step,
                )
        self._write(step, event)

    def write_text(self, step: int, name: str, text: str) -> None:
        """Writes Markdown."""
        summary = tf.compat.v1.Summary()
        value = summary.value.add(tag=name, tensor=tf.make_tensor_proto(text))
        value.metadata.plugin_data.plugin_name = "text"
        self._write(step, summary)

    def write_summary(self, step: int, summary: Any) -> None:
        """Writes a Summary protocol buffer, of TensorFlow or TensorBoard."""
        self._write(step, tf.compat.v1.Summary.FromString(summary.SerializeToString()))

    def _write(self, step: int, summary: tf.compat.v1.Summary) -> None:
        if summary.value:
            event = tf.compat.v1.Event(wall_time=time.time(), step=step, summary=summary)
            storage_watchdog.call(self._folder, self._append, event)
            storage_watchdog.call(self._folder, self._flush)

    def _append(self, event: tf.compat.v1.Event) -> None:
        if self._file is None or not tf.io.gfile.exists(self._path):
            self._open()
        self._file.write(event.SerializeToString())

    def _flush(self) -> None:
        self._file.flush()
        if self._local is not None:
            tf.io.gfile.copy(self._file_name, self._path, overwrite=True)

    def _open(self) -> None:
        tf.io.gfile.makedirs(self._folder)
        # TensorBoard reads files in the order of their names.
        now = f"{time.time_ns():019d}"
        unique = f"{now[:-9]}.{now[-9:]}.{socket.gethostname()}.{uuid.uuid4().hex[:8]}"
        self._path = os.path.join(self._folder, f"events.out.tfevents.{unique}")
        self._file_name = self._path
        if "://" in self._folder:
            # In a bucket, TensorFlow would hold Python's lock while it flushes.
            self._local = tempfile.TemporaryDirectory(prefix="events-")
            self._file_name = os.path.join(self._local.name, "events")
        self._file = tf.io.TFRecordWriter(self._file_name)
        version = tf.compat.v1.Event(wall_time=time.time(), file_version="brain.Event:2")
        self._file.write(version.SerializeToString())  # The first record has to be this one.


def by_element(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns floats by name; the elements of an array are `name/0`, `name/1`."""
    result: dict[str, float] = {}
    for name, value in values.items():
        elements = np.ravel(value).tolist()
        if np.ndim(value) == 0:
            result[name] = float(elements[0])
        else:
            result.update({f"{name}/{i}": float(each) for i, each in enumerate(elements)})
    return result
