"""The order of the calls of a training, a start at its end, and the programs that are kept."""

import keras
import pytest
import tensorflow as tf

import gin_estimator as ge
from gin_estimator.loop import bound_model
from small import X, Y, eval_input, make, model_fn, train_input


class Calls(ge.Hook, ge.SavingListener):
    """Records the calls of a hook or of a listener."""

    every_steps = 2

    def __init__(self, calls, prefix=""):
        for name in (
            *("begin", "after_loop", "after_step", "after_evaluation", "end"),
            *("before_save", "after_save"),
        ):
            method = lambda run, *_, name=name: calls.append(f"{prefix}{name} {run.step}")  # noqa: E731
            setattr(self, name, method)


class Hook(Calls):
    def after_loop(self, run):
        """Is set in `__init__`; defined here, so that it counts as overridden."""

    def after_step(self, run):
        """As `after_loop`."""


class Exports(ge.Exporter):
    default_name = "exports"

    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_final):
        self.calls.append(f"export {eval_result['global_step']}{' final' if is_final else ''}")


def test_calls_have_one_order_and_a_start_at_the_end_evaluates_again(tmp_path):
    def train(input_fn=train_input):
        calls = []
        train = ge.TrainSpec(input_fn, 4, [Hook(calls)], [Calls(calls, "listener ")])
        evaluation = ge.EvalSpec(eval_input, exporters=Exports(calls))
        one = make(tmp_path, save_checkpoints_steps=2, max_loop_secs=600)
        metrics, _ = ge.train_and_evaluate(one, train, evaluation)
        return calls, metrics

    calls, metrics = train()
    assert calls == [
        *("begin 0", "listener begin 0", "listener before_save 0", "listener after_save 0"),
        *("after_loop 1", "after_loop 2", "after_step 2"),
        *("listener before_save 2", "listener after_save 2", "after_evaluation 2", "export 2"),
        *("after_loop 4", "after_step 4"),
        *("listener before_save 4", "listener after_save 4"),
        *("after_evaluation 4", "export 4 final", "end 4", "listener end 4"),
    ]

    def gone():
        raise FileNotFoundError

    again, same = train(gone)  # As in tf.estimator, without hooks and training data.
    assert again == ["export 4 final"]
    assert same == pytest.approx(metrics)
    (tmp_path / "training_ended.json").unlink()  # As after a kill before the end.
    again, same = train()
    assert again == [
        *("begin 4", "listener begin 4"),
        *("after_evaluation 4", "export 4 final", "end 4", "listener end 4"),
    ]
    assert same == pytest.approx(metrics)


def test_a_training_calls_its_input_fn_once(tmp_path):
    calls = []

    def input_fn():
        calls.append(0)
        return train_input()

    one = make(tmp_path)
    for number in (1, 2, 3):
        one.train(input_fn, steps=2)
        assert len(calls) == number


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["train", "eval", "infer"])
def test_the_programs_that_were_used_last_are_kept(tmp_path, mode, monkeypatch):
    monkeypatch.setattr(bound_model, "_MAX_PROGRAMS", 3)
    traces = []

    def counted(features, labels, mode, network, optimizer):
        traces.append(mode)
        return model_fn(features, labels, mode, network, optimizer)

    config = {"save_checkpoints_steps": 0, "log_step_count_steps": None, "changed_input": "restart"}
    one = make(tmp_path, fn=counted, network=lambda: keras.layers.Dense(3), **config)

    def is_traced(size):
        """Returns whether data of another static size are traced."""

        def input_fn():
            rows = X if mode == "infer" else (X, Y)
            return tf.data.Dataset.from_tensor_slices(rows).batch(size, drop_remainder=True)

        before = len(traces)
        if mode == "train":
            one.train(input_fn, steps=1)
        elif mode == "eval":
            one.evaluate(input_fn, steps=1)
        else:
            next(one.predict(input_fn))
        return len(traces) > before

    assert [is_traced(size) for size in (2, 3, 4)] == [True] * 3
    assert [is_traced(size) for size in (4, 3, 2)] == [False] * 3
    assert is_traced(5)  # Takes the place of that for 4.
    assert [is_traced(size) for size in (2, 3, 4)] == [False, False, True]
