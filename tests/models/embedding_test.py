"""models.Embedding: values, bags, ids without a row, and trainings."""

import gin
import keras
import numpy as np
import pytest
import tensorflow as tf

import gin_estimator as ge
from gin_estimator.models import Embedding
from refusals import refused

ROWS, SIZE = 50, 3
VALUES = np.random.default_rng(0).normal(size=[13, 4]).astype("float32")
RAGGED = tf.ragged.constant([[3, 1, 3], [], [7]], dtype=tf.int64)
WEIGHTS = tf.ragged.constant([[0.5, 2.0, 1.0], [], [3.0]])
PADDED = RAGGED.to_tensor(0)


def make(**options):
    layer = Embedding(10, 4, **options)
    layer.build()
    layer.set_weights([VALUES[: layer.num_rows]])
    return layer


def gradient(fn, variable):
    """Returns the dense gradient of a sum, and whether it was one of rows."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.sin(fn()))
    found = tape.gradient(loss, variable)
    return tf.convert_to_tensor(found), isinstance(found, tf.IndexedSlices)


@pytest.mark.parametrize("mask_zero", [False, True])
def test_it_is_keras_embedding(mask_zero):
    ours, theirs = make(mask_zero=mask_zero), keras.layers.Embedding(10, 4, mask_zero=mask_zero)
    theirs.build()
    theirs.set_weights([VALUES[:10]])
    vectors = ours(PADDED), theirs(PADDED)
    np.testing.assert_array_equal(*vectors)
    if mask_zero:
        np.testing.assert_array_equal(*[each._keras_mask for each in vectors])
    found, are_rows = gradient(lambda: ours(PADDED), ours.embeddings.value)
    expected, _ = gradient(lambda: theirs(PADDED), theirs.embeddings.value)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
    assert are_rows
    again = Embedding.from_config(ours.get_config())
    assert again.get_config() == ours.get_config()
    rows = ours(RAGGED)
    np.testing.assert_array_equal(rows.flat_values, VALUES[RAGGED.flat_values])
    assert ours(tf.constant(3)).shape == [4]


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_bags_are_those_of_tensorflow(combiner):
    variable = tf.Variable(VALUES[:10])
    for weights in (None, WEIGHTS):

        def theirs(weights=weights):
            weights = None if weights is None else weights.to_sparse()
            return tf.nn.safe_embedding_lookup_sparse(
                variable, RAGGED.to_sparse(), weights, combiner
            )

        expected, (slope, _) = theirs(), gradient(theirs, variable)
        nan = float("nan")
        for options, ids, given in (
            ({}, RAGGED, WEIGHTS),
            ({}, RAGGED.to_sparse(), WEIGHTS.to_sparse()),
            ({"mask_zero": True}, PADDED, WEIGHTS.to_tensor(nan)),
            ({"oov": "zero"}, RAGGED.to_tensor(-1), WEIGHTS.to_tensor(nan)),
        ):
            layer = make(combiner=combiner, **options)

            def ours(layer=layer, ids=ids, weights=None if weights is None else given):
                return layer(ids, weights=weights)

            np.testing.assert_allclose(ours(), expected, rtol=1e-6, atol=1e-6)
            mine, are_rows = gradient(ours, layer.embeddings.value)
            np.testing.assert_allclose(mine, slope, rtol=1e-5, atol=1e-6)
            assert are_rows
    np.testing.assert_allclose(make(combiner=combiner)(tf.constant([1, 2])), VALUES[[1, 2]])


def test_ids_out_of_range():
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"words: expected .* An id is\] \[-7\]"
    ):
        make(name="words")(tf.constant([3, -7]))
    zero = make(oov="zero")
    with tf.GradientTape() as tape:
        vectors = zero(tf.constant([3, -1, 10]))
    np.testing.assert_array_equal(vectors, [VALUES[3], np.zeros(4), np.zeros(4)])
    rows = tape.gradient(vectors, zero.embeddings.value).indices
    assert rows.numpy().tolist() == [3, 3, 3]  # Row 0 is in no batch.
    ids = [4, -1, 10, 11, 12345678901, -(2**63), 2**63 - 1]
    expected = [4, *(10 + splitmix(i) % 3 for i in ids[1:])]
    hashed = make(oov="hash", num_oov_buckets=3)(tf.constant(ids, tf.int64))
    np.testing.assert_array_equal(hashed, VALUES[expected])


def splitmix(number):
    """Returns the finalizer of SplitMix64, by Python's integers."""
    number &= 2**64 - 1
    for shift, factor in (30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1):
        number = ((number ^ (number >> shift)) * factor) & (2**64 - 1)
    return number - 2**64 * (number >> 63)


def test_ids_that_are_floats():
    """keras.Sequential casts its input to the compute dtype of its first layer."""
    layer = make()
    np.testing.assert_array_equal(keras.Sequential([layer])(PADDED), layer(PADDED))
    model = keras.Sequential([Embedding(3001, 4, dtype="mixed_float16")])
    with pytest.raises(ge.errors.SpecError, match="keras.Input"):
        model(tf.constant([[3000]]))
    model = keras.Sequential(
        [keras.Input([1], dtype="int64"), Embedding(3001, 4, dtype="mixed_float16")]
    )
    assert model(tf.constant([[3000]])).dtype == tf.float16
    with pytest.raises(tf.errors.InvalidArgumentError, match="no whole numbers"):
        layer(tf.constant([1.5]))


test_wrong_arguments_are_refused = refused(
    lambda options: Embedding(**{"input_dim": 10, "output_dim": 4, **options}),
    ({"input_dim": 0}, "Embedding.input_dim is 0: expected an integer above 0"),
    ({"output_dim": 1.5}, "Embedding.output_dim is 1.5"),
    ({"combiner": "max"}, "Embedding.combiner is 'max': expected one of"),
    ({"oov": "drop"}, "Embedding.oov is 'drop': expected one of"),
    ({"num_oov_buckets": 2}, "Set oov='hash'"),
)


test_wrong_ids_are_refused = refused(
    lambda ids, options, weights: make(**options)(ids, weights=weights),
    (tf.constant([1.0]), {"oov": "hash"}, None, r"ids of float32.*Set tf.cast"),
    (tf.constant(["a"]), {}, None, "ids of string"),
    (RAGGED.to_sparse(), {}, None, "Set combiner='sum'"),
    (RAGGED, {}, WEIGHTS, "Set combiner='sum'"),
    (RAGGED, {"combiner": "sum"}, PADDED, "expected the same kind and shape"),
    (PADDED, {"combiner": "sum"}, PADDED[:2], "expected the same kind and shape"),
    (tf.zeros([2, 2, 2], tf.int64), {"combiner": "sum"}, None, "Reshape them in model_fn"),
)


def test_gin_sets_its_arguments():
    gin.parse_config("Embedding.output_dim = 3\nEmbedding.combiner = 'mean'")
    try:
        assert Embedding(10)(PADDED).shape == [3, 3]
    finally:
        gin.clear_config()


# Trainings.


def ids_data(rows=ROWS):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, rows, size=[100, 2])
    return tf.data.Dataset.from_tensor_slices((ids, (ids.sum(1) % 2).astype("int64"))).batch(24)


def model_fn(features, labels, mode, network, head, optimizer, params):
    graphs.append(tf.compat.v1.get_default_graph())
    logits = head(tf.reshape(network(features), [-1, 2 * SIZE]))
    if mode == ge.ModeKeys.PREDICT:
        return ge.EstimatorSpec(mode, predictions={"logits": logits})
    variables = [*network.trainable_variables, *head.trainable_variables]

    def noted(gradients, variables, step):
        graphs.append(tf.compat.v1.get_default_graph())
        return gradients

    return ge.EstimatorSpec(
        mode,
        loss=keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True),
        train_op=ge.TrainOp(optimizer, variables, gradient_fn=noted, **params),
    )


graphs = []  # In which model_fn and the update were traced, by the last step function at the end.


def estimator_of(model_dir, table=Embedding, *, rows=ROWS, lazy=False, optimizer=None, **config):
    modules = {
        "network": lambda: table(rows, SIZE),
        "head": lambda: keras.layers.Dense(2),
        "optimizer": optimizer or (lambda: keras.optimizers.Adam(0.05)),
    }
    config = ge.RunConfig(str(model_dir), tf_random_seed=1, **config)
    return ge.Estimator(model_fn, modules=modules, config=config, params={"lazy": lazy})


@pytest.mark.slow
def test_it_continues_from_keras_checkpoint_and_is_exported(tmp_path):
    estimator_of(tmp_path, keras.layers.Embedding).train(ids_data, max_steps=3)
    estimator = estimator_of(tmp_path)
    predicted = [each["logits"] for each in estimator.predict(ids_data)]
    before = estimator.get_variable_value("optimizer/momentum/network/embeddings")
    estimator.train(ids_data, max_steps=4)
    after = estimator.get_variable_value("optimizer/momentum/network/embeddings")
    assert before.any() and (before != after).any()
    restored = estimator_of(tmp_path)
    path = restored.export_saved_model(
        str(tmp_path / "export"),
        ge.build_raw_serving_input_receiver_fn(tf.TensorSpec([None, 2], tf.int64)),
        checkpoint_path=str(tmp_path / "model.ckpt-3"),
    )
    serve = tf.saved_model.load(path).signatures["serving_default"]
    ids = np.concatenate([ids for ids, _ in ids_data()])
    served = serve(**{name: ids for name in serve.structured_input_signature[1]})
    np.testing.assert_allclose(served["logits"], predicted, rtol=1e-5, atol=1e-6)


LARGE = 1000


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"devices": ("CPU:0", "CPU:1")},
        pytest.param({"gradient_accumulation_steps": 2}, marks=pytest.mark.slow),
        pytest.param({"precision": "mixed_float16"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_step_reads_and_writes_no_whole_table(tmp_path, config):
    graphs.clear()
    estimator = estimator_of(tmp_path, rows=LARGE, lazy=True, **config)
    estimator.train(lambda: ids_data(LARGE), max_steps=2)
    operations = [each for graph in graphs[-2:] for each in graph.get_operations()]
    assert {"ResourceGather", "ResourceScatterUpdate"} <= {each.type for each in operations}
    shapes = [each.shape for operation in operations for each in operation.outputs]
    assert not [s for s in shapes if s.rank and s[0] == LARGE]


def test_an_id_out_of_range_ends_the_training(tmp_path):
    estimator = estimator_of(tmp_path / "compiled")
    with pytest.raises(ge.errors.StepError, match=r"expected ids from 0 to 49.* An id is 9"):
        estimator.train(lambda: ids_data(2 * ROWS), max_steps=1)


def test_under_xla_it_gives_nan(tmp_path):
    """XLA ignores checks, and reads the last row."""
    estimator = estimator_of(tmp_path, jit_compile=True)
    assert np.isnan(estimator.evaluate(lambda: ids_data(2 * ROWS))["loss"])


def test_updates_of_a_whole_large_table_are_named(tmp_path, caplog):
    rows = 900_000
    estimator = estimator_of(tmp_path, rows=rows, save_checkpoints_steps=0)
    estimator.train(ids_data, max_steps=1)
    [line] = [text for text in caplog.messages if "lazy=True" in text]
    assert f"updates all {rows} rows of embedding" in line and "Adam moves all" in line
