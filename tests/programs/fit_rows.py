"""Trains a normalized model; its callback works in one worker alone: `fit_rows.py FOLDER`."""

import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

import gin_estimator as ge

X = np.random.default_rng(0).normal(size=(33, 4)).astype("float32")


def make_model():
    model = keras.Sequential([keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def main():
    folder = pathlib.Path(sys.argv[1])
    config = ge.RunConfig(str(folder / "run"), execution="multi_worker")
    ge.connect(config)
    dataset = tf.data.Dataset.from_tensor_slices((X, X[:, :1])).batch(8)  # As tutorials do.
    rows = keras.callbacks.CSVLogger(folder / "rows.csv")
    ge.fit(make_model, lambda: dataset, epochs=2, callbacks=[rows], config=config)


if __name__ == "__main__":
    ge.run(main)
