"""When evaluations are made, on what, and what becomes of those that fail."""

import pytest

import pipeline as ge
from pipeline.loop import eval_loop
from pipeline.model_dir import evaluation_record
from tests import fakes

X, Y = fakes.classification_data(rows=40)
EVAL = fakes.make_input_fn(X, Y, batch_size=40)
TRAIN = fakes.make_input_fn(X, Y, batch_size=8, change=lambda rows: rows.repeat())


class Told(ge.Hook):
    """Keeps the steps of evaluations and the loss of the last; may be killed."""

    def __init__(self, killed_at=None):
        self.told = []
        self._killed_at = killed_at

    def after_evaluation(self, run, name, metrics):
        step = metrics["global_step"]
        assert step == run.step
        self.told.append([step, round(metrics["loss"], 6)])
        if step == self._killed_at:
            raise KeyboardInterrupt

    def state(self):
        return self.told

    def restore(self, run, state):
        self.told = state

    @property
    def steps(self):
        return [step for step, _ in self.told]


def train(model_dir, *specs, hook=None, max_steps=7, **config):
    hook = hook or Told()
    # Nothing to compile for a few steps.
    config = {"save_checkpoints_steps": 4, "run_eagerly": True, **config}
    estimator = fakes.make_estimator(model_dir, **config)
    train_spec = ge.TrainSpec(TRAIN, max_steps=max_steps, hooks=[hook])
    ge.train_and_evaluate(estimator, train_spec, specs)
    return hook


def every(steps, **fields):
    return ge.EvalSpec(EVAL, every_steps=steps, **fields)


class Mine(ge.Exporter):
    """Keeps the checkpoints that it was given."""

    def __init__(self):
        super().__init__("mine")
        self.given = []

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_final):
        step = eval_result["global_step"]
        assert checkpoint_path == f"{estimator.model_dir}/model.ckpt-{step}"
        self.given.append(step)


def test_every_so_many_steps_on_live_weights(tmp_path):
    hook = train(tmp_path, every(3))
    assert hook.steps == [3, 6, 7]
    assert fakes.checkpoint_steps(tmp_path) == [0, 4, 7]
    found = evaluation_record.read(str(tmp_path / "eval"))
    assert [(e.step, e.checkpoint) for e in found] == [
        (3, None),
        (6, None),
        (7, "model.ckpt-7"),
    ]


def test_the_weights_are_those_of_a_checkpoint_of_that_step(tmp_path):
    live = train(tmp_path / "live", every(3)).told
    saved = train(tmp_path / "saved", ge.EvalSpec(EVAL), save_checkpoints_steps=3).told
    assert live == saved


def test_they_are_saved_for_who_reads_the_files(tmp_path):
    exporter = Mine()
    train(tmp_path, every(3, exporters=exporter))
    assert exporter.given == [3, 6, 7]
    assert fakes.checkpoint_steps(tmp_path) == [0, 3, 4, 6, 7]


def test_without_any_checkpoint(tmp_path):
    assert train(tmp_path, every(3), save_checkpoints_steps=0).steps == [3, 6, 7]
    assert fakes.checkpoint_steps(tmp_path) == []


def test_each_checkpoint_is_evaluated_by_default(tmp_path):
    assert train(tmp_path, ge.EvalSpec(EVAL)).steps == [4, 7]


def test_at_the_start(tmp_path):
    assert train(tmp_path, ge.EvalSpec(EVAL, at_start=True)).steps == [0, 4, 7]
    # Training goes on, which is no start.
    more = train(tmp_path, ge.EvalSpec(EVAL, at_start=True), max_steps=9)
    assert more.steps == [0, 4, 7, 8, 9]


TWO = [every(3, name="often", at_start=True), ge.EvalSpec(EVAL, name="saved")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What a run of two evaluations tells that nothing breaks off."""
    told = train(tmp_path_factory.mktemp("whole"), *TWO)
    assert told.steps == [0, 3, 4, 6, 7, 7]
    return told.told


@pytest.mark.parametrize("killed_at", [0, 3, 4, 6])
def test_killed_and_resumed_is_not_killed(killed_at, whole, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, *TWO, hook=Told(killed_at))
    assert train(tmp_path, *TWO).told == whole


def test_throttled_ones_are_decided_before_the_save(tmp_path):
    """What comes too soon is not saved for an exporter that it never reaches."""
    exporter = Mine()
    train(tmp_path, every(1, exporters=exporter, throttle_secs=1000))
    assert exporter.given == [7]
    assert fakes.checkpoint_steps(tmp_path) == [0, 4, 7]


class Fails(ge.Hook):
    """Of an evaluation: fails at a step, as often as it is told to."""

    def __init__(self, at):
        self.at = at

    def end(self, run):
        if run.step == self.at:
            raise OSError("no such file")


def test_one_that_fails_loses_neither_the_others_nor_the_steps(tmp_path):
    fails = Fails(at=3)
    specs = [every(3, name="bad", hooks=[fails]), every(3, name="good")]
    hook = Told()
    with pytest.raises(OSError, match="no such file") as error:
        train(tmp_path, *specs, hook=hook)
    assert "This was the evaluation 'bad'." in error.value.__notes__
    assert hook.steps == [3]
    assert fakes.checkpoint_steps(tmp_path) == [0, 3]
    fails.at = None
    # It is made up for, the other is not made again.
    assert train(tmp_path, *specs).steps == [3, 3, 6, 6, 7, 7]
    steps = [e.step for e in evaluation_record.read(str(tmp_path / "eval_good"))]
    assert steps == [3, 6, 7]


def test_all_that_fail_are_told(tmp_path):
    specs = [every(3, name=name, hooks=[Fails(at=3)]) for name in "ab"]
    with pytest.raises(OSError, match="no such file") as error:
        train(tmp_path, *specs)
    notes = "\n".join(error.value.__notes__)
    assert "This was the evaluation 'a'." in notes
    assert "Then this failed, too: OSError: no such file" in notes
    assert "This was the evaluation 'b'." in notes


def of_modes(mode):
    """Four batches to train on, one to evaluate on."""
    rows = 40 if mode == ge.ModeKeys.TRAIN else 8
    return fakes.make_input_fn(X[:rows], Y[:rows], batch_size=8)()


def test_the_training_s_data_are_evaluated(tmp_path):
    estimator = fakes.make_estimator(tmp_path, save_checkpoints_steps=4)
    specs = [
        ge.EvalSpec(of_modes, name="train", input_mode=ge.ModeKeys.TRAIN),
        ge.EvalSpec(of_modes, name="eval"),
    ]
    spec = ge.TrainSpec(of_modes, max_steps=5)
    metrics, _ = ge.train_and_evaluate(estimator, spec, specs)
    assert metrics["train"]["examples"] == 40
    assert metrics["eval"]["examples"] == 8


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"every_steps": 0}, "EvalSpec.every_steps is 0: write an int > 0, or None."),
        ({"at_start": 1}, "EvalSpec.at_start is int 1: write EvalSpec.at_start=True."),
        (
            {"input_mode": "infer"},
            "EvalSpec.input_mode is 'infer': write input_mode=ModeKeys.TRAIN, which is",
        ),
        (
            {"input_mode": "train"},
            "make_input_fn.<locals>.input_fn takes no argument mode: leave input_mode",
        ),
    ],
)
def test_refused_when_it_is_made(fields, text):
    with pytest.raises((ValueError, TypeError)) as error:
        ge.EvalSpec(EVAL, **fields)
    assert text in str(error.value)


@pytest.mark.parametrize("steps", [None, 3])
def test_a_slow_evaluation_says_how_far_it_is(steps, tmp_path, log, monkeypatch):
    monkeypatch.setattr(eval_loop, "_SAY_SECS", 0.0)
    monkeypatch.setattr(eval_loop, "_FIRST_EVAL_STEPS", 2)
    input_fn = fakes.make_input_fn(X, Y, batch_size=10)
    if steps is None:  # Of a length that nobody knows.
        rows = fakes.make_input_fn(
            X, Y, batch_size=10, change=lambda d: d.filter(lambda *_: True)
        )
        input_fn = rows
    estimator = fakes.make_estimator(tmp_path)
    estimator.train(TRAIN, max_steps=5)
    estimator.evaluate(input_fn, steps=steps)
    said = [line for line in log() if line.startswith("eval | step 5 | 2 ")]
    assert len(said) == 1
    wanted = "2 steps" if steps is None else "2 of 3 steps"
    assert said[0].split(" | ")[2] == wanted
    assert said[0].endswith(" left") == (steps is not None)
