"""What a signal is answered with; how programs end by one is in exits_test."""

import os
import signal

import pytest

from pipeline.process.signals import Notes


@pytest.mark.parametrize(
    ("number", "is_terminal", "is_told"),
    [
        (signal.SIGINT, True, True),
        (signal.SIGINT, False, False),
        (signal.SIGTERM, True, False),
    ],
)
def test_a_second_ctrl_c_is_told_of_where_one_can_be_typed(
    monkeypatch, capfd, number, is_terminal, is_told
):
    monkeypatch.setattr(os, "isatty", lambda _: is_terminal)
    with Notes() as notes:
        os.kill(os.getpid(), number)
        assert notes.received == number
    said = capfd.readouterr().err
    assert "stopping; saving." in said
    assert ("A second Ctrl-C stops at once." in said) == is_told
