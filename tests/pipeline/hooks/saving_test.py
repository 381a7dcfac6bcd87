"""When checkpoints are saved, which of them stay, and who is told."""

import pathlib
import threading

import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.checkpoints import checkpoint
from pipeline.contract.hooks import Run
from pipeline.feed import position
from pipeline.hooks import saving
from pipeline.strategy import modules
from tests import fakes


class Clock:
    """Seconds that pass when told to."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds


class Listener(ge.SavingListener):
    """Keeps what it was told, and which checkpoints there were."""

    def __init__(self):
        self.told = []

    def before_save(self, run):
        self.told.append(("before", run.step, self._newest(run)))

    def after_save(self, run):
        self.told.append(("after", run.step, self._newest(run)))

    def end(self, run):
        self.told.append(("end", run.step, self._newest(run)))

    def _newest(self, run):
        return max(fakes.checkpoint_steps(run.model_dir), default=None)


def states():
    return {"hooks": {}, "windows": []}


class Saving:
    """A `Saving` of one variable, driven by hand."""

    def __init__(self, model_dir, *, first_step=0, listeners=(), **config):
        self.model_dir = model_dir
        self.clock = Clock()
        config = {"async_checkpoint": False, "keep_checkpoint_max": None, **config}
        self.config = ge.RunConfig(model_dir=str(model_dir), **config)
        made = modules.Modules(
            {"w": lambda: tf.Variable(0.0)}, tf.distribute.get_strategy()
        )
        saver = checkpoint.Saver(
            self.config.model_dir,
            made.named_state(),
            keep_max=self.config.keep_checkpoint_max,
            keep_every_n_hours=self.config.keep_checkpoint_every_n_hours,
            asynchronous=self.config.async_checkpoint,
        )
        self._saving = saving.Saving(
            self.config,
            made,
            saver,
            self._save_position,
            listeners=listeners,
            clock=self.clock,
        )
        self.run = Run(str(model_dir), first_step, None)

    def steps(self, *steps):
        """The loop returns at these steps."""
        for step in steps:
            self.run.step = step
            self._save_if(self._saving.due_at_step(self.run))
            self._save_if(self._saving.due_by_clock(self.run))

    def begin(self):
        self._save_if(self._saving.due_at_begin(self.run))

    def end(self):
        self._save_if(self._saving.due_on_request(self.run))
        self._saving.finish(self.run, states)

    def _save_if(self, due):
        if due:
            self._saving.save(self.run, states)

    def next_step(self, step):
        return self._saving.next_step(step)

    def _save_position(self, path):
        prefix = position.position_path(path)
        path = pathlib.Path(f"{prefix}.index")
        path.parent.mkdir(exist_ok=True)
        path.touch()

    @property
    def saved(self):
        return fakes.checkpoint_steps(self.model_dir)

    @property
    def positions(self):
        names = [p.name for p in self.model_dir.glob("input/*.index")]
        return sorted(int(n.split(".")[1].removeprefix("ckpt-")) for n in names)


def test_at_the_first_step_each_interval_and_the_end(tmp_path):
    saving = Saving(tmp_path, save_checkpoints_steps=10)
    saving.begin()
    assert saving.saved == [0]
    saving.steps(7, 10, 15, 20, 22)
    assert saving.saved == [0, 10, 20]
    saving.end()
    assert saving.saved == [0, 10, 20, 22] == saving.positions


@pytest.mark.parametrize("interval", ["steps", "secs"])
def test_at_the_steps_that_are_to_be_kept(interval, tmp_path):
    saving = Saving(
        tmp_path,
        keep_checkpoint_every_n_steps=25,
        keep_checkpoint_steps=(7, 12),
        **{f"save_checkpoints_{interval}": 20},
    )
    saving.begin()
    steps = [0]
    while steps[-1] < 50:
        steps.append(saving.next_step(steps[-1]))
        saving.steps(steps[-1] - 1, steps[-1])
    multiples = [20, 40] if interval == "steps" else []
    assert steps == saving.saved == sorted([0, 7, 12, 25, 50, *multiples])


def test_at_each_interval_in_seconds(tmp_path):
    saving = Saving(tmp_path, save_checkpoints_secs=60)
    assert saving.next_step(0) is None
    saving.begin()
    for seconds, step in ((59, 5), (60, 6), (100, 7), (121, 8)):
        saving.clock.seconds = seconds
        saving.steps(step)
    assert saving.saved == [0, 6, 8]


def test_what_is_saved_is_not_saved_again(tmp_path):
    first = Saving(tmp_path, save_checkpoints_steps=10)
    first.begin()
    first.steps(10)
    listener = Listener()
    resumed = Saving(
        tmp_path, first_step=10, save_checkpoints_steps=10, listeners=[listener]
    )
    resumed.begin()
    resumed.end()
    assert listener.told == [("end", 10, 10)]


def test_listeners_are_told(tmp_path):
    listener = Listener()
    saving = Saving(tmp_path, save_checkpoints_steps=10, listeners=[listener])
    saving.begin()
    saving.steps(10, 12)
    saving.end()
    assert listener.told == [
        ("before", 0, None),
        ("after", 0, 0),
        ("before", 10, 0),
        ("after", 10, 10),
        ("before", 12, 10),
        ("after", 12, 12),
        ("end", 12, 12),
    ]


def test_a_listener_does_nothing_by_itself():
    listener, run = ge.SavingListener(), Run("model_dir", 0, None)
    listener.begin(run)
    listener.before_save(run)
    listener.after_save(run)
    listener.end(run)
    assert run.stop_reasons == []


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_newest_stay_over_a_restart_and_positions_go_with_them(
    asynchronous, tmp_path
):
    options = {
        "save_checkpoints_steps": 1,
        "keep_checkpoint_max": 2,
        "async_checkpoint": asynchronous,
    }
    first = Saving(tmp_path, **options)
    first.begin()
    first.steps(1, 2)
    first.end()
    assert first.saved == [1, 2]
    resumed = Saving(tmp_path, first_step=2, **options)
    resumed.begin()
    resumed.steps(3)
    resumed.end()
    assert resumed.saved == [2, 3]
    assert resumed.positions == [2, 3]
    assert checkpoint.latest(str(tmp_path)) == f"{tmp_path}/model.ckpt-3"


def test_the_loop_looks_through_no_folder(tmp_path, monkeypatch):
    """What belongs to old checkpoints is deleted by the thread that writes new ones."""
    saving_ = Saving(
        tmp_path,
        save_checkpoints_steps=1,
        keep_checkpoint_max=1,
        async_checkpoint=True,
    )
    saving_.begin()
    listed, listdir = set(), tf.io.gfile.listdir

    def watched(path):
        listed.add(threading.current_thread())
        return listdir(path)

    monkeypatch.setattr(tf.io.gfile, "listdir", watched)
    saving_.steps(1, 2, 3)
    saving_.end()
    assert listed
    assert threading.main_thread() not in listed
    assert saving_.positions == saving_.saved == [3]


class Asks(ge.SavingListener):
    """Wants to stop at the second checkpoint."""

    def after_save(self, run):
        if run.step == 2:
            run.request_stop("enough")


X, Y = fakes.classification_data(rows=16)
TRAIN = fakes.make_input_fn(X, Y, batch_size=8, change=lambda d: d.repeat())


def test_a_run_that_is_stopped_by_a_listener(tmp_path):
    estimator = fakes.make_estimator(tmp_path, save_checkpoints_steps=2)
    estimator.train(TRAIN, max_steps=10, saving_listeners=[Asks()])
    assert fakes.checkpoint_steps(tmp_path) == [0, 2]
    estimator.train(TRAIN, max_steps=5)
    assert fakes.checkpoint_steps(tmp_path) == [0, 2, 4, 5]


def test_zero_never_saves(tmp_path):
    estimator = fakes.make_estimator(tmp_path, save_checkpoints_steps=0)
    estimator.train(TRAIN, steps=2)
    estimator.train(TRAIN, steps=3)
    assert fakes.checkpoint_steps(tmp_path) == []
    assert estimator.global_step == 5
    assert estimator.evaluate(TRAIN, steps=1)["global_step"] == 5
