"""Trains on one of ten pipelines: `train.py PIPELINE MODEL_DIR RESULT LAST_STEP`.

PROGRAM=average accumulates gradients and averages weights; PROGRAM=gan trains two networks on
two replicas; PROGRAM=counted also counts the examples, by `numbers`.

Prints `STEP n`, and stops at step LAST_STEP to wait for its end, if that is before NUM_STEPS.
At NUM_STEPS it writes the weights to RESULT. KILL_AT=PLACE kills it in its third save.
"""

import os
import signal
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import gin_estimator as ge
from gin_estimator.checkpoint import files, retention

NUM_STEPS = 240
RNG = np.random.default_rng(0)
ROWS = 97
X = RNG.normal(size=(ROWS, 8)).astype("float32")
Y = RNG.integers(3, size=ROWS)
Dataset = tf.data.Dataset


def rows():
    return Dataset.from_tensor_slices((X, Y))


def shuffle():
    return rows().shuffle(ROWS, seed=3).repeat().batch(31).prefetch(2)


def nested_shuffles():
    parts = Dataset.range(7).shuffle(7, seed=1)
    data = parts.interleave(lambda i: rows().shard(7, i).shuffle(5, seed=2), cycle_length=3)
    return data.shuffle(20, seed=3).batch(31).repeat().prefetch(2)


def interleave():
    parts = Dataset.range(7).shuffle(7).repeat()
    data = parts.interleave(
        lambda i: Dataset.range(i * 13, i * 13 + 13), cycle_length=3, num_parallel_calls=2
    )
    return data.map(lambda i: (tf.gather(X, i), tf.gather(Y, i))).shuffle(20).batch(31)


def cache():
    data = rows().map(lambda x, y: (x * 2, y), num_parallel_calls=2).cache()
    return data.shuffle(50).batch(31).repeat()


def zipped():
    return (
        Dataset.zip(tuple(rows().map(part).shuffle(40, seed=1) for part in PARTS))
        .repeat()
        .batch(31)
    )


PARTS = (lambda x, y: x, lambda x, y: y)


def flat_map():
    return Dataset.range(5).repeat().flat_map(lambda i: rows().shard(5, i)).batch(31)


def padded_batch():
    data = rows().shuffle(ROWS, seed=3).repeat()
    return data.map(lambda x, y: (x[: y + 2], y)).padded_batch(20, ([8], []))


def repeats():
    return rows().shuffle(30).repeat(2).batch(20).shuffle(4).repeat()


def records(input_context):
    """Yields the batches of one replica, with a ragged end in each pass."""
    folder = os.path.dirname(os.path.dirname(sys.argv[2]))
    files = sorted(tf.io.gfile.glob(os.path.join(folder, "*.tfrecord")))
    data = Dataset.from_tensor_slices(files).shuffle(len(files), seed=5)
    data = data.interleave(tf.data.TFRecordDataset).shard(
        input_context.num_input_pipelines, input_context.input_pipeline_id
    )
    data = data.map(lambda row: tf.ensure_shape(tf.io.parse_tensor(row, tf.float32), [9]))
    data = data.shuffle(30, seed=6).batch(input_context.get_per_replica_batch_size(30)).repeat()
    return data.map(lambda row: (row[:, :8], tf.cast(row[:, 8], tf.int64)))


def numpy_function():
    data = rows().shuffle(ROWS).repeat()

    def doubled(x, y):
        x = tf.numpy_function(lambda value: value * 2, [x], tf.float32)
        return tf.ensure_shape(x, [8]), y

    return data.map(doubled).batch(31)


def numbers():
    return Dataset.range(ROWS).shuffle(ROWS).repeat().batch(31)


PIPELINES = {
    fn.__name__: fn
    for fn in (
        shuffle, nested_shuffles, interleave, cache, zipped, flat_map, padded_batch, repeats,
        records, numpy_function, numbers,
    )
}  # fmt: skip


def write_records(folder):
    """Writes the rows to three files."""
    for index in range(3):
        with tf.io.TFRecordWriter(os.path.join(folder, f"{index}.tfrecord")) as writer:
            for x, y in zip(X[index::3], Y[index::3], strict=True):
                writer.write(tf.io.serialize_tensor(np.append(x, np.float32(y))).numpy())


def make_network():
    layers = keras.layers
    several = (
        [] if "TF_CONFIG" in os.environ else [layers.BatchNormalization(), layers.Dropout(0.2)]
    )
    return keras.Sequential([layers.Dense(16, "relu"), *several, layers.Dense(3)])


def model_fn(features, labels, mode, network, optimizer):
    logits = network(features, training=mode == ge.ModeKeys.TRAIN)
    return ge.EstimatorSpec(
        mode,
        loss=keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True),
        train_op=ge.TrainOp(optimizer, network.trainable_variables),
    )


def gan_fn(features, labels, mode, network, optimizer, critic, critic_optimizer):
    logits = network(features, training=mode == ge.ModeKeys.TRAIN)
    false, true = critic(logits), critic(tf.one_hot(labels, 3))
    critic_loss = tf.reduce_mean(tf.nn.softplus(false) + tf.nn.softplus(-true))
    return ge.EstimatorSpec(
        mode,
        loss=tf.reduce_mean(tf.nn.softplus(-false)),
        train_op=[
            ge.TrainOp(critic_optimizer, critic.trainable_variables, loss=critic_loss),
            ge.TrainOp(optimizer, network.trainable_variables, every=2),
        ],
    )


def counted_fn(features, mode, network, optimizer, counts, counter):
    """Adds 1 to `counts` for each example, by the gradient of the sum of a batch."""
    spec = model_fn(tf.gather(X, features), tf.gather(Y, features), mode, network, optimizer)
    each = -31 * tf.gather(counts, features)
    return ge.EstimatorSpec(
        mode, loss=spec.loss, train_op=[*spec.train_op, ge.TrainOp(counter, [counts], loss=each)]
    )


def adam():
    return keras.optimizers.Adam(0.01)


# model_fn, modules beside those of all programs, and options of RunConfig.
PROGRAMS = {
    "": (model_fn, {}, {}),
    "average": (
        model_fn,
        {},
        {"gradient_accumulation_steps": 2, "average": ge.ExponentialAverage(0.9)},
    ),
    "gan": (
        gan_fn,
        {"critic": lambda: keras.layers.Dense(1), "critic_optimizer": adam},
        {"devices": ("CPU:0", "CPU:1")},
    ),
    "counted": (
        counted_fn,
        {
            "network": lambda: keras.Sequential(
                [keras.layers.Dense(16, "relu"), keras.layers.Dense(3)]
            ),
            "counts": lambda: tf.Variable(tf.zeros([ROWS])),
            "counter": lambda: keras.optimizers.SGD(1.0),
        },
        {},
    ),
}


class Slow(ge.Hook):
    """Makes training so slow that it can be killed at any step."""

    every_steps = 5

    def after_step(self, run):
        print("STEP", run.step, flush=True)
        time.sleep(0.02 if run.step < last_step else 600)


def kill_at(place):
    """Kills this process in its third save, with the files that a kill leaves at a place.

    Args:
      place: "position": a position without index; "data": data without index; "half_index";
        "index": before the file `checkpoint` names it; "commit": after that; "deletion": when
        the first file of an old checkpoint is deleted.
    """
    calls = {"position": 0, "data": 0, "commit": 0}
    write, commit, remove = tf.train.Checkpoint.write, retention.commit, files._remove

    def is_third(kind):
        calls[kind] += 1
        return calls[kind] == 3

    def die():
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    def write_and_die(self, path, *args, **kwargs):
        write(self, path, *args, **kwargs)
        kind = "position" if os.path.dirname(path).endswith("/input") else "data"
        if not is_third(kind) or (place == "position") != (kind == "position"):
            return
        if place in ("position", "data"):
            os.remove(f"{path}.index")
        elif place == "half_index":
            os.truncate(f"{path}.index", os.path.getsize(f"{path}.index") // 2)
        if place in (kind, "half_index", "index"):
            die()

    def commit_and_die(*args):
        commit(*args)
        if place == "commit" and is_third("commit"):
            die()

    def remove_and_die(path):
        remove(path)
        if place == "deletion":
            die()

    tf.train.Checkpoint.write, retention.commit = write_and_die, commit_and_die
    files._remove = remove_and_die


if __name__ == "__main__":
    if "KILL_AT" in os.environ:
        kill_at(os.environ["KILL_AT"])
    name, model_dir, result, last_step = sys.argv[1:]
    last_step = int(last_step)
    fn, modules, options = PROGRAMS[os.environ.get("PROGRAM", "")]
    estimator = ge.Estimator(
        fn,
        modules={"network": make_network, "optimizer": adam, **modules},
        config=ge.RunConfig(
            model_dir,
            tf_random_seed=1,
            save_checkpoints_steps=7,
            save_summary_steps=None,
            execution="multi_worker" if "TF_CONFIG" in os.environ else "single_host",
            **options,
        ),
    )
    hooks = [Slow()] if last_step < NUM_STEPS else []
    estimator.train(PIPELINES[name], max_steps=NUM_STEPS, hooks=hooks)
    weights = [variable.numpy().ravel() for variable in estimator.state.variables().values()]
    np.save(result, np.concatenate(weights))
    if "counts" in modules:
        print("COUNTS", estimator.state.modules["counts"].numpy().tolist())
