"""Trains the small BERT on masked words, by TensorFlow 2.15: `pretrained/bert.ckpt`.

python pretrain.py --data=topics.npz --model_dir=/tmp/pretrained
"""

import argparse
import json

import numpy as np
import original
import tensorflow as tf

v1 = tf.compat.v1
MASK = 3  # Its number; words have those from 4 on.
STEPS = 3000


def masked_words(ids):
    """Returns ids of which one word in six is masked, and which they are."""
    masked = (tf.random.uniform(tf.shape(ids)) < 1 / 6) & (ids > MASK)
    return {"input_ids": tf.where(masked, MASK, ids), "masked": masked}, ids


def input_fn(data):
    dataset = tf.data.Dataset.from_tensor_slices(data["unlabeled_ids"])
    dataset = dataset.shuffle(4000, seed=1).repeat().batch(64)
    return dataset.map(masked_words)


def model_fn(features, labels, mode):
    if mode == tf.estimator.ModeKeys.PREDICT:
        _, pooled = original.bert(features["input_ids"], False)
        return tf.estimator.EstimatorSpec(mode, predictions={"pooled": pooled})
    x, _ = original.bert(features["input_ids"], True)
    with v1.variable_scope("bert/embeddings", reuse=True):
        words = v1.get_variable("word_embeddings")
    with v1.variable_scope("cls/predictions"):
        with v1.variable_scope("transform"):
            x = original.layer_norm(original.dense(x, original.WIDTH, "dense", original.gelu))
        bias = v1.get_variable(
            "output_bias", [original.VOCAB_SIZE], initializer=v1.zeros_initializer()
        )
    logits = tf.einsum("blw,vw->blv", x, words) + bias
    loss = v1.losses.sparse_softmax_cross_entropy(
        labels, logits, tf.cast(features["masked"], tf.float32)
    )
    train_op = v1.train.AdamOptimizer(1e-3).minimize(loss, v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def save_weights(estimator, path):
    """Saves the weights without the optimizer's slots, as BERT's files have them."""
    names = [n for n in estimator.get_variable_names() if n.startswith(("bert", "cls"))]
    weights = [name for name in names if "/Adam" not in name]
    with tf.Graph().as_default(), v1.Session() as session:
        saver = v1.train.Saver({n: v1.Variable(estimator.get_variable_value(n)) for n in weights})
        session.run(v1.global_variables_initializer())
        saver.save(session, path, write_meta_graph=False, write_state=False)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--model_dir", required=True)
    args = parser.parse_args()
    data = dict(np.load(args.data))
    config = tf.estimator.RunConfig(model_dir=args.model_dir, tf_random_seed=1)
    estimator = tf.estimator.Estimator(model_fn, config=config)
    estimator.train(lambda: input_fn(data), max_steps=STEPS)
    save_weights(estimator, str(original.CHECKPOINT))

    def first_tests():
        return tf.data.Dataset.from_tensors({"input_ids": data["test_ids"][:3]})

    pooled = [each["pooled"] for each in estimator.predict(first_tests)]
    print(json.dumps({"pooled": [[round(float(x), 7) for x in row] for row in pooled]}))


if __name__ == "__main__":
    main()
