"""Writes down tf.estimator's public names, and what its layers compute.

Run by a Python that has TensorFlow 2.15.1, the last release with tf.estimator:

    cd tests/pipeline/moving
    VENV/bin/python ../../scripts/names_of_tf_estimator.py tf_estimator.json
"""

import json
import sys

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
MODULES = {
    "tf.estimator": (tf.estimator, v1.estimator),
    "tf.estimator.experimental": (
        tf.estimator.experimental,
        v1.estimator.experimental,
    ),
    "tf.estimator.export": (tf.estimator.export, v1.estimator.export),
    "tf.estimator.inputs": (v1.estimator.inputs,),
    "tf.estimator.tpu": (v1.estimator.tpu,),
    "tf.estimator.tpu.experimental": (v1.estimator.tpu.experimental,),
}
# Function of tf.compat.v1.layers, its arguments, the shape of its input.
LAYERS = {
    "dense": ({"units": 40, "activation": "relu"}, [2, 30]),
    "conv1d": ({"filters": 12, "kernel_size": 5, "padding": "same"}, [2, 9, 6]),
    "conv2d": ({"filters": 12, "kernel_size": 5, "padding": "same"}, [2, 7, 7, 3]),
    "conv3d": ({"filters": 8, "kernel_size": 3}, [2, 4, 4, 4, 3]),
    "conv2d_transpose": (
        {"filters": 12, "kernel_size": 5, "strides": 2, "padding": "same"},
        [2, 4, 4, 6],
    ),
    "conv3d_transpose": ({"filters": 4, "kernel_size": 3}, [2, 3, 3, 3, 4]),
    "separable_conv2d": ({"filters": 16, "kernel_size": 3}, [2, 6, 6, 8]),
    "max_pooling1d": ({"pool_size": 2, "strides": 2}, [2, 6, 3]),
    "max_pooling2d": ({"pool_size": 2, "strides": 2}, [2, 6, 6, 3]),
    "average_pooling2d": ({"pool_size": 2, "strides": 2}, [2, 6, 6, 3]),
}


def public(module):
    """Names of a module's functions and classes."""
    return [
        name
        for name in dir(module)
        if not name.startswith("_")
        and type(getattr(module, name)).__name__
        not in ("module", "ModuleWrapper", "TFModuleWrapper")
    ]


def values(shape):
    """Numbers that are no two alike, the same in each process."""
    count = int(np.prod(shape))
    return np.sin(np.arange(count, dtype=np.float32)).reshape(shape)


def layer(name, arguments, shape):
    """How a layer starts, and what it computes of known weights."""
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(1)
        y = getattr(v1.layers, name)(tf.constant(values(shape)), **arguments)
        weights = v1.trainable_variables()
        session.run(v1.global_variables_initializer())
        started = session.run(weights)
        for weight in weights:
            weight.load(values(weight.shape.as_list()), session)
        result = session.run(y)
    return {
        "arguments": arguments,
        "input": shape,
        "largest": [float(np.abs(w).max()) for w in started],
        "shapes": [list(w.shape) for w in started],
        "output": [list(result.shape), result.ravel()[:20].tolist()],
    }


def main(path):
    """Writes all of it."""
    names = sorted(
        {
            f"{p}.{n}"
            for p, modules in MODULES.items()
            for m in modules
            for n in public(m)
        }
    )
    found = {
        "version": tf.__version__,
        "names": names,
        "layers": {name: layer(name, *rest) for name, rest in LAYERS.items()},
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(found, file, indent=1)
        file.write("\n")


main(sys.argv[1])
