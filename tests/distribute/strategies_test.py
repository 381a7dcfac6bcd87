"""Which strategy a RunConfig chooses, and the options that it refuses."""

import inspect
import json

import pytest
import tensorflow as tf

import gin_estimator as ge
from gin_estimator.distribute import strategies
from gin_estimator.estimator import execution
from refusals import refused
from two_vectors import data, losses, modules


def create(**config):
    return execution.create(ge.RunConfig("unused", **config))


def test_one_cpu_has_the_default_strategy():
    assert create() is tf.distribute.get_strategy()


@pytest.mark.parametrize("name", ["CPU:0", "cpu:1", "/CPU:1", "/device:cpu:1"])
def test_one_device_by_name(name):
    strategy = create(devices=[name])
    assert isinstance(strategy, tf.distribute.OneDeviceStrategy)
    assert strategy.extended.worker_devices[0].endswith(name[-1])


def test_the_same_devices_have_the_same_strategy():
    two = create(devices=["CPU:0", "CPU:1"])
    assert isinstance(two, tf.distribute.MirroredStrategy)
    assert two.num_replicas_in_sync == 2
    assert two is create(devices=["cpu:0", "/CPU:1"])
    assert two is create(devices=["CPU:0", "CPU:1"], train_distribute=ge.mirrored)
    assert two is not create(devices=["CPU:1", "CPU:2"])


def test_functions_that_return_a_strategy():
    central = create(train_distribute=ge.central_storage, devices=["CPU:0", "CPU:1"])
    assert isinstance(central, tf.distribute.experimental.CentralStorageStrategy)
    assert central.num_replicas_in_sync == 2
    one = create(train_distribute=ge.one_device)
    assert one.extended.worker_devices[0].endswith("CPU:0")
    assert create(train_distribute=lambda: one) is one
    assert create(train_distribute=one, execution="tpu") is one


def test_an_evaluator_has_its_own_strategy(monkeypatch):
    cluster = {"worker": ["a:1", "b:1"]}
    task = {"type": "evaluator", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    assert create(execution="multi_worker") is tf.distribute.get_strategy()
    one = tf.distribute.OneDeviceStrategy("CPU:1")
    assert create(execution="multi_worker", eval_distribute=one) is one
    assert create(execution="tpu", eval_distribute=lambda config: one) is one


class Mine(tf.distribute.MirroredStrategy):
    pass


class Unknown(tf.distribute.Strategy):
    def __init__(self):
        pass


def test_kinds_of_strategies():
    mine = Mine(["CPU:0"])
    assert create(train_distribute=mine) is mine
    for choice in (Unknown(), Unknown):
        with pytest.raises(ge.errors.UserTypeError, match="is a Unknown: expected one of"):
            create(train_distribute=choice)
    with pytest.raises(ge.errors.UserValueError, match="train_distribute is 'mirrored'"):
        create(train_distribute="mirrored")


test_devices_that_are_refused = refused(
    lambda config: create(**config),
    ({"devices": ["GPU:0"]}, r"has \['GPU:0'\]: expected devices of this machine, \['CPU:0'"),
    ({"devices": ["CPU:0", "CPU:9", "TPU:1"]}, r"has \['CPU:9', 'TPU:1'\]"),
    ({"devices": ["CPU:0", "cpu:0"]}, "each once"),
    ({"devices": ["CPU:0", "CPU0"]}, "'CPU0'"),
    ({"devices": ["CPU:-1"]}, "'CPU:-1'"),
    ({"devices": ["CPU:64"]}, "at most 64"),
    ({"devices": []}, "or None"),
    ({"devices": "CPU:0"}, "expected names such as"),
    ({"devices": ["CPU:0"], "execution": "tpu"}, "with execution 'tpu': expected None"),
    (
        {"devices": ["CPU:0"], "train_distribute": tf.distribute.get_strategy()},
        "train_distribute is a strategy",
    ),
    (
        {"devices": ["CPU:0", "CPU:1"], "train_distribute": ge.one_device},
        "with one_device: expected one device",
    ),
)


def test_cross_device_ops(monkeypatch):
    config = ge.RunConfig("unused", devices=["CPU:0", "CPU:1"])
    for name in ("nccl", "ncl"):
        with pytest.raises(ge.UserError, match=f"cross_device_ops is '{name}' on .*CPU:0"):
            ge.mirrored(config, cross_device_ops=name)
    assert ge.mirrored(config, cross_device_ops="one_device") is ge.mirrored(config)
    # GPUs, of which this machine need not have any.
    asked = {}
    monkeypatch.setattr(strategies.devices, "of", lambda config: ["GPU:6", "GPU:7"])
    monkeypatch.setattr(
        tf.distribute, "MirroredStrategy", lambda devices, ops: asked.update({"ops": ops})
    )
    for name, kind in (
        ("auto", type(None)),
        ("nccl", tf.distribute.NcclAllReduce),
        ("hierarchical_copy", tf.distribute.HierarchicalCopyAllReduce),
    ):
        ge.mirrored(config, cross_device_ops=name)
        assert type(asked["ops"]) is kind


def model_fn(features, labels, mode, a, b, optimizer):
    loss = losses(features[0], labels, a, b)[0]
    return ge.EstimatorSpec(mode, loss=loss, train_op=ge.TrainOp(optimizer, [a, b]))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [None, ge.mirrored, ge.central_storage])
def test_an_optimizer_that_overwrites_variables_by_averages(tmp_path, strategy):
    def train(**options):
        factories = modules(optimizer=lambda: tf.keras.optimizers.SGD(0.1, **options))
        config = ge.RunConfig(
            str(tmp_path),
            save_checkpoints_steps=0,
            train_distribute=strategy,
            devices=strategy and ["CPU:0", "CPU:1"],
        )
        ge.Estimator(model_fn, modules=factories, config=config).train(data, max_steps=3)

    train(use_ema=True)
    if strategy is None:
        train(use_ema=True, ema_overwrite_frequency=2)
        return
    with pytest.raises(ge.UserError, match="ema_overwrite_frequency is 2 on 2 replicas"):
        train(use_ema=True, ema_overwrite_frequency=2)


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "mixed_float16"},
        {"jit_compile": True},
        {"run_eagerly": True},
        {"gradient_accumulation_steps": 2},
        {"log_norms": True},
    ],
)
def test_options_that_parameter_servers_do_not_have(options, monkeypatch):
    cluster = {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}
    task = {"type": "chief", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    [name] = options
    with pytest.raises(ge.UserError, match=f"{name} is .* on parameter servers: expected"):
        create(execution="parameter_server", **options)
    del cluster["ps"]
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    with pytest.raises(ge.UserError, match=r"jobs \['chief', 'worker'\]: expected 'ps' as well"):
        create(execution="parameter_server")


def test_timeouts_by_default():
    def defaults(fn):
        parameters = inspect.signature(fn).parameters.items()
        return {name: p.default for name, p in parameters if name.endswith("_secs")}

    assert defaults(ge.multi_worker) == {
        "heartbeat_timeout_secs": 10.0,
        "start_timeout_secs": 600.0,
        "collective_timeout_secs": None,
    }
    assert defaults(ge.parameter_server) == {"start_timeout_secs": 600.0, "lost_after_secs": 300.0}
