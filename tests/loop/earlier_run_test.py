"""A run that the loop before `loop/` has saved in its middle is continued by this one.

`earlier_run/` was written at 3939f31 by `python tests/loop/earlier_run_test.py FOLDER`. Its last
checkpoint, of step 10, has states of hooks, two skipped steps, and an evaluation that is due.
`expected.json` has how that version ended when it continued.
"""

import contextlib
import json
import pathlib
import shutil
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from small import eval_input, make, poisoned  # noqa: E402

import gin_estimator as ge  # noqa: E402

RUN = pathlib.Path(__file__).parent / "earlier_run"


class Counts(ge.Hook):
    """Counts the steps, also over restarts, and keeps the evaluations that it gets."""

    every_steps = 1

    def __init__(self):
        self.steps, self.evaluations = 0, []

    def after_step(self, run):
        self.steps += 1

    def after_evaluation(self, run, name, metrics):
        self.evaluations.append([name, run.step])

    def state(self):
        return self.steps

    def restore(self, run, state):
        self.steps = state


class Ends(ge.SavingListener):
    """Ends the training between a save and its evaluation, as a kill would."""

    def after_save(self, run):
        if run.step == 10:
            raise KeyboardInterrupt


def train(model_dir, listeners=()):
    options = {"save_checkpoints_steps": 5, "on_nan": "restore", "max_skipped_steps": 5}
    options |= {"save_summary_steps": None, "keep_checkpoint_max": 1}
    estimator = make(model_dir, tf_random_seed=1, async_checkpoint=False, **options)
    counts, guard = Counts(), ge.hooks.LossGuard(max_loss=100.0, spike=50.0, window=3)
    train_spec = ge.TrainSpec(poisoned, 20, [counts, guard], listeners)
    spec = ge.EvalSpec(eval_input, name="dev")
    metrics, _ = ge.train_and_evaluate(estimator, train_spec, spec)
    return {
        "steps": counts.steps,
        "evaluations": counts.evaluations,
        "loss": metrics["loss"],
        "kernel": estimator.get_variable_value("network/dense/kernel").tolist(),
        "window": guard.state(),
    }


def test_hooks_evaluations_and_skipped_steps_continue(tmp_path):
    shutil.copytree(RUN, tmp_path / "run")
    found = train(tmp_path / "run")
    expected = json.loads((RUN / "expected.json").read_text())
    assert found["evaluations"] == expected["evaluations"]
    assert found["evaluations"][0] == ["dev", 10]  # The one that was due.
    assert found["steps"] == expected["steps"]
    for name in ("loss", "kernel", "window"):
        np.testing.assert_allclose(found[name], expected[name], 1e-4, 1e-5, err_msg=name)
    assert skipped(tmp_path / "run") == expected["skipped"]


def skipped(model_dir):
    return sorted(path.name for path in (model_dir / "bad_batches").iterdir())


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    with contextlib.suppress(KeyboardInterrupt):
        train(folder, [Ends()])
    shutil.rmtree(folder / "bad_batches")
    continued = folder.with_name("continued")
    shutil.copytree(folder, continued)
    result = {**train(continued), "skipped": skipped(continued)}
    (folder / "expected.json").write_text(json.dumps(result))
