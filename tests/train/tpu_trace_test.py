"""TensorFlow's own TPUStrategy as far as the traced programs, which only a TPU can run.

Its resolver pretends that there are two cores. Soft placement keeps the variables on the CPU.
"""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import gin_estimator as ge
from gin_estimator.data.batch import Batch
from gin_estimator.loop.evaluation import Evaluation
from gin_estimator.loop.train_program import TrainProgram

NUM_CORES = 2


class Resolver(tf.distribute.cluster_resolver.TPUClusterResolver):
    def get_tpu_system_metadata(self):
        task = "/job:localhost/replica:0/task:0/device:"
        names = ["CPU:0", *(f"TPU:{core}" for core in range(NUM_CORES))]
        return types.SimpleNamespace(
            num_cores=NUM_CORES,
            num_hosts=1,
            num_of_cores_per_host=NUM_CORES,
            devices=[types.SimpleNamespace(name=task + name) for name in names],
        )


@pytest.fixture(scope="module")
def strategy():
    return tf.distribute.TPUStrategy(Resolver(tpu="local"))


X = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")


def input_fn(mode, input_context):
    data = X if mode == ge.ModeKeys.PREDICT else (X, np.arange(64) % 3)
    size = input_context.get_per_replica_batch_size(16)
    return tf.data.Dataset.from_tensor_slices(data).batch(size, drop_remainder=True)


def make_network():
    layers = keras.layers
    return keras.Sequential(
        [layers.Dense(4), layers.BatchNormalization(), layers.Dropout(0.2), layers.Dense(3)]
    )


def model_fn_with(**op):
    def model_fn(features, labels, mode, network, optimizer):
        logits = network(features, training=mode == ge.ModeKeys.TRAIN)
        if mode == ge.ModeKeys.PREDICT:
            return ge.EstimatorSpec(mode, predictions={"logits": logits})
        return ge.EstimatorSpec(
            mode,
            loss=keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True),
            train_op=ge.TrainOp(optimizer, network.trainable_variables, clip_norm=1.0, **op),
            metrics={"accuracy": ge.metric(keras.metrics.Accuracy, labels, tf.argmax(logits, 1))},
        )

    return model_fn


model_fn = model_fn_with()


def make_estimator(folder, strategy, network=make_network, model_fn=model_fn, **config):
    modules = {"network": network, "optimizer": keras.optimizers.Adam}
    config = ge.RunConfig(str(folder), train_distribute=strategy, tf_random_seed=1, **config)
    return ge.Estimator(model_fn, modules=modules, config=config)


def nodes_of(loop, iterator):
    """Returns the operations of a loop's graph, those in branches and loops too."""
    signature = [tf.type_spec_from_value(iterator), *[tf.TensorSpec([], tf.int64)] * 2]
    run = tf.function(loop.run_in_graph, input_signature=signature, autograph=False)
    graph = run.get_concrete_function().graph.as_graph_def()
    return [*graph.node, *(node for fn in graph.library.function for node in fn.node_def)]


def trained_nodes(folder, strategy, model_fn=model_fn, **config):
    estimator = make_estimator(folder, strategy, model_fn=model_fn, **config)
    program = TrainProgram(estimator.model, input_fn)
    return nodes_of(program.run_steps, program.runner.open(0, None, None).iterator)


def named(nodes, op):
    return [node for node in nodes if node.op == op]


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_training_step_is_one_program(tmp_path, strategy, micro_batches):
    nodes = trained_nodes(tmp_path, strategy, gradient_accumulation_steps=micro_batches)
    [program] = named(nodes, "TPUReplicateMetadata")
    assert program.attr["num_replicas"].i == NUM_CORES
    sums = named(nodes, "CrossReplicaSum")
    # Two kernels, two biases, the normalization's two, and the weight.
    assert len(sums) == 7
    assert {node.attr["T"].type for node in sums} == {tf.float32.as_datatype_enum}


def test_updates_every_second_step_are_programs_apart(tmp_path, strategy):
    nodes = trained_nodes(tmp_path, strategy, model_fn_with(every=2))
    assert len(named(nodes, "TPUReplicateMetadata")) == 2


def test_an_evaluation_sums_nothing_inside_of_its_program(tmp_path, strategy):
    estimator = make_estimator(tmp_path, strategy)
    evaluation = Evaluation(estimator.model, ge.EvalSpec(input_fn))
    nodes = nodes_of(evaluation._loop, iter(evaluation._data.dataset))
    assert len(named(nodes, "TPUReplicateMetadata")) == 1
    assert not named(nodes, "CrossReplicaSum")


def test_running_takes_a_tpu_and_exports_and_checkpoints_do_not(tmp_path, strategy):
    # The moving statistics of a BatchNormalization are averaged by a program before each save.
    estimator = make_estimator(tmp_path, strategy, lambda: keras.layers.Dense(3))
    with pytest.raises(ge.errors.StepError, match="TPUReplicate"):
        estimator.train(input_fn)  # It has saved step 0.
    receiver = ge.build_raw_serving_input_receiver_fn(tf.TensorSpec([None, 6]))
    path = estimator.export_saved_model(str(tmp_path / "export"), receiver)
    serve = tf.saved_model.load(path).signatures["serving_default"]
    served = serve(features=tf.constant(X))["logits"]
    predicted = make_estimator(tmp_path, None, lambda: keras.layers.Dense(3)).predict(input_fn)
    np.testing.assert_allclose(served, [p["logits"] for p in predicted], 1e-5, 1e-6)
    with pytest.raises(ge.errors.StepError, match="TPUReplicate"):
        next(estimator.predict(input_fn))


def test_xla_compiles_a_whole_training_step(tmp_path):
    """On the CPU, with the batch as an argument, as on a TPU."""

    def network():
        layers = keras.layers
        dense = layers.Dense(4, use_bias=False)  # Its gradient would be rounding errors only.
        return keras.Sequential([dense, layers.BatchNormalization(), layers.Dense(3)])

    def trained(jit_compile):
        estimator = make_estimator(tmp_path, None, network, save_checkpoints_steps=0)
        program = TrainProgram(estimator.model, input_fn)
        step = program.run_steps._step

        @tf.function(jit_compile=jit_compile, autograph=False)
        def run(x, y, number):
            return step([[Batch(x, y)]], number).loss

        for number in range(3):
            loss = run(tf.constant(X[:16]), tf.range(16) % 3, tf.constant(number, tf.int64))
        values = {name: v.numpy() for name, v in estimator.state.variables().items()}
        return {**values, "loss": loss.numpy()}

    compiled, expected = trained(True), trained(False)
    for name, value in expected.items():
        np.testing.assert_allclose(compiled[name], value, 1e-4, 1e-5, err_msg=name)
