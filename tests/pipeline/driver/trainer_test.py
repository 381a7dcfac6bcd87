"""The loop: in which order all take part, at each stop and where a run goes on."""

import json

import pytest

import pipeline as ge
from tests import fakes

X, Y = fakes.classification_data(rows=40)
TRAIN = fakes.make_input_fn(X, Y, batch_size=8, change=lambda rows: rows.repeat())
EVAL = fakes.make_input_fn(X, Y, batch_size=40)


class Tells(ge.Hook, ge.SavingListener):
    """Tells what was called, with the step and the steps of its window."""

    def __init__(self, name, told, every_steps=None):
        self._name = name
        self._told = told
        self.every_steps = every_steps

    def begin(self, run):
        self._tell("begin", run)

    def restore(self, run, state):
        self._tell(f"restore {state}", run)

    def after_loop(self, run):
        self._told.append(f"{self._name} after_loop {run.step}")

    def after_step(self, run):
        self._tell("after_step", run)

    def after_hooks(self, run):
        self._told.append(f"{self._name} after_hooks {run.step}")

    def before_save(self, run):
        self._tell("before_save", run)

    def after_save(self, run):
        self._tell("after_save", run)

    def end(self, run):
        self._tell("end", run)

    def state(self):
        return 7

    def _tell(self, what, run):
        window = f" ({run.report.num_steps})" if run.report.num_steps else ""
        self._told.append(f"{self._name} {what} {run.step}{window}")


class Exports(ge.Exporter):
    """Tells that it was called, and may break the run off."""

    def __init__(self, told, fails_at=None):
        super().__init__("tells")
        self._told = told
        self._fails_at = fails_at

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_final):
        step = eval_result["global_step"]
        self._told.append(f"export {step}{' last' if is_final else ''}")
        if step == self._fails_at:
            raise InterruptedError


def train(model_dir, fails_at=None, **config):
    """Trains for six steps; returns what was called, in order."""
    told = []
    estimator = fakes.make_estimator(model_dir, **config)
    listener = Tells("listener", told)
    train_spec = ge.TrainSpec(
        TRAIN,
        max_steps=6,
        hooks=[Tells("two", told, every_steps=2), Tells("never", told)],
        saving_listeners=[listener],
    )
    exporter = Exports(told, fails_at)
    eval_spec = ge.EvalSpec(EVAL, throttle_secs=0, exporters=[exporter])
    try:
        ge.train_and_evaluate(estimator, train_spec, eval_spec)
    except InterruptedError:
        told.append("broken off")
    return told


BEGINNING = [
    "two begin 0",
    "never begin 0",
    "listener before_save 0",
    "listener after_save 0",
]


def returned(step):
    return [f"two after_loop {step}", f"never after_loop {step}"]


def after(step):
    return [f"two after_hooks {step}", f"never after_hooks {step}"]


def saved(step, steps):
    return [
        f"listener before_save {step} ({steps})",
        f"listener after_save {step} ({steps})",
    ]


def test_a_step_is_saved_and_evaluated_before_hooks_are_called_after_it(tmp_path):
    assert train(tmp_path, save_checkpoints_steps=4) == [
        *BEGINNING,
        *[*returned(2), "two after_step 2 (2)", *after(2)],
        *[*returned(4), "two after_step 4 (2)", *saved(4, 4), "export 4", *after(4)],
        *[*returned(6), "two after_step 6 (2)", *after(6)],
        *[*saved(6, 2), "export 6 last", "two end 6", "never end 6 (6)"],
        *["listener end 6 (2)"],
    ]


def test_by_the_clock_it_is_after_all_hooks(tmp_path):
    clock = {"save_checkpoints_steps": None, "save_checkpoints_secs": 1e-9}
    assert train(tmp_path, **clock) == [
        *BEGINNING,
        *[*returned(2), "two after_step 2 (2)", *after(2), *saved(2, 2), "export 2"],
        *[*returned(4), "two after_step 4 (2)", *after(4), *saved(4, 2), "export 4"],
        *[*returned(6), "two after_step 6 (2)", *after(6), *saved(6, 2)],
        *["export 6 last", "two end 6", "never end 6 (6)", "listener end 6"],
    ]


def test_without_checkpoints_nobody_is_told_of_any(tmp_path):
    told = train(tmp_path, save_checkpoints_steps=0)
    assert [each for each in told if each.startswith(("listener", "export"))] == [
        "export 6 last"
    ]


@pytest.mark.parametrize("earlier", [False, True], ids=["now", "earlier_version"])
def test_what_was_broken_off_is_made_up_for_when_the_hooks_have_begun(
    earlier, tmp_path
):
    assert train(tmp_path, fails_at=4, save_checkpoints_steps=4)[-1] == "broken off"
    if earlier:
        as_of_earlier_versions(tmp_path / "hooks" / "model.ckpt-4.json")
    assert train(tmp_path, save_checkpoints_steps=4) == [
        *["two begin 4", "two restore 7 4", "never begin 4", "never restore 7 4"],
        "export 4",
        *[*returned(6), "two after_step 6 (2)", *after(6)],
        *[*saved(6, 2), "export 6 last", "two end 6", "never end 6 (6)"],
        *["listener end 6 (2)"],
    ]


def as_of_earlier_versions(path):
    """Evaluations and what saves were hooks, and had windows."""
    states = json.loads(path.read_text())
    assert states["hooks"]["_Evaluation"] == {"state": {"is_next": True}}
    states["hooks"]["_Evaluation"]["window"] = 0
    states["hooks"]["CheckpointHook"] = {"window": 0}
    path.write_text(json.dumps(states))
