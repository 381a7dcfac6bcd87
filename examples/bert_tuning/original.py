"""A small BERT, tuned to tell topics, by tf.estimator 2.15 in BERT's own manner.

python original.py --data=topics.npz --model_dir=/tmp/topics
"""

import argparse
import collections
import json
import pathlib
import re

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1

VOCAB_SIZE, LENGTH, WIDTH, LAYERS, HEADS, TOPICS = 150, 16, 32, 2, 4, 4
DROPOUT = 0.1
BATCH_SIZE, STEPS, WARMUP_STEPS, LEARNING_RATE = 16, 120, 12, 1e-3
CHECKPOINT = pathlib.Path(__file__).parent / "pretrained" / "bert.ckpt"


def initializer():
    return v1.truncated_normal_initializer(stddev=0.02)


def dense(x, units, name, activation=None):
    return v1.layers.dense(x, units, activation, kernel_initializer=initializer(), name=name)


def layer_norm(x):
    with v1.variable_scope("LayerNorm"):
        gamma = v1.get_variable("gamma", [WIDTH], initializer=v1.ones_initializer())
        beta = v1.get_variable("beta", [WIDTH], initializer=v1.zeros_initializer())
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-12)


def dropout(x, training):
    return tf.nn.dropout(x, DROPOUT) if training else x


def gelu(x):
    return tf.nn.gelu(x, approximate=False)


def attention(x, mask, training):
    def heads(name):
        split = [-1, LENGTH, HEADS, WIDTH // HEADS]
        return tf.transpose(tf.reshape(dense(x, WIDTH, name), split), [0, 2, 1, 3])

    query, key, value = heads("query"), heads("key"), heads("value")
    scores = tf.matmul(query, key, transpose_b=True) / (WIDTH / HEADS) ** 0.5
    scores += (1.0 - mask[:, tf.newaxis, tf.newaxis, :]) * -10000.0
    context = tf.matmul(dropout(tf.nn.softmax(scores), training), value)
    return tf.reshape(tf.transpose(context, [0, 2, 1, 3]), [-1, LENGTH, WIDTH])


def encoder_layer(x, mask, training):
    with v1.variable_scope("attention"):
        with v1.variable_scope("self"):
            context = attention(x, mask, training)
        with v1.variable_scope("output"):
            x = layer_norm(x + dropout(dense(context, WIDTH, "dense"), training))
    with v1.variable_scope("intermediate"):
        wide = dense(x, 4 * WIDTH, "dense", gelu)
    with v1.variable_scope("output"):
        return layer_norm(x + dropout(dense(wide, WIDTH, "dense"), training))


def bert(ids, training):
    """Returns the vectors of all words, and the pooled one of [CLS]."""
    mask = tf.cast(ids > 0, tf.float32)
    with v1.variable_scope("bert"):
        with v1.variable_scope("embeddings"):
            words = v1.get_variable(
                "word_embeddings", [VOCAB_SIZE, WIDTH], initializer=initializer()
            )
            positions = v1.get_variable(
                "position_embeddings", [LENGTH, WIDTH], initializer=initializer()
            )
            x = dropout(layer_norm(tf.gather(words, ids) + positions), training)
        with v1.variable_scope("encoder"):
            for i in range(LAYERS):
                with v1.variable_scope(f"layer_{i}"):
                    x = encoder_layer(x, mask, training)
        with v1.variable_scope("pooler"):
            pooled = dense(x[:, 0], WIDTH, "dense", tf.tanh)
    return x, pooled


class AdamWeightDecayOptimizer(v1.train.Optimizer):
    """Adam without its correction of the first steps; weights decay apart from it."""

    def __init__(self, learning_rate, weight_decay_rate, exclude):
        super().__init__(False, "AdamWeightDecayOptimizer")
        self.learning_rate, self.decay = learning_rate, weight_decay_rate
        self.exclude = exclude

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        updates = []
        for grad, variable in grads_and_vars:
            m, v = (
                v1.get_variable(
                    f"{variable.op.name}/adam_{slot}",
                    variable.shape,
                    trainable=False,
                    initializer=v1.zeros_initializer(),
                )
                for slot in "mv"
            )
            grad = tf.convert_to_tensor(grad)
            next_m = 0.9 * m + 0.1 * grad
            next_v = 0.999 * v + 0.001 * tf.square(grad)
            update = next_m / (tf.sqrt(next_v) + 1e-6)
            if not any(re.search(each, variable.op.name) for each in self.exclude):
                update += self.decay * variable
            updates.append(variable.assign_sub(self.learning_rate * update))
            updates += [m.assign(next_m), v.assign(next_v)]
        return tf.group(*updates, name=name)


def create_optimizer(loss, init_lr, num_train_steps, num_warmup_steps):
    step = v1.train.get_or_create_global_step()
    rate = v1.train.polynomial_decay(init_lr, step, num_train_steps, 0.0, 1.0)
    warmup = init_lr * tf.cast(step, tf.float32) / num_warmup_steps
    rate = tf.where(step < num_warmup_steps, warmup, rate)
    optimizer = AdamWeightDecayOptimizer(rate, 0.01, ["LayerNorm", "bias"])
    variables = v1.trainable_variables()
    grads, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 1.0)
    train_op = optimizer.apply_gradients(zip(grads, variables, strict=True))
    return tf.group(train_op, step.assign_add(1))


def get_assignment_map_from_checkpoint(variables, checkpoint):
    there = {name for name, _ in tf.train.list_variables(checkpoint)}
    names = (variable.op.name for variable in variables)
    return collections.OrderedDict((n, n) for n in names if n in there)


def model_fn(features, labels, mode, params):
    training = mode == tf.estimator.ModeKeys.TRAIN
    _, pooled = bert(features["input_ids"], training)
    weights = v1.get_variable("output_weights", [TOPICS, WIDTH], initializer=initializer())
    bias = v1.get_variable("output_bias", [TOPICS], initializer=v1.zeros_initializer())
    hidden = dropout(pooled, training)
    logits = tf.nn.bias_add(tf.matmul(hidden, weights, transpose_b=True), bias)

    checkpoint = params["init_checkpoint"]
    assignment_map = get_assignment_map_from_checkpoint(v1.trainable_variables(), checkpoint)
    v1.train.init_from_checkpoint(checkpoint, assignment_map)

    if mode == tf.estimator.ModeKeys.PREDICT:
        predictions = {"probabilities": tf.nn.softmax(logits), "pooled": pooled}
        return tf.estimator.EstimatorSpec(mode, predictions=predictions)

    log_probs = tf.nn.log_softmax(logits)
    one_hot_labels = tf.one_hot(labels, TOPICS)
    per_example_loss = -tf.reduce_sum(one_hot_labels * log_probs, axis=-1)
    loss = tf.reduce_mean(per_example_loss)
    if mode == tf.estimator.ModeKeys.EVAL:
        accuracy = v1.metrics.accuracy(labels, tf.argmax(logits, axis=-1))
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={"accuracy": accuracy})
    train_op = create_optimizer(loss, LEARNING_RATE, STEPS, WARMUP_STEPS)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def train_input_fn(data, seed):
    dataset = tf.data.Dataset.from_tensor_slices(
        ({"input_ids": data["train_ids"]}, data["train_labels"])
    )
    return dataset.shuffle(100, seed=seed).repeat().batch(BATCH_SIZE)


def eval_input_fn(data):
    dataset = tf.data.Dataset.from_tensor_slices(
        ({"input_ids": data["test_ids"]}, data["test_labels"])
    )
    return dataset.batch(100)


def train(data, model_dir, seed=1):
    estimator = tf.estimator.Estimator(
        model_fn,
        config=tf.estimator.RunConfig(model_dir=model_dir, tf_random_seed=seed),
        params={"init_checkpoint": str(CHECKPOINT)},
    )
    metrics, _ = tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(lambda: train_input_fn(data, seed), max_steps=STEPS),
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
