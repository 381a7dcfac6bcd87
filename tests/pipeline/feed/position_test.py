"""Where the training input stands: saved, found again, removed."""

import dataclasses
import json
import pathlib

import pytest
import tensorflow as tf

from pipeline import ModeKeys
from pipeline.feed import feed as input_lib
from pipeline.feed import position
from pipeline.feed.dataset import Source
from pipeline.feed.input_record import Verdict
from pipeline.strategy import modules
from pipeline.strategy.peers import Peers
from tests.fakes import take

ALONE = Peers(tf.distribute.get_strategy())


@pytest.fixture(scope="module")
def two_replicas():
    return tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


def rows(number):
    return tf.data.Dataset.range(number)


def make_feed(input_fn, *, strategy=None, num_micro_batches=1):
    return input_lib.make_feed(
        Source(input_fn, ModeKeys.TRAIN),
        peers=Peers(strategy or tf.distribute.get_strategy()),
        num_micro_batches=num_micro_batches,
    )


def _shuffled():
    return rows(12).shuffle(12, seed=1).repeat().batch(2)


def _unsavable():
    def numbers():
        yield from range(12)

    data = tf.data.Dataset.from_generator(
        numbers, output_signature=tf.TensorSpec([], tf.int64)
    )
    return data.repeat().batch(2)


@pytest.mark.parametrize(
    ("input_fn", "savable"), [(_shuffled, True), (_unsavable, False)]
)
def test_a_position_is_found_again(input_fn, savable, tmp_path):
    iterator = iter(make_feed(input_fn).dataset)
    take(iterator, 7)
    prefix = str(tmp_path / "position")
    assert position.save_position(iterator, prefix) is savable
    expected = take(iterator, 5)
    opened = position.open_at(make_feed(input_fn), prefix=prefix, num_steps=7)
    assert take(opened, 5) == expected


def test_what_cannot_be_saved_is_said_once(tmp_path, caplog):
    iterator = iter(make_feed(_unsavable).dataset)
    with caplog.at_level("WARNING", logger="absl"):
        for name in "ab":
            position.save_position(iterator, str(tmp_path / name))
    assert caplog.text.count("The position of this input cannot be saved") <= 1


def test_without_files_it_skips_what_the_steps_took(two_replicas):
    feed = make_feed(
        lambda input_context: rows(9).batch(1),
        strategy=two_replicas,
        num_micro_batches=2,
    )
    opened = position.open_at(feed, prefix=None, num_steps=1)
    assert take(opened, 1) == [[4]]


def test_what_was_skipped_to_is_found_again(tmp_path, caplog):
    iterator = position.open_at(make_feed(_shuffled), prefix=None, num_steps=7)
    take(iterator, 2)
    prefix = str(tmp_path / "position")
    position.save_position(iterator, prefix)
    expected = take(iterator, 5)
    with caplog.at_level("WARNING", logger="absl"):
        opened = position.open_at(make_feed(_shuffled), prefix=prefix, num_steps=9)
    assert not [each for each in caplog.records if each.levelname == "WARNING"]
    assert take(opened, 5) == expected


def test_skipping_stops_where_the_data_end():
    feed = make_feed(lambda: rows(4).batch(2))
    assert take(position.open_at(feed, prefix=None, num_steps=5), 1) == []


def test_the_beginning_is_the_beginning(tmp_path):
    feed = make_feed(lambda: rows(4).batch(2))
    opened = position.open_at(feed, prefix=str(tmp_path / "absent"), num_steps=0)
    assert take(opened, 3) == [[0, 1], [2, 3]]


def test_a_position_of_another_input_is_said_and_skipped(tmp_path, caplog):
    prefix = str(tmp_path / "position")
    position.save_position(iter(make_feed(_shuffled).dataset), prefix)
    other = make_feed(lambda: rows(12).batch(2))
    with caplog.at_level("WARNING", logger="absl"):
        opened = position.open_at(other, prefix=prefix, num_steps=2)
    assert "The input is not the one of checkpoint" in caplog.text
    assert "Skipping 2 steps" in caplog.text
    assert take(opened, 1) == [[4, 5]]


def test_a_position_of_steps_of_other_batches_is_skipped(tmp_path, two_replicas):
    def input_fn(input_context):
        return rows(24).batch(input_context.get_per_replica_batch_size(4))

    prefix = str(tmp_path / "position")
    one = make_feed(input_fn)
    iterator = iter(one.dataset)
    assert take(iterator, 2)[-1] == [4, 5, 6, 7]
    position.save_position(iterator, prefix, nexts_per_step=one.plan.nexts_per_step)
    two = make_feed(input_fn, strategy=two_replicas)
    opened = position.open_at(two, prefix=prefix, num_steps=2)
    assert take(opened, 1) == [[8, 9]]
    again = position.open_at(one, prefix=prefix, num_steps=2)
    assert take(again, 1) == [[8, 9, 10, 11]]


def opened(*, began=0, step=0, path="path/model.ckpt-1", peers=ALONE, feed=None):
    """A training input, of three batches by default, and where its pass began."""
    made = modules.Modules({}, tf.distribute.get_strategy())
    made.driver_state["input_start"].assign(began)
    made.global_step.assign(step)
    feed = feed or make_feed(lambda: rows(6).batch(2))
    return position.TrainingInput(feed, made, peers, path), made.driver_state[
        "input_start"
    ]


@pytest.mark.parametrize(
    ("began", "step", "expected", "begins"),
    [
        (0, 2, [[4, 5]], 0),
        (4, 6, [[4, 5]], 4),
        (0, 3, [], 0),
        (0, 0, [[0, 1]], 0),
    ],
    ids=["in_the_first_pass", "in_a_later_pass", "at_its_end", "at_the_beginning"],
)
def test_resuming_counts_from_where_this_pass_began(began, step, expected, begins):
    training_input, start = opened(began=began, step=step)
    assert training_input.resumed == (began != step)
    assert take(training_input.iterator, 1) == expected
    assert int(start) == begins


def test_without_a_checkpoint_the_input_begins_anew():
    training_input, start = opened(step=2, path=None)
    assert not training_input.resumed
    assert take(training_input.iterator, 1) == [[0, 1]]
    assert int(start) == 2


def test_another_pass_begins_where_it_is_told_to():
    training_input, start = opened(began=0, step=2)
    assert take(training_input.begin_anew(), 1) == [[0, 1]]
    assert take(training_input.iterator, 1) == [[2, 3]]
    assert int(start) == 2


def test_it_saves_where_it_stands(tmp_path):
    training_input, _ = opened()
    take(training_input.iterator, 2)
    path = str(tmp_path / "model.ckpt-2")
    assert training_input.save(position.position_path(path))
    again, _ = opened(step=2, path=path)
    assert take(again.iterator, 1) == [[4, 5]]


def of_known_length(num_micro_batches):
    """Eight batches, in a pass whose steps are counted."""
    feed = make_feed(lambda: rows(8).batch(1), num_micro_batches=num_micro_batches)
    plan = dataclasses.replace(feed.plan, num_steps=8 // num_micro_batches)
    return dataclasses.replace(feed, plan=plan)


class Ahead(Peers):
    """Beside a process that has read six steps."""

    def gather(self, numbers):
        (number,) = numbers
        judges = isinstance(number, Verdict)
        return [numbers] if judges else [numbers, [max(number, 6)]]


@pytest.mark.parametrize(
    ("micro_batches", "peers", "expected", "begins"),
    [
        (1, ALONE, [5], 0),
        (2, ALONE, [6], 2),
        (1, Ahead(tf.distribute.get_strategy()), [6], -1),
    ],
    ids=["as_before", "in_larger_steps", "behind_another_process"],
)
def test_a_pass_of_known_length_goes_on_at_a_whole_step(
    tmp_path, micro_batches, peers, expected, begins
):
    path = str(tmp_path / "model.ckpt-5")
    before, _ = opened(step=5, path=None, feed=of_known_length(1))
    before._opened_at = 0, 0
    take(before.iterator, 5)
    assert before.save(path)
    feed = of_known_length(micro_batches)
    again, start = opened(step=5, path=path, peers=peers, feed=feed)
    assert (take(again.iterator, 1), int(start)) == ([expected], begins)


def test_a_position_of_data_shared_otherwise_is_skipped_to(tmp_path, caplog):
    training_input, _ = opened()
    take(training_input.iterator, 1)
    path = str(tmp_path / "model.ckpt-1")
    training_input.save(path)
    record = pathlib.Path(f"{position.position_path(path)}.json")
    tree = json.loads(record.read_text())
    record.write_text(json.dumps({**tree, "read": 1, "pipelines": 2}))
    again, _ = opened(step=1, path=path)
    assert take(again.iterator, 1) == [[4, 5]]
    assert "shared otherwise: skipping 2 batches. If input_fn shards" in caplog.text
    assert "Else some come twice: take first_batch, or no input_context" in caplog.text


def test_all_processes_have_saved_before_the_checkpoint_is(tmp_path):
    """Else a checkpoint is complete whose position of a slower one is missing."""
    path = str(tmp_path / "model.ckpt-2")
    written = []

    class Watching(Peers):
        def wait(self):
            written.append(tf.io.gfile.exists(f"{position.position_path(path)}.index"))

    training_input, _ = opened(peers=Watching(tf.distribute.get_strategy()))
    training_input.save(path)
    assert written == [True]


def test_a_snapshot_outlives_the_saves(tmp_path):
    """To save an iterator that writes one leaves files that TensorFlow cannot read."""
    files = str(tmp_path / "files")

    def input_fn():
        return rows(24).snapshot(files).repeat().batch(8)

    training_input, _ = opened(feed=make_feed(input_fn))
    expected = [list(range(n, n + 8)) for n in (0, 8, 16)] * 4
    assert take(training_input.iterator, 1) == expected[:1]
    path = str(tmp_path / "model.ckpt-1")
    assert not training_input.save(path)
    assert take(training_input.iterator, 10) == expected[1:11]
    prefix = position.position_path(path)
    again = position.open_at(make_feed(input_fn), prefix=prefix, num_steps=1)
    assert take(again, 6) == expected[1:7]
