"""A run that was broken off and goes on is the run that was not, bit for bit."""

import pathlib
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from tests import fakes


def shuffled(dataset):
    return dataset.shuffle(100, seed=3).repeat()


def with_a_stateful_map(dataset):
    """TensorFlow cannot save its position, and the values do not depend on it."""
    return dataset.map(lambda x, y: (x + 0 * tf.random.uniform([]), y)).repeat()


def ragged(dataset):
    """Ends after step 16 of 20, and begins anew."""
    return dataset.take(16 * 16 - 3)


def ending(dataset):
    """Ends after step 20, in an order that a seed decides."""
    return dataset.take(20 * 16).shuffle(100, seed=3)


def ending_and_not_saved(dataset):
    return ending(dataset).map(lambda x, y: (x + 0 * tf.random.uniform([]), y))


def noisy_network():
    return fakes.network(l2=0.01, dropout=0.5, batch_norm=True)


INPUTS = {
    "shuffled": shuffled,
    "not_saved": with_a_stateful_map,
    "ending": ending,
    "ending_and_not_saved": ending_and_not_saved,
}


def train(model_dir, max_steps=None, change=None, *, input_fn=None, steps=None, **to):
    """A new Estimator, as in a new process."""
    if input_fn is None:
        data = fakes.classification_data()
        input_fn = fakes.make_input_fn(*data, batch_size=16, change=change)
    estimator = fakes.make_estimator(model_dir, **{"network": noisy_network, **to})
    estimator.train(input_fn, steps=steps, max_steps=max_steps)


def train_quickly(model_dir, max_steps, change):
    """The same, where only the files tell: a smaller model, and nothing compiled."""
    train(model_dir, max_steps, change, network=fakes.network, run_eagerly=True)


def assert_equal(actual, expected):
    assert sorted(actual) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=name)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The weights of a run from 0 to 20 at one go, by input."""
    weights = {}
    for name, change in INPUTS.items():
        train(folder := tmp_path_factory.mktemp(name), 20, change)
        weights[name] = fakes.weights(folder)
    return weights


@pytest.mark.parametrize("name", INPUTS)
def test_goes_on_bit_for_bit(tmp_path, straight, name):
    train(tmp_path, 10, INPUTS[name])
    train(tmp_path, 20, INPUTS[name])
    assert_equal(fakes.weights(tmp_path), straight[name])


@pytest.mark.parametrize("change", [ending, ending_and_not_saved])
def test_a_later_pass_goes_on_bit_for_bit(tmp_path, change):
    """The data end at step 20: broken off in the second pass, at 25."""
    for folder, parts in (("straight", (12, 18)), ("broken_off", (12, 13, 5))):
        for steps in parts:
            train(tmp_path / folder, steps=steps, change=change)
    assert fakes.checkpoint_steps(tmp_path / "broken_off") == [0, 12, 25, 30]
    expected = fakes.weights(tmp_path / "straight")
    assert_equal(fakes.weights(tmp_path / "broken_off"), expected)


def test_the_seed_of_a_run_decides_the_order_of_each_call(tmp_path):
    """A shuffle without a seed of its own, skipped by the Estimator that trained."""

    def change(dataset):
        return with_a_stateful_map(dataset.shuffle(1000))

    train(tmp_path / "straight", 20, change)
    data = fakes.classification_data()
    input_fn = fakes.make_input_fn(*data, batch_size=16, change=change)
    estimator = fakes.make_estimator(tmp_path / "twice", network=noisy_network)
    estimator.train(input_fn, max_steps=10)
    estimator.train(input_fn, max_steps=20)
    expected = fakes.weights(tmp_path / "straight")
    assert_equal(fakes.weights(tmp_path / "twice"), expected)


class StartsAnywhere:
    """Input that is drawn by index: 20 batches a pass, or for ever.

    Attributes:
      calls: the `first_batch` of each.
    """

    def __init__(self, *, endless=False):
        self.calls = []
        self._endless = endless

    def __call__(self, input_context, first_batch):
        self.calls.append(first_batch)
        x, y = fakes.classification_data()
        size = input_context.get_per_replica_batch_size(16)
        indices = tf.data.Dataset.range(first_batch, 10**6 if self._endless else 20)

        def batch(index):
            rows = tf.random.stateless_uniform(
                [size], [3, index], 0, len(x), dtype=tf.int32
            )
            return tf.gather(x, rows), tf.gather(y, rows)

        # With such an operation no position could be saved.
        return indices.map(batch).map(lambda x, y: (x + 0 * tf.random.uniform([]), y))


def test_an_input_that_starts_anywhere_is_not_skipped(tmp_path):
    train(tmp_path / "straight", 18, input_fn=StartsAnywhere())
    for max_steps in (10, 18):
        train(tmp_path / "broken_off", max_steps, input_fn=(last := StartsAnywhere()))
    expected = fakes.weights(tmp_path / "straight")
    assert_equal(fakes.weights(tmp_path / "broken_off"), expected)
    assert last.calls == [0, 10]
    assert not list(tmp_path.glob("*/input/*.index"))


def test_an_input_that_starts_anywhere_counts_from_its_pass(tmp_path):
    """As above, where the data end at step 20."""
    for folder, parts in (("straight", (12, 18)), ("broken_off", (12, 13, 5))):
        for steps in parts:
            input_fn = StartsAnywhere()
            train(tmp_path / folder, steps=steps, input_fn=input_fn)
            if steps == 13:
                assert input_fn.calls == [0, 12, 0]
    assert input_fn.calls == [0, 5]
    expected = fakes.weights(tmp_path / "straight")
    assert_equal(fakes.weights(tmp_path / "broken_off"), expected)


def test_an_input_that_starts_anywhere_counts_batches(tmp_path):
    """Ten steps of three micro-batches on each of two replicas are sixty."""
    devices = ["CPU:0", "CPU:1"]
    for max_steps in (10, 11):
        input_fn = StartsAnywhere(endless=True)
        train(
            tmp_path,
            max_steps,
            input_fn=input_fn,
            network=fakes.network,
            devices=devices,
            gradient_accumulation_steps=3,
        )
    assert input_fn.calls == [0, 60]


def test_a_moved_model_dir_goes_on(tmp_path, straight):
    train(tmp_path / "here", 10, shuffled)
    shutil.move(tmp_path / "here", tmp_path / "there")
    train(tmp_path / "there", 20, shuffled)
    assert_equal(fakes.weights(tmp_path / "there"), straight["shuffled"])


def test_a_moved_model_dir_leaves_the_old_path_alone(tmp_path):
    train_quickly(tmp_path / "here", 2, shuffled)
    shutil.move(tmp_path / "here", tmp_path / "there")
    train_quickly(tmp_path / "there", 4, shuffled)
    assert not (tmp_path / "here").exists()


def test_the_position_lies_beside_its_checkpoint(tmp_path):
    train_quickly(tmp_path, 2, shuffled)
    assert list(tmp_path.glob("input/model.ckpt-2.0-of-1.index"))


def test_a_position_that_cannot_be_saved_leaves_no_file(tmp_path):
    train_quickly(tmp_path, 2, with_a_stateful_map)
    assert not list(tmp_path.glob("input/*.index"))


def test_an_input_at_its_end_begins_anew(tmp_path):
    """Sixteen steps, the last of them ragged, and four from the beginning again."""
    for _ in range(2):
        train(tmp_path, 20, ragged)
    assert fakes.checkpoint_steps(tmp_path) == [0, 16, 20]


def test_a_position_that_no_checkpoint_has_is_not_taken_for_the_next_ones(tmp_path):
    """Left by a run that was killed between the two; this one can save none."""
    train_quickly(tmp_path / "other", 4, shuffled)
    train_quickly(tmp_path / "killed", 2, with_a_stateful_map)
    (tmp_path / "killed" / "input").mkdir(exist_ok=True)
    for file in (tmp_path / "other" / "input").glob("model.ckpt-4.*"):
        shutil.copy(file, tmp_path / "killed" / "input")
    train_quickly(tmp_path / "killed", 4, with_a_stateful_map)
    assert fakes.checkpoint_steps(tmp_path / "killed") == [0, 2, 4]
    assert not list(tmp_path.glob("killed/input/*.index"))


def test_a_position_that_is_missing_is_told(tmp_path, caplog):
    train_quickly(tmp_path, 4, shuffled)
    shutil.rmtree(tmp_path / "input")
    with caplog.at_level("WARNING", logger="absl"):
        train_quickly(tmp_path, 6, shuffled)
    assert "skipping 4 steps. They are the ones that were trained on if" in caplog.text


def test_the_input_of_the_docs_starts_anywhere():
    page = pathlib.Path(__file__).parents[1] / "docs" / "resuming.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    names = {"ge": ge, "tf": tf, "NUM_EXAMPLES": 100, "read_row": lambda row: row}
    exec(code, names)

    def batches(pipeline_id, first_batch, number):
        context = tf.distribute.InputContext(2, pipeline_id, 2)
        dataset = names["input_fn"]("train", context, first_batch).take(number)
        return [batch.tolist() for batch in dataset.as_numpy_iterator()]

    # 64 of the 200 examples of two epochs are in a global batch.
    whole = [batches(pipeline_id, 0, 50) for pipeline_id in (0, 1)]
    rest = [batches(pipeline_id, 7, 43) for pipeline_id in (0, 1)]
    assert rest == [part[7:] for part in whole]
    flat = np.stack([np.concatenate(part) for part in whole], 1).ravel()
    for epoch in np.split(flat, len(flat) // 100):
        assert sorted(epoch) == list(range(100))
