"""One training, evaluation and prediction, as arrays that are equal on all strategies."""

import keras
import numpy as np
import tensorflow as tf

import gin_estimator as ge

# Batches of 32: the fourth has one example, so that all other replicas have none.
NUM_ROWS = 97
BATCH_SIZE = 32
STEPS_PER_PASS = 4
_RNG = np.random.default_rng(0)
X = _RNG.normal(size=(NUM_ROWS, 6)).astype("float32")
Y = _RNG.integers(3, size=NUM_ROWS)
CLIP_NORM, L2 = 0.2, 0.01
LAYERS = ("dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias")


def make_network():
    return keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(3)])


def make_optimizer():
    # A large epsilon: Adam would raise rounding errors of tiny gradients to whole steps.
    return keras.optimizers.Adam(0.01, epsilon=1e-3)


def model_fn(features, labels, mode, network, optimizer):
    logits = network(features, training=mode == ge.ModeKeys.TRAIN)
    if mode == ge.ModeKeys.PREDICT:
        return ge.EstimatorSpec(mode, predictions={"logits": logits})
    return ge.EstimatorSpec(
        mode,
        loss=keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True),
        regularization_losses=[L2 * tf.reduce_sum(v**2) for v in network.trainable_variables],
        train_op=ge.TrainOp(optimizer, network.trainable_variables, clip_norm=CLIP_NORM),
        metrics={"accuracy": ge.metric(keras.metrics.SparseCategoricalAccuracy, labels, logits)},
    )


def make_input_fn(*, per_replica, size=BATCH_SIZE):
    def batches(mode, size):
        data = X if mode == ge.ModeKeys.PREDICT else (X, Y)
        return tf.data.Dataset.from_tensor_slices(data), size

    def global_input_fn(mode):
        data, number = batches(mode, size)
        return data.batch(number)

    def replica_input_fn(mode, input_context):
        data, number = batches(mode, input_context.get_per_replica_batch_size(size))
        # Each worker takes its replicas' batches of each global batch.
        replicas = input_context.num_replicas_in_sync // input_context.num_input_pipelines
        data = data.batch(number)
        if input_context.num_input_pipelines == 1:
            return data
        first = input_context.input_pipeline_id * replicas
        index = data.enumerate().filter(
            lambda i, _: tf.logical_and(
                i % input_context.num_replicas_in_sync >= first,
                i % input_context.num_replicas_in_sync < first + replicas,
            )
        )
        return index.map(lambda _, batch: batch)

    return replica_input_fn if per_replica else global_input_fn


class Reports(ge.Hook):
    every_steps = 2

    def __init__(self):
        self.values = []

    def after_step(self, run):
        report = run.report
        self.values.append([report.loss, report.num_examples, report.metrics["accuracy"]])


def make_estimator(model_dir, **config):
    config = {"save_checkpoints_steps": STEPS_PER_PASS, "keep_checkpoint_max": None, **config}
    return ge.Estimator(
        model_fn,
        modules={"network": make_network, "optimizer": make_optimizer},
        config=ge.RunConfig(str(model_dir), tf_random_seed=1, **config),
    )


def variables(estimator):
    """Returns the values of the newest checkpoint by name, those of optimizers too."""
    values = {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def logits(estimator, *, per_replica, checkpoint_path=None):
    predictions = estimator.predict(
        make_input_fn(per_replica=per_replica), checkpoint_path=checkpoint_path
    )
    return np.array([each["logits"] for each in predictions])


def first_checkpoint(model_dir):
    return f"{model_dir}/model.ckpt-{STEPS_PER_PASS}"


def outcome(model_dir, *, per_replica, paths=(), **config):
    """Trains two passes; returns what all strategies must agree on.

    Args:
      model_dir: directory of the run.
      per_replica: whether the input yields batches of replicas.
      paths: checkpoints of other strategies to predict from.
      config: fields of RunConfig.
    """
    estimator, hook = make_estimator(model_dir, **config), Reports()
    size = BATCH_SIZE // config.get("gradient_accumulation_steps", 1)
    for _ in range(2):
        estimator.train(make_input_fn(per_replica=per_replica, size=size), hooks=[hook])
    found = {
        "reports": np.array(hook.values),
        "evaluation": estimator.evaluate(make_input_fn(per_replica=per_replica)),
        "logits": logits(estimator, per_replica=per_replica),
        "variables": variables(estimator),
        "restored": [
            logits(estimator, per_replica=per_replica, checkpoint_path=path) for path in paths
        ],
    }
    if estimator.config.is_chief:
        receiver = ge.build_raw_serving_input_receiver_fn(tf.TensorSpec([None, X.shape[1]]))
        path = estimator.export_saved_model(f"{model_dir}/export", receiver)
        serve = tf.saved_model.load(path).signatures["serving_default"]
        found["served"] = serve(features=tf.constant(X))["logits"].numpy()
    return found
