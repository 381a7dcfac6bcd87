"""inspect describes a training on this machine and on simulated clusters, and finds errors."""

import dataclasses
import json
import pathlib
import random

import gin
import keras
import numpy as np
import pytest
import small
import tensorflow as tf

import gin_estimator as ge
from gin_estimator import main
from refusals import refused

ROWS = np.arange(1, 65, dtype=np.float32)[:, np.newaxis] * np.ones(4, np.float32)
LABELS = np.arange(64) % 3


def rows():
    return tf.data.Dataset.from_tensor_slices((ROWS, LABELS))


def part(data, context):
    return data.shard(context.num_input_pipelines, context.input_pipeline_id)


def sharded(mode, input_context):
    data = part(rows(), input_context)
    data = data.repeat() if mode == ge.ModeKeys.TRAIN else data
    return data.batch(input_context.get_per_replica_batch_size(16))


def whole(mode):
    return rows().repeat().batch(16) if mode == ge.ModeKeys.TRAIN else rows().batch(16)


def make(folder, **options):
    return small.make(folder / "run", network=lambda: keras.layers.Dense(3), **options)


def inspect(folder, train=sharded, evaluated=sharded, estimator=None, **options):
    estimator = estimator or make(folder)
    spec = ge.TrainSpec(train, max_steps=100, hooks=[ge.LoggingHook(10)])
    eval_spec = ge.EvalSpec(evaluated, name="test", exporters=[ge.FinalExporter()])
    found = ge.debug.inspect(estimator, spec, eval_spec, secs=1e6, **options)
    assert not (folder / "run").exists()
    return found


def test_a_right_training_has_a_report_and_no_findings(tmp_path):
    python, numpy = random.getstate(), np.random.get_state()[1].tolist()
    estimator = make(tmp_path, gradient_accumulation_steps=2)
    found = inspect(tmp_path, whole, estimator=estimator, num_workers=4, num_replicas=2)
    assert random.getstate() == python
    assert np.random.get_state()[1].tolist() == numpy
    lines = list(found.lines())
    assert found.errors == found.warnings == []
    assert lines[-1] == "nothing was found"
    for line in (
        "topology (simulated): workers 4 x replicas 2 = 8 in step",
        "input train: input_fn whole, mode 'train'",
        "  features float32 (None, 4) TensorSpec",
        "  labels int64 (None,) TensorSpec",
        "  global batch 16, split between 8 replicas (no input_context)",
        "  a step takes 2 of them",
        "  global batch 16 = 2 x 8 replicas",
        "  worker 0: 16 examples",
        "  read whole: 4 of 4 workers, 64 examples of 64",
        "  network 15 parameters (15 trainable, 0.00 MB)",
        "begins with initial values, or warm_start_from",
        "ends at max_steps 100",
        "saves at the start, every 600 s, and at the end",
        "hook LoggingHook, every_steps 10",
        "evaluates eval_test at checkpoints and at the end: all data",
        "  FinalExporter to export/final",
    ):
        assert line in lines, "\n".join(lines)
    assert "  all of it on each of 8 replicas" in lines


def test_the_memory_of_each_strategy_and_the_checkpoints(tmp_path):
    def network():
        return keras.layers.Dense(3, kernel_initializer="zeros")

    def large_fn(features, labels, mode, network, optimizer):
        return small.model_fn(tf.tile(features, [1, 25_000]), labels, mode, network, optimizer)

    options = {
        "fn": large_fn,
        "network": network,
        "optimizer": lambda: keras.optimizers.Adam(0.1),
        "average": ge.ExponentialAverage(0.9),
        "keep_checkpoint_max": 3,
        "keep_checkpoint_every_n_steps": 50,
        "keep_checkpoint_steps": [7],
    }
    best = ge.KeepBest("accuracy", k=2)

    def report(config, **division):
        one = small.make(tmp_path / "run", **options, **config)
        specs = [ge.EvalSpec(whole, keep_best=best)]
        return ge.debug.inspect(
            one, ge.TrainSpec(whole, max_steps=4), specs, secs=0.1, **division
        ).report

    copies = report({"train_distribute": small.strategy("mirrored 2")})
    assert (
        "memory: variables 1.200 MB, optimizers 2.400 MB, averages 1.200 MB, "
        "gradients 1.200 MB, and activations"
    ) in copies
    assert "  all of it on each of 2 replicas" in copies
    for line in (
        "a checkpoint of 4.800 MB; kept: at most 5, 24.000 MB, keep_checkpoint_every_n_steps=50, "
        "keep_checkpoint_steps=(7,)",
        "  keeps the best 2 by accuracy",
    ):
        assert line in copies
    once = "  variables, optimizers and averages in one copy, the rest on each replica"
    for config in (
        {"train_distribute": small.strategy("central 2")},
        {"train_distribute": ge.central_storage, "devices": ("CPU:0", "CPU:1")},
    ):
        assert once in report(config)
    servers = report({}, num_workers=3, num_ps=4)
    assert servers[0] == "topology (simulated): a chief, 3 workers at their own pace, 4 servers"
    for line in (
        "  variables, optimizers and averages on 4 servers, the rest on each replica",
        "  a step of a worker takes a batch of 16 examples",
        "  global batch 16, split between 1 replicas (no input_context)",  # Of the chief alone.
    ):
        assert line in servers


def test_the_schedule_has_a_line_for_each_part(tmp_path):
    spec = ge.TrainSpec(
        whole, max_epochs=2, hooks=[ge.LoggingHook(10)], saving_listeners=[ge.SavingListener()]
    )
    rule = ge.EarlyStopping("accuracy", threshold=0.9)
    evaluations = [
        ge.EvalSpec(sharded, name="a", early_stopping=rule, every_steps=5, at_start=True),
        ge.EvalSpec(sharded, 2, name="b", exporters=[ge.FinalExporter()]),
    ]
    found = ge.debug.inspect(make(tmp_path, save_checkpoints_steps=0), spec, evaluations, secs=0.1)
    assert found.report[0] == "topology: workers 1 x replicas 1 = 1 in step"
    start = found.report.index("begins with initial values, or warm_start_from")
    assert found.report[start + 1 :] == [
        "ends at max_epochs 2",
        "saves nothing",
        "log_step_count_steps 100, save_summary_steps 100",
        "hook LoggingHook, every_steps 10",
        "saving listener SavingListener",
        "evaluates eval_a at the start and every 5 steps and at the end: all data",
        "  EarlyStopping of accuracy",
        "evaluates eval_b at the end: 2 steps",
        "  FinalExporter to export/b/final",
    ]


def test_steps_that_waited_for_data_are_told_of_data_workers(tmp_path):
    steps = {"attempt": 1, "phase": "steps", "begin": 10, "end": 20, "step": 5, "first": 0}
    (tmp_path / "run").mkdir()
    (tmp_path / "run/history.jsonl").write_text(json.dumps({**steps, "input_secs": 4.0}))
    spec = ge.TrainSpec(whole, max_epochs=1)
    report = ge.debug.inspect(make(tmp_path), spec, secs=0.1).report
    [line] = [each for each in report if "--data_workers=2" in each]
    assert line.startswith("the steps in model_dir waited for data in 40% of the time")


def ignores(mode, input_context):
    return whole(mode)


def overlaps(mode, input_context):
    return part(rows().shuffle(64, seed=input_context.input_pipeline_id), input_context).batch(2)


def of_two_files(input_context):
    files = part(tf.data.Dataset.from_tensor_slices(FILES), input_context)
    return files.flat_map(tf.data.TextLineDataset).map(lambda text: (ROWS[0], 1)).batch(2)


def all_of_two_files(input_context):
    lines = part(tf.data.TextLineDataset(FILES), input_context)
    return lines.map(lambda text: (tf.fill([4], tf.strings.to_number(text)), 1)).batch(2)


FILES = []


@pytest.fixture
def two_files(tmp_path):
    FILES[:] = [str(tmp_path / name) for name in ("a.txt", "b.txt")]
    for index, path in enumerate(FILES):
        lines = [f"{index * 16 + row + 1}\n" for row in range(16)]
        pathlib.Path(path).write_text("".join(lines), encoding="utf-8")


def random_values(mode, input_context):
    return drawn(mode)


def drawn(mode):
    noise = np.random.default_rng().normal(size=ROWS.shape).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((noise, LABELS)).batch(16)


def uneven(mode, input_context):
    worker = input_context.input_pipeline_id
    if input_context.num_input_pipelines == 1:
        return rows().batch(2)
    first, size = (0, 40) if worker == 0 else (32 + 8 * worker, 8)
    return rows().skip(first).take(size).batch(2)


def drops(mode, input_context):
    return part(rows(), input_context).batch(3, drop_remainder=True)


def fails_for_two(mode, input_context):
    if input_context.input_pipeline_id == 2:
        raise KeyError("part-2")
    return sharded(ge.ModeKeys.EVAL, input_context)


def nothing(mode, input_context):
    return rows().filter(lambda features, label: label > 3).batch(2)


def endless(mode, input_context):
    return sharded(ge.ModeKeys.TRAIN, input_context)


def other_kinds(mode, input_context):
    dtype = tf.int32 if input_context.input_pipeline_id else tf.int64
    data = sharded(ge.ModeKeys.EVAL, input_context)
    return data.map(lambda features, label: (features, tf.cast(label, dtype)))


@pytest.mark.thin
@pytest.mark.parametrize(
    ("input_fn", "is_mistake", "text"),
    [
        (ignores, True, "yields all 64 examples to each worker, as if it ignored its"),
        (overlaps, True, "examples to several workers, and"),
        (of_two_files, True, "no examples for workers 2, 3 of 4, and has 2 files"),
        (all_of_two_files, False, "reads 2 files for 4 workers: each opens all"),
        (random_values, False, "yields other values at each reading"),
        (drawn, True, "takes no input_context and yields other data at a second call"),
        (uneven, False, "yields from 8 to 40 examples to a worker"),
        (drops, False, "leaves out 3 of 63 examples"),
        (fails_for_two, True, "fails for worker 2: KeyError: 'part-2'"),
        (nothing, True, "returned an empty dataset"),
        (endless, True, "returned endless data, and steps is None"),
        (other_kinds, False, "expected the same dtypes and shapes"),
    ],
)
def test_a_division_that_is_wrong(tmp_path, two_files, input_fn, is_mistake, text):
    found = inspect(tmp_path, evaluated=input_fn, num_workers=4)
    assert text in "\n".join(found.errors if is_mistake else found.warnings)
    assert is_mistake or found.errors == []


def test_endless_data_in_the_same_order_and_small_batches(tmp_path):
    found = inspect(tmp_path, ignores, evaluated=whole, num_workers=4, num_replicas=5)
    [mistake] = found.errors
    assert "the same data in the same order to each worker" in mistake
    [doubt] = found.warnings
    assert "batches of 16 examples for 20 replicas" in doubt
    with pytest.raises(ge.errors.UserValueError, match="inspect has found 1 error: see the report"):
        found.check()


def test_ragged_sparse_and_text_examples_are_compared(tmp_path):
    def model_fn(features, labels, mode, network, optimizer):
        return small.model_fn(features["x"], labels, mode, network, optimizer)

    def mixed(mode, input_context):
        texts = tf.strings.as_string(tf.range(64))
        features = {
            "x": ROWS,
            "text": tf.stack([texts, tf.fill([64], "")], axis=1),
            "ragged": tf.RaggedTensor.from_row_lengths(tf.range(63 * 32), tf.range(64)),
            "sparse": tf.sparse.from_dense(np.eye(64)),
        }
        data = part(tf.data.Dataset.from_tensor_slices((features, LABELS)), input_context)
        return data.batch(3 if input_context.num_input_pipelines == 1 else 2)

    spec = ge.TrainSpec(mixed, max_steps=1)
    found = ge.debug.inspect(make(tmp_path, fn=model_fn), spec, secs=1e6, num_workers=4)
    assert found.errors == found.warnings == []
    assert "  features['ragged'] int32 (None, None) RaggedTensorSpec" in found.report


def test_a_tpu_needs_static_shapes_and_a_number_of_cores(tmp_path):
    estimator = make(tmp_path, execution="tpu")
    found = inspect(tmp_path, estimator=estimator, num_replicas=8)
    assert len(found.errors) == 2
    assert "drop_remainder=True" in found.errors[0]
    with pytest.raises(ge.errors.UserValueError, match="--simulate_replicas=8"):
        inspect(tmp_path, estimator=estimator)


def test_functions_and_specs_that_fail_leave_the_rest(tmp_path):
    def model_fn(features, labels, mode, network, optimizer):
        raise ValueError("no such thing")

    found = inspect(tmp_path, estimator=make(tmp_path, fn=model_fn))
    assert "ValueError: no such thing" in found.errors[0]
    assert "modules (not all was built):" in found.report
    assert any(line.startswith("evaluates eval_test") for line in found.report)

    def factory():
        raise ValueError("no network")

    broken = small.make(tmp_path / "run", network=factory)
    [mistake] = inspect(tmp_path, estimator=broken).errors
    assert "no network" in mistake

    def assertion(features, labels, mode, network, optimizer):
        if mode == ge.ModeKeys.EVAL:
            raise AssertionError
        return small.model_fn(features, labels, mode, network, optimizer)

    # Other parts are looked at after a failure, also if its error has no message.
    best = ge.KeepBest("acuracy", higher_is_better=True)
    specs = [ge.EvalSpec(ignores, name="a"), ge.EvalSpec(whole, name="a", keep_best=best)]
    one = make(tmp_path, fn=assertion, save_checkpoints_steps=0)
    found = ge.debug.inspect(one, ge.TrainSpec(whole, max_steps=1), specs, num_workers=2, secs=0.1)
    reasons = [text.partition("\n")[0] for text in found.errors]
    assert len(reasons) == 3 and "as if it ignored its" in reasons[0]
    assert "keep_best is set, and RunConfig.save_checkpoints_steps is 0" in reasons[1]
    assert reasons[2] == "AssertionError: "
    assert any(line.startswith("  network 15 parameters") for line in found.report)

    hooks = [ge.EarlyStopping("loss", patience_steps=9, evaluation="other")]
    found = ge.debug.inspect(make(tmp_path), ge.TrainSpec(whole, hooks=hooks), ge.EvalSpec(whole))
    assert "evaluation is 'other'" in found.errors[0]
    eval_spec = ge.EvalSpec(whole, keep_best=ge.KeepBest("acuracy", higher_is_better=True))
    found = ge.debug.inspect(make(tmp_path), ge.TrainSpec(whole), eval_spec)
    assert "KeepBest.metric is 'acuracy'" in found.errors[0]


def test_a_loss_that_is_a_sum_is_a_doubt(tmp_path):
    def summed(features, labels, mode, network, optimizer):
        spec = small.model_fn(features, labels, mode, network, optimizer)
        is_predicting = mode == ge.ModeKeys.PREDICT
        return spec if is_predicting else dataclasses.replace(spec, loss=tf.reduce_sum(spec.loss))

    found = inspect(tmp_path, drawn, whole, estimator=make(tmp_path, fn=summed))
    assert found.errors == []  # One worker may draw its data.
    assert "for twice that batch: expected a mean over the batch" in found.warnings[0]


test_wrong_arguments_are_refused = refused(
    lambda tmp_path, options: ge.debug.inspect(make(tmp_path), ge.TrainSpec(whole), **options),
    ({"num_workers": 0}, "inspect.num_workers is 0: expected an int > 0"),
    ({"num_ps": 2, "num_replicas": 8}, "num_replicas is 8 with parameter servers"),
    ({"secs": 0}, "inspect.secs is 0: expected a number > 0"),
    fixtures=["tmp_path"],
)


TINY = """
import gin_estimator.models
Estimator.model_fn = @regressor
Estimator.modules = {'network': @linear, 'optimizer': @SGD}
TrainSpec.input_fn = @inspected_input
TrainSpec.max_steps = 4
"""


@gin.configurable(module="inspect_test")
def inspected_input(mode, input_context, ignores: bool = False):
    data = tf.data.Dataset.from_tensor_slices((ROWS, ROWS[:, :1]))
    return (data if ignores else part(data, input_context)).batch(2)


@pytest.mark.slow
def test_the_command(gin_folder, capsys, monkeypatch):
    (gin_folder / "tiny.gin").write_text(TINY, encoding="utf-8")
    command = ["main", "--gin_file=tiny.gin", "--model_dir=run", "--job=inspect"]
    simulated = [*command, "--execution=multi_worker", "--simulate_workers=6"]
    simulated += ["--inspect_secs=600"]
    assert main.main(simulated) == 0
    output = capsys.readouterr().out
    assert "topology (simulated): workers 6 x replicas 1 = 6 in step" in output
    assert output.endswith("nothing was found\n")
    assert main.main([*simulated, "--gin.inspected_input.ignores=True"]) == 2
    captured = capsys.readouterr()
    assert "error: input_fn inspected_input" in captured.out
    assert "error: inspect has found 1 error: see the report." in captured.err
    # A task of a cluster that is not there: nothing connects.
    jobs = {"worker": ["a:1", "b:1"]}
    config = {"cluster": jobs, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    assert main.main([*command, "--execution=multi_worker"]) == 0
    assert "topology: workers 2 x replicas 1 = 2 in step" in capsys.readouterr().out
    assert not (gin_folder / "run").exists()
