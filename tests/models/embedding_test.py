import gin
import keras
import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from models import Embedding, ShardedEmbedding
from tests.embedding_tables import gradient, made, table

RAGGED = tf.ragged.constant([[3, 1, 3], [], [7]], dtype=tf.int64)
WEIGHTS = tf.ragged.constant([[0.5, 2.0, -1.0], [], [3.0]])
PADDED = RAGGED.to_tensor(0)


def types_of(fn, *args):
    graph = tf.function(fn, autograph=False).get_concrete_function(*args).graph
    return {op.type for op in graph.get_operations()}


# Vectors, one an id.


@pytest.mark.parametrize("mask_zero", [False, True])
def test_it_gives_what_keras_gives(mask_zero):
    layer, keras_layer = (
        made(mask_zero=mask_zero),
        keras.layers.Embedding(10, 4, mask_zero=mask_zero),
    )
    keras_layer.build()
    keras_layer.set_weights([table()])
    ours, theirs = layer(PADDED), keras_layer(PADDED)
    np.testing.assert_array_equal(ours, theirs)
    masks = [getattr(each, "_keras_mask", None) for each in (ours, theirs)]
    assert (masks[0] is None) == (masks[1] is None) == (not mask_zero)
    if mask_zero:
        np.testing.assert_array_equal(*masks)
    of_ours, are_rows = gradient(lambda: layer(PADDED), layer.embeddings.value)
    of_keras, _ = gradient(lambda: keras_layer(PADDED), keras_layer.embeddings.value)
    np.testing.assert_allclose(of_ours, of_keras, rtol=1e-6)
    assert are_rows


def test_ids_of_any_shape_and_integer():
    layer = made()
    assert layer(tf.constant(3)).shape == [4]
    assert layer(np.zeros((2, 0), np.uint8)).shape == [2, 0, 4]
    rows = layer(RAGGED)
    assert rows.shape.as_list() == [3, None, 4]
    np.testing.assert_array_equal(rows.flat_values, table()[RAGGED.flat_values])


@pytest.mark.parametrize(
    "name", ["default", "mirrored", "central", "one_device", "bfloat16"]
)
def test_only_the_rows_of_the_batch_are_read(name):
    strategy = {
        "mirrored": lambda: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
        "central": lambda: tf.distribute.experimental.CentralStorageStrategy(
            ["/CPU:0", "/CPU:1"]
        ),
        "one_device": lambda: tf.distribute.OneDeviceStrategy("CPU:0"),
    }.get(name, tf.distribute.get_strategy)()
    policy = "mixed_bfloat16" if name == "bfloat16" else "float32"
    with strategy.scope():
        layer = Embedding(10, 4, dtype=policy)
        layer.build()

    def rows():
        with tf.GradientTape() as tape:
            vectors = layer(PADDED)
            loss = tf.reduce_sum(vectors)
        assert vectors.dtype == layer.compute_dtype
        found = tape.gradient(loss, layer.embeddings.value)
        assert isinstance(found, tf.IndexedSlices)
        assert found.values.dtype == tf.float32
        return found.values

    done = types_of(lambda: strategy.run(rows))
    assert "ResourceGather" in done
    assert "ReadVariableOp" not in done


def test_mixed_precision_adds_up_in_float32():
    value = np.full((10, 4), 1 / 3, np.float32)
    layer = made(10, 4, value=value, combiner="sum", dtype="mixed_float16")
    vectors = layer(tf.zeros([1, 300], tf.int64))
    assert vectors.dtype == tf.float16
    np.testing.assert_array_equal(vectors, np.full((1, 4), 100, np.float16))


def test_floats_are_ids_where_they_know_all_of_them():
    """Keras casts what is given to a model's first layer to the compute dtype."""
    model = keras.Sequential([Embedding(3001, 4, dtype="mixed_float16")])
    with pytest.raises(ge.SpecError, match="keras.Sequential casts .* keras.Input"):
        model(tf.constant([[3000]]))
    first = keras.Input([1], dtype="int64")
    model = keras.Sequential([first, Embedding(3001, 4, dtype="mixed_float16")])
    assert model(tf.constant([[3000]])).shape == [1, 1, 4]
    layer = made()
    np.testing.assert_array_equal(keras.Sequential([layer])(PADDED), layer(PADDED))
    with pytest.raises(tf.errors.InvalidArgumentError, match="no whole numbers"):
        layer(tf.constant([1.5]))


# Bags.


def kinds(ids):
    """The same bags in each kind of input; 0 pads."""
    return {
        "ragged": ids,
        "sparse": ids.to_sparse(),
        "padded": ids.to_tensor(0),
        "masked": ids.to_tensor(-1),
    }


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_a_bag_is_what_tensorflow_makes_of_it(combiner, weighted):
    variable = tf.Variable(table())

    def theirs():
        weights = WEIGHTS.to_sparse() if weighted else None
        return (
            tf.nn.safe_embedding_lookup_sparse(
                variable, RAGGED.to_sparse(), weights, combiner
            )
            if not weighted
            else tf.nn.embedding_lookup_sparse(
                variable, RAGGED.to_sparse(), weights, combiner
            )
        )

    expected, (slope, _) = theirs(), gradient(theirs, variable)
    for kind, ids in kinds(RAGGED).items():
        layer = made(
            combiner=combiner,
            mask_zero=kind == "padded",
            oov="zero" if kind == "masked" else "error",
        )
        dense = "zero" if kind in ("padded", "masked") else kind
        weights = {
            "ragged": WEIGHTS,
            "sparse": WEIGHTS.to_sparse(),
            "zero": WEIGHTS.to_tensor(float("nan")),
        }[dense]

        def ours(layer=layer, ids=ids, weights=weights):
            return layer(ids, weights=weights if weighted else None)

        np.testing.assert_allclose(ours(), expected, rtol=1e-6, atol=1e-6)
        mine, are_rows = gradient(ours, layer.embeddings.value)
        np.testing.assert_allclose(mine, slope, rtol=1e-5, atol=1e-6)
        assert are_rows


def test_bags_of_several_dimensions():
    layer = made(combiner="sum")
    ids = tf.constant([[[1, 2], [3, 3]], [[0, 0], [9, 8]]])
    expected = table()[ids.numpy()].sum(axis=2)
    np.testing.assert_allclose(layer(ids), expected, rtol=1e-6)
    np.testing.assert_allclose(
        layer(tf.sparse.from_dense(ids + 1 - 1)),
        [[expected[0, 0], expected[0, 1]], [np.zeros(4), expected[1, 1]]],
        rtol=1e-6,
    )
    nested = tf.RaggedTensor.from_row_lengths(RAGGED, [2, 0, 1])
    assert layer(nested).shape.as_list() == [3, None, 4]
    np.testing.assert_allclose(layer(nested).flat_values, layer(RAGGED))
    uniform = tf.RaggedTensor.from_row_lengths(ids[0], [0, 2])
    np.testing.assert_allclose(layer(uniform).flat_values, expected[0])
    # [batch] are bags of one.
    np.testing.assert_allclose(layer(ids[0, 0]), table()[[1, 2]])


def test_weights_of_0_have_a_gradient():
    layer = made(combiner="sqrtn")
    weights = tf.Variable([[0.0, 0.0], [1.0, 2.0]])
    slope, _ = gradient(lambda: layer(PADDED[:2, :2], weights=weights), weights)
    assert np.isfinite(slope).all()


def test_several_inputs_share_a_table_in_one_gather():
    layer = made(combiner="mean")
    inputs = {
        "ragged": RAGGED,
        "id": tf.constant([4, 5, 6]),
        "sparse": RAGGED.to_sparse(),
    }
    weights = {"ragged": WEIGHTS, "id": None, "sparse": None}
    together = layer(inputs, weights=weights)
    for key, ids in inputs.items():
        np.testing.assert_allclose(together[key], layer(ids, weights=weights[key]))
    graph = (
        tf.function(lambda: layer(inputs, weights=weights), autograph=False)
        .get_concrete_function()
        .graph
    )
    kinds_of_ops = [op.type for op in graph.get_operations()]
    assert kinds_of_ops.count("ResourceGather") == 1
    slopes = [
        gradient(compute, layer.embeddings.value)[0]
        for compute in (
            lambda: tf.concat([*tf.nest.flatten(layer(inputs))], 0),
            lambda: tf.concat([layer(each) for each in inputs.values()], 0),
        )
    ]
    np.testing.assert_allclose(*slopes, rtol=1e-5, atol=1e-6)
    masked = made(mask_zero=True)([PADDED, PADDED[:, :1]])
    assert [each._keras_mask.shape for each in masked] == [[3, 3], [3, 1]]


def test_a_functional_model_of_each_kind():
    inputs = [
        keras.Input([None], dtype="int64", ragged=True),
        keras.Input([3], dtype="int64", sparse=True),
        keras.Input([3], dtype="int64"),
    ]
    layer = Embedding(10, 4, combiner="mean")
    outputs = keras.layers.concatenate([layer(each) for each in inputs])
    assert outputs.shape == (None, 12)
    model = keras.Model(inputs, keras.layers.Dense(2)(outputs))
    given = [RAGGED, RAGGED.to_sparse(), PADDED]
    again = keras.Model.from_config(model.get_config())
    again.set_weights(model.get_weights())
    np.testing.assert_allclose(model(given), again(given))


# Ids that have no row.


@pytest.mark.parametrize("ids", [[[3, -7]], [[10, 2]]])
def test_an_id_out_of_range_is_named(ids):
    layer = made(name="words")
    bad = next(str(i) for i in ids[0] if not 0 <= i < 10)
    for call in (layer, tf.function(layer)):
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            call(tf.constant(ids))
        text = str(caught.value)
        assert f"Embedding words is given the id] [{bad}] [and knows 0 to 9" in text


def test_unknown_ids_are_zero():
    layer = made(oov="zero")
    vectors = layer(tf.constant([3, -1, 10]))
    np.testing.assert_array_equal(vectors, [table()[3], np.zeros(4), np.zeros(4)])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant([3, -1, 10])))
    rows = tape.gradient(loss, layer.embeddings.value)
    # Row 0 was in no batch.
    assert rows.indices.numpy().tolist() == [3, 3, 3]


def splitmix(number):
    """The finalizer, in Python's own whole numbers."""
    number &= 2**64 - 1
    for shift, factor in (30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1):
        number = ((number ^ (number >> shift)) * factor) & (2**64 - 1)
    return number - 2**64 * (number >> 63)


def test_unknown_ids_share_rows_by_hash():
    layer = made(oov="hash", num_oov_buckets=3)
    assert layer.embeddings.shape == [13, 4]
    ids = [4, -1, 10, 11, 12345678901, -(2**63), 2**63 - 1]
    rows = [4, *(10 + splitmix(i) % 3 for i in ids[1:])]
    assert len(set(rows)) == 4
    np.testing.assert_array_equal(layer(tf.constant(ids, tf.int64)), table(13)[rows])


# Arguments.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_dim": 0}, "input_dim=0: write a positive number"),
        ({"output_dim": 1.5}, "output_dim=1.5"),
        ({"input_dim": True}, "input_dim=True"),
        ({"combiner": "max"}, "combiner='max': write one of"),
        ({"oov": "drop"}, "oov='drop': write one of"),
        ({"num_oov_buckets": 2}, "num_oov_buckets=2: write oov='hash', too"),
        ({"oov": "hash", "num_oov_buckets": 0}, "num_oov_buckets=0"),
    ],
)
def test_arguments_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        Embedding(**{"input_dim": 10, "output_dim": 4, **options})


@pytest.mark.parametrize(
    ("ids", "options", "message"),
    [
        (tf.constant([1.0]), {"oov": "hash"}, "float32 for ids, .* tf.cast"),
        (tf.constant([True]), {}, "bool for ids"),
        (tf.constant(["a"]), {}, "given strings: turn words into ids"),
        (RAGGED.to_sparse(), {}, "sparse ids, and combiner is None"),
        (RAGGED, {"weights": WEIGHTS}, "weights, and combiner is None"),
        (RAGGED, {"weights": PADDED, "combiner": "sum"}, "of the ids' kind and"),
        (PADDED, {"weights": PADDED[:2], "combiner": "sum"}, "of the ids' kind and"),
        ({"a": RAGGED}, {"weights": {"b": WEIGHTS}, "combiner": "sum"}, "same keys"),
        (tf.constant(1), {"combiner": "sum"}, "the dimensions of"),
        (tf.sparse.from_dense([1]), {"combiner": "sum"}, "the dimensions of"),
    ],
)
def test_inputs_are_checked(ids, options, message):
    weights = options.pop("weights", None)
    with pytest.raises(ge.SpecError, match=message):
        made(**options)(ids, weights=weights)


def test_weights_of_other_bags_are_refused():
    layer = made(combiner="sum")
    other = tf.ragged.constant([[0.5], [2.0, 1.0, 1.0], []])
    for ids, weights in (RAGGED, other), (RAGGED.to_sparse(), other.to_sparse()):
        with pytest.raises(tf.errors.InvalidArgumentError, match="weights need the"):
            layer(ids, weights=weights)


def test_gin_gives_its_arguments(fresh_gin):
    gin.parse_config("Embedding.output_dim = 3\nEmbedding.combiner = 'mean'")
    layer = Embedding(10)
    assert layer(PADDED).shape == [3, 3]
    assert ShardedEmbedding(10, 4).combiner is None
