"""Trainings that evaluations end: from the spec to the marker, killed and resumed."""

import json

import pytest

import pipeline as ge
from pipeline.mistakes import habits
from pipeline.model_dir import end_marker
from tests import fakes, interrupted
from tests.interrupted import EVAL, TRAIN


def scored(rule, values, **options):
    """Returns an EvalSpec whose evaluation at steps 2, 4, ... has these scores.

    Args:
      rule: rule, or several.
      values: score of each evaluation; the last one stands for all after it.
      **options: fields of the EvalSpec.
    """

    class Spec(ge.EvalSpec):
        def evaluate(self, estimator, checkpoint_path=None, *, hooks=()):
            step = estimator.global_step
            score = values[min(step // 2, len(values)) - 1]
            return {"loss": 1.0, "accuracy": score, "global_step": step}

    return Spec(EVAL, throttle_secs=0, early_stopping=rule, **options)


def run(model_dir, eval_spec, *, max_steps=12, hooks=()):
    # Evaluations are made up, and to compile costs more than these few steps.
    estimator = interrupted.make(model_dir, run_eagerly=True)
    spec = ge.TrainSpec(TRAIN, max_steps=max_steps, hooks=hooks)
    ge.train_and_evaluate(estimator, spec, eval_spec)
    return fakes.checkpoint_steps(model_dir)[-1]


RULE = ge.StopIfNoIncrease("accuracy", max_evaluations=2)
VALUES = [0.1, 0.3, 0.2, 0.3, 0.9]


def test_a_rule_ends_training_and_says_why(tmp_path):
    assert run(tmp_path, scored(RULE, VALUES)) == 8
    marker = end_marker.read(str(tmp_path))
    assert marker.reason == end_marker.STOPPED
    assert marker.step == 8
    assert marker.details == (
        "StopIfNoIncrease('accuracy'): no increase in 2 evaluations; best 0.3 at step "
        "4, 0.3 at step 8",
    )


def test_it_ends_at_once_when_started_again_unless_the_rule_is_another(tmp_path, log):
    assert run(tmp_path, scored(RULE, VALUES)) == 8
    assert run(tmp_path, scored(RULE, VALUES)) == 8
    assert end_marker.read(str(tmp_path)).reason == end_marker.STOPPED
    patient = ge.StopIfNoIncrease("accuracy", max_evaluations=3)
    assert run(tmp_path, scored(patient, VALUES)) == 12
    assert any("another one now: training goes on" in line for line in log())


def test_without_the_rule_it_goes_on_and_says_so(tmp_path, log):
    assert run(tmp_path, scored(RULE, VALUES)) == 8
    assert run(tmp_path, scored((), VALUES)) == 12
    assert any("state of StopIfNoIncrease, which is no hook now" in x for x in log())


class Killed(ge.Hook):
    """Ends the process, as far as a test can, right after the decision to stop."""

    def after_evaluation(self, run, name, metrics):
        if run.stop_reasons:
            raise KeyboardInterrupt


def test_killed_after_the_decision_it_stops_at_the_same_step(tmp_path):
    straight = tmp_path / "straight"
    run(straight, scored(RULE, VALUES))
    # Hooks of a rule come after TrainSpec's own: this one sees the stop a call later.
    rule = ge.StopIfNoIncrease("accuracy", max_evaluations=2)
    killed = tmp_path / "killed"
    with pytest.raises(KeyboardInterrupt):
        run(killed, scored((), VALUES), hooks=[rule, Killed()])
    assert fakes.checkpoint_steps(killed)[-1] == 8
    state = json.loads((killed / "hooks" / "model.ckpt-8.json").read_text())
    assert state["hooks"]["StopIfNoIncrease"]["state"]["stopped"] is None
    assert run(killed, scored((), VALUES), hooks=[rule]) == 8
    assert interrupted.equal(killed, straight)
    assert (
        end_marker.read(str(killed)).details == end_marker.read(str(straight)).details
    )


def test_each_evaluation_has_its_own_rules(tmp_path):
    first = scored(ge.StopIfHigher("accuracy", 0.5), [0.4], name="first")
    second = scored(ge.StopIfHigher("accuracy", 0.5), [0.1, 0.2, 0.6], name="second")
    assert run(tmp_path, [first, second]) == 6
    assert "0.6 at step 6" in end_marker.read(str(tmp_path)).details[0]


def test_a_rule_in_train_spec_names_its_evaluation(tmp_path):
    rule = ge.StopIfLower("loss", 2.0, evaluation="test")
    assert run(tmp_path, scored((), [0.0], name="test"), hooks=[rule]) == 2


def test_the_last_evaluation_stops_nothing_that_has_ended(tmp_path):
    spec = scored(ge.StopIfHigher("accuracy", 0.5), [0.1, 0.1, 0.9])
    assert run(tmp_path, spec, max_steps=6) == 6
    assert end_marker.read(str(tmp_path)).reason == end_marker.FINISHED
    # With more steps it goes on, to its next evaluation.
    assert run(tmp_path, spec, max_steps=12) == 8


# Back to the best.

BACK = ge.StopIfNoIncrease("accuracy", max_evaluations=2, restore_best=True)


class Exports(ge.Exporter):
    """Keeps what it would export at the end."""

    def __init__(self):
        super().__init__("kept")
        self.final = []

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_final):
        if is_final:
            path = str(checkpoint_path).rpartition("/")[2]
            self.final.append((path, eval_result["global_step"]))


def test_a_rule_goes_back_to_the_best(tmp_path, log):
    exports = Exports()
    for asynchronous in (True, False):  # Started again, it ends at once.
        estimator = interrupted.make(
            tmp_path, keep_checkpoint_max=1, async_checkpoint=asynchronous
        )
        spec = scored(BACK, VALUES, exporters=exports)
        result, _ = ge.train_and_evaluate(estimator, ge.TrainSpec(TRAIN, 12), spec)
        assert result["global_step"] == 4
        assert fakes.checkpoint_steps(tmp_path)[-1] == 4
        marker = end_marker.read(str(tmp_path))
        assert (marker.step, marker.checkpoint_step) == (4, 4)
        assert "no increase in 2 evaluations; best 0.3 at step 4" in marker.details[0]
    assert exports.final == [("model.ckpt-4", 4)] * 2
    assert sum("going back to step 4" in line for line in log()) == 1
    straight = tmp_path / "straight"
    interrupted.make(straight).train(TRAIN, max_steps=4)
    assert interrupted.equal(tmp_path, straight)


def test_it_goes_on_from_the_best_where_the_rule_is_taken_out(tmp_path):
    assert run(tmp_path, scored(BACK, VALUES)) == 4
    assert run(tmp_path, scored((), VALUES)) == 12
    straight = tmp_path / "straight"
    run(straight, scored((), VALUES))
    assert interrupted.equal(tmp_path, straight)


def test_without_any_best_it_stays(tmp_path):
    assert run(tmp_path, scored(BACK, [float("nan")])) == 6


def test_who_keeps_the_best(tmp_path):
    rule = ge.StopIfNoIncrease("accuracy", max_evaluations=2, restore_best=True)
    refused(
        lambda: run(tmp_path, scored((), VALUES), hooks=[rule]),
        "goes back to the best checkpoint, and none is kept",
        "keep_best=KeepBest('accuracy')",
    )
    kept = scored((), VALUES, keep_best=ge.KeepBest("accuracy", 2))
    assert run(tmp_path, kept, hooks=[rule]) == 4
    worst = ge.KeepBest("accuracy", higher_is_better=False)
    refused(
        lambda: scored(BACK, VALUES, keep_best=worst), "do not agree on what is best"
    )


# Rules that could never stop anything.


def refused(make, *texts):
    with pytest.raises(ge.Refusal) as info:
        make()
    message = " ".join([str(info.value), *getattr(info.value, "__notes__", ())])
    assert all(text in message for text in texts), message


def test_a_metric_that_the_evaluation_does_not_have(tmp_path, log):
    spec = ge.EvalSpec(EVAL, early_stopping=ge.StopIfHigher("acuracy", 0.5))
    refused(
        lambda: run(tmp_path, spec),
        "StopIfHigher('acuracy') goes by a metric that the evaluation does not have",
        "It has accuracy, examples, loss. Did you mean accuracy?",
    )
    assert fakes.checkpoint_steps(tmp_path) == []
    assert not any("train | parameters" in line for line in log()), "refused first"


def test_an_evaluation_that_there_is_not(tmp_path):
    rule = ge.StopIfHigher("accuracy", 0.5, evaluation="tset")
    refused(
        lambda: run(tmp_path, ge.EvalSpec(EVAL, name="test"), hooks=[rule]),
        "goes by the evaluation 'tset', and the evaluations are 'test'",
        "Did you mean test?",
    )
    rule = ge.StopIfHigher("accuracy", 0.5)
    refused(
        lambda: run(tmp_path, ge.EvalSpec(EVAL, name="test"), hooks=[rule]),
        "the evaluation without a name, and the evaluations are 'test'",
        "write evaluation='test'",
    )


def test_no_evaluation_at_all(tmp_path):
    rule = ge.StopIfHigher("accuracy", 0.5)
    refused(
        lambda: interrupted.make(tmp_path).train(TRAIN, max_steps=2, hooks=[rule]),
        "this training has none",
        "train_and_evaluate(estimator,",
    )


def test_evaluations_without_checkpoints(tmp_path):
    estimator = fakes.make_estimator(tmp_path, save_checkpoints_steps=0)
    spec = ge.EvalSpec(EVAL, early_stopping=RULE)
    refused(
        lambda: ge.train_and_evaluate(estimator, ge.TrainSpec(TRAIN, 2), spec),
        "save_checkpoints_steps=0",
    )
    live = scored(RULE, VALUES, every_steps=2)
    ge.train_and_evaluate(estimator, ge.TrainSpec(TRAIN, 12), live)
    assert estimator.global_step == 8


class EarlyStopping:
    """Stands for Keras' callback."""


@pytest.mark.parametrize(
    "given, texts",
    [
        ("accuracy", ["early_stopping holds str 'accuracy'"]),
        (EarlyStopping(), ["max_evaluations=5"]),
        (ge.StopAtStepHook(5), ["which is no rule"]),
        (
            ge.StopIfHigher("loss", 1.0, evaluation="other"),
            ["of the EvalSpec 'test' goes by the evaluation 'other'"],
        ),
    ],
)
def test_what_is_no_rule(given, texts):
    refused(lambda: ge.EvalSpec(EVAL, name="test", early_stopping=given), *texts)


def test_functions_of_tf_estimator_have_a_line_to_write():
    for name in habits.STOP_HOOKS:
        with pytest.raises(AttributeError, match="write (EvalSpec|a subclass of Hook)"):
            getattr(ge, name)
