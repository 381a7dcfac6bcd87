"""The moving line, and what plain Python shows while an Estimator works."""

import io
import logging as python_logging
import sys
import types

import pytest
from absl import logging

from pipeline.contract.hooks import Report, Run
from pipeline.hooks import stock
from pipeline.process import progress, run_log


class Terminal(io.StringIO):
    """A stderr that somebody looks at."""

    def isatty(self):
        return True

    def lines(self):
        """What is on the screen: what is written after \\r goes over what was there."""
        screen = []
        for written in self.getvalue().split("\n"):
            line = ""
            for part in written.split("\r"):
                line = part + line[len(part) :]
            screen.append(line.rstrip())
        return screen


@pytest.fixture
def terminal(monkeypatch):
    """stderr, to which the root logger writes too, as it does in a program."""
    stream = Terminal()
    # Not sys.stderr itself, which pytest sets anew before the test.
    monkeypatch.setattr(progress, "sys", types.SimpleNamespace(stderr=stream))
    handler = python_logging.StreamHandler(stream)
    python_logging.root.addHandler(handler)
    yield stream
    progress.close_all()
    python_logging.root.removeHandler(handler)


class Clock:
    """Seconds that pass when somebody says so."""

    now = 0.0

    def __call__(self):
        return self.now


def make_run(**fields):
    run = Run("model_dir", 0, 3620, **fields)
    run.reads = 0

    def read():
        run.reads += 1
        return Report(run.step, 10, 0.5, 0.3123456, {"accuracy": 0.5}, {})

    run.read_report = read
    return run


def test_training_shows_where_it_is(terminal):
    hook, run = stock.LoggingHook(10), make_run()
    hook.begin(run)
    for run.step in (10, 20):
        hook.after_step(run)
        hook.after_loop(run)
    run.step = 3620
    hook.end(run)
    *_, last, after = terminal.lines()
    assert last.startswith("train: 100%")
    assert "3620/3620" in last
    assert "loss 0.3123, accuracy 0.5" in last
    assert after == ""


def test_what_nobody_would_see_is_not_fetched(terminal):
    hook, run = stock.LoggingHook(10), make_run()
    hook.begin(run)
    for run.step in range(10, 1000, 10):
        hook.after_step(run)
    assert run.reads < 99 / 2


def test_values_are_due_after_a_while(terminal):
    clock = Clock()
    bar = progress.Bar("train", last_step=10, clock=clock)
    assert bar.is_due
    bar.move(1, ["loss 1"])
    assert not bar.is_due
    clock.now += 1
    assert bar.is_due


def test_a_log_line_goes_above_it(terminal):
    bar = progress.Bar("train", last_step=100)
    bar.move(10, ["loss 0.25, and much more that makes this line long"])
    logging.warning("short")
    bar.move(20)
    inner = progress.Bar("eval", last_step=5, stays=False)
    inner.move(5)
    logging.warning("shorter")
    inner.close()
    bar._line.refresh()
    bar.close()
    first, second, last, after = terminal.lines()
    assert (first, second, after) == ("short", "shorter", "")
    assert last.startswith("train:  20%")
    assert not any(handler.filters for handler in python_logging.root.handlers)


def test_an_error_leaves_it_whole(terminal):
    progress.Bar("train", last_step=100).move(10, ["loss 0.25"])
    progress.close_all()
    terminal.write("Traceback")
    assert terminal.lines()[-2].startswith("train:")
    assert terminal.lines()[-1] == "Traceback"


@pytest.mark.parametrize("fields", [{"progress": False}, {"leads": False}])
def test_followers_are_silent_and_it_can_be_turned_off(terminal, untouched_log, fields):
    hook, run = stock.LoggingHook(10), make_run(**fields)
    hook.begin(run)
    run.step = 10
    hook.after_step(run)
    hook.end(run)
    assert terminal.getvalue() == ""
    with progress.bar("eval", last_step=3, shown=run.shows_progress) as bar:
        assert bar is None


def test_where_nobody_looks_there_is_none(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress.bar("eval", last_step=3, shown=True) as bar:
        assert bar is None


@pytest.mark.parametrize("stream", [None, object()])
def test_nobody_looks_at_a_closed_stderr_or_one_of_few_methods(monkeypatch, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    assert not progress.is_seen()


def test_a_notebook_is_one_who_looks(monkeypatch):
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})
    monkeypatch.setattr(sys, "stderr", stream())
    assert progress.is_seen()


@pytest.mark.parametrize(
    ("rate", "text"), [(2.0, "0:01:40"), (0.001, "2 days, 7:33:20"), (0.0, "?")]
)
def test_time_left(rate, text):
    assert progress.time_left(200, rate) == text


@pytest.fixture
def untouched_log():
    log, root = logging.get_absl_logger(), python_logging.root
    before = log.level, root.level
    log.setLevel(python_logging.NOTSET)
    root.setLevel(python_logging.WARNING)
    yield log
    log.setLevel(before[0])
    root.setLevel(before[1])


def test_plain_python_sees_info_while_an_estimator_works(untouched_log):
    with run_log.shown(True):
        assert untouched_log.isEnabledFor(python_logging.INFO)
        with run_log.shown(True):
            pass
        assert untouched_log.isEnabledFor(python_logging.INFO)
    assert not untouched_log.isEnabledFor(python_logging.INFO)
    with run_log.shown(False):
        assert not untouched_log.isEnabledFor(python_logging.INFO)


@pytest.mark.parametrize("of_root", [False, True])
def test_a_level_that_the_program_set_stays(untouched_log, of_root):
    logger = python_logging.root if of_root else untouched_log
    logger.setLevel(python_logging.ERROR)
    with run_log.shown(True):
        assert not untouched_log.isEnabledFor(python_logging.INFO)
