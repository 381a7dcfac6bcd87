"""Models of many shapes as SavedModels, which a process of plain TensorFlow serves."""

import pickle
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline import ModeKeys
from pipeline.export import receivers, saved_model
from pipeline.strategy import modules as modules_lib

SERVER = """
import pickle, sys
import tensorflow as tf
asked = pickle.load(open(sys.argv[1], "rb"))
answers = {}
for name, (path, sent) in asked.items():
    loaded = tf.saved_model.load(path)
    answers[name] = loaded.signatures["serving_default"](**sent)["y"].numpy()
assert not [m for m in sys.modules if m.split(".")[0] in ("pipeline", "tests")]
pickle.dump(answers, open(sys.argv[2], "wb"))
"""
WORDS = tf.TensorSpec([None], tf.string)
NUMBERS = tf.TensorSpec([None], tf.int32)
ROWS = tf.TensorSpec([None, 3])


class NeedsTraining(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, x, training):
        return self.dense(x)


class TwoInputs(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, a, b):
        return self.dense(a) + b


class DictInput(keras.Model):
    """Keeps its layers in a list and a dict, where Keras and TensorFlow lose them."""

    def __init__(self):
        super().__init__()
        self.parts = [keras.layers.Dense(2), {"b": keras.layers.Dense(2)}]

    def call(self, features):
        return self.parts[0](features["a"]) + self.parts[1]["b"](features["b"])


class Table(keras.Model):
    def __init__(self):
        super().__init__()
        self.table = self.add_weight(shape=(5, 2), name="table")

    def call(self, ids):
        return tf.gather(self.table, ids)


class Sums(Table):
    def call(self, ids):
        rows = tf.ragged.map_flat_values(super().call, ids)
        return tf.reduce_sum(rows, 1)


class Words(keras.Model):
    """Its lookup layer is in a list, where TensorFlow does not find the table."""

    def __init__(self):
        super().__init__()
        self.parts = [keras.layers.StringLookup(vocabulary=["a", "b"])]
        self.embedding = keras.layers.Embedding(4, 2)

    def call(self, words):
        return self.embedding(self.parts[0](words))


def table_of(**values):
    pairs = tf.lookup.KeyValueTensorInitializer(list(values), list(values.values()))
    return tf.lookup.StaticHashTable(pairs, -1)


class Lookups(tf.Module):
    def __init__(self):
        super().__init__()
        self.tables = {"of": [table_of(a=3)]}
        self.learnt = tf.lookup.experimental.MutableHashTable(tf.string, tf.int32, -1)
        self.learnt.insert("a", 7)
        self.factor = tf.Variable(2)

    def __call__(self, words):
        found = self.tables["of"][0].lookup(words)
        return found * self.factor + self.learnt.lookup(words)


def functional():
    x = keras.Input((3,))
    return keras.Model(x, keras.layers.Dense(2)(x))


def vectorized():
    words = keras.layers.TextVectorization(
        vocabulary=["a", "b"], output_sequence_length=3
    )
    return keras.Sequential([words, keras.layers.Embedding(5, 2)])


def once(network, features):
    return network(features)


MODELS = {
    "needs_training": (NeedsTraining, ROWS, lambda n, x: n(x, training=False)),
    "two_inputs": (TwoInputs, {"a": ROWS, "b": ROWS}, lambda n, x: n(x["a"], x["b"])),
    "dict_input": (DictInput, {"a": ROWS, "b": ROWS}, once),
    "integers": (Table, NUMBERS, once),
    "strings": (Words, WORDS, once),
    "text": (vectorized, WORDS, once),
    "lookups": (Lookups, WORDS, once),
    "functional": (functional, ROWS, once),
    "sequential": (lambda: keras.Sequential([keras.layers.Dense(2)]), ROWS, once),
}


def traced(make, spec, call, strategy=None):
    """The modules and what would be exported of them."""

    def model_fn(features, mode, network):
        return ge.EstimatorSpec(mode, predictions={"y": call(network, features)})

    strategy = strategy or tf.distribute.get_strategy()
    modules = modules_lib.Modules({"network": make}, strategy)
    bound = modules_lib.bind(model_fn, ModeKeys.PREDICT, modules, {})
    receiver = receivers.receiver_of(None, {}, lambda: spec)
    served = saved_model.served(bound, receiver)
    outline = modules.build(served, (dict(receiver.receiver_specs), None))
    return modules, saved_model.servable(bound, modules, receiver, outline)


def example_of(spec):
    if isinstance(spec, dict):
        return {name: example_of(each) for name, each in spec.items()}
    if spec.dtype == tf.string:
        return np.array([b"a", b"c"])
    if spec.dtype == tf.int32:
        return np.array([1, 3], np.int32)
    return np.arange(6, dtype=np.float32).reshape(2, 3)


def test_they_are_served_without_this_project(tmp_path):
    asked, expected = {}, {}
    for name, (make, spec, call) in MODELS.items():
        modules, model = traced(make, spec, call)
        sent = example_of(spec)
        constants = tf.nest.map_structure(tf.constant, sent)
        expected[name] = call(modules.by_name["network"], constants).numpy()
        sent = sent if isinstance(sent, dict) else {"features": sent}
        asked[name] = saved_model.save(str(tmp_path / name), model), sent
    (tmp_path / "asked").write_bytes(pickle.dumps(asked))
    subprocess.run(
        [sys.executable, "-I", "-c", SERVER, "asked", "answers"],
        cwd=tmp_path,
        check=True,
        timeout=300,
    )
    answers = pickle.loads((tmp_path / "answers").read_bytes())
    for name, value in expected.items():
        np.testing.assert_allclose(answers[name], value, rtol=1e-5, err_msg=name)


def test_ragged_features_are_sent_by_parts(tmp_path):
    _, model = traced(Sums, tf.RaggedTensorSpec([None, None], tf.int32), once)
    loaded = tf.saved_model.load(saved_model.save(str(tmp_path), model))
    values, splits = tf.constant([1, 2, 3]), tf.constant([0, 2, 3], tf.int64)
    served = loaded.signatures["serving_default"](features=values, features_1=splits)
    table = loaded.state["network/table"]
    np.testing.assert_allclose(served["y"], [table[1] + table[2], table[3]])


def test_several_replicas(tmp_path, mirrored_by_hand):
    modules, model = traced(DictInput, MODELS["dict_input"][1], once, mirrored_by_hand)
    loaded = tf.saved_model.load(saved_model.save(str(tmp_path), model))
    sent = tf.nest.map_structure(tf.constant, example_of(MODELS["dict_input"][1]))
    np.testing.assert_allclose(
        loaded.signatures["serving_default"](**sent)["y"],
        modules.by_name["network"](sent),
        rtol=1e-5,
    )


def test_variables_have_the_names_of_the_checkpoint(tmp_path):
    modules, model = traced(*MODELS["dict_input"])
    loaded = tf.saved_model.load(saved_model.save(str(tmp_path), model))
    names = list(modules.named_variables())
    assert {n for n in names if n.startswith("network/")} == {
        "network/dense/kernel",
        "network/dense/bias",
        "network/dense_1/kernel",
        "network/dense_1/bias",
    }
    assert sorted(loaded.state) == sorted(n for n in names if "input_start" not in n)
    kernel = modules.named_variables()["network/dense/kernel"]
    np.testing.assert_array_equal(loaded.state["network/dense/kernel"], kernel)


class Hidden(tf.Module):
    """Its table is the attribute of an object that TensorFlow does not look into."""

    def __init__(self):
        super().__init__()
        self.hold = type("Plain", (), {"table": table_of(a=1)})()

    def __call__(self, words):
        return self.hold.table.lookup(words)


def test_a_table_in_no_module_is_named():
    with pytest.raises(ge.SpecError) as error:
        traced(Hidden, WORDS, once)
    assert "PREDICT uses 1 variables or tables that are in no module" in str(
        error.value
    )


def test_what_calls_python_is_refused():
    """It would be saved, and fail in any other process."""

    def call(network, x):
        return network(tf.numpy_function(lambda a: a * 2, [x], tf.float32))

    def in_a_branch(network, x):
        twice = tf.function(lambda: call(network, tf.ensure_shape(x, [None, 3])))
        return twice()

    fixed = tf.TensorSpec([2, 3])
    for each in (call, in_a_branch):
        with pytest.raises(ge.SpecError) as error:
            traced(lambda: tf.Module(), fixed, lambda n, x, c=each: c(tf.identity, x))
        assert "the signature 'serving_default' calls Python (tf.py_function" in str(
            error.value
        )


def test_an_optimizer_is_not_exported(tmp_path):
    """Its slots would make up two thirds of it."""

    def model_fn(features, labels, mode, network, optimizer):
        y = network(features)
        if mode == ModeKeys.PREDICT:
            return ge.EstimatorSpec(mode, predictions=y)
        op = ge.TrainOp(optimizer, network.trainable_variables)
        return ge.EstimatorSpec(mode, loss=y[:, 0], train_op=op)

    factories = {
        "network": lambda: keras.Sequential([keras.layers.Dense(2)]),
        "optimizer": keras.optimizers.Adam,
    }
    modules = modules_lib.Modules(factories, tf.distribute.get_strategy())
    modules.build(modules_lib.bind(model_fn, ModeKeys.TRAIN, modules, {}), (ROWS, None))
    receiver = receivers.receiver_of(None, {}, lambda: ROWS)
    bound = modules_lib.bind(model_fn, ModeKeys.PREDICT, modules, {})
    served = saved_model.served(bound, receiver)
    outline = modules.build(served, (dict(receiver.receiver_specs), None))
    model = saved_model.servable(bound, modules, receiver, outline)
    assert any(name.startswith("optimizer/") for name in modules.named_variables())
    assert sorted(model.root.state) == [
        "driver/global_step",
        "network/dense/bias",
        "network/dense/kernel",
    ]
