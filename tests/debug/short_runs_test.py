"""fast_dev_run does everything once; overfit_batches trains on a few batches."""

import os
import tempfile

import keras
import numpy as np
import pytest
import small
import tensorflow as tf

import gin_estimator as ge
from gin_estimator import main


class Watcher(ge.Hook):
    """Notes its calls; it asks for one at each 1000th step."""

    every_steps = 1000

    def __init__(self):
        self.calls = []

    def begin(self, run):
        self.calls.append(run.model_dir)

    def after_step(self, run):
        self.calls.append(f"after_step {run.step}")

    def after_evaluation(self, run, name, metrics):
        self.calls.append(f"after_evaluation {name}")

    def end(self, run):
        self.calls.append(f"end {run.step}")


class Mine(ge.Exporter):
    def __init__(self, fails=False):
        super().__init__("mine")
        self.fails, self.calls = fails, []

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
        if self.fails:
            raise RuntimeError("hours later")
        self.calls.append(is_the_final_export)


class Writer(ge.MetricWriter):
    has_begun = False

    def begin(self, run, hparams):
        self.has_begun = True


def left_in(folder):
    return [name for name in os.listdir(folder) if not name.startswith("__autograph")]


def test_everything_is_done_once_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    watcher, mine, writer = Watcher(), Mine(), Writer()
    estimator = small.make(tmp_path / "run", metric_writers=[writer], save_checkpoints_steps=50)
    predicted = []

    def predict_input():
        predicted.append(True)
        return small.features_input()

    metrics = ge.fast_dev_run(
        estimator,
        ge.TrainSpec(
            small.train_input, max_steps=100_000, hooks=[watcher, ge.hooks.StopAtStepHook(9)]
        ),
        ge.EvalSpec(small.eval_input, name="test", exporters=[mine, ge.FinalExporter()]),
        predict_input_fn=predict_input,
    )
    assert metrics["global_step"] == 1
    folder, *calls = watcher.calls
    assert calls == ["after_step 1", "after_evaluation test", "end 1"]
    assert watcher.next_step(0) == 1000
    assert mine.calls[-1:] == [True]
    assert predicted and not writer.has_begun
    assert not os.path.exists(folder)
    assert left_in(tmp_path) == []
    assert estimator.last_run is None

    failing = ge.EvalSpec(small.eval_input, exporters=Mine(fails=True))
    with pytest.raises(RuntimeError, match="hours later"):
        ge.fast_dev_run(estimator, ge.TrainSpec(small.train_input, max_steps=9), failing)
    assert left_in(tmp_path) == []


def test_a_task_of_a_cluster_is_refused(tmp_path, monkeypatch):
    task = '{"cluster": {"chief": ["a:1"]}, "task": {"type": "evaluator", "index": 0}}'
    monkeypatch.setenv("TF_CONFIG", task)
    estimator = small.make(tmp_path)
    with pytest.raises(ge.UserError, match="this task is evaluator 0.*Unset TF_CONFIG"):
        ge.fast_dev_run(estimator, ge.TrainSpec(small.train_input, max_steps=9))


def shuffled(mode, input_context):
    order = np.random.default_rng().permutation(40)  # Another one at each call.
    READ.append(mode)
    data = tf.data.Dataset.from_tensor_slices((small.X[order], small.Y[order]))
    return data.batch(input_context.get_per_replica_batch_size(8)).repeat()


READ = []


def large():
    return keras.Sequential([keras.layers.Dense(64, "relu"), keras.layers.Dense(3)])


def adam():
    return keras.optimizers.Adam(0.03)


@pytest.mark.thin
@pytest.mark.parametrize("devices", [None, ("CPU:0", "CPU:1")])
def test_the_first_batches_are_learned_by_heart(tmp_path, devices):
    READ.clear()
    options = {"devices": devices, "gradient_accumulation_steps": 2}
    estimator = small.make(tmp_path, network=large, optimizer=adam, **options)
    train_spec = ge.TrainSpec(shuffled, max_steps=200)
    seen = Seen()
    eval_spec = ge.EvalSpec(small.eval_input, steps=1, throttle_secs=1000, hooks=[seen])
    metrics, _ = ge.debug.overfit_batches(estimator, train_spec, eval_spec, 2)
    assert READ == ["train"]
    assert seen.examples == 4 * 8
    assert metrics["loss"] < 0.3, "of 32 random labels, whose loss is 1.1 without learning"

    again = small.make(tmp_path, network=large, optimizer=adam, **options)
    with pytest.raises(ge.errors.UserValueError, match="3, and .* training on 2 batches"):
        ge.debug.overfit_batches(again, train_spec, eval_spec, 3)


class Seen(ge.Hook):
    def end(self, run):
        self.examples = run.report.num_examples


def test_a_directory_of_all_data_and_servers_are_refused(tmp_path, monkeypatch):
    estimator = small.make(tmp_path)
    estimator.train(small.train_input, steps=1)
    train_spec = ge.TrainSpec(small.train_input, max_steps=2)
    with pytest.raises(ge.errors.UserValueError, match="a training on all data: expected a new"):
        ge.debug.overfit_batches(estimator, train_spec)
    with pytest.raises(ge.errors.UserValueError, match="num_batches is 0: expected an int > 0"):
        ge.debug.overfit_batches(estimator, train_spec, num_batches=0)
    jobs = '{"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}'
    task = '{"type": "chief", "index": 0}'
    monkeypatch.setenv("TF_CONFIG", f'{{"cluster": {jobs}, "task": {task}}}')
    on_servers = small.make(tmp_path / "other", execution="parameter_server")
    for call in (
        lambda: ge.debug.overfit_batches(on_servers, train_spec),
        lambda: ge.debug.find_learning_rate(on_servers, small.train_input),
    ):
        with pytest.raises(ge.errors.UserRuntimeError, match="Set execution='single_host'"):
            call()


@pytest.mark.slow
def test_the_command(gin_folder, capsys):
    linear = ["main", "--gin_file=linear.gin", "--model_dir=run"]
    assert main.main([*linear, "--fast_dev_run"]) == 0
    assert "global_step 1\n" in capsys.readouterr().out
    assert not (gin_folder / "run").exists()
    for flags, text in (
        (["--fast_dev_run", "--overfit_batches=1"], "--fast_dev_run and --overfit_batches are set"),
        (["--fast_dev_run", "--job=predict"], "--fast_dev_run is for --job=train_and_evaluate or"),
        (["--simulate_workers=2"], "--simulate_workers is for --job=inspect"),
    ):
        assert main.main([*linear, *flags]) == 2
        assert text in capsys.readouterr().err
    assert main.main([*linear, "--overfit_batches=1", "--gin.TRAIN_STEPS=3"]) == 0
    assert "global_step 3\n" in capsys.readouterr().out
    assert (gin_folder / "run/overfit_batches.json").exists()
