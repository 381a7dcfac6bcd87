"""Which strategy a RunConfig asks for."""

import json

import pytest
import tensorflow as tf

from pipeline import RunConfig
from pipeline.cluster import tf_config
from pipeline.strategy import strategies
from tests import fakes


def create(**config):
    return strategies.create(RunConfig(**config))


def test_one_cpu_needs_no_strategy():
    assert create() is tf.distribute.get_strategy()
    assert create().num_replicas_in_sync == 1


@pytest.mark.parametrize("name", ["CPU:0", "cpu:1", "/CPU:1"])
def test_one_device_by_name(name):
    made = create(devices=[name])
    assert isinstance(made, tf.distribute.OneDeviceStrategy)
    with made.scope():
        variable = tf.Variable(1.0)
    assert f"/device:{name.upper().removeprefix('/')}" in variable.device


def test_several_devices_are_mirrored():
    made = create(devices=["CPU:0", "CPU:1", "CPU:2"])
    assert isinstance(made, tf.distribute.MirroredStrategy)
    assert made.num_replicas_in_sync == 3


def test_the_same_devices_get_the_same_strategy():
    assert create(devices=["CPU:0", "CPU:1"]) is create(devices=["cpu:0", "/CPU:1"])
    assert create(devices=["CPU:0", "CPU:1"]) is not create(devices=["CPU:1", "CPU:2"])


def test_two_strategies_of_one_process_do_not_wait_for_each_other():
    sums = []
    for devices in (["CPU:0", "CPU:1"], ["CPU:0", "CPU:2"], ["CPU:0", "CPU:1"]):
        made = create(devices=devices)

        @tf.function
        def total(made=made):
            def one():
                context = tf.distribute.get_replica_context()
                return context.all_reduce("sum", tf.constant(1.0))

            return made.experimental_local_results(made.run(one))[0]

        sums.append(float(total()))
    assert sums == [2, 2, 2]


@pytest.mark.parametrize(
    ("devices", "absent"),
    [(["GPU:0"], ["GPU:0"]), (["CPU:0", "CPU:9", "TPU:1"], ["CPU:9", "TPU:1"])],
)
def test_devices_that_the_machine_does_not_have(devices, absent):
    with pytest.raises(ValueError) as error:
        create(devices=devices)
    assert f"devices {absent} are not among this machine's ['CPU:0'" in str(error.value)
    assert "Write devices=['GPU:0', 'GPU:1'], or leave devices out" in str(error.value)


def test_devices_are_compared_without_starting_tensorflow():
    """Any number of CPUs can be made of one, as long as it has not started."""
    config = RunConfig(devices=["CPU:50", "gpu:7", "/device:TPU:1"])
    assert strategies.absent(config) == ["GPU:7", "TPU:1"]
    assert strategies.absent(RunConfig()) == []


def test_a_strategy_built_by_hand_wins():
    by_hand = tf.distribute.OneDeviceStrategy("CPU:2")
    assert create(train_distribute=by_hand, execution="tpu") is by_hand


def test_a_function_makes_the_strategy():
    made = create(train_distribute=strategies.mirrored, devices=["CPU:0", "CPU:1"])
    assert made is create(devices=["CPU:0", "CPU:1"])


@pytest.mark.parametrize("execution", ["multi_worker", "parameter_server", "tpu"])
def test_an_execution_that_is_not_there(monkeypatch, execution):
    monkeypatch.delitem(strategies.BY_EXECUTION, execution, raising=False)
    with pytest.raises(ValueError) as error:
        create(execution=execution)
    offered = sorted(strategies.BY_EXECUTION)
    assert (
        f"execution is {execution!r}; this version offers {offered}"
        ". A strategy built by hand can be given as RunConfig(train_distribute=...)."
    ) in str(error.value)


@pytest.mark.parametrize("devices", [None, ["CPU:1"]])
def test_one_device(devices):
    made = create(train_distribute=strategies.one_device, devices=devices)
    assert isinstance(made, tf.distribute.OneDeviceStrategy)
    (device,) = made.extended.worker_devices
    assert device.endswith((devices or ["CPU:0"])[0])


def test_one_device_of_several_is_refused():
    with pytest.raises(ValueError, match=r"one_device was given .*CPU:1.*@mirrored"):
        create(train_distribute=strategies.one_device, devices=["CPU:0", "CPU:1"])


@pytest.mark.parametrize("ops", ["auto", "nccl", "hierarchical_copy", "one_device"])
def test_cross_device_ops(monkeypatch, ops):
    """Only what TensorFlow is asked for: NCCL does not run on CPUs."""
    asked = {}
    monkeypatch.setattr(
        tf.distribute,
        "MirroredStrategy",
        lambda devices, cross_device_ops: asked.update(ops=cross_device_ops),
    )
    # Devices that no other test asks for: a strategy is made once.
    strategies._mirrored(("GPU:6", "GPU:7"), ops)
    kinds = {
        "auto": type(None),
        "nccl": tf.distribute.NcclAllReduce,
        "hierarchical_copy": tf.distribute.HierarchicalCopyAllReduce,
        "one_device": tf.distribute.ReductionToOneDevice,
    }
    assert type(asked["ops"]) is kinds[ops]


def test_unknown_cross_device_ops():
    with pytest.raises(ValueError) as error:
        strategies.mirrored(RunConfig(), cross_device_ops="ncl")
    assert "cross_device_ops is 'ncl'; it is one of ['auto'" in str(error.value)


def test_central_storage():
    made = create(
        train_distribute=strategies.central_storage, devices=["CPU:0", "CPU:1"]
    )
    assert isinstance(made, tf.distribute.experimental.CentralStorageStrategy)
    assert made.num_replicas_in_sync == 2


def test_central_storage_with_a_device_for_the_variables():
    made = strategies.central_storage(
        RunConfig(devices=["CPU:0", "CPU:1"]), parameter_device="CPU:3"
    )
    with made.scope():
        assert tf.Variable(1.0).device.endswith("CPU:3")


def as_worker(text):
    return RunConfig(execution="multi_worker", cluster=tf_config.parse_tf_config(text))


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ({}, "TF_CONFIG names no cluster: set it in each process"),
        ({"chief": ["a:1"], "ps": ["b:1"]}, "write --execution=parameter_server"),
    ],
)
def test_multi_worker_wants_workers(jobs, message):
    task = {"type": "chief", "index": 0} if jobs else {}
    config = as_worker(json.dumps({"cluster": jobs, "task": task}))
    with pytest.raises(ValueError, match=message):
        strategies.create(config)


def test_unknown_communication():
    with pytest.raises(ValueError, match=r"multi_worker.communication is 'mpi'"):
        strategies.multi_worker(as_worker("{}"), communication="mpi")


def test_an_evaluator_evaluates_on_its_own_devices():
    text = '{"task": {"type": "evaluator", "index": 0}}'
    assert strategies.create(as_worker(text)) is tf.distribute.get_strategy()


def test_a_cluster_needs_an_execution():
    workers = {"worker": ["a:1", "b:1"]}
    text = json.dumps({"cluster": workers, "task": {"type": "worker", "index": 0}})
    with pytest.raises(ValueError) as error:
        create(cluster=tf_config.parse_tf_config(text))
    assert (
        "TF_CONFIG names 2 tasks, and execution 'single_host' would train each by "
        "itself, all into one model_dir: " in str(error.value)
    )
    assert "RunConfig(execution='multi_worker')" in str(error.value)


def test_two_strategies_on_the_same_cpus_train_different_models(tmp_path):
    """TensorFlow's own reduction mixes them up: their collectives' keys are equal."""
    x, y = fakes.classification_data(rows=64)
    input_fn = fakes.make_input_fn(x, y, batch_size=16)
    for units in (4, 7):
        by_hand = tf.distribute.MirroredStrategy(["/CPU:2", "/CPU:3"])
        estimator = fakes.make_estimator(
            tmp_path / str(units),
            network=lambda units=units: fakes.network(units=units),
            train_distribute=by_hand,
        )
        estimator.train(input_fn, max_steps=3)
        assert estimator.global_step == 3


def test_a_strategy_that_is_not_offered_is_refused():
    class Elsewhere(tf.distribute.Strategy):
        def __init__(self):
            """Without the parts that would need a cluster."""

    with pytest.raises(ValueError, match="is a Elsewhere; this version trains on"):
        create(train_distribute=Elsewhere())
