"""What a training would do, for this machine and for clusters that there are not."""

import json
import pathlib
import re

import gin
import numpy as np
import pytest
import tensorflow as tf

import inputs
import pipeline as ge
from pipeline import main
from pipeline.cluster.tf_config import parse_tf_config
from pipeline.inspection import examples, topology
from pipeline.tracing import seeds
from tests import fakes

X, Y = fakes.classification_data(rows=64)
PER_REPLICA = fakes.make_input_fn(X, Y, batch_size=16, per_replica=True)
GLOBAL = fakes.make_input_fn(X, Y, batch_size=16)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    tf.random.set_seed(None)
    monkeypatch.setattr(examples, "MOST_OF_ENDLESS", 80)


def inspected(tmp_path, train=PER_REPLICA, evaluated=PER_REPLICA, **options):
    """The inspection of a training of the fakes, and its lines as one text."""
    estimator = options.pop("estimator", None) or make_estimator(tmp_path)
    found = ge.inspect(
        estimator,
        ge.TrainSpec(train, max_steps=100),
        ge.EvalSpec(evaluated, exporters=[ge.FinalExporter()]),
        secs=1e6,
        **options,
    )
    assert not pathlib.Path(estimator.model_dir).exists(), "nothing is written"
    return found, "\n".join(found.lines())


def make_estimator(tmp_path, **options):
    return fakes.make_estimator(tmp_path / "run", **options)


def test_one_process(tmp_path):
    found, text = inspected(
        tmp_path,
        estimator=make_estimator(tmp_path, keep_checkpoint_max=3),
    )
    assert found.findings == []
    assert seeds.of_program() is None, "as it was"
    assert text.endswith("nothing was found")
    assert re.search(r"network/dense_1 +\(8, 3\) \(3,\) +27 +0.1 kB", text)
    for line in (
        "topology: one process, 1 replica on the CPU",
        "input train: make_input_fn.<locals>.input_fn_per_replica, mode 'train'",
        "  features  float32 [None, 6]",
        "  labels    int64 [None]",
        "  global batch 16",
        # 83 weights; two slots of each, iterations and learning rate; 83 gradients.
        "  variables 0.3 kB, optimizers 0.7 kB, averages, counters 0.0 kB, gradients "
        "0.3 kB",
        "begins with initial values, ends at step 100",
        "checkpoints at the first step, every 600 s, and at the end",
        "  the last 3 are kept, 1.0 kB each: 3.1 kB, beside the input's position",
        "evaluation at checkpoints, and at the end, of all examples",
        "  FinalExporter to model_dir/export/final",
    ):
        assert line in text.splitlines()


def test_workers_and_replicas(tmp_path):
    estimator = make_estimator(
        tmp_path,
        network=lambda: fakes.network(batch_norm=True),
        gradient_accumulation_steps=2,
    )
    found, text = inspected(
        tmp_path, GLOBAL, estimator=estimator, num_workers=4, num_replicas=2
    )
    for line in (
        "topology (simulated): 4 workers x 2 replicas = 8 replicas in step",
        "  takes no input_context: global batch 16, cut into 2 for each of 8 replicas",
        "  each of 4 workers reads all of the data",
        "  a step takes 2 of them: 32 examples",
        "  takes input_context: 4 pipelines, one a worker",
        "  global batch 16 = 2 x 8 replicas, of which 2 take turns in a pipeline",
        "  read whole: all 4 workers, 64 examples of 64",
        "placement: a copy of each variable on each of 8 replicas",
        "  but 2 variables of its own on each, averaged when saved:",
    ):
        assert line in text.splitlines()
    assert found.mistakes == []


def test_parameter_servers(tmp_path):
    _, text = inspected(tmp_path, num_workers=4, num_ps=2)
    for line in (
        "topology (simulated): a chief, 4 workers, each at its own pace, and 2 "
        "parameter servers",
        "  evaluations by the chief, alone",
        "  each batch of 16 examples is a step of one worker",
    ):
        assert line in text.splitlines()
    _, other = inspected(tmp_path, GLOBAL, num_workers=4, num_ps=2)
    assert "a worker's step is one in 4 batches of 16" in other
    assert "placement: on 2 parameter servers in turn, about 0.5 kB each" in text


def test_planted_mistakes_are_found_and_refused(tmp_path):
    def ignores(mode, input_context):
        del input_context
        data = tf.data.Dataset.from_tensor_slices((X, Y))
        return (data.repeat() if mode == ge.ModeKeys.TRAIN else data).batch(2)

    found, text = inspected(tmp_path, ignores, ignores, num_workers=8)
    assert [each.is_certain for each in found.findings] == [True, True]
    assert "in the same order, as if it ignored its" in " ".join(text.split())
    with pytest.raises(ValueError, match="inspect has found 2 mistakes"):
        found.check()


def test_an_input_that_fails_leaves_the_rest(tmp_path):
    found, text = inspected(tmp_path, num_workers=3, num_replicas=2)
    (train, _) = found.mistakes
    assert "mode 'train' fails for workers 0, 1, 2: a global batch of 16 has" in train
    assert "write 12 or 18" in train
    assert "network/dense_1" in text, "the modules are built, for one replica's input"


def test_what_a_schema_counts_is_not_written(tmp_path):
    def columns():
        return tf.data.Dataset.from_tensor_slices({"x": X[:, 0]}).batch(16)

    def input_fn(config):
        encode = inputs.Schema({"x": "number"}, source=columns).prepared(config).encode
        rows = columns().map(lambda features: encode(features)["x"][:, None])
        return tf.data.Dataset.zip(rows, tf.data.Dataset.from_tensors(Y[:16]).repeat())

    _, text = inspected(tmp_path, train=input_fn, evaluated=input_fn)
    assert "  features  float32 [None, 1]" in text


def test_batches_with_less_examples_than_replicas(tmp_path):
    found, _ = inspected(tmp_path, GLOBAL, num_replicas=32, evaluated=GLOBAL)
    assert found.mistakes == []
    texts = [each.text for each in found.findings]
    assert "16 examples for 32 replicas: 16 of them compute for nothing" in texts[0]


def test_global_batches_that_differ_by_call(tmp_path):
    def drawn():
        rows = np.random.default_rng().normal(size=X.shape).astype(np.float32)
        return tf.data.Dataset.from_tensor_slices((rows, Y)).batch(16)

    found, _ = inspected(tmp_path, drawn, GLOBAL, num_workers=2)
    (text,) = found.mistakes
    assert "takes no input_context and yields other data at a second call" in text


def test_an_endless_evaluation(tmp_path):
    endless = fakes.make_input_fn(X, Y, batch_size=16, change=lambda d: d.repeat())
    found, _ = inspected(tmp_path, endless, endless)
    (text,) = found.mistakes
    assert "never ends in mode EVAL" in text


def test_shapes_that_a_tpu_needs_to_know(tmp_path):
    estimator = make_estimator(tmp_path, execution="tpu")
    found, _ = inspected(tmp_path, estimator=estimator, num_replicas=8)
    assert len(found.mistakes) == 2
    assert "drop_remainder=True" in found.mistakes[0]


def test_a_model_that_fails(tmp_path):
    def model_fn(features, labels, mode, network, optimizer):
        raise ValueError("not built without data")

    estimator = make_estimator(tmp_path, model_fn=model_fn)
    found, text = inspected(tmp_path, estimator=estimator)
    assert len(found.mistakes) == 2
    assert "model_fn fails in mode 'train': ValueError: not built" in found.mistakes[0]
    assert "not all is built" in text


def test_modules_that_cannot_be_made(tmp_path):
    estimator = make_estimator(tmp_path, network=lambda: "no layer")
    found, _ = inspected(tmp_path, estimator=estimator)
    (text,) = found.mistakes
    assert "the modules cannot be made: the factory of module 'network'" in text


def test_specs_that_a_training_would_refuse(tmp_path):
    hooks = [ge.StopIfNoDecrease("loss", max_steps=9, evaluation="other")]
    found = ge.inspect(
        make_estimator(tmp_path),
        ge.TrainSpec(GLOBAL, hooks=hooks),
        ge.EvalSpec(GLOBAL),
        secs=1e6,
    )
    assert "other" in found.mistakes[0]
    with pytest.raises(TypeError, match="train_spec is .*, not a TrainSpec: write"):
        ge.inspect(make_estimator(tmp_path), GLOBAL)
    with pytest.raises(ValueError, match=r"inspect.secs is 0: write a number, secs=8"):
        ge.inspect(make_estimator(tmp_path), ge.TrainSpec(GLOBAL), secs=0)


# Who computes.


def cluster(**jobs):
    text = {"cluster": jobs, "task": {"type": "worker", "index": 0}}
    return ge.RunConfig(
        model_dir="m",
        execution="parameter_server" if "ps" in jobs else "multi_worker",
        cluster=parse_tf_config(json.dumps(text)),
    )


def test_the_cluster_of_tf_config_is_not_connected():
    found = topology.of(cluster(chief=["a:1"], worker=["b:1", "c:1"]))
    assert (found.num_workers, found.num_replicas, found.num_ps) == (3, 1, 0)
    assert found.training() == topology.Split(3, 3)
    servers = cluster(chief=["a:1"], worker=["b:1", "c:1"], ps=["d:1"])
    found = topology.of(servers)
    assert (found.num_workers, found.num_ps) == (2, 1)
    assert found.training() == topology.Split(2, 1, in_step=False)
    assert found.evaluation(servers) == topology.Split()


def test_a_strategy_s_replicas():
    config = ge.RunConfig(devices=("CPU:0", "CPU:1"))
    assert topology.of(config).num_replicas == 2
    assert topology.of(config, num_workers=2).training() == topology.Split(2, 4)
    config = ge.RunConfig(train_distribute=lambda config: tf.distribute.get_strategy())
    assert topology.of(config).num_replicas == 1
    one = tf.distribute.OneDeviceStrategy("/CPU:0")
    config = ge.RunConfig(eval_distribute=one)
    assert topology.of(config, num_workers=4).evaluation(config) == topology.Split()
    beside = ge.RunConfig(evaluation="evaluator")
    assert topology.of(beside, num_workers=4).evaluation(beside) == topology.Split()
    tpu = topology.of(ge.RunConfig(execution="tpu"), num_replicas=8)
    assert tpu.training() == topology.Split(1, 8, is_static=True)


@pytest.mark.parametrize(
    ("config", "given", "words"),
    [
        ({}, {"num_workers": 0}, "simulate_workers is 0: write an int > 0"),
        ({}, {"num_ps": 2, "num_replicas": 8}, "simulate_replicas is 8, and a worker"),
        ({"execution": "multi_worker"}, {}, "write --simulate_workers=2, or set TF_C"),
    ],
)
def test_topologies_that_are_refused(config, given, words):
    with pytest.raises(ValueError, match=words):
        topology.of(ge.RunConfig(**config), **given)


# The command.

TINY = """
import models
Estimator.model_fn = @regressor
Estimator.modules = {'network': @linear, 'optimizer': @SGD}
TrainSpec.input_fn = @inspected_input
TrainSpec.max_steps = 4
"""


@gin.configurable(module="inspection_test")
def inspected_input(mode, input_context, ignores: bool = False):
    rows = np.arange(24, dtype=np.float32)[:, np.newaxis]
    data = tf.data.Dataset.from_tensor_slices((rows, rows))
    if not ignores:
        context = input_context
        data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
    return data.batch(2)


def command(*arguments):
    pathlib.Path("tiny.gin").write_text(TINY, encoding="utf-8")
    return main.main(["main", "--gin_file=tiny.gin", *arguments])


def test_the_command(fresh_gin, own_folder, capsys):
    given = ["--job=inspect", "--simulate_workers=6", "--inspect_secs=600"]
    assert command(*given) == 0
    said = capsys.readouterr().out
    assert "topology (simulated): 6 workers x 1 replica = 6 replicas in step" in said
    assert "nothing was found" in said
    code = command(*given, "--model_dir=run", "--gin.inspected_input.ignores=True")
    assert code == 2
    captured = capsys.readouterr()
    assert "mistake: input_fn inspected_input" in captured.out
    assert "error: inspect has found 1 mistake: see the report." in captured.err
    assert not pathlib.Path("run").exists()
    assert command("--job=train", "--simulate_workers=6") == 2
    assert "--simulate_workers is for --job=inspect" in capsys.readouterr().err


def test_any_task_of_a_cluster_may_be_asked(fresh_gin, own_folder, capsys, monkeypatch):
    jobs = {"worker": ["a:1", "b:1"]}
    text = json.dumps({"cluster": jobs, "task": {"type": "worker", "index": 1}})
    monkeypatch.setenv("TF_CONFIG", text)
    assert command("--job=inspect", "--execution=multi_worker") == 0
    said = capsys.readouterr().out
    assert "topology: 2 workers x 1 replica = 2 replicas in step" in said
