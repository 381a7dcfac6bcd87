"""Names that mean something to TensorFlow, Python or a path are names like others."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.checkpoints import checkpoint
from pipeline.contract.model_fn import check_model_fn
from pipeline.strategy import variables
from tests import fakes

HOSTILE = [
    *["root", "self", "save_counter", "checkpoint", "save", "write", "read", "_saver"],
    *["items", "keys", "_values", "layers", "__class__", "_lookup_dependency"],
    *[".ATTRIBUTES", ".S", "..", "a.b", "a b", "\n", "007", "\N{SNOWMAN}", "x" * 999],
    *["Case", "case", "driver"],
]
TRAIN = fakes.make_input_fn(*fakes.classification_data(32), batch_size=8)


def state(first=0.0):
    """Each name as a module's, a layer's and a variable's, with tables among them."""
    numbers = iter(range(1000))
    modules = {}
    for module in HOSTILE:
        names = HOSTILE if module == "root" else [module]
        named = {name: tf.Variable(first + next(numbers)) for name in names}
        named |= {f"{n}/kernel": tf.Variable(first + next(numbers)) for n in names}
        # Of a table below ".ATTRIBUTES" TensorFlow itself loses the key.
        if module != ".ATTRIBUTES":
            table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
            table.insert("key", tf.cast(first + next(numbers), tf.int64))
            named["root/t"] = table
        modules[module] = named
    return modules


def values(of):
    return {
        (module, name): value.lookup(tf.constant("key")).numpy()
        if name == "root/t"
        else value.numpy()
        for module, named in of.items()
        for name, value in named.items()
    }


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_has_such_a_name_is_saved_and_restored(asynchronous, tmp_path):
    saved, other = state(1.0), state()
    saver = checkpoint.Saver(str(tmp_path), saved, asynchronous=asynchronous)
    path = saver.save(1)
    saver.wait()
    checkpoint.restore(other, path)
    assert values(other) == values(saved)
    assert len(checkpoint.read_names(path)) == 4 * len(HOSTILE) - 2


def test_keys_are_spelt_as_ever_but_for_modules_that_tensorflow_cannot_hold(tmp_path):
    path = checkpoint.Saver(str(tmp_path), state()).save(1)
    keys = tf.train.load_checkpoint(path).get_variable_to_shape_map()
    suffix = "/.ATTRIBUTES/VARIABLE_VALUE"
    assert {f"Case/000/Case{suffix}", f"a b/001/a b/kernel{suffix}"} <= set(keys)
    assert f"root../000/root{suffix}" in keys


def test_a_thousand_variables_stay_in_order(tmp_path):
    many = {"net": {f"v{n:04d}": tf.Variable(float(n)) for n in range(1001)}}
    path = checkpoint.Saver(str(tmp_path), many).save(1)
    reader = tf.train.load_checkpoint(path)
    keys = sorted(k for k in reader.get_variable_to_shape_map() if k[:4] == "net/")
    assert [reader.get_tensor(key) for key in keys] == list(range(1001))


def test_no_variable_is_lost_to_anothers_name():
    module = tf.Module()
    module.parts = {"a": {"b": tf.Variable(1.0)}, "a/b": tf.Variable(2.0)}
    module.parts |= {"a/b_1": tf.Variable(3.0), "": tf.Variable(4.0)}
    module.parts |= {"a//b": tf.Variable(5.0), "/": tf.Variable(6.0)}
    named = variables.named_state(module)
    assert sorted(v.numpy() for v in named.values()) == [1, 2, 3, 4, 5, 6]
    assert all(all(name.split("/")) for name in named)


class Attention(keras.layers.Layer):
    """Layers as BERT's attention calls them: "self" inside of "attention"."""

    def __init__(self):
        super().__init__()
        self.inner = keras.layers.Dense(3, name="self")
        self.top = keras.layers.Dense(fakes.NUM_CLASSES, name="root")

    def call(self, x):
        return self.top(self.inner(x))


def test_a_training_goes_on_and_is_evaluated(tmp_path):
    def model_fn(features, labels, mode, root, save_counter):
        return fakes.classifier_fn(features, labels, mode, root, save_counter, {})

    def make():
        return ge.Estimator(
            model_fn,
            modules={
                "root": lambda: keras.Sequential([Attention()]),
                "save_counter": fakes.adam,
            },
            config=ge.RunConfig(model_dir=str(tmp_path), save_checkpoints_steps=2),
        )

    make().train(TRAIN, max_steps=1)
    again = make().train(TRAIN, max_steps=3)
    assert "root/attention/self/kernel" in again.get_variable_names()
    assert "save_counter/learning_rate" in again.get_variable_names()
    metrics = make().evaluate(TRAIN)
    assert metrics["global_step"] == 3
    np.testing.assert_allclose(metrics["loss"], again.evaluate(TRAIN)["loss"])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("driver", "rename it"),
        ("features", r"rename them"),
        ("a/b", r"write a non-empty string without '/'"),
        ("", r"write a non-empty string"),
        (3, r"modules \[3\] have names that cannot begin"),
    ],
)
def test_a_module_of_such_a_name_is_refused(name, text):
    with pytest.raises(TypeError, match=text):
        check_model_fn(lambda features, **_: None, [name], has_labels=False)
