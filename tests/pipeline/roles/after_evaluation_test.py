"""Hooks of a training learn of each evaluation, whoever makes it, killed or not."""

import pytest

import pipeline as ge
from pipeline.contract.hooks import Run
from pipeline.model_dir import evaluation_record
from pipeline.model_dir.evaluation_record import Evaluated
from pipeline.roles.evaluation_along import EvaluationsBeside
from tests import fakes

X, Y = fakes.classification_data(rows=40)
EVAL = fakes.make_input_fn(X, Y, batch_size=40)
TRAIN = fakes.make_input_fn(X, Y, batch_size=8, change=lambda rows: rows.repeat())


class Learns(ge.Hook):
    """Keeps the evaluations that it was told of, in its state too."""

    def __init__(self, killed_at=None):
        self.told = []
        self.ended = None
        self._killed_at = killed_at

    def after_evaluation(self, run, name, metrics):
        assert metrics["global_step"] <= run.step
        self.told.append([name, metrics["global_step"], round(metrics["loss"], 6)])
        if self._killed_at == metrics["global_step"]:
            raise InterruptedError

    def end(self, run):
        self.ended = len(self.told)

    def state(self):
        return self.told

    def restore(self, run, state):
        self.told = state

    @property
    def steps(self):
        return [(name, step) for name, step, _ in self.told]


def train(model_dir, hook, *, names=(None,), hooks=(), **config):
    specs = [ge.EvalSpec(EVAL, throttle_secs=0, name=n, hooks=hooks) for n in names]
    # Nothing to compile for a few steps.
    config = {"save_checkpoints_steps": 2, "run_eagerly": True, **config}
    estimator = fakes.make_estimator(model_dir, **config)
    train_spec = ge.TrainSpec(TRAIN, max_steps=5, hooks=[hook])
    ge.train_and_evaluate(estimator, train_spec, specs)
    return estimator


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What a hook learns of a run that nothing breaks off."""
    hook = Learns()
    model_dir = tmp_path_factory.mktemp("whole")
    estimator = train(model_dir, hook, names=["a", "b"])
    return hook, estimator


def test_in_one_process_right_after_each_and_the_last_before_the_end(whole):
    hook, _ = whole
    assert hook.steps == [(name, step) for step in (2, 4, 5) for name in "ab"]
    assert hook.ended == 6


def test_each_is_on_record(whole):
    hook, estimator = whole
    for name in "ab":
        found = evaluation_record.read(estimator.eval_dir(name))
        mine = [(step, loss) for told, step, loss in hook.told if told == name]
        assert [(e.step, round(e.metrics["loss"], 6)) for e in found] == mine
        assert [e.checkpoint for e in found] == [f"model.ckpt-{s}" for s in (2, 4, 5)]


@pytest.mark.parametrize("killed_at", [2, 4, 5])
def test_killed_and_resumed_it_learns_the_same(killed_at, whole, tmp_path):
    with pytest.raises(InterruptedError):
        train(tmp_path, Learns(killed_at), names=["a", "b"])
    hook = Learns()
    train(tmp_path, hook, names=["a", "b"])
    # Where max_steps was reached no training goes on, and nobody is left to be told.
    assert hook.told == (whole[0].told if killed_at < 5 else [])
    for name in "ab":
        steps = [e.step for e in evaluation_record.read(str(tmp_path / f"eval_{name}"))]
        assert steps == [2, 4, 5]


class Asks(ge.Hook):
    """Of an evaluation: asks for a stop at a step."""

    def __init__(self, at):
        self._at = at

    def end(self, run):
        if run.step == self._at:
            run.request_stop("good enough")


def test_an_evaluations_hook_stops_the_training(tmp_path, log):
    hook = Learns()
    estimator = train(tmp_path, hook, names=["dev"], hooks=[Asks(2)])
    assert hook.steps == [("dev", 2)]
    assert fakes.checkpoint_steps(tmp_path) == [0, 2]
    assert "train | ended at step 2 | evaluation dev: good enough" in log()
    assert list(evaluation_record.read(estimator.eval_dir("dev"))[-1].stop) == [
        "good enough"
    ]


class Beside:
    """A training beside an evaluator job, both driven by hand."""

    def __init__(self, model_dir, step=0, state=None):
        self.seconds = 0.0
        self.estimator = fakes.make_estimator(model_dir)
        self.heard = []
        self.run = Run(str(model_dir), step, None, from_leader=self._from_leader)
        self.specs = [ge.EvalSpec(EVAL), ge.EvalSpec(EVAL, name="dev")]
        self.along = self._make()
        self.along.begin(self.run, [])
        if state is not None:
            self.along.restore(self.run, state)

    def evaluate(self, step, name=None, **fields):
        metrics = {"loss": 1 / (step + 1), "global_step": step}
        evaluated = Evaluated(step=step, time=0.0, metrics=metrics, **fields)
        evaluation_record.append(self.estimator.eval_dir(name), evaluated)

    def at(self, step, seconds=2):
        """Moves on to a step; returns name and step of the evaluations it tells of."""
        self.run.step = step
        self.seconds += seconds
        known = self.along.at_stop(self.run)
        return [(name, metrics["global_step"]) for name, metrics in known]

    def _make(self):
        return EvaluationsBeside(self.estimator, self.specs, clock=lambda: self.seconds)

    def _from_leader(self, text):
        self.heard.append(text)
        return text


def test_beside_an_evaluator_new_evaluations_are_told_by_step(tmp_path):
    beside = Beside(tmp_path)
    assert beside.at(0) == []
    beside.evaluate(0)
    beside.evaluate(10)
    beside.evaluate(0, "dev")
    assert beside.at(12) == [(None, 0), ("dev", 0), (None, 10)]
    assert beside.at(13) == []
    beside.evaluate(10, "dev")
    # Not at each stop: the disk may be far away.
    assert beside.at(14, seconds=1.9) == []
    assert beside.at(15, seconds=0.1) == [("dev", 10)]


def test_a_step_that_is_evaluated_again_is_told_once(tmp_path):
    beside = Beside(tmp_path)
    beside.evaluate(10)
    assert beside.at(12) == [(None, 10)]
    beside.evaluate(10)
    beside.evaluate(20)
    assert beside.at(22) == [(None, 20)]


def test_what_an_earlier_training_left_is_not_told(tmp_path):
    Beside(tmp_path).evaluate(10)
    assert Beside(tmp_path).at(12) == []


def test_a_run_that_goes_on_repeats_nothing_and_loses_nothing(tmp_path):
    first = Beside(tmp_path)
    first.evaluate(10)
    assert first.at(20) == [(None, 10)]
    state = first.along.state(first.run)
    first.evaluate(20)
    assert first.at(25) == [(None, 20)]
    # Killed: the checkpoint of step 20 knows the evaluation of step 10 alone.
    second = Beside(tmp_path, 20, state)
    assert second.at(20) == [(None, 20)]
    second.evaluate(30)
    assert second.at(30) == [(None, 30)]


def test_evaluations_of_weights_that_are_lost_are_not_told(tmp_path):
    first = Beside(tmp_path)
    state = first.along.state(first.run)
    first.evaluate(10)
    first.evaluate(20)
    # The checkpoint of step 20 was damaged: training goes on from step 10.
    second = Beside(tmp_path, 10, state)
    assert second.at(10) == [(None, 10)]
    assert second.at(20) == []
    second.evaluate(20)
    assert second.at(22) == [(None, 20)]


def test_a_hook_in_the_evaluator_stops_the_training(tmp_path):
    beside = Beside(tmp_path)
    beside.evaluate(10, "dev", stop=["good enough"])
    assert beside.at(12) == [("dev", 10)]
    assert beside.run.stop_reasons == ["evaluation dev: good enough"]


def test_other_processes_are_told_what_the_leading_one_read(tmp_path):
    leader = Beside(tmp_path)
    other = Beside(tmp_path)
    other.run.leads = False
    leader.evaluate(10)
    assert leader.at(12) == [(None, 10)]
    other.run.from_leader = lambda text: leader.heard[-1]
    assert other.at(12) == [(None, 10)]


def test_the_state_of_another_role_is_left_aside(tmp_path):
    """A training may go on with an evaluator job, or without the one that it had."""
    beside = Beside(tmp_path, 10, {"is_next": True})
    beside.evaluate(10)
    assert beside.at(12) == [(None, 10)]
