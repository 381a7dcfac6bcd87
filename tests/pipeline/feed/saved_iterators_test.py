"""What a saved iterator lacks: many orders of operations, stopped after each batch."""

import pytest
import tensorflow as tf

from pipeline import ModeKeys
from pipeline.feed import feed as input_lib
from pipeline.feed import iterators, position
from pipeline.feed.dataset import Source
from pipeline.strategy.peers import Peers
from tests.fakes import take

Dataset = tf.data.Dataset
STEPS, AHEAD = 5, 8
OPERATIONS = {
    "shuffle": lambda data: data.shuffle(4, seed=1),
    "shuffle_all": lambda data: data.shuffle(50, seed=2),
    "shuffle_alike": lambda data: data.shuffle(
        4, seed=1, reshuffle_each_iteration=False
    ),
    "interleave": lambda data: data.interleave(twice, cycle_length=2),
    "in_parallel": lambda data: data.interleave(
        twice, cycle_length=2, num_parallel_calls=2
    ),
    "flat_map": lambda data: data.flat_map(twice),
    "shard": lambda data: data.shard(2, 0),
    "map": lambda data: data.map(lambda x: x + 1, num_parallel_calls=2),
    "cache": lambda data: data.cache(),
    "prefetch": lambda data: data.prefetch(2),
    "take": lambda data: data.take(4),
    "zip": lambda data: Dataset.zip((data, Dataset.range(100).shuffle(10, seed=3))).map(
        lambda a, b: a + 1000 * b
    ),
    "sample": lambda data: Dataset.sample_from_datasets(
        [data, data.map(lambda x: x + 500)], [0.5, 0.5], seed=4
    ),
    "concatenate": lambda data: data.concatenate(Dataset.range(3).shuffle(3, seed=5)),
    "random": lambda data: Dataset.zip(
        (data, Dataset.random(seed=3, rerandomize_each_iteration=True))
    ).map(lambda a, b: a + 1000 * (b % 7)),
    "epochs": lambda data: Dataset.range(9).flat_map(lambda epoch: data),
    "batch": lambda data: data.batch(4),
    "repeat": lambda data: data.repeat(),
}
# Saved whole wherever they stop.
WHOLE = (
    "shuffle repeat batch",
    "shuffle interleave shuffle_all repeat map batch",
    "shuffle shard repeat prefetch batch",
    "shuffle cache shuffle repeat batch",
    "shuffle_alike interleave batch repeat",
    "shuffle interleave shuffle_all batch",
    "zip batch",
)
# Lack something at some stop at least.
LACKING = (
    "shuffle batch repeat",
    "shuffle interleave shuffle_all batch repeat",
    "shuffle in_parallel batch prefetch repeat",
    "shuffle flat_map shuffle map repeat batch",
    "shuffle take map repeat batch",
    "shuffle cache batch repeat",
    "shuffle cache take map repeat batch",
    "zip map repeat batch",
    "random batch repeat",
    "shuffle concatenate repeat batch",
    "shuffle sample batch repeat",
    "cache sample batch",
    "shuffle epochs batch",
)


def twice(x):
    return Dataset.from_tensors(x).repeat(2)


def make_feed(names):
    def input_fn():
        data = Dataset.range(6)
        for name in names.split():
            data = OPERATIONS[name](data)
        return data

    source = Source(input_fn, ModeKeys.TRAIN)
    return input_lib.make_feed(source, peers=Peers(tf.distribute.get_strategy()))


def saved(names, folder):
    """Each step's batch, and where the position after each of the first is."""
    iterator = make_feed(names).iterator()
    batches, prefixes = [], []
    for step in range(1, STEPS + 1):
        batches += take(iterator, 1)
        prefixes.append(str(folder / f"position-{step}"))
        assert position.save_position(iterator, prefixes[-1])
    return batches + take(iterator, AHEAD), prefixes


@pytest.mark.parametrize("names", [*WHOLE, *LACKING])
def test_what_comes_after_a_stop_is_what_would_have_come(names, tmp_path, caplog):
    batches, prefixes = saved(names, tmp_path)
    skipped = []
    for step, prefix in enumerate(prefixes, 1):
        caplog.clear()
        with caplog.at_level("WARNING", logger="absl"):
            opened = position.open_at(make_feed(names), prefix=prefix, num_steps=step)
        if f"skipping {step} steps instead, which is exact" in caplog.text:
            skipped.append(step)
        assert take(opened, len(batches) - step) == batches[step:], step
    assert bool(skipped) == (names in LACKING)


def test_a_ragged_batch_is_where_a_pass_loses_its_seed(tmp_path):
    _, prefixes = saved("shuffle batch repeat", tmp_path)
    data = make_feed("shuffle batch repeat").dataset
    lacking = [bool(iterators.lacks(prefix, data)) for prefix in prefixes]
    # A prefetch reads ahead, so when it does is not the same in each run.
    assert True in lacking


def test_without_a_seed_a_position_is_read(tmp_path, caplog):
    tf.random.set_seed(None)  # Another test may have set one.

    def feed():
        data = Dataset.range(6).shuffle(6).shuffle(9).batch(2).repeat()
        source = Source(lambda: data, ModeKeys.TRAIN)
        return input_lib.make_feed(source, peers=Peers(tf.distribute.get_strategy()))

    iterator = feed().iterator()
    (first,) = take(iterator, 1)
    prefix = str(tmp_path / "position")
    assert position.save_position(iterator, prefix)
    with caplog.at_level("WARNING", logger="absl"):
        opened = position.open_at(feed(), prefix=prefix, num_steps=1)
    assert "lacks" not in caplog.text
    rest = sum(take(opened, 2), [])
    assert sorted(first + rest) == list(range(6))


def test_data_too_large_to_be_looked_at_are_skipped(monkeypatch, tmp_path, caplog):
    """TensorFlow writes no graph of more than 2 GB, and returns an empty string."""
    names = "shuffle cache shuffle repeat batch"
    batches, prefixes = saved(names, tmp_path)
    monkeypatch.setattr(tf.raw_ops, "DatasetToGraphV2", lambda **_: tf.constant(b""))
    with caplog.at_level("WARNING", logger="absl"):
        opened = position.open_at(make_feed(names), prefix=prefixes[3], num_steps=4)
    assert "more than 2 GB" in caplog.text
    assert take(opened, len(batches) - 4) == batches[4:]


def refuse_graphs(monkeypatch):
    def refuse(dataset):
        raise AssertionError(f"the graph of {dataset} was written")

    monkeypatch.setattr(iterators, "definition_of", refuse)


@pytest.mark.parametrize(
    "names", ["shuffle repeat batch", "shuffle interleave shuffle_all repeat map batch"]
)
def test_where_all_that_draws_is_kept_no_graph_copies_the_data(
    names, monkeypatch, tmp_path
):
    refuse_graphs(monkeypatch)
    _, prefixes = saved(names, tmp_path)
    dataset = make_feed(names).dataset
    assert [iterators.lacks(prefix, dataset) for prefix in prefixes] == [""] * STEPS


def hidden_in_a_function():
    inner = Dataset.range(6).shuffle(6, seed=1)
    return Dataset.range(9).shuffle(9, seed=2).flat_map(lambda _: inner)


def hidden_in_a_tensor():
    inner = Dataset.range(6).shuffle(6, seed=1)
    return Dataset.from_tensors(inner).flat_map(lambda each: each).shuffle(9, seed=2)


def more_than_is_kept():
    """Both shuffles have ended where the last one's buffer is full."""
    ended = Dataset.range(6).shuffle(6, seed=1).batch(2).shuffle(3, seed=4).unbatch()
    return ended.concatenate(Dataset.range(30))


def hidden_behind_a_handle():
    inner = Dataset.range(6).shuffle(6, seed=1)
    handle = tf.data.experimental.to_variant(inner)
    there = tf.data.experimental.from_variant(handle, inner.element_spec)
    return there.shuffle(9, seed=2)


@pytest.mark.parametrize(
    "make",
    [
        hidden_in_a_function,
        hidden_in_a_tensor,
        hidden_behind_a_handle,
        lambda: Dataset.range(6).cache(),
        more_than_is_kept,
    ],
    ids=["function", "tensor", "handle", "cache", "more_than_is_kept"],
)
def test_where_the_objects_do_not_tell_the_graph_does(make, monkeypatch, tmp_path):
    refuse_graphs(monkeypatch)
    dataset = make().shuffle(9, seed=2).repeat()
    iterator = iter(dataset)
    next(iterator)
    prefix = str(tmp_path / "position")
    tf.train.Checkpoint(iterator=iterator).write(prefix)
    with pytest.raises(AssertionError, match="was written"):
        iterators.lacks(prefix, dataset)


def test_brackets_in_a_path_hide_no_saved_iterator(tmp_path):
    folder = tmp_path / "run[1]"
    folder.mkdir()
    names = "shuffle batch repeat"
    _, prefixes = saved(names, folder)
    dataset = make_feed(names).dataset
    assert any(iterators.lacks(prefix, dataset) for prefix in prefixes)
