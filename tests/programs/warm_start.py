"""Trains no step as one of several workers, with an init_fn.

Arguments: "same" or "different" for the values that the workers set, and the model_dir.
"""

import json
import os
import sys

import keras
import small

import gin_estimator as ge

KIND, MODEL_DIR = sys.argv[1:]
INDEX = json.loads(os.environ["TF_CONFIG"])["task"]["index"]


def init_fn(modules):
    value = 1.0 + (INDEX if KIND == "different" else 0)
    modules["network"].layers[-1].bias.assign([value] * 3)


def main():
    config = ge.RunConfig(MODEL_DIR, train_distribute=ge.multi_worker)
    estimator = ge.Estimator(
        small.model_fn,
        modules={"network": small.make_network, "optimizer": lambda: keras.optimizers.SGD(0.0)},
        config=config,
        warm_start_from=ge.WarmStartSettings(init_fn=init_fn),
    )
    estimator.train(small.train_input, max_steps=1)
    print(json.dumps(estimator.get_variable_value("network/dense_1/bias").tolist()))


ge.run(main)
