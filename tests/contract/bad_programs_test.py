"""Mistakes in each part of a program: what `ge.run` prints.

A row is a function that makes a mistake, and texts that the message has: the value, the remedy,
the user's own line.
"""

import dataclasses
from concurrent import futures

import keras
import numpy as np
import pytest
import tensorflow as tf
from mistakes import X, Y, data, evaluate, make, make_network, train, with_spec

import gin_estimator as ge

LATE = np.where(np.arange(64) < 16, Y, Y + 1)  # Labels of which the second batch is wrong.
TABLE = {}


def says(*texts, code=2):
    def add(mistake):
        TABLE[mistake.__name__] = mistake, texts, code
        return mistake

    return add


# What model_fn returns.


@says("model_fn model_fn returned None in mode 'train'", "return EstimatorSpec(mode, ...)")
def model_fn_returns_nothing():
    def model_fn(features, labels, mode, network, optimizer):
        with_spec()(features, labels, mode, network, optimizer)

    train(model_fn)


@says("EstimatorSpec.loss is None in mode 'train'", "loss=keras.losses", "model_fn, mode 'train'")
def no_loss():
    train(with_spec(loss=None))


@says("train_op is None in mode 'train'", "TrainOp(optimizer, network.trainable_variables)")
def no_train_op():
    train(with_spec(train_op=None))


@says("mode is 'TRAIN': expected 'train', 'eval' or 'infer'")
def a_mode_in_capitals():
    train(lambda features, labels, network, optimizer: ge.EstimatorSpec("TRAIN", loss=labels))


@says("train_op is <tf.Operation", "expected a TrainOp")
def a_train_op_of_tf_estimator():
    train(with_spec(train_op=lambda logits: tf.no_op()))


@says("loss has shape (3,) for 16 examples", "[batch, ...]")
def a_loss_of_another_length():
    fixed = data(change=lambda rows: rows.batch(16, drop_remainder=True).unbatch())
    train(with_spec(loss=lambda logits: tf.zeros([3])), lambda: fixed().unbatch().batch(16, True))


@says("step 1", "the sizes of the loss and of the batch differ", "losses [batch, ...] 3 16", code=1)
def a_loss_of_another_length_than_an_unknown_one():
    train(with_spec(loss=lambda logits: tf.reduce_sum(logits, 1)[:3]))


@says("EstimatorSpec.loss is <LossFunctionWrapper", "expected a tensor", "loss=keras.losses")
def a_loss_that_is_an_object():
    train(with_spec(loss=keras.losses.Huber))


@says("loss has dtype int64: expected a floating-point tensor")
def a_loss_of_integers():
    train(with_spec(loss=lambda logits: tf.argmax(logits, 1)))


@says("loss_weights has shape (None,), and the loss (None, 3)", "weights[..., tf.newaxis]")
def weights_that_would_broadcast_along_time():
    train(with_spec(loss=lambda logits: logits, loss_weights=lambda logits: logits[:, 0]))


@says("loss_weights has shape (None,), and the loss is a scalar")
def weights_of_a_scalar_loss():
    train(with_spec(loss=tf.reduce_mean, loss_weights=lambda logits: logits[:, 0]))


@says("called 'loss': expected another name")
def a_metric_called_loss():
    train(with_spec(metrics={"loss": 1.0}))


@says("called 'a': expected each name once in metrics, scalars, tensors and summaries")
def a_metric_and_a_scalar_of_one_name():
    train(with_spec(metrics={"a": 1.0}, scalars={"a": 1.0}))


@says("metrics['mean'] is <Mean", "metric(keras.metrics.Mean, labels")
def a_metric_that_is_an_object():
    train(with_spec(metrics=lambda logits: {"mean": keras.metrics.Mean()}))


@says("metric() got <Mean", "metric(keras.metrics.AUC, labels")
def a_declared_metric_that_is_an_object():
    train(with_spec(metrics=lambda logits: {"mean": ge.metric(keras.metrics.Mean(), logits)}))


@says("metrics and eval_metric_ops", "Leave out eval_metric_ops")
def two_names_of_metrics():
    train(with_spec(metrics={"a": 1.0}, eval_metric_ops={"b": 1.0}))


@says("metric 'accuracy' (SparseCategoricalAccuracy)", "[(1, 3)]", "'y_pred'")
def a_metric_without_an_argument():
    accuracy = keras.metrics.SparseCategoricalAccuracy
    train(with_spec(metrics=lambda logits: {"accuracy": ge.metric(accuracy, logits)}))


@says("metric 'mse' (MeanSquaredError)", "[(1, 2), (1, 3)]", "[1,2] vs. [1,3]")
def a_metric_of_other_shapes():
    mse = keras.metrics.MeanSquaredError
    train(with_spec(metrics=lambda logits: {"mse": ge.metric(mse, logits[:, :2], logits)}))


@says("scalars['a'] has shape (None, 3): expected a scalar", "tf.reduce_mean")
def a_scalar_that_is_a_matrix():
    train(with_spec(scalars=lambda logits: {"a": logits}))


@says("regularization_losses has a tensor of shape (None, 3)")
def a_regularization_that_is_a_matrix():
    train(with_spec(regularization_losses=lambda logits: [logits]))


@says("EstimatorSpec.predictions is <Dense", "expected a tensor")
def predictions_that_are_a_layer():
    train(with_spec(predictions={"dense": keras.layers.Dense(1)}))


@says("export_outputs['a'] is", "expected a dict")
def exports_that_are_a_tensor():
    train(with_spec(export_outputs=lambda logits: {"a": logits}))


@says("EstimatorSpec has no argument 'training_hooks'", "pass hooks to train()")
def an_argument_of_tf_estimator():
    train(with_spec(training_hooks=[]))


@says("TrainOp.variables is empty", "A frozen one, trainable=False, has none")
def a_frozen_network():
    def network():
        network = keras.Sequential([keras.layers.Dense(3)])
        network.trainable = False
        return network

    train(modules={"network": network})


@says("EstimatorSpec.predictions has tf.RaggedTensor", "a ragged or sparse tensor to a dense one")
def predictions_that_are_ragged():
    def model_fn(features, labels, mode, network, optimizer):
        logits = network(features)
        return ge.EstimatorSpec(mode, predictions=tf.RaggedTensor.from_tensor(logits))

    list(make(model_fn).predict(data()))


@says("TrainOp.variables has a variable twice", "model_fn, mode 'train'")
def variables_twice():
    def model_fn(features, labels, mode, network, optimizer):
        spec = with_spec()(features, labels, mode, network, optimizer)
        op = ge.TrainOp(optimizer, 2 * network.trainable_variables)
        return dataclasses.replace(spec, train_op=op)

    train(model_fn)


# What model_fn does.


@says("KeyError: 'imgae'", "features {image: float32 [None, 6]}", 'features["imgae"]', code=1)
def a_wrong_feature():
    def model_fn(features, labels, mode, network, optimizer):
        return with_spec()(features["imgae"], labels, mode, network, optimizer)

    train(model_fn, data({"image": X}))


@says("mode 'train'", "Cast string to float is not supported", "network(features)", code=1)
def strings_in_a_dense_layer():
    train(input_fn=data(np.array(["a"] * 64)[:, None]))


@says("as a Python `bool`", "mode 'train'", "if step > 2:", code=1)
def a_branch_on_a_tensor():
    def model_fn(features, labels, mode, network, optimizer, step):
        if step > 2:
            labels = labels * 0
        return with_spec()(features, labels, mode, network, optimizer)

    train(model_fn)


@says("no attribute 'minimize'", "train_op=TrainOp(optimizer", code=1)
def a_call_of_minimize():
    def model_fn(features, labels, mode, network, optimizer):
        return optimizer.minimize(features)

    train(model_fn)


@says("model_fn applies gradients by 'optimizer'", "train_op=TrainOp(")
def a_call_of_apply_gradients():
    def model_fn(features, labels, mode, network, optimizer):
        spec = with_spec()(features, labels, mode, network, optimizer)
        weights = network.trainable_variables
        optimizer.apply_gradients([(tf.zeros_like(v), v) for v in weights])
        return spec

    train(model_fn)


@says("created the variables [", "kernel", "Estimator(modules={'network'")
def a_layer_in_model_fn():
    def model_fn(features, labels, mode, network, optimizer):
        features = keras.layers.Dense(4)(features)
        return with_spec()(features, labels, mode, network, optimizer)

    train(model_fn)


@says("uses a variable that is in no module", "outside(features)")
def a_layer_of_the_outside():
    outside = keras.layers.Dense(6)
    outside(X)

    def model_fn(features, labels, mode, network, optimizer):
        return with_spec()(outside(features), labels, mode, network, optimizer)

    train(model_fn)


@says("draws random numbers without a seed", "self.seeds = keras.random.Seed", "noise =")
def noise_of_the_process():
    keras.random.normal([1])  # Its generator exists, as after another model.

    def model_fn(features, labels, mode, network, optimizer):
        noise = keras.random.normal(tf.shape(features))
        return with_spec()(features + noise, labels, mode, network, optimizer)

    train(model_fn)


@says("draws random numbers without a seed", "self.seeds = keras.random.Seed", "noise =")
def the_first_noise_of_the_process():
    def model_fn(features, labels, mode, network, optimizer):
        noise = keras.random.normal(tf.shape(features))
        return with_spec()(features + noise, labels, mode, network, optimizer)

    with futures.ThreadPoolExecutor(1) as thread:  # Which has drawn nothing.
        thread.submit(train, model_fn).result()


@says("uses a variable that is in no module", "metric(...)", "mean.update_state(features)")
def a_metric_that_is_updated_in_model_fn():
    mean = keras.metrics.Mean()

    def model_fn(features, labels, mode, network, optimizer):
        mean.update_state(features)
        return with_spec()(features, labels, mode, network, optimizer)

    train(model_fn)


@says("depends on none of TrainOp.variables")
def a_loss_that_depends_on_nothing():
    train(with_spec(loss=lambda logits: tf.ones_like(logits[:, 0])))


@says("mode 'infer'", "labels None", "PREDICT has no labels", code=1)
def no_output_in_predict():
    next(train().predict(data()))


# Modules and arguments of model_fn.


@says("requires ['rate']", "modules ['network', 'optimizer']", "modules={'name': factory}")
def an_argument_without_a_value():
    make(lambda features, labels, mode, network, optimizer, rate: None)


@says("does not take ['optimizer']", "Add the argument")
def a_module_without_an_argument():
    def model_fn(features, labels, mode, network):
        raise AssertionError

    make(model_fn)


@says("does not take ['features']")
def a_model_fn_without_features():
    make(lambda labels, mode, network, optimizer: None)


@says("does not take labels", "int64 [None]", "or a dataset of features alone")
def a_model_fn_without_labels():
    train(lambda features, mode, network, optimizer: None)


@says("modules has the name 'labels'", "none of features, labels")
def a_reserved_name():
    make(modules={"labels": make_network})


@says("model_fn is <Sequential", "def model_fn(features, labels, mode")
def a_model_as_model_fn():
    make(make_network())


@says("modules['network'] is <Sequential", "expected a factory")
def a_module_that_exists():
    make(modules={"network": make_network()})


@says("network", "returned None", "Keras model")
def a_factory_without_a_result():
    train(modules={"network": lambda: None})


@says("Dense, which requires ['units']", "{'network': lambda: Dense(units=...)}")
def a_factory_with_arguments():
    train(modules={"network": keras.layers.Dense})


@says("units", "the factory of modules['network']", "keras.layers.Dense(-1)", code=1)
def a_factory_that_fails():
    train(modules={"network": lambda: keras.Sequential([keras.layers.Dense(-1)])})


@says("which another Estimator has", "expected a factory that creates a new object")
def a_factory_that_returns_the_same_object():
    network = make_network()
    network(X)
    modules = {"network": lambda: network}
    train(modules=modules)
    train(modules=modules)


@says("KeyError: 'rate'", 'raise KeyError("rate")', code=1)
def a_schedule_that_fails():
    class Schedule(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            raise KeyError("rate")

    train(modules={"optimizer": lambda: keras.optimizers.SGD(Schedule())})


@says("casts ids to float16", "keras.Input([...], dtype='int64')")
def ids_that_are_rounded():
    def network():
        table = keras.layers.Embedding(5000, 2)
        return keras.Sequential([table, keras.layers.Flatten(), keras.layers.Dense(3)])

    config = ge.RunConfig(precision="mixed_float16", save_checkpoints_steps=0)
    train(input_fn=data(np.zeros([64, 1], "int64")), modules={"network": network}, config=config)


# The input.


@says("input_fn input_fn, mode 'train', returned None", "expected a tf.data.Dataset")
def an_input_fn_without_a_result():
    def input_fn():
        data()()

    train(input_fn=input_fn)


@says("TrainSpec.input_fn is <_BatchDataset", "expected a function that returns a tf.data")
def an_input_fn_that_is_a_dataset():
    train(input_fn=data()())


@says("labels int64 []", "no batch dimension: return dataset.batch(32)", code=1)
def data_without_batches():
    train(input_fn=lambda: tf.data.Dataset.from_tensor_slices((X, Y)))


@says("requires ['batch_sise']", "'input_context', 'mode'", "a default")
def an_input_fn_with_a_misspelt_argument():
    train(input_fn=lambda mode, input_context, batch_sise: None)


@says("KeyError: 'TRAIN'", "input_fn input_fn, mode 'train'", "[mode.upper()]", code=1)
def an_input_fn_that_fails():
    def input_fn(mode):
        return {"train": data()}[mode.upper()]

    train(input_fn=input_fn)


@says("the input failed in mode 'train'", "no/such/file.txt; No such file", "in read", code=1)
def a_file_that_does_not_exist():
    def read():
        lines = tf.data.TextLineDataset("no/such/file.txt")
        return lines.map(lambda line: (tf.zeros([6]), 0)).batch(16)

    train(input_fn=read)


@says("Cannot reshape a tensor with 6 elements to shape [3,3]", "mode 'train'", "parse", code=1)
def a_map_that_fails():
    def parse(x, y):
        return tf.reshape(x, [3, 3]), y

    train(input_fn=data(change=lambda rows: rows.map(parse)))


@says("the input failed in mode 'train'", "no such column", 'raise KeyError("no such', code=1)
def a_numpy_function_that_fails():
    def parse(x):
        raise KeyError("no such column")

    def change(rows):
        rows = rows.map(lambda x, y: (tf.numpy_function(parse, [x], tf.float32), y))
        return rows.map(lambda x, y: (tf.ensure_shape(x, [6]), y))

    train(input_fn=data(change=change))


@says("mode 'eval'", "worked in mode 'train' on (float32 [None, 6], int64", "[None, 5]", code=1)
def data_of_another_width_in_eval():
    evaluate(data(X[:, :5]))


@says("features of float64 in mode 'eval', and of float32 in mode 'train'", "tf.cast")
def data_of_another_dtype_in_eval():
    evaluate(data(X.astype("float64")))


@says("mode 'eval'", "labels None", "input_fn yields no labels", code=1)
def no_labels_in_eval():
    evaluate(data(y=None))


@says(
    "model_fn failed in mode 'train', one of the steps 2 to 3: InvalidArgumentError",
    "a label value of 3",
    "keras.losses.sparse",
    "RunConfig(steps_per_loop=1) gives the step",
    code=1,
)
def labels_out_of_range():
    train(input_fn=data(y=LATE), max_steps=3)


@says("model_fn failed in mode 'train', step 2: Invalid", "a label value of 3", code=1)
def labels_out_of_range_on_two_replicas():
    config = ge.RunConfig(save_checkpoints_steps=0, devices=("CPU:0", "CPU:1"), steps_per_loop=1)
    train(input_fn=data(y=LATE), config=config)


@says("model_fn failed in mode 'eval', one of the steps", "a label value of 3", code=1)
def labels_out_of_range_in_eval():
    evaluate(data(y=LATE))


# Hooks and other objects.


class Recorder(ge.Hook):
    every_steps = 1

    def after_step(self, run):
        """Does nothing."""


class Failing(ge.Hook):
    every_steps = 2

    def after_step(self, run):
        raise OverflowError("too much")


@says("OverflowError: too much", "hook Failing.after_step, step 2", 'OverflowError("too', code=1)
def a_hook_that_fails():
    train(hooks=[Failing()])


@says("TrainSpec.hooks is [<class", "Set it to [Recorder()]; in gin [@Recorder()]")
def a_hook_that_is_a_class():
    train(hooks=[Recorder])


@says("TrainSpec.hooks is <", "expected a list of Hook objects", "[Recorder()]")
def a_hook_without_a_list():
    train(hooks=Recorder())


@says("TrainSpec.hooks is [<", "It is a Keras callback", "after_step(run)")
def a_callback_of_keras():
    train(hooks=[keras.callbacks.TerminateOnNaN()])


@says("It is a session hook", "after_step(run)")
def a_session_hook():
    train(hooks=[type("SessionHook", (), {"before_run": 1})()])


@says("Recorder.every_steps is -1: expected an int > -1 or None")
def a_hook_with_a_negative_interval():
    hook = Recorder()
    hook.every_steps = -1
    train(hooks=[hook])


@says("after_step is never called", "every_steps = 100")
def a_hook_without_an_interval():
    hook = Recorder()
    hook.every_steps = None
    train(hooks=[hook])


@says("EvalSpec.hooks has a Recorder", "TrainSpec(hooks=...)")
def a_hook_of_trainings_in_an_evaluation():
    ge.EvalSpec(data(), hooks=[Recorder()])


@says("saving_listeners is [<class", "[SavingListener()]")
def a_listener_that_is_a_class():
    make().train(data(), max_steps=1, saving_listeners=[ge.SavingListener])


@says("EvalSpec.exporters is [<class", "[FinalExporter()]")
def an_exporter_that_is_a_class():
    ge.EvalSpec(data(), exporters=[ge.FinalExporter])


# Arguments.


@says("steps is 0: expected an int > 0 or None. Set steps=100")
def no_steps():
    make().train(data(), steps=0)


@says("steps is 1 and max_steps is 1: set one")
def both_steps():
    make().train(data(), steps=1, max_steps=1)


@says("TrainSpec.max_steps is '100': expected an int > 0 or None. Set max_steps=1000")
def max_steps_as_text():
    ge.TrainSpec(data(), max_steps="100")


@says("EvalSpec.steps is True")
def steps_that_are_true():
    ge.EvalSpec(data(), steps=True)


@says("EvalSpec.throttle_secs is '60': expected a number >= 0 or None. Set throttle_secs=600")
def a_time_as_text():
    ge.EvalSpec(data(), throttle_secs="60")


@says("train_spec is <function", "expected a TrainSpec. Set train_spec=TrainSpec(input_fn, max")
def an_input_fn_as_train_spec():
    ge.train_and_evaluate(make(), data(), data())


@says("eval_spec is <function", "expected an EvalSpec. Set eval_spec=EvalSpec(input_fn)")
def an_input_fn_as_eval_spec():
    evaluate(spec=[ge.EvalSpec(data()), data()])


@says("names of the evaluations are ['', '']", "expected each name once")
def two_evaluations_without_names():
    evaluate(spec=[ge.EvalSpec(data()), ge.EvalSpec(data())])


@says("Estimator.config is {", "config=RunConfig(model_dir='runs/1')")
def a_dict_as_config():
    make(config={"model_dir": "m"})


@says("params is ['a']", "params={'learning_rate': 0.1}")
def params_that_are_a_list():
    make(params=["a"])


@says("KeyError: 'scale'", 'params["scale"]', code=1)
def a_misspelt_parameter():
    def model_fn(features, labels, mode, network, optimizer, params):
        return with_spec()(features * params["scale"], labels, mode, network, optimizer)

    train(model_fn, params={"sclae": 2})


@says("model_dir is '", "two'", "one'", "Set one of them")
def two_directories():
    make(config=ge.RunConfig("one"), model_dir="two")


@says("Estimator has no argument 'use_tpu'", "RunConfig(execution='tpu')")
def the_argument_use_tpu():
    make(use_tpu=True)


@says("TrainSpec has no argument 'max_step'. Did you mean max_steps?")
def a_misspelt_argument():
    ge.TrainSpec(data(), max_step=3)


@pytest.mark.thin
@pytest.mark.parametrize("name", [name for name in TABLE])
def test_mistake(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mistake, texts, code = TABLE[name]
    with pytest.raises(SystemExit) as exit:
        ge.run(mistake)
    message = "error: " + capsys.readouterr().err.partition("error: ")[2]
    assert exit.value.code == code, message
    for text in texts:
        assert text in message, message
    assert __file__ in message or "mistakes.py" in message, message
    assert "site-packages" not in message, message
    assert "Traceback" not in message, message
    assert len(message.splitlines()) < 25, message
