"""Mistakes in model_fn and its modules: one row a mistake, see `mistakes.py`."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from tests import fakes, mistakes
from tests.mistakes import X, changed, data, train

table = mistakes.Table()
told = table.told


# model_fn.


@told("returned None in mode 'train'", "return EstimatorSpec(mode, ...)")
def model_fn_returns_nothing(model_dir):
    def model_fn(features, labels, mode, network, optimizer):
        changed()(features, labels, mode, network, optimizer)

    train(model_dir, model_fn=model_fn)


@told("returned SymbolicTensor", "return EstimatorSpec(mode, ...)")
def model_fn_returns_the_loss(model_dir):
    def model_fn(features, labels, mode, network, optimizer):
        return changed()(features, labels, mode, network, optimizer).loss

    train(model_dir, model_fn=model_fn)


@told("mode 'train' needs loss", "EstimatorSpec(mode, loss=keras.losses")
def model_fn_without_loss(model_dir):
    train(model_dir, model_fn=changed(loss=None))


@told(
    "mode 'train' needs train_op",
    "train_op=TrainOp(optimizer, network.trainable_variables)",
)
def model_fn_without_train_op(model_dir):
    train(model_dir, model_fn=changed(train_op=None))


@told(
    "loss has shape (3,) for a batch of any number",
    "per-example losses [batch, ...] or the scalar mean",
)
def loss_of_the_wrong_rank(model_dir):
    train(model_dir, model_fn=changed(loss=lambda logits: tf.zeros([3])))


@told("loss has shape (3,) for a batch of 16", "per-example losses")
def loss_of_another_length(model_dir):
    train(
        model_dir,
        input_fn=lambda: data()().unbatch().batch(16, drop_remainder=True),
        model_fn=changed(loss=lambda logits: tf.reduce_sum(logits, 0)),
    )


@told("loss has shape (1, None, 3)", "per-example losses")
def loss_of_one_row_of_two_dimensions(model_dir):
    train(model_dir, model_fn=changed(loss=lambda logits: logits[None]))


@told("loss is Huber", "not a tensor")
def loss_is_a_function(model_dir):
    train(model_dir, model_fn=changed(loss=lambda logits: keras.losses.Huber()))


@told("loss has dtype int64; it must be floating point")
def loss_of_ints(model_dir):
    train(model_dir, model_fn=changed(loss=lambda logits: tf.argmax(logits, 1)))


@told("depends on none of TrainOp.variables", "network's output inside of model_fn")
def loss_that_depends_on_nothing(model_dir):
    train(model_dir, model_fn=changed(loss=lambda logits: tf.ones_like(logits[:, 0])))


@told(
    "train_op is Operation", "train_op=TrainOp(optimizer, network.trainable_variables)"
)
def train_op_of_tf_estimator(model_dir):
    train(model_dir, model_fn=changed(train_op=lambda logits: tf.no_op()))


@told("mode is 'TRAIN', not one of", "pass on the `mode`")
def mode_in_capitals(model_dir):
    train(
        model_dir,
        model_fn=lambda features, labels, network, optimizer: ge.EstimatorSpec(
            "TRAIN", loss=labels
        ),
    )


@told("TrainOp.optimizer is type", "take `optimizer` in model_fn")
def optimizer_that_is_a_class(model_dir):
    def train_op(logits):
        return ge.TrainOp(keras.optimizers.Adam, [])

    train(model_dir, model_fn=changed(train_op=train_op))


@told("TrainOp.variables is Dense", "TrainOp(optimizer, network.trainable_variables)")
def variables_that_are_the_network(model_dir):
    ge.TrainOp(keras.optimizers.SGD(), keras.layers.Dense(1))


@told("metrics has the name 'loss'", "choose another")
def metric_named_loss(model_dir):
    train(model_dir, model_fn=changed(metrics={"loss": 1.0}))


@told("metric 'mean' is Mean", "write metric(keras.metrics")
def metric_object(model_dir):
    train(model_dir, model_fn=changed(metrics={"mean": keras.metrics.Mean()}))


@told("metric 'accuracy' (SparseCategoricalAccuracy)", "shapes [(1, 3)]", "'y_pred'")
def metric_that_does_not_fit(model_dir):
    def metrics(logits):
        accuracy = keras.metrics.SparseCategoricalAccuracy
        return {"accuracy": ge.metric(accuracy, logits)}

    train(model_dir, model_fn=changed(metrics=metrics))


@told("metric 'mse' (MeanSquaredError)", "shapes [(1, 2), (1, 3)]", "[1,2] vs. [1,3]")
def metric_of_other_shapes(model_dir):
    def metrics(logits):
        return {"mse": ge.metric(keras.metrics.MeanSquaredError, logits[:, :2], logits)}

    train(model_dir, model_fn=changed(metrics=metrics))


@told("NaN or infinite at step 3", "clip_norm=1.0")
def nan_at_step_three(model_dir):
    def model_fn(features, labels, mode, network, optimizer, step):
        spec = changed()(features, labels, mode, network, optimizer)
        loss = tf.where(tf.equal(step, 2), np.nan, spec.loss)
        return ge.EstimatorSpec(mode, loss=loss, train_op=spec.train_op)

    train(model_dir, model_fn=model_fn)


@told("KeyError: 'imgae'", "features {image: float32 [None, 6]}", 'features["imgae"]')
def a_wrong_feature_name(model_dir):
    def model_fn(features, labels, mode, network, optimizer):
        return changed()(features["imgae"], labels, mode, network, optimizer)

    train(model_dir, model_fn=model_fn, input_fn=data({"image": X}))


@told("mode 'train'", "Cast string to float is not supported", "network(features)")
def a_feature_of_the_wrong_kind(model_dir):
    train(model_dir, model_fn=changed(), input_fn=data(np.array(["a"] * 64)[:, None]))


@told("as a Python `bool`", "mode 'train'", "if step > 2:")
def python_branch_on_a_tensor(model_dir):
    def model_fn(features, labels, mode, network, optimizer, step):
        if step > 2:
            labels = labels * 0
        return changed()(features, labels, mode, network, optimizer)

    train(model_dir, model_fn=model_fn)


@told("no attribute 'numpy'", "mode 'train'", "features.numpy() / 255")
def numpy_of_a_tensor(model_dir):
    def model_fn(features, labels, mode, network, optimizer):
        features = features.numpy() / 255
        return changed()(features, labels, mode, network, optimizer)

    train(model_dir, model_fn=model_fn)


@told("no attribute 'call_it'", "mode 'train'", "network.call_it")
def a_typo_in_model_fn(model_dir):
    def model_fn(features, labels, mode, network, optimizer):
        return changed()(features, labels, mode, network.call_it, optimizer)

    train(model_dir, model_fn=model_fn)


@told("mode 'infer'", "labels None", "return EstimatorSpec(mode, predictions=...)")
def no_output_in_predict(model_dir):
    estimator = train(model_dir, model_fn=changed())
    next(estimator.predict(data()))


@told("{'mean': ()}", "yield_single_examples=False")
def predictions_without_a_batch_dimension(model_dir):
    def model_fn(features, labels, mode, network, optimizer):
        if mode == ge.ModeKeys.PREDICT:
            mean = tf.reduce_mean(network(features))
            return ge.EstimatorSpec(mode, predictions={"mean": mean})
        return changed()(features, labels, mode, network, optimizer)

    next(train(model_dir, model_fn=model_fn).predict(data()))


@told("['probability']", "['label', 'logits']")
def predictions_by_a_wrong_key(model_dir):
    next(train(model_dir).predict(data(), predict_keys="probability"))


@told(
    "requires ['learning_rate']",
    "supplied are ['config', 'features'",
    "Estimator(modules={'name': factory})",
)
def model_fn_takes_what_nobody_gives(model_dir):
    def model_fn(features, labels, mode, network, optimizer, learning_rate):
        raise AssertionError

    train(model_dir, model_fn=model_fn)


@told("modules ['optimizer']", "Add the argument or drop the module")
def model_fn_does_not_take_a_module(model_dir):
    def model_fn(features, labels, mode, network):
        raise AssertionError

    train(model_dir, model_fn=model_fn)


# Modules.


@told("module 'network' is Sequential", "modules={'network': make_network}")
def module_that_is_built(model_dir):
    net = fakes.network()
    train(model_dir, network=net)


@told("/dense", "created outside of the strategy", "inside of its factory")
def module_that_is_built_outside_by_a_factory(model_dir):
    net = fakes.network()
    net(X)
    train(model_dir, network=lambda: net, devices=("CPU:0", "CPU:1"))


@told("factory of module 'network' returned None", "return a Keras model")
def factory_that_returns_nothing(model_dir):
    train(model_dir, network=lambda: None)


@told(
    "factory of module 'network', Dense requires ['units']", "lambda: Dense(units=...)"
)
def factory_that_takes_arguments(model_dir):
    train(model_dir, network=keras.layers.Dense)


@told("units=-1", "the factory of module 'network'", "keras.layers.Dense(-1)")
def factory_that_fails(model_dir):
    train(model_dir, network=lambda: keras.Sequential([keras.layers.Dense(-1)]))


@told("variables ['unnamed'] itself", "Estimator(modules={'network': make_network})")
def variable_in_model_fn(model_dir):
    def model_fn(features, labels, mode, network, optimizer):
        scale = tf.Variable(1.0)
        return changed()(features * scale, labels, mode, network, optimizer)

    train(model_dir, model_fn=model_fn)


@told("variables ['kernel'] itself", "Estimator(modules={'network': make_network})")
def layer_in_model_fn(model_dir):
    def model_fn(features, labels, mode, network, optimizer):
        features = keras.layers.Dense(4)(features)
        return changed()(features, labels, mode, network, optimizer)

    train(model_dir, model_fn=model_fn)


@told("TrainOp.variables ['kernel', ", "hand them in as modules")
def network_of_the_outside(model_dir):
    outside = fakes.network()
    outside(X)

    def model_fn(features, labels, mode, network, optimizer):
        return changed()(features, labels, mode, outside, optimizer)

    train(model_dir, model_fn=model_fn)


def op_with(**options):
    """A model_fn whose TrainOp has these fields."""

    def model_fn(features, labels, mode, network, optimizer):
        spec = changed()(features, labels, mode, network, optimizer)
        op = ge.TrainOp(optimizer, network.trainable_variables)
        op = dataclasses.replace(op, **options)
        return ge.EstimatorSpec(mode, loss=spec.loss, train_op=op)

    return model_fn


@told("TrainOp.loss has dtype int64; it must be floating point")
def loss_of_an_op_of_ints(model_dir):
    train(model_dir, model_fn=op_with(loss=np.zeros([16], np.int64)))


@told("TrainOp.loss has Huber", "not a tensor")
def loss_of_an_op_is_a_function(model_dir):
    train(model_dir, model_fn=op_with(loss=keras.losses.Huber()))


@told("TrainOp.clip_norm is '1': write a number > 0")
def clip_norm_as_text(model_dir):
    train(model_dir, model_fn=op_with(clip_norm="1"))


@told("TrainOp.variables holds [", "twice: hand in each once")
def variables_twice(model_dir):
    def model_fn(features, labels, mode, network, optimizer):
        spec = changed()(features, labels, mode, network, optimizer)
        op = ge.TrainOp(optimizer, 2 * network.trainable_variables)
        return ge.EstimatorSpec(mode, loss=spec.loss, train_op=op)

    train(model_dir, model_fn=model_fn)


@told(
    "regularization_losses holds a tensor of shape (None, 3)", "reduce it to a scalar"
)
def regularization_that_is_a_matrix(model_dir):
    train(model_dir, model_fn=changed(regularization_losses=lambda logits: [logits]))


@told("regularization_losses has L2", "not a tensor")
def regularization_that_is_a_function(model_dir):
    losses = [keras.regularizers.L2(0.1)]
    train(model_dir, model_fn=changed(regularization_losses=losses))


@told("predictions holds Dense", "not a tensor", "predictions={'logits': logits}")
def predictions_that_are_a_layer(model_dir):
    def model_fn(features, labels, mode, network, optimizer):
        if mode == ge.ModeKeys.PREDICT:
            return ge.EstimatorSpec(mode, {"dense": network.layers[0]})
        return changed()(features, labels, mode, network, optimizer)

    next(train(model_dir, model_fn=model_fn).predict(data()))


@told("predict_keys is 3: write predict_keys=['logits']")
def predict_keys_that_are_a_number(model_dir):
    next(train(model_dir).predict(data(), predict_keys=3))


@told("KeyError: 'rate'", "optimizer sgd", "a SGD", 'raise KeyError("rate")')
def schedule_that_raises(model_dir):
    class Schedule(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            raise KeyError("rate")

    train(model_dir, optimizer=lambda: keras.optimizers.SGD(Schedule()))


@told("warm_start_from is int 3: write warm_start_from='runs/1'")
def warm_start_from_a_number(model_dir):
    ge.Estimator(changed(), str(model_dir), warm_start_from=3)


@pytest.mark.parametrize("row", table.rows)
def test_mistake(row, tmp_path):
    table.check(row, tmp_path)
