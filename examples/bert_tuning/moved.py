"""A small BERT, tuned to tell topics: original.py on gin_estimator.

python -m examples.bert_tuning.moved --data=topics.npz --model_dir=/tmp/topics
"""

import argparse
import json
import pathlib

import keras
import numpy as np
import tensorflow as tf

import gin_estimator as ge

VOCAB_SIZE, LENGTH, WIDTH, LAYERS, HEADS, TOPICS = 150, 16, 32, 2, 4, 4
DROPOUT = 0.1
BATCH_SIZE, STEPS, WARMUP_STEPS, LEARNING_RATE = 16, 120, 12, 1e-3
CHECKPOINT = pathlib.Path(__file__).parent / "pretrained" / "bert.ckpt"

# Names in the checkpoint by names of the model.
LAYER, THERE = r"network/bert/layer_(\d)", r"bert/encoder/layer_\1"
ASSIGNMENT_MAP = {
    rf"{LAYER}/attention/(query|key|value)/(.*)": rf"{THERE}/attention/self/\2/\3",
    rf"{LAYER}/attention/attention_output/(.*)": rf"{THERE}/attention/output/dense/\2",
    rf"{LAYER}/attention_norm/(.*)": rf"{THERE}/attention/output/LayerNorm/\2",
    rf"{LAYER}/intermediate/(.*)": rf"{THERE}/intermediate/dense/\2",
    rf"{LAYER}/output/(.*)": rf"{THERE}/output/dense/\2",
    rf"{LAYER}/output_norm/(.*)": rf"{THERE}/output/LayerNorm/\2",
    r"network/bert/(word|position)/embeddings": r"bert/embeddings/\1_embeddings",
    r"network/bert/norm/(.*)": r"bert/embeddings/LayerNorm/\1",
    r"network/bert/pooler/(.*)": r"bert/pooler/dense/\1",
}
WARM_START = ge.WarmStartSettings(
    str(CHECKPOINT),
    vars_to_warm_start="network/bert/.*(?<!seed_generator_state)",
    var_name_to_prev_var_name=ASSIGNMENT_MAP,
)


def initializer():
    return keras.initializers.TruncatedNormal(stddev=0.02)


def dense(units, name, activation=None):
    return keras.layers.Dense(units, activation, kernel_initializer=initializer(), name=name)


def layer_norm(name):
    return keras.layers.LayerNormalization(epsilon=1e-12, name=name)


def gelu(x):
    return tf.nn.gelu(x, approximate=False)


class EncoderLayer(keras.layers.Layer):
    def __init__(self, name):
        super().__init__(name=name)
        self.attention = keras.layers.MultiHeadAttention(
            HEADS, WIDTH // HEADS, dropout=DROPOUT, name="attention"
        )
        self.attention_norm = layer_norm("attention_norm")
        self.intermediate = dense(4 * WIDTH, "intermediate", gelu)
        self.output_dense = dense(WIDTH, "output")
        self.output_norm = layer_norm("output_norm")
        self.dropout = keras.layers.Dropout(DROPOUT)

    def call(self, x, mask, training):
        def dropout(x):
            return self.dropout(x, training=training)

        context = self.attention(x, x, attention_mask=mask, training=training)
        x = self.attention_norm(x + dropout(context))
        return self.output_norm(x + dropout(self.output_dense(self.intermediate(x))))


class Bert(keras.layers.Layer):
    """Returns the vectors of all words, and the pooled vector of [CLS]."""

    def __init__(self):
        super().__init__(name="bert")
        self.words = keras.layers.Embedding(VOCAB_SIZE, WIDTH, name="word")
        self.positions = keras.layers.Embedding(LENGTH, WIDTH, name="position")
        self.norm = layer_norm("norm")
        self.dropout = keras.layers.Dropout(DROPOUT)
        self.encoder = [EncoderLayer(f"layer_{i}") for i in range(LAYERS)]
        self.pooler = dense(WIDTH, "pooler", "tanh")

    def call(self, ids, training):
        mask = (ids > 0)[:, tf.newaxis, :]
        x = self.words(ids) + self.positions(tf.range(LENGTH))
        x = self.dropout(self.norm(x), training=training)
        for layer in self.encoder:
            x = layer(x, mask, training=training)
        return x, self.pooler(x[:, 0])


class Classifier(keras.Model):
    def __init__(self):
        super().__init__()
        self.bert = Bert()
        self.dropout = keras.layers.Dropout(DROPOUT)
        self.head = dense(TOPICS, "head")

    def call(self, ids, training):
        _, pooled = self.bert(ids, training=training)
        return self.head(self.dropout(pooled, training=training)), pooled


class AdamWeightDecay(keras.optimizers.AdamW):
    """Adam without bias correction, with decoupled weight decay."""

    def update_step(self, gradient, variable, learning_rate):
        rate, gradient = learning_rate, tf.convert_to_tensor(gradient)
        i = self._get_variable_index(variable)
        m, v = self._momentums[i], self._velocities[i]
        m.assign(0.9 * m + 0.1 * gradient)
        v.assign(0.999 * v + 0.001 * tf.square(gradient))
        variable.assign_sub(rate * m / (tf.sqrt(v) + 1e-6))


class WarmUpAndDecay(keras.optimizers.schedules.PolynomialDecay):
    def __call__(self, step):
        step = tf.cast(step, tf.float32)
        warmup = LEARNING_RATE * step / WARMUP_STEPS
        return tf.where(step < WARMUP_STEPS, warmup, super().__call__(step))


def create_optimizer():
    rate = WarmUpAndDecay(LEARNING_RATE, STEPS, 0.0)
    optimizer = AdamWeightDecay(rate, weight_decay=0.01)
    optimizer.exclude_from_weight_decay(var_names=["gamma", "beta", "bias"])
    return optimizer


def model_fn(features, labels, mode, network, optimizer):
    training = mode == ge.ModeKeys.TRAIN
    logits, pooled = network(features["input_ids"], training=training)

    if mode == ge.ModeKeys.PREDICT:
        predictions = {"probabilities": tf.nn.softmax(logits), "pooled": pooled}
        return ge.EstimatorSpec(mode, predictions=predictions)

    log_probs = tf.nn.log_softmax(logits)
    one_hot_labels = tf.one_hot(labels, TOPICS)
    per_example_loss = -tf.reduce_sum(one_hot_labels * log_probs, axis=-1)
    if mode == ge.ModeKeys.EVAL:
        label = tf.argmax(logits, axis=-1)
        accuracy = ge.metric(keras.metrics.Accuracy, labels, label)
        return ge.EstimatorSpec(mode, loss=per_example_loss, metrics={"accuracy": accuracy})
    train_op = ge.TrainOp(optimizer, network.trainable_variables, clip_norm=1.0)
    return ge.EstimatorSpec(mode, loss=per_example_loss, train_op=train_op)


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
    estimator = ge.Estimator(
        model_fn,
        modules={"network": Classifier, "optimizer": create_optimizer},
        config=ge.RunConfig(model_dir=model_dir, tf_random_seed=seed),
        warm_start_from=WARM_START,
    )
    metrics, _ = ge.train_and_evaluate(
        estimator,
        ge.TrainSpec(lambda: train_input_fn(data, seed), max_steps=STEPS),
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
