"""Scalars and text for TensorBoard, as event files.

Events go through `tf.summary`'s own writer as ready-made protocol buffers: all values
of a step in one write, and without the tensorboard package, which TensorFlow 2.21 no
longer installs and `tf.summary.scalar` needs.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf


class Writer:
    """Appends to one directory's event file, which the first value creates."""

    def __init__(self, logdir: str) -> None:
        """
        Args:
          logdir: a run of its own in TensorBoard; the same tag in several runs shares
            one chart.
        """
        self._logdir = logdir
        self._writer: Any = None

    def scalars(self, step: int, values: Mapping[str, Any]) -> None:
        """Writes one point for each value; arrays as one point an element.

        Args:
          step: global step.
          values: float or array by tag.
        """
        proto = tf.compat.v1.Summary()
        for tag, value in values.items():
            if np.ndim(value) == 0:
                proto.value.add(tag=tag, simple_value=float(value))
                continue
            for index, item in enumerate(np.ravel(value)):
                proto.value.add(tag=f"{tag}/{index}", simple_value=float(item))
        self._write(step, proto)

    def text(self, step: int, tag: str, text: str) -> None:
        """Writes `text`, in Markdown, under TensorBoard's Text tab."""
        proto = tf.compat.v1.Summary()
        value = proto.value.add(tag=tag)
        value.tensor.CopyFrom(tf.make_tensor_proto([text.encode()]))
        value.metadata.plugin_data.plugin_name = "text"
        self._write(step, proto)

    def close(self) -> None:
        """Writes out what is buffered."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write(self, step: int, proto: Any) -> None:
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(self._logdir)
        with self._writer.as_default():
            tf.summary.experimental.write_raw_pb(proto.SerializeToString(), step)


def formatted(values: Mapping[str, Any]) -> list[str]:
    """`["loss 0.312", "accuracy 0.91"]`; arrays with their mean."""
    return [
        f"{name} {float(value):.4g}"
        if np.ndim(value) == 0
        else f"{name} (mean) {float(np.mean(value)):.4g}"
        for name, value in values.items()
    ]
