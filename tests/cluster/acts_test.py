"""What two workers must do together, or must agree on: one pair trains several models."""

import json
import re

import numpy as np
import pytest
import tensorflow as tf

from hooks import stopping_test
from small import checkpoints
from tasks import workers

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Returns the folder, and by worker the output and the values by name."""
    folder = tmp_path_factory.mktemp("acts")
    with workers(folder, folder, program="acts_of_workers.py") as tasks:
        for task in tasks:
            assert task.wait(300) == 0, task.output
        outputs = [task.output for task in tasks]
    said = [re.findall(r"^SAID (.*)", output, re.MULTILINE) for output in outputs]
    found = [dict(map(json.loads, lines)) for lines in said]
    return folder, outputs, found


def both(ran, name):
    """Returns the value that the workers have in common."""
    first, second = (found[name] for found in ran[2])
    assert first == second
    return first


def test_the_clock_of_any_worker_saves_and_all_evaluate(ran):
    folder = ran[0] / "clocks"
    steps = checkpoints(folder)
    assert len(steps) > 2 and steps[-1] == 40
    evaluations = both(ran, "evaluations")
    assert [step for step, _ in evaluations] == [step for step in steps if step]
    for step in steps:
        for index in range(2):
            assert [*folder.glob(f"input/model.ckpt-{step}.{index}-of-2*")]


def test_one_worker_writes_evaluations_and_exports(ran):
    folder = ran[0] / "clocks"
    assert len([*folder.glob("eval/events.*")]) == 1
    assert len([*folder.glob("export/final/*")]) == 1
    events = [
        tf.compat.v1.Event.FromString(record)
        for path in folder.glob("events.*")
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
    ]
    found = [(event.step, value.tag) for event in events for value in event.summary.value]
    assert {(0, "model"), (40, "loss")} <= set(found) and len(found) == len(set(found))


def test_weights_and_moving_statistics_are_equal(ran):
    assert all(np.isfinite(value).all() for value in both(ran, "weights").values())


def test_nan_in_one_worker_stops_both(ran):
    assert "NaN" in both(ran, "nan")


def test_a_hook_of_one_worker_stops_both(ran):
    assert both(ran, "stopped") == 7
    votes = [found["votes"] for found in ran[2]]
    assert votes == [[[True, True, False], 7], [[False, True, False], 7]]


def test_a_rule_stops_both_also_after_a_kill(ran):
    assert both(ran, "rules") == 2 * [[50, [stopping_test.REASON]]]


def test_two_workers_end_as_one_process(ran, tmp_path):
    expected = stopping_test.all_stops(tmp_path)
    stopping_test.assert_same_stops(both(ran, "all stops"), expected)


def test_dropout_differs_between_workers_and_after_a_restore(ran):
    first, second = both(ran, "masks")
    assert 0 < np.sum(first) < np.size(first)
    assert first[0] != first[1] and first != second


def test_other_data_in_a_worker_are_warned_of(ran):
    for output in ran[1]:
        assert "takes no input_context and yields other data in some processes" in output


def test_nothing_is_said_of_retracing(ran):
    assert not any("retracing" in output for output in ran[1])


def test_the_newest_checkpoint_that_all_can_read(ran):
    assert both(ran, "restored") == [6, 7, 8, 9, 10, 11]
