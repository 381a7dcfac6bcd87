"""Reads a checkpoint by the lines of pipeline/checkpoints/checkpoint.py, by TensorFlow.

    python read_checkpoint.py MODEL_DIR INPUT.npy OUTPUT.npy

It knows the architecture and nothing of the project that trained it.
"""

import sys

import keras
import numpy as np
import tensorflow as tf


class Network(keras.Model):
    """Layers in a list and in a dict, BatchNormalization, dropout."""

    def __init__(self):
        super().__init__()
        self.blocks = [
            keras.layers.Dense(8, activation="relu"),
            keras.layers.BatchNormalization(momentum=0.8),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(8, activation="relu"),
        ]
        self.heads = {
            "dropout": keras.layers.Dropout(0.2),
            "logits": keras.layers.Dense(3),
        }

    def call(self, x, training=False):
        for block in self.blocks:
            if isinstance(block, keras.layers.Dense):
                x = block(x)
            else:
                x = block(x, training=training)
        return self.heads["logits"](self.heads["dropout"](x, training=training))


def load(network, model_dir):
    """The documented lines."""
    reader = tf.train.load_checkpoint(model_dir)
    keys = sorted(k for k in reader.get_variable_to_shape_map() if k[:8] == "network/")
    network(tf.zeros([1, 6]))
    for variable, key in zip(network.variables, keys, strict=True):
        variable.assign(reader.get_tensor(key))


def main(model_dir, input_path, output_path):
    network = Network()
    load(network, model_dir)
    np.save(output_path, network(np.load(input_path)).numpy())
    ours = {"pipeline", "models", "inputs", "gin", "tests"} & set(sys.modules)
    if ours:
        sys.exit(f"imported {ours}")


if __name__ == "__main__":
    main(*sys.argv[1:])
