"""A GAN on points of eight clusters, with two optimizers: original.py on gin_estimator.

python -m examples.gan.moved --data=ring.npz --model_dir=/tmp/gan
"""

import argparse
import functools
import json

import keras
import numpy as np
import tensorflow as tf

import gin_estimator as ge

BATCH_SIZE = 128
NOISE = 8
LEARNING_RATE = 2e-3
DISCRIMINATOR_STEPS = 2  # For one step of the generator.


def mlp(num_inputs, num_outputs):
    return keras.Sequential(
        [
            keras.Input([num_inputs]),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(num_outputs),
        ]
    )


def make_optimizer(updates):
    learning_rate = keras.optimizers.schedules.CosineDecay(LEARNING_RATE, updates)
    return keras.optimizers.Adam(learning_rate, beta_1=0.5, beta_2=0.9, epsilon=1e-8)


def eval_metrics(points, params):
    def uneven(nearest):
        # Share of the points that are too many in their clusters.
        number = len(params["centers"])
        shares = np.bincount(nearest, minlength=number) / len(nearest)
        return np.abs(shares - 1 / number).sum() / 2

    distances = tf.norm(points[:, tf.newaxis] - params["centers"], axis=2)
    return {
        "distance": tf.reduce_min(distances, axis=1),
        "uneven": ge.numpy_metric(uneven, tf.argmin(distances, axis=1)),
    }


def model_fn(
    features,
    labels,
    mode,
    params,
    generator,
    discriminator,
    generator_optimizer,
    discriminator_optimizer,
):
    points = generator(features)
    if mode == ge.ModeKeys.PREDICT:
        return ge.EstimatorSpec(mode, predictions={"points": points})

    real, generated = discriminator(labels), discriminator(points)
    loss = tf.nn.softplus(-real) + tf.nn.softplus(generated)
    if mode == ge.ModeKeys.EVAL:
        return ge.EstimatorSpec(mode, loss=loss, metrics=eval_metrics(points, params))

    train_op = [
        ge.TrainOp(discriminator_optimizer, discriminator.trainable_variables),
        ge.TrainOp(
            generator_optimizer,
            generator.trainable_variables,
            loss=tf.nn.softplus(-generated),
            every=DISCRIMINATOR_STEPS,
            # It uses the updated discriminator.
            sequential=True,
        ),
    ]
    return ge.EstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn(points, seed, training):
    seeds = tf.data.Dataset.random(seed=seed).batch(2)
    noise = seeds.map(lambda x: tf.random.stateless_normal([BATCH_SIZE, NOISE], x))
    dataset = tf.data.Dataset.from_tensor_slices(points)
    if training:
        dataset = dataset.shuffle(len(points), seed=seed).repeat()
    dataset = dataset.batch(BATCH_SIZE, drop_remainder=True)
    return tf.data.Dataset.zip((noise, dataset)).prefetch(1)


def train(data, model_dir, seed=1, steps=2400):
    generator_steps = steps // DISCRIMINATOR_STEPS
    estimator = ge.Estimator(
        model_fn,
        modules={
            "generator": lambda: mlp(NOISE, 2),
            "discriminator": lambda: mlp(2, 1),
            "generator_optimizer": functools.partial(make_optimizer, generator_steps),
            "discriminator_optimizer": functools.partial(make_optimizer, steps),
        },
        config=ge.RunConfig(model_dir=model_dir, tf_random_seed=seed),
        params={"centers": data["centers"]},
    )
    metrics, _ = ge.train_and_evaluate(
        estimator,
        ge.TrainSpec(lambda: input_fn(data["train_points"], seed, True), max_steps=steps),
        ge.EvalSpec(lambda: input_fn(data["test_points"], seed, False), steps=None),
    )
    return metrics


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--model_dir", required=True)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    metrics = train(dict(np.load(args.data)), args.model_dir, args.seed)
    shown = ("distance", "uneven", "global_step")
    print(json.dumps({name: float(metrics[name]) for name in shown}))


if __name__ == "__main__":
    ge.run(main)
