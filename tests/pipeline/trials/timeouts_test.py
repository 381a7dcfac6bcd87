"""Sweeps and trials that are given a time."""

import functools
import time

from pipeline.trials import runner, search, study, sweep_jobs
from pipeline.trials.goal import Goal


def test_after_the_timeout_no_trial_begins(sweeps):
    made = sweeps()
    assert made.run("--trials=3", "--timeout=0s") == 1
    assert made.run("--trials=3", "--timeout=1h") == 0


LATE = """
if number == 0:
    evaluated(1, accuracy=0.5)
if number < 2:
    say_there(f"hours-{number}")
    time.sleep(60)
evaluated(1, accuracy=0.1)
"""


def test_a_trial_that_takes_too_long_is_ended(sweeps, monkeypatch, capfd):
    made = sweeps(LATE)

    def hours():
        return sum(1e4 for _ in made.folder.glob("hours-*")) + time.monotonic()

    timed = functools.partial(runner.Runner, clock=hours)
    monkeypatch.setattr(sweep_jobs, "Runner", timed)
    assert made.run("--trials=3", "--trial_timeout=2h") == 0
    assert made.states() == ["pruned", "failed", "done"]
    assert "pruned, it has run for --trial_timeout, 7200 s" in capfd.readouterr().err
    # What it has taken counts over restarts.
    assert made.run("--trials=4", "--print_commands") == 0
    goal = Goal(metric="accuracy", maximize=True)
    path = made.sweep_dir / "study.db"
    study.Study(path, search.read(["X=uniform(0, 1)"]), goal=goal).trial(3).took(8e3)
    assert made.run("--trials=4", "--trial_timeout=2h") == 0
    assert made.states()[3] == "failed"
    assert not (made.sweep_dir / "trial-0003.log").exists()
