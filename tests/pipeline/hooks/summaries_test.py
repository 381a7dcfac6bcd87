"""Summaries, from model_fn to what TensorBoard reads, over replicas and steps."""

import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from tests import fakes, shown

# The last batch has one row, so that a second replica has none.
ROWS, BATCH, EVERY = 331, 30, 5


def two_replicas():
    return tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


CASES = {
    "one": {},
    "replicas and micro-batches": {
        "gradient_accumulation_steps": 3,
        "train_distribute": two_replicas,
    },
    "eager": {"run_eagerly": True},
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_shown_is_the_same_however_the_examples_lie(tmp_path, case):
    options = dict(CASES[case])
    micro = options.get("gradient_accumulation_steps", 1)
    if "train_distribute" in options:
        options["train_distribute"] = options["train_distribute"]()
    x, y = fakes.classification_data(ROWS)
    # A step's batch is cut for replicas, and made of several for micro-batches.
    input_fn = fakes.make_input_fn(x, y, batch_size=BATCH // micro)
    estimator = fakes.make_estimator(
        tmp_path, model_fn=shown.model_fn, save_summary_steps=EVERY, **options
    )
    estimator.train(input_fn, max_steps=11)
    trained = shown.read(tmp_path)
    for step in (5, 10):
        rows = slice((step - 1) * BATCH, step * BATCH)
        found = {name: by_step[step] for name, by_step in trained.items()}
        assert found.pop("kernel") == 6 * 8
        assert found == shown.expected(x[rows], y[rows])
    assert all(list(by_step) == [5, 10] for by_step in trained.values())
    estimator.evaluate(input_fn)
    evaluated = shown.read(tmp_path / "eval")
    found = {name: by_step[11] for name, by_step in evaluated.items()}
    assert found.pop("kernel") == 6 * 8
    assert found == shown.expected(x, y)


def test_no_step_between_computes_what_is_shown(tmp_path):
    calls = []

    def on_shown(values):
        calls.append(len(values))
        return values

    x, y = fakes.classification_data(ROWS)
    estimator = fakes.make_estimator(
        tmp_path,
        model_fn=shown.model_fn,
        save_summary_steps=EVERY,
        params={"on_shown": on_shown},
    )
    estimator.train(fakes.make_input_fn(x, y, batch_size=BATCH), max_steps=11)
    assert calls == [BATCH, BATCH]


def test_training_is_the_same_with_summaries_and_without(tmp_path):
    x, y = fakes.classification_data(ROWS)
    input_fn = fakes.make_input_fn(x, y, batch_size=BATCH)
    found = []
    for every in (None, 4):
        folder = tmp_path / str(every)
        recorder = fakes.Recorder(3)
        estimator = fakes.make_estimator(
            folder,
            model_fn=shown.model_fn,
            save_summary_steps=every,
            network=lambda: fakes.network(dropout=0.5),
        )
        estimator.train(input_fn, hooks=[recorder])
        assert estimator.global_step == 12
        losses = [values["loss"] for values in recorder.values]
        found.append((fakes.weights(folder), losses))
    for weights, losses in found[1:]:
        # Sums that are cut at other steps are rounded otherwise.
        assert losses == pytest.approx(found[0][1], rel=1e-6)
        for name, value in weights.items():
            np.testing.assert_array_equal(value, found[0][0][name])


def test_an_input_that_ends_before_the_summary_step_shows_nothing(tmp_path):
    x, y = fakes.classification_data(100)
    # Its length is not known: each step asks whether any data are left.
    unknown = fakes.make_input_fn(
        x, y, batch_size=10, change=lambda d: d.filter(lambda *_: True)
    )
    for name, input_fn in (
        ("known", fakes.make_input_fn(x, y, batch_size=10)),
        ("unknown", unknown),
    ):
        estimator = fakes.make_estimator(
            tmp_path / name, model_fn=shown.model_fn, save_summary_steps=7
        )
        estimator.train(input_fn)
        assert estimator.global_step == 10
        assert list(shown.read(tmp_path / name)["classes"]) == [7]


def test_xla_compiles_all_but_texts(tmp_path):
    x, y = fakes.classification_data(40)
    input_fn = fakes.make_input_fn(x, y, batch_size=20)

    def make(**params):
        return fakes.make_estimator(
            tmp_path,
            model_fn=shown.model_fn,
            save_summary_steps=2,
            jit_compile=True,
            params=params,
        )

    with pytest.raises(ValueError, match="summary 'texts' is a text, and XLA"):
        make().train(input_fn)
    estimator = make(no_text=True)
    estimator.train(input_fn)
    estimator.evaluate(input_fn)
    expected = shown.expected(x, y)
    found = shown.read(tmp_path / "eval")
    assert found["classes"][2] == expected["classes"]
    assert found["worst"][2] == expected["worst"]
    assert found["curve"][2] == expected["curve"]
    trained = shown.read(tmp_path)
    assert trained["first"][2] == shown.expected(x[20:], y[20:])["first"]


class Killed(ge.Hook):
    """Breaks off a training between two checkpoints, once it has shown a step."""

    every_steps = 7

    def after_step(self, run):
        raise KeyboardInterrupt


def test_a_run_that_was_killed_and_goes_on_shows_the_same(tmp_path):
    """Also of step 6, which it comes to twice."""
    x, y = fakes.classification_data(ROWS)

    def train(name, *hooks):
        fakes.make_estimator(
            tmp_path / name,
            model_fn=shown.model_fn,
            network=lambda: fakes.network(dropout=0.5),
            save_summary_steps=3,
            save_checkpoints_steps=4,
            run_eagerly=True,
        ).train(
            fakes.make_input_fn(
                x, y, batch_size=BATCH, change=lambda d: d.shuffle(100, 3).repeat()
            ),
            max_steps=12,
            hooks=hooks,
        )
        return shown.read(tmp_path / name)

    whole = train("whole")
    assert all(list(by_step) == [3, 6, 9, 12] for by_step in whole.values())
    assert len({str(texts) for texts in whole["texts"].values()}) == 4
    with pytest.raises(KeyboardInterrupt):
        train("killed", Killed())
    assert train("killed") == whole
