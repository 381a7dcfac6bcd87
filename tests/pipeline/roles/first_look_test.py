"""fast_dev_run does everything once; overfit_batches trains on a few batches."""

import os
import re
import tempfile

import keras
import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.cluster.tf_config import Cluster
from pipeline.roles import first_look
from tests import fakes

X, Y = fakes.classification_data(rows=48)
TRAIN = fakes.make_input_fn(X, Y, batch_size=8, change=lambda d: d.shuffle(48).repeat())
EVAL = fakes.make_input_fn(X, Y, batch_size=8)


class Watcher(ge.Hook):
    """Notes its calls, which it asks for every 1000 steps."""

    every_steps = 1000

    def __init__(self):
        self.calls = []

    def begin(self, run):
        self.calls.append(("begin", run.step))
        self.folder = run.model_dir

    def after_step(self, run):
        self.calls.append(("after_step", run.step))

    def after_evaluation(self, run, name, metrics):
        self.calls.append(("after_evaluation", name))

    def end(self, run):
        self.calls.append(("end", run.step))


class Calls(ge.Tool):
    """A tool beside TensorBoard, which is not to be called."""

    def begin(self, *args, **kwargs):
        raise AssertionError

    write = end = begin


class Mine(ge.Exporter):
    """Notes that it was called."""

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_final):
        self.called = is_final


def eager(model_dir, **options):
    return fakes.make_estimator(model_dir, run_eagerly=True, **options)


def fast_dev_run(estimator, *hooks, exporters=(), **options):
    return ge.fast_dev_run(
        estimator,
        ge.TrainSpec(TRAIN, max_steps=100_000, hooks=hooks),
        ge.EvalSpec(EVAL, exporters=exporters, name="test"),
        **options,
    )


def test_everything_is_done_once_and_nothing_is_left(tmp_path):
    watcher, mine = Watcher(), Mine("mine")
    estimator = eager(tmp_path, tools=[Calls()])
    metrics = fast_dev_run(estimator, watcher, exporters=[mine, ge.BestExporter()])
    assert metrics["global_step"] == 1
    assert metrics["examples"] == 8
    assert watcher.calls == [
        ("begin", 0),
        ("after_step", 1),
        ("after_evaluation", "test"),
        ("end", 1),
    ]
    assert watcher.next_step(0) == 1000
    assert mine.called
    assert not os.path.exists(watcher.folder)
    assert os.listdir(tmp_path) == []
    # The Estimator has not begun.
    assert estimator.global_step == 0


FAILING = {
    "a hook": (lambda: {"hooks": [fails(Watcher(), "after_step")]}, "RuntimeError"),
    "an exporter": (
        lambda: {"exporters": [fails(Mine("mine"), "export")]},
        "RuntimeErr",
    ),
    "a prediction": (lambda: {"predict_input_fn": lambda: 3}, "TypeError"),
}


def fails(made, method):
    def fail(*args):
        raise RuntimeError("hours later")

    setattr(made, method, fail)
    return made


@pytest.mark.parametrize("case", FAILING)
def test_what_would_fail_later_fails_now(case, tmp_path, monkeypatch):
    made, kind = FAILING[case]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    options = made()
    with pytest.raises(Exception) as error:  # noqa: PT011 (the kind differs)
        fast_dev_run(eager(tmp_path / "run"), *options.pop("hooks", ()), **options)
    assert kind in str([c.__name__ for c in type(error.value).__mro__])
    assert [p.name for p in tmp_path.iterdir()] in ([], ["run"])


def test_an_evaluator_has_nothing_to_do(tmp_path, monkeypatch):
    task = '{"cluster": {"chief": ["a:1"]}, "task": {"type": "evaluator", "index": 0}}'
    monkeypatch.setenv("TF_CONFIG", task)
    assert fast_dev_run(eager(tmp_path)) is None


def test_two_tasks_share_a_folder(tmp_path, monkeypatch):
    jobs = '"worker": ["a:1", "b:1"]'
    task = f'{{"cluster": {{{jobs}}}, "task": {{"type": "worker", "index": 0}}}}'
    monkeypatch.setenv("TF_CONFIG", task)
    estimator = eager(tmp_path, execution="multi_worker")
    with first_look._own_model_dir(estimator) as folder:
        assert folder == f"{tmp_path}/fast_dev_run"
        eager(folder, execution="single_host", cluster=Cluster()).train(EVAL, steps=1)
    assert os.listdir(tmp_path) == []
    # Killed, it was not deleted.
    eager(folder, execution="single_host", cluster=Cluster()).train(EVAL, steps=1)
    with pytest.raises(ValueError, match="is left of a run that was killed: delete it"):
        fast_dev_run(estimator)


# A few batches.


def overfit(estimator, num_batches=2, train=TRAIN, max_steps=6, **options):
    return ge.overfit_batches(
        estimator,
        ge.TrainSpec(train, max_steps=max_steps, **options),
        ge.EvalSpec(EVAL, throttle_secs=0),
        num_batches,
    )


@pytest.mark.parametrize("accumulation", [1, 2])
def test_trains_and_evaluates_on_the_same_batches(accumulation, tmp_path):
    """The input shuffles anew each time that it is read: it is read once."""
    seen = []
    estimator = ge.Estimator(
        Seeing(seen),
        modules={"network": fakes.network, "optimizer": fakes.adam},
        config=ge.RunConfig(
            model_dir=str(tmp_path),
            run_eagerly=True,
            gradient_accumulation_steps=accumulation,
            save_summary_steps=None,
        ),
    )
    metrics, _ = overfit(estimator)
    train = [rows for mode, rows in seen if mode == ge.ModeKeys.TRAIN]
    evaluated = [rows for mode, rows in seen if mode == ge.ModeKeys.EVAL]
    number = 2 * accumulation
    assert len(train) == 6 * accumulation
    assert train[:number] == train[number : 2 * number] == evaluated
    assert len({tuple(rows) for rows in train}) == number
    assert metrics["global_step"] == 6


class Seeing:
    """A model_fn that notes what it is called with, when it runs eagerly."""

    def __init__(self, seen):
        self.seen = seen

    def __call__(self, features, labels, mode, network, optimizer):
        if tf.executing_eagerly() and hasattr(features, "numpy"):
            self.seen.append((mode, features[:, 0].numpy().tolist()))
        return fakes.classifier_fn(features, labels, mode, network, optimizer, {})


def test_an_input_fn_keeps_its_arguments(tmp_path):
    calls = []

    def input_fn(mode, input_context, first_batch=0):
        calls.append((mode, first_batch))
        size = input_context.get_per_replica_batch_size(8)
        return tf.data.Dataset.from_tensor_slices((X, Y)).batch(size).skip(first_batch)

    overfit(eager(tmp_path), train=input_fn, max_steps=3)
    # Going on in the middle of the batches, in another process.
    overfit(eager(tmp_path), train=input_fn, max_steps=5)
    assert calls == [(ge.ModeKeys.TRAIN, 0)] * 2


def test_fewer_batches_than_asked_for_are_all_of_the_data(tmp_path):
    metrics, _ = overfit(eager(tmp_path), num_batches=100, train=EVAL)
    assert metrics["examples"] == 48


def test_the_loss_falls_to_nearly_nothing(tmp_path):
    estimator = fakes.make_estimator(
        tmp_path, optimizer=lambda: keras.optimizers.Adam(0.05)
    )
    metrics, _ = overfit(estimator, num_batches=1, max_steps=150)
    assert metrics["accuracy"] == 1
    assert metrics["loss"] < 0.1


def test_a_model_dir_of_another_training_is_refused(tmp_path):
    eager(tmp_path).train(TRAIN, max_steps=1)
    words = f"overfit_batches is 2, and {tmp_path} has checkpoints of a training on all"
    with pytest.raises(ValueError, match=re.escape(words)):
        overfit(eager(tmp_path))


def test_other_batches_than_before_are_refused(tmp_path):
    estimator = eager(tmp_path)
    overfit(estimator, max_steps=1)
    with pytest.raises(ValueError, match="of a training on 2 batches: write another"):
        overfit(estimator, num_batches=3)
    assert (tmp_path / first_look.MARKER).exists()


@pytest.mark.parametrize("number", [0, 1.5, "2"])
def test_a_number_of_batches_is_refused(number, tmp_path):
    with pytest.raises(
        ValueError, match="overfit_batches.num_batches is .* write an int"
    ):
        overfit(eager(tmp_path), num_batches=number)


def test_parameter_servers_are_refused(tmp_path, monkeypatch):
    jobs = '"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]'
    task = f'{{"cluster": {{{jobs}}}, "task": {{"type": "chief", "index": 0}}}}'
    monkeypatch.setenv("TF_CONFIG", task)
    estimator = eager(tmp_path, execution="parameter_server")
    with pytest.raises(RuntimeError, match="run it on one machine, --execution=single"):
        overfit(estimator)
    with pytest.raises(RuntimeError, match="run it on one machine, --execution=single"):
        ge.find_learning_rate(estimator, TRAIN)


def test_two_replicas_take_a_step_of_the_batches_together(tmp_path):
    """An element is one replica's batch; two batches of the step are four of these."""
    devices = [f"CPU:{n}" for n in range(2)]
    per_replica = fakes.make_input_fn(
        X, Y, batch_size=8, per_replica=True, change=lambda d: d.repeat()
    )
    estimator = fakes.make_estimator(tmp_path, devices=devices)
    metrics, _ = overfit(estimator, train=per_replica, max_steps=3)
    np.testing.assert_equal(metrics["examples"], 16)
