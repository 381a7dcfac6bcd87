"""Objects that a user gives to `compile`, and their names."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_test import Break, X, Y, assert_same, by_keras, data, difference

import gin_estimator as ge


class Above(keras.metrics.Metric):
    """Counts large inputs; Keras cannot make it again from its configuration."""

    def __init__(self, least):
        super().__init__(name="above")
        self.least = least
        self.count = self.add_variable((), "zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.count.assign_add(keras.ops.sum(keras.ops.cast(y_pred > self.least, "float32")))

    def result(self):
        return 1.0 * self.count  # In `fit` a variable would have the count of the validation.


class Near(keras.metrics.MeanMetricWrapper):
    """A subclass of a metric of Keras with an argument that it does not save."""

    def __init__(self, width):
        super().__init__(lambda y, p: abs(y - p)[:, 0] < width / 4, "near")


def test_metrics_are_the_users_objects_on_two_replicas_and_stay_as_they_are(tmp_path):
    above, near = Above(0.5), Near(2.0)
    above.least = 0.4  # It is set after the constructor.
    late = keras.metrics.F1Score(average="macro", name="f1")  # It makes its variables late.

    def make():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.layers.Dense(3, "softmax")])
        model.compile("sgd", "categorical_crossentropy", metrics=[above, near, late])
        return model

    def input_fn():
        return data().map(lambda x, y: (x, tf.one_hot(y, 3)))

    config = ge.RunConfig(str(tmp_path), devices=("CPU:0", "CPU:1"))
    result = ge.fit(make, input_fn, epochs=2, validation_data=input_fn, config=config)
    for each in (above, near, late):
        assert each.variables and not any(np.any(v) for v in each.variables)
    saved = tf.train.list_variables(str(tmp_path))
    assert not [name for name, _ in saved if "count" in name or "positives" in name]
    assert_same(result, by_keras(make, input_fn, input_fn, epochs=2))


def test_names_of_metrics_and_outputs_are_those_of_a_new_process(tmp_path):
    def make():
        inputs = keras.Input([4])
        outputs = [keras.layers.Dense(1, "sigmoid")(inputs) for _ in range(2)]
        model = keras.Model(inputs, outputs)
        metrics = [[keras.metrics.AUC(), keras.metrics.AUC()], ["mae"]]
        model.compile("sgd", ["mse", "mse"], metrics=metrics)
        return model

    def input_fn():
        labels = (Y[:64, None] > 1).astype("float32")
        return tf.data.Dataset.from_tensor_slices((X[:64], (labels, labels))).batch(32)

    config = ge.RunConfig(str(tmp_path))
    stop = keras.callbacks.EarlyStopping("val_dense_auc_1", mode="max", patience=1)
    for epochs in (1, 9):
        options = {"validation_data": input_fn, "callbacks": [stop], "config": config}
        history = ge.fit(make, input_fn, epochs=epochs, **options).history
    expected = {"loss", "dense_loss", "dense_1_loss", "dense_auc", "dense_auc_1", "dense_1_mae"}
    assert {name for name in history if not name.startswith("val_")} == expected
    assert len({len(values) for values in history.values()}) == 1


def test_a_layer_from_outside_may_have_the_name_of_a_new_one(tmp_path):
    keras.utils.clear_session()
    outside = keras.layers.Rescaling(0.5)

    def make():
        model = keras.Sequential([outside, keras.layers.Rescaling(2.0), keras.layers.Dense(3)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    assert len(ge.fit(make, data, config=ge.RunConfig(str(tmp_path))).history["loss"]) == 1


@pytest.mark.parametrize("devices", [None, ("CPU:0", "CPU:1")])
def test_the_weights_are_the_averages_of_use_ema_where_a_training_has_ended(tmp_path, devices):
    def make():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.layers.Dense(3, "softmax")])
        optimizer = keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.9)
        model.compile(optimizer, "sparse_categorical_crossentropy")
        return model

    options = {"validation_data": data, "config": ge.RunConfig(str(tmp_path), devices=devices)}
    with pytest.raises(KeyboardInterrupt):
        ge.fit(make, data, epochs=2, hooks=[Break(6)], **options)
    result = ge.fit(make, data, epochs=2, **options)  # It continues the live weights of epoch 1.
    model, history = by_keras(make, data, data, epochs=2)
    assert_same(result, (model, history))
    loss = model.evaluate(data(), verbose=0)
    assert result.estimator.evaluate(data)["loss"] == pytest.approx(loss, abs=1e-6)
    result = ge.fit(make, data, epochs=3, **options)  # As the second call of `fit`.
    model.fit(data(), verbose=0)
    assert difference(result.model, model) < 1e-5
