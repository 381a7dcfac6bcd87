"""on_nan='restore': training goes on without the batches that led to a bad loss."""

import json

import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.rescue import bad_batches
from tests import fakes

ROWS = 4
X, Y = fakes.classification_data(rows=60 * ROWS)


def data(x=X, *, without=(), change=lambda batches: batches, size=ROWS):
    """Returns an input_fn over batches in order, but for some, numbered from 1."""
    kept = [n for n in range(len(x) // size) if n + 1 not in without]
    rows = np.concatenate([np.arange(size * n, size * (n + 1)) for n in kept])

    def input_fn():
        y = np.resize(Y, len(x))
        pairs = tf.data.Dataset.from_tensor_slices((x[rows], y[rows]))
        return change(pairs.batch(size))

    return input_fn


def poisoned(numbers, x=X, size=ROWS, value=np.nan):
    """Returns rows of which the last one of some batches is no good."""
    x = x.copy()
    for number in numbers:
        x[size * number - 1, 2] = value
    return x


def make(model_dir, **config):
    defaults = {"network": lambda: fakes.network(dropout=0.3)}
    settings = {"save_checkpoints_steps": 10, "on_nan": "restore"}
    return fakes.make_estimator(model_dir, **{**defaults, **settings, **config})


def named(model_dir):
    """Returns the numbers of the batches that were left out."""
    found = []
    for step in bad_batches.steps_in(str(model_dir)):
        with open(f"{bad_batches.folder_of(str(model_dir), step)}/left_out.json") as f:
            found += [each["batch"] for each in json.load(f)]
    return found


def differing(model_dir, other):
    """Returns which variables differ, but for the step at which the pass began."""
    ours, theirs = fakes.weights(model_dir), fakes.weights(other)
    assert sorted(ours) == sorted(theirs)
    return [
        key
        for key in ours
        if "input_start" not in key and not np.array_equal(ours[key], theirs[key])
    ]


def check_left_out(tmp_path, train, numbers, **config):
    """Checks that a training leaves out these batches, and ends as without them.

    Args:
      tmp_path: folder for two trainings.
      train: takes an Estimator and what `data` takes; trains it.
      numbers: batches to be left out.
      **config: see `make`.
    """
    train(make(tmp_path / "ours", **config), {})
    assert named(tmp_path / "ours") == list(numbers)
    config["on_nan"] = "stop"
    train(make(tmp_path / "theirs", **config), {"without": numbers})
    assert not differing(tmp_path / "ours", tmp_path / "theirs")
    assert all(np.isfinite(v).all() for v in fakes.weights(tmp_path / "ours").values())


def test_three_poisoned_batches_of_a_thousand(tmp_path, caplog):
    x, _ = fakes.classification_data(rows=1000)
    bad = poisoned([171, 420, 421], x, size=1)

    def train(estimator, options):
        estimator.train(data(bad, size=1, **options))

    check_left_out(tmp_path, train, [171, 420, 421], save_checkpoints_steps=150)
    told = [m for m in caplog.messages if "is left out" in m]
    assert [m.partition(" is left out")[0] for m in told] == [
        "train | batch 171 of its pass (step 171, digest "
        f"{bad_batches.digest_of([(bad[170:171], Y[170:171])])}, NaN or Inf in "
        "features, example 0)",
        told[1].partition(" is left out")[0],
        told[2].partition(" is left out")[0],
    ]
    assert "ended at step 997" in caplog.text
    loss = make(tmp_path / "ours").evaluate(data())["loss"]
    assert np.isfinite(loss)


def shuffled(batches):
    return batches.shuffle(20, seed=5).repeat(2)


def unsaved(batches):
    return shuffled(batches).map(lambda x, y: (x + 0 * tf.random.uniform([]), y))


@pytest.mark.parametrize(
    "change, starts_anywhere", [(unsaved, False), (shuffled, True)]
)
def test_any_order_and_position_of_the_input(tmp_path, change, starts_anywhere):
    def train(name, on_nan, last=lambda batches: batches):
        def input_fn():
            return last(data(poisoned([9, 31]), change=change)())

        def from_batch(first_batch):
            return input_fn().skip(first_batch)

        estimator = make(tmp_path / name, on_nan=on_nan, max_restores=9)
        estimator.train(from_batch if starts_anywhere else input_fn)

    train("ours", "restore")
    finite = lambda x, _: tf.reduce_all(tf.math.is_finite(x))  # noqa: E731
    train("theirs", "stop", lambda batches: batches.filter(finite))
    assert len(named(tmp_path / "ours")) == 4
    assert not differing(tmp_path / "ours", tmp_path / "theirs")


def root_fn(features, labels, mode, network, optimizer):
    """A finite loss, whose gradient is NaN where a row is all zeros."""
    spec = fakes.classifier_fn(features, labels, mode, network, optimizer, {})
    kernel = network.layers[0].kernel
    size = tf.sqrt(tf.reduce_sum(tf.square(tf.matmul(features, kernel)), 1))
    return ge.EstimatorSpec(
        mode, loss=spec.loss + 0.1 * size, train_op=spec.train_op, metrics=spec.metrics
    )


def test_a_finite_loss_whose_gradient_is_not(tmp_path):
    """The next loss is NaN. The second one is of step 20, and in its checkpoint."""
    bad = X.copy()
    bad[[ROWS * 16 - 1, ROWS * 21 - 1]] = 0

    def train(estimator, options):
        estimator.train(data(bad, **options), max_steps=40)

    check_left_out(tmp_path, train, [16, 21], model_fn=root_fn)


def two_ops_fn(features, labels, mode, network, optimizer, other):
    spec = fakes.classifier_fn(features, labels, mode, network, optimizer, {})
    if mode != ge.ModeKeys.TRAIN:
        return spec
    first, last = network.trainable_variables[:2], network.trainable_variables[2:]
    return ge.EstimatorSpec(
        mode,
        loss=spec.loss,
        train_op=[
            ge.TrainOp(optimizer, first),
            ge.TrainOp(other, last, every=2, sequential=True),
        ],
    )


def test_several_train_ops_and_all_batches_of_a_step(tmp_path):
    """A step takes two micro-batches, and two replicas share each; it is replayed."""

    def train(model_dir, on_nan, without=()):
        config = ge.RunConfig(
            model_dir=str(model_dir),
            tf_random_seed=1,
            on_nan=on_nan,
            save_checkpoints_steps=4,
            gradient_accumulation_steps=2,
            train_distribute=tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
        )
        factories = {"optimizer": fakes.adam, "other": fakes.adam}
        factories["network"] = fakes.network
        estimator = ge.Estimator(two_ops_fn, modules=factories, config=config)
        estimator.train(data(poisoned([14]), without=without), max_steps=12)
        return estimator

    ours = train(tmp_path / "ours", "restore")
    train(tmp_path / "theirs", "stop", without=[13, 14])
    assert named(tmp_path / "ours") == [7]  # Of batches of two elements.
    assert not differing(tmp_path / "ours", tmp_path / "theirs")
    for path in (tmp_path / "theirs" / "hooks").iterdir():
        assert "Restoring" not in path.read_text()
    replayed = ge.replay(ours, tmp_path / "ours" / "bad_batches" / "step-7")
    first, second = replayed.elements
    assert (first.batch, first.cause, second.cause.where) == (7, None, ("loss",))
    assert second.cause.held == ("features, example 3",)
    assert second.examples.alone == (3,)


class Dies(ge.Hook):
    def __init__(self, step):
        self._step = step

    def next_step(self, step):
        return self._step if step < self._step else None

    def after_step(self, run):
        raise InterruptedError


TWICE = data(poisoned([17, 18, 41]), change=lambda batches: batches.repeat(2))


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A training that leaves out six batches, and is not killed."""
    model_dir = tmp_path_factory.mktemp("straight")
    make(model_dir, max_restores=10).train(TWICE)
    assert len(named(model_dir)) == 6
    return model_dir


def test_killed_and_resumed_is_not_killed(tmp_path, straight):
    """Killed before the next checkpoint, and after it."""
    for step in (18, 25):
        with pytest.raises(InterruptedError):
            make(tmp_path, max_restores=10).train(TWICE, hooks=[Dies(step)])
    make(tmp_path, max_restores=10).train(TWICE)
    assert not differing(tmp_path, straight)
    ours, theirs = (d / "hooks/model.ckpt-114.json" for d in (tmp_path, straight))
    assert json.loads(ours.read_text()) == json.loads(theirs.read_text())


def test_too_many_bad_steps_end_it_and_are_named(tmp_path):
    estimator = make(tmp_path, max_restores=2)
    with pytest.raises(ge.NanLossDuringTrainingError) as raised:
        estimator.train(data(poisoned([3, 8, 21])))
    words = str(raised.value)
    assert "infinite at step 19, after 2 times of going back (max_restores=2)." in words
    assert "batch 3 of its pass (step 3, digest " in words
    assert "batch 8 of its pass (step 7, digest " in words
    assert "write RunConfig(max_restores=5)" in words


def test_where_no_batch_held_nan_itself_earlier_ones_are_left_out_too(tmp_path):
    """The user's hook says so of a step that is bad whatever its batch is."""

    class Says(ge.Hook):
        every_steps = 1
        leaves_out = True
        bad = [25, 25, 24]

        def after_loop(self, run):
            if run.step in self.bad[:1]:
                run.leave_out(self.bad.pop(0), "it is said")

    make(tmp_path).train(data(), hooks=[Says()], max_steps=40)
    # At first batch 25; then that before and that after it; then three before it.
    assert named(tmp_path) == [21, 22, 23, 24, 25, 26, 27]


def test_record_ends_the_training_and_writes_the_batch(tmp_path):
    bad = poisoned([17])
    with pytest.raises(ge.NanLossDuringTrainingError) as raised:
        make(tmp_path, on_nan="record").train(data(bad))
    folder = bad_batches.folder_of(str(tmp_path), 17)
    assert f"the weights before it, are in {folder}." in str(raised.value)
    assert fakes.checkpoint_steps(tmp_path) == [0, 10]
    assert tf.train.latest_checkpoint(folder).endswith("model.ckpt-16")
    (number, ((x, y),)) = next(iter(bad_batches.read(folder).items()))
    assert number == 17
    np.testing.assert_array_equal(x, bad[64:68])
    np.testing.assert_array_equal(y, Y[64:68])


def test_batches_of_any_structure_are_written(tmp_path):
    element = (
        {
            "text": tf.constant([b"a\0b", b"\xff"]),
            "deep": tf.ragged.constant([[[1.0], [np.inf]], [[]]]),
            "words": tf.ragged.constant([[1.0], [2.0, np.nan]]),
            "sparse": tf.sparse.from_dense([[0.0, 1.0], [0.0, 0.0]]),
            "nest": (tf.zeros([2, 0]), {"b": tf.constant([True, False])}),
        },
        tf.constant([1.0, np.inf]),
    )
    batch = bad_batches.LeftOut([element], 3, 1, 2)
    bad_batches.write(str(tmp_path), batch)
    ((found,),) = bad_batches.read(str(tmp_path)).values()
    tf.nest.assert_same_structure(found, element, expand_composites=True)
    assert bad_batches.digest_of([found]) == bad_batches.digest_of([element])
    assert bad_batches.not_finite(found) == [
        "features['deep']",
        "features['words']",
        "labels, example 1",
    ]


def test_what_cannot_be_is_refused_before_training(tmp_path):
    with pytest.raises(ValueError, match="write save_checkpoints_steps=1000, or write"):
        make(tmp_path, save_checkpoints_steps=0).train(data(), max_steps=1)
