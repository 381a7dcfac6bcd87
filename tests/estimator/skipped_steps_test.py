"""Trainings that skip batches: after a loss of NaN, and by a LossGuard."""

import functools
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

import gin_estimator as ge
from like_a_tpu import LikeATpu
from small import X, Y, checkpoints, points, strategy, train_input, weights
from small import make as make_any

BAD = (2, 5, 6)  # Two of them follow each other in the second pass.
ROWS = np.stack([X[index : index + 8] for index in range(12)])
make = functools.partial(make_any, tf_random_seed=1)
LABELS = np.stack([Y[index : index + 8] for index in range(12)])


def indices():
    return tf.data.Dataset.range(12).shuffle(12, seed=5).repeat(2)


def batch_of(index, poison=np.nan):
    is_bad = tf.reduce_any(tf.equal(index, BAD))
    rows = tf.gather(ROWS, index)
    first = tf.where(is_bad, poison, 1.0) * rows[:1]
    return tf.concat([first, rows[1:]], 0), tf.gather(LABELS, index)


def poisoned():
    return indices().map(batch_of)


def clean():
    return indices().filter(lambda index: ~tf.reduce_any(tf.equal(index, BAD))).map(batch_of)


def spikes():
    def scaled(index):
        is_bad = tf.reduce_any(tf.equal(index, BAD))
        rows, labels = batch_of(index, 1.0)
        return rows * tf.where(is_bad, 1e4, 1.0), labels

    return indices().map(scaled)


def not_saved():
    """Yields batches whose position cannot be saved, so that a restart skips them."""
    return (
        poisoned()
        .map(lambda x, y: (tf.numpy_function(np.copy, [x], tf.float32), y))
        .map(lambda x, y: (tf.ensure_shape(x, [8, 4]), y))
    )


class Guarded(ge.hooks.LossGuard):
    """Records the calls."""

    begins = 0

    def begin(self, run):
        super().begin(run)
        self.begins += 1


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Returns the weights of a training without the bad batches."""
    return weights(make(tmp_path_factory.mktemp("clean")).train(clean))


@pytest.fixture(scope="module")
def restored(tmp_path_factory):
    """Returns an Estimator that has skipped six batches, and its log."""
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logging.getLogger("absl").addHandler(handler)
    one = make(
        tmp_path_factory.mktemp("restored"), on_nan="restore", max_skipped_steps=6,
        save_checkpoints_steps=5, save_summary_steps=1,
    )  # fmt: skip
    one.train(poisoned)
    logging.getLogger("absl").removeHandler(handler)
    return one, "\n".join(records)


def test_batches_that_hold_nan_are_as_if_they_had_not_been_in_the_data(restored, expected):
    one, log = restored
    np.testing.assert_array_equal(weights(one), expected)
    assert log.count("is skipped") == 6
    assert log.count("of the pass is skipped, NaN or Inf in features, examples 0 |") == 6
    assert checkpoints(one.model_dir) == [0, 5, 10, 15, 18]
    assert sorted(points(one.model_dir)["loss"]) == [*range(1, 19)]


def test_plain_tensorflow_reads_a_bad_batch_and_the_weights_before_it(restored):
    one, _ = restored
    folders = sorted(tf.io.gfile.glob(f"{one.model_dir}/bad_batches/*"))
    assert len(folders) == 6 and any(each.endswith("-2") for each in folders)
    [(x, y)] = tf.data.Dataset.load(f"{folders[0]}/batches/000-000")
    assert x.shape == (8, 4) and np.isnan(x[0]).all() and np.isfinite(x[1:]).all() and len(y) == 8
    reader = tf.train.load_checkpoint(folders[0])
    assert np.isfinite(
        reader.get_tensor("network/000/dense/kernel/.ATTRIBUTES/VARIABLE_VALUE")
    ).all()


@pytest.mark.slow
def test_a_position_that_cannot_be_saved_is_skipped_to(tmp_path, expected):
    one = make(tmp_path, on_nan="restore", max_skipped_steps=6, save_checkpoints_steps=5)
    np.testing.assert_array_equal(weights(one.train(not_saved)), expected)


@pytest.mark.slow
def test_a_guard_skips_spikes_and_keeps_its_window(tmp_path, expected):
    guard = Guarded(max_loss=100.0, spike=50.0, window=3)
    one = make(tmp_path, max_skipped_steps=6, save_checkpoints_steps=5)
    one.train(spikes, [guard], max_steps=9)
    window = guard.state()
    assert len(window) == 3 and guard.begins > 1
    again = Guarded(max_loss=100.0, spike=50.0, window=3)
    one.train(spikes, [again], max_steps=18)
    np.testing.assert_array_equal(weights(one), expected)
    assert again.state() != window


def test_a_guard_stops_with_a_checkpoint_or_warns(tmp_path, caplog):
    one = make(tmp_path)
    one.train(spikes, [ge.hooks.LossGuard(max_loss=100.0, on="stop")])
    [reason] = one.last_run.stop_reasons
    step = one.last_run.step
    assert reason.startswith("LossGuard: the loss is ") and "above max_loss=100" in reason
    assert checkpoints(tmp_path) == [0, step]
    one.train(spikes, [ge.hooks.LossGuard(max_loss=-1.0, on="warn")], max_steps=step + 1)
    assert f"in step {step + 1}, above max_loss=-1" in caplog.text


class Above(ge.Hook):
    """Asks to skip the steps whose loss is above a limit."""

    wants_losses = True

    def __init__(self, limit, ends=False):
        self.limit, self.ends = limit, ends

    def after_loop(self, run):
        losses = run.report.losses
        for index in np.flatnonzero(losses > self.limit)[:1]:
            step = run.step - len(losses) + 1 + int(index)
            run.skip_step(step, f"step {step} is above {self.limit}", ends=self.ends)


@pytest.mark.slow
def test_a_hook_of_the_user_skips_batches(tmp_path, expected, caplog):
    one = make(tmp_path, max_skipped_steps=6, save_checkpoints_steps=5)
    np.testing.assert_array_equal(weights(one.train(spikes, [Above(100.0)])), expected)
    assert caplog.text.count("is skipped, all of it is finite | step") == 6
    with pytest.raises(ge.NanLossDuringTrainingError, match="step 19 is above -1"):
        one.train(spikes, [Above(-1.0, ends=True)])
    unsaved = make(tmp_path / "unsaved", save_checkpoints_steps=0)
    with pytest.raises(ge.UserError, match=r"skip_step\(1\) was called, and .*request_stop"):
        unsaved.train(spikes, [Above(-1.0)], max_steps=1)


@pytest.mark.slow
def test_two_train_ops_on_two_replicas_skip_the_batches(tmp_path):
    def model_fn(features, labels, mode, network, optimizer, other):
        logits = network(features)
        loss = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        first, second = (layer.trainable_variables for layer in network.layers)
        ops = [
            ge.TrainOp(optimizer, first),
            ge.TrainOp(other, second, loss=loss**2, every=2, sequential=True),
        ]
        return ge.EstimatorSpec(mode, loss=loss, train_op=ops)

    def trained(name, input_fn, **options):
        modules = {
            "network": lambda: keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(3)]),
            "optimizer": lambda: keras.optimizers.Adam(0.01),
            "other": lambda: keras.optimizers.SGD(0.1),
        }
        config = ge.RunConfig(
            str(tmp_path / name),
            tf_random_seed=1,
            train_distribute=strategy("mirrored 2"),
            **options,
        )
        return weights(ge.Estimator(model_fn, modules=modules, config=config).train(input_fn))

    options = {"on_nan": "restore", "max_skipped_steps": 6, "save_checkpoints_steps": 5}
    np.testing.assert_array_equal(trained("poisoned", poisoned, **options), trained("clean", clean))


def test_the_replay_of_a_finite_step_names_losses_gradients_and_what_the_update_breaks(tmp_path):
    # The first step overflows by the loss scale alone, not by the batch.
    one = make(tmp_path, on_nan="restore", precision="mixed_float16")
    one.train(lambda: data_of(100.0), max_steps=1)
    assert float(one.state.loss_scale.value) < 2**15 and not list(tmp_path.glob("bad_batches"))
    with pytest.raises(ge.NanLossDuringTrainingError, match="Its batches are in"):
        one.train(lambda: data_of(100.0), [Above(-1.0, ends=True)])
    [folder] = tmp_path.glob("bad_batches/*")
    lines = [line.strip() for line in ge.debug.replay(one, folder)]
    assert "loss and gradients are finite" in lines and len(lines) == 3 + 1 + 5 + 4
    losses = [float(line.split()[1]) for line in lines if " of example " in line]
    norms = [float(line.split()[2]) for line in lines if line.startswith("gradient norm ")]
    assert losses == sorted(losses, reverse=True) and norms == sorted(norms, reverse=True)

    hot = make(tmp_path, precision="mixed_float16", optimizer=lambda: keras.optimizers.SGD(3e38))
    lines = [line.strip() for line in ge.debug.replay(hot, folder)]
    assert "loss and gradients are finite" in lines
    assert "NaN or Inf after the update: network/dense/kernel" in lines


def data_of(scale):
    return tf.data.Dataset.from_tensor_slices((scale * X, Y)).batch(8)


def test_a_bad_batch_is_recorded_and_replayed(tmp_path):
    one = make(tmp_path, on_nan="dump", save_checkpoints_steps=2, gradient_accumulation_steps=2)
    with pytest.raises(ge.NanLossDuringTrainingError, match="--job=replay --bad_batch="):
        one.train(poisoned)
    [folder] = tf.io.gfile.glob(f"{tmp_path}/bad_batches/*")
    step = int(folder.rpartition("-")[2])
    assert max(checkpoints(tmp_path)) < step
    before = weights(one)
    lines = ge.debug.replay(one, folder)
    assert f"NaN or infinite in step {step}" in lines[1]
    assert "  NaN or Inf before the step: features, examples 0" in lines
    assert any(line.endswith("in model_fn") for line in lines), lines  # Of the operation.
    assert "batch 2 of 2:" in lines and "  loss and gradients are finite" in lines
    np.testing.assert_array_equal(weights(one), before)
    for path in (tmp_path, f"{tmp_path}/bad_batches/step-99"):
        with pytest.raises(ge.errors.UserValueError, match=rf"bad_batch=.*/step-{step}'"):
            ge.debug.replay(one, path)
    tf.io.gfile.remove(f"{folder}/bad_batch.json")
    with pytest.raises(ge.errors.UserValueError, match="and found none"):
        ge.debug.replay(one, folder)


def root_fn(features, labels, mode, network, optimizer):
    """Computes a finite loss, whose gradient is NaN if the first feature of an example is 0."""
    logits = network(features, training=mode == ge.ModeKeys.TRAIN)
    scores = tf.reduce_sum(logits, axis=-1) * features[:, 0]
    return ge.EstimatorSpec(
        mode, loss=tf.sqrt(scores**2), train_op=ge.TrainOp(optimizer, network.trainable_variables)
    )


def zeros():
    return indices().map(lambda index: batch_of(index, 0.0))


@pytest.mark.slow
def test_a_gradient_of_nan_belongs_to_its_own_step(tmp_path, caplog):
    one = make(tmp_path, fn=root_fn, on_nan="restore", save_checkpoints_steps=1)
    with pytest.raises(
        ge.NanLossDuringTrainingError, match="more than max_skipped_steps=5"
    ) as error:
        one.train(zeros)
    assert str(error.value).count("a gradient is NaN or infinite in step") == 6
    assert caplog.text.count("is skipped, all of it is finite") == 5
    folder = sorted(tf.io.gfile.glob(f"{tmp_path}/bad_batches/*"))[0]
    lines = "\n".join(ge.debug.replay(one, folder))
    assert 'eagerly-executing op "SqrtGrad"' in lines, lines


def test_what_cannot_return_to_a_checkpoint_is_refused(tmp_path):
    for hooks, options, name in (
        ([], {"on_nan": "restore"}, "RunConfig.on_nan is 'restore'"),
        ([ge.hooks.LossGuard(spike=2.0)], {}, "LossGuard.on is 'restore'"),
    ):
        one = make(tmp_path, save_checkpoints_steps=0, **options)
        with pytest.raises(ge.UserError, match=f"{name}, and RunConfig.save_checkpoints"):
            one.train(train_input, hooks, max_steps=1)
        assert one.state.step == 0
    for arguments, text in (
        ({}, "max_loss and LossGuard.spike are None"),
        ({"spike": 1.0}, "spike is 1.0: expected a number > 1"),
        ({"max_loss": np.nan}, "max_loss is nan: expected a number"),
        ({"spike": 2.0, "window": 0}, "window is 0: expected an int > 0"),
        ({"spike": 2.0, "on": "skip"}, "on is 'skip': expected 'restore', 'stop' or 'warn'"),
    ):
        with pytest.raises(ge.errors.UserValueError, match=text):
            ge.hooks.LossGuard(**arguments)


def test_a_tpu_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(tf.distribute, "TPUStrategy", LikeATpu)

    def static_input():
        return tf.data.Dataset.from_tensor_slices((X, Y)).batch(8, drop_remainder=True)

    for hooks, options, text in (
        ([], {"on_nan": "restore"}, "on_nan is 'restore', .* on a TPU: .*Set on_nan='stop'"),
        ([], {"on_nan": "dump"}, "on_nan is 'dump', .* on a TPU: .*Set on_nan='stop'"),
        (
            [ge.hooks.LossGuard(spike=2.0)],
            {},
            "LossGuard.on is 'restore', .* on a TPU: .*Set on='stop'",
        ),
    ):
        one = make(tmp_path, train_distribute=LikeATpu(), **options)
        with pytest.raises(ge.errors.UserValueError, match=text):
            one.train(static_input, hooks, max_steps=1)
        assert one.state.step == 0
