"""A CNN on handwritten digits by TPUEstimator, of tf.estimator 2.15.

python original.py --data=digits.npz --model_dir=/tmp/digits
"""

import argparse
import json

import numpy as np
import tensorflow as tf

TRAIN_BATCH_SIZE = 64
EVAL_BATCH_SIZE = 120
ITERATIONS = 50
LEARNING_RATE = 0.05


def metric_fn(labels, logits):
    predicted = tf.argmax(logits, axis=1)
    by_class = tf.compat.v1.metrics.mean_per_class_accuracy(labels, predicted, 10)
    return {
        "accuracy": tf.compat.v1.metrics.accuracy(labels, predicted),
        "mean_per_class_accuracy": by_class,
    }


def model_fn(features, labels, mode, params):
    training = mode == tf.estimator.ModeKeys.TRAIN
    x = tf.reshape(features, [-1, 8, 8, 1])
    x = tf.compat.v1.layers.conv2d(x, 16, 3, padding="same", use_bias=False)
    x = tf.compat.v1.layers.batch_normalization(x, momentum=0.9, training=training)
    x = tf.nn.relu(x)
    x = tf.compat.v1.layers.max_pooling2d(x, 2, 2)
    x = tf.compat.v1.layers.flatten(x)
    x = tf.compat.v1.layers.dense(x, 64, activation=tf.nn.relu)
    x = tf.compat.v1.layers.dropout(x, rate=0.3, training=training)
    logits = tf.compat.v1.layers.dense(x, 10)

    if mode == tf.estimator.ModeKeys.PREDICT:
        predictions = {"probabilities": tf.nn.softmax(logits)}
        return tf.compat.v1.estimator.tpu.TPUEstimatorSpec(mode, predictions=predictions)

    loss = tf.compat.v1.losses.sparse_softmax_cross_entropy(labels, logits)
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.compat.v1.estimator.tpu.TPUEstimatorSpec(
            mode, loss=loss, eval_metrics=(metric_fn, [labels, logits])
        )

    global_step = tf.compat.v1.train.get_global_step()
    learning_rate = tf.compat.v1.train.exponential_decay(
        params["learning_rate"], global_step, decay_steps=100, decay_rate=0.5
    )
    optimizer = tf.compat.v1.train.MomentumOptimizer(learning_rate, momentum=0.9)
    if params["use_tpu"]:
        optimizer = tf.compat.v1.tpu.CrossShardOptimizer(optimizer)
    update_ops = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)
    with tf.control_dependencies(update_ops):
        train_op = optimizer.minimize(loss, global_step)

    def host_call_fn(global_step, loss, learning_rate, logits):
        step = global_step[0]
        writer = tf.summary.create_file_writer(params["model_dir"], max_queue=params["iterations"])
        with writer.as_default(), tf.summary.record_if(True):
            tf.summary.scalar("training/loss", loss[0], step)
            tf.summary.scalar("training/learning_rate", learning_rate[0], step)
            tf.summary.histogram("training/logits", logits, step)
        return tf.compat.v1.summary.all_v2_summary_ops()

    # Only tensors with a batch dimension leave the TPU.
    scalars = [tf.reshape(x, [1]) for x in (global_step, loss, learning_rate)]
    host_call = (host_call_fn, [*scalars, logits])
    return tf.compat.v1.estimator.tpu.TPUEstimatorSpec(
        mode, loss=loss, train_op=train_op, host_call=host_call
    )


def train_input_fn(params, data, seed):
    dataset = tf.data.Dataset.from_tensor_slices((data["train_images"], data["train_labels"]))
    dataset = dataset.shuffle(2000, seed=seed).repeat()
    return dataset.batch(params["batch_size"], drop_remainder=True).prefetch(1)


def eval_input_fn(params, data):
    dataset = tf.data.Dataset.from_tensor_slices((data["test_images"], data["test_labels"]))
    return dataset.batch(params["batch_size"], drop_remainder=True)


def train(data, model_dir, seed=1, steps=300, tpu=None):
    resolver = None
    if tpu:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu)
    estimator = tf.compat.v1.estimator.tpu.TPUEstimator(
        model_fn,
        use_tpu=bool(tpu),
        train_batch_size=TRAIN_BATCH_SIZE,
        eval_batch_size=EVAL_BATCH_SIZE,
        config=tf.compat.v1.estimator.tpu.RunConfig(
            cluster=resolver,
            model_dir=model_dir,
            tf_random_seed=seed,
            save_checkpoints_steps=100,
            tpu_config=tf.compat.v1.estimator.tpu.TPUConfig(iterations_per_loop=ITERATIONS),
        ),
        params={
            "iterations": ITERATIONS,
            "learning_rate": LEARNING_RATE,
            "model_dir": model_dir,
        },
    )
    estimator.train(lambda params: train_input_fn(params, data, seed), max_steps=steps)
    return estimator.evaluate(
        lambda params: eval_input_fn(params, data),
        steps=len(data["test_labels"]) // EVAL_BATCH_SIZE,
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--model_dir", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tpu", help="name or address; none: this machine's CPU")
    args = parser.parse_args()
    data = dict(np.load(args.data))
    metrics = train(data, args.model_dir, args.seed, tpu=args.tpu)
    print(json.dumps({name: float(value) for name, value in metrics.items()}))


if __name__ == "__main__":
    main()
