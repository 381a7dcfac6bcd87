"""Names of variables: complete, and the same whatever Keras counted before."""

import keras
import pytest
import tensorflow as tf

from pipeline.strategy import variables


class Net(keras.Model):
    """Layers as attributes, in a list, in a dict, nested, shared, and of one's own."""

    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(2)
        self.blocks = [
            keras.Sequential(
                [keras.layers.Dense(2), keras.layers.BatchNormalization()]
            ),
            keras.Sequential([keras.layers.Dense(2)]),
        ]
        self.heads = {
            "a": keras.layers.Dense(1, name="head_a"),
            "b": keras.layers.Dense(1),
        }
        self.again = self.first
        self.dropout = keras.layers.Dropout(0.5)
        self.temperature = self.add_weight(name="temperature", shape=[])
        self.unnamed = [self.add_weight(shape=[]), self.add_weight(shape=[])]

    def call(self, x, training=False):
        x = self.again(self.first(x))
        for block in self.blocks:
            x = block(x, training=training)
        x = self.dropout(x, training=training)
        return self.heads["a"](x) * self.temperature + self.heads["b"](x)


NAMES = {
    "temperature",
    "variable",
    "variable_1",
    "dense/kernel",
    "dense/bias",
    "sequential/dense/kernel",
    "sequential/dense/bias",
    "sequential/batch_normalization/gamma",
    "sequential/batch_normalization/beta",
    "sequential/batch_normalization/moving_mean",
    "sequential/batch_normalization/moving_variance",
    "sequential_1/dense/kernel",
    "sequential_1/dense/bias",
    "head_a/kernel",
    "head_a/bias",
    "dense_1/kernel",
    "dense_1/bias",
    "dropout/seed_generator_state",
}


def built(net):
    net(tf.zeros([1, 2]))
    return net


@pytest.fixture(scope="module")
def net():
    return built(Net())


def test_every_variable_has_a_name_in_the_order_of_the_model(net):
    named = variables.named_state(net)
    assert set(named) == NAMES
    assert [id(v) for v in named.values()] == [id(v) for v in net.variables]


def test_names_do_not_depend_on_what_keras_counted_before(net):
    for _ in range(5):
        keras.layers.Dense(1), keras.Sequential(), keras.layers.BatchNormalization()
        keras.layers.Dropout(0.5), keras.Variable(0.0)
    other = built(Net())
    assert other.first.name != net.first.name
    assert list(variables.named_state(other)) == list(variables.named_state(net))


def test_layers_that_go_both_ways_are_named_without_a_counter():
    layers, names = keras.layers, []
    for _ in range(2):
        each = [layers.LSTM(2, return_sequences=True), layers.GRU(3, name="own_1")]
        ways = [layers.Bidirectional(layer) for layer in each]
        made = variables.named_state(keras.Sequential([keras.Input([3, 2]), *ways]))
        names.append([name for name in made if name.endswith("/bias")])
    assert names[0] == names[1]
    assert names[0] == [
        "bidirectional/forward_lstm/lstm_cell/bias",
        "bidirectional/backward_lstm/lstm_cell/bias",
        "bidirectional_1/forward_own_1/gru_cell/bias",
        "bidirectional_1/backward_own_1/gru_cell/bias",
    ]


def test_layers_that_the_user_calls_so_keep_their_names():
    names = ["forward_lstm_1", "forward_lstm_2"]
    ways = [keras.layers.LSTM(2, return_sequences=True, name=name) for name in names]
    made = variables.named_state(keras.Sequential([keras.Input([3, 2]), *ways]))
    assert [name for name in made if name.endswith("/bias")] == [
        f"{name}/lstm_cell/bias" for name in names
    ]


def test_names_are_those_of_sequential_and_functional_models_too():
    layers = [keras.layers.Dense(2), keras.layers.Dense(2, name="out")]
    assert list(variables.named_state(built(keras.Sequential(layers)))) == [
        "dense/kernel",
        "dense/bias",
        "out/kernel",
        "out/bias",
    ]
    x = keras.Input([2])
    functional = keras.Model(x, keras.layers.Dense(1)(keras.layers.Dense(3)(x)))
    assert list(variables.named_state(functional)) == [
        "dense/kernel",
        "dense/bias",
        "dense_1/kernel",
        "dense_1/bias",
    ]


def test_an_optimizers_slots_are_named_after_what_they_belong_to(net):
    optimizer = keras.optimizers.SGD(momentum=0.9)
    optimizer.build(net.trainable_variables)
    references = {f"network/{k}": v for k, v in variables.named_state(net).items()}
    names = list(variables.named_state(optimizer, references))
    assert names[:2] == ["iteration", "learning_rate"]
    slots = {n.partition("/")[0] for n in names[2:]}
    assert slots == {"momentum"}
    trainable = {n for n, v in references.items() if v.trainable}
    assert {n.partition("/")[2] for n in names[2:]} == trainable


def test_an_optimizers_unnamed_variable_is_named_without_a_counter(net):
    keras.Variable(0.0)
    optimizer = keras.optimizers.Nadam()
    optimizer.build(net.trainable_variables)
    assert "variable" in variables.named_state(optimizer)


def test_a_tf_module_and_a_lone_variable():
    module = tf.Module()
    module.scale = tf.Variable(1.0)
    module.parts = [tf.Variable(2.0), {"bias": tf.Variable(3.0)}]
    module.dense = keras.layers.Dense(1)
    module.dense.build([None, 2])
    module.seeds = keras.random.SeedGenerator(1)
    module.again = module.scale
    module.table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    assert set(variables.named_state(module)) == {
        "scale",
        "parts/0",
        "parts/1/bias",
        "dense/kernel",
        "dense/bias",
        "seeds/seed_generator_state",
        "table",
    }
    assert list(variables.named_state(tf.Variable(1.0))) == [""]
    assert list(variables.named_state(keras.Variable(1.0))) == [""]


def test_an_immutable_table_has_no_state():
    values = tf.lookup.KeyValueTensorInitializer(["a"], tf.constant([1], tf.int64))
    table = tf.lookup.StaticHashTable(values, -1)
    assert variables.is_trackable_module(table)
    assert variables.named_state(table) == {}


@pytest.mark.parametrize("value", [1.0, "network", None, [1], keras.layers.Dense])
def test_what_cannot_be_tracked(value):
    assert not variables.is_trackable_module(value)


def test_a_variable_that_the_walk_does_not_meet_is_an_error():
    class Forgetful(keras.Layer):
        """Shows another variable each time."""

        shown = ()

        @property
        def variables(self):
            self.shown = (*self.shown, keras.Variable(1.0, name="lost"))
            return [self.shown[-1]]

    with pytest.raises(RuntimeError) as error:
        variables.named_state(Forgetful(name="net"))
    assert (
        "Keras variables ['lost'] of net are in none of its layers, and would be "
        "missing from checkpoints: make them by add_weight" in str(error.value)
    )


def test_layers_that_are_not_built_are_known():
    net = Net()
    unbuilt = variables.unbuilt_parts(net)
    assert {"dense/", "sequential/", "head_a/"} <= set(unbuilt)
    assert variables.unbuilt_parts(built(net)) == []
    assert variables.unbuilt_parts(keras.optimizers.SGD()) == [""]
    assert variables.unbuilt_parts(tf.Variable(1.0)) == []


def test_keras_still_keeps_sublayers_where_the_walk_looks():
    """`layer._layers` is private: checkpoints are incomplete without it."""
    inner = [keras.layers.Dense(1), keras.layers.Dense(1)]

    class Layer(keras.Layer):
        def __init__(self):
            super().__init__()
            self.one, self.others = inner[0], {"k": [inner[1]]}

    layer = Layer()
    assert hasattr(layer, "_layers"), (
        "Keras has dropped Layer._layers: variables._children needs another way to "
        "the direct sublayers, those in lists and dicts too"
    )
    assert variables._children(layer) == inner
