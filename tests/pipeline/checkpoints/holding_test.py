"""What the modules hold from one call to the next, and what each call makes of it."""

import shutil

import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from tests import fakes

X, Y = fakes.classification_data(rows=24)
TRAIN = fakes.make_input_fn(X, Y, batch_size=8, change=lambda d: d.repeat())
EVAL = fakes.make_input_fn(X, Y, batch_size=24)
ONE = fakes.make_input_fn(X[:3], batch_size=1)
SERVED = ge.build_raw_serving_input_receiver_fn(tf.TensorSpec([None, 6]))


def trained(model_dir, steps, **options):
    return fakes.make_estimator(model_dir, **options).train(TRAIN, steps=steps)


def logits(predictions):
    return np.stack([p["logits"] for p in predictions])


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A checkpoint of step 3 in another model_dir, with other weights."""
    return trained(tmp_path_factory.mktemp("other"), 3).latest_checkpoint()


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """The weights and the evaluation of a run of two steps, and at its beginning."""
    estimator = fakes.make_estimator(tmp_path_factory.mktemp("start"))
    before = estimator.evaluate(EVAL)
    estimator.train(TRAIN, steps=2)
    return before, estimator.evaluate(EVAL), fakes.weights(estimator.model_dir)


def assert_equal(actual, expected):
    assert sorted(actual) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=name)


@pytest.mark.parametrize(
    "look",
    [
        lambda e, path, to: e.evaluate(EVAL, checkpoint_path=path),
        lambda e, path, to: next(e.predict(ONE, checkpoint_path=path)),
        lambda e, path, to: e.export_saved_model(to, SERVED, checkpoint_path=path),
    ],
    ids=["evaluate", "predict", "export"],
)
def test_another_checkpoint_is_looked_at_and_nothing_more(look, tmp_path, other, start):
    estimator = fakes.make_estimator(tmp_path / "run")
    look(estimator, other, str(tmp_path / "exported"))
    assert estimator.global_step == 0
    with pytest.raises(ValueError, match="has no checkpoint to export: train first"):
        estimator.export_saved_model(str(tmp_path), SERVED)
    with pytest.raises(ValueError, match="has no checkpoint: train first"):
        estimator.export_weights("network", str(tmp_path / "a.weights.h5"))
    assert estimator.evaluate(EVAL) == start[0]
    look(estimator, other, str(tmp_path / "exported"))
    estimator.train(TRAIN, steps=2)
    assert estimator.global_step == 2
    assert_equal(fakes.weights(tmp_path / "run"), start[2])
    assert estimator.evaluate(EVAL, checkpoint_path=other)["global_step"] == 3
    assert estimator.evaluate(EVAL) == start[1]


def test_a_warm_start_comes_after_a_look_at_another_checkpoint(tmp_path, other):
    source = trained(tmp_path / "warm", 1).latest_checkpoint()

    def of(name):
        config = ge.RunConfig(model_dir=str(tmp_path / name), tf_random_seed=1)
        factories = {"network": fakes.network, "optimizer": fakes.adam}
        return ge.Estimator(
            fakes.classifier_fn,
            modules=factories,
            config=config,
            warm_start_from=source,
        )

    expected = of("a").train(TRAIN, steps=1)
    looked = of("b")
    looked.evaluate(EVAL, checkpoint_path=other)
    looked.train(TRAIN, steps=1)
    assert_equal(fakes.weights(looked.model_dir), fakes.weights(expected.model_dir))


def test_a_model_dir_that_was_deleted(tmp_path, start):
    estimator = trained(tmp_path / "run", 3)
    shutil.rmtree(tmp_path / "run")
    assert estimator.global_step == 0
    assert estimator.evaluate(EVAL) == start[0]
    assert list((tmp_path / "run/eval").iterdir())
    estimator.train(TRAIN, steps=3)
    estimator.evaluate(EVAL)
    shutil.rmtree(tmp_path / "run")
    estimator.train(TRAIN, steps=2)
    assert_equal(fakes.weights(tmp_path / "run"), start[2])
    estimator.evaluate(EVAL)
    assert list((tmp_path / "run/eval").iterdir())


def test_a_model_dir_that_was_deleted_and_written_again(tmp_path, start):
    estimator = trained(tmp_path, 2, tf_random_seed=5)
    mine = estimator.evaluate(EVAL)
    shutil.rmtree(tmp_path)
    trained(tmp_path, 2)  # The same path, step and size.
    assert estimator.evaluate(EVAL) == start[1] != mine


def test_a_link_that_leads_elsewhere(tmp_path, start):
    trained(tmp_path / "b", 2)
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    estimator = trained(tmp_path / "link", 2, tf_random_seed=5)
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("b")
    assert estimator.evaluate(EVAL) == start[1]


def test_two_estimators_of_one_model_dir(tmp_path, start):
    first, second = trained(tmp_path, 1), fakes.make_estimator(tmp_path)
    second.train(TRAIN, steps=1)
    assert first.evaluate(EVAL)["global_step"] == 2
    first.train(TRAIN, steps=1)
    assert second.evaluate(EVAL) == first.evaluate(EVAL)
    assert second.global_step == 3


class Calls(ge.Hook):
    """Calls something at step 3."""

    def __init__(self, call):
        self.call = call

    def next_step(self, step):
        return 3 if step < 3 else None

    def after_step(self, run):
        self.result = self.call()


@pytest.mark.parametrize("apart", [False, True], ids=["one", "eval_distribute"])
def test_a_run_that_saves_nothing(tmp_path, other, apart):
    """Its weights are there once, and last from call to call."""
    to = {"eval_distribute": tf.distribute.OneDeviceStrategy("CPU:0")} if apart else {}
    saved = trained(tmp_path / "saved", 6)
    estimator = fakes.make_estimator(tmp_path / "run", save_checkpoints_steps=0, **to)
    hook = Calls(lambda: estimator.evaluate(EVAL))
    estimator.train(TRAIN, steps=4, hooks=[hook])
    assert hook.result["global_step"] == 3
    assert estimator.evaluate(EVAL)["global_step"] == 4
    assert estimator.evaluate(EVAL, checkpoint_path=other)["global_step"] == 3
    assert estimator.global_step == 4
    estimator.train(TRAIN, max_steps=4)  # Nothing is left to do.
    estimator.train(TRAIN, max_steps=2)
    assert estimator.global_step == 4
    next(estimator.predict(ONE, checkpoint_path=other))
    # Input begins anew with each call where nothing is saved: after step 3, it is here.
    estimator.train(TRAIN, steps=2)
    straight = fakes.make_estimator(tmp_path / "straight", save_checkpoints_steps=0)
    straight.train(TRAIN, steps=4).train(TRAIN, steps=2)
    assert estimator.evaluate(EVAL) == straight.evaluate(EVAL)
    exported = estimator.export_saved_model(str(tmp_path / "exported"), SERVED)
    served = tf.saved_model.load(exported).signatures["serving_default"]
    got = served(features=tf.constant(X[:3]))["logits"]
    np.testing.assert_allclose(got, logits(straight.predict(ONE)), rtol=1e-5)
    assert fakes.checkpoint_steps(tmp_path / "run") == []
    # Who writes a checkpoint there says where the run stands.
    shutil.copytree(saved.model_dir, tmp_path / "run", dirs_exist_ok=True)
    assert estimator.evaluate(EVAL) == saved.evaluate(EVAL)


def test_training_without_saving_goes_on_from_a_checkpoint(tmp_path, start):
    trained(tmp_path, 2)
    estimator = fakes.make_estimator(tmp_path, save_checkpoints_steps=0)
    estimator.train(TRAIN, steps=1)
    assert estimator.global_step == 3
    assert estimator.evaluate(EVAL)["global_step"] == 3
    estimator.train(TRAIN, steps=1)
    assert estimator.evaluate(EVAL)["global_step"] == 4
    assert fakes.checkpoint_steps(tmp_path) == [0, 2]


@pytest.mark.parametrize("at", [1, 4])
def test_the_live_weights_are_evaluated_on_another_strategy(tmp_path, at):
    """Those of step 3, saved there or not."""
    estimator = fakes.make_estimator(
        tmp_path,
        save_checkpoints_steps=at,
        async_checkpoint=True,
        eval_distribute=tf.distribute.OneDeviceStrategy("CPU:0"),
    )
    hook = Calls(lambda: estimator.evaluate(EVAL))
    estimator.train(TRAIN, max_steps=5, hooks=[hook])
    alone = fakes.make_estimator(tmp_path / "alone", save_checkpoints_steps=3)
    alone.train(TRAIN, max_steps=3)
    expected = alone.evaluate(EVAL)
    assert hook.result["global_step"] == 3
    assert hook.result["loss"] == pytest.approx(expected["loss"], rel=1e-6)


def test_a_checkpoint_that_is_still_being_written_may_be_asked_for(tmp_path):
    estimator = fakes.make_estimator(
        tmp_path, save_checkpoints_steps=3, async_checkpoint=True
    )
    results = []

    class Listener(ge.SavingListener):
        def after_save(self, run):
            path = f"{tmp_path}//model.ckpt-{run.step}"
            results.append(estimator.evaluate(EVAL, checkpoint_path=path))

    estimator.train(TRAIN, max_steps=4, saving_listeners=[Listener()])
    assert [result["global_step"] for result in results] == [0, 3, 4]


def test_a_training_that_fails_has_changed_the_weights_all_the_same(tmp_path, start):
    """What it did after the last checkpoint is not that checkpoint's."""

    def fails():
        def check(pair, number):
            limit = tf.constant(3, tf.int64)
            fine = tf.debugging.assert_less(number, limit, "the fourth batch")
            with tf.control_dependencies([fine]):
                return tf.nest.map_structure(tf.identity, pair)

        return tf.data.Dataset.zip(TRAIN(), tf.data.Dataset.range(100)).map(check)

    estimator = fakes.make_estimator(tmp_path)
    with pytest.raises(Exception, match="the fourth batch"):
        estimator.train(fails, steps=5)
    assert estimator.evaluate(EVAL) == start[0]
    estimator.train(TRAIN, steps=2)
    assert_equal(fakes.weights(tmp_path), start[2])
