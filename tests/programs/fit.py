"""Trains 97 examples by `ge.fit`: `fit.py MODEL_DIR EXECUTION [STEPS_PER_EPOCH]`."""

import json
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import gin_estimator as ge

RNG = np.random.default_rng(0)
X = RNG.normal(size=(97, 4)).astype("float32")
Y = RNG.integers(0, 3, 97)


class Slow(ge.Hook):
    """Leaves time to kill a task."""

    every_steps = 1

    def after_step(self, run):
        print("STEP", run.step, flush=True)
        time.sleep(0.3)


class Looks(keras.callbacks.Callback):
    """Is called for each batch, and evaluates the model itself."""

    batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1

    def on_epoch_end(self, epoch, logs=None):
        loss, _ = self.model.evaluate(X, Y, verbose=0)
        error = np.abs(self.model.predict(X, verbose=0).sum(axis=1) - 1).max()
        found = {"batches": self.batches, "loss": loss, "error": error}
        assert self.batches == 4 * (epoch + 1), found
        assert abs(loss - logs["val_loss"]) < 1e-5 and error < 1e-5, (found, logs)


def make_model():
    keras.utils.set_random_seed(3)
    layers = [keras.Input([4]), keras.layers.Dense(8, "relu"), keras.layers.Dense(3, "softmax")]
    model = keras.Sequential(layers)
    # Parameter servers refuse averages of Keras.
    optimizer = keras.optimizers.Adam(use_ema=sys.argv[2] != "parameter_server")
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def data():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(32)


def main():
    model_dir, execution, *rest = sys.argv[1:]
    on_servers = execution == "parameter_server"
    result = ge.fit(
        make_model,
        data,
        epochs=3,
        steps_per_epoch=int(rest[0]) if rest else None,
        validation_data=data,
        callbacks=[keras.callbacks.ReduceLROnPlateau("val_loss", 0.5, 1, min_delta=9), Looks()],
        hooks=[] if on_servers else [Slow()],
        config=ge.RunConfig(model_dir, execution=execution, save_checkpoints_steps=2),
    )
    if result.model is not None:
        weights = [each.tolist() for each in result.model.get_weights()]
        step = result.estimator.last_run.step
        content = {"history": result.history, "weights": weights, "step": step}
        content["is_chief"] = result.is_chief
        print("RESULT", json.dumps(content), flush=True)


if __name__ == "__main__":
    ge.run(main)
