"""The benchmark of long runs, on a short one."""

import json

import pytest

from benchmarks import soak

KEYS = [
    "memory_mb",
    "python_objects",
    "file_handles",
    "threads",
    "event_files",
    "event_mb",
    "files",
]


def test_it_looks_at_each_evaluation(tmp_path):
    look = soak.soak(str(tmp_path), steps=300, every=30)
    found = json.loads(json.dumps(soak.results(look)))
    assert sorted(found) == sorted([*KEYS, "step_time"])
    assert look.steps == list(range(30, 301, 30))
    assert len(list(tmp_path.glob("eval/*tfevents*"))) == 1
    # The training's, that of what the run is, and the evaluation's.
    assert look.looks["event_files"][-5:] == [3] * 5
    flat = {"per_10k_steps": 0, "low": 0, "high": 0}
    assert found["event_files"] == flat
    assert found["step_time"]["last_over_first"] > 0
    lines = soak.table(look, found)
    assert lines[0] == "300 steps of a tiny MLP, 10 evaluations"
    assert sum(line.startswith("| ") for line in lines) == 2 + len(KEYS)


def test_the_slope_is_that_of_the_second_half():
    steps = list(range(1000, 11_000, 1000))
    # Full from the middle on, and then two more every thousand.
    values = [0, 10, 20, 30, 40, 50, 52, 54, 56, 58]
    expected = {"per_10k_steps": 20, "low": 20, "high": 20}
    assert soak.slope(steps, values) == pytest.approx(expected)
