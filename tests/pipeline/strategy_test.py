"""Which strategy a RunConfig asks for."""

import json

import pytest
import tensorflow as tf

from pipeline import cluster, strategy
from pipeline.run_config import RunConfig
from tests import fakes


def create(**config):
    return strategy.create(RunConfig(**config))


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


def test_a_strategy_built_by_hand_wins():
    by_hand = tf.distribute.OneDeviceStrategy("CPU:2")
    assert create(train_distribute=by_hand, execution="tpu") is by_hand


@pytest.mark.parametrize("execution", ["multi_worker", "parameter_server", "tpu"])
def test_an_execution_that_is_not_there(execution):
    if execution in strategy._BY_EXECUTION:
        pytest.skip(f"{execution} is offered")
    with pytest.raises(ValueError) as error:
        create(execution=execution)
    offered = sorted(strategy._BY_EXECUTION)
    assert (
        f"execution is {execution!r}; this version offers {offered}"
        ". A strategy built by hand can be given as RunConfig(train_distribute=...)."
    ) in str(error.value)


def test_a_cluster_needs_an_execution():
    workers = {"worker": ["a:1", "b:1"]}
    text = json.dumps({"cluster": workers, "task": {"type": "worker", "index": 0}})
    with pytest.raises(ValueError) as error:
        create(cluster=cluster.parse_tf_config(text))
    assert (
        "TF_CONFIG names 2 tasks, and execution 'single_host' would train each by "
        "itself, all into one model_dir: " in str(error.value)
    )


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_all_reduce_gives_each_replica_the_same(op):
    made = create(devices=["CPU:0", "CPU:1"])
    reduce_op = getattr(tf.distribute.ReduceOp, op)

    @tf.function
    def total():
        def on_replica():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            number = tf.cast(replica, tf.float32) + 1
            return strategy.all_reduce(reduce_op, {"a": number, "b": [number * 10]})

        return made.run(on_replica)

    result = total()
    expected = 3.0 if op == "SUM" else 1.5
    assert [float(v) for v in result["a"].values] == [expected] * 2
    assert [float(v) for v in result["b"][0].values] == [expected * 10] * 2


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
