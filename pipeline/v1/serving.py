# SPDX-License-Identifier: Apache-2.0
"""Serving input receivers of TensorFlow 1, and the placeholders that they are made of."""

import threading
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ..export import receivers

_local = threading.local()


class ServingInputReceiver:
    """`tf.estimator.export.ServingInputReceiver`."""

    def __init__(
        self, features: Any, receiver_tensors: Any, receiver_tensors_alternatives: Any = None
    ) -> None:
        self.features, self.receiver_tensors = features, receiver_tensors


TensorServingInputReceiver = ServingInputReceiver


def placeholder(dtype: Any, shape: Any = None, name: str | None = None) -> Any:
    """Replaces `tf.placeholder`, in functions that describe what a server sends."""
    sent = getattr(_local, "sent", None)
    if sent is not None:
        return next(sent)
    if tf.executing_eagerly():  # Outside of such a function: a description.
        with tf1.Graph().as_default():
            return tf1.placeholder(dtype, shape, name)
    made = tf1.placeholder(dtype, shape, name)
    getattr(_local, "placeholders", []).append(made)
    return made


def placeholder_with_default(input: Any, shape: Any, name: str | None = None) -> Any:
    """Replaces `tf.placeholder_with_default`."""
    sent = getattr(_local, "sent", None)
    if sent is not None:
        return next(sent)
    made = tf1.placeholder_with_default(input, shape, name)
    getattr(_local, "placeholders", []).append(made)
    return made


def receiver_fn(serving_fn: Any) -> Any:
    """Returns a function with the driver's ServingInputReceiver for one of the program."""
    if serving_fn is None:
        return None

    def make() -> receivers.ServingInputReceiver:
        _local.placeholders = []
        with tf1.Graph().as_default():
            first = serving_fn()
            if isinstance(first, receivers.ServingInputReceiver):
                return first
            placeholders = list(_local.placeholders)
            tensors = first.receiver_tensors
            tensors = tensors if isinstance(tensors, dict) else {"input": tensors}
            specs = {n: tf.TensorSpec(t.shape, t.dtype, n) for n, t in tensors.items()}
            names = {id(tensor): name for name, tensor in tensors.items()}
            order = [names[id(each)] for each in placeholders if id(each) in names]

        def to_features(sent: Any) -> Any:
            _local.sent = iter([sent[name] for name in order])
            try:
                return serving_fn().features
            finally:
                _local.sent = None

        return receivers.ServingInputReceiver(specs, to_features)

    return make


def build_raw_serving_input_receiver_fn(features: Any, default_batch_size: Any = None) -> Any:
    """Replaces `tf.estimator.export.build_raw_serving_input_receiver_fn`."""

    def serving_fn() -> ServingInputReceiver:
        sent = {
            name: placeholder(each.dtype, [default_batch_size, *each.shape[1:]], name)
            for name, each in features.items()
        }
        return ServingInputReceiver(sent, sent)

    return serving_fn


def build_parsing_serving_input_receiver_fn(
    feature_spec: Any, default_batch_size: Any = None
) -> Any:
    """Replaces `tf.estimator.export.build_parsing_serving_input_receiver_fn`."""

    def serving_fn() -> ServingInputReceiver:
        examples = placeholder(tf.string, [default_batch_size], "input_example_tensor")
        features = tf.io.parse_example(examples, feature_spec)
        return ServingInputReceiver(features, {"examples": examples})

    return serving_fn
