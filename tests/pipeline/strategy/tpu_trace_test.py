"""TensorFlow's own TPUStrategy, as far as it goes without a TPU: to the traced loops.

Its resolver is told that there are two cores. Variables then lie on the CPU, by soft
placement, and every loop of the driver is traced into the TPU's programs; only to run
them takes a TPU.
"""

import dataclasses
import functools
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import models
import pipeline as ge
from pipeline import ModeKeys
from pipeline.driver.recipe import Recipe
from pipeline.driver.runtime import Runtime
from pipeline.mistakes.user_errors import StepError
from pipeline.tracing import graph_defs
from tests import fakes

NUM_CORES = 2
# Those of TPUStrategy's cross_replica_sum.
ADDED_UP = ("bfloat16", "half", "float", "double", "int32", "uint32")


class Resolver(tf.distribute.cluster_resolver.TPUClusterResolver):
    """Of a TPU that is not there."""

    def get_tpu_system_metadata(self):
        names = ["CPU:0", *(f"TPU:{core}" for core in range(NUM_CORES))]
        task = "/job:localhost/replica:0/task:0/device:"
        return types.SimpleNamespace(
            num_cores=NUM_CORES,
            num_hosts=1,
            num_of_cores_per_host=NUM_CORES,
            devices=[types.SimpleNamespace(name=task + name) for name in names],
        )


@pytest.fixture(scope="module")
def strategy():
    return tf.distribute.TPUStrategy(Resolver(tpu="local"))


def input_fn(mode, input_context):
    x, y = fakes.classification_data(64)
    x = (x, y) if mode != ModeKeys.PREDICT else x
    data = tf.data.Dataset.from_tensor_slices(x)
    size = input_context.get_per_replica_batch_size(16)
    return data.batch(size, drop_remainder=True)


def layers():
    return fakes.network(l2=0.01, batch_norm=True, dropout=0.2)


def made(strategy, tmp_path, *, network=layers, model_fn=fakes.classifier_fn, **config):
    recipe = Recipe(
        model_fn,
        {"network": network, "optimizer": fakes.adam},
        ge.RunConfig(model_dir=str(tmp_path), tf_random_seed=1, **config),
        {"clip_norm": 0.2},
    )
    return Runtime(recipe, strategy)


def traced(runtime, mode, input_fn=input_fn, *, tensors=False):
    """The nodes of the loop of `mode`, those in branches and loops too."""
    feed = runtime.feed(input_fn, mode)
    compiled = runtime.program(mode, feed).compiled
    iterator = feed.iterator()
    if mode == ModeKeys.PREDICT:
        _, take = feed.plan.try_take(iterator)
        features, _ = feed.plan.to_predict(take())
        graph = compiled.get_concrete_function(features).graph
    else:
        signature = (
            tf.type_spec_from_value(iterator),
            tf.TensorSpec([], tf.int64),
            tf.TensorSpec([None], tf.int64),
        )
        run = functools.partial(compiled._run, False)  # Without each step's loss.
        if tensors:
            showing = compiled.showing_at(1, True)
            run = functools.partial(compiled._run_and_show, showing, False)
        loop = tf.function(run, input_signature=signature, autograph=False)
        graph = loop.get_concrete_function().graph
    return list(graph_defs.nodes(graph.as_graph_def()))


def named(nodes, op):
    return [node for node in nodes if node.op == op]


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_train_step_is_one_program(strategy, tmp_path, micro_batches):
    runtime = made(strategy, tmp_path, gradient_accumulation_steps=micro_batches)
    nodes = traced(runtime, ModeKeys.TRAIN)
    (program,) = named(nodes, "TPUReplicateMetadata")
    assert program.attr["num_replicas"].i == NUM_CORES
    sums = named(nodes, "CrossReplicaSum")
    # A kernel and a bias a layer, the normalization's two, and the sum of weights.
    assert len(sums) == 7
    types_ = {tf.as_dtype(node.attr["T"].type).name for node in sums}
    assert types_ == {"float32"}


def test_tensors_for_hooks_leave_the_program_of_their_step(strategy, tmp_path):
    def model_fn(features, labels, mode, network, optimizer):
        spec = fakes.classifier_fn(features, labels, mode, network, optimizer, {})
        tensors = {"x": features, "kernel": network.layers[0].kernel}
        return dataclasses.replace(spec, tensors=tensors)

    runtime = made(strategy, tmp_path, model_fn=model_fn)
    nodes = traced(runtime, ModeKeys.TRAIN, tensors=True)
    # The steps before, and the one that hands them out.
    assert len(named(nodes, "TPUReplicateMetadata")) == 2


def test_an_evaluation_adds_nothing_up_within(strategy, tmp_path):
    nodes = traced(made(strategy, tmp_path), ModeKeys.EVAL)
    assert len(named(nodes, "TPUReplicateMetadata")) == 1
    assert not named(nodes, "CrossReplicaSum")


def test_predictions(strategy, tmp_path):
    nodes = traced(made(strategy, tmp_path), ModeKeys.PREDICT)
    assert len(named(nodes, "TPUReplicateMetadata")) == 1


@pytest.mark.parametrize("layer", [keras.layers.Embedding, models.Embedding])
def test_an_embeddings_gradient_is_added_up_too(layer, strategy, tmp_path):
    """TPUStrategy makes its slices dense."""

    def network():
        return keras.Sequential([layer(50, 4), fakes.network()])

    def tokens(input_context):
        x = np.arange(64, dtype=np.int32) % 50
        data = tf.data.Dataset.from_tensor_slices((x, x % 3)).repeat()
        size = input_context.get_per_replica_batch_size(16)
        return data.batch(size, drop_remainder=True)

    runtime = made(strategy, tmp_path, network=network)
    nodes = traced(runtime, ModeKeys.TRAIN, tokens)
    assert len(named(nodes, "CrossReplicaSum")) == 5


def test_updates_every_other_step_are_programs_of_their_own(strategy, tmp_path):
    def model_fn(features, labels, mode, network, optimizer):
        logits = network(features)
        loss = keras.losses.sparse_categorical_crossentropy(labels, logits, True)
        op = ge.TrainOp(optimizer, network.trainable_variables, every=2)
        return ge.EstimatorSpec(mode, loss=loss, train_op=op)

    runtime = made(strategy, tmp_path, model_fn=model_fn, network=fakes.network)
    nodes = traced(runtime, ModeKeys.TRAIN)
    assert len(named(nodes, "TPUReplicateMetadata")) == 2


def test_a_sequential_update_is_a_program_of_its_own(strategy, tmp_path):
    def model_fn(features, labels, mode, network, optimizer):
        logits = network(features)
        loss = keras.losses.sparse_categorical_crossentropy(labels, logits, True)
        op = ge.TrainOp(optimizer, network.trainable_variables)
        ops = [op, dataclasses.replace(op, sequential=True)]
        return ge.EstimatorSpec(mode, loss=loss, train_op=ops)

    runtime = made(strategy, tmp_path, model_fn=model_fn, network=fakes.network)
    nodes = traced(runtime, ModeKeys.TRAIN)
    assert len(named(nodes, "TPUReplicateMetadata")) == 2


def test_an_average_is_moved_on_the_cores(strategy, tmp_path):
    average = ge.ExponentialAverage()
    nodes = traced(made(strategy, tmp_path, average=average), ModeKeys.TRAIN)
    assert len(named(nodes, "TPUReplicateMetadata")) == 2
    # Kernels, biases and the normalization's four.
    assert len(named(nodes, "ResourceApplyGradientDescent")) == 8


def test_a_checkpoint_of_a_tpu_is_one_of_any_strategy(strategy, tmp_path):
    """Variables, and what is done to them between steps, need no program."""
    runtime = made(strategy, tmp_path, network=fakes.network)
    traced(runtime, ModeKeys.TRAIN)
    kernel = next(
        v for n, v in runtime.modules.named_variables().items() if "kernel" in n
    )
    kernel.assign(tf.fill(kernel.shape, 7.0))
    runtime.modules.synchronize()
    saver = runtime.saver()
    saver.save(5)
    saver.wait()
    saved = fakes.weights(tmp_path)
    other = made(tf.distribute.get_strategy(), tmp_path, network=fakes.network)
    traced_spec = other.feed(input_fn, ModeKeys.TRAIN)
    other.program(ModeKeys.TRAIN, traced_spec)
    path = f"{tmp_path}/model.ckpt-5"
    other.load(path)
    assert any((value == 7).all() for value in saved.values() if value.ndim == 2)
    restored = other.modules.named_variables()
    # What was configured stands beside what is restored.
    assert len(restored) == len([k for k in saved if "/configured/" not in k])
    runtime.holding.after_change()
    kernel.assign(tf.zeros(kernel.shape))
    runtime.load(path)
    assert (kernel.numpy() == 7).all()


def test_moving_averages_are_averaged_by_a_program(strategy, tmp_path):
    runtime = made(strategy, tmp_path)
    traced(runtime, ModeKeys.TRAIN)
    with pytest.raises(tf.errors.InvalidArgumentError, match="TPUReplicate"):
        runtime.modules.synchronize()


def test_running_it_takes_a_tpu(strategy, tmp_path):
    estimator = fakes.make_estimator(
        tmp_path, network=layers, train_distribute=strategy
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="TPUReplicate"):
        estimator.train(input_fn)


def test_a_model_of_a_tpu_is_exported_for_any_device(strategy, tmp_path):
    """From its variables, without a step; one replica predicts the same."""
    estimator = fakes.make_estimator(tmp_path, train_distribute=strategy)
    with pytest.raises(StepError, match="TPUReplicate"):
        estimator.train(input_fn)  # To the checkpoint of step 0.
    receiver = ge.build_raw_serving_input_receiver_fn(tf.TensorSpec([None, 6]))
    path = estimator.export_saved_model(str(tmp_path / "export"), receiver)
    x, _ = fakes.classification_data(5)
    serve = tf.saved_model.load(path).signatures["serving_default"]
    served = serve(features=tf.constant(x))["logits"]
    other = fakes.make_estimator(tmp_path)
    predicted = other.predict(fakes.make_input_fn(x, batch_size=5))
    np.testing.assert_allclose(served, [p["logits"] for p in predicted], 1e-5, 1e-6)
