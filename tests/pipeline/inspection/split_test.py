"""How an input is divided: planted mistakes are found, and what is right is not."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline import ModeKeys
from pipeline.feed.dataset import Source
from pipeline.inspection import examples, pipelines, split
from pipeline.inspection.topology import Split

WORKERS = 9
ROWS = np.arange(36, dtype=np.float32)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """What is read of endless data is enough for 36 rows; nothing is seeded."""
    tf.random.set_seed(None)
    monkeypatch.setattr(examples, "MOST_OF_ENDLESS", 80)


def judged(input_fn, mode=ModeKeys.EVAL, *, workers=WORKERS, in_step=True, secs=1e6):
    """Pairs of whether it is certain and the text, for what is found."""
    found = pipelines.build(
        Source(input_fn, mode), Split(workers, workers, in_step), secs=secs
    )
    return [(f.is_certain, f.text) for f in split.judge(found, "input_fn f", mode)]


def of(change, rows=ROWS):
    """An input_fn of rows that `change` divides, by its context, in batches of 2."""

    def input_fn(mode, input_context):
        data = change(tf.data.Dataset.from_tensor_slices(rows), input_context)
        return (data.repeat() if mode == ModeKeys.TRAIN else data).batch(2)

    return input_fn


def shard(data, context):
    return data.shard(context.num_input_pipelines, context.input_pipeline_id)


def augmented(data, context):
    del context
    return data.map(lambda x: x + tf.random.uniform([]))


def cropped(data, context):
    return augmented(shard(data, context), context)


def _one_of_many(context):
    return context.num_input_pipelines > 1


RIGHT = {
    "sharded": of(shard),
    "shuffled by a seed": of(lambda d, c: shard(d.shuffle(36, seed=1), c)),
    "shuffled afterwards": of(lambda d, c: shard(d, c).shuffle(36)),
    "duplicates": of(shard, rows=np.repeat(ROWS[:6], 6)),
    "one value": of(shard, rows=np.zeros_like(ROWS)),
}


@pytest.mark.parametrize("mode", [ModeKeys.EVAL, ModeKeys.TRAIN])
@pytest.mark.parametrize("input_fn", RIGHT.values(), ids=RIGHT)
def test_what_is_right_is_no_finding(input_fn, mode):
    assert judged(input_fn, mode) == []


@pytest.mark.parametrize("mode", [ModeKeys.EVAL, ModeKeys.TRAIN])
def test_a_generator_of_each_worker_s_own_is_no_mistake(mode):
    def input_fn(input_context):
        first = input_context.input_pipeline_id

        def rows():
            yield from ROWS[first :: input_context.num_input_pipelines]

        spec = tf.TensorSpec([], tf.float32)
        return tf.data.Dataset.from_generator(rows, output_signature=spec).batch(2)

    assert judged(input_fn, mode) == []


# The change to the rows, the mode, whether it is certain, and what is said.
WRONG = {
    "ignored": (lambda d, c: d, "eval", True, "each worker reads all 36 examples, as"),
    "ignored, endless": (lambda d, c: d, "train", True, "data, in the same order"),
    "ignored, shuffled": (
        lambda d, c: d.shuffle(36),
        "eval",
        True,
        "each worker reads all 36",
    ),
    "an order of its own": (
        lambda d, c: d.shuffle(36),
        "train",
        False,
        "each in an order of its own",
    ),
    "other orders": (
        lambda d, c: shard(d.shuffle(36, seed=c.input_pipeline_id), c),
        "eval",
        True,
        "come to several workers of workers 0, 1, 2 and 6 more",
    ),
    "a part too many": (
        lambda d, c: d.shard(
            c.num_input_pipelines + 3 * _one_of_many(c), c.input_pipeline_id
        ),
        "eval",
        True,
        "9 of 36 examples come to no worker",
    ),
    "ignored, augmented": (augmented, "eval", False, "and all workers' data are made"),
    "augmented": (cropped, "eval", False, "disjoint cannot be told."),
    "ignored, augmented, endless": (augmented, "train", False, "of the same data and"),
    "a part of the same": (
        lambda d, c: d.skip(c.input_pipeline_id),
        "train",
        False,
        "of the first examples of a worker come to another",
    ),
    "uneven": (
        lambda d, c: (
            d.skip(_one_of_many(c) * (27 + c.input_pipeline_id)).take(1)
            if c.input_pipeline_id
            else d.take(36 - 8 * _one_of_many(c))
        ),
        "eval",
        False,
        "worker 1 has 1 examples and worker 0 28",
    ),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_found(case):
    change, mode, is_certain, words = case
    rows = np.arange(1000.0) if "of the first" in words else ROWS
    ((certain, text),) = judged(of(change, rows), mode)
    assert words in text
    assert certain == is_certain
    assert text.startswith("input_fn f")


def test_one_example_again_and_again_may_be_meant():
    one = of(lambda d, c: d, rows=np.zeros_like(ROWS))
    assert [certain for certain, _ in judged(one, ModeKeys.TRAIN)] == [False]


def test_augmented_training_data_that_are_divided_are_no_finding():
    assert judged(of(cropped), ModeKeys.TRAIN) == []


def test_an_error_for_one_worker_names_it():
    def input_fn(input_context):
        if input_context.input_pipeline_id == 5:
            raise KeyError("part-5")
        return of(shard)(ModeKeys.EVAL, input_context)

    ((certain, text),) = judged(input_fn)
    assert certain
    assert "fails for worker 5: KeyError: 'part-5'" in text


def test_an_error_for_all_workers_is_said_once():
    calls = []

    def input_fn(input_context):
        calls.append(input_context)
        raise ValueError("no")

    ((certain, text),) = judged(input_fn)
    assert certain
    assert "fails for workers 0, 4, 8: ValueError: no" in text
    assert len(calls) == 3, "the others are not tried"


def test_an_error_while_it_is_read():
    def broken(data, context):
        return shard(data, context).map(
            lambda x: tf.debugging.check_numerics(x / 0, "")
        )

    ((certain, text),) = judged(of(broken))
    assert certain
    assert "the input failed" in text


def test_no_examples_at_all():
    ((certain, text),) = judged(of(lambda d, c: d.take(0)))
    assert certain
    assert "yields no examples" in text


def test_an_empty_worker():
    only_first = of(lambda d, c: shard(d, c).filter(lambda x: x < 3))
    ((certain, text), *_) = judged(only_first)
    assert certain
    assert "no examples for workers 3, 4, 5 and 3 more of 9" in text
    certain, text = judged(only_first, in_step=False)[0]
    assert not certain, "of parameter servers, a worker may have nothing to do"


def test_other_dtypes():
    def input_fn(input_context):
        dtype = tf.float64 if input_context.input_pipeline_id == 8 else tf.float32
        return of(lambda d, c: shard(d, c).map(lambda x: tf.cast(x, dtype)))(
            ModeKeys.EVAL, input_context
        )

    texts = [text for _, text in judged(input_fn)]
    assert any("float64" in text and "for worker 8" in text for text in texts)


def test_without_time_the_first_three_are_read_and_no_other_is_called():
    found = pipelines.build(Source(of(shard), "eval"), Split(WORKERS, WORKERS), secs=0)
    assert [each.worker for each in found.called] == [0, 4, 8]
    assert not found.all_called
    assert "read: the first 2 examples, at most" in split.in_words(found)
    assert split.judge(found, "f", "eval") == []


def test_of_workers_without_files_no_total_is_told():
    files = of(lambda d, c: d.filter(lambda x: c.input_pipeline_id % 16 == 0))
    found = pipelines.build(Source(files, "eval"), Split(16, 16), secs=1e6)
    some = pipelines.Pipelines(found.split, found.whole, found.looked_at)
    words = "workers 0, 8, 15, which have from 0 to 36 of 36 examples; the others may"
    assert words in split.in_words(some)


def test_a_last_batch_that_is_dropped_is_to_be_looked_at():
    def input_fn(input_context):
        data = shard(tf.data.Dataset.from_tensor_slices(ROWS), input_context)
        return data.batch(3, drop_remainder=True)

    ((certain, text),) = judged(input_fn)
    assert not certain
    assert "9 of 36 examples are left out with incomplete last batches" in text


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Eight TFRecord files of four records."""
    folder = tmp_path_factory.mktemp("files")
    for number in range(8):
        with tf.io.TFRecordWriter(str(folder / f"{number}.tfrecord")) as writer:
            for record in range(4):
                writer.write(f"{number} {record}".encode())
    return f"{folder}/*.tfrecord"


def by_files(pattern):
    def input_fn(input_context):
        names = tf.data.Dataset.list_files(pattern, shuffle=False)
        return shard(names, input_context).interleave(tf.data.TFRecordDataset).batch(2)

    return input_fn


def by_records(pattern):
    def input_fn(input_context):
        records = tf.data.TFRecordDataset(tf.io.gfile.glob(pattern))
        return shard(records, input_context).batch(2)

    return input_fn


def test_fewer_files_than_workers(files):
    ((certain, text), *more) = judged(by_files(files))
    assert certain
    assert "no examples for worker 8 of 9; there are 8 files" in text
    assert "write the data to 9 files or more" in text
    assert not more


def test_files_that_each_worker_opens(files):
    for workers, words in ((9, "to a multiple of 9 files"), (4, "divide the files")):
        ((certain, text),) = judged(by_records(files), workers=workers)
        assert not certain
        assert f"8 files for {workers} workers: each opens all" in text
        assert words in text


def test_files_of_each_worker_s_own(files):
    assert judged(by_files(files), workers=4) == []
    found = pipelines.build(Source(by_files(files), "eval"), Split(4, 4), secs=1e6)
    assert [len(each.files) for each in found.called] == [2, 2, 2, 2]


def test_files_that_nobody_reads(files):
    def input_fn(input_context):
        context = tf.distribute.InputContext(
            min(input_context.num_input_pipelines * 2, 8),
            input_context.input_pipeline_id,
        )
        one = input_context.num_input_pipelines == 1
        return by_files(files)(input_context if one else context)

    texts = [text for _, text in judged(input_fn, workers=4)]
    assert "4 files of 8 are read by no worker" in texts[0]
    assert "16 of 32 examples come to no worker" in texts[1]


def test_examples_are_those_of_batches_of_any_kind():
    """Ragged, sparse and text, in a dict; in batches of two sizes."""
    ragged = tf.ragged.constant([[1, 2], [], [3], [1, 2]])
    sparse = tf.sparse.from_dense([[0, 1], [2, 0], [0, 0], [0, 1]])
    rows = {"r": ragged, "s": sparse, "t": tf.constant(["ab", "c", "", "ab"])}
    data = tf.data.Dataset.from_tensor_slices((rows, [[1.0], [2.0], [3.0], [1.0]]))
    one, two = (examples.read(data.batch(size)) for size in (3, 2))
    assert one.digests == two.digests
    assert len(set(one.digests)) == 3, "the last is the first again"
    assert (one.rows, one.batches, two.batches) == (3, 2, 2)
    assert keras.tree.flatten(rows)


def test_padding_that_depends_on_the_batch_is_no_difference():
    def input_fn(input_context):
        data = shard(tf.data.Dataset.range(1, 12), input_context)
        data = data.map(lambda n: {"n": tf.fill([n], n), "t": tf.fill([n], "a")})
        return data.padded_batch(2)

    assert judged(input_fn, workers=3) == []


def test_scalars_are_one_example_each():
    assert len(examples.read(tf.data.Dataset.range(5))) == 5


def test_the_others_are_called_spread_over_all():
    for number in (1, 2, 3, 8, 256):
        assert sorted(pipelines._spread(number)) == list(range(number))
    first = sorted(pipelines._spread(256)[:8])
    assert min(b - a for a, b in zip(first, first[1:], strict=False)) > 15
