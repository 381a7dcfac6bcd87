"""Counts the updates that optimizers lose on parameter servers: `lost_updates.py FOLDER`.

Each step moves a matrix by each optimizer, by a gradient of ones. So a matrix, and each slot of
its optimizer, tells how often it was updated: compared with the same updates by Keras in one
process. The chief prints lines `NAME JSON`.
"""

import functools
import json
import sys

import keras
import numpy as np
import tensorflow as tf

import gin_estimator as ge

STEPS = 600
SHAPE = [10_000, 8]


class Guide(keras.optimizers.Optimizer):
    """An optimizer of a user that reads a variable and assigns it."""

    def update_step(self, gradient, variable, learning_rate):
        rate = tf.cast(learning_rate, variable.dtype)
        self.assign(variable, variable - rate * gradient)


ADAM = {"beta_1": 0.999, "beta_2": 0.999}
DECAY = {"learning_rate": 0.005, "weight_decay": 0.01}
OPTIMIZERS = {
    "SGD": (keras.optimizers.SGD, {}),
    "SGD, weight decay": (keras.optimizers.SGD, DECAY),
    "SGD, momentum": (keras.optimizers.SGD, {"momentum": 0.99}),
    "SGD, Nesterov": (keras.optimizers.SGD, {"momentum": 0.99, "nesterov": True}),
    "Adagrad": (keras.optimizers.Adagrad, {}),
    "Ftrl": (keras.optimizers.Ftrl, {}),
    "Adam": (keras.optimizers.Adam, ADAM),
    "Adam, amsgrad": (keras.optimizers.Adam, {**ADAM, "amsgrad": True}),
    "AdamW": (keras.optimizers.AdamW, {**ADAM, **DECAY}),
    "Adamax": (keras.optimizers.Adamax, ADAM),
    "Adadelta": (keras.optimizers.Adadelta, {"rho": 0.999}),
    "RMSprop": (keras.optimizers.RMSprop, {"rho": 0.999}),
    "RMSprop, centered": (keras.optimizers.RMSprop, {"rho": 0.999, "centered": True}),
    "by Keras' guide": (Guide, {}),
}


def say(name, value):
    print(name, json.dumps(value), flush=True)


def make_optimizer(name):
    kind, options = OPTIMIZERS[name]
    return kind(**{"learning_rate": 0.01, **options})


def start(name):
    """Returns where the matrix starts: decays of a large one count as much as its gradients."""
    return 100.0 if "weight_decay" in OPTIMIZERS[name][1] else 0.0


def model_fn(features, labels, mode, matrices, optimizers):
    loss = tf.add_n([tf.reduce_sum(each) for each in matrices])
    pairs = zip(optimizers, matrices, strict=True)
    return ge.EstimatorSpec(mode, loss=loss, train_op=[ge.TrainOp(o, [m]) for o, m in pairs])


def train(folder, names, *, allowed=False):
    """Returns the matrices and the slots after all steps, by the optimizer."""
    modules = {
        "matrices": lambda: [tf.Variable(tf.fill(SHAPE, start(name))) for name in names],
        "optimizers": lambda: [make_optimizer(name) for name in names],
    }
    config = ge.RunConfig(
        folder,
        execution="parameter_server",
        train_distribute=functools.partial(ge.parameter_server, allow_lost_updates=allowed),
    )
    estimator = ge.Estimator(model_fn, modules=modules, config=config)
    estimator.train(lambda: tf.data.Dataset.from_tensors(0).repeat(), max_steps=STEPS)
    if estimator.last_run is None:
        return {}  # A worker or server, after the end of the chief.
    matrices, optimizers = (estimator.state.modules[key] for key in modules)
    return {
        name: [np.asarray(v) for v in (m, *o.variables) if v.shape == SHAPE]
        for name, m, o in zip(names, matrices, optimizers, strict=True)
    }


def in_one_process(name):
    """Returns the value of the matrix and of the slots after each update, starts included."""
    matrix, optimizer = keras.Variable([start(name)]), make_optimizer(name)
    optimizer.build([matrix])
    variables = [v for v in (matrix, *optimizer.variables) if v.shape == (1,)]
    values = [[np.asarray(v)[0] for v in variables]]
    update = tf.function(lambda: optimizer.apply([tf.ones([1])], [matrix]), autograph=False)
    for _ in range(STEPS):
        update()
        values.append([np.asarray(v)[0] for v in variables])
    return np.transpose(values)


def lost(name, variables):
    """Returns the largest number of updates that an element of these variables lacks."""
    counts = [STEPS]
    for variable, path in zip(variables, in_one_process(name), strict=True):
        sign = np.sign(path[-1] - path[0])
        if sign:  # RMSprop without momentum leaves that slot as it is.
            counts.extend(np.interp(sign * np.ravel(variable), sign * path, range(STEPS + 1)))
    return round(float(STEPS - min(counts)), 1)


def main():
    folder = sys.argv[1]
    *safe, guide = OPTIMIZERS
    if ge.RunConfig(folder, execution="parameter_server").task_type != "chief":
        train(folder, safe)
        return
    for part, names in (("safe", safe), ("allowed", [guide])):
        trained = train(f"{folder}/{part}", names, allowed=part == "allowed")
        say(part, {name: lost(name, variables) for name, variables in trained.items()})


if __name__ == "__main__":
    ge.run(main)
