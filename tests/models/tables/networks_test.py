"""Networks of tables against their formulas in NumPy."""

import dataclasses
import functools
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import inputs
import models
from pipeline import ModeKeys, SpecError
from pipeline.tracing import compiling
from tests import tabled


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, 1e-5, 1e-5)


@pytest.fixture(scope="module")
def features():
    return tabled.batch()[0]


def made(factory, num_outputs=1, **options):
    """A network with random weights."""
    given = {"schema": tabled.SCHEMA, "config": None, "num_outputs": num_outputs}
    return tabled.scattered(factory(**given, **options))


@pytest.mark.parametrize("num_outputs", [1, 3])
def test_linear(features, num_outputs):
    network = made(models.linear, num_outputs)
    close(network(features), tabled.wide(features, network))


@pytest.mark.parametrize(
    ("factory", "unused"),
    [
        (models.linear, "seen, income"),
        (models.dnn, "pairs"),
        (models.wide_and_deep, None),
    ],
)
def test_features_that_enter_nothing_are_told(factory, unused, caplog):
    caplog.set_level("INFO", "absl")
    factory(schema=tabled.SCHEMA, config=None, num_outputs=1).build()
    told = [line for line in caplog.messages if "enter no part" in line]
    assert [line.rpartition(": ")[2] for line in told] == ([unused] if unused else [])


def test_linear_begins_at_0(features):
    network = models.linear(schema=tabled.SCHEMA, config=None, num_outputs=2)
    np.testing.assert_array_equal(network(features), np.zeros([tabled.ROWS, 2]))


@pytest.mark.parametrize("num_outputs", [1, 3])
def test_dnn(features, num_outputs):
    network = made(models.dnn, num_outputs, hidden=[5, 4])
    x = tabled.deep_input(features, network)
    x = tabled.tower(x, network.tower.parts)
    close(network(features), tabled.logits(x, network))
    assert not network.wide_variables
    assert len(network.deep_variables) == len(network.trainable_variables)


def test_dnn_without_hidden_layers_and_with_all_options(features):
    network = made(models.dnn, hidden=[])
    x = tabled.deep_input(features, network)
    close(network(features), tabled.logits(x, network))
    network = made(models.dnn, hidden=[4], dropout=0.5, batch_norm=True)
    kinds = [type(part).__name__ for part in network.tower.parts]
    assert kinds == ["Dense", "Dropout", "BatchNormalization"]
    first = network(features, training=True)
    assert np.abs(first - network(features, training=True)).max() > 0.1
    close(network(features), network(features))


def test_wide_and_deep(features):
    network = made(models.wide_and_deep, hidden=[5])
    x = tabled.tower(tabled.deep_input(features, network), network.tower.parts)
    wide = tabled.wide(features, network)
    close(network(features), tabled.logits(x, network) + wide)
    assert len(network.wide_variables) == 3


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("structure", ["parallel", "stacked"])
def test_dcn_v2(features, structure, rank):
    options = {"cross_layers": 2, "rank": rank, "structure": structure}
    network = made(models.dcn_v2, hidden=[5], **options)
    x0 = x = tabled.deep_input(features, network)
    for cross in network.crosses:
        kernel, bias = (value.numpy() for value in cross.up.weights)
        if rank is not None:
            assert cross.down.kernel.shape == (x.shape[1], rank)
            kernel = cross.down.kernel.numpy() @ kernel
        x = x0 * (x @ kernel + bias) + x
    if structure == "stacked":
        x = tabled.tower(x, network.tower.parts)
    else:
        x = np.concatenate([x, tabled.tower(x0, network.tower.parts)], 1)
    close(network(features), tabled.logits(x, network))


@pytest.mark.parametrize("num_outputs", [1, 3])
def test_deep_fm(features, num_outputs):
    network = made(models.deep_fm, num_outputs, embedding_dim=3, hidden=[5])
    vectors = tabled.vectors(features, network.deep.vectors)
    for place, name in enumerate(("age", "income")):
        kernel = network.deep.kernel.numpy()[place]
        vectors.append(features[name].numpy()[:, None] * kernel)
    assert len(vectors) == 8
    products = sum(v * w for v, w in itertools.combinations(vectors, 2))
    weights = network.pairs.kernel.numpy() if num_outputs > 1 else np.ones([3, 1])
    hidden = tabled.tower(np.concatenate(vectors, 1), network.tower.parts)
    close(
        network(features),
        tabled.wide(features, network)
        + products @ weights
        + tabled.logits(hidden, network),
    )


def test_dlrm(features):
    network = made(models.dlrm, embedding_dim=3, bottom_hidden=[4], hidden=[5])
    x = np.stack([features[name].numpy() for name in ("age", "income")], 1)
    bottom = tabled.tower(x, network.bottom.parts)
    vectors = [bottom, *tabled.vectors(features, network.vectors)]
    products = [
        (vectors[i] * vectors[j]).sum(1) for i in range(len(vectors)) for j in range(i)
    ]
    x = np.concatenate([bottom, np.stack(products, 1)], 1)
    close(network(features), tabled.logits(tabled.tower(x, network.top.parts), network))


def test_dlrm_without_numbers():
    words = {"a": WORDS, "b": WORDS}
    network = tabled.scattered(models.dlrm(schema(**words), None, 1, hidden=[]))
    rows = {"a": tf.constant([0, 1]), "b": tf.constant([1, 1])}
    vectors = tabled.vectors(rows, network.vectors)
    product = (vectors[0] * vectors[1]).sum(1)[:, None]
    close(network(rows), tabled.logits(product, network))


@pytest.mark.parametrize("factory", [models.deep_fm, models.dlrm])
def test_products_of_vectors_begin_small(factory):
    """Those of many pairs would drown the rest, as with vectors of length 1."""
    network = factory(tabled.SCHEMA, None, 1, embedding_dim=16)
    network.build()
    of_factors = [v for v in network.deep_variables if v.shape[-1] == 16]
    of_factors = [v for v in of_factors if "bottom" not in v.path]
    assert of_factors
    assert all(np.abs(values).max() <= 0.1 for values in of_factors)


def test_one_table_holds_all_that_is_wide_and_another_what_is_shared():
    network = made(models.wide_and_deep)
    wide = [f for f in tabled.fields() if f.wide]
    assert network.wide.table.num_rows == sum(field.size for field in wide)
    assert [t.name for t in network.deep.vectors.tables] == ["word", "tags", "marks"]


WORDS = {"kind": "word", "vocabulary": ["a"]}


def schema(**features):
    return inputs.Schema(features=features)


# The model_fn.


def spec(network, head, mode=ModeKeys.TRAIN, **options):
    features, labels = tabled.batch()
    return models.table_model(
        features,
        None if mode == ModeKeys.PREDICT else options.pop("labels", labels),
        mode,
        network,
        keras.optimizers.SGD(0.5),
        head=head,
        **options,
    )


def test_the_head_says_the_number_of_logits():
    network = models.dnn(tabled.SCHEMA, None)
    head = models.MultiHead(
        heads=[
            models.MultiClassHead(n_classes=3, name="kind"),
            models.PoissonRegressionHead(name="count", weight_column="weight"),
        ]
    )
    labels = tabled.batch()[1]
    made = spec(network, head, labels={"kind": labels, "count": labels})
    assert made.loss.shape == [tabled.ROWS]
    assert network.num_outputs == network.logits.units == 4
    predicted = spec(network, head, ModeKeys.PREDICT).predictions
    assert predicted["kind/logits"].shape == [tabled.ROWS, 3]
    with pytest.raises(
        SpecError, match="dnn.num_outputs is 4, and BinaryClassHead nee"
    ):
        spec(network, models.BinaryClassHead())


def test_each_optimizer_has_its_part():
    network = models.wide_and_deep(tabled.SCHEMA, None)
    wide = keras.optimizers.Ftrl(0.1)
    head = models.BinaryClassHead(weight_column="weight")
    deep_op, wide_op = spec(
        network, head, wide_optimizer=wide, lazy=True, clip_norm=2.0
    ).train_op
    assert (wide_op.optimizer, wide_op.lazy) == (wide, False)
    assert list(wide_op.variables) == network.wide_variables
    assert list(deep_op.variables) == network.deep_variables
    assert (deep_op.lazy, deep_op.clip_norm) == (True, 2.0)


@pytest.mark.parametrize(
    ("factory", "part"), [(models.dnn, "wide"), (models.linear, "deep")]
)
def test_a_part_that_is_not_there_has_no_optimizer(factory, part):
    network = factory(schema=tabled.SCHEMA, config=None)
    with pytest.raises(SpecError, match=f"has no {part} part for the module"):
        spec(network, models.BinaryClassHead(), wide_optimizer=keras.optimizers.SGD())


# Mistakes.

MISTAKES = {
    "nothing deep": (
        lambda: models.dnn(schema(word={**WORDS, "embedding": None}), None, 1).build(),
        r"no feature of \['word'\] enters the deep part: write embedding=8",
    ),
    "nothing wide": (
        lambda: models.linear(
            1, schema=schema(word={**WORDS, "wide": False}), config=None
        ).build(),
        r"no feature of \['word'\] is wide: write wide=True",
    ),
    "no vector": (
        lambda: models.deep_fm(
            schema(word={**WORDS, "embedding": None}), None, 1
        ).build(),
        r"no feature of \['word'\] enters the deep part",
    ),
    "no pair": (
        lambda: models.dlrm(schema(word=WORDS), None, 1).build(),
        r"multiplies vectors .* has \['word'\]: declare another category, or take dnn",
    ),
    "dim": (
        lambda: models.deep_fm(tabled.SCHEMA, None, embedding_dim=0),
        "deep_fm.embedding_dim is 0: write a positive number",
    ),
    "structure": (
        lambda: models.dcn_v2(tabled.SCHEMA, None, structure="both"),
        "dcn_v2.structure is 'both': write 'parallel' or 'stacked'",
    ),
    "cross layers": (
        lambda: models.dcn_v2(tabled.SCHEMA, None, cross_layers=0),
        "dcn_v2.cross_layers is 0: write 1 or more",
    ),
    "no schema": (
        lambda: models.dnn(None, None),
        r"dnn.schema is None: write schema=inputs.Schema\(",
    ),
    "no config": (
        lambda: models.linear(schema=tabled.SCHEMA),
        r"linear.config is left out, .* lambda config: linear\(schema=schema, config=",
    ),
    "schema first": (
        lambda: models.linear(tabled.SCHEMA, None),
        r"linear.num_outputs is a Schema: write linear\(schema=schema, config=config",
    ),
    "l2": (
        lambda: models.linear(l2=0.1, schema=tabled.SCHEMA, config=None),
        r"linear.l2 is 0.1 beside a schema",
    ),
    "outputs": (
        lambda: models.wide_and_deep(tabled.SCHEMA, None, 0),
        "wide_and_deep.num_outputs is 0: write a positive number",
    ),
    "no outputs": (
        lambda: models.dnn(tabled.SCHEMA, None).build(),
        "dnn.num_outputs is not given: write dnn.num_outputs=1, or train it by",
    ),
    "no optimizer": (
        lambda: models.table_model(
            *tabled.batch(),
            ModeKeys.TRAIN,
            models.linear(schema=tabled.SCHEMA, config=None),
            head=models.BinaryClassHead(),
        ),
        "table_model trains and has no optimizer",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told(name):
    make, words = MISTAKES[name]
    with pytest.raises(ValueError, match=words):
        make()


@pytest.fixture(scope="module")
def network():
    return made(models.wide_and_deep)


WRONG = {
    "another reader": ({"word": None}, "has the feature 'word' and features hold"),
    "not encoded": (
        {"word": tf.constant(["a"] * tabled.ROWS)},
        r"feature 'word' is .*\(24,\) of string, .* encodes it as integers \[batch\]",
    ),
    "no bag": ({"tags": tf.zeros([tabled.ROWS], tf.int32)}, "a tf.RaggedTensor of int"),
    "columns": (
        {"age": tf.zeros([tabled.ROWS, 1])},
        r"feature 'age' is .*\(24, 1\) of float32, .* as floats \[batch\]",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_features_of_another_schema_are_refused(network, features, name):
    changes, words = WRONG[name]
    given = {**features, **changes}
    given = {key: value for key, value in given.items() if value is not None}
    with pytest.raises(SpecError, match=words):
        network(given)


def test_an_id_of_another_vocabulary_ends_the_step(network, features):
    """In a joined table it would be a row of the next field."""
    given = {**features, "word": features["word"] * 0 + 5}
    with pytest.raises(tf.errors.InvalidArgumentError, match="knows 0 to 4|none of"):
        network(given)
    given = {**features, "pairs": features["pairs"] * 0 + 600}
    with pytest.raises(tf.errors.InvalidArgumentError, match="one Schema"):
        network(given)


@pytest.mark.parametrize("name", ["pairs", "seen"])
def test_under_xla_it_gives_nan(network, features, name):
    """Which drops the check: of a row of the wide part, and of a one-hot category."""
    ids = features[name]
    wrong = ids.with_values(tf.ones_like(ids.values) * 600)

    @functools.partial(tf.function, jit_compile=True)
    def logits(values):
        given = {**features, name: ids.with_values(values)}
        return compiling.told_of_xla(lambda: network(given))()

    close(logits(ids.values), network(features))
    assert np.isnan(logits(wrong.values)).any()


def test_sharing_features_have_one_size(features):
    fields = [f for f in tabled.encoder().fields if f.table == "word"]
    fields[1] = dataclasses.replace(fields[1], embedding=5)
    with pytest.raises(SpecError, match=r"share a table, and have embedding=\[4, 5\]"):
        models.tables.deep.Vectors(fields)


def test_columns_of_any_name_have_tables():
    """TensorFlow takes few signs in the name of a variable of a graph."""
    names = ("arrival delay", "größe", "a/b", "a_b", "a:b")
    fields = [dataclasses.replace(tabled.fields()[0], table=name) for name in names]
    fields = [dataclasses.replace(f, name=f.table) for f in fields]
    tables = models.tables.deep.Vectors(fields).tables
    assert [t.name for t in tables] == [
        "arrival_delay",
        "gr__e",
        "a_b",
        "a_b_1",
        "a_b_2",
    ]


def test_the_network_serves_raw_columns(network):
    receiver = network.serving_input_receiver_fn()
    assert sorted(receiver.receiver_specs) == sorted(
        tabled.SCHEMA.features.keys() - {"pairs"}
    )
