"""How long other tasks are silent, by a clock of the test."""

import pytest

import gin_estimator as ge
from gin_estimator.cluster import stuck_tasks


@pytest.fixture
def ask(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(stuck_tasks, "ask", lambda _: stuck_tasks.Answer.SILENT)
    monkeypatch.setattr(stuck_tasks.time, "monotonic", lambda: now[0])
    silence = stuck_tasks.Silence({"worker 0": "host:1"}, lost_after_secs=30)

    def ask(secs):
        now[0] += secs
        return silence.ask()

    return ask


def test_a_silent_task_is_lost(ask):
    for _ in range(4):
        ask(8)
    with pytest.raises(ge.TaskLostError, match="worker 0 .* has not answered for 30 s"):
        ask(8)


def test_time_in_which_this_process_was_stopped_does_not_count(ask):
    ask(1)
    ask(1000)  # As after SIGSTOP, or a suspended machine.
    for _ in range(4):
        ask(8)
    with pytest.raises(ge.TaskLostError):
        ask(8)
