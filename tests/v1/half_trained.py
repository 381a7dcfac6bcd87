"""A small program of tf.estimator, which tests/recorders/v1.py runs under TensorFlow 2.15."""

import numpy as np

RNG = np.random.default_rng(3)
X = RNG.normal(size=[70, 4]).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int64")
HALF, ALL = 5, 9


def estimator(tf, path):
    """Returns the estimator, for `tf.compat.v1` or `gin_estimator.v1`."""

    def model_fn(features, labels, mode, params):
        is_training = mode == tf.estimator.ModeKeys.TRAIN
        x = tf.layers.dense(
            features["x"],
            8,
            tf.nn.relu,
            kernel_initializer=tf.constant_initializer(np.linspace(-1, 1, 32).reshape(4, 8)),
        )
        x = tf.layers.batch_normalization(x, momentum=0.9, training=is_training)
        logits = tf.layers.dense(x, 2, kernel_initializer=tf.constant_initializer(0.1), name="out")
        classes = tf.argmax(logits, 1)
        if mode == tf.estimator.ModeKeys.PREDICT:
            return tf.estimator.EstimatorSpec(mode, predictions={"classes": classes})
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        loss = tf.identity(loss, name="the_loss")
        step = tf.train.get_or_create_global_step()
        rate = tf.train.exponential_decay(params["rate"], step, 4, 0.9, staircase=True)
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            train_op = tf.train.AdamOptimizer(rate).minimize(loss, global_step=step)
        metrics = {"accuracy": tf.metrics.accuracy(labels, classes), "auc": auc(tf, labels, logits)}
        return tf.estimator.EstimatorSpec(
            mode, loss=loss, train_op=train_op, eval_metric_ops=metrics
        )

    return tf.estimator.Estimator(model_fn, str(path), params={"rate": 0.05})


def auc(tf, labels, logits):
    return tf.metrics.auc(labels, tf.nn.softmax(logits)[:, 1])


def input_fn(tf, num_epochs=None):
    """Returns an input_fn of 8 batches of 8 and one of 6; endless if `num_epochs` is None."""
    return tf.estimator.inputs.numpy_input_fn(
        {"x": X}, Y, batch_size=8, shuffle=False, num_epochs=num_epochs
    )


def defaults(tf):
    """Returns the defaults of configurations and inputs."""
    config, spec = tf.estimator.RunConfig(), tf.estimator.EvalSpec(input_fn(tf))
    names = (
        "save_summary_steps",
        "save_checkpoints_secs",
        "save_checkpoints_steps",
        "keep_checkpoint_max",
        "keep_checkpoint_every_n_hours",
        "log_step_count_steps",
    )
    found = {name: getattr(config, name) for name in names}
    found |= {n: getattr(spec, n) for n in ("steps", "throttle_secs", "start_delay_secs", "name")}
    steps = tf.estimator.RunConfig(save_checkpoints_steps=7)
    found["secs beside steps"] = steps.save_checkpoints_secs
    found["max_steps"] = tf.estimator.TrainSpec(input_fn(tf)).max_steps
    return found
