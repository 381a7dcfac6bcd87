"""The record of evaluations: what is appended is read, whoever was killed meanwhile."""

import json

import numpy as np

from pipeline.model_dir import evaluation_record
from pipeline.model_dir.evaluation_record import Evaluated


def evaluated(step, loss=1.0, **fields):
    metrics = {"loss": loss, "global_step": step}
    return Evaluated(step=step, time=5.0, metrics=metrics, **fields)


def append(folder, *steps):
    for step in steps:
        evaluation_record.append(str(folder), evaluated(step))


def steps_of(found):
    return [each.step for each in found]


def test_a_line_has_what_was_evaluated_and_when(tmp_path):
    folder = str(tmp_path / "eval")
    evaluation_record.append(folder, evaluated(20, checkpoint="model.ckpt-20"))
    (line,) = (tmp_path / "eval" / "evaluations.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "step": 20,
        "time": 5.0,
        "metrics": {"loss": 1.0, "global_step": 20},
        "checkpoint": "model.ckpt-20",
    }
    evaluation_record.append(folder, evaluated(30, stop=["enough"]))
    assert [(e.checkpoint, list(e.stop)) for e in evaluation_record.read(folder)] == [
        ("model.ckpt-20", []),
        (None, ["enough"]),
    ]


def test_arrays_and_what_is_no_number_come_back(tmp_path):
    matrix = np.array([[1.0, 2.0], [3.0, np.inf]], np.float32)
    metrics = {"loss": float("nan"), "matrix": matrix, "n": np.float32(0.1)}
    evaluation_record.append(
        str(tmp_path), Evaluated(step=1, time=0.0, metrics=metrics)
    )
    (found,) = evaluation_record.read(str(tmp_path))
    assert np.isnan(found.metrics["loss"])
    np.testing.assert_array_equal(found.metrics["matrix"], matrix)
    assert found.metrics["n"] == float(np.float32(0.1))


def test_half_a_line_is_passed_over_and_does_no_harm_to_the_next(tmp_path):
    append(tmp_path, 10)
    path = tmp_path / "evaluations.jsonl"
    with path.open("a") as file:
        file.write('{"step": 20, "ti')
    assert steps_of(evaluation_record.read(str(tmp_path))) == [10]
    append(tmp_path, 20, 30)
    assert steps_of(evaluation_record.read(str(tmp_path))) == [10, 20, 30]
    assert path.read_text().count("\n") == 4


def test_lines_that_hold_something_else_are_passed_over(tmp_path):
    path = tmp_path / "evaluations.jsonl"
    path.write_text('\n[]\nnull\n{"step": "x", "metrics": {}}\n{"step": 1}\n\xff\n')
    append(tmp_path, 10)
    assert steps_of(evaluation_record.read(str(tmp_path))) == [10]


def test_the_later_of_two_evaluations_counts(tmp_path):
    evaluation_record.append(str(tmp_path), evaluated(10, loss=1.0))
    evaluation_record.append(str(tmp_path), evaluated(10, loss=2.0))
    (found,) = evaluation_record.read(str(tmp_path))
    assert found.metrics["loss"] == 2.0


def test_what_training_went_back_from_is_lost(tmp_path):
    append(tmp_path, 10, 20, 30, 15)
    assert steps_of(evaluation_record.read(str(tmp_path))) == [10, 15]


def test_what_was_appended_since(tmp_path):
    folder = str(tmp_path)
    assert evaluation_record.appended(folder) == ("", 0)
    append(tmp_path, 10)
    text, place = evaluation_record.appended(folder)
    assert steps_of(evaluation_record.parsed(text)) == [10]
    assert evaluation_record.appended(folder, place) == ("", place)
    with (tmp_path / "evaluations.jsonl").open("a") as file:
        file.write('{"step": 20')
    assert evaluation_record.appended(folder, place) == ("", place)
    append(tmp_path, 30)
    text, later = evaluation_record.appended(folder, place)
    assert steps_of(evaluation_record.parsed(text)) == [30]
    # Somebody deleted it, and it began anew.
    (tmp_path / "evaluations.jsonl").unlink()
    append(tmp_path, 40)
    text, _ = evaluation_record.appended(folder, later)
    assert steps_of(evaluation_record.parsed(text)) == [40]


def test_nothing_was_evaluated(tmp_path):
    assert evaluation_record.read(str(tmp_path / "eval")) == []
