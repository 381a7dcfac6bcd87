"""Processes of which each takes its part of the same batches: one order for all."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline import ModeKeys, RunConfig
from pipeline.feed import dataset
from pipeline.feed import feed as input_lib
from pipeline.feed.dataset import Source
from pipeline.strategy.peers import Peers
from pipeline.strategy.replicas import Replicas
from pipeline.tracing import seeds

ROWS = 40


@pytest.fixture(autouse=True)
def no_seed():
    """The program has set none, as another test may have."""
    tf.random.set_seed(None)


class OneOfTwo(Peers):
    """A process of two, of which the first's numbers are `given`."""

    def __init__(self, process, given):
        super().__init__(tf.distribute.get_strategy())
        self.replicas = Replicas(total=2, local=1, process=process, num_processes=2)
        self._given = given

    def gather(self, numbers):
        if self.replicas.process == 0:
            self._given.append(list(numbers))
            return [list(numbers)] * 2
        return [self._given.pop(0), list(numbers)]


def by_tensorflow():
    return tf.data.Dataset.range(ROWS).shuffle(ROWS).batch(4)


def by_numpy():
    return tf.data.Dataset.from_tensor_slices(np.random.permutation(ROWS)).batch(4)


def parts(input_fn, model_dir, *, num_passes=1, **config):
    """What the two processes take, in their order, of as many calls of input_fn."""
    given, taken = [], []
    for process in range(2):
        tf.random.uniform([])  # A draw of its own, as of one process alone.
        source = Source(
            input_fn,
            ModeKeys.TRAIN,
            {"config": RunConfig(model_dir=str(model_dir), **config)},
        )
        feed = input_lib.make_feed(source, peers=OneOfTwo(process, given))
        rows = []
        for _ in range(num_passes):
            iterator = feed.iterator()
            for _ in range(ROWS // 4):
                ((batch,),) = feed.plan.take(iterator)
                rows += batch.features.numpy().tolist()
            feed = feed.again()
        taken.append(rows)
    return taken


@pytest.mark.parametrize("input_fn", [by_tensorflow, by_numpy])
def test_each_example_comes_once_in_each_pass(input_fn, tmp_path):
    first, second = parts(input_fn, tmp_path, num_passes=2)
    half = ROWS // 2
    for rows in (slice(half), slice(half, None)):
        assert sorted(first[rows] + second[rows]) == list(range(ROWS))


def test_a_run_that_goes_on_shuffles_as_before_and_another_run_otherwise(tmp_path):
    before, again, other = (
        parts(by_tensorflow, tmp_path / name) for name in ("a", "a", "b")
    )
    assert before == again != other


def test_the_programs_own_seed_counts(tmp_path):
    tf.random.set_seed(3)
    before = parts(by_tensorflow, tmp_path / "a")
    assert parts(by_tensorflow, tmp_path / "b") == before
    assert seeds.of_program() == 3


def test_what_the_program_draws_is_left_to_chance(tmp_path):
    drawn = []
    for _ in range(2):
        parts(by_tensorflow, tmp_path)
        drawn.append((float(tf.random.uniform([])), np.random.random()))
    assert drawn[0][0] != drawn[1][0]
    assert drawn[0][1] != drawn[1][1]


def test_one_process_is_left_to_chance(tmp_path):
    orders = []
    for _ in range(2):
        source = Source(
            by_tensorflow,
            ModeKeys.TRAIN,
            {"config": RunConfig(model_dir=str(tmp_path))},
        )
        feed = input_lib.make_feed(source, peers=Peers(tf.distribute.get_strategy()))
        orders.append([row for batch in feed.iterator() for row in batch.numpy()])
    assert orders[0] != orders[1]


def test_data_that_differ_by_process_are_named(tmp_path, caplog):
    starts = iter([0, 100])

    def input_fn():
        start = next(starts)
        return tf.data.Dataset.range(start, start + ROWS).batch(4)

    given = []
    for process in range(2):
        source = Source(input_fn, ModeKeys.EVAL)
        context = dataset.InputContext(num_replicas_in_sync=2)
        dataset.shared(source, context, OneOfTwo(process, given))
    assert "takes no input_context and yields other data in one process" in caplog.text
