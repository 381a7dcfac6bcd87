"""The trials on disk: what is suggested, what a kill at any place leaves."""

import math
import sqlite3

import pytest

from pipeline.process.refusals import RefusedValueError
from pipeline.trials import search
from pipeline.trials.folder import FolderError
from pipeline.trials.goal import Goal
from pipeline.trials.study import State, Study

ACCURACY = Goal(metric="accuracy", maximize=True)
SPACE = search.read(["x=uniform(0, 1)", "n=int(1, 100)", "c=choice(a, 'b', (1, 2))"])


@pytest.fixture
def opened(tmp_path):
    def open_study(space=SPACE, goal=ACCURACY, name="study.db", **options):
        return Study(tmp_path / name, space, goal=goal, **options)

    return open_study


def test_a_trial_that_runs_is_the_same_in_the_next_process(opened):
    trial = opened().ask()
    again = opened().trial(0)
    assert (again.number, again.values) == (0, trial.values)
    assert [row.state for row in opened().rows()] == [State.OPEN]


@pytest.mark.parametrize("sampler", ["tpe", "random", "grid"])
def test_killed_while_a_trial_begins(opened, sampler, monkeypatch):
    """Its number is there, its values are not, or not all: it gets the same."""
    space = search.read(["n=int(1, 3)", "c=choice(a, b)"])
    whole = opened(space, name="whole.db", sampler=sampler).ask()
    study = opened(space, sampler=sampler)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("pipeline.trials.study._suggested", killed)
        study.ask()
    assert len(opened(space, sampler=sampler).rows()) == 1
    assert opened(space, sampler=sampler).trial(0).values == whole.values
    if sampler == "grid":
        # Killed between the queue and the trial.
        study._study.enqueue_trial(study.grid[1])
        assert len(opened(space, sampler=sampler).rows()) == 2
        again = opened(space, sampler=sampler).trial(1)
        assert (again.number, again.values) == (1, study.grid[1])
        # The other one is left alone.
        assert opened(space, sampler=sampler).trial(0).values == whole.values


def test_many_suggestions_do_not_depend_on_starts(opened):
    """With as many random ones as the sampler wants before it looks at results."""

    def ask(study):
        trial = study.ask()
        trial.report([(1, trial.values["x"])])
        trial.done(1, trial.values["x"])
        return trial.values

    study = opened(name="one.db")
    once = [ask(study) for _ in range(13)]
    many = []
    for count in (4, 7, 1, 1):
        study = opened(name="many.db")
        many += [ask(study) for _ in range(count)]
    assert many == once
    assert len({values["x"] for values in once}) == 13


def test_values_are_of_what_is_searched(opened):
    space = search.read(
        [
            "u=uniform(0, 1, 0.25)",
            "l=log(1e-4, 1)",
            "m=log_int(2, 64)",
            "k=int(1, 9, 3)",
        ]
    )
    study = opened(space, sampler="random")
    for _ in range(12):
        values = study.ask().values
        assert values["u"] in (0, 0.25, 0.5, 0.75, 1)
        assert 1e-4 <= values["l"] <= 1
        assert values["m"] in range(2, 65)
        assert values["k"] in (1, 4, 7)
        assert [type(values[name]) for name in "ulmk"] == [float, float, int, int]


def test_what_becomes_of_trials(opened):
    study = opened()
    study.ask().done(5, 0.5)
    pruned = study.ask()
    pruned.report([(1, 0.25), (2, 0.75)])
    pruned.prune()
    study.ask().fail("it exited with 1")
    study.ask()
    rows = opened().rows()
    assert [(r.state, r.result, r.step, r.reason) for r in rows] == [
        (State.DONE, 0.5, 5, ""),
        (State.PRUNED, 0.75, 2, ""),
        (State.FAILED, None, None, "it exited with 1"),
        (State.OPEN, None, None, ""),
    ]
    assert opened().best(maximize=True).number == 0
    with pytest.raises(RefusedValueError, match=r"trial 2 does not run: .*\(3\)"):
        opened().trial(2)
    with pytest.raises(RefusedValueError, match="trial 9 does not run"):
        opened().trial(9)


def test_a_step_that_is_evaluated_again_counts_as_it_was_then(opened):
    """Training went back: a bad value of before would have the trial pruned."""
    study = opened()
    for _ in range(5):
        trial = study.ask()
        trial.report([(1, 0.5)])
        trial.done(1, 0.5)
    trial = study.ask()
    assert trial.report([(1, math.nan)])
    assert trial.report([(1, 0.1)])
    assert not trial.report([(1, 0.9)])
    assert not study.trial(5).report([(1, 0.9)])


@pytest.mark.parametrize("pruner", ["median", "halving"])
def test_none_is_pruned_before_its_first_step(opened, pruner):
    study = opened(pruner=pruner)
    for _ in range(6):
        trial = study.ask()
        trial.report([(0, 0.5), (100, 1.0)])
        trial.done(100, 1.0)
    trial = study.ask()
    assert not trial.report([(0, 0.1)])
    assert not trial.report([(0, 0.1), (100, 1.0)])


def test_another_goal_keeps_what_runs_until_a_trial_has_ended(opened):
    values = opened().ask().values
    opened().trial(0).report([(1, 7.0)])
    loss = Goal(metric="loss", maximize=False)
    study = opened(goal=loss)
    assert study.is_open
    trial = study.trial(0)
    assert trial.values == values
    assert study.rows()[0].step is None  # What was reached was another metric's.
    trial.done(1, 0.5)
    study.ask().done(1, 0.25)
    assert not opened(goal=loss).is_open
    assert opened(goal=loss).best(maximize=False).number == 1
    assert len(opened(goal=ACCURACY).rows()) == 2  # The folder refuses it.


def test_a_folder_of_any_name(tmp_path):
    folder = tmp_path / "a b%20?x=1#y&z:é"
    folder.mkdir()
    Study(folder / "study.db", SPACE, goal=ACCURACY).ask()
    assert [path.name for path in folder.iterdir()] == ["study.db"]


def test_a_file_that_cannot_be_used_is_named(opened, tmp_path):
    (tmp_path / "study.db").write_text("no database " * 100)
    with pytest.raises(FolderError, match="study.db could not be read or written: "):
        opened()
    study = opened(name="full.db")
    with sqlite3.connect(tmp_path / "full.db") as other:
        other.execute("DROP TABLE trial_params")
    with pytest.raises(FolderError, match="full.db could not be"):
        study.ask()


def test_a_grid_that_is_too_large():
    space = search.read([f"{name}=int(1, 100)" for name in "abc"])
    with pytest.raises(RefusedValueError, match="1,000,000 combinations: write fewer"):
        Study("unused", space, goal=ACCURACY, sampler="grid")
