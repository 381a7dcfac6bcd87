"""Calls of the loop that take about a given time: how many steps, and which stops."""

import numpy as np
import pytest

from pipeline.contract.hooks import Hook, Run
from pipeline.loop.losses import Totals
from pipeline.loop.metrics import MetricSet
from pipeline.loop.stretch import Segment
from pipeline.loop.watchers import Watchers
from pipeline.process.durations import Pace


class Seen(Hook):
    """Notes its steps, which it only watches."""

    only_watches = True

    def __init__(self, every_steps):
        self.every_steps = every_steps
        self.steps, self.reports = [], []

    def after_step(self, run):
        self.steps.append(run.step)
        self.reports.append(run.report)


class Trained:
    """A training without steps: each takes `secs`, and has one example."""

    def __init__(self, *hooks, steps_per_loop="30s", max_step=None):
        self.run = Run("model_dir", 0, max_step)
        self.watchers = Watchers(hooks, MetricSet({}), steps_per_loop=steps_per_loop)
        self.watchers.begin(self.run, {"hooks": {}, "windows": []})

    def call(self, secs, *others):
        """Makes one call of the loop; returns its stops."""
        stops = self.watchers.stops(self.run, *others)
        starts = [self.run.step, *stops[:-1]]
        segments = []
        for start, stop in zip(starts, stops, strict=True):
            steps = np.float32(stop - start)
            totals = Totals(steps, steps, {}, steps, {})
            took = secs * (stop - start)
            segments.append(
                Segment(stop, stop - start, took, totals, {}, None, False, 0.0)
            )
        self.watchers.after_steps(self.run, segments)
        return stops


def test_calls_grow_to_the_time_that_was_given():
    trained = Trained()
    ends = [trained.call(1 / 8)[-1] for _ in range(6)]
    assert list(np.diff([0, *ends])) == [1, 10, 100, 241, 241, 241]
    # Steps that become slow, or fast again, are noticed at the next call.
    trained.call(8)
    start = trained.run.step
    assert trained.call(8)[-1] == start + 4


def test_a_number_bounds_a_call_by_5_secs_as_well():
    trained = Trained(steps_per_loop=1000)
    assert [trained.call(1 / 8)[-1] for _ in range(3)] == [1000, 1041, 1082]


def test_steps_that_somebody_asked_for_end_a_call_exactly():
    trained = Trained(max_step=500)
    for _ in range(3):
        trained.call(1 / 128)
    assert trained.run.step == 111
    assert trained.call(1 / 128, 120)[-1] == 120
    assert trained.call(1 / 128)[-1] == 500


def test_hooks_that_only_watch_hear_of_each_step_at_the_end_of_a_call():
    hook = Seen(100)
    trained = Trained(hook)
    for _ in range(5):
        stops = trained.call(1 / 128)
    assert stops[:2] == [1200, 1300] and stops[-1] == trained.run.step == 1111 + 3841
    assert hook.steps == list(range(100, 5000, 100))
    assert {report.num_examples for report in hook.reports} == {100}


def test_no_sum_is_over_more_than_1000_steps_and_no_call_has_more_than_1000_stops():
    trained = Trained(steps_per_loop="1h")
    for _ in range(6):
        stops = trained.call(1 / 1024)
    assert len(stops) > 50
    assert max(np.diff(stops)) == 1000
    trained = Trained(Seen(1), steps_per_loop="1h")
    assert len([trained.call(1 / 1024) for _ in range(6)][-1]) == 1000


@pytest.mark.parametrize("seconds", [0.0, 3.0])
def test_a_call_without_steps_or_time_says_nothing(seconds):
    pace = Pace("30s", most_secs=5.0)
    pace.measured(2, 0.5)
    pace.measured(0, seconds)
    pace.measured(5, 0.0)
    assert (pace.most(), pace.steps_in(1)) == (20, 4)
