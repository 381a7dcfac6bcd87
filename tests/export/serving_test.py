"""What servers send, and SavedModels in a process that has only TensorFlow."""

import collections
import pickle
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import gin_estimator as ge
from refusals import refused
from small import strategy

pytestmark = pytest.mark.oldest

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3) / 10
WORDS = np.array(["a", "b", "c", "a"])
IDS = np.array([1, 3, 0, 2], np.int32)
BAGS = tf.ragged.constant([[1, 2], [], [3], [0]], dtype=tf.int32)
Sides = collections.namedtuple("Sides", ["left", "right"])


class InContainers(keras.Model):
    """Keeps its layers in a list and a dict, where Keras and TensorFlow lose them."""

    def __init__(self):
        super().__init__()
        self.parts = [keras.layers.Dense(2), {"b": keras.layers.Dense(2)}]

    def call(self, x, training=False):
        return self.parts[0](x) + self.parts[1]["b"](x)


class Words(keras.Model):
    """Its lookup layer is in a list, where TensorFlow does not find the table."""

    def __init__(self):
        super().__init__()
        self.parts = [keras.layers.StringLookup(vocabulary=["a", "b"])]
        self.embedding = keras.layers.Embedding(4, 2)

    def call(self, words):
        return self.embedding(self.parts[0](words))


class Lookups(tf.Module):
    def __init__(self):
        super().__init__()
        pairs = tf.lookup.KeyValueTensorInitializer(["a", "b"], [3.0, 4.0])
        self.tables = {"of": [tf.lookup.StaticHashTable(pairs, -1.0)]}
        self.factor = tf.Variable([2.0])

    def __call__(self, words):
        return self.tables["of"][0].lookup(words)[:, tf.newaxis] * self.factor


class Bags(tf.Module):
    def __init__(self):
        super().__init__()
        self.table = tf.Variable(tf.reshape(tf.range(10.0), [5, 2]))

    def __call__(self, bags):
        rows = tf.ragged.map_flat_values(lambda ids: tf.gather(self.table, ids), bags)
        return tf.reduce_sum(rows, axis=1)


def functional():
    x = keras.Input((3,))
    return keras.Model(x, keras.layers.BatchNormalization()(keras.layers.Dense(2)(x)))


def two_inputs():
    a, b = keras.Input((3,)), keras.Input((3,))
    return keras.Model([a, b], keras.layers.Dense(2)(keras.layers.Concatenate()([a, b])))


MODULES = {
    "functional": functional,
    "sequential": lambda: keras.Sequential([keras.layers.Dense(2)]),
    "containers": InContainers,
    "two_inputs": two_inputs,
    "words": Words,
    "lookups": Lookups,
    "bags": Bags,
    "ids": lambda: keras.layers.Embedding(4, 2),
    "optimizer": keras.optimizers.Adam,
}


def model_fn(features, mode, optimizer, **others):
    modules = {name: each for name, each in others.items() if name in MODULES}
    rows = features["rows"]
    outputs = {
        "functional": modules["functional"](rows, training=False),
        "sequential": modules["sequential"](rows),
        "containers": modules["containers"](rows),
        "two_inputs": modules["two_inputs"]([rows, rows]),
        "words": modules["words"](features["words"]),
        "lookups": modules["lookups"](features["words"]),
        "bags": modules["bags"](features["bags"]),
        "ids": modules["ids"](features["ids"]),
    }
    if mode == ge.ModeKeys.PREDICT:
        return ge.EstimatorSpec(mode, outputs)
    loss = tf.add_n([tf.reduce_sum(each**2, axis=-1) for each in outputs.values()])
    variables = [v for m in modules.values() for v in m.trainable_variables]
    return ge.EstimatorSpec(mode, loss=loss, train_op=ge.TrainOp(optimizer, variables))


def input_fn():
    features = {"rows": ROWS, "words": WORDS, "ids": IDS, "bags": BAGS}
    return tf.data.Dataset.from_tensor_slices(features).batch(4)


SERVER = """
import pickle, sys
import tensorflow as tf
answers = []
for path, signature, sent in pickle.load(open(sys.argv[1], "rb")):
    loaded = tf.saved_model.load(path)
    sent = {name: tf.constant(value) for name, value in sent.items()}
    answer = loaded.signatures[signature](**sent)
    answers.append({name: value.numpy() for name, value in answer.items()})
assert not [m for m in sys.modules if m.split(".")[0] in ("pipeline", "gin_estimator")]
pickle.dump(answers, open(sys.argv[2], "wb"))
"""


def example(i):
    def floats(values):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))

    def integers(values):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    feature = {
        "rows": floats(ROWS[i]),
        "words": tf.train.Feature(bytes_list=tf.train.BytesList(value=[WORDS[i].encode()])),
        "ids": integers([IDS[i]]),
        "bags": integers(BAGS[i].numpy()),
    }
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


@pytest.mark.slow
def test_exports_are_served_without_this_project(tmp_path):
    raw = {
        "rows": ROWS,
        "words": WORDS.astype("S1"),
        "ids": IDS,
        "bags": BAGS.values.numpy(),
        "bags_1": BAGS.row_splits.numpy(),
    }
    parsing = ge.build_parsing_serving_input_receiver_fn(
        {
            "rows": tf.io.FixedLenFeature([3], tf.float32),
            "words": tf.io.FixedLenFeature([], tf.string),
            "ids": tf.io.FixedLenFeature([], tf.int64),
            "bags": tf.io.RaggedFeature(tf.int64),
        }
    )()
    examples = {"examples": [example(i) for i in range(4)]}
    asked, expected = [], []
    for name, replicas in (("one", None), ("two", strategy("mirrored 2"))):
        config = ge.RunConfig(str(tmp_path / name), train_distribute=replicas)
        estimator = ge.Estimator(model_fn, modules=MODULES, config=config)
        estimator.train(input_fn, max_steps=2)
        [answer] = estimator.predict(input_fn, yield_single_examples=False)
        path = estimator.export_saved_model(str(tmp_path / "raw"))
        asked.append((path, "serving_default", raw))
        expected.append(answer)
    described = ge.ServingInputReceiver(
        {name: tf.TensorSpec([None, *value.shape[1:]], value.dtype) for name, value in raw.items()},
        lambda sent: {
            **{name: sent[name] for name in ("rows", "words", "ids")},
            "bags": tf.RaggedTensor.from_row_splits(sent["bags"], sent["bags_1"]),
        },
        {"examples": parsing},
    )
    path = estimator.export_saved_model(str(tmp_path / "both"), lambda: described)
    asked += [(path, "serving_default", raw), (path, "examples", examples)]
    expected += [expected[-1], expected[-1]]

    (tmp_path / "asked").write_bytes(pickle.dumps(asked))
    command = [sys.executable, "-I", "-c", SERVER, "asked", "answers"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=300)
    answers = pickle.loads((tmp_path / "answers").read_bytes())
    for answer, values in zip(answers, expected, strict=True):
        assert set(answer) == set(values)
        for name, value in values.items():
            np.testing.assert_allclose(answer[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def linear_fn(features, labels, mode, network, optimizer, export_outputs=None):
    leaves = [tf.reshape(leaf, [-1, 2]) for leaf in tf.nest.flatten(features)]
    outputs = network(tf.concat(leaves, axis=1))
    if mode == ge.ModeKeys.PREDICT:
        more = {"sum": {"sum": tf.reduce_sum(outputs, axis=-1)}}
        return ge.EstimatorSpec(
            mode, outputs, export_outputs={"serving_default": {"output": outputs}, **more}
        )
    loss = tf.reduce_sum(outputs**2, axis=-1)
    train_op = ge.TrainOp(optimizer, network.trainable_variables)
    return ge.EstimatorSpec(mode, loss=loss, train_op=train_op)


def describing_network(receiver_fn=None):
    network = keras.Sequential([keras.layers.Dense(1)])
    if receiver_fn is not None:
        network.serving_input_receiver_fn = receiver_fn
    return network


PAIR = tf.TensorSpec([None, 2], tf.float32)


def make(model_dir, *functions):
    modules = {"network": lambda: describing_network(*functions[:1])}
    modules["optimizer"] = keras.optimizers.SGD
    return ge.Estimator(linear_fn, modules=modules, config=ge.RunConfig(str(model_dir)))


def pairs(nest):
    def input_fn(mode):
        features = tf.nest.map_structure(lambda _: np.ones([4, 2], np.float32), nest)
        data = (features, np.zeros(4)) if mode != ge.ModeKeys.PREDICT else (features, None)
        return tf.data.Dataset.from_tensors(data if data[1] is not None else ((features, 0)))

    return input_fn


@pytest.mark.thin
@pytest.mark.parametrize(
    ("nest", "names"),
    [
        (0, ["features"]),
        ((0, 0), ["features_0", "features_1"]),
        ({"sides": {"left": 0, "more": (0,)}}, ["sides_left", "sides_more_0"]),
        ({"sides": Sides(0, 0)}, ["sides_0", "sides_1"]),
        ({"class": 0, "dep time": 0, "1st": 0}, ["arg_1st", "class_", "dep_time"]),
    ],
)
def test_names_of_what_is_sent(tmp_path, nest, names):
    estimator = make(tmp_path / "run").train(pairs(nest), max_steps=1)
    [expected] = estimator.predict(pairs(nest), yield_single_examples=False)
    loaded = tf.saved_model.load(estimator.export_saved_model(str(tmp_path / "out")))
    served = loaded.signatures["serving_default"]
    assert sorted(served.structured_input_signature[1]) == names
    answer = served(**dict.fromkeys(names, tf.ones([4, 2])))["output"]
    np.testing.assert_allclose(answer, expected, rtol=1e-6)


def raw(**specs):
    return ge.build_raw_serving_input_receiver_fn(specs)


def test_a_module_describes_what_is_sent_unless_the_call_does(tmp_path):
    receiver = ge.ServingInputReceiver({"x": PAIR}, lambda sent: sent["x"], {"more": raw(y=PAIR)()})
    estimator = make(tmp_path / "run", lambda: receiver).train(pairs(0), max_steps=1)
    loaded = tf.saved_model.load(estimator.export_saved_model(str(tmp_path / "out")))
    assert set(loaded.signatures) == {"serving_default", "sum", "more", "more:sum"}
    called = estimator.export_saved_model(str(tmp_path / "out"), raw(z=PAIR))
    assert set(tf.saved_model.load(called).signatures) == {"serving_default", "sum"}
    clash = ge.ServingInputReceiver({"x": PAIR}, dict, {"sum": raw(y=PAIR)()})
    with pytest.raises(ge.errors.SpecError, match="'sum' is in export_outputs and in"):
        estimator.export_saved_model(str(tmp_path / "out"), lambda: clash)


test_wrong_receivers_are_refused = refused(
    lambda make: make(),
    (lambda: ge.ServingInputReceiver({}, {"x": PAIR}), "is a dict: expected a function"),
    (lambda: ge.ServingInputReceiver({"a b": PAIR}, dict), "'a b': .* Set 'a_b'"),
    (
        lambda: ge.ServingInputReceiver({}, dict, {"a": raw}),
        r"alternatives\['a'\] is .* expected a ServingInputReceiver",
    ),
    (lambda: raw(a={"b": PAIR}, a_b=PAIR), "two features would be sent as 'a_b'"),
    (lambda: raw(a=3), "the feature 'a' is 3: expected the spec of a tensor"),
    (
        lambda: ge.build_parsing_serving_input_receiver_fn({"a": 1, "b": 2}, bare=True),
        "expected one feature",
    ),
)
