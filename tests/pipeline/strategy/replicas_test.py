"""Which replicas there are, and what they add up."""

import keras
import pytest
import tensorflow as tf

from pipeline import RunConfig
from pipeline.strategy import replicas, strategies
from pipeline.strategy.parameter_server import ParameterServers


def mirrored(*devices):
    return strategies.create(RunConfig(devices=devices))


def test_one_process_has_all():
    for made, count in (
        (tf.distribute.get_strategy(), 1),
        (mirrored("CPU:0", "CPU:1"), 2),
    ):
        found = replicas.Replicas.of(made)
        assert (found.total, found.local, found.first) == (count, count, 0)
        assert (found.process, found.num_processes) == (0, 1)


def test_the_first_replica_of_a_process():
    third = replicas.Replicas(total=8, local=2, process=3, num_processes=4)
    assert third.first == 6


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_all_reduce_gives_each_replica_the_same(op):
    made = mirrored("CPU:0", "CPU:1")
    reduce_op = getattr(tf.distribute.ReduceOp, op)

    @tf.function
    def total():
        def on_replica():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            number = tf.cast(replica, tf.float32) + 1
            return replicas.all_reduce(reduce_op, {"a": number, "b": [number * 10]})

        return made.run(on_replica)

    result = total()
    expected = 3.0 if op == "SUM" else 1.5
    assert [float(v) for v in result["a"].values] == [expected] * 2
    assert [float(v) for v in result["b"][0].values] == [expected * 10] * 2


def test_workers_of_parameter_servers_draw_numbers_of_their_own():
    servers = object.__new__(ParameterServers)
    generator = keras.random.SeedGenerator(3)
    replicas.draw_by_replica(servers, [("", generator)], 100)
    drawn = []
    for servers.running in (None, tf.constant(0, tf.int64), tf.constant(1, tf.int64)):
        drawn.append(generator.next().numpy().tolist())
    assert drawn == [[3, 0], [3, 1], [103, 2]]
