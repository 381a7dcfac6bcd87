"""Where a training continues in its data: after the last example that it was trained on."""

import functools
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import gin_estimator as ge
from data.reads import Reads
from gin_estimator.servers import worker_input
from small import strategy

pytestmark = pytest.mark.oldest


@pytest.fixture(autouse=True)
def no_warnings_of_retracing(caplog):
    yield
    assert "triggered tf.function retracing" not in caplog.text


@pytest.fixture
def reads(tmp_path):
    return Reads(tmp_path / "run")


def numbers(start, stop, size=1, change=lambda data: data):
    return lambda: change(tf.data.Dataset.range(start, stop)).batch(size)


def in_python(data):
    return data.map(lambda i: tf.ensure_shape(tf.numpy_function(lambda j: j, [i], tf.int64), []))


def test_steps_count_from_here_and_begin_another_pass(reads, caplog):
    """The rest of the pass of an earlier training does not limit the number of steps."""
    caplog.set_level("INFO", "absl")
    assert reads(numbers(0, 8), steps=5) == [0, 1, 2, 3, 4]
    assert reads(numbers(0, 8), steps=5) == [5, 6, 7, 0, 1]
    assert "resumed from step 5 of" in caplog.text
    assert "input at example 5 of pass 1" in caplog.text
    assert reads(numbers(0, 8), steps=1) == [2]
    assert "input at example 2 of pass 2" in caplog.text


@pytest.mark.thin
@pytest.mark.parametrize("change", [lambda data: data, in_python], ids=["saved", "skipped"])
def test_a_run_ends_with_its_data_and_a_later_one_begins_another_pass(reads, change):
    input_fn = numbers(0, 5, change=change)
    assert reads(input_fn, max_steps=3) == [0, 1, 2]
    assert reads(input_fn, max_steps=9) == [3, 4]
    assert reads.estimator.last_run.stop_reason == "the input ended"
    assert reads(input_fn, max_steps=7) == [0, 1]
    assert reads(input_fn) == [2, 3, 4]
    assert reads(input_fn) == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_each_pass_has_an_order_of_its_own_which_a_restart_repeats(tmp_path):
    def input_fn():
        start = np.random.randint(1000) * 100
        return tf.data.Dataset.range(start, start + 6).shuffle(6).batch(1)

    whole = Reads(tmp_path / "whole")
    expected = whole(input_fn, steps=2, tf_random_seed=3) + whole(
        input_fn, steps=9, tf_random_seed=3
    )
    passes = expected[:6], expected[6:]
    assert (
        len({row // 100 for row in passes[0]}) == 1 and passes[0][0] // 100 != passes[1][0] // 100
    )
    assert sorted(row % 100 for row in passes[0]) == list(range(6))
    cut = Reads(tmp_path / "cut")
    parts = [cut(input_fn, steps=steps, tf_random_seed=3) for steps in (2, 1, 5, 3)]
    assert sum(parts, []) == expected
    # Without a seed each model_dir has its own order, and a moved one keeps it.
    tf.random.set_seed(None)  # An earlier test may have set one.
    other = Reads(tmp_path / "other")
    first = other(input_fn, steps=3)
    (tmp_path / "other").rename(tmp_path / "moved")
    rest = Reads(tmp_path / "moved")(input_fn, steps=3)
    assert sorted(row % 100 for row in first + rest) == list(range(6))
    assert len({row // 100 for row in first + rest}) == 1
    assert first[0] // 100 != expected[0] // 100


def test_a_damaged_position_is_reached_by_reading(reads, caplog):
    input_fn = numbers(0, 20, change=lambda data: data.shuffle(20))
    rows = reads(input_fn, steps=3)
    for file in tf.io.gfile.glob(f"{reads.model_dir}/input/*.index"):
        tf.io.gfile.remove(file)
    rows += reads(input_fn, max_steps=20)
    assert sorted(rows) == [*range(20)]
    assert "cannot be restored" in caplog.text


@pytest.mark.thin
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (in_python, "has a state: PyFunc"),
        (lambda data: data.cache(), "CacheDataset is not saved exactly"),
        (lambda data: data.shuffle(9).batch(1).repeat().unbatch(), "UnbatchDataset is not saved"),
        (lambda data: data.shuffle(9).map(abs).repeat(), r"use shuffle\(...\).repeat\(\)"),
    ],
)
def test_the_cause_of_reading_again_is_logged(reads, caplog, change, reason):
    reads(numbers(0, 20, change=change), steps=2)
    rows = reads(numbers(0, 20, change=change), steps=1)
    assert len(rows) == 1
    found = [text for text in caplog.messages if "reading 2 examples again" in text]
    assert len(found) == 1 and re.search(reason, found[0])


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        pytest.param({"size": 4}, {"size": 2}, [12, 13, 14, 15], marks=pytest.mark.slow),
        # 6 examples are a batch of 4 and a half: the rest of it is left out.
        ({"size": 2}, {"size": 4}, [8, 9, 10, 11, 12, 13, 14, 15]),
        ({"size": 2, "change": in_python}, {"size": 3, "change": in_python}, list(range(6, 12))),
    ],
    ids=["smaller", "larger", "python"],
)
def test_examples_are_counted_not_batches(reads, before, now, expected):
    reads(numbers(0, 40, **before), steps=3)
    assert reads(numbers(0, 40, **now), steps=2) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [lambda data: data, in_python],
    ids=["saved", "skipped"],
)
def test_micro_batches_and_replicas_may_change(reads, change):
    input_fn = numbers(0, 40, 2, change)
    assert reads(input_fn, steps=3) == [0, 1, 2, 3, 4, 5]
    assert reads(input_fn, steps=1, gradient_accumulation_steps=2) == [6, 7, 8, 9]
    mirrored = strategy("mirrored 2")
    assert sorted(reads(input_fn, steps=1, train_distribute=mirrored)) == [10, 11]

    def of_replicas(input_context):
        return numbers(0, 40, input_context.get_per_replica_batch_size(4), change)()

    assert sorted(reads(of_replicas, steps=1, train_distribute=mirrored)) == [12, 13, 14, 15]
    assert reads(input_fn, steps=1) == [16, 17]


def test_first_batch(reads):
    calls = []

    def input_fn(first_batch, size=2, stop=12):
        calls.append(first_batch)
        return tf.data.Dataset.range(stop).batch(size).skip(first_batch)

    assert reads(input_fn, steps=2) == [0, 1, 2, 3]
    assert reads(input_fn, steps=1, gradient_accumulation_steps=2) == [4, 5, 6, 7]
    assert calls[-1] == 2
    # Four batches of 2 were read: they are three batches of 3, of which one began.
    smaller = functools.partial(input_fn, size=3)
    assert reads(smaller, steps=1) == [9, 10, 11]
    assert calls[-1] == 3
    assert reads(smaller, steps=1) == [0, 1, 2]
    assert calls[-1] == 0
    assert not list(tf.io.gfile.glob(f"{reads.model_dir}/input/*.index"))


@pytest.mark.slow
def test_other_data_begin_at_their_start(reads, caplog):
    a, b = numbers(0, 20), numbers(100, 120, change=lambda data: data.shuffle(20))
    reads(a, steps=6)
    assert min(reads(b, steps=3)) >= 100
    assert "The input has other data" in caplog.text
    assert reads(a, steps=2) == [0, 1]
    caplog.clear()
    assert reads(numbers(0, 20, change=lambda data: data.map(lambda i: i * 10)), steps=2) == [
        20,
        30,
    ]
    assert "same data in another pipeline" in caplog.text

    def of_array(start):
        return tf.data.Dataset.from_tensor_slices(np.arange(start, start + 9)).batch(1)

    assert reads(functools.partial(of_array, 0), steps=3) == [0, 1, 2]
    assert reads(functools.partial(of_array, 0), steps=1) == [3]
    assert reads(functools.partial(of_array, 50), steps=2) == [50, 51]

    def of_large_array(start):  # More than 64 MiB are compared by their edges.
        rows = np.repeat(np.arange(start, start + 9), 1_000_000).reshape(9, -1)
        return tf.data.Dataset.from_tensor_slices(rows).map(lambda row: row[0]).batch(1)

    assert reads(functools.partial(of_large_array, 0), steps=2) == [0, 1]
    assert reads(functools.partial(of_large_array, 0), steps=1) == [2]
    assert reads(functools.partial(of_large_array, 9), steps=1) == [9]


@pytest.mark.slow
def test_changed_input_chooses(reads, caplog):
    reads(numbers(0, 20), steps=3)
    other = numbers(100, 120)
    with pytest.raises(ge.UserError, match="other data than .*set 'auto', 'restart' .* or 'skip'"):
        reads(other, steps=2, changed_input="error")
    assert reads(other, steps=2, changed_input="skip") == [103, 104]
    repeated = numbers(100, 120, change=lambda data: data.repeat())
    with pytest.raises(ge.errors.UserValueError, match="the same data in another pipeline"):
        reads(repeated, steps=2, changed_input="error")
    assert reads(repeated, steps=2, changed_input="restart") == [100, 101]
    assert "RunConfig.changed_input is 'restart'" in caplog.text
    assert reads(repeated, steps=1, changed_input="error") == [102]


def test_without_checkpoints_an_estimator_continues_too(reads):
    estimator = reads.make(save_checkpoints_steps=0)
    for _ in range(3):
        estimator.train(numbers(0, 4), steps=3)
    assert [rows[0] for _, rows in reads.modes] == [0, 1, 2, 3, 0, 1, 2, 3, 0]


def test_an_evaluation_does_not_rewind_the_training_input(reads):
    estimator = reads.make(save_checkpoints_steps=2)
    train = ge.TrainSpec(numbers(0, 40), max_steps=6)
    ge.train_and_evaluate(estimator, train, ge.EvalSpec(numbers(50, 53), throttle_secs=0))
    assert [row for mode, rows in reads.modes if mode == "train" for row in rows] == [*range(6)]
    assert [row for mode, rows in reads.modes if mode == "eval" for row in rows] == [50, 51, 52] * 3


def test_empty_and_endless_inputs_are_refused(reads):
    empty = [
        numbers(0, 0),
        numbers(0, 3, change=lambda data: data.filter(lambda i: i > 5)),
        lambda: tf.data.Dataset.range(3).batch(4, drop_remainder=True),
    ]
    for input_fn in empty:
        with pytest.raises(ge.UserError, match="mode 'train', returned an empty dataset.*filter"):
            reads(input_fn, max_steps=3)
    reads(numbers(0, 3))
    for input_fn in empty:
        with pytest.raises(ge.UserError, match="mode 'eval', returned an empty dataset"):
            reads.estimator.evaluate(input_fn)
    with pytest.raises(ge.errors.UserValueError, match="endless.*drop its repeat.*steps=100"):
        reads.estimator.evaluate(numbers(0, 3, change=lambda data: data.repeat()))


def test_data_that_are_too_large_for_parameter_servers_are_refused(monkeypatch):
    """TensorFlow returns no graph of more than 2 GB."""
    monkeypatch.setattr(tf.raw_ops, "DatasetToGraphV2", lambda **_: tf.constant(b""))
    with pytest.raises(ge.errors.UserValueError, match="more than 2 GB in memory.*TFRecordDataset"):
        worker_input._graph_of(tf.data.Dataset.range(3))


def test_a_restart_knows_its_pipeline_of_several_functions(reads):
    def input_fn():
        other = tf.data.Dataset.range(3)  # Moves TensorFlow's counters of names.
        other.map(lambda i: i)
        data = tf.data.Dataset.range(60).map(lambda i: i + 1).filter(lambda i: i > 2)
        return (
            data.map(lambda i: tf.map_fn(lambda j: j * 2, tf.stack([i]))[0])
            .shuffle(2, seed=1)
            .batch(1)
        )

    found = [reads(input_fn, steps=1, changed_input="error")[0] for _ in range(8)]
    assert found == [int(row) for [row] in input_fn().take(8)]
    with pytest.raises(ge.errors.UserValueError, match="the same data in another pipeline"):
        reads(lambda: input_fn().map(lambda i: i + 1), steps=1, changed_input="error")


@pytest.mark.parametrize("program_seed", [None, 3])
def test_seeds_of_the_program_give_the_order_of_plain_tf_data(tmp_path, program_seed):
    def input_fn(seed=1):
        return tf.data.Dataset.range(20).shuffle(20, seed=seed).batch(1)

    def plain(seed=1):
        return [int(row) for [row] in input_fn(seed)]

    try:
        if program_seed is not None:
            keras.utils.set_random_seed(program_seed)
            unseeded = plain(None)
            keras.utils.set_random_seed(program_seed)
            assert Reads(tmp_path / "unseeded")(lambda: input_fn(None)) == unseeded
        reads = Reads(tmp_path / "a")
        assert reads(input_fn, steps=5) + reads(input_fn, steps=15) == plain()
        assert reads(input_fn) != plain()  # Another pass.
        assert Reads(tmp_path / "b")(input_fn) == plain()
    finally:
        tf.random.set_seed(None)


def test_a_checkpoint_that_a_kill_left_unlisted_is_deleted_in_turn(reads, tmp_path):
    config = {"save_checkpoints_steps": 1, "keep_checkpoint_max": 2}
    reads(numbers(0, 20), steps=3, **config)
    folder = tmp_path / "run"
    listed = (folder / "checkpoint").read_text()
    reads(numbers(0, 20), steps=1, **config)
    (folder / "checkpoint").write_text(listed)  # As a kill before this write would leave it.
    (folder / f"checkpoint.{'a' * 32}.tmp").write_text("")
    reads(numbers(0, 20), steps=3, **config)
    kept = sorted(path.stem for path in folder.glob("model.ckpt-*.index"))
    assert kept == ["model.ckpt-6", "model.ckpt-7"]
    assert not [*folder.glob("*.tmp")]
