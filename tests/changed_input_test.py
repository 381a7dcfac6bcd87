"""Trainings of one model_dir whose input is another one, or is treated otherwise."""

import functools
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge


class Readings:
    """An Estimator of one model_dir that keeps what its steps have read."""

    def __init__(self, model_dir):
        self._model_dir = str(model_dir)
        self._read = []

    def __call__(self, input_fn, *, steps=None, **options):
        """What another run reads.

        Args:
          input_fn: of int64 batches.
          steps: how many; None for all there are.
          **options: fields of `RunConfig`.
        """
        estimator = ge.Estimator(
            self._model_fn,
            modules={
                "weight": lambda: tf.Variable(0.0),
                "optimizer": lambda: keras.optimizers.SGD(0.0),
            },
            config=ge.RunConfig(
                model_dir=self._model_dir,
                save_summary_steps=None,
                log_step_count_steps=None,
                async_checkpoint=False,
                **options,
            ),
        )
        self._read.clear()
        estimator.train(input_fn, steps=steps)
        return list(self._read)

    def _model_fn(self, features, mode, weight, optimizer):
        def note(rows):
            self._read.extend(rows.tolist())
            return rows

        rows = tf.numpy_function(note, [features], tf.int64)
        rows = tf.ensure_shape(rows, features.shape)
        return ge.EstimatorSpec(
            mode,
            loss=tf.cast(rows, tf.float32) * weight,
            train_op=ge.TrainOp(optimizer, [weight]),
        )


@pytest.fixture
def reads(tmp_path):
    return Readings(tmp_path)


def numbers(start, stop, size=1, change=lambda data: data):
    return lambda: change(tf.data.Dataset.range(start, stop)).batch(size)


def test_other_data_are_read_from_their_beginning(reads, caplog):
    a, b = numbers(0, 20), numbers(100, 120)
    assert reads(a, steps=6) == [0, 1, 2, 3, 4, 5]
    assert reads(a, steps=2) == [6, 7]
    assert "not the one" not in caplog.text
    assert reads(b, steps=3) == [100, 101, 102]
    assert "had read: range: start 0 -> 100; range: stop 20 -> 120. It begins" in (
        caplog.text
    )
    assert reads(a, steps=2) == [0, 1]
    assert reads(numbers(30, 34)) == [30, 31, 32, 33]


def test_a_buffer_of_other_data_is_not_read(reads):
    a, b = (
        numbers(start, start + 20, change=lambda data: data.shuffle(20))
        for start in (0, 100)
    )
    reads(a, steps=6)
    assert min(reads(b, steps=6)) >= 100


def test_mended_data_go_on_where_they_were(reads, caplog):
    def scaled(factor):
        return numbers(0, 20, change=lambda data: data.map(lambda i: i * factor))

    assert reads(scaled(1), steps=3) == [0, 1, 2]
    assert reads(scaled(10), steps=3) == [30, 40, 50]
    assert "another function: map_lambda. It goes on after the 3 batches" in caplog.text


def test_closed_over_values_and_arguments_make_another_input(reads):
    def input_fn(start):
        values = np.arange(start, start + 9, dtype=np.int64)
        return tf.data.Dataset.from_tensor_slices(values).batch(1)

    assert reads(functools.partial(input_fn, 0), steps=3) == [0, 1, 2]
    assert reads(functools.partial(input_fn, 0), steps=1) == [3]
    assert reads(functools.partial(input_fn, 50), steps=2) == [50, 51]


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({"size": 4}, {"size": 2}, [12, 13, 14, 15]),
        # 6 examples are one batch of 4 and a half: that half is left out.
        ({"size": 2}, {"size": 4}, [8, 9, 10, 11, 12, 13, 14, 15]),
    ],
    ids=str,
)
def test_examples_are_counted_not_batches(reads, before, now, expected):
    reads(numbers(0, 40, **before), steps=3)
    assert reads(numbers(0, 40, **now), steps=2) == expected


@pytest.mark.parametrize("savable", [True, False])
def test_micro_batches_may_change(reads, savable):
    def change(data):
        return data if savable else data.map(in_python)

    def in_python(number):
        return tf.ensure_shape(tf.numpy_function(lambda i: i, [number], tf.int64), [])

    input_fn = numbers(0, 40, 2, change)
    assert reads(input_fn, steps=3) == [0, 1, 2, 3, 4, 5]
    more = {"gradient_accumulation_steps": 2}
    assert reads(input_fn, steps=1, **more) == [6, 7, 8, 9]
    assert reads(input_fn, steps=1) == [10, 11]


def test_what_starts_anywhere_is_called_by_the_same_rule(reads):
    def input_fn(first_batch, start):
        return tf.data.Dataset.range(start, start + 9).batch(1).skip(first_batch)

    assert reads(functools.partial(input_fn, start=0), steps=3) == [0, 1, 2]
    assert reads(functools.partial(input_fn, start=0), steps=2) == [3, 4]
    assert reads(functools.partial(input_fn, start=50), steps=2) == [50, 51]


def test_changed_input_chooses(reads):
    reads(numbers(0, 20), steps=3)
    other = numbers(100, 120)
    with pytest.raises(ValueError) as error:
        reads(other, steps=2, changed_input="error")
    assert "start 0 -> 100; range: stop 20 -> 120. Write RunConfig(changed_inp" in str(
        error.value
    )
    assert reads(other, steps=2, changed_input="skip") == [103, 104]
    treated = numbers(100, 120, change=lambda data: data.repeat())
    assert reads(treated, steps=2, changed_input="anew") == [100, 101]


def test_positions_that_say_nothing_of_the_input_are_restored(reads, tmp_path, log):
    input_fn = numbers(0, 20, change=lambda data: data.shuffle(20, seed=1))
    whole = reads(input_fn, steps=3)
    for record in (tmp_path / "input").glob("*.json"):
        record.unlink()
    whole += reads(input_fn)
    assert sorted(whole) == list(range(20))
    assert any("nothing says which input" in line for line in log())


def test_a_damaged_record_is_named(reads, tmp_path, caplog):
    reads(numbers(0, 20), steps=3)
    for record in (tmp_path / "input").glob("*.json"):
        record.write_text('{"read": ')
    with caplog.at_level(logging.WARNING):
        assert reads(numbers(0, 20), steps=2) == [3, 4]
    assert "which says which input was read, is damaged" in caplog.text


def test_what_fails_while_it_is_read_over_is_told_in_few_lines(reads):
    broken = False

    def number_of(i):
        if broken and i == 1:
            raise OSError("no such disk")
        return i

    def change(data):
        return data.map(
            lambda i: tf.ensure_shape(tf.numpy_function(number_of, [i], tf.int64), [])
        )

    reads(numbers(0, 9, change=change), steps=3)
    broken = True
    with pytest.raises(RuntimeError) as error:
        reads(numbers(0, 9, change=change), steps=1, changed_input="skip")
    assert "the input failed in reading over 3 batches" in str(error.value)
    assert "no such disk" in str(error.value)


def test_what_was_chosen_is_said(reads, caplog):
    reads(numbers(0, 20), steps=3)
    assert reads(numbers(100, 120), steps=2, changed_input="anew") == [100, 101]
    assert "It begins anew, as changed_input='anew' has it." in caplog.text
    assert reads(numbers(200, 220), steps=1, changed_input="skip") == [202]
    assert "in each run, as changed_input='skip' has it." in caplog.text
    assert "would" not in caplog.text
