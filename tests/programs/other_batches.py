"""Trains and evaluates inputs whose order is no function of a seed: `other_batches.py FOLDER`."""

import sys

import numpy as np
import tensorflow as tf

import gin_estimator as ge
from data.reads import Reads


def of_generator(rng):
    def input_fn():
        def rows():
            yield from rng().permutation(40)

        return tf.data.Dataset.from_generator(
            rows, output_signature=tf.TensorSpec([], tf.int64)
        ).batch(4)

    return input_fn


def of_map():
    data = tf.data.Dataset.range(40)
    return data.map(lambda i: i + 1, num_parallel_calls=2, deterministic=False).batch(4)


def main():
    strategy = ge.multi_worker()
    inputs = {
        "unseeded": of_generator(np.random.default_rng),
        "map": of_map,
        "seeded": of_generator(lambda: np.random.default_rng(0)),
    }
    for name, input_fn in inputs.items():
        estimator = Reads(f"{sys.argv[1]}/{name}", strategy).make()
        for method in (estimator.train, estimator.evaluate):
            try:
                method(input_fn, steps=8)
                print(name, method.__name__, "ended", flush=True)
            except ge.errors.UserValueError as error:
                print(name, method.__name__, error, flush=True)


if __name__ == "__main__":
    ge.run(main)
