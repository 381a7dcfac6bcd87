"""Serves SavedModels with plain TensorFlow, by the names of their signatures.

    python serve.py RAW PARSING INPUT.npy OUTPUT.npz

RAW takes the tensors `left` and `right`, PARSING serialized `tf.train.Example`s of the
same. OUTPUT holds each output as `raw/SIGNATURE/NAME` and `parsing/SIGNATURE/NAME`.
"""

import sys

import numpy as np
import tensorflow as tf


def serialized(left, right):
    """One `tf.train.Example` a row."""

    def example(**values):
        features = tf.train.Features()
        for name, value in values.items():
            features.feature[name].float_list.value.extend(value)
        return tf.train.Example(features=features).SerializeToString()

    return [example(left=a, right=b) for a, b in zip(left, right, strict=True)]


def main(raw, parsing, input_path, output_path):
    left, right = np.split(np.load(input_path), [2], axis=1)
    requests = {
        ("raw", raw): {"left": tf.constant(left), "right": tf.constant(right)},
        ("parsing", parsing): {"examples": tf.constant(serialized(left, right))},
    }
    outputs = {}
    for (kind, path), request in requests.items():
        loaded = tf.saved_model.load(path)
        for signature, serve in loaded.signatures.items():
            for name, value in serve(**request).items():
                outputs[f"{kind}/{signature}/{name}"] = value.numpy()
    np.savez(output_path, **outputs)
    ours = {"pipeline", "models", "inputs", "gin", "tests"} & set(sys.modules)
    if ours:
        sys.exit(f"imported {ours}")


if __name__ == "__main__":
    main(*sys.argv[1:])
