"""A CNN on handwritten digits, on two replicas: original.py on gin_estimator.

python -m examples.mnist_mirrored.moved --data=digits.npz --model_dir=/tmp/digits
"""

import argparse
import json

import keras
import numpy as np
import tensorflow as tf

import gin_estimator as ge

BATCH_SIZE = 64  # Of all replicas: 32 on each of two.
LEARNING_RATE = 1e-3


def make_network():
    return keras.Sequential(
        [
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(2, 2),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10),
        ]
    )


def make_optimizer(params):
    return keras.optimizers.Adam(params["learning_rate"], epsilon=1e-8)


def model_fn(features, labels, mode, network, optimizer):
    training = mode == ge.ModeKeys.TRAIN
    x = tf.reshape(features["image"], [-1, 8, 8, 1])
    logits = network(x, training=training)

    predictions = {
        "class": tf.argmax(logits, axis=1),
        "probabilities": tf.nn.softmax(logits),
    }
    if mode == ge.ModeKeys.PREDICT:
        return ge.EstimatorSpec(mode, predictions=predictions)

    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    if mode == ge.ModeKeys.EVAL:
        accuracy = ge.metric(keras.metrics.Accuracy, labels, predictions["class"])
        return ge.EstimatorSpec(mode, loss=loss, metrics={"accuracy": accuracy})

    train_op = ge.TrainOp(optimizer, network.trainable_variables)
    return ge.EstimatorSpec(mode, loss=loss, train_op=train_op)


def train_input_fn(data, seed):
    dataset = tf.data.Dataset.from_tensor_slices(
        ({"image": data["train_images"]}, data["train_labels"])
    )
    dataset = dataset.shuffle(2000, seed=seed).repeat()
    return dataset.batch(BATCH_SIZE).prefetch(1)


def eval_input_fn(data):
    dataset = tf.data.Dataset.from_tensor_slices(
        ({"image": data["test_images"]}, data["test_labels"])
    )
    return dataset.batch(120)


def train(data, model_dir, seed=1, steps=200):
    estimator = ge.Estimator(
        model_fn,
        modules={"network": make_network, "optimizer": make_optimizer},
        config=ge.RunConfig(
            model_dir=model_dir,
            tf_random_seed=seed,
            devices=("CPU:0", "CPU:1"),  # Mirrored; left out: all GPUs.
        ),
        params={"learning_rate": LEARNING_RATE},
    )
    metrics, _ = ge.train_and_evaluate(
        estimator,
        ge.TrainSpec(lambda: train_input_fn(data, seed), max_steps=steps),
        ge.EvalSpec(lambda: eval_input_fn(data), steps=None),
    )
    return metrics


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--model_dir", required=True)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    metrics = train(dict(np.load(args.data)), args.model_dir, args.seed)
    print(json.dumps({name: float(value) for name, value in metrics.items()}))


if __name__ == "__main__":
    ge.run(main)
