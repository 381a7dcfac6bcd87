"""train_and_evaluate: what is evaluated, what is exported, who is told."""

import numpy as np
import pytest

import pipeline as ge
from pipeline.contract.hooks import Run
from pipeline.roles.evaluation_along import EvaluationAlong
from tests import fakes

X, Y = fakes.classification_data(rows=40)
EVAL = fakes.make_input_fn(X, Y, batch_size=16)


def shuffled(dataset):
    return dataset.shuffle(40, seed=1).repeat()


TRAIN = fakes.make_input_fn(X, Y, batch_size=8, change=shuffled)


class Mine(ge.Exporter):
    """Keeps what it was called with."""

    def __init__(self, name="mine"):
        super().__init__(name)
        self.calls = []

    def export(
        self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export
    ):
        self.calls.append(
            (
                export_path,
                checkpoint_path,
                eval_result["global_step"],
                is_the_final_export,
            )
        )
        return f"{self.name}-{eval_result['global_step']}"


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (
            lambda: ge.TrainSpec(3),
            TypeError,
            "TrainSpec.input_fn is int 3, not a callable: hand in the function, not",
        ),
        (lambda: ge.EvalSpec(None), TypeError, "EvalSpec.input_fn is None, not a call"),
        (
            lambda: ge.TrainSpec(TRAIN, max_steps=0),
            ValueError,
            "TrainSpec.max_steps is 0: write an int > 0, or None.",
        ),
        (
            lambda: ge.EvalSpec(EVAL, steps=-1),
            ValueError,
            "EvalSpec.steps is -1: write an int > 0, or None.",
        ),
        (
            lambda: ge.TrainSpec(TRAIN, hooks=[ge.Hook]),
            TypeError,
            "TrainSpec.hooks holds the class Hook, not an object of it: write Hook().",
        ),
        (
            lambda: ge.TrainSpec(TRAIN, saving_listeners=[ge.Hook()]),
            TypeError,
            "TrainSpec.saving_listeners holds Hook <pipeline.contract.hooks.Hook ",
        ),
        (
            lambda: ge.EvalSpec(EVAL, hooks=3),
            TypeError,
            "EvalSpec.hooks is int 3, not a list",
        ),
        (
            lambda: ge.EvalSpec(EVAL, exporters=["best"]),
            TypeError,
            "EvalSpec.exporters holds str 'best', not an Exporter: ",
        ),
        (
            lambda: ge.EvalSpec(EVAL, exporters=[Mine(), Mine("other"), Mine()]),
            ValueError,
            "EvalSpec.exporters share the names ['mine', 'other', 'mine'], and so a d",
        ),
        (
            lambda: ge.EvalSpec(EVAL, name=123),
            TypeError,
            "EvalSpec.name is int 123: write EvalSpec.name='test'.",
        ),
        (
            lambda: ge.EvalSpec(EVAL, name="test/../../elsewhere"),
            ValueError,
            "EvalSpec.name is 'test/../../elsewhere', which leads out of the directo",
        ),
        (
            lambda: ge.EvalSpec(EVAL, throttle_secs=-1),
            ValueError,
            "EvalSpec.throttle_secs is -1: write a number >= 0, throttle_secs=60.",
        ),
        (
            lambda: ge.EvalSpec(EVAL, start_delay_secs=-0.5),
            ValueError,
            "EvalSpec.start_delay_secs is -0.5: write a number >= 0, start_delay_sec",
        ),
    ],
)
def test_specs_refuse(make, kind, text):
    with pytest.raises(kind) as error:
        make()
    assert text in str(error.value)


def test_specs_have_tf_estimators_defaults():
    spec = ge.EvalSpec(EVAL)
    assert (spec.steps, spec.name) == (None, None)
    assert (spec.start_delay_secs, spec.throttle_secs) == (120, None)
    assert ge.TrainSpec(TRAIN).max_steps is None


def test_specs_take_what_tf_estimator_s_take():
    assert ge.TrainSpec(TRAIN, 1000).max_steps == 1000
    assert ge.TrainSpec(TRAIN, hooks=None, saving_listeners=None).hooks == ()
    assert ge.EvalSpec(EVAL, 100).steps == 100
    assert ge.EvalSpec(EVAL, hooks=None, exporters=None).exporters == ()


def test_one_exporter_may_stand_alone():
    exporter = Mine()
    assert ge.EvalSpec(EVAL, exporters=exporter).exporters == (exporter,)


@pytest.mark.parametrize("names", [[None, None], ["a", "b", "a"], []])
def test_evaluations_need_names_of_their_own(names, tmp_path):
    specs = [ge.EvalSpec(EVAL, name=name) for name in names]
    estimator = fakes.make_estimator(tmp_path)
    with pytest.raises(ValueError) as error:
        ge.train_and_evaluate(estimator, ge.TrainSpec(TRAIN, max_steps=1), specs)
    assert f"eval_spec names its evaluations {names}: give at least one" in str(
        error.value
    )
    assert fakes.checkpoint_steps(tmp_path) == []


class FakeEstimator:
    """Evaluates to its step, and counts."""

    loaded_checkpoint = "ckpt"
    config = ge.RunConfig()

    def __init__(self, model_dir):
        self.model_dir = str(model_dir)
        self.global_step = 0
        self.evaluated = []

    def eval_dir(self, name):
        return f"{self.model_dir}/eval"

    def wait_until_saved(self):
        pass

    def evaluate(self, input_fn, *, steps, hooks, checkpoint_path, name):
        self.evaluated.append(self.global_step)
        return {"loss": 1.0, "global_step": self.global_step}


class Evaluations:
    """The evaluations by one EvalSpec, driven by hand."""

    def __init__(self, model_dir, max_step=100, first_step=0, **fields):
        self.seconds = 0.0
        self.estimator = FakeEstimator(model_dir)
        spec = ge.EvalSpec(EVAL, **fields)
        self.along = EvaluationAlong(
            self.estimator, spec, [spec], clock=lambda: self.seconds
        )
        self.run = Run(str(model_dir), first_step, max_step)

    def save(self, step, seconds=None):
        self.seconds = step if seconds is None else seconds
        self.run.step = self.estimator.global_step = step
        self.stop(saved=True)

    def stop(self, *, saved):
        """The loop stops: decides, saves if asked to, evaluates; returns whether."""
        needed = self.along.decide(self.run, saved=saved)
        self.along.at_stop(self.run)
        return needed

    @property
    def evaluated(self):
        return self.estimator.evaluated


def test_each_checkpoint_but_the_first_and_the_last_is_evaluated(tmp_path):
    evaluations = Evaluations(tmp_path, first_step=5, max_step=30, throttle_secs=0)
    for step in (5, 10, 20, 30):
        evaluations.save(step)
    assert evaluations.evaluated == [10, 20]
    evaluations.along.finish()
    assert evaluations.evaluated == [10, 20, 30]


def test_the_last_checkpoint_is_evaluated_once_when_the_run_has_finished(tmp_path):
    evaluations = Evaluations(tmp_path, max_step=None, throttle_secs=0)
    evaluations.save(10)
    evaluations.run.finished = True
    evaluations.save(17)
    assert evaluations.evaluated == [10, 17]
    evaluations.along.finish()
    assert evaluations.evaluated == [10, 17]


class Ends(ge.Hook):
    """Of an evaluation: keeps its step; breaks everything off at one."""

    def __init__(self, evaluated, fails_at=None):
        self.evaluated = evaluated
        self._fails_at = fails_at

    def end(self, run):
        self.evaluated.append(run.step)
        if run.step == self._fails_at:
            raise InterruptedError


def test_an_evaluation_that_was_broken_off_is_made_up_for(tmp_path):
    evaluated = []

    def run(fails_at=None):
        hooks = [Ends(evaluated, fails_at)]
        eval_spec = ge.EvalSpec(EVAL, hooks=hooks, throttle_secs=0)
        estimator = fakes.make_estimator(tmp_path, save_checkpoints_steps=5)
        spec = ge.TrainSpec(TRAIN, max_steps=22)
        ge.train_and_evaluate(estimator, spec, eval_spec)

    with pytest.raises(InterruptedError):
        run(fails_at=10)
    assert evaluated == [5, 10]
    run()
    assert evaluated == [5, 10, 10, 15, 20, 22]


def test_checkpoints_that_come_too_soon_are_passed_over(tmp_path, log):
    evaluations = Evaluations(tmp_path, throttle_secs=100)
    for step, seconds in ((1, 60), (2, 99), (3, 101), (4, 150), (5, 201)):
        evaluations.save(step, seconds)
    assert evaluations.evaluated == [3, 5]
    assert log() == [
        f"eval | step {step} is passed over; the next evaluation is the first one "
        f"in {wait} s (throttle_secs=100)"
        for step, wait in ((1, 40), (2, 1), (4, 51))
    ]
    # The last never is.
    evaluations.seconds = 202
    evaluations.estimator.global_step = 6
    evaluations.along.finish()
    assert evaluations.evaluated == [3, 5, 6]


def test_a_step_is_evaluated_once_and_exported_as_the_last(tmp_path):
    exporter = Mine()
    evaluations = Evaluations(tmp_path, throttle_secs=0, exporters=exporter)
    evaluations.save(10)
    result, paths = evaluations.along.finish()
    assert evaluations.evaluated == [10]
    assert [(step, final) for _, _, step, final in exporter.calls] == [
        (10, False),
        (10, True),
    ]
    assert result["global_step"] == 10
    assert paths == ["mine-10"]


class Counts(ge.Hook):
    """Keeps how often it was called."""

    def __init__(self):
        self.begun = self.ended = 0

    def begin(self, run):
        self.begun += 1

    def end(self, run):
        self.ended += 1


class Steps(ge.SavingListener):
    """Keeps the steps of checkpoints."""

    def __init__(self):
        self.steps = []

    def after_save(self, run):
        self.steps.append(run.step)


class Runs:
    """A whole run with two evaluations, and what took part in it."""

    def __init__(self, model_dir):
        self.model_dir = model_dir
        self.train_hook, self.eval_hook = Counts(), Counts()
        self.listener, self.exporter, self.best = Steps(), Mine(), Mine("best")
        self.estimator = fakes.make_estimator(model_dir, save_checkpoints_steps=2)
        some = ge.EvalSpec(
            EVAL, steps=1, name="some", throttle_secs=0, exporters=self.best
        )
        everything = ge.EvalSpec(
            EVAL,
            name="all",
            throttle_secs=0,
            hooks=[self.eval_hook],
            exporters=[self.exporter],
        )
        train = ge.TrainSpec(
            TRAIN,
            max_steps=5,
            hooks=[self.train_hook],
            saving_listeners=[self.listener],
        )
        self.metrics, self.exported = ge.train_and_evaluate(
            self.estimator, train, [everything, some]
        )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("run"))


def test_several_evaluations_by_name(run):
    assert list(run.metrics) == ["all", "some"]
    assert run.metrics["all"]["examples"] == 40
    assert run.metrics["some"]["examples"] == 16
    assert {m["global_step"] for m in run.metrics.values()} == {5}
    assert run.exported == ["mine-5", "best-5"]
    assert (run.model_dir / "eval_all").is_dir()
    assert (run.model_dir / "eval_some").is_dir()


def test_an_exporter_of_ones_own(run):
    base = str(run.model_dir)
    assert run.exporter.calls == [
        (f"{base}/export/all/mine", f"{base}/model.ckpt-{step}", step, step == 5)
        for step in (2, 4, 5)
    ]


def test_hooks_and_listeners_are_called(run):
    assert (run.train_hook.begun, run.train_hook.ended) == (1, 1)
    assert (run.eval_hook.begun, run.eval_hook.ended) == (3, 3)
    assert run.listener.steps == [0, 2, 4, 5]


def test_evaluations_do_not_disturb_the_training(run, tmp_path):
    """Neither is its input rewound, nor do random numbers or weights move."""
    alone = fakes.make_estimator(tmp_path, save_checkpoints_steps=2)
    alone.train(TRAIN, max_steps=5)
    expected = fakes.weights(tmp_path)
    for name, value in fakes.weights(run.model_dir).items():
        np.testing.assert_array_equal(value, expected[name], name)


def test_without_checkpoints_the_live_weights_are_evaluated(tmp_path):
    estimator = fakes.make_estimator(tmp_path, save_checkpoints_steps=0)
    metrics, exported = ge.train_and_evaluate(
        estimator, ge.TrainSpec(TRAIN, max_steps=2), ge.EvalSpec(EVAL)
    )
    assert metrics["global_step"] == 2
    assert metrics["examples"] == 40
    assert exported == []


class Own(ge.Estimator):
    """Overrides `train` as one of tf.estimator's was."""

    def train(
        self, input_fn, hooks=None, steps=None, max_steps=None, saving_listeners=None
    ):
        return super().train(
            input_fn,
            hooks=hooks,
            steps=steps,
            max_steps=max_steps,
            saving_listeners=saving_listeners,
        )


def test_a_train_of_ones_own_takes_what_tf_estimators_took(tmp_path):
    estimator = Own(
        fakes.classifier_fn,
        modules={"network": fakes.network, "optimizer": fakes.adam},
        config=ge.RunConfig(model_dir=tmp_path, save_checkpoints_steps=2),
    )
    exporter = Mine()
    eval_spec = ge.EvalSpec(EVAL, throttle_secs=0, exporters=[exporter])
    ge.train_and_evaluate(estimator, ge.TrainSpec(TRAIN, max_steps=4), eval_spec)
    assert [step for _, _, step, _ in exporter.calls] == [2, 4]
