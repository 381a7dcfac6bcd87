"""Updates of the rows of a table, compared with Keras' updates of all rows."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import gin_estimator as ge

ROWS, SIZE = 23, 3
_RNG = np.random.default_rng(0)
START = _RNG.normal(size=[ROWS, SIZE]).astype("float32")
# No batch has the last rows; ids repeat in a batch, and in an example.
IDS = _RNG.integers(0, 12, size=[41, 2])
Y = _RNG.normal(size=41).astype("float32")
WEIGHTS = _RNG.choice([0.0, 0.5, 1.0, 3.0], size=41).astype("float32")
_O = keras.optimizers
EXACT = {
    "sgd": lambda: _O.SGD(0.3),
    "adagrad": lambda: _O.Adagrad(0.3),
    "clipnorm": lambda: _O.Adagrad(0.3, clipnorm=0.1),
    "global_clipnorm": lambda: _O.SGD(0.3, global_clipnorm=0.1),
    "clipvalue": lambda: _O.SGD(0.3, clipvalue=0.02),
    "clip_norm": lambda: _O.SGD(0.3),
    "decay": lambda: _O.Adagrad(0.3, weight_decay=0.1),
    "whole": lambda: _O.Adam(0.1),
}
ONLY_ROWS = {
    "ftrl": lambda: _O.Ftrl(0.3, l1_regularization_strength=0.01, beta=0.1),
    "adam": lambda: _O.Adam(_O.schedules.ExponentialDecay(0.1, 2, 0.5), amsgrad=True),
    "adamw": lambda: _O.AdamW(0.1, weight_decay=0.1),
    "nadam": lambda: _O.Nadam(0.1),
    "adamax": lambda: _O.Adamax(0.1),
    "rmsprop": lambda: _O.RMSprop(0.1, momentum=0.9, centered=True),
    "adadelta": lambda: _O.Adadelta(1.0),
    "lion": lambda: _O.Lion(0.1),
    "momentum": lambda: _O.SGD(0.1, momentum=0.9, nesterov=True),
}
OPTIMIZERS = {**EXACT, **ONLY_ROWS}


def loss_of(table, ids, y):
    return tf.square(tf.reduce_sum(tf.gather(table, ids), axis=[1, 2]) - y)


def model_fn(features, labels, mode, params, **modules):
    ids, weights = features
    ops = [
        ge.TrainOp(
            modules[f"{name}_optimizer"],
            [modules[name]],
            clip_norm=0.1 if name == "clip_norm" else None,
            lazy=name in ONLY_ROWS and name != "ftrl",
        )
        for name in params["names"]
    ]
    losses = [loss_of(modules[name], ids, labels) for name in params["names"]]
    return ge.EstimatorSpec(mode, loss=tf.add_n(losses), loss_weights=weights, train_op=ops)


def data(batch_size=8):
    return tf.data.Dataset.from_tensor_slices(((IDS, WEIGHTS), Y)).batch(batch_size)


@functools.cache
def by_hand(name):
    """Returns a variable and its slots after updates of all rows, of which unused ones go back."""
    table, optimizer = tf.Variable(START), OPTIMIZERS[name]()
    optimizer.build([table])
    slots = [v.value for v in optimizer.variables if tuple(v.shape) == START.shape]
    for (ids, weights), y in data():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(loss_of(table, ids, y) * weights) / tf.reduce_sum(weights)
        gradient = tf.convert_to_tensor(tape.gradient(loss, table))
        if name == "clip_norm":
            gradient = tf.clip_by_norm(gradient, 0.1)
        before = [v.numpy() for v in (table, *slots)]
        optimizer.apply([gradient], [table])
        if name in ONLY_ROWS:
            unused = np.setdiff1d(np.arange(ROWS), ids)
            for variable, value in zip((table, *slots), before, strict=True):
                variable.scatter_update(tf.IndexedSlices(value[unused], unused))
    return [v.numpy() for v in (table, *slots)]


RUNS = {
    "default": {},
    "mirrored 2": {"devices": ("CPU:0", "CPU:1")},
    "accumulation 2": {"gradient_accumulation_steps": 2},
}
FEW = ["clip_norm", "decay", "whole", "ftrl", "adamw"]


def train(model_dir, names, batch_size=8, **config):
    """Returns each variable and its slots by the name of its optimizer."""
    factories = {name: functools.partial(tf.Variable, START, name=name) for name in names}
    factories |= {f"{name}_optimizer": OPTIMIZERS[name] for name in names}
    config = ge.RunConfig(str(model_dir), save_checkpoints_steps=0, **config)
    estimator = ge.Estimator(model_fn, modules=factories, config=config, params={"names": names})
    estimator.train(lambda: data(batch_size))
    values = estimator.state.variables()
    found = {}
    for name in names:
        slots = [k for k in values if k.startswith(f"{name}_optimizer/") and k.endswith(name)]
        found[name] = [values[key].numpy() for key in [name, *slots]]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "run, names",
    [
        ("default", FEW),
        ("mirrored 2", FEW),
        ("accumulation 2", FEW),
        pytest.param("default", [*OPTIMIZERS], marks=pytest.mark.slow),
        pytest.param("mirrored 2", [*OPTIMIZERS], marks=pytest.mark.slow),
        pytest.param("accumulation 2", [*OPTIMIZERS], marks=pytest.mark.slow),
    ],
)
def test_rows_move_as_by_the_dense_gradient_and_others_stay(tmp_path, run, names):
    found = train(tmp_path, names, 4 if run == "accumulation 2" else 8, **RUNS[run])
    for name, ours in found.items():
        for mine, theirs in zip(ours, by_hand(name), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6, err_msg=name)
            if name in ONLY_ROWS:
                np.testing.assert_array_equal(mine[12:], theirs[12:])
