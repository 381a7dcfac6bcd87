"""Parts of contrib that TensorFlow 2.15 and tf_slim do not have, against their formulas."""

import itertools

import numpy as np
import pytest

import tensorflow.compat.v1 as tf1

import gin_estimator.v1 as tf

rng = np.random.default_rng(9)
SCORES = rng.normal(size=[3, 4, 3]).astype("float32")
MOVES = rng.normal(size=[3, 3]).astype("float32")
LENGTHS = np.array([4, 1, 3])
TAGS = rng.integers(0, 3, [3, 4])


def paths(row):
    """Returns the score of each sequence of tags of a row, within its length."""
    length = LENGTHS[row]
    return {
        tags: sum(SCORES[row, t, tags[t]] for t in range(length))
        + sum(MOVES[tags[t], tags[t + 1]] for t in range(length - 1))
        for tags in itertools.product(range(3), repeat=length)
    }


def test_crf_normalizes_by_all_sequences():
    found, _ = tf.contrib.crf.crf_log_likelihood(SCORES, TAGS, LENGTHS, MOVES)
    for row in range(3):
        scores = paths(row)
        norm = np.log(sum(np.exp(score) for score in scores.values()))
        assert float(found[row]) == pytest.approx(
            scores[tuple(TAGS[row, : LENGTHS[row]])] - norm, rel=1e-4
        )


def test_crf_decodes_the_best_sequence():
    tags, best = tf.contrib.crf.crf_decode(SCORES, MOVES, LENGTHS)
    for row in range(3):
        scores = paths(row)
        expected = max(scores, key=scores.get)
        assert tuple(tags[row].numpy()) == expected + (0,) * (4 - LENGTHS[row])
        assert float(best[row]) == pytest.approx(scores[expected], rel=1e-5)
    one, score = tf.contrib.crf.viterbi_decode(SCORES[0], MOVES)
    assert one == list(tags[0]) and score == pytest.approx(float(best[0]), rel=1e-5)


def test_tables_know_words_and_positions():
    words = ["a", "b"]
    table = tf.contrib.lookup.index_table_from_tensor(words)
    assert table.lookup(tf.constant(["b", "c"])).numpy().tolist() == [1, -1]
    table = tf.contrib.lookup.index_table_from_tensor(words, num_oov_buckets=1)
    assert table.lookup(tf.constant(["b", "c"])).numpy().tolist() == [1, 2]
    table = tf.contrib.lookup.index_to_string_table_from_tensor(words)
    found = table.lookup(tf.constant([0, 5], tf.int64)).numpy().tolist()
    assert found == [b"a", b"UNK"]


def test_tables_of_files_in_a_model_fn(tmp_path):
    (tmp_path / "words").write_text("a\nb\n")

    def model_fn(features, labels, mode):
        ids = tf.contrib.lookup.index_table_from_file(str(tmp_path / "words")).lookup(features)
        table = tf.contrib.lookup.index_to_string_table_from_file(str(tmp_path / "words"))
        return tf.estimator.EstimatorSpec(mode, {"ids": ids, "words": table.lookup(ids)})

    estimator = tf.estimator.Estimator(model_fn, str(tmp_path / "run"))
    words = tf.constant(["b", "c"])
    found = estimator.predict(lambda: tf.data.Dataset.from_tensor_slices(words).batch(2))
    expected = [{"ids": 1, "words": b"b"}, {"ids": -1, "words": b"UNK"}]
    assert list(found) == expected


def test_files_of_the_package_do_not_hide_names_of_tensorflow():
    assert tf.errors.OutOfRangeError is tf1.errors.OutOfRangeError
    assert tf.trace is tf1.trace and tf.lookup.StaticHashTable is tf1.lookup.StaticHashTable
    assert tf.__version__ == tf1.__version__


@pytest.mark.parametrize("name", ["seq2seq", "quantize", "layers.no_such_layer", "nothing"])
def test_unknown_names_say_what_to_write(name):
    with pytest.raises(AttributeError, match=rf"tf\.contrib\.{name}.*(Copy|Quantize|Use|Write)"):
        found = tf.contrib
        for part in name.split("."):
            found = getattr(found, part)
