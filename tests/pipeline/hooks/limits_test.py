"""The ends of a training by its seconds and by its passes over the input."""

import json

import pytest

import pipeline as ge
from pipeline.mistakes import checks


def through(state):
    """Returns a state as a checkpoint gives it back."""
    return json.loads(json.dumps(state))


@pytest.mark.parametrize(
    "value, secs",
    [
        (90, 90),
        (0.5, 0.5),
        ("90", None),
        ("45s", 45),
        ("90m", 5400),
        ("3h", 10800),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("2d", 172800),
        ("1d2h3m4s", 93784),
        ("30m1h", None),
        ("", None),
        ("0h", None),
        (0, None),
        (-1, None),
        (True, None),
        (float("inf"), None),
        ("three hours", None),
    ],
)
def test_durations(value, secs):
    if secs is None:
        with pytest.raises(ValueError, match="write a number of seconds above 0"):
            checks.checked_secs("TrainSpec.max_secs", value)
    else:
        assert checks.checked_secs("TrainSpec.max_secs", value) == secs


class Timed:
    """A run of a StopAfterSecsHook, on a clock that is set by hand."""

    def __init__(self, secs, *, state=None, others=False):
        self.now = 1000.0
        self.hook = ge.StopAfterSecsHook(secs)
        self.hook._time._clock = lambda: self.now
        self.run = ge.Run("/tmp/none", 0, None, agree=lambda mine: mine or others)
        self.hook.begin(self.run)
        if state is not None:
            self.hook.restore(self.run, through(state))

    def goes_on(self, secs):
        self.now += secs
        self.hook.after_loop(self.run)
        return not self.run.stop_reasons


def test_seconds_count_over_restarts():
    first = Timed("1m")
    assert first.goes_on(25)
    state = first.hook.state()
    assert first.goes_on(20)  # Lost by a kill, and done again.
    again = Timed("1m", state=state)
    assert again.goes_on(34)
    assert not again.goes_on(1)
    assert again.run.stop_reasons == ["training took 60 s, as max_secs has it"]
    # It ends at once when it is started again; with more time it goes on.
    assert Timed("1m", state=again.hook.state()).run.stop_reasons
    more = Timed("2m", state=again.hook.state())
    assert not more.run.stop_reasons
    assert more.goes_on(59)
    assert not more.goes_on(1)


def test_the_time_of_steps_that_are_given_up_counts():
    timed = Timed(60)
    assert timed.goes_on(20)
    state = timed.hook.state()
    assert timed.goes_on(30)
    # The run goes back to the checkpoint in the same process.
    timed.hook.begin(timed.run)
    timed.hook.restore(timed.run, through(state))
    assert timed.goes_on(9)
    assert not timed.goes_on(1)


def test_the_first_clock_that_is_over_decides_for_all():
    mine = Timed(60, others=True)
    assert not mine.goes_on(1)
    # What is saved says that the limit was reached, whatever this clock says.
    assert Timed(60, state=mine.hook.state()).run.stop_reasons


class Passes:
    """A run of a StopAfterEpochsHook."""

    def __init__(self, num_epochs, step=0, *, state=None, resumed=False):
        self.hook = ge.StopAfterEpochsHook(num_epochs)
        self.run = ge.Run("/tmp/none", step, None)
        self.hook.begin(self.run)
        if state is not None:
            self.hook.restore(self.run, through(state))
        self.hook.found(self.run, resumed=resumed)

    def goes_on(self, step):
        self.run.step = step
        return self.hook.goes_on(self.run)


def test_passes_count_over_restarts():
    first = Passes(3)
    assert first.goes_on(10)
    first.run.step = 15
    again = Passes(3, 15, state=first.hook.state(), resumed=True)
    assert again.goes_on(20)
    # A checkpoint of the last step of a pass: nobody has seen its end yet.
    again.run.step = 30
    last = Passes(3, 30, state=again.hook.state(), resumed=False)
    assert last.run.stop_reasons == ["3 passes over the input, as max_epochs has it"]
    assert Passes(3, 30, state=last.hook.state()).run.stop_reasons
    more = Passes(4, 30, state=last.hook.state())
    assert not more.run.stop_reasons
    assert not more.goes_on(40)


def test_a_checkpoint_at_the_beginning_of_a_pass_ends_none():
    first = Passes(2)
    assert first.goes_on(10)
    again = Passes(2, 10, state=first.hook.state(), resumed=False)
    assert not again.run.stop_reasons
    assert not again.goes_on(20)


@pytest.mark.parametrize("num_epochs", [0, -1, 1.5, True, "3"])
def test_a_number_of_passes_is_an_int(num_epochs):
    with pytest.raises(ValueError, match="num_epochs is .* write an int of at least 1"):
        ge.StopAfterEpochsHook(num_epochs)
