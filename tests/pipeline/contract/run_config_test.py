"""RunConfig: defaults, what it refuses, and what it hands on from TF_CONFIG."""

import dataclasses
import inspect
import json
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

from pipeline import RunConfig
from pipeline.cluster import tf_config


@pytest.fixture(autouse=True)
def _no_tf_config(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)


def one_device():
    return tf.distribute.OneDeviceStrategy("CPU:0")


def test_defaults_are_those_of_tf_estimator():
    config = RunConfig()
    assert config.model_dir is None
    assert config.tf_random_seed is None
    assert config.save_summary_steps == 100
    assert config.save_checkpoints_steps is None
    assert config.save_checkpoints_secs == 600
    assert config.keep_checkpoint_max == 5
    assert config.keep_checkpoint_every_n_hours == 10000
    assert config.log_step_count_steps == 100
    assert config.train_distribute is None
    assert config.eval_distribute is None


def test_every_field_has_its_sentence_in_order():
    attributes = inspect.getdoc(RunConfig).split("Attributes:")[1]
    documented = re.findall(r"^  (\w+): \S", attributes, re.MULTILINE)
    assert documented == [field.name for field in dataclasses.fields(RunConfig)]


def test_is_frozen_and_takes_keywords_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunConfig().model_dir = "runs/1"
    with pytest.raises(TypeError):
        RunConfig("runs/1")


def test_model_dir_may_be_a_path():
    assert RunConfig(model_dir=pathlib.Path("runs/1")).model_dir == "runs/1"


def test_kept_steps_come_in_order_once():
    config = RunConfig(keep_checkpoint_steps=[500, 0, 500])
    assert config.keep_checkpoint_steps == (0, 500)


def test_devices_become_a_tuple():
    assert RunConfig(devices=["CPU:0", "CPU:1"]).devices == ("CPU:0", "CPU:1")


def test_numpy_numbers_are_numbers():
    config = RunConfig(steps_per_loop=np.int64(7), save_checkpoints_secs=np.float32(2))
    assert (config.steps_per_loop, config.save_checkpoints_secs) == (7, 2)


@pytest.mark.parametrize(
    "name",
    [
        "tf_random_seed",
        "save_summary_steps",
        "keep_checkpoint_max",
        "log_step_count_steps",
        "jit_compile",
    ],
)
def test_none_is_kept(name):
    assert getattr(RunConfig(**{name: None}), name) is None


@pytest.mark.parametrize(
    ("given", "steps", "secs"),
    [
        ({}, None, 600),
        ({"save_checkpoints_steps": None, "save_checkpoints_secs": None}, None, 600),
        ({"save_checkpoints_steps": 10}, 10, None),
        ({"save_checkpoints_secs": 0.5}, None, 0.5),
        ({"save_checkpoints_steps": 0}, 0, None),
    ],
)
def test_when_checkpoints_are_saved(given, steps, secs):
    config = RunConfig(**given)
    assert (config.save_checkpoints_steps, config.save_checkpoints_secs) == (
        steps,
        secs,
    )


@pytest.mark.parametrize("name", ["train_distribute", "eval_distribute"])
def test_takes_strategies(name):
    strategy = one_device()
    config = RunConfig(**{name: strategy})
    assert getattr(config, name) is strategy
    assert config.describe() == {name: "OneDeviceStrategy"}


def test_takes_a_function_that_makes_the_strategy():
    def mine(config):
        return one_device()

    config = RunConfig(train_distribute=mine, devices=["CPU:0"])
    assert config.describe()["train_distribute"] == "mine"


INTEGERS = {
    "tf_random_seed": "0 or None",
    "save_summary_steps": "0 or None",
    "save_checkpoints_steps": "0 or None",
    "keep_checkpoint_max": "0 or None",
    "keep_checkpoint_every_n_steps": "1 or None",
    "log_step_count_steps": "1 or None",
    "steps_per_loop": "1",
    "train_batch_size": "1 or None",
    "eval_batch_size": "1 or None",
    "predict_batch_size": "1 or None",
    "gradient_accumulation_steps": "1",
}


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", [True, 1.0, "10", -1])
def test_refuses_what_is_no_count(name, value):
    message = (
        f"RunConfig.{name} is {value!r}: write an integer of at least "
        f"{INTEGERS[name]}, such as {name}="
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        RunConfig(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log_step_count_steps", 0),
        ("steps_per_loop", 0),
        ("steps_per_loop", None),
        ("gradient_accumulation_steps", 0),
        ("gradient_accumulation_steps", None),
    ],
)
def test_refuses_counts_of_nothing(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value}: write .* at least 1"):
        RunConfig(**{name: value})


@pytest.mark.parametrize("value", ["0s", "30 parsecs", "", "-1s", None])
def test_refuses_a_loop_that_is_neither_steps_nor_a_duration(value):
    message = "such as steps_per_loop=1000, or a duration, steps_per_loop='30s'."
    with pytest.raises(ValueError, match=re.escape(message)):
        RunConfig(steps_per_loop=value)
    assert RunConfig(steps_per_loop="1m30s").steps_per_loop == "1m30s"


@pytest.mark.parametrize(
    "name", ["save_checkpoints_secs", "keep_checkpoint_every_n_hours"]
)
@pytest.mark.parametrize("value", [True, "60", 0, -1.0, float("nan"), float("inf")])
def test_refuses_what_is_no_duration(name, value):
    message = f"RunConfig.{name} is {value!r}: write a number above 0, such as {name}="
    with pytest.raises(ValueError, match=re.escape(message)):
        RunConfig(**{name: value})


def test_refuses_0_secs_and_says_how_to_never_save():
    with pytest.raises(ValueError, match="or save_checkpoints_steps=0 to never save"):
        RunConfig(save_checkpoints_secs=0)


@pytest.mark.parametrize(
    ("name", "value", "choices"),
    [
        ("precision", "bfloat16", "'float32', 'mixed_bfloat16', 'mixed_float16'"),
        ("precision", None, "'float32', 'mixed_bfloat16', 'mixed_float16'"),
        ("jit_compile", 1, "False, True, None"),
        ("run_eagerly", None, "False, True"),
        ("async_checkpoint", "yes", "None, True, False"),
        ("on_nan", "ignore", "'stop', 'warn', 'restore', 'record'"),
        (
            "execution",
            "mirrored",
            "'single_host', 'multi_worker', 'parameter_server', 'tpu'",
        ),
    ],
)
def test_refuses_what_is_no_choice(name, value, choices):
    message = f"RunConfig.{name} is {value!r}: write one of {choices}, such as {name}="
    with pytest.raises(ValueError, match=re.escape(message)):
        RunConfig(**{name: value})


REFUSED = {
    "kept_step_below_0": (
        {"keep_checkpoint_steps": (10, -1)},
        r"keep_checkpoint_steps is \(10, -1\): write global steps, such as",
    ),
    "kept_steps_no_list": (
        {"keep_checkpoint_steps": 10},
        "keep_checkpoint_steps is 10: write global steps, such as",
    ),
    "kept_steps_are_never_saved": (
        {"keep_checkpoint_steps": [10], "save_checkpoints_steps": 0},
        r"keep_checkpoint_steps is \(10,\), and save_checkpoints_steps=0 saves nothing",
    ),
    "kept_interval_is_never_saved": (
        {"keep_checkpoint_every_n_steps": 10, "save_checkpoints_steps": 0},
        "keep_checkpoint_every_n_steps is 10, and save_checkpoints_steps=0 saves noth",
    ),
    "model_dir_empty": (
        {"model_dir": ""},
        "model_dir is '', not a path: write model_dir='runs/1'",
    ),
    "model_dir_bytes": ({"model_dir": b"x"}, "model_dir is b'x', not a path: write"),
    "devices_a_string": (
        {"devices": "GPU:0"},
        r"devices is 'GPU:0', not names of devices: write devices=\('GPU:0',",
    ),
    "devices_empty": ({"devices": ()}, r"devices is \(\), not names .*: write"),
    "devices_not_names": ({"devices": [0, 1]}, r"devices is \[0, 1\], not names .*: w"),
    "device_twice": (
        {"devices": ["GPU:0", "GPU:0"]},
        r"devices has a device twice: \('GPU:0', 'GPU:0'\). List each one once",
    ),
    "steps_and_secs": (
        {"save_checkpoints_steps": 10, "save_checkpoints_secs": 60},
        r"steps \(10\) and .*secs \(60\) cannot both be set. Leave one of them out",
    ),
    "never_and_secs": (
        {"save_checkpoints_steps": 0, "save_checkpoints_secs": 60},
        r"steps \(0\) and .*secs \(60\) cannot both be set",
    ),
    "train_distribute": (
        {"train_distribute": "mirrored"},
        "train_distribute is 'mirrored': write a tf.distribute.Strategy, a func.*None",
    ),
    "eval_distribute": (
        {"eval_distribute": tf.distribute.OneDeviceStrategy},
        "eval_distribute is <class .*: write a tf.distribute.Strategy, a func.* None",
    ),
    "devices_elsewhere": (
        {"devices": ["GPU:0"], "execution": "multi_worker"},
        "devices is .*'multi_worker', .* only under execution='single_host'. Leave dev",
    ),
    "eager_and_compiled": (
        {"run_eagerly": True, "jit_compile": True},
        "run_eagerly and RunConfig.jit_compile are both True.*Write jit_compile=False",
    ),
    "cluster": (
        {"cluster": {"worker": ["h0:1"]}},
        "cluster is {'worker'.*, not a Cluster: write cluster=parse_tf_config",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case):
    fields, message = REFUSED[case]
    with pytest.raises(ValueError, match=f"RunConfig.*{message}"):
        RunConfig(**fields)


def test_refuses_devices_beside_a_strategy():
    with pytest.raises(ValueError, match=r"devices \(.*train_distribute are both set"):
        RunConfig(devices=["CPU:0"], train_distribute=one_device())


def test_cluster_facts_come_from_tf_config(monkeypatch):
    jobs = {"chief": ["h0:1"], "worker": ["h1:1", "h2:1"], "ps": ["h3:1"]}
    text = json.dumps({"cluster": jobs, "task": {"type": "worker", "index": 1}})
    monkeypatch.setenv("TF_CONFIG", text)
    config = RunConfig()
    assert config.cluster_spec == tf.train.ClusterSpec(jobs)
    assert (config.task_type, config.task_id) == ("worker", 1)
    assert not config.is_chief
    assert (config.num_worker_replicas, config.num_ps_replicas) == (3, 1)
    assert config.global_id_in_cluster == 2
    assert config.describe() == {"cluster": "worker 1 of chief: 1, worker: 2, ps: 1"}


def test_tf_config_is_read_once(monkeypatch):
    config = RunConfig()
    monkeypatch.setenv("TF_CONFIG", "broken")
    assert config.is_chief
    assert config.replace(model_dir="runs/1").task_type == "worker"
    assert RunConfig(cluster=tf_config.Cluster()) == config


def test_a_broken_tf_config_is_refused(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "broken")
    with pytest.raises(ValueError, match="TF_CONFIG is .* no JSON"):
        RunConfig()


def test_replace_returns_another():
    config = RunConfig(model_dir="runs/1")
    changed = config.replace(model_dir="runs/2", steps_per_loop=10)
    assert (config.model_dir, config.steps_per_loop) == ("runs/1", 1000)
    assert (changed.model_dir, changed.steps_per_loop) == ("runs/2", 10)


@pytest.mark.parametrize(
    ("before", "changes", "steps", "secs"),
    [
        ({}, {"save_checkpoints_steps": 10}, 10, None),
        ({"save_checkpoints_steps": 10}, {"save_checkpoints_secs": 60}, None, 60),
        ({"save_checkpoints_steps": 10}, {"save_checkpoints_steps": None}, None, 600),
        ({"save_checkpoints_secs": 60}, {"save_checkpoints_steps": None}, None, 60),
        ({"save_checkpoints_secs": 60}, {"model_dir": "runs/1"}, None, 60),
    ],
)
def test_replacing_steps_unsets_secs_and_the_reverse(before, changes, steps, secs):
    config = RunConfig(**before).replace(**changes)
    assert config.save_checkpoints_steps == steps
    assert config.save_checkpoints_secs == secs


def test_replace_refuses_both_steps_and_secs():
    with pytest.raises(ValueError, match="cannot both be set"):
        RunConfig().replace(save_checkpoints_steps=1, save_checkpoints_secs=1)


def test_replace_refuses_unknown_names():
    with pytest.raises(ValueError, match=r"no field session_config\. Its fields are m"):
        RunConfig().replace(session_config=None)


def test_describe_says_what_was_changed():
    assert RunConfig().describe() == {}
    changed = RunConfig(
        save_checkpoints_steps=10, keep_checkpoint_max=None, devices=["CPU:0"]
    )
    assert changed.describe() == {
        "save_checkpoints_steps": "10",
        "keep_checkpoint_max": "None",
        "devices": "('CPU:0',)",
    }


def test_a_seed_is_one_that_numpy_takes():
    assert RunConfig(tf_random_seed=2**32 - 1).tf_random_seed == 2**32 - 1
    with pytest.raises(ValueError, match="tf_random_seed is 4294967296: write an int"):
        RunConfig(tf_random_seed=2**32)
