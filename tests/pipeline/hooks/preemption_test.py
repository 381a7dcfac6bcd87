"""A signal stops the run, saves it, and the same command goes on."""

import os
import signal

import pytest

import pipeline as ge
from pipeline.model_dir import end_marker
from tests import fakes


class Signals(ge.Hook):
    """Sends a signal to this process at a step."""

    def __init__(self, step, number):
        self.every_steps = step
        self._number = number

    def after_step(self, run):
        if run.step == self.every_steps:
            os.kill(os.getpid(), self._number)


def train(model_dir, *hooks, max_steps=40, eval_hooks=(), **options):
    x, y = fakes.classification_data(64)
    input_fn = fakes.make_input_fn(
        x, y, batch_size=16, change=lambda d: d.shuffle(64, seed=1).repeat()
    )
    estimator = fakes.make_estimator(
        model_dir,
        network=lambda: fakes.network(dropout=0.2),
        **{"steps_per_loop": 5, **options},
    )
    spec = ge.TrainSpec(input_fn, max_steps=max_steps, hooks=hooks)
    eval_spec = ge.EvalSpec(
        fakes.make_input_fn(x, y, batch_size=16), hooks=eval_hooks, throttle_secs=0
    )
    found = ge.train_and_evaluate(estimator, spec, eval_spec)
    return found[0]["global_step"]


@pytest.mark.parametrize(
    ("number", "reason"),
    [(signal.SIGTERM, "preempted"), (signal.SIGINT, "stopped by Ctrl-C")],
)
def test_saves_and_goes_on_exactly(tmp_path, number, reason, log):
    handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(ge.PreemptedError) as error:
        train(tmp_path / "parts", Signals(17, number), ge.PreemptionHook())
    step = fakes.checkpoint_steps(tmp_path / "parts")[-1]
    assert 17 <= step <= 22
    assert f"train | ended at step {step} | {reason}" in log()
    assert f"model.ckpt-{step} was saved: the same command goes on" in str(error.value)
    assert end_marker.read(str(tmp_path / "parts")) is None
    now = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    assert now == handlers
    assert train(tmp_path / "parts") == train(tmp_path / "whole") == 40
    parts, whole = fakes.weights(tmp_path / "parts"), fakes.weights(tmp_path / "whole")
    for name, value in whole.items():
        assert (parts[name] == value).all(), name


def test_an_evaluation_under_way_is_given_up(tmp_path):
    """It may take longer than the grace period, and what it evaluates is saved."""

    class InEvaluation(ge.Hook):
        loops = 0

        def after_loop(self, run):
            self.loops += 1
            os.kill(os.getpid(), signal.SIGTERM)

    class Evaluated(ge.Hook):
        steps = ()

        def end(self, run):
            self.steps += (run.step,)

    hook, evaluated = InEvaluation(), Evaluated()
    with pytest.raises(ge.PreemptedError, match="model.ckpt-10 was saved"):
        train(
            tmp_path,
            ge.PreemptionHook(),
            eval_hooks=[hook],
            steps_per_loop=1,
            save_checkpoints_steps=10,
        )
    assert hook.loops == 1
    assert not list(tmp_path.glob("eval/*.tfevents.*"))
    train(tmp_path, eval_hooks=[evaluated], save_checkpoints_steps=10)
    assert evaluated.steps == (10, 20, 30, 40)


def test_no_evaluation_begins_after_a_signal(tmp_path, log):
    class AtTen(ge.Hook):
        def after_loop(self, run):
            if run.step == 10:
                os.kill(os.getpid(), signal.SIGTERM)

    class Begun(ge.Hook):
        steps = ()

        def begin(self, run):
            self.steps += (run.step,)

    begun = Begun()
    options = {"eval_hooks": [begun], "save_checkpoints_steps": 10}
    with pytest.raises(ge.PreemptedError, match="model.ckpt-10 was saved"):
        train(tmp_path, AtTen(), ge.PreemptionHook(), **options)
    assert begun.steps == ()
    assert "train | ended at step 10 | preempted" in log()
    train(tmp_path, max_steps=20, **options)
    assert begun.steps == (10, 20)


def test_a_signal_at_the_last_step_is_too_late(tmp_path):
    hooks = [Signals(40, signal.SIGTERM), ge.PreemptionHook()]
    assert train(tmp_path, *hooks) == 40


def test_ctrl_c_twice_interrupts(tmp_path):
    class Twice(ge.Hook):
        every_steps = 3

        def after_step(self, run):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, Twice(), ge.PreemptionHook())
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.usefixtures("fresh_gin")
@pytest.mark.parametrize("steps_before", [0, 2])
def test_the_last_words_promise_no_save_that_is_not_there(
    tmp_path, capsys, steps_before
):
    x, y = fakes.classification_data(64)
    forever = fakes.make_input_fn(x, y, batch_size=16, change=lambda d: d.repeat())
    if steps_before:
        fakes.make_estimator(tmp_path).train(forever, steps=steps_before)

    def program():
        estimator = fakes.make_estimator(tmp_path, save_checkpoints_steps=0)
        estimator.train(forever, hooks=[Signals(steps_before + 2, signal.SIGINT)])

    with pytest.raises(SystemExit) as ended:
        ge.run(program)
    assert ended.value.code == 75
    assert "nothing was saved: the same command begins" in capsys.readouterr().err
