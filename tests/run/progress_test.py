"""The progress of a long phase: a bar in a terminal, or a log line at times."""

import io
import logging as standard_logging
import sys

import pytest
from absl import flags, logging

from gin_estimator.run import log, progress
from gin_estimator.run.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])

    def tick(secs):
        now[0] += secs

    return tick


def test_a_bar_in_a_terminal_is_below_the_log_and_reads_values_at_times(monkeypatch, clock):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    handler = standard_logging.StreamHandler(terminal)
    standard_logging.root.addHandler(handler)
    reads = []
    try:
        bar = Progress("train", total=10, start=2)
        for step in (3, 4, 5):
            clock(0.15)
            bar.update(step, lambda: reads.append(0) or " | loss 0.5")
        standard_logging.getLogger().warning("a line of the log")
        bar.close()
    finally:
        standard_logging.root.removeHandler(handler)
    assert len(reads) == 1  # At most five times a second: reading waits for the device.
    text = terminal.getvalue()
    assert "train:" in text and "4/10" in text and "loss 0.5" in text
    assert any(part.startswith("a line of the log\n") for part in text.split("\r"))
    assert handler.stream is terminal


@pytest.mark.parametrize("stream, bar", [(io.StringIO(), True), (Terminal(), False)])
def test_files_and_other_processes_get_a_line_at_times(stream, bar, monkeypatch, clock, caplog):
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(logging.get_absl_handler().python_handler, "stream", io.StringIO())
    caplog.set_level("INFO", logger="absl")
    shown = Progress("eval test", total=400, bar=bar, line_secs=30.0)
    for step in (100, 120, 150):
        clock(20.0)
        shown.update(step)
    shown.close()
    assert caplog.messages == ["eval test | 120 steps of 400 | 0:01:33 left"]
    assert stream.getvalue() == ""


def test_a_plain_program_shows_the_log_unless_it_set_a_level(monkeypatch):
    logger, flag = logging.get_absl_logger(), flags.FLAGS["verbosity"]
    before = logger.level
    monkeypatch.setattr(flag, "using_default_value", True)
    monkeypatch.setattr(standard_logging.root, "level", standard_logging.WARNING)
    try:
        for level, shown in (("NOTSET", "INFO"), ("WARNING", "WARNING"), ("DEBUG", "DEBUG")):
            logger.setLevel(level)
            with log.verbose():
                assert standard_logging.getLevelName(logger.level) == shown
            assert standard_logging.getLevelName(logger.level) == level
        logger.setLevel("NOTSET")
        with log.quiet(), log.verbose():
            assert logger.level == standard_logging.WARNING
        for target, name, value in (
            (standard_logging.root, "level", standard_logging.ERROR),
            (flag, "using_default_value", False),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(target, name, value)
                with log.verbose():
                    assert logger.level == standard_logging.NOTSET
    finally:
        logger.setLevel(before)
