"""NaN in variables, which no loss shows."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import gin_estimator as ge
from small import Do, X, Y, checkpoints, eval_input, make, poisoned, train_input


def hiding(x):
    """Does what the relu of some processors does: NaN becomes 0."""
    return tf.where(x > 0, x, 0.0)


def make_network():
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.layers.Dense(8, activation=hiding), keras.layers.Dense(3)])


def hidden(model_dir, **options):
    return make(model_dir, network=make_network, save_checkpoints_steps=3, **options)


def kernel(estimator):
    return estimator.get_variable_value("network/dense/kernel")


def test_it_ends_the_training_before_a_save_and_the_last_good_checkpoint_stays(tmp_path):
    one = hidden(tmp_path)
    spec = ge.EvalSpec(eval_input, exporters=[ge.LatestExporter()])
    with pytest.raises(ge.NanLossDuringTrainingError) as error:
        ge.train_and_evaluate(one, ge.TrainSpec(poisoned, 9), spec)
    text = str(error.value)
    assert "network/dense/kernel became NaN or infinite up to step 6" in text
    assert "model.ckpt-3 is the last good checkpoint" in text and "on_nan='restore'" in text
    assert checkpoints(tmp_path) == [0, 3] and np.isfinite(kernel(one)).all()
    assert np.isfinite(one.evaluate(eval_input)["loss"])
    assert hidden(tmp_path).train(train_input, max_steps=9).state.step == 9


def test_a_step_that_makes_it_is_skipped_if_on_nan_says_so(tmp_path):
    one = hidden(tmp_path, on_nan="restore")
    one.train(poisoned, max_steps=6)
    assert checkpoints(tmp_path) == [0, 3, 6] and np.isfinite(kernel(one)).all()


def test_a_hook_that_sets_it_is_skipped_like_a_batch(tmp_path):
    broken = []

    def breaks(run):
        if not broken:
            broken.append(one.state.modules["network"].layers[0].bias.assign(np.full(8, np.nan)))

    one = hidden(tmp_path, on_nan="restore")
    one.train(train_input, max_steps=6, hooks=[Do(breaks, every_steps=4)])
    assert checkpoints(tmp_path) == [0, 3, 6] and np.isfinite(kernel(one)).all()
    assert [path.name for path in tmp_path.glob("bad_batches/*")] == ["step-6"]


def test_initial_values_with_it_end_the_training_whatever_on_nan_skips(tmp_path):
    def make_bad():
        values = keras.initializers.Constant(np.nan)
        return keras.Sequential([keras.layers.Dense(3, bias_initializer=values)])

    for option in ("restore", "stop"):
        one = make(tmp_path, network=make_bad, on_nan=option)
        with pytest.raises(ge.NanLossDuringTrainingError, match="up to step 0.*initial values"):
            one.train(train_input, max_steps=2)
    assert checkpoints(tmp_path) == []


def test_warn_saves_it_and_another_start_and_an_export_refuse_it(tmp_path, caplog):
    one = hidden(tmp_path, on_nan="warn")
    one.train(poisoned, max_steps=6)
    assert "became NaN or infinite up to step 6" in caplog.text
    assert checkpoints(tmp_path) == [0, 3, 6] and np.isnan(kernel(one)).any()
    path = one.export_saved_model(str(tmp_path / "export"), input_fn=eval_input)
    assert tf.io.gfile.exists(path)
    again = hidden(tmp_path)
    with pytest.raises(ge.NanLossDuringTrainingError, match="model.ckpt-3 has none: delete"):
        again.train(train_input, max_steps=9)
    with pytest.raises(ge.errors.UserValueError, match="network/dense/kernel has NaN or infinity"):
        again.export_saved_model(str(tmp_path / "export"), input_fn=eval_input)
    assert len(list((tmp_path / "export").iterdir())) == 1


def test_infinity_of_a_variable_that_is_not_trained_may_be_meant(tmp_path):
    class Masked(keras.layers.Layer):
        def build(self, _):
            values = np.array([0.0, -np.inf, 0.0], "float32")
            make = keras.initializers.Constant(values)
            self.mask = self.add_weight(shape=(3,), initializer=make, trainable=False)

        def call(self, x):
            return x + tf.maximum(self.mask, -10.0)

    def make_masked():
        return keras.Sequential([keras.layers.Dense(3), Masked()])

    assert len(X) == len(Y)
    one = make(tmp_path, network=make_masked).train(train_input, max_steps=2)
    assert checkpoints(tmp_path) == [0, 2]
    one.export_saved_model(str(tmp_path / "export"), input_fn=eval_input)


def test_fit_keeps_the_last_good_epoch(tmp_path):
    def make_model():
        model = make_network()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss)
        return model

    config = ge.RunConfig(str(tmp_path), save_checkpoints_steps=3)
    with pytest.raises(ge.NanLossDuringTrainingError, match="model.ckpt-3 is the last good"):
        ge.fit(make_model, lambda: poisoned().take(5), epochs=2, config=config)
    assert checkpoints(tmp_path) == [0, 3]
