"""Updates of the rows that a batch uses, against updates of whole tables."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline import EstimatorSpec, SpecError, TrainOp
from pipeline.rows import optimizers
from pipeline.rows.optimizers import RowOptimizer
from pipeline.tracing import graph_defs
from tests.step_trainer import Trainer

K = keras.optimizers
IDS, WIDTH, ROWS, STEPS = 11, 3, 6, 50
_RNG = np.random.default_rng(0)
# Every id repeats, in a batch and over the steps; the last one never comes.
BAGS = _RNG.integers(0, IDS - 1, size=(STEPS, ROWS, 4))
WEIGHTS = _RNG.uniform(0.5, 2, size=(STEPS, ROWS)).astype(np.float32)
TABLE = _RNG.normal(size=(IDS, WIDTH)).astype(np.float32)
DIRECTION = tf.constant(_RNG.normal(size=WIDTH), tf.float32)
DECAYING = K.schedules.PiecewiseConstantDecay([20], [0.1, 0.05])
# What moves rows alone, and gives what moving whole tables gives.
EXACT = {
    "sgd": lambda: K.SGD(0.02),
    "sgd_decay": lambda: K.SGD(0.02, weight_decay=0.01),
    "adagrad": lambda: K.Adagrad(0.05, global_clipnorm=0.5),
    "adagrad_0": lambda: K.Adagrad(
        0.05, initial_accumulator_value=0.05, epsilon=0.01, clipvalue=0.3
    ),
    "ftrl": lambda: K.Ftrl(0.05),
    "ftrl_all": lambda: K.Ftrl(
        DECAYING,
        learning_rate_power=-0.7,
        l1_regularization_strength=0.01,
        l2_regularization_strength=0.02,
        beta=0.1,
        clipnorm=0.5,
    ),
    # What moves whole tables, as it did.
    "ftrl_shrunk": lambda: K.Ftrl(0.05, l2_shrinkage_regularization_strength=0.01),
    "ftrl_decay": lambda: K.Ftrl(0.05, weight_decay=0.05),
    "ftrl_written": lambda: K.Ftrl(0.05, use_ema=True, ema_overwrite_frequency=5),
    "adam": lambda: K.Adam(0.01),
}
ROW_BY_ROW = {name: EXACT[name] for name in ("sgd", "adagrad", "ftrl_all")}
CUTS = {
    "whole": [[(0, 6)]],
    "both": [[(0, 1), (1, 4)], [(4, 5), (5, 6)]],
}


def gathered(table, bags):
    return tf.gather(table, bags)


def multiplied(table, bags):
    """The same, with a gradient that is dense."""
    return tf.tensordot(tf.one_hot(bags, IDS), table, 1)


def trainer_of(made, look_up, *, cut="whole", precision="float32", **options):
    """A table for each optimizer, and one loss.

    Args:
      made: optimizers' factories by name.
      look_up: vectors of a table's ids.
      cut: how the batch is cut into replicas and micro-batches.
      precision: dtype policy.
      **options: fields of the train ops.
    """

    def model_fn(features, labels, mode, **modules):
        loss, ops = 0.0, []
        for name in made:
            table = modules[f"{name}_table"]
            vectors = tf.reduce_sum(look_up(table, features), 1)
            loss += tf.square(tf.linalg.matvec(vectors, DIRECTION) - 1)
            ops.append(TrainOp(modules[name], [table], **options))
        return EstimatorSpec(mode, loss=loss, loss_weights=labels, train_op=ops)

    return Trainer(
        model_fn,
        replicas=len(CUTS[cut]),
        precision=precision,
        features=tf.TensorSpec([None, 4], tf.int64),
        labels=tf.TensorSpec([None]),
        **made,
        **{f"{n}_table": lambda: tf.Variable(TABLE) for n in made},
    )


def batches(step, cut):
    given = BAGS[step], WEIGHTS[step]
    return [[tuple(x[i:j] for x in given) for i, j in r] for r in CUTS[cut]]


def trained(made, look_up, *, cut="whole", **options):
    """The tables after all steps, by the names of the optimizers."""
    trainer = trainer_of(made, look_up, cut=cut, **options)
    for step in range(STEPS):
        trainer.step(*batches(step, cut))
    return {name: trainer[f"{name}_table"].numpy() for name in made}


@pytest.fixture(scope="module")
def dense():
    return {
        None: trained(EXACT, multiplied),
        0.7: trained(ROW_BY_ROW, multiplied, clip_norm=0.7),
    }


@pytest.mark.parametrize(
    ("names", "options"),
    [
        (EXACT, {}),
        (ROW_BY_ROW, {"cut": "both"}),
        (
            ROW_BY_ROW,
            {"cut": "both", "clip_norm": 0.7, "precision": "mixed_float16"},
        ),
    ],
)
def test_rows_move_as_whole_tables_do(dense, names, options):
    found = trained({name: EXACT[name] for name in names}, gathered, **options)
    for name in names:
        table = dense[options.get("clip_norm")][name]
        np.testing.assert_allclose(
            found[name], table, rtol=1e-6, atol=1e-6, err_msg=name
        )


def nodes_of_tables(names, cut):
    """The kinds of operations of a step that have a whole table as a result."""
    trainer = trainer_of({name: EXACT[name] for name in names}, gathered, cut=cut)
    graph = trainer.graph(batches(0, cut)).as_graph_def(add_shapes=True)
    return {
        node.op
        for node in graph_defs.nodes(graph)
        for shape in node.attr["_output_shapes"].list.shape
        if [d.size for d in shape.dim] == [IDS, WIDTH]
    }


@pytest.mark.parametrize("cut", CUTS)
def test_a_step_reads_and_makes_no_whole_table(cut):
    assert not nodes_of_tables(["sgd", "adagrad", "adagrad_0", "ftrl"], cut)


def test_whole_tables_are_found_where_they_are():
    assert "ReadVariableOp" in nodes_of_tables(["adam"], "whole")


LAZY = {
    "SGD": lambda: K.SGD(0.1, momentum=0.9, nesterov=True),
    "Adagrad": lambda: K.Adagrad(0.1, weight_decay=0.1),
    "Ftrl": lambda: K.Ftrl(0.1, l2_shrinkage_regularization_strength=0.1),
    "Adam": lambda: K.Adam(0.1, amsgrad=True),
    "AdamW": lambda: K.AdamW(0.1, clipnorm=1.0),
    "RMSprop": lambda: K.RMSprop(0.1, momentum=0.5, centered=True),
    "Nadam": lambda: K.Nadam(0.1),
    "Adamax": lambda: K.Adamax(0.1),
    "Lion": lambda: K.Lion(0.1),
    "Adadelta": lambda: K.Adadelta(0.1),
}


def state(optimizer, variable):
    slots = [v.numpy() for v in optimizer.variables if v.shape == variable.shape]
    return [variable.numpy(), *slots]


@pytest.mark.parametrize("name", LAZY)
def test_lazy_rows_move_as_by_the_dense_gradient_and_others_stay(name):
    gradient = np.float32([[1, -2], [3, 0.5], [0.1, 0.2]])
    used = np.float32([[1], [0], [1]])
    states = []
    for lazy in (True, False):
        variable = keras.Variable(np.float32([[1, 2], [3, 4], [5, 6]]))
        optimizer = LAZY[name]()
        optimizer.build([variable])
        op = TrainOp(optimizer, [variable], lazy=lazy)
        rows = RowOptimizer([op], tf.distribute.get_strategy())
        rows.apply([tf.constant(gradient)], [variable])
        states.append(state(optimizer, variable))
        after = tf.constant(gradient * used)
        if lazy:
            after = tf.IndexedSlices(tf.gather(after, [2, 0]), [2, 0], [3, 2])
        rows.apply([after], [variable])
        states.append(state(optimizer, variable))
    between, lazily, _, densely = states
    for before, after, wanted in zip(between, lazily, densely, strict=True):
        np.testing.assert_allclose(after[[0, 2]], wanted[[0, 2]], rtol=1e-6)
        np.testing.assert_array_equal(after[1], before[1])


def test_lazy_is_refused_where_rows_depend_on_each_other():
    variable, same = tf.Variable([[1.0]]), tf.distribute.get_strategy()
    with pytest.raises(SpecError, match="lazy is True, and Lamb .* choose one of SGD"):
        RowOptimizer([TrainOp(K.Lamb(), [variable], lazy=True)], same)
    with pytest.raises(SpecError, match="loss_scale_factor, .* leave it out"):
        scaled = K.Adam(loss_scale_factor=2.0)
        RowOptimizer([TrainOp(scaled, [variable], lazy=True)], same)
    adam = K.Adam(name="both")
    ops = [TrainOp(adam, [variable], lazy=lazy) for lazy in (True, False)]
    with pytest.raises(SpecError, match="True and False in ops of one .* both"):
        RowOptimizer(ops, same)


@pytest.mark.parametrize(
    ("optimizer", "why"),
    [
        (lambda: K.Adam(), "Adam moves"),
        (lambda: K.SGD(0.1, weight_decay=0.1), "weight decay"),
        (lambda: K.Ftrl(DECAYING), "schedule"),
        (lambda: K.Ftrl(0.1), None),
    ],
)
def test_the_cost_of_a_large_table_is_said_once(optimizer, why, caplog, monkeypatch):
    monkeypatch.setattr(optimizers, "_LARGE_BYTES", 10)
    table, optimizer = tf.Variable(tf.ones([5, 2]), name="words"), optimizer()
    optimizer.build([table])
    same = tf.distribute.get_strategy()
    rows = RowOptimizer([TrainOp(optimizer, [table])], same)
    slices = tf.IndexedSlices(tf.ones([1, 2]), [3], [5, 2])
    for _ in range(2):
        rows.apply([slices], [table])
    said = [r.getMessage() for r in caplog.records if "all 5 rows" in r.getMessage()]
    assert len(said) == bool(why)
    assert not why or (why in said[0] and "words" in said[0])


@pytest.mark.parametrize("where", ["op", "optimizer"])
def test_a_norm_over_tables_of_several_dtypes(where):
    clip = {"clip_norm": 0.5} if where == "op" else {}

    def model_fn(features, labels, mode, optimizer, wide, half):
        rows = [tf.gather(table, features[:, 0]) for table in (wide, half)]
        loss = sum(tf.reduce_sum(tf.cast(r, tf.float32), -1) for r in rows)
        op = TrainOp(optimizer, [wide, half], **clip)
        return EstimatorSpec(mode, loss=loss * labels, train_op=op)

    trainer = Trainer(
        model_fn,
        features=tf.TensorSpec([None, 4], tf.int64),
        labels=tf.TensorSpec([None]),
        optimizer=lambda: K.SGD(1.0, global_clipnorm=None if clip else 0.5),
        wide=lambda: tf.Variable(tf.ones([3, 8])),
        half=lambda: tf.Variable(tf.ones([3, 8], tf.bfloat16)),
    )
    trainer.step([(np.int64([[1] * 4]), np.float32([2]))])
    # Of 16 numbers that are 2 the norm is 8.
    for name in ("wide", "half"):
        moved = tf.cast(trainer[name], tf.float32).numpy()
        np.testing.assert_array_equal(moved[:, 0], [1, 1 - 2 * 0.5 / 8, 1])
