"""The norms of gradients and updates that training shows by module."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import pipeline as ge
from tests import fakes

RATE, CLIP = 0.5, 0.1
X = np.random.default_rng(0).normal(size=(12, 2)).astype(np.float32)
Y = X @ np.array([1.0, -2.0], np.float32) + 3


def model_fn(features, labels, mode, slope, shift, optimizer, late, params):
    """Regresses, by one op on two modules; or by a second op, on one of them."""
    error = tf.linalg.matvec(features, slope) + shift - labels
    first = [slope] if params["late"] else [slope, shift]
    ops = [ge.TrainOp(optimizer, first, clip_norm=CLIP)]
    if params["late"]:
        turn = {"sequential": True, "every": params["late"]}
        ops.append(ge.TrainOp(late, [shift], **turn))
    else:
        del late
        ops.append(ge.TrainOp(optimizer, [slope], loss=0 * error, sequential=True))
    return ge.EstimatorSpec(mode, loss=error**2, train_op=ops)


def trained(folder, *, late=0, clips=None, **options):
    """The last step's norms by name, and the gradients that it had."""
    estimator = ge.Estimator(
        model_fn,
        modules={
            "slope": lambda: tf.Variable([0.5, 0.5]),
            "shift": lambda: tf.Variable(0.25),
            "optimizer": lambda: keras.optimizers.SGD(RATE),
            "late": lambda: keras.optimizers.SGD(RATE, **clips or {}),
        },
        params={"late": late},
        config=ge.RunConfig(
            model_dir=str(folder),
            save_summary_steps=2,
            save_checkpoints_steps=1,
            log_norms=True,
            **options,
        ),
    )
    batch = 12 // options.get("gradient_accumulation_steps", 1)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch).repeat()
    estimator.train(lambda: data, max_steps=2)
    weights = [fakes.weights(folder, step) for step in (1, 2)]
    before, after = (
        [
            value
            for name in ("slope", "shift")
            for key, value in each.items()
            if name in key
        ]
        for each in weights
    )
    error = X @ before[0] + before[1] - Y
    gradients = 2 * (X * error[:, None]).mean(0), 2 * error.mean()
    events = EventAccumulator(str(folder))
    events.Reload()
    tags = [tag for tag in events.Tags()["scalars"] if "_norm/" in tag]
    points = {tag: events.Scalars(tag) for tag in tags}
    assert all([point.step for point in each] == [2] for each in points.values())
    found = {tag: each[0].value for tag, each in points.items()}
    moved = [np.linalg.norm(a - b) for a, b in zip(after, before, strict=True)]
    return found, [np.linalg.norm(each) for each in gradients], moved


def two_replicas():
    return tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


@pytest.mark.parametrize("replicas", [1, 2])
def test_norms_are_of_the_whole_batch(tmp_path, replicas):
    options = {"gradient_accumulation_steps": 3, "train_distribute": two_replicas()}
    options = options if replicas == 2 else {}
    found, (slope, shift), moved = trained(tmp_path, **options)
    scale = CLIP / np.hypot(slope, shift)
    assert found == pytest.approx(
        {
            "gradient_norm/slope/0": slope,
            "gradient_norm/shift": shift,
            "clipped_gradient_norm/slope/0": scale * slope,
            "clipped_gradient_norm/shift": scale * shift,
            "gradient_norm/slope/1": 0,
            "update_norm/slope": moved[0],
            "update_norm/shift": moved[1],
        },
        rel=1e-3,
        abs=1e-6,
    )
    assert moved[0] == pytest.approx(RATE * scale * slope, rel=1e-3)


@pytest.mark.parametrize("every", [1, 2, 3])
def test_an_op_that_is_not_due_has_no_norm(tmp_path, every):
    found, (slope, _), moved = trained(tmp_path, late=every)
    assert found["gradient_norm/slope"] == pytest.approx(slope, rel=1e-3)
    assert found["update_norm/shift"] == pytest.approx(moved[1], rel=1e-3)
    due = every < 3
    assert (found["gradient_norm/shift"] > 0) == (moved[1] > 0) == due


@pytest.mark.parametrize("clips", ["clipnorm", "global_clipnorm"])
def test_an_optimizer_may_clip_by_itself(tmp_path, clips):
    found, _, moved = trained(tmp_path, late=1, clips={clips: CLIP})
    assert found["gradient_norm/shift"] > 2 * CLIP
    assert found["clipped_gradient_norm/shift"] == pytest.approx(CLIP, rel=1e-3)
    assert moved[1] == pytest.approx(RATE * CLIP, rel=1e-3)


def test_losses_that_are_scaled_have_the_norms_of_those_that_are_not(tmp_path):
    """Of variables of float32, whose gradients are scaled all the same."""
    found, (slope, _), _ = trained(tmp_path, precision="mixed_float16")
    assert found["gradient_norm/slope/0"] == pytest.approx(slope, rel=1e-3)


def test_a_value_that_is_no_bool_is_refused():
    with pytest.raises(
        ValueError, match="log_norms is 'all': write one of False, True"
    ):
        ge.RunConfig(log_norms="all")
