"""A GAN on points of eight clusters, with two optimizers, by tf.estimator 2.15.

python original.py --data=ring.npz --model_dir=/tmp/gan
"""

import argparse
import json

import numpy as np
import tensorflow as tf

BATCH_SIZE = 128
NOISE = 8
LEARNING_RATE = 2e-3
DISCRIMINATOR_STEPS = 2  # For one step of the generator.


def mlp(x, num_outputs, scope):
    with tf.compat.v1.variable_scope(scope, reuse=tf.compat.v1.AUTO_REUSE):
        x = tf.compat.v1.layers.dense(x, 64, activation=tf.nn.relu, name="dense_1")
        x = tf.compat.v1.layers.dense(x, 64, activation=tf.nn.relu, name="dense_2")
        return tf.compat.v1.layers.dense(x, num_outputs, name="out")


def generator(noise):
    return mlp(noise, 2, "generator")


def discriminator(points):
    return mlp(points, 1, "discriminator")


def eval_metric_ops(points, params):
    distances = tf.norm(points[:, tf.newaxis] - params["centers"], axis=2)
    nearest = tf.one_hot(tf.argmin(distances, axis=1), len(params["centers"]))
    shares, update = tf.compat.v1.metrics.mean_tensor(tf.reduce_mean(nearest, axis=0))
    # The part of the points that are too many in their clusters.
    uneven = tf.reduce_sum(tf.abs(shares - 1 / len(params["centers"]))) / 2
    return {
        "distance": tf.compat.v1.metrics.mean(tf.reduce_min(distances, axis=1)),
        "uneven": (uneven, update),
    }


def train_op_fn(noise, discriminator_loss, params):
    global_step = tf.compat.v1.train.get_global_step()
    learning_rate = tf.compat.v1.train.cosine_decay(LEARNING_RATE, global_step, params["steps"])
    discriminator_optimizer, generator_optimizer = (
        tf.compat.v1.train.AdamOptimizer(learning_rate, beta1=0.5, beta2=0.9) for _ in range(2)
    )
    discriminator_op = discriminator_optimizer.minimize(
        discriminator_loss,
        var_list=tf.compat.v1.trainable_variables("discriminator"),
    )

    def update_generator():
        logits = discriminator(generator(noise))
        loss = tf.reduce_mean(tf.nn.softplus(-logits))
        variables = tf.compat.v1.trainable_variables("generator")
        gradients = tf.gradients(loss, variables)
        return generator_optimizer.apply_gradients(zip(gradients, variables, strict=True))

    # The generator learns from the discriminator that has just been updated.
    with tf.control_dependencies([discriminator_op]):
        is_turn = tf.equal((global_step + 1) % DISCRIMINATOR_STEPS, 0)
        generator_op = tf.cond(is_turn, update_generator, tf.no_op)
    with tf.control_dependencies([generator_op]):
        return tf.compat.v1.assign_add(global_step, 1)


def model_fn(features, labels, mode, params):
    points = generator(features)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"points": points})

    loss = tf.reduce_mean(
        tf.nn.softplus(-discriminator(labels)) + tf.nn.softplus(discriminator(points))
    )
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(
            mode, loss=loss, eval_metric_ops=eval_metric_ops(points, params)
        )

    train_op = train_op_fn(features, loss, params)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn(points, seed, training):
    seeds = tf.data.Dataset.random(seed=seed).batch(2)
    noise = seeds.map(lambda x: tf.random.stateless_normal([BATCH_SIZE, NOISE], x))
    dataset = tf.data.Dataset.from_tensor_slices(points)
    if training:
        dataset = dataset.shuffle(len(points), seed=seed).repeat()
    dataset = dataset.batch(BATCH_SIZE, drop_remainder=True)
    return tf.data.Dataset.zip((noise, dataset)).prefetch(1)


def train(data, model_dir, seed=1, steps=2400):
    estimator = tf.estimator.Estimator(
        model_fn,
        config=tf.estimator.RunConfig(model_dir=model_dir, tf_random_seed=seed),
        params={"centers": data["centers"], "steps": steps},
    )
    metrics, _ = tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(lambda: input_fn(data["train_points"], seed, True), max_steps=steps),
        tf.estimator.EvalSpec(lambda: input_fn(data["test_points"], seed, False), steps=None),
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
    main()
