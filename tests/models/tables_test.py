"""Networks of tables: the numbers of tf.estimator, formulas, strategies, and serving."""

import functools
import itertools
import json
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from gin_estimator.inputs import Schema
from gin_estimator.models import (
    BinaryClassHead,
    MultiClassHead,
    RegressionHead,
    dcn_v2,
    deep_fm,
    dlrm,
    dnn,
    input_layer,
    linear,
    table_model,
    wide_and_deep,
)

import gin_estimator as ge
import table_training as training
from gin_estimator import ModeKeys
from small import Losses
from tasks import servers, workers
from refusals import refused

FOLDER = pathlib.Path(__file__).parent
# Recorded with TensorFlow 2.15.1.
RECORDED = json.loads((FOLDER / "estimator.json").read_text())
RECORDED_SCHEMA = Schema(
    {
        "age": {"kind": "number", "default": 0.0},
        "income": {"kind": "number", "default": 0.0},
        "word": {"kind": "id", "size": 5, "default": 0, "embedding": 4},
        "hour": {"kind": "id", "size": 3, "default": 0, "embedding": "one_hot"},
        "tags": {"kind": "bag of ids", "size": 6, "embedding": 3},
        "pairs": {"kind": "id", "size": 10, "default": 0, "embedding": None},
    }
)
# The rows of the first kernel: there by name, here vectors, one-hot fields, numbers.
THEIRS = {"age": 1, "hour": 3, "income": 1, "tags": 3, "word": 4}
OURS = ("word", "tags", "hour", "age", "income")
NETWORKS = {
    "Linear": functools.partial(linear, schema=RECORDED_SCHEMA),
    "DNN": functools.partial(dnn, RECORDED_SCHEMA, hidden=[5, 4]),
    "DNNLinearCombined": functools.partial(wide_and_deep, RECORDED_SCHEMA, hidden=[5, 4]),
}
HEADS = {"Classifier": BinaryClassHead(), "Regressor": RegressionHead()}


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, 1e-5, 1e-5)


def recorded_columns():
    return {
        name: tf.ragged.constant(values, dtype=tf.int64)
        if name == "tags"
        else tf.constant(values, tf.float32 if name in ("age", "income") else tf.int64)
        for name, values in RECORDED["features"].items()
    }


@functools.cache
def recorded_features():
    return RECORDED_SCHEMA.prepared().encode(recorded_columns())


def recorded_data(kind):
    labels = tf.constant(RECORDED["labels"][kind.lower()])
    return tf.data.Dataset.from_tensor_slices((recorded_features(), labels)).batch(8).repeat()


def recorded_network(model, case):
    """Returns the network with the recorded weights."""
    network = NETWORKS[model](num_outputs=1)
    network(recorded_features())
    given = {name.removeprefix("dnn/"): np.array(v) for name, v in case["weights"].items()}
    if model == "Linear":
        return network
    for name, table in network.deep.vectors.tables.items():
        key = f"input_from_feature_columns/input_layer/{name}_embedding/embedding_weights"
        table.rows.assign(given[key])
    parts = np.split(given["hiddenlayer_0/kernel"], np.cumsum(list(THEIRS.values()))[:-1])
    parts = dict(zip(THEIRS, parts, strict=True))
    given["hiddenlayer_0/kernel"] = np.concatenate([parts[name] for name in OURS])
    layers = dict(enumerate(network.tower.layers)) | {"": network.logits}
    for index, layer in layers.items():
        name = "logits" if index == "" else f"hiddenlayer_{index}"
        layer.set_weights([given[f"{name}/kernel"], given[f"{name}/bias"]])
    return network


def optimizers(model):
    ftrl = keras.optimizers.Ftrl(0.2, l1_regularization_strength=0.003)
    if model == "DNNLinearCombined":
        return {"optimizer": keras.optimizers.Adagrad(0.05), "wide_optimizer": ftrl}
    return {"optimizer": ftrl if model == "Linear" else keras.optimizers.Adagrad(0.05)}


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("Linear", "Classifier"),
        pytest.param("DNN", "Classifier", marks=pytest.mark.slow),
        pytest.param("DNNLinearCombined", "Regressor", marks=pytest.mark.slow),
        pytest.param("Linear", "Regressor", marks=pytest.mark.slow),
        pytest.param("DNN", "Regressor", marks=pytest.mark.slow),
        pytest.param("DNNLinearCombined", "Classifier", marks=pytest.mark.slow),
    ],
)
def test_logits_and_losses_are_those_of_tf_estimator(model, kind):
    case = RECORDED["cases"][model + kind]
    network, modules, losses = recorded_network(model, case), optimizers(model), []
    close(network(recorded_features())[:, 0], case["logits_before"])
    for features, labels in recorded_data(kind).take(10):
        with tf.GradientTape(persistent=True) as tape:
            spec = table_model(features, labels, "train", network, **modules, head=HEADS[kind])
            loss = tf.reduce_mean(spec.loss)
        losses.append(float(loss))
        for op in spec.train_op:
            gradients = tape.gradient(loss, [v.value for v in op.variables])
            # Dense: Keras would square each use of a row by itself.
            op.optimizer.apply([tf.convert_to_tensor(g) for g in gradients], op.variables)
    close(losses, case["losses"])
    close(network(recorded_features())[:, 0], case["logits_after"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Returns an Estimator that has trained, and its losses."""
    case = RECORDED["cases"]["DNNLinearCombinedClassifier"]
    modules = {
        "network": lambda: recorded_network("DNNLinearCombined", case),
        "optimizer": lambda: optimizers("DNNLinearCombined")["optimizer"],
        "wide_optimizer": lambda: optimizers("DNNLinearCombined")["wide_optimizer"],
    }
    model_fn = functools.partial(table_model, head=HEADS["Classifier"])
    config = ge.RunConfig(str(tmp_path_factory.mktemp("trained")), log_step_count_steps=None)
    hook = Losses()
    estimator = ge.Estimator(model_fn, modules=modules, config=config)
    estimator.train(lambda: recorded_data("Classifier"), max_steps=10, hooks=[hook])
    return estimator, hook.values


def test_the_driver_trains_the_same(trained):
    close(trained[1], RECORDED["cases"]["DNNLinearCombinedClassifier"]["losses"])


@pytest.mark.slow
def test_a_server_is_sent_raw_columns_or_examples(tmp_path, trained):
    """The network's schema describes them."""
    estimator, raw = trained[0], recorded_columns()
    data = tf.data.Dataset.from_tensor_slices(recorded_features()).batch(16)
    expected = [each["logits"] for each in estimator.predict(lambda: data)]
    loaded = tf.saved_model.load(estimator.export_saved_model(str(tmp_path)))
    serve, by_examples = (loaded.signatures[n] for n in ("predict", "examples:predict"))
    assert serve.structured_input_signature[1].keys() == raw.keys()
    np.testing.assert_allclose(serve(**as_text(raw))["logits"], expected, rtol=1e-5, atol=1e-6)
    examples = tf.constant([example(raw, row) for row in range(len(expected))])
    np.testing.assert_allclose(
        by_examples(examples=examples)["logits"], expected, rtol=1e-5, atol=1e-6
    )


def as_text(raw):
    """Returns columns with bags as texts, as in a file."""
    tags = tf.strings.as_string(raw["tags"])
    return {**raw, "tags": tf.strings.reduce_join(tags, -1, separator=" ")}


def example(raw, row):
    """Returns a row as a serialized tf.Example."""
    made = tf.train.Example()
    for name, column in raw.items():
        values, feature = np.atleast_1d(column[row].numpy()), made.features.feature[name]
        numbers = feature.float_list if values.dtype.kind == "f" else feature.int64_list
        numbers.value.extend(values)
    return made.SerializeToString()


# Formulas, in NumPy.


@pytest.fixture(scope="module")
def features():
    return training.SCHEMA.prepared().encode(training.columns()[0])


FIELDS = training.SCHEMA.prepared().fields
NUMBERS = ("age", "income")


def made(factory, features, num_outputs=2, **options):
    """Returns a network with random weights."""
    network = factory(schema=training.SCHEMA, num_outputs=num_outputs, **options)
    network(features)
    rng = np.random.default_rng(1)
    for variable in network.trainable_variables:
        variable.assign(rng.normal(size=variable.shape) / 2)
    return network


def counts(features, field):
    """Returns how often each example has each row."""
    ids = features[field.name]
    found = np.zeros([training.ROWS, field.size])
    for row, each in enumerate(ids.to_list() if field.kind == "bag" else ids.numpy()[:, None]):
        np.add.at(found[row], each, 1)
    return found


def vectors(features, layer):
    found = []
    for field in layer.fields:
        used = counts(features, field)
        sums = used.sum(1, keepdims=True)
        divisor = {"mean": sums, "sqrtn": np.sqrt(sums)}.get(field.combiner, 1)
        found.append(used @ layer.tables[field.table].rows.numpy() / np.maximum(divisor, 1))
    return found


def column(features, name):
    return features[name].numpy()[:, None]


def wide(features, part):
    used = [counts(features, field) for field in FIELDS if field.kind != "number" and field.wide]
    rows = np.concatenate(used, 1) @ part.table.rows.numpy()
    return rows + column(features, "age") * part.kernel.numpy() + part.bias.numpy()


def deep_input(features, layer):
    one_hot = [counts(features, field) for field in FIELDS if field.embedding == "one_hot"]
    numbers = [column(features, name) for name in NUMBERS]
    return np.concatenate([*vectors(features, layer.vectors), *one_hot, *numbers], 1)


def dense(x, layer):
    return x @ layer.kernel.numpy() + layer.bias.numpy()


def tower(x, layers):
    for layer in layers:
        x = np.maximum(dense(x, layer), 0)
    return x


def test_wide_deep_and_both(features):
    network = made(wide_and_deep, features, hidden=[5, 4])
    deep = tower(deep_input(features, network.deep), network.tower.layers)
    close(network(features), dense(deep, network.logits) + wide(features, network.wide))
    assert {field.name for field in FIELDS if field.wide} == {*training.SCHEMA.features} - {
        "counted",
        "income",
    }
    assert [v.path.rpartition("/")[2] for v in network.wide_variables] == [
        "kernel",
        "bias",
        "embeddings",
    ]
    names = [table.name for table in network.deep.vectors.tables.values()]
    assert names == ["word", "tags"]
    network = made(dnn, features, hidden=[])
    close(network(features), dense(deep_input(features, network.deep), network.logits))
    network = made(linear, features)
    close(network(features), wide(features, network.wide))
    network = linear(schema=training.SCHEMA, num_outputs=1)
    np.testing.assert_array_equal(network(features), np.zeros([training.ROWS, 1]))


def test_the_input_layer_in_another_network(features):
    layers = [input_layer(training.SCHEMA), keras.layers.Dense(2)]
    result = keras.Sequential(layers)(features)
    close(result, dense(deep_input(features, layers[0].deep), layers[1]))


def test_options_of_dense_layers(features):
    network = made(dnn, features, hidden=[4], dropout=0.5, batch_norm=True)
    kinds = [type(layer).__name__ for layer in network.tower.layers]
    assert kinds == ["Dense", "Dropout", "BatchNormalization"]
    assert np.abs(network(features, training=True) - network(features)).max() > 0.1


@pytest.mark.parametrize(("structure", "rank"), [("parallel", 2), ("stacked", None)])
def test_dcn_v2(features, structure, rank):
    options = {"cross_layers": 2, "rank": rank, "structure": structure}
    network = made(dcn_v2, features, hidden=[5], **options)
    x0 = x = deep_input(features, network.deep)
    for cross in network.crosses:
        lower = x if rank is None else x @ cross.down.kernel.numpy()
        x = x0 * dense(lower, cross.up) + x
    if structure == "stacked":
        x = tower(x, network.tower.layers)
    else:
        x = np.concatenate([x, tower(x0, network.tower.layers)], 1)
    close(network(features), dense(x, network.logits))


@pytest.mark.parametrize("num_outputs", [1, 2])
def test_deep_fm(features, num_outputs):
    network = made(deep_fm, features, num_outputs, embedding_dim=3, hidden=[5])
    factors = vectors(features, network.deep.vectors)
    for place, name in enumerate(NUMBERS):
        factors.append(column(features, name) * network.deep.kernel.numpy()[place])
    assert len(factors) == 7  # The cross has none.
    products = sum(v * w for v, w in itertools.combinations(factors, 2))
    weights = network.pairs.kernel.numpy() if num_outputs > 1 else np.ones([3, 1])
    deep = tower(np.concatenate(factors, 1), network.tower.layers)
    expected = products @ weights + dense(deep, network.logits)
    close(network(features), expected + wide(features, network.wide))


def test_dlrm(features):
    network = made(dlrm, features, embedding_dim=3, bottom_hidden=[4], hidden=[5])
    x = np.concatenate([column(features, name) for name in NUMBERS], 1)
    bottom = tower(x, network.bottom.layers)
    factors = [bottom, *vectors(features, network.vectors)]
    pairs = [(factors[i] * factors[j]).sum(1) for i in range(len(factors)) for j in range(i)]
    x = np.concatenate([bottom, np.stack(pairs, 1)], 1)
    close(network(features), dense(tower(x, network.top.layers), network.logits))


def test_first_vectors(features):
    """Those that are multiplied are smaller, since many pairs are added up."""
    network = deep_fm(training.SCHEMA, num_outputs=1)
    network(features)
    factors = [*(t.rows for t in network.deep.vectors.tables.values()), network.deep.kernel]
    assert all(0.02 < np.std(each.numpy()) < 0.06 for each in factors[:-1])
    network = dnn(training.SCHEMA, num_outputs=1)
    network(features)
    large = network.deep.vectors.tables["tags"].rows.numpy()
    assert np.std(large) == pytest.approx(0.88 * 3**-0.5, rel=0.05)


def test_mixed_precision(features):
    """The linear part, raw numbers and losses stay float32."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        network = wide_and_deep(training.SCHEMA, num_outputs=1, hidden=[4])
        large = {**features, "age": features["age"] + 2**14}
        assert network(large).dtype == tf.float32
    finally:
        keras.config.set_dtype_policy("float32")
    assert network.tower.layers[0].compute_dtype == "float16"
    assert {v.dtype for v in network.variables} == {"float32"}
    network.wide.kernel.assign([[1.0]])
    small, large = network.wide(features), network.wide(large)
    np.testing.assert_allclose(large - small, np.full([training.ROWS, 1], 2.0**14), rtol=1e-6)


# The model_fn.


def spec(network, head, features, mode=ModeKeys.TRAIN, **options):
    labels = None if mode == ModeKeys.PREDICT else training.columns()[1]
    optimizer = keras.optimizers.SGD(0.5)
    return table_model(features, labels, mode, network, optimizer, head=head, **options)


def test_the_head_sets_the_number_of_logits(features):
    network = linear(schema=training.SCHEMA)
    predictions = spec(network, MultiClassHead(3), features, ModeKeys.PREDICT).predictions
    assert predictions["logits"].shape == [training.ROWS, 3]
    with pytest.raises(ge.errors.SpecError, match="linear.num_outputs is 3: expected 1 for Binary"):
        spec(network, BinaryClassHead(), features)
    with pytest.raises(ge.UserError, match="linear.num_outputs is None: expected the number"):
        linear(schema=training.SCHEMA)(features)


def test_each_optimizer_has_its_part(features):
    network, ftrl = wide_and_deep(training.SCHEMA), keras.optimizers.Ftrl(0.1)
    head = BinaryClassHead(weight_column="weight")
    ops = spec(network, head, features, wide_optimizer=ftrl, lazy=True, clip_norm=2.0).train_op
    assert [(op.lazy, op.clip_norm) for op in ops] == [(True, 2.0), (False, 2.0)]
    assert [id(v) for v in ops[1].variables] == [id(v) for v in network.wide_variables]
    assert [id(v) for v in ops[0].variables] == [id(v) for v in network.deep_variables]
    assert len(network.trainable_variables) == sum(len(op.variables) for op in ops)
    for factory, part in ((dnn, "wide"), (linear, "deep")):
        with pytest.raises(ge.UserError, match=f"has no {part} part: expected one with a wide"):
            network = factory(schema=training.SCHEMA)
            spec(network, BinaryClassHead(), features, wide_optimizer=ftrl)


WORD = {"kind": "word", "vocabulary": ["a"]}


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: dnn(Schema({"w": {**WORD, "embedding": None}})), "Set embedding=8"),
        (lambda: linear(schema=Schema({"w": {**WORD, "wide": False}})), "Set wide=True"),
        (lambda: dcn_v2(training.SCHEMA, structure="both"), "expected 'parallel' or 'stacked'"),
        (lambda: linear(l2=0.1, schema=training.SCHEMA), "l2_regularization_strength"),
    ],
)
def test_wrong_arguments(make, text):
    with pytest.raises(ge.errors.SpecError, match=text):
        network = make()
        network.num_outputs = 1
        network.build()


@pytest.fixture(scope="module")
def network(features):
    return made(wide_and_deep, features, hidden=[4])


test_features_of_another_schema_are_refused = refused(
    lambda network, features, changes: network(
        {name: value for name, value in {**features, **changes}.items() if value is not None}
    ),
    ({"word": None}, "expected 'word' of the network's Schema"),
    ({"word": tf.constant(["a"] * 21)}, r"'word' is string \(21,\): expected integers \[batc"),
    ({"tags": tf.zeros([21], tf.int32)}, "expected ragged integers"),
    ({"age": tf.zeros([21, 1])}, r"'age' is float32 \(21, 1\): expected floats \[batch\]"),
    fixtures=["network", "features"],
)


def test_an_id_of_another_field_ends_the_step(network, features):
    """In the joined table it would be a row of the next field. XLA ignores checks."""
    compiled = tf.function(network, jit_compile=True)
    close(compiled(features), network(features))
    for name in ("word", "counted"):
        values = features[name]
        wrong = values + 5 if name == "word" else values.with_values(values.values + 5)
        with pytest.raises(tf.errors.InvalidArgumentError, match="word.*from 0 to below"):
            network({**features, name: wrong})
        assert np.isnan(compiled({**features, name: wrong})).all()


# Strategies.


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Returns an Estimator of one device that has trained, and its outcome."""
    estimator = training.make_estimator(tmp_path_factory.mktemp("default"))
    return estimator, training.outcome(estimator)


def assert_same(found, reference):
    close(found["losses"], reference[1]["losses"])
    assert found["evaluation"] == pytest.approx(reference[1]["evaluation"], rel=1e-5)


def checkpoint(reference):
    return f"{reference[0].model_dir}/model.ckpt-0"


@pytest.mark.slow
def test_two_replicas_train_the_same(tmp_path, reference):
    """With accumulation; no value in a step has the shape of a large table."""
    config = {"devices": ("CPU:0", "CPU:1"), "gradient_accumulation_steps": 2}
    estimator = training.make_estimator(tmp_path, checkpoint(reference), **config)
    assert_same(training.outcome(estimator), reference)
    operations = [each for graph in training.graphs for each in graph.get_operations()]
    shapes = [output.shape for each in operations for output in each.outputs]
    fields = training.TRAINED.prepared().fields
    wide = sum(field.size for field in fields if field.kind != "number")
    assert not [s for s in shapes if s.rank and s[0] in (training.LARGE, wide)]
    assert "ResourceGather" in {each.type for each in operations}


@pytest.mark.slow
@pytest.mark.parametrize("execution", ["multi_worker", "parameter_server"])
def test_two_workers_train_the_same(tmp_path, reference, execution):
    """Also with servers, which hold the tables in two parts."""
    command = [FOLDER / "table_training.py", execution, tmp_path, checkpoint(reference)]
    if execution == "multi_worker":
        _, *arguments = command
        with workers(tmp_path, *arguments, tmp_path / "{index}.json", program=command[0]) as tasks:
            codes = [task.wait() for task in tasks]
            assert codes == [0, 0], [task.output for task in tasks]
    else:
        with servers(tmp_path, *command, tmp_path / "0.json") as cluster:
            assert set(cluster.codes().values()) == {0}, cluster["chief 0"].output
    assert_same(json.loads((tmp_path / "0.json").read_text()), reference)
