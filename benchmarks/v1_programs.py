"""Programs of tf.estimator, for `tf` of TensorFlow 2.15 or of v1.

Under TensorFlow 2.15 it runs alone: PYTHON benchmarks/v1_programs.py cnn. It reads numbers of
steps, a line each, and writes the seconds that they took.
"""

import sys
import tempfile
import time

import numpy as np


def data(tf, features, labels, batch_size):
    """Returns an input_fn of batches without end."""

    def input_fn():
        examples = tf.data.Dataset.from_tensor_slices((features, labels))
        return examples.repeat().batch(batch_size).prefetch(2)

    return input_fn


def cnn(tf):
    """Returns the estimator of TensorFlow's tutorial on layers, and its input_fn."""

    def model_fn(features, labels, mode):
        x = tf.reshape(features["x"], [-1, 28, 28, 1])
        for filters in (32, 64):
            x = tf.layers.conv2d(x, filters, 5, padding="same", activation=tf.nn.relu)
            x = tf.layers.max_pooling2d(x, 2, 2)
        x = tf.layers.dense(tf.layers.flatten(x), 1024, tf.nn.relu)
        x = tf.layers.dropout(x, 0.4, training=mode == tf.estimator.ModeKeys.TRAIN)
        logits = tf.layers.dense(x, 10)
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        optimizer = tf.train.GradientDescentOptimizer(0.001)
        train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    rng = np.random.default_rng(0)
    features = {"x": rng.random([2000, 784]).astype("float32")}
    labels = rng.integers(10, size=2000)
    return estimator_of(tf, model_fn), data(tf, features, labels, 100)


def wide_deep(tf):
    """Returns a canned estimator with columns such as those of the tutorial on the census."""
    columns, rng = tf.feature_column, np.random.default_rng(0)
    words = rng.integers(500, size=[5, 4000]).astype(str)
    features = {f"word{i}": row for i, row in enumerate(words)}
    features |= {f"number{i}": rng.random(4000).astype("float32") for i in range(5)}
    wide = [columns.categorical_column_with_hash_bucket(f"word{i}", 1000) for i in range(5)]
    deep = [columns.numeric_column(f"number{i}") for i in range(5)]
    estimator = tf.estimator.DNNLinearCombinedClassifier(
        tempfile.mkdtemp(),
        linear_feature_columns=[*wide, columns.crossed_column(["word0", "word1"], 1000)],
        dnn_feature_columns=[*deep, *(columns.embedding_column(each, 8) for each in wide)],
        dnn_hidden_units=[100, 75, 50, 25],
    )
    return estimator, data(tf, features, rng.integers(2, size=4000), 40)


def mlp(tf):
    """Returns the network of `models.mlp` of variables."""

    def model_fn(features, labels, mode):
        for name, size in (("hidden", 32), ("logits", 10)):
            with tf.variable_scope(name):
                kernel = tf.get_variable("kernel", [features.shape[-1], size])
                bias = tf.get_variable("bias", [size], initializer=tf.zeros_initializer())
                logits = tf.matmul(features, kernel) + bias
                features = tf.nn.relu(logits)
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        train_op = tf.train.AdamOptimizer().minimize(loss, tf.train.get_global_step())
        tf.summary.scalar("accuracy", tf.metrics.accuracy(labels, tf.argmax(logits, 1))[1])
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    rng = np.random.default_rng(0)
    x = rng.normal(size=[4096, 16]).astype("float32")
    return estimator_of(tf, model_fn), data(tf, x, rng.integers(10, size=4096), 32)


def estimator_of(tf, model_fn):
    """Returns an estimator in a temporary folder."""
    return tf.estimator.Estimator(model_fn, tempfile.mkdtemp())


def main(name):
    """Trains for each line of the standard input, one line longer to warm up."""
    import tensorflow.compat.v1 as tf

    class Clock(tf.train.SessionRunHook):
        def begin(self):
            self.times = []

        def after_run(self, run_context, run_values):
            self.times.append(time.perf_counter())

    tf.disable_v2_behavior()
    estimator, input_fn = globals()[name](tf)
    clock = Clock()
    for line in sys.stdin:
        estimator.train(input_fn, [clock], steps=2 * int(line))
        print(clock.times[-1] - clock.times[int(line) - 1], flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
