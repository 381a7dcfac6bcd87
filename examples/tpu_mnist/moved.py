"""A CNN on handwritten digits, for a TPU: original.py on gin_estimator.

python -m examples.tpu_mnist.moved --data=digits.npz --model_dir=/tmp/digits
"""

import argparse
import json

import keras
import numpy as np
import tensorflow as tf

import gin_estimator as ge

TRAIN_BATCH_SIZE = 64
EVAL_BATCH_SIZE = 120
ITERATIONS = 50
LEARNING_RATE = 0.05


def make_network():
    return keras.Sequential(
        [
            keras.layers.Conv2D(16, 3, padding="same", use_bias=False),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.ReLU(),
            keras.layers.MaxPooling2D(2, 2),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10),
        ]
    )


def make_optimizer(params):
    learning_rate = keras.optimizers.schedules.ExponentialDecay(
        params["learning_rate"], decay_steps=100, decay_rate=0.5
    )
    return keras.optimizers.SGD(learning_rate, momentum=0.9)


def mean_per_class_accuracy(labels, predicted):
    hits = labels == predicted
    return np.mean([hits[labels == label].mean() for label in np.unique(labels)])


def model_fn(features, labels, mode, network, optimizer):
    training = mode == ge.ModeKeys.TRAIN
    x = tf.reshape(features, [-1, 8, 8, 1])
    logits = network(x, training=training)

    if mode == ge.ModeKeys.PREDICT:
        predictions = {"probabilities": tf.nn.softmax(logits)}
        return ge.EstimatorSpec(mode, predictions=predictions)

    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    if mode == ge.ModeKeys.EVAL:
        predicted = tf.argmax(logits, axis=1)
        by_class = ge.numpy_metric(mean_per_class_accuracy, labels, predicted)
        metrics = {
            "accuracy": ge.metric(keras.metrics.Accuracy, labels, predicted),
            "mean_per_class_accuracy": by_class,
        }
        return ge.EstimatorSpec(mode, loss=loss, metrics=metrics)

    train_op = ge.TrainOp(optimizer, network.trainable_variables)
    return ge.EstimatorSpec(mode, loss=loss, train_op=train_op)


def train_input_fn(params, data, seed):
    dataset = tf.data.Dataset.from_tensor_slices((data["train_images"], data["train_labels"]))
    dataset = dataset.shuffle(2000, seed=seed).repeat()
    return dataset.batch(params["batch_size"], drop_remainder=True).prefetch(1)


def eval_input_fn(params, data):
    dataset = tf.data.Dataset.from_tensor_slices((data["test_images"], data["test_labels"]))
    return dataset.batch(params["batch_size"], drop_remainder=True)


def train(data, model_dir, seed=1, steps=300, execution="single_host"):
    estimator = ge.Estimator(
        model_fn,
        modules={"network": make_network, "optimizer": make_optimizer},
        config=ge.RunConfig(
            execution=execution,
            train_batch_size=TRAIN_BATCH_SIZE,
            eval_batch_size=EVAL_BATCH_SIZE,
            model_dir=model_dir,
            tf_random_seed=seed,
            save_checkpoints_steps=100,
            save_summary_steps=ITERATIONS,
            steps_per_loop=ITERATIONS,
        ),
        params={"learning_rate": LEARNING_RATE},
    )
    estimator.train(lambda params: train_input_fn(params, data, seed), max_steps=steps)
    return estimator.evaluate(lambda params: eval_input_fn(params, data))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--model_dir", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tpu", action="store_true", help="train on the TPU of this machine")
    args = parser.parse_args()
    execution = "tpu" if args.tpu else "single_host"
    data = dict(np.load(args.data))
    metrics = train(data, args.model_dir, args.seed, execution=execution)
    print(json.dumps({name: float(value) for name, value in metrics.items()}))


if __name__ == "__main__":
    ge.run(main)
