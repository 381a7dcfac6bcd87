"""Learning rates that are lowered where a metric no longer improves."""

import keras
import pytest

import pipeline as ge
from tests import fakes, interrupted
from tests.interrupted import EVAL, TRAIN


class Spec(ge.EvalSpec):
    """Evaluations whose loss never changes."""

    def evaluate(self, estimator, checkpoint_path=None, *, hooks=()):
        return {"loss": 1.0, "accuracy": 0.5, "global_step": estimator.global_step}


def sgd():
    return keras.optimizers.SGD(0.5)


def scheduled():
    return keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.5, 1, 1))


def decaying():
    return keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)
    )


def run(model_dir, optimizer=sgd, *, max_steps=10, hook=None, more=(), **config):
    """Trains; returns the learning rate of each step."""
    rates = fakes.Recorder(every_steps=1)
    hooks = [rates, *more] if hook is None else [rates, hook, *more]
    estimator = fakes.make_estimator(
        model_dir, optimizer=optimizer, save_checkpoints_steps=2, **config
    )
    spec = ge.TrainSpec(TRAIN, max_steps=max_steps, hooks=hooks)
    ge.train_and_evaluate(estimator, spec, Spec(EVAL, throttle_secs=0))
    return dict(
        zip(rates.steps, [v["learning_rate"] for v in rates.values], strict=True)
    )


def halves(**options):
    options = {"factor": 0.5, "max_evaluations": 1, **options}
    return ge.ReduceOnPlateau("loss", **options)


# The rate after each step; the evaluations of steps 4, 6 and 8 show no improvement.
HALVED = {n: 0.5 if n <= 4 else 0.25 if n <= 6 else 0.125 for n in range(1, 9)}


@pytest.mark.parametrize("optimizer", [sgd, scheduled])
def test_a_constant_and_a_schedule_are_lowered(optimizer, tmp_path):
    assert run(tmp_path, optimizer, max_steps=8, hook=halves()) == HALVED


def test_the_factor_lies_on_top_of_a_schedule(tmp_path):
    found = run(tmp_path, decaying, max_steps=8, hook=halves())
    assert found == {n: HALVED[n] * 0.5**n for n in HALVED}


@pytest.mark.parametrize("optimizer", [sgd, scheduled])
def test_two_replicas_do_the_same(optimizer, tmp_path, mirrored_by_hand):
    config = {"train_distribute": mirrored_by_hand}
    assert run(tmp_path, optimizer, max_steps=8, hook=halves(), **config) == HALVED


class Kills(ge.Hook):
    every_steps = 1

    def __init__(self, step):
        self.step = step

    def after_step(self, run):
        if run.step == self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize("optimizer", [sgd, scheduled])
def test_killed_and_resumed_is_not_killed(optimizer, tmp_path):
    straight = tmp_path / "straight"
    run(straight, optimizer, hook=halves())
    killed = tmp_path / "killed"
    with pytest.raises(KeyboardInterrupt):
        run(killed, optimizer, hook=halves(), more=[Kills(7)])
    run(killed, optimizer, hook=halves())
    assert interrupted.equal(killed, straight)


def test_a_rate_that_is_configured_otherwise_wins(tmp_path):
    run(tmp_path, max_steps=6, hook=halves())

    def other():
        return keras.optimizers.SGD(0.75)

    assert run(tmp_path, other, max_steps=8, hook=halves())[7] == 0.75


def test_without_the_hook_a_schedule_is_as_it_was(tmp_path):
    run(tmp_path, scheduled, max_steps=6, hook=halves())
    assert run(tmp_path, scheduled, max_steps=8)[7] == 0.5


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"min_rate": 0.2}, [0.5, 0.25, 0.2, 0.2]),
        ({"cooldown_steps": 3}, [0.5, 0.25, 0.25, 0.125]),
    ],
)
def test_limits(options, expected, tmp_path):
    found = run(tmp_path, hook=halves(**options))
    assert [pytest.approx(found[n]) for n in (3, 5, 7, 9)] == expected


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: ge.ReduceOnPlateau("loss", factor=2, max_steps=1), "between 0 and 1"),
        (lambda: ge.ReduceOnPlateau("quality", max_steps=1), "higher_is_better=True"),
        (lambda: ge.ReduceOnPlateau("loss"), "no patience"),
        (lambda: halves(cooldown_steps=-1), "cooldown_steps is -1"),
        (lambda: halves(higher_is_better="False"), "better is str 'False': write"),
    ],
)
def test_wrong_values_are_refused(make, text):
    with pytest.raises(ge.Refusal, match=text):
        make()


def test_an_optimizer_that_there_is_not(tmp_path):
    with pytest.raises(ValueError, match=r"'optimiser'.*Did you mean optimizer"):
        run(tmp_path, hook=halves(optimizers="optimiser"))
