"""Text files as windows of bytes: each byte is a label once."""

import numpy as np
import pytest

import inputs
from benchmarks import order_2_model
from inputs.text_input import NO_BYTE
from pipeline import ModeKeys


@pytest.fixture
def files(tmp_path):
    texts = {"a.txt": b"Hello, world", "b.txt": b"", "c.txt": bytes(range(5))}
    for name, text in texts.items():
        (tmp_path / name).write_bytes(text)
    return str(tmp_path / "*.txt")


def rows(**arguments):
    dataset = inputs.text_input_fn(ModeKeys.EVAL, batch_size=2, **arguments)
    found = list(dataset.as_numpy_iterator())
    return [np.concatenate(part) for part in zip(*found, strict=True)]


@pytest.mark.parametrize("window", [1, 5, 12, 100])
def test_each_byte_is_a_label_once_after_the_one_before(files, window):
    x, y = rows(eval_files=files, window=window)
    assert x.shape == y.shape == (len(x), window)
    known = y != NO_BYTE
    assert bytes(y[known].astype(np.uint8)) == b"Hello, world" + bytes(range(5))
    # What stands before it is the byte before in the same file.
    before = b"\nHello, worl" + b"\n" + bytes(range(4))
    assert bytes(x[known].astype(np.uint8)) == before
    assert not x[~known].any()


def test_training_draws_an_order_and_predictions_have_no_labels(files):
    given = {"train_files": files, "window": 2, "batch_size": 3, "num_epochs": 1}
    train = list(inputs.text_input_fn(ModeKeys.TRAIN, **given))
    x, y = rows(eval_files=files, window=2)
    seen = np.concatenate([each.numpy() for _, each in train])
    assert sorted(map(tuple, seen)) == sorted(map(tuple, y))
    assert (seen != y).any()
    predicted = inputs.text_input_fn(
        ModeKeys.PREDICT, eval_files=files, window=2, batch_size=100
    )
    np.testing.assert_array_equal(next(iter(predicted)), x)


def test_the_parts_of_the_standard_library_share_no_file():
    train, held_out = map(inputs.standard_library, ("train", "held_out"))
    assert not set(train) & set(held_out)
    assert 5 < len(train) / len(held_out) < 20
    assert not any("site-packages" in path for path in train)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"window": 0}, "window is 0"),
        ({"eval_files": None}, "text_input_fn.eval_files"),
        ({"eval_files": "b"}, "the 1 files of text_input_fn are empty"),
    ],
)
def test_what_cannot_be_read_is_told(files, arguments, told):
    if arguments.get("eval_files") == "b":
        arguments = {"eval_files": files.replace("*", "b")}
    with pytest.raises(ValueError, match=told):
        rows(**{"eval_files": files, **arguments})
    with pytest.raises(ValueError, match="part is 'tran'"):
        inputs.standard_library("tran")


def test_counts_of_three_bytes_are_probabilities(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"abababac")
    counts = order_2_model.counts_of([path])
    assert counts[ord("a") * 256 + ord("b"), ord("a")] == 3
    every = np.zeros_like(counts)
    every[ord("b") * 256 + ord("a")] = 1
    # 256 bytes of equal number cost what the probabilities' logarithms say.
    bits = order_2_model.bits_per_byte(counts, every, (1.0, 1.0, 1.0))
    single = np.bincount(np.frombuffer(b"abababac", np.uint8), minlength=256)
    none = (single + 1 / 256) / 9
    one = (np.bincount([98, 98, 98, 99], minlength=256) + none) / 5
    two = (np.bincount([98, 98, 99], minlength=256) + one) / 4
    assert two.sum() == pytest.approx(1)
    assert bits == pytest.approx(-np.log2(two).mean())
