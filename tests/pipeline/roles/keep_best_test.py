"""KeepBest: what stays along a training, over restarts, and by an evaluator job."""

import json
import pathlib
import re

import keras
import numpy as np
import pytest

import pipeline as ge
from pipeline.checkpoints import checkpoint
from pipeline.model_dir import best
from pipeline.roles import evaluation
from pipeline.roles.keep_best import is_higher_better
from tests import evaluator_world, fakes

X, Y = fakes.classification_data(rows=48)
TRAIN = fakes.make_input_fn(X, Y, batch_size=8, change=lambda d: d.repeat())
EVAL = fakes.make_input_fn(X, Y, batch_size=24)
# The best of the checkpoints 2, 4, ... by the metric `height`: neither first nor last.
HEIGHTS = {2: 1.0, 4: 5.0, 6: 3.0, 8: 5.0, 10: 4.0}


def scheduled_fn(features, labels, mode, network, optimizer, step):
    """A model whose metric `height` is known for each step."""
    logits = network(features)
    if mode == ge.ModeKeys.PREDICT:
        return ge.EstimatorSpec(mode, predictions={"logits": logits})
    heights = keras.ops.take(
        np.array([HEIGHTS.get(n, 0.0) for n in range(11)], np.float32), step
    )
    return ge.EstimatorSpec(
        mode,
        loss=keras.losses.sparse_categorical_crossentropy(labels, logits, True),
        train_op=ge.TrainOp(optimizer, network.trainable_variables),
        metrics={"height": heights, "rows": ge.metric(keras.metrics.Sum, labels * 0)},
    )


def make(model_dir, **config):
    return fakes.make_estimator(
        model_dir,
        model_fn=scheduled_fn,
        **{
            "save_checkpoints_steps": 2,
            "keep_checkpoint_max": 1,
            "run_eagerly": True,
            **config,
        },
    )


def run(estimator, *keep, max_steps=10, hooks=(), **spec):
    keep = keep or (ge.KeepBest("height", 2, higher_is_better=True),)
    eval_spec = ge.EvalSpec(EVAL, throttle_secs=0, keep_best=keep, **spec)
    train_spec = ge.TrainSpec(TRAIN, max_steps=max_steps, hooks=hooks)
    return ge.train_and_evaluate(estimator, train_spec, eval_spec)


def listed(model_dir, metric="height", evaluation="eval"):
    content = json.loads((pathlib.Path(model_dir) / best.FILE).read_text())
    return [each["step"] for each in content[evaluation][metric]["best"]]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_best_stay_along_a_training(asynchronous, tmp_path):
    run(make(tmp_path, async_checkpoint=asynchronous, run_eagerly=False))
    assert listed(tmp_path) == [4, 8]
    assert fakes.checkpoint_steps(tmp_path) == [4, 8, 10]
    # What belongs to them stays, too.
    assert (tmp_path / "hooks/model.ckpt-4.json").exists()
    assert [p.name for p in tmp_path.glob("input/model.ckpt-4.*")]


class Killed(Exception):
    """The end of a process."""


KILLS = {
    "before the evaluation": ("evaluate", "before", 8),
    "after the evaluation, before the line": ("evaluate", "after", 4),
    "after the line and the file, before the next save": ("record", "after", 8),
}


@pytest.mark.parametrize("kill", KILLS)
def test_killed_and_resumed_keeps_the_same(kill, tmp_path, monkeypatch):
    method, moment, step = KILLS[kill]
    original = getattr(evaluation.Evaluation, method)

    def until_killed(self, *args, **kwargs):
        at = self._estimator.global_step == step
        if at and moment == "before":
            raise Killed
        original(self, *args, **kwargs)
        if at:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(evaluation.Evaluation, method, until_killed)
        with pytest.raises(Killed):
            run(make(tmp_path))
    run(make(tmp_path))
    assert listed(tmp_path) == [4, 8]
    assert fakes.checkpoint_steps(tmp_path) == [4, 8, 10]


def test_killed_between_the_line_and_the_file(tmp_path, monkeypatch):
    run(make(tmp_path), max_steps=4)
    with monkeypatch.context() as patched:
        written = evaluation.write_best
        patched.setattr(
            evaluation,
            "write_best",
            # It is called at the start, too, with an argument more.
            lambda *args, **start: written(*args, **start) if start else 1 / 0,
        )
        with pytest.raises(ZeroDivisionError):
            run(make(tmp_path), max_steps=6)
    run(make(tmp_path))
    assert listed(tmp_path) == [4, 8]


def test_training_alone_respects_what_was_best(tmp_path):
    run(make(tmp_path), max_steps=6)
    make(tmp_path).train(TRAIN, max_steps=10)
    assert fakes.checkpoint_steps(tmp_path) == [4, 6, 10]


def test_where_training_begins_anew_old_lines_do_not_count(tmp_path):
    run(make(tmp_path), max_steps=4)
    for file in tmp_path.glob("model.ckpt-*"):
        file.unlink()
    (tmp_path / "checkpoint").unlink()
    estimator = fakes.make_estimator(
        tmp_path, model_fn=scheduled_fn, save_checkpoints_steps=2, tf_random_seed=2
    )
    estimator.train(TRAIN, max_steps=4)
    with pytest.raises(ValueError, match="has a number as height of a checkpoint that"):
        estimator.evaluate(EVAL, checkpoint_path="best")


def test_the_best_one_is_asked_for_by_name(tmp_path):
    estimator = make(tmp_path / "a")
    run(estimator)
    for given in ("best", "best/height", f"{tmp_path}/a/best"):
        assert estimator.evaluate(EVAL, checkpoint_path=given)["global_step"] == 4
    assert estimator.evaluate(EVAL, checkpoint_path="latest")["global_step"] == 10
    of_best = next(estimator.predict(EVAL, checkpoint_path="best"))
    four = next(estimator.predict(EVAL, checkpoint_path=f"{tmp_path}/a/model.ckpt-4"))
    np.testing.assert_array_equal(of_best["logits"], four["logits"])
    path = estimator.export_weights("network", f"{tmp_path}/w.weights.h5")
    network = fakes.network()
    network.build((None, 6))
    network.load_weights(path)
    assert not np.allclose(network(X[:1])[0], four["logits"])
    estimator.export_weights("network", path, checkpoint_path="best")
    network.load_weights(path)
    np.testing.assert_allclose(network(X[:1])[0], four["logits"], rtol=1e-5)
    # Another run begins with it.
    warm = ge.Estimator(
        scheduled_fn,
        modules={"network": fakes.network, "optimizer": fakes.adam},
        config=ge.RunConfig(model_dir=str(tmp_path / "b")),
        warm_start_from=f"{tmp_path}/a/best",
    )
    found = next(warm.predict(EVAL))
    np.testing.assert_allclose(found["logits"], four["logits"], rtol=1e-5)


# What is refused.


@pytest.mark.parametrize(
    ("keep", "metrics"),
    [("hight", "Did you mean height?"), ("accuracy", "'height', 'loss', 'rows'")],
)
def test_a_metric_that_is_not_there_is_told_before_training(keep, metrics, tmp_path):
    with pytest.raises(KeyError) as error:
        run(make(tmp_path), ge.KeepBest(keep, higher_is_better=True))
    assert (
        f"KeepBest('{keep}') goes by a metric that the evaluation does not have."
        in (str(error.value))
    )
    assert metrics in str(error.value)
    assert fakes.checkpoint_steps(tmp_path) == []


def test_nothing_is_kept_where_nothing_is_saved(tmp_path):
    with pytest.raises(
        ValueError, match="save_checkpoints_steps=0 saves no checkpoint"
    ):
        run(make(tmp_path, save_checkpoints_steps=0))


REFUSED = {
    "metric": (lambda: ge.KeepBest(3), "KeepBest.metric is 3: write the name"),
    "k": (lambda: ge.KeepBest("loss", 0), "KeepBest.k is 0: write an int > 0"),
    "direction": (
        lambda: ge.KeepBest("height"),
        "KeepBest('height') does not say whether more is better: write KeepBest(",
    ),
    "no direction": (
        lambda: ge.KeepBest("loss", higher_is_better=1),
        "KeepBest.higher_is_better is 1: write True or False.",
    ),
    "twice": (
        lambda: ge.EvalSpec(EVAL, keep_best=[ge.KeepBest("loss"), ge.KeepBest("loss")]),
        "EvalSpec.keep_best names the metrics ['loss', 'loss']: give one KeepBest",
    ),
    "a name": (
        lambda: ge.EvalSpec(EVAL, keep_best="loss"),
        "EvalSpec.keep_best is str 'loss', not a list",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_is_refused(case):
    make_it, words = REFUSED[case]
    with pytest.raises((TypeError, ValueError), match=re.escape(words)):
        make_it()


@pytest.mark.parametrize(
    ("metric", "higher"),
    [
        ("accuracy", True),
        ("ema/top_5_accuracy", True),
        ("AUC", True),
        ("loss", False),
        ("valMSE", False),
        ("word_error", False),
        ("loss_of_accuracy", None),
        ("height", None),
    ],
)
def test_the_name_says_what_is_better(metric, higher):
    if higher is None:
        with pytest.raises(ValueError, match="write KeepBest"):
            is_higher_better(metric)
    else:
        assert (
            is_higher_better(metric) is ge.KeepBest(metric).higher_is_better is higher
        )


# Beside an evaluator job.


def test_an_evaluator_says_what_is_best_and_the_training_keeps_it(tmp_path):
    """The fake's loss falls with the step: the first is the highest."""
    world = evaluator_world.World(tmp_path, keep_max=1)
    world.at(0, lambda: world.save(5))
    world.at(30, lambda: world.save(10))
    world.at(60, lambda: world.save(15))
    world.at(90, lambda: world.end(15))
    world.run(keep_best=ge.KeepBest("loss", higher_is_better=True))
    assert world.evaluated == [5, 10, 15]
    assert listed(tmp_path, "loss") == [5]
    assert fakes.checkpoint_steps(tmp_path) == [5, 15]
    assert checkpoint.latest(str(tmp_path)).endswith("-15")
