"""A task that dies while the others let no Python run ends them, with 75."""

import signal
import subprocess
import sys

import pytest

from tests import clusters

MOST_SECS = 100.0


def died(way, victim, how, folder, *, workers=2):
    """The tasks of a cluster, all of them ended but one that is stopped."""
    command = ["-m", "tests.scripts.after_meeting", way, str(victim), how]
    with clusters.started(command, folder, workers=workers) as tasks:
        left = [task for i, task in enumerate(tasks) if i != victim or how == "SIGKILL"]
        clusters.wait(left, MOST_SECS)
        if how == "SIGSTOP":
            tasks[victim].kill(signal.SIGCONT)
            clusters.wait(tasks, MOST_SECS)
    return tasks


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_all_others_end_with_75_and_name_it(victim, how, tmp_path):
    tasks = died("sleep", victim, how, tmp_path, workers=3)
    why = "it ended" if how == "SIGKILL" else "it did not answer for 2 s"
    for index, task in enumerate(tasks):
        if index != victim:
            assert task.code == 75, task.text
            assert f"error: worker {victim} (" in task.text
            assert f"of the cluster is lost: {why}, while" in task.text
            assert "Traceback" not in task.text
    # One that goes on finds the others gone.
    assert tasks[victim].code == (-signal.SIGKILL if how == "SIGKILL" else 75)


def test_tensorflow_that_waits_for_a_dead_task_is_ended(tmp_path):
    leader, _ = died("tensorflow", 1, "SIGKILL", tmp_path)
    assert leader.code == 75, leader.end_of_log
    assert "error: worker 1 (" in leader.text


def test_tasks_that_are_connected_go_on(tmp_path):
    tasks = died("sleep", -1, "SIGKILL", tmp_path)
    assert [task.code for task in tasks] == [0, 0], tasks[0].text


# Where the C library takes no request, see `watcher._exit_when_readable`.
CODE = """
import sys, time
from pipeline.cluster import link_watch, watcher
if sys.argv[1] == "fails":
    watcher._exit_when_readable = lambda *args: None
with link_watch.watched({}, silence_secs=1, deadline_secs=0.5):
    time.sleep(60)
"""


@pytest.mark.parametrize(("way", "code"), [("works", 75), ("fails", -9)])
def test_the_deadline_ends_it_one_way_or_the_other(way, code):
    done = subprocess.run(
        [sys.executable, "-c", CODE, way], timeout=60, stderr=subprocess.PIPE, text=True
    )
    assert done.returncode == code
    assert "TensorFlow did not connect the tasks in 0.5 s" in done.stderr
