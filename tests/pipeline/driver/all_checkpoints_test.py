"""Every checkpoint of a run that has ended, evaluated as a table and a curve."""

import pathlib

import pytest
import tensorflow as tf
from absl.flags import Error

import pipeline as ge
from pipeline.command import flags, jobs
from tests import fakes

X, Y = fakes.classification_data(rows=40)
TRAIN = fakes.make_input_fn(X, Y, batch_size=8, change=lambda rows: rows.repeat())
EVAL = fakes.make_input_fn(X, Y, batch_size=40)


@pytest.fixture
def estimator(tmp_path):
    made = fakes.make_estimator(
        tmp_path, save_checkpoints_steps=2, keep_checkpoint_max=3, run_eagerly=True
    )
    return made.train(TRAIN, max_steps=7)


def points(folder):
    """The steps of the losses in the events of a folder, in their order."""
    (path,) = pathlib.Path(folder).glob("events*")
    return [
        event.step
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
        if value.tag == "loss"
    ]


def test_each_is_evaluated_in_order_as_by_itself(estimator, tmp_path, log):
    found = estimator.evaluate(EVAL, name="again", all_checkpoints=True)
    assert [each["global_step"] for each in found] == [4, 6, 7]
    path = f"{tmp_path}/model.ckpt-6"
    assert found[1] == estimator.evaluate(EVAL, checkpoint_path=path)
    assert points(tmp_path / "eval_again") == [4, 6, 7]
    (said,) = [line for line in log() if line.startswith("eval | all checkpoints")]
    _, head, *rows = said.split("\n")
    assert head.split() == ["global_step", "loss", "accuracy", "examples"]
    assert [row.split()[0] for row in rows] == ["4", "6", "7"]
    assert float(rows[1].split()[1]) == pytest.approx(found[1]["loss"], rel=1e-5)


def test_what_is_damaged_is_left_out_and_said(estimator, tmp_path, log):
    (tmp_path / "model.ckpt-6.data-00000-of-00001").write_bytes(b"")
    found = estimator.evaluate(EVAL, all_checkpoints=True)
    assert [each["global_step"] for each in found] == [4, 7]
    assert any("model.ckpt-6 is left out" in line for line in log())


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"all_checkpoints": 3}, "all_checkpoints is int 3: write all_checkpoints=Tru"),
        (
            {"all_checkpoints": True, "checkpoint_path": "best"},
            "all_checkpoints=True and checkpoint_path='best' exclude each other: leave",
        ),
        ({"all_checkpoints": True}, "has no checkpoint to evaluate: train first, or"),
    ],
)
def test_refused(fields, text, tmp_path):
    estimator = fakes.make_estimator(tmp_path)
    with pytest.raises((TypeError, ValueError)) as error:
        estimator.evaluate(EVAL, **fields)
    assert text in str(error.value)


def test_the_command_prints_the_table(estimator):
    title, head, *rows = jobs.evaluate_all(estimator, ge.EvalSpec(EVAL, name="again"))
    assert title == "evaluation again"
    assert head.split() == ["global_step", "loss", "accuracy", "examples"]
    assert [row.split()[0] for row in rows] == ["4", "6", "7"]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["--job=train"], "--all_checkpoints is for --job=evaluate, not --job=train."),
        (
            ["--job=evaluate", "--checkpoint_path=best"],
            "--all_checkpoints and --checkpoint_path exclude each other: leave one",
        ),
    ],
)
def test_the_command_refuses(given, text):
    with pytest.raises(Error, match=text):
        flags.parse(["main", "--gin_file=linear.gin", "--all_checkpoints", *given])
