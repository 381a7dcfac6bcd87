"""What is configured otherwise than a checkpoint was trained with is not lost."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.checkpoints import checkpoint, checkpoint_reader, settings
from tests import fakes

TRAIN = fakes.make_input_fn(*fakes.classification_data(64), batch_size=8)
RATE = "optimizer/learning_rate"
SEED = "network/dropout/seed_generator_state"


def network(seed=1):
    return keras.Sequential(
        [keras.layers.Dropout(0.5, seed=seed), keras.layers.Dense(fakes.NUM_CLASSES)]
    )


def make(model_dir, rate=0.01, *, seed=1, **options):
    return fakes.make_estimator(
        model_dir,
        network=lambda: network(seed),
        optimizer=lambda: keras.optimizers.SGD(rate),
        **options,
    )


class At(ge.Hook):
    """Calls a function at a step."""

    every_steps = 1

    def __init__(self, step, fn):
        self._step, self._fn = step, fn

    def after_step(self, run):
        if run.step == self._step:
            self._fn()


def lowered(model_dir):
    """A run of two steps at 0.01 whose hook sets 0.001 in the first."""
    seen = []

    def model_fn(features, labels, mode, network, optimizer, params):
        seen.append(optimizer)
        return fakes.classifier_fn(features, labels, mode, network, optimizer, params)

    hook = At(1, lambda: setattr(seen[0], "learning_rate", 0.001))
    return make(model_dir, model_fn=model_fn).train(TRAIN, max_steps=2, hooks=[hook])


def said(log):
    return [line for line in log() if "configured now" in line]


@pytest.mark.parametrize(
    "config",
    [{"async_checkpoint": True}, {"devices": ("CPU:0", "CPU:1")}],
    ids=["one", "two"],
)
def test_a_rate_and_a_seed_that_are_configured_otherwise_are_taken(
    config, tmp_path, log
):
    make(tmp_path, 0.01, **config).train(TRAIN, max_steps=1)
    make(tmp_path, 0.01, **config).train(TRAIN, max_steps=2)
    assert not said(log)
    make(tmp_path, 0.0, seed=2, **config).train(TRAIN, max_steps=3)
    assert said(log) == [
        "train | seed of network/dropout: 2 as configured now; the checkpoint was "
        "trained with 1",
        "train | learning_rate of optimizer: 0 as configured now; the checkpoint was "
        "trained with 0.01",
    ]
    kernels, states, rates = (
        [
            checkpoint.read_value(checkpoint.path_of(tmp_path, n), name)
            for n in (1, 2, 3)
        ]
        for name in ("network/dense/kernel", SEED, RATE)
    )
    assert (kernels[0] != kernels[1]).any()
    assert (kernels[1] == kernels[2]).all()
    drawn = states[0][1]
    assert [s.tolist() for s in states] == [[1, drawn], [1, 2 * drawn], [2, drawn]]
    assert rates == [np.float32(0.01), np.float32(0.01), 0]


def test_a_rate_that_a_hook_lowered_stays(tmp_path, log):
    lowered(tmp_path).train(TRAIN, max_steps=3)
    again = make(tmp_path, 0.01).train(TRAIN, max_steps=4)
    assert again.get_variable_value(RATE) == np.float32(0.001)
    assert not said(log)
    other = make(tmp_path, 0.02).train(TRAIN, max_steps=5)
    assert other.get_variable_value(RATE) == np.float32(0.02)
    assert said(log)[0].endswith("trained with 0.001, and 0.01 configured")


def test_neither_a_kill_nor_an_evaluation_before_changes_the_decision(tmp_path, log):
    def killed():
        raise RuntimeError("killed")

    make(tmp_path, 0.01).train(TRAIN, max_steps=2)
    with pytest.raises(RuntimeError, match="killed"):
        make(tmp_path, 0.02).train(TRAIN, max_steps=6, hooks=[At(3, killed)])
    again = make(tmp_path, 0.02)
    again.evaluate(TRAIN)
    again.train(TRAIN, max_steps=3)
    assert again.get_variable_value(RATE) == np.float32(0.02)
    assert len(said(log)) == 2


def test_a_checkpoint_without_a_record(tmp_path, log, monkeypatch):
    """As earlier versions have saved them."""
    with monkeypatch.context() as patched:
        patched.setattr(settings.Configured, "record", lambda self: {})
        lowered(tmp_path)
    path = make(tmp_path).latest_checkpoint()
    assert "driver/configured" not in checkpoint_reader.Reader(path).shapes
    for steps in (3, 4):
        make(tmp_path, 0.01).train(TRAIN, max_steps=steps)
        assert said(log) == [
            "train | learning_rate of optimizer: 0.01 as configured now; the "
            "checkpoint was trained with 0.001"
        ]


def test_a_schedule_instead_of_a_constant_and_back(tmp_path, log):
    make(tmp_path, 0.01).train(TRAIN, max_steps=1)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    make(tmp_path, schedule).train(TRAIN, max_steps=2)
    back = make(tmp_path, 0.03)
    assert back.evaluate(TRAIN)["global_step"] == 2
    back.train(TRAIN, max_steps=3)
    assert back.get_variable_value(RATE) == np.float32(0.03)
    start = "train | learning_rate of optimizer: "
    assert said(log) == [
        f"{start}a schedule as configured now; the checkpoint was trained with a "
        "constant",
        f"{start}0.03 as configured now; the checkpoint was trained with a schedule",
    ]


class Parts(tf.Module):
    """State that is no weight: a constant, tables, a vocabulary, adapted numbers."""

    def __init__(self, number, words, adapted):
        super().__init__()
        self.temperature = tf.Variable(float(number), trainable=False)
        self.weight = tf.Variable(1.0)
        self.counter = tf.Variable(0, trainable=False)
        self.table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
        self.table.insert(words, tf.range(len(words), dtype=tf.int64))
        self.lookup = keras.layers.StringLookup(vocabulary=words)
        self.normalization = keras.layers.Normalization()
        self.normalization.adapt(np.array(adapted, np.float32)[:, np.newaxis])


def parts_estimator(model_dir, *arguments):
    def model_fn(features, labels, mode, parts, optimizer):
        scaled = parts.normalization(features) * parts.temperature
        return ge.EstimatorSpec(
            mode,
            loss=tf.reduce_mean(tf.square(scaled * parts.weight), axis=1),
            train_op=ge.TrainOp(optimizer, [parts.weight]),
            predictions=scaled,
        )

    return ge.Estimator(
        model_fn,
        modules={
            "parts": lambda: Parts(*arguments),
            "optimizer": lambda: keras.optimizers.SGD(0.01),
        },
        config=ge.RunConfig(model_dir=str(model_dir)),
    )


def test_a_program_computes_by_the_checkpoint_that_is_loaded(tmp_path):
    """Normalization makes constants of its variables, which a program would keep."""
    x = np.array([[3.0], [5.0]], np.float32)
    rows = fakes.make_input_fn(x, batch_size=2)
    paths = [
        parts_estimator(tmp_path / name, 1.0, ["a"], adapted)
        .train(rows, max_steps=1)
        .latest_checkpoint()
        for name, adapted in (("one", [0.0, 2.0]), ("two", [0.0, 4.0]))
    ]
    looks = parts_estimator(tmp_path / "three", 1.0, ["a"], [7.0, 9.0])
    found = [list(looks.predict(rows, checkpoint_path=path)) for path in paths]
    np.testing.assert_allclose(found, [[[2], [4]], [[0.5], [1.5]]], rtol=1e-5)


def test_constants_and_items_that_differ_are_told_and_stay(tmp_path, log):
    x = np.array([[3.0], [5.0]], np.float32)
    data = fakes.make_input_fn(x, batch_size=2, change=lambda rows: rows.repeat(9))

    first = parts_estimator(tmp_path, 2.0, ["a", "b"], [0.0, 2.0])
    first.train(data, max_steps=2)
    assert not [line for line in log() if "as configured now" in line]
    other = parts_estimator(tmp_path, 4.0, ["b", "a"], [10.0, 20.0])
    # By the mean 1, the deviation 1 and the temperature 2 of the checkpoint.
    found = list(other.predict(fakes.make_input_fn(x, batch_size=2)))
    np.testing.assert_allclose(found, [[4.0], [8.0]], rtol=1e-5)
    other.train(data, max_steps=3)
    lines = [line for line in log() if "as configured now" in line]
    assert [line.split()[2] for line in lines] == [
        "parts/temperature",
        "parts/table",
        "parts/lookup",
        "parts/normalization/mean",
        "parts/normalization/variance",
    ]
    assert "is 4.0 as configured now, and was 2.0 when" in lines[0]
    assert "the checkpoint's are taken" in lines[1]
    assert "what was learnt for one may stand for another" in lines[2]


def test_what_is_configured_the_same_way_is_not_told(tmp_path, log):
    x = np.ones([8, 1], np.float32)
    data = fakes.make_input_fn(x, batch_size=2)
    for steps in (1, 2):
        one = parts_estimator(tmp_path, 2.0, ["a", "b"], [0.0, 2.0])
        one.train(data, max_steps=steps)
    assert not [line for line in log() if "as configured now" in line]
