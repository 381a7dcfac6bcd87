"""Windows of text files."""

import numpy as np
import pytest
import tensorflow as tf
from gin_estimator.inputs import standard_library, text_input_fn

import gin_estimator as ge
from gin_estimator import ModeKeys


def test_each_byte_is_a_label_once(tmp_path):
    texts = {"a.txt": b"abcde", "b.txt": b"xy\n", "c.txt": b""}
    for name, text in texts.items():
        (tmp_path / name).write_bytes(text)
    [(x, y)] = text_input_fn(
        ModeKeys.EVAL, eval_files=str(tmp_path / "*.txt"), window=3, batch_size=8
    )
    assert x.numpy().tolist() == [[10, 97, 98], [99, 100, 101], [10, 120, 121]]
    assert y.numpy().tolist() == [[97, 98, 99], [100, 101, -1], [120, 121, 10]]
    assert x.dtype == y.dtype == tf.int32
    found = []
    for index in range(4):
        dataset = text_input_fn(
            ModeKeys.TRAIN,
            tf.distribute.InputContext(4, index, 4),
            train_files=[str(tmp_path / "a.txt"), str(tmp_path / "?.txt")],
            window=2,
            batch_size_per_replica=1,
            num_epochs=1,
        )
        found += [label for _, y in dataset for label in y.numpy().ravel() if label >= 0]
    assert sorted(found) == sorted(b"abcdexy\n")


@pytest.mark.slow
def test_the_standard_library_is_split_by_file():
    train, held_out = standard_library(), standard_library("held_out")
    assert not {*train} & {*held_out}
    assert 5 < len(train) / len(held_out) < 20
    [x] = text_input_fn(ModeKeys.PREDICT, eval_files=held_out[:3], batch_size=1).take(1)
    assert x.shape == (1, 128) and np.all(x >= 0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "text_input_fn.eval_files is None: expected file patterns"),
        ({"eval_files": "/none/*.txt"}, "'/none/.*': expected a pattern of existing files. Set"),
        ({"eval_files": "{empty}"}, "got empty files"),
        ({"window": 0}, "window is 0"),
    ],
)
def test_wrong_arguments_are_refused(options, text, tmp_path):
    empty = tmp_path / "empty.txt"
    empty.touch()
    options = {k: str(empty) if v == "{empty}" else v for k, v in options.items()}
    with pytest.raises(ge.UserError, match=text):
        text_input_fn(ModeKeys.EVAL, batch_size=2, **options)
