"""Refuses values of a batch: all that may be wrong is looked at in one branch."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

_MOST_SHOWN = 80


@dataclasses.dataclass(frozen=True)
class _Check:
    feature: str
    bad: tf.Tensor
    values: tf.Tensor
    what: str

    def message(self) -> tf.Tensor:
        """Returns what to say of the first bad value; '' where there is none."""

        def first() -> tf.Tensor:
            value = self.values[tf.argmax(self.bad)]
            if value.dtype != tf.string:
                value = tf.strings.as_string(value)
            shown = tf.strings.substr(value, 0, _MOST_SHOWN)
            # TensorFlow would escape quotation marks.
            feature = f"feature {self.feature!r}".replace("'", "")
            return tf.strings.join([feature, " is ", shown, ", ", self.what, " "])

        return tf.cond(tf.reduce_any(self.bad), first, lambda: tf.constant(""))


class Refusals:
    """Gathers what is wrong with a batch, and fails once, naming the first of each."""

    def __init__(self) -> None:
        self._checks: list[_Check] = []

    def add(self, feature: str, bad: tf.Tensor, values: tf.Tensor, what: str) -> None:
        """Has values of a feature looked at.

        Args:
          feature: name of the feature.
          bad: bool `[n]`, which values are refused.
          values: `[n]`.
          what: why, and what to write.
        """
        self._checks.append(_Check(feature, bad, values, what))

    def checked(self, encoded: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a batch whose computation fails where a value is refused.

        Args:
          encoded: tensors by the feature's name.
        """
        if not self._checks:
            return dict(encoded)

        def fail() -> tf.Tensor:
            message = tf.strings.join([check.message() for check in self._checks])
            with tf.control_dependencies([tf.debugging.Assert(False, [message])]):
                return tf.constant(False)

        is_bad = [tf.reduce_any(check.bad) for check in self._checks]
        is_good = tf.cond(
            tf.reduce_any(tf.stack(is_bad)), fail, lambda: tf.constant(True)
        )
        with tf.control_dependencies([is_good]):
            return {
                name: tf.nest.map_structure(tf.identity, value, expand_composites=True)
                for name, value in encoded.items()
            }
