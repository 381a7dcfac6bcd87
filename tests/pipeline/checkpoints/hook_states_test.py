"""What hooks hold: beside each checkpoint, and what a run that goes on makes of it."""

import os
import signal

import numpy as np
import pytest

import pipeline as ge
from pipeline import Hook, LoggingHook
from pipeline.checkpoints import hook_states
from pipeline.loop import watchers
from tests import fakes

X, Y = fakes.classification_data(64)
NUM_STEPS = 60
NOTHING = {"hooks": {}, "windows": []}


class Patience(Hook):
    """Stops after three windows without a smaller loss; keeps all that it saw."""

    every_steps = 4

    def begin(self, run):
        self.best, self.bad = np.inf, 0
        self.seen = []

    def after_step(self, run):
        report = run.report
        self.seen.append([run.step, report.num_steps, report.loss])
        self.seen[-1].append(report.metrics["accuracy"])
        self.bad = 0 if report.loss < self.best else self.bad + 1
        self.best = np.minimum(self.best, report.loss)
        self._stop_if_over(run)

    def state(self):
        return {"best": self.best, "bad": self.bad, "seen": self.seen}

    def restore(self, run, state):
        self.best, self.bad, self.seen = state["best"], state["bad"], state["seen"]
        self._stop_if_over(run)

    def _stop_if_over(self, run):
        if self.bad == 3:
            run.request_stop("no progress in three windows")


class Fails(Hook, ge.SavingListener):
    """Breaks a run off after a step, or after the save of it."""

    def __init__(self, step, *, saved=False):
        self.every_steps = step
        self._saved = saved

    def after_step(self, run):
        if not self._saved:
            raise InterruptedError

    def after_save(self, run):
        if self._saved and run.step == self.every_steps:
            raise InterruptedError


class Terminates(Hook):
    """Sends SIGTERM to this process after a step."""

    def __init__(self, step):
        self.every_steps = step

    def after_step(self, run):
        if run.step == self.every_steps:
            os.kill(os.getpid(), signal.SIGTERM)


def train(model_dir, *hooks, listeners=(), **config):
    """A new Estimator, as in a new process; the step that it came to."""
    estimator = fakes.make_estimator(
        model_dir,
        network=lambda: fakes.network(dropout=0.5),
        optimizer=lambda: fakes.adam(learning_rate=0.3),
        **{"save_checkpoints_steps": 5, "steps_per_loop": 6, **config},
    )
    data = fakes.make_input_fn(
        X, Y, batch_size=16, change=lambda d: d.shuffle(64, seed=1).repeat()
    )
    estimator.train(data, max_steps=NUM_STEPS, hooks=hooks, saving_listeners=listeners)
    return estimator.global_step


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The hook of a run that was not broken off."""
    hook = Patience()
    step = train(tmp_path_factory.mktemp("whole"), hook)
    assert 12 <= step == hook.seen[-1][0] < NUM_STEPS
    return hook


def assert_stops_alike(model_dir, whole, **config):
    resumed = Patience()
    assert train(model_dir, resumed, **config) == whole.seen[-1][0]
    np.testing.assert_allclose(resumed.seen, whole.seen, 1e-6)


@pytest.mark.parametrize(
    ("step", "save_steps"), [(3, 5), (9, 5), (11, 5), (9, 4)], ids=str
)
def test_a_run_that_fails_and_goes_on_stops_at_the_same_step(
    step, save_steps, tmp_path, whole
):
    with pytest.raises(InterruptedError):
        train(tmp_path, Patience(), Fails(step), save_checkpoints_steps=save_steps)
    assert_stops_alike(tmp_path, whole)


def test_the_same_after_a_signal(tmp_path, whole):
    """Its last window was reported, and yet is a part of the next run's."""
    train(tmp_path, Patience(), Terminates(9), ge.PreemptionHook())
    assert fakes.checkpoint_steps(tmp_path)[-1] < whole.seen[-1][0]
    assert_stops_alike(tmp_path, whole)


def test_the_same_where_it_is_killed_between_the_last_save_and_the_end(tmp_path, whole):
    last = whole.seen[-1][0]
    fails = Fails(last, saved=True)
    with pytest.raises(InterruptedError):
        train(tmp_path, Patience(), fails, listeners=[fails])
    assert fakes.checkpoint_steps(tmp_path)[-1] == last
    assert_stops_alike(tmp_path, whole)


def test_the_same_where_the_clock_saves_at_the_hooks_step(tmp_path, whole):
    """Each step is saved after the hooks were called."""
    secs = {"save_checkpoints_steps": None, "save_checkpoints_secs": 1e-6}
    fails = Fails(8, saved=True)
    with pytest.raises(InterruptedError):
        train(tmp_path, Patience(), fails, listeners=[fails], **secs)
    assert fakes.checkpoint_steps(tmp_path)[-1] == 8
    assert_stops_alike(tmp_path, whole, **secs)


def test_windows_are_no_ones_after_a_clean_end(tmp_path):
    """What was reported is not reported again by a run with more steps."""
    for _ in range(2):
        recorder = fakes.Recorder()
        train(tmp_path, recorder, ge.StopAtStepHook(num_steps=6))
        assert recorder.values[-1]["examples"] == 6 * 16


def test_so_many_steps_are_counted_over_a_failure(tmp_path):
    stop = {"num_steps": 12}
    with pytest.raises(InterruptedError):
        train(tmp_path, ge.StopAtStepHook(**stop), Fails(8))
    assert train(tmp_path, ge.StopAtStepHook(**stop)) == 12
    # That one has ended, so that the next is another one.
    assert train(tmp_path, ge.StopAtStepHook(**stop)) == 24


def test_so_many_steps_that_were_done_when_it_was_killed(tmp_path):
    fails = Fails(10, saved=True)
    with pytest.raises(InterruptedError):
        train(tmp_path, ge.StopAtStepHook(num_steps=10), listeners=[fails])
    assert train(tmp_path, ge.StopAtStepHook(num_steps=10)) == 10
    assert train(tmp_path, ge.StopAtStepHook(num_steps=10)) == 20


def test_another_number_of_steps_is_counted_from_here(tmp_path):
    with pytest.raises(InterruptedError):
        train(tmp_path, ge.StopAtStepHook(num_steps=12), Fails(8))
    assert train(tmp_path, ge.StopAtStepHook(num_steps=20)) == 5 + 20


def test_a_window_that_several_hooks_share_is_saved_once(tmp_path):
    with pytest.raises(InterruptedError):
        train(tmp_path, Patience(), fakes.Recorder(4), fakes.Recorder(), Fails(7))
    states = hook_states.read(f"{tmp_path}/model.ckpt-5")
    found = {name: each["window"] for name, each in states["hooks"].items()}
    assert found["Patience"] == found["Recorder"] != found["Recorder_1"]
    assert sorted(window["num_steps"] for window in states["windows"]) == [1, 5]


def test_windows_of_other_metrics_begin_anew(tmp_path):
    with pytest.raises(InterruptedError):
        train(tmp_path, Patience(), Fails(7))
    path = f"{tmp_path}/model.ckpt-5"
    states = hook_states.read(path)
    for window in states["windows"]:
        window["metrics"]["accuracy"] = [[1.0, 2.0]]
    hook_states.write(path, states)
    resumed = Patience()
    train(tmp_path, resumed)
    assert [seen[:2] for seen in resumed.seen][:2] == [[4, 4], [8, 3]]


# The files.


def test_hooks_are_named_by_class_and_order():
    hooks = [LoggingHook(), Patience(), LoggingHook()]
    assert watchers.names_of(hooks) == [
        "LoggingHook",
        "Patience",
        "LoggingHook_1",
    ]


def test_states_come_back(tmp_path):
    path = f"{tmp_path}/model.ckpt-3"
    state = {"best": np.float32(0.1), "counts": np.arange(2)}
    hooks = {"A": {"state": state}, "B": {"state": None}}
    hook_states.write(path, {"hooks": hooks, "windows": []})
    state = {"best": float(np.float32(0.1)), "counts": [0, 1]}
    expected = {"A": {"state": state}, "B": {"state": None}}
    assert hook_states.read(path) == {"hooks": expected, "windows": []}
    assert hook_states.read(f"{tmp_path}/model.ckpt-4") == NOTHING


def test_no_states_leave_no_file(tmp_path):
    path = f"{tmp_path}/model.ckpt-3"
    hook_states.write(path, {"hooks": {"A": 1}, "windows": []})
    hook_states.write(path, NOTHING)
    assert hook_states.read(path) == NOTHING
    assert not list(tmp_path.glob("hooks/*"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b[:10],
        lambda b: b"\xff" + b[1:],
        lambda b: b"[]",
        lambda b: b"null",
        lambda b: b"",
        lambda b: b'{"hooks": {"Hook": 3}, "windows": []}',
        lambda b: b'{"hooks": {"Hook": {"window": 2}}, "windows": []}',
        lambda b: b'{"hooks": {}, "windows": [{"step": 3}]}',
    ],
)
def test_a_damaged_file_is_named_and_hooks_begin_anew(tmp_path, caplog, damage):
    path = str(tmp_path / "model.ckpt-5")
    hook_states.write(path, {"hooks": {"Hook": {"state": 1}}, "windows": []})
    file = tmp_path / "hooks" / "model.ckpt-5.json"
    file.write_bytes(damage(file.read_bytes()))
    assert hook_states.read(path) == NOTHING
    assert f"{file} is damaged (" in caplog.text
    assert f"What is left of it is at {file}.damaged." in caplog.text
    assert not file.exists()


def test_a_state_that_is_no_json_is_named(tmp_path):
    with pytest.raises(TypeError) as error:
        hooks = {"A": 1, "Mine": {1, 2}}
        hook_states.write(f"{tmp_path}/model.ckpt-3", {**NOTHING, "hooks": hooks})
    assert str(error.value) == (
        "the state of hook Mine is {1, 2}, which is no JSON: return numbers, strings, "
        "lists and dicts by string from state()."
    )


def test_states_go_with_their_checkpoints(tmp_path):
    train(tmp_path, Patience(), keep_checkpoint_max=2)
    left = sorted(path.name for path in (tmp_path / "hooks").iterdir())
    steps = fakes.checkpoint_steps(tmp_path)
    assert len(steps) == 2
    assert left == sorted(f"model.ckpt-{step}.json" for step in steps)
