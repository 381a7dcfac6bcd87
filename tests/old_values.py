"""Checkpoints as other programs write them, and warm starts of plain variables."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.warm_start.warm_start import warm_start

ADAM = {"optimizer": keras.optimizers.Adam()}


def saved(folder, **values):
    """A checkpoint by names; `__` stands for a slash."""
    named = {name.replace("__", "/"): tf.constant(v) for name, v in values.items()}
    path = f"{folder}/model.ckpt"
    tf.raw_ops.SaveV2(
        prefix=path,
        tensor_names=list(named),
        shape_and_slices=[""] * len(named),
        tensors=list(named.values()),
    )
    return path


def state(**shapes):
    """Modules of zeros: `net__dense__kernel=[2, 3]` is `dense/kernel` of `net`."""
    found = {}
    for name, shape in shapes.items():
        module, _, rest = name.replace("__", "/").partition("/")
        found.setdefault(module, {})[rest] = tf.Variable(tf.zeros(shape))
    return found


def rows(*shape):
    return np.arange(math.prod(shape), dtype=np.float32).reshape(shape) + 1


def values(of):
    flat = {f"{m}/{n}": v for m, named in of.items() for n, v in named.items()}
    return {name: v.numpy().tolist() for name, v in flat.items()}


def start(of, source, modules=None, **options):
    return warm_start(of, ge.WarmStartSettings(source, **options), modules=modules)


def refused(of, source, modules=None, **options):
    """The text of the error, which has changed nothing."""
    before = values(of)
    with pytest.raises((ValueError, TypeError)) as error:
        start(of, source, modules, **options)
    assert values(of) == before
    return str(error.value)


def adam_state(count=0):
    slots = {f"{slot}/net/a": tf.Variable([0.0]) for slot in ("momentum", "velocity")}
    iteration = tf.Variable(count, dtype=tf.int64)
    return {
        "net": {"a": tf.Variable([0.0])},
        "optimizer": {"iteration": iteration, **slots},
    }


POWERS = {"beta1_power": np.float32(0.9**4), "beta2_power": np.float32(0.999**4)}
V1 = {"a": [1.0], "a__Adam": [2.0], "a__Adam_1": [3.0], "global_step": np.int64(70)}
WHOLE = {"vars_to_warm_start": ".*", "learning_rates_and_iterations": True}


def vocabulary(path, *words):
    path.write_text("".join(f"{word}\n" for word in words))
    return str(path)
