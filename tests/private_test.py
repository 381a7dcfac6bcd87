"""Each private name of Keras, TensorFlow and gin, by what the driver needs of it."""

import types
from concurrent import futures

import gin
import keras
import numpy as np
import pytest
import tensorflow as tf

from gin_estimator import private
from gin_estimator.train.kernels import KERNELS

pytestmark = pytest.mark.oldest
OPTIONS = {keras.optimizers.SGD: {"momentum": 0.9}, keras.optimizers.RMSprop: {"centered": True}}


def sgd(**options):
    """Returns an optimizer, and its variable of one row."""
    variable = keras.Variable([[1.0]], name="v")
    optimizer = keras.optimizers.SGD(0.5, **options)
    optimizer.build([variable])
    return optimizer, variable


def test_classes():
    variable = keras.layers.Dense(1).add_weight(shape=[1])
    assert isinstance(variable, private.KERAS_VARIABLE)
    assert not isinstance(variable.value, private.KERAS_VARIABLE)
    for trackable in (tf.train.Checkpoint(), tf.Module(), keras.optimizers.SGD()):
        assert isinstance(trackable, private.AUTO_TRACKABLE)
    table = private.SHARDED_VARIABLE([tf.Variable([1.0]), tf.Variable([2.0])])
    np.testing.assert_array_equal(tf.convert_to_tensor(table), [1, 2])


def test_gradients_of_replicas_are_not_added_up():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        optimizer, variable = sgd()
    private.use_summed_gradients(optimizer)
    gradient = tf.constant([[1.0]])
    strategy.run(tf.function(lambda: optimizer.apply([gradient], [variable])))
    np.testing.assert_array_equal(variable, [[0.5]])


def test_clipping():
    optimizer, variable = sgd(clipvalue=0.1)
    private.clip_by(optimizer, lambda gradients: [2 * each for each in gradients])
    optimizer.apply([tf.constant([[1.0]])], [variable])
    np.testing.assert_array_equal(variable, [[0.0]])


def test_decay():
    optimizer, variable = sgd(weight_decay=0.5)
    excluding = keras.optimizers.SGD(weight_decay=0.5)
    excluding.exclude_from_weight_decay(var_names=["v"])
    excluding.build([variable])
    assert private.decays(optimizer, variable) and not private.decays(excluding, variable)
    gradient = tf.constant([[0.0]])
    for without, expected in (([variable.value], 1), ([], 0.75)):
        private.decay_without(optimizer, without)
        assert private.decays(optimizer, variable)
        optimizer.apply([gradient], [variable])
        np.testing.assert_array_equal(variable, [[expected]])


@pytest.mark.parametrize("kind", KERNELS, ids=lambda kind: kind.__name__)
def test_slots(kind):
    variables = [keras.Variable(tf.ones([2]), name=name) for name in "ab"]
    optimizer = kind(**OPTIONS.get(kind, {}))
    assert not private.slots_of(optimizer, variables[0])  # Not built.
    optimizer.build(variables)
    first, second = (private.slots_of(optimizer, each) for each in variables)
    slots = {id(each) for each in [*first.values(), *second.values()]}
    assert len(first) == len(second) and len(slots) == 2 * len(first)
    assert slots == {id(each) for each in optimizer.variables if each.shape == (2,)}
    assert first.keys() == private.slots_of(optimizer, variables[0].value).keys()
    whole = [np.asarray(each) for each in first.values()]
    # A copy of the second variable and its slots moves as the optimizer would move them.
    copies = {id(each): tf.Variable(each) for each in [variables[1], *second.values()]}
    twin = private.with_slots(optimizer, variables[1], lambda slot: copies[id(slot)])
    gradient, rate = tf.constant([1.0, 2.0]), tf.constant(0.1)
    twin.update_step(gradient, copies[id(variables[1])], rate)
    np.testing.assert_array_equal(variables[1], [1, 1])
    optimizer.update_step(gradient, variables[1], rate)
    for each in [variables[1], *second.values()]:
        np.testing.assert_array_equal(each, copies[id(each)])
    for slot, before in zip(first.values(), whole, strict=True):
        np.testing.assert_array_equal(slot, before)
    assert not np.array_equal(variables[1], [1, 1])


def test_learning_rate():
    optimizer, variable = sgd()
    for scale, expected in ((lambda rate: rate * 0.5, 0.75), (None, 0.25)):
        private.scale_rate(optimizer, scale)
        optimizer.apply([tf.constant([[1.0]])], [variable])
        np.testing.assert_array_equal(variable, [[expected]])
    assert any(each is optimizer.learning_rate for each in optimizer.variables)
    private.scale_rate(optimizer, lambda rate: rate * 0.0)
    private.restore_methods(optimizer)
    optimizer.apply([tf.constant([[1.0]])], [variable])
    np.testing.assert_array_equal(variable, [[-0.25]])


def test_sublayers():
    layer, parts = keras.layers.Layer(), [keras.layers.Dense(1) for _ in range(3)]
    layer.one, layer.some, layer.named = parts[0], [parts[1]], {"x": parts[2]}
    assert [id(each) for each in private.sublayers(layer)] == [id(each) for each in parts]


def test_losses_by_thread():
    layer = keras.layers.ActivityRegularization(l2=1.0)
    private.keep_losses_by_thread(layer)
    layer(tf.ones([1, 1]))
    with futures.ThreadPoolExecutor(1) as thread:
        assert thread.submit(lambda: layer.losses).result() == []
    layer(tf.ones([1, 1]))
    np.testing.assert_array_equal(layer.losses, [1.0])


def test_compile_arguments():
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    assert not private.compile_arguments(model)
    metrics, loss = [keras.metrics.AUC()], keras.losses.MeanSquaredError()
    model.compile("sgd", loss, metrics=metrics, loss_weights=[2.0], run_eagerly=True)
    found = private.compile_arguments(model)
    assert found["loss"] is loss and found["metrics"][0] is metrics[0]
    assert found["optimizer"] and found["loss_weights"] == [2.0] and found["run_eagerly"] is True
    assert not found["weighted_metrics"] and "jit_compile" in found


def test_the_default_of_jit_compile():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    assert private.compiles_by_default(model) is model.jit_compile is False


def test_names_of_new_process():
    before = [keras.layers.Dense(1).name for _ in range(2)][-1]
    with private.names_of_new_process():
        assert [keras.layers.Dense(1).name for _ in range(2)] == ["dense", "dense_1"]
        assert keras.metrics.AUC().name == "auc"
    number = int(before.removeprefix("dense_"))
    assert keras.layers.Dense(1).name == f"dense_{number + 1}"


def test_callbacks(tmp_path):
    stop = keras.callbacks.EarlyStopping("val_auc", mode="max")
    private.choose_monitor_op(stop)
    assert stop.monitor_op(2, 1) and not stop.monitor_op(1, 2)
    private.choose_monitor_op(keras.callbacks.TerminateOnNaN())
    for batches, expected in ((0, False), ((1, 2), True)):
        board = keras.callbacks.TensorBoard(str(tmp_path), profile_batch=batches)
        assert private.profiles_batches(board) is expected
    board = keras.callbacks.TensorBoard(str(tmp_path), update_freq=10, write_graph=False)
    board.set_model(keras.Sequential())
    board.on_train_begin()
    private.set_batch_number(board, 10)
    board.on_train_batch_begin(9)
    board.on_train_batch_end(9, {"loss": 0.5})
    board.on_train_end()
    [file] = tmp_path.glob("train/events*")
    events = tf.compat.v1.train.summary_iterator(str(file))
    assert [e.step for e in events if e.summary.value and "loss" in e.summary.value[0].tag] == [10]
    private.set_batch_number(stop, 10)  # Of another class nothing.


def test_metric_functions():
    for function, expected in ((tf.abs, False), (tf.reduce_mean, True)):
        metric = keras.metrics.MeanMetricWrapper(lambda y, p, to: to(y - p), to=function)
        assert private.takes_number(metric, tf.ones([2]), tf.ones([2])) is expected
        assert not private.takes_number(metric, tf.ones([2]), tf.ones([2]), tf.ones([2]))


def test_generator_of_process():
    def draw():
        before = private.generator_of_process()
        keras.random.normal([2])
        return before, private.generator_of_process()

    with futures.ThreadPoolExecutor(1) as thread:  # Each thread has its own.
        before, generator = thread.submit(draw).result()
    assert before is None
    assert isinstance(generator, keras.random.SeedGenerator)


def test_eager_seed():
    draw = tf.function(lambda: tf.random.uniform([], seed=3))
    tf.random.set_seed(5)
    expected = [draw(), draw()]
    tf.random.set_seed(5)
    found, drawn = [draw()], []
    for _ in range(2):
        private.set_eager_seed(7, 7)
        drawn.append([int(each) for each in tf.data.Dataset.range(9).shuffle(9)])
    private.set_eager_seed(5, 5)
    found.append(draw())  # As if nothing had been between.
    assert drawn[0] == drawn[1] and found == expected


def test_heartbeat_timeout(monkeypatch):
    given = {}
    monkeypatch.setattr(
        type(private.context.context()),
        "configure_coordination_service",
        lambda self, *args, **options: given.update(options, kind=args),
    )
    private.set_heartbeat_timeout({"chief": ["a"], "worker": ["b", "c"]}, "chief", 2.5)
    assert given["heartbeat_timeout_in_ms"] == 2500
    assert [job.num_tasks for job in given["coordinated_jobs"]] == [1, 2]


def test_packed_handle():
    class Packed(tf.distribute.MirroredStrategy):
        _enable_packed_variable_in_eager_mode = True  # As that of TPUs.

    strategy = Packed(["CPU:0", "CPU:1"])
    with strategy.scope():
        variable = tf.Variable(1.0)
    read = tf.function(lambda: tf.identity(variable)).get_concrete_function()
    assert any(each is private.packed_handle(variable) for each in read.captured_inputs)
    assert private.packed_handle(tf.Variable(1.0)) is None


def test_parts_of_datasets():
    array = np.arange(6)
    source = tf.data.Dataset.from_tensor_slices(array)
    mapped = source.map(lambda x: x + 1, num_parallel_calls=2, deterministic=False)
    assert [id(each) for each in private.parts_of(mapped).inputs] == [id(source)]
    [function] = private.parts_of(mapped).functions
    assert function(tf.constant(3, tf.int64)) == [4] and function.graph
    np.testing.assert_array_equal(private.parts_of(source).arrays, [array])
    assert private.parts_of(mapped).is_unordered and not private.parts_of(source).is_unordered
    assert not private.parts_of(source).inputs and not private.parts_of(mapped).arrays


def test_gin_registry():
    def listed(first, second=1):
        return first, second

    name = f"{__name__}.listed"
    gin.external_configurable(listed, module=__name__, denylist=["second"])
    entry = private.gin_registry(gin.config)[name]
    assert (entry.wrapped, entry.denylist) == (listed, ["second"])
    with gin.unlock_config():
        gin.bind_parameter(f"{name}.first", 3)
    entry.wrapper()
    assert private.gin_operative(gin.config)["", name]["first"] == 3


def test_parts_of_compile_and_metrics_that_are_not_of_it():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.own = keras.metrics.Mean(name="own")
    assert private.compile_containers(model) == []
    optimizer = keras.optimizers.SGD(0.1)
    model.compile(optimizer, "mse", metrics=["mae"])
    model.fit(np.ones([2, 3]), np.ones([2, 1]), verbose=0)
    loss, metrics = private.compile_containers(model)
    assert loss.built and [each.name for each in metrics.metrics] == ["mae"]
    assert private.metrics_of_call(model) == [model.own]
    assert private.trained_by(optimizer) == model.trainable_variables


def test_each_name_has_a_test():
    tested = open(__file__).read()
    for name, value in vars(private).items():
        if isinstance(value, types.FunctionType) and value.__module__ == private.__name__:
            assert f"private.{name}(" in tested, name
