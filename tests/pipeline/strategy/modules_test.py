"""Modules: made once under the strategy, built by one trace, complete."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline import EstimatorSpec, ModeKeys, SpecError, TrainOp
from pipeline.strategy import modules

TRAIN = ModeKeys.TRAIN
SPEC = (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 1]))


@pytest.fixture(scope="module")
def two_replicas():
    return tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


def model_fn(features, labels, mode, network, optimizer):
    outputs = tf.cast(network(features, training=mode == TRAIN), tf.float32)
    loss = tf.square(outputs - labels)
    return EstimatorSpec(
        mode, loss=loss, train_op=TrainOp(optimizer, network.trainable_variables)
    )


def make(strategy=None, *, fn=model_fn, build=True, precision="float32", **factories):
    """Modules of `fn`, built on `SPEC`."""
    made = modules.Modules(
        {"optimizer": keras.optimizers.SGD, **factories},
        strategy or tf.distribute.get_strategy(),
        precision=precision,
        seed=0,
    )
    if build:
        context = {"params": {}, "config": None}
        made.build(modules.bind(fn, TRAIN, made, context), SPEC)
    return made


class Deferred(keras.Model):
    """Layers in attributes, lists and dicts, one of them shared; none built."""

    def __init__(self):
        super().__init__()
        self.blocks = [keras.layers.Dense(2), keras.layers.BatchNormalization()]
        self.heads = {"a": keras.Sequential([keras.layers.Dense(1)])}
        self.dropout = keras.layers.Dropout(0.5)
        self.again = self.heads["a"]

    def call(self, x, training=False):
        for layer in [*self.blocks, self.dropout]:
            x = layer(x) if layer is self.blocks[0] else layer(x, training=training)
        return self.heads["a"](x) + self.again(x)


def test_a_factory_is_called_once_under_the_scope(two_replicas):
    scopes = []

    def factory():
        scopes.append(tf.distribute.get_strategy())
        return keras.layers.Dense(1)

    made = make(two_replicas, network=factory)
    assert scopes == [two_replicas]
    kernel = made.by_name["network"].kernel.value
    assert len(two_replicas.experimental_local_results(kernel)) == 2


@pytest.mark.parametrize(
    ("network", "text"),
    [
        (
            keras.layers.Dense(1),
            "which is already built: its variables must be created under the strategy. "
            "Hand in the factory: modules={'network': make_network} (in gin "
            "@make_network without brackets).",
        ),
        (tf.Variable(1.0), "which is already built: its variables must be created"),
        (keras.optimizers.SGD(), "which is already built: its variables must be"),
        (3, "module 'network' is int 3, which is no factory: its variables must be"),
        (
            lambda: 3,
            "the factory of module 'network' returned int 3, which TensorFlow cannot "
            "track: return a Keras model, layer or optimizer, a tf.Module",
        ),
        (lambda: keras.layers.Dense, "the factory of module 'network' returned type"),
        (lambda: None, "the factory of module 'network' returned None, which Tensor"),
    ],
)
def test_what_is_no_factory_is_refused(network, text):
    with pytest.raises(TypeError) as error:
        make(network=network, build=False)
    assert text in str(error.value)


@pytest.mark.parametrize("replicas", [1, 2])
def test_deferred_layers_are_built(replicas, two_replicas):
    made = make(two_replicas if replicas == 2 else None, network=Deferred)
    names = {n for n in made.named_variables() if n.startswith("network/")}
    assert names == {
        "network/dense/kernel",
        "network/dense/bias",
        "network/batch_normalization/gamma",
        "network/batch_normalization/beta",
        "network/batch_normalization/moving_mean",
        "network/batch_normalization/moving_variance",
        "network/sequential/dense/kernel",
        "network/sequential/dense/bias",
        "network/dropout/seed_generator_state",
    }
    # Real values, not those of a trace.
    assert np.all(np.isfinite(made.by_name["network"].blocks[0].kernel.numpy()))
    assert made.by_name["optimizer"].built
    assert made.unbuilt_prefixes() == ()


def test_building_again_adds_nothing():
    made = make(network=Deferred)
    before = {k: id(v) for k, v in made.named_variables().items()}
    made.build(modules.bind(model_fn, TRAIN, made, {}), SPEC)
    assert {k: id(v) for k, v in made.named_variables().items()} == before


def test_names_are_the_same_after_many_other_layers():
    names = list(make(network=Deferred).named_variables())
    for _ in range(3):
        keras.Sequential([keras.layers.Dense(1)]), keras.layers.BatchNormalization()
        keras.layers.Dropout(0.1), keras.optimizers.SGD()
    assert list(make(network=Deferred).named_variables()) == names


def test_one_seed_gives_the_same_initial_values(two_replicas):
    one, two = make(network=Deferred), make(two_replicas, network=Deferred)
    for name, value in one.named_variables().items():
        np.testing.assert_array_equal(value, two.named_variables()[name], name)


def test_variables_of_model_fns_own_are_refused():
    def stray_fn(features, labels, mode, network, optimizer):
        features = keras.layers.Dense(3, name="stray")(features)
        return model_fn(features, labels, mode, network, optimizer)

    with pytest.raises(SpecError) as error:
        make(fn=stray_fn, network=lambda: keras.layers.Dense(1))
    assert "model_fn created the variables ['" in str(error.value)
    assert "kernel" in str(error.value)
    assert "Estimator(modules={'network': make_network})" in str(error.value)


def test_a_layer_that_is_no_module_is_refused():
    outside = keras.layers.Dense(3, name="outside")

    def outside_fn(features, labels, mode, network, optimizer):
        return model_fn(outside(features), labels, mode, network, optimizer)

    with pytest.raises(SpecError, match=r"created the variables \['outside/kernel"):
        make(fn=outside_fn, network=lambda: keras.layers.Dense(1))


OUTSIDE = keras.metrics.Mean()


@pytest.mark.parametrize(
    ("use", "line"),
    [
        (lambda x: keras.metrics.Mean()(x), "metric(keras.metrics.Mean, values)"),
        (
            lambda x: keras.metrics.MeanSquaredError()(x, x),
            "metric(keras.metrics.MeanSquaredError, y_true, y_pred)",
        ),
        (OUTSIDE, "metric(keras.metrics.Mean, values)"),
    ],
    ids=["made", "of_two", "made_outside"],
)
def test_a_metric_of_model_fns_own_is_refused(use, line):
    def metric_fn(features, labels, mode, network, optimizer):
        spec = model_fn(features, labels, mode, network, optimizer)
        return dataclasses.replace(spec, metrics={"m": use(features)})

    with pytest.raises(SpecError) as error:
        make(fn=metric_fn, network=lambda: keras.layers.Dense(1))
    assert f"metrics={{'name': {line}}}" in str(error.value)
    assert OUTSIDE.result() == 0.0


class Watched(keras.layers.Dense):
    """A layer that keeps a metric for itself."""

    def __init__(self):
        super().__init__(1)
        self.mean = keras.metrics.Mean(name="mean")

    def call(self, features):
        self.mean(features)
        return super().call(features)


def test_a_layer_may_keep_a_metric():
    made = make(network=lambda: keras.Sequential([Watched()]))
    assert any("kernel" in name for name in made.named_variables())


def test_an_optimizer_of_model_fns_own_is_refused():
    def own_optimizer_fn(features, labels, mode, network, optimizer):
        return model_fn(features, labels, mode, network, keras.optimizers.Adam())

    with pytest.raises(SpecError, match=r"model_fn created the variables \['iteration"):
        make(fn=own_optimizer_fn, network=lambda: keras.layers.Dense(1))


def test_an_optimizer_that_is_no_module_is_refused():
    mine = keras.optimizers.Adam(name="mine")

    def own_optimizer_fn(features, labels, mode, network, optimizer):
        return model_fn(features, labels, mode, network, mine)

    with pytest.raises(SpecError) as error:
        make(fn=own_optimizer_fn, network=lambda: keras.layers.Dense(1))
    assert (
        "TrainOp.optimizer mine is no module, so that its state would be in no "
        "checkpoint: hand in its factory" in str(error.value)
    )


def test_a_trained_variable_that_is_in_no_module_is_refused():
    outside = tf.Variable(1.0, name="outside")

    def outside_fn(features, labels, mode, network, optimizer):
        loss = tf.square(network(features) * outside - labels)
        return EstimatorSpec(mode, loss=loss, train_op=TrainOp(optimizer, [outside]))

    with pytest.raises(SpecError) as error:
        make(fn=outside_fn, network=lambda: keras.layers.Dense(1))
    assert "TrainOp.variables ['outside:0'] are in no module" in str(error.value)


def _tf_module():
    module = tf.Module()
    module.scale = tf.Variable(2.0)
    return module


def _static_table():
    values = tf.lookup.KeyValueTensorInitializer(["a"], tf.constant([1], tf.int64))
    return tf.lookup.StaticHashTable(values, -1)


@pytest.mark.parametrize(
    ("factory", "names"),
    [
        (_tf_module, ["other/scale"]),
        (lambda: tf.Variable(2.0), ["other"]),
        (lambda: keras.Variable(2.0), ["other"]),
        (lambda: keras.random.SeedGenerator(3), ["other/seed_generator_state"]),
        (_static_table, []),
        (
            lambda: tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1),
            [],
        ),
    ],
    ids=["module", "variable", "keras", "seed", "static_table", "mutable_table"],
)
@pytest.mark.parametrize("replicas", [1, 2])
def test_modules_of_every_kind(factory, names, replicas, two_replicas):
    strategy = two_replicas if replicas == 2 else None
    made = make(strategy, build=False, other=factory)
    found = [n for n in made.named_variables() if n.startswith("other")]
    assert found == names
    assert set(made.named_state()) == {"optimizer", "other", "driver"}


def test_a_mutable_table_is_state_though_no_variable():
    made = make(
        build=False,
        vocabulary=lambda: tf.lookup.experimental.MutableHashTable(
            tf.string, tf.int64, -1
        ),
    )
    assert list(made.named_state()["vocabulary"]) == [""]


class TwoStreams(keras.layers.Layer):
    """Two random streams in one layer."""

    def __init__(self):
        super().__init__()
        self.one = keras.random.SeedGenerator(1)
        self.two = keras.random.SeedGenerator(1)


@pytest.mark.parametrize(
    "factory",
    [
        lambda: keras.layers.Dropout(0.5, seed=1),
        lambda: keras.random.SeedGenerator(1),
        TwoStreams,
    ],
    ids=["dropout", "generator", "two_in_a_layer"],
)
def test_each_replica_draws_its_own(factory, two_replicas):
    made = make(two_replicas, build=False, network=factory)
    states = [
        two_replicas.experimental_local_results(v)
        for n, v in made.named_variables().items()
        if "seed_generator_state" in n
    ]
    assert states
    for first, second in states:
        assert first.numpy()[0] != second.numpy()[0]
    before = [[part.numpy().tolist() for part in state] for state in states]
    made.spread_seeds()
    assert [[part.numpy().tolist() for part in state] for state in states] == before


def test_synchronize_averages_moving_statistics_and_nothing_else(two_replicas):
    made = make(two_replicas, network=Deferred)
    named = made.named_variables()
    results = two_replicas.experimental_local_results
    moving = results(named["network/batch_normalization/moving_mean"])
    moving[0].assign([1.0, 2.0])
    moving[1].assign([3.0, 6.0])
    seeds = results(named["network/dropout/seed_generator_state"])
    before = [seed.numpy().tolist() for seed in seeds]
    made.synchronize()
    np.testing.assert_allclose(moving[0], [2.0, 4.0])
    np.testing.assert_allclose(moving[1], [2.0, 4.0])
    assert [seed.numpy().tolist() for seed in seeds] == before
    made.synchronize()
    np.testing.assert_allclose(moving[0], [2.0, 4.0])


def test_factories_see_the_precision_and_nobody_after_them():
    made = make(network=lambda: keras.layers.Dense(1), precision="mixed_bfloat16")
    layer = made.by_name["network"]
    assert layer.compute_dtype == "bfloat16"
    assert layer.kernel.dtype == "float32"
    assert keras.config.dtype_policy().name == "float32"
    assert "loss_scale" not in made.driver_state


def test_mixed_float16_keeps_a_loss_scale():
    made = make(
        network=lambda: keras.layers.Dense(1), precision="mixed_float16", build=False
    )
    assert float(made.driver_state["loss_scale"]) == 2.0**15
    assert made.step == 0


@pytest.mark.parametrize("devices", [["CPU:0"], ["CPU:0", "CPU:1"]])
def test_an_optimizer_that_overwrites_by_its_average_is_refused(devices):
    def averaging():
        return keras.optimizers.SGD(use_ema=True, ema_overwrite_frequency=10)

    layer = lambda: keras.layers.Dense(1)  # noqa: E731
    make(network=layer, optimizer=averaging)
    mirrored = tf.distribute.MirroredStrategy(devices)
    with pytest.raises(SpecError, match="which Keras cannot do under MirroredStrategy"):
        make(mirrored, network=layer, optimizer=averaging)
