"""Which value a trial counts by, read from what its training has written."""

import json
import math

import numpy as np
import pytest

from pipeline.model_dir import end_marker, evaluation_record
from pipeline.model_dir.evaluation_record import Evaluated
from pipeline.process.refusals import RefusedValueError
from pipeline.trials import goal as goal_lib
from pipeline.trials.goal import Goal

ACCURACY = Goal(metric="accuracy", maximize=True)


def evaluated(step, **metrics):
    return Evaluated(step=step, time=0.0, metrics=metrics)


def write(folder, *lines):
    for line in lines:
        evaluation_record.append(str(folder), line)


def test_a_record_is_read_as_its_own_module_reads_it(tmp_path):
    folder = tmp_path / "eval"
    write(folder, evaluated(10, a=1.0), evaluated(20, a=math.nan), evaluated(30, a=3.0))
    with open(folder / "evaluations.jsonl", "a") as file:
        file.write('{"step": 35, "metr')  # A kill.
    # Training had gone back to step 10.
    write(folder, evaluated(20, a=4.0, b=np.ones(3)))
    with open(folder / "evaluations.jsonl", "ab") as file:
        file.write(b'[1]\n{"step": "x", "metrics": {}}\n\xff\n{"step": 50, "metrics"')
    theirs = evaluation_record.read(str(folder))
    ours = goal_lib.read(folder / goal_lib.RECORD)
    assert [line["step"] for line in ours] == [each.step for each in theirs] == [10, 20]
    assert ours[1]["metrics"] == {"a": 4.0, "b": [1.0, 1.0, 1.0]}
    assert goal_lib.RECORD == evaluation_record.FILE


def test_the_curve_of_a_metric(tmp_path):
    assert ACCURACY.curve(tmp_path / "not_there") == []
    write(tmp_path / "eval", evaluated(1, accuracy=0.5), evaluated(2, accuracy=1))
    (tmp_path / "eval_2.txt").touch()
    (tmp_path / "export").mkdir()
    assert ACCURACY.curve(tmp_path) == [(1, 0.5), (2, 1.0)]


def test_of_several_evaluations_one_is_named(tmp_path):
    write(tmp_path / "eval_a", evaluated(1, accuracy=0.5))
    assert ACCURACY.curve(tmp_path) == [(1, 0.5)]
    write(tmp_path / "eval_b", evaluated(1, accuracy=0.6))
    with pytest.raises(RefusedValueError, match="evaluations a, b: add --evaluation=a"):
        ACCURACY.curve(tmp_path)
    named = Goal(metric="accuracy", maximize=True, evaluation="b")
    assert named.curve(tmp_path) == [(1, 0.6)]
    wrong = Goal(metric="accuracy", maximize=True, evaluation="bb")
    assert wrong.curve(tmp_path) == []  # It may be yet to come.
    with pytest.raises(RefusedValueError, match="Did you mean b?.*are a, b: choose"):
        wrong.check_ended(tmp_path)


def test_a_trial_without_an_evaluation(tmp_path):
    with pytest.raises(RefusedValueError, match="has no evaluation, by which"):
        ACCURACY.check_ended(tmp_path)
    named = Goal(metric="loss", maximize=False, evaluation="a")
    write(tmp_path / "eval", evaluated(1, loss=1.0))
    with pytest.raises(RefusedValueError, match="without names: leave --evaluation"):
        named.check_ended(tmp_path)


def test_a_metric_that_is_no_number(tmp_path):
    write(tmp_path / "eval", evaluated(1, iou=np.ones(2), accuracy=1.0))
    with pytest.raises(RefusedValueError, match=r"--metric=iou is \[1.0, 1.0\] at"):
        Goal(metric="iou", maximize=True).curve(tmp_path)
    with pytest.raises(RefusedValueError, match="It has accuracy, iou."):
        Goal(metric="nothing", maximize=True).curve(tmp_path)


@pytest.mark.parametrize(
    ("value", "maximize", "expected"),
    [
        ("last", True, (4, 0.5)),
        ("best", True, (2, 0.9)),
        ("best", False, (1, 0.5)),
    ],
)
def test_which_evaluation_counts(value, maximize, expected):
    goal = Goal(metric="a", maximize=maximize, value=value)
    curve = [(1, 0.5), (2, 0.9), (3, math.nan), (4, 0.5)]
    assert goal.result(curve) == expected
    assert goal.result([(1, math.nan)]) is None
    assert goal.result([]) is None


def test_nan_in_the_end_is_no_result():
    assert ACCURACY.result([(1, 0.5), (2, math.nan)]) is None


def test_the_end_of_a_training(tmp_path):
    curve = [(10, 0.5)]
    assert not goal_lib.has_ended(tmp_path, curve)
    for reason, saved, over in (
        ("finished", 10, True),
        ("stopped", None, True),
        ("failed", 10, False),
        ("finished", 20, False),  # The evaluator job is behind.
    ):
        end_marker.write(
            str(tmp_path),
            end_marker.EndMarker(step=10, reason=reason, checkpoint_step=saved, time=0),
        )
        assert goal_lib.has_ended(tmp_path, curve) is over
    assert not goal_lib.has_ended(tmp_path, [])
    for damaged in ([1], {"reason": "finished", "checkpoint_step": "10"}):
        (tmp_path / "training_ended.json").write_text(json.dumps(damaged))
        assert not goal_lib.has_ended(tmp_path, curve)
