"""A CNN on handwritten digits by tf.estimator 2.15, on two replicas.

python original.py --data=digits.npz --model_dir=/tmp/digits
"""

import argparse
import json

import numpy as np
import tensorflow as tf

BATCH_SIZE = 32  # Of one replica: two of them make 64.
LEARNING_RATE = 1e-3


def model_fn(features, labels, mode, params):
    training = mode == tf.estimator.ModeKeys.TRAIN
    x = tf.reshape(features["image"], [-1, 8, 8, 1])
    x = tf.compat.v1.layers.conv2d(x, 16, 3, padding="same", activation=tf.nn.relu)
    x = tf.compat.v1.layers.conv2d(x, 32, 3, padding="same", activation=tf.nn.relu)
    x = tf.compat.v1.layers.max_pooling2d(x, 2, 2)
    x = tf.compat.v1.layers.flatten(x)
    x = tf.compat.v1.layers.dense(x, 64, activation=tf.nn.relu)
    x = tf.compat.v1.layers.dropout(x, rate=0.3, training=training)
    logits = tf.compat.v1.layers.dense(x, 10)

    predictions = {
        "class": tf.argmax(logits, axis=1),
        "probabilities": tf.nn.softmax(logits),
    }
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions=predictions)

    loss = tf.compat.v1.losses.sparse_softmax_cross_entropy(labels, logits)
    if mode == tf.estimator.ModeKeys.EVAL:
        accuracy = tf.compat.v1.metrics.accuracy(labels, predictions["class"])
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={"accuracy": accuracy})

    optimizer = tf.compat.v1.train.AdamOptimizer(params["learning_rate"])
    train_op = optimizer.minimize(loss, global_step=tf.compat.v1.train.get_or_create_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


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
    cpus = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    estimator = tf.estimator.Estimator(
        model_fn,
        config=tf.estimator.RunConfig(
            model_dir=model_dir,
            tf_random_seed=seed,
            train_distribute=tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
            session_config=tf.compat.v1.ConfigProto(
                device_count={"CPU": 2}, allow_soft_placement=True
            ),
        ),
        params={"learning_rate": LEARNING_RATE},
    )
    metrics, _ = tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(lambda: train_input_fn(data, seed), max_steps=steps),
        tf.estimator.EvalSpec(lambda: eval_input_fn(data), steps=None),
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
    main()
