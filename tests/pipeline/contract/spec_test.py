"""What a model_fn may return, and what it hears where it returns something else."""

import dataclasses

import keras
import pytest
import tensorflow as tf

from pipeline import EstimatorSpec, ModeKeys, SpecError, TrainOp, histogram, metric

TRAIN, EVAL, PREDICT = ModeKeys.ALL
SGD = keras.optimizers.SGD


@pytest.fixture(scope="module")
def weight():
    return keras.Variable([1.0, 2.0], name="weight")


@pytest.fixture(scope="module")
def train_op(weight):
    return TrainOp(SGD(), [weight])


def test_modes_are_those_of_tf_estimator():
    assert (TRAIN, EVAL, PREDICT) == ("train", "eval", "infer")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"optimizer": keras.optimizers.LossScaleOptimizer(SGD())},
            "TrainOp.optimizer is a LossScaleOptimizer, and the driver scales the loss "
            "itself: hand in its inner optimizer and write "
            "RunConfig(precision='mixed_float16').",
        ),
        (
            {"optimizer": "adam"},
            "TrainOp.optimizer is str 'adam', not a Keras optimizer. Hand its factory "
            "in as a module: Estimator(modules={'optimizer': keras.optimizers.Adam})",
        ),
        (
            {"optimizer": SGD(gradient_accumulation_steps=4)},
            "write RunConfig(gradient_accumulation_steps=4) instead.",
        ),
        ({"variables": []}, "TrainOp.variables is empty. A network without input"),
        (
            {"variables": ["kernel"]},
            "TrainOp.variables holds str 'kernel', not a variable: write",
        ),
        ({"clip_norm": 0.0}, "TrainOp.clip_norm is 0.0: write a number > 0."),
        (
            {"clip_norm": float("nan")},
            "TrainOp.clip_norm is nan: write a number > 0.",
        ),
        ({"every": 0}, "TrainOp.every is 0: write an int > 0."),
        ({"repeat": 1.5}, "TrainOp.repeat is 1.5: write an int > 0."),
        ({"repeat": True}, "TrainOp.repeat is True: write an int > 0."),
        ({"at": 2}, "TrainOp.at is 2; it counts the steps of every=1 from 1: write"),
        ({"every": 3, "at": (0, 1)}, "TrainOp.at is (0, 1); it counts the steps of"),
        ({"every": 3, "at": ()}, "TrainOp.at is (); it counts the steps of every=3"),
    ],
)
def test_train_op_refuses(fields, text, weight):
    with pytest.raises(SpecError) as error:
        TrainOp(**{"optimizer": SGD(), "variables": [weight], **fields})
    assert text in str(error.value)


def test_train_op_takes_any_iterable_of_variables(weight):
    assert TrainOp(SGD(), iter([weight])).variables == (weight,)
    assert len(TrainOp(SGD(), [tf.Variable(1.0)]).variables) == 1


@pytest.mark.parametrize("factory", [keras.metrics.Mean(), "accuracy", None])
def test_metric_takes_a_factory(factory):
    with pytest.raises(SpecError, match=r"metric\(\) takes a factory first and got "):
        metric(factory, 1.0)


def test_metric_keeps_its_arguments():
    kept = metric(keras.metrics.Mean, [1.0], sample_weight=[2.0])
    assert kept.factory is keras.metrics.Mean
    assert kept.args == ([1.0],)
    assert kept.kwargs == {"sample_weight": [2.0]}


_LOSS = {"loss": tf.constant([1.0, 2.0])}


@pytest.mark.parametrize(
    ("mode", "fields", "text"),
    [
        ("test", {}, "mode is 'test', not one of ('train', 'eval', 'infer'): pass on"),
        (
            EVAL,
            {**_LOSS, "metrics": {}, "eval_metric_ops": {}},
            "both metrics and eval_metric_ops are given; they are one field under two",
        ),
        (
            TRAIN,
            {},
            "mode 'train' needs loss and train_op: write EstimatorSpec(mode, loss=",
        ),
        (TRAIN, _LOSS, "mode 'train' needs train_op: write EstimatorSpec(mode, train"),
        (EVAL, {}, "mode 'eval' needs loss: write EstimatorSpec(mode, loss=keras"),
        (
            PREDICT,
            _LOSS,
            "mode 'infer' needs predictions: write EstimatorSpec(mode, predictions={",
        ),
        (EVAL, {"loss": object()}, "loss is object <object object at 0x"),
        (
            EVAL,
            {"loss": tf.constant([1, 2])},
            "loss has dtype int32; it must be floating point: write tf.cast(loss, ",
        ),
        (
            EVAL,
            {"loss": 1.0, "loss_weights": [1.0]},
            "loss_weights are given with a scalar loss, which has already been "
            "averaged: return per-example losses",
        ),
        (
            EVAL,
            {**_LOSS, "loss_weights": [1.0, 2.0, 3.0]},
            "loss_weights of shape (3,) do not broadcast to the loss of shape (2,).",
        ),
        (
            EVAL,
            {**_LOSS, "loss_weights": [[1.0, 2.0]]},
            "loss_weights of shape (1, 2) do not broadcast to the loss of shape (2,).",
        ),
        (
            EVAL,
            {"loss": [[1.0], [2.0]], "loss_weights": [[1.0, 2.0], [3.0, 4.0]]},
            "loss_weights of shape (2, 2) do not broadcast to the loss of shape (2, 1)",
        ),
        (
            EVAL,
            {**_LOSS, "train_op": SGD()},
            ", not a TrainOp: write train_op=TrainOp(optimizer, network.trainable",
        ),
        (EVAL, {**_LOSS, "train_op": []}, "train_op is an empty list: give at least"),
        (
            EVAL,
            {**_LOSS, "metrics": [1.0]},
            "metrics is list [1.0]: write {'auc': metric(...)}.",
        ),
        (
            EVAL,
            {**_LOSS, "metrics": {"loss": 1.0}},
            "metrics has the name 'loss', which the driver reports itself (loss, "
            "global_step, global_step/sec, examples/sec, input_wait, learning_rate, "
            "learning_rate/...): choose",
        ),
        (EVAL, {**_LOSS, "metrics": {"global_step": 1.0}}, "the name 'global_step'"),
        (
            EVAL,
            {**_LOSS, "metrics": {"mean": keras.metrics.Mean()}},
            "metric 'mean' is Mean <Mean name=mean>; the driver keeps the state: write",
        ),
        (
            EVAL,
            {**_LOSS, "eval_metric_ops": {"mean": (1.0, 2.0)}},
            "metric 'mean' is tuple (1.0, 2.0); the driver keeps the state: write",
        ),
        (
            EVAL,
            {**_LOSS, "metrics": {"mean": object()}},
            "metric 'mean' is object <object object at 0x",
        ),
        (
            EVAL,
            {**_LOSS, "scalars": 1.0},
            "scalars is float 1.0: write {'norm': scalar}.",
        ),
        (
            EVAL,
            {**_LOSS, "scalars": {"norms": [1.0, 2.0]}},
            "scalar 'norms' has shape (2,): write tf.reduce_mean(x).",
        ),
        (
            PREDICT,
            {"predictions": 1.0, "export_outputs": {"logits": 1.0}},
            "export_outputs is {'logits': 1.0}: write {'serving_default': {'name'",
        ),
        (
            PREDICT,
            {"predictions": 1.0, "export_outputs": [1.0]},
            "export_outputs is [1.0]: write {'serving_default': {'name': tensor}}",
        ),
    ],
)
def test_spec_refuses(mode, fields, text):
    with pytest.raises(SpecError) as error:
        EstimatorSpec(mode, **fields)
    assert text in str(error.value)


def test_eval_metric_ops_is_another_name_for_metrics():
    kept = metric(keras.metrics.Mean, 1.0)
    spec = EstimatorSpec(EVAL, **_LOSS, eval_metric_ops={"m": kept})
    assert spec.metrics == {"m": kept}
    assert "eval_metric_ops" not in [f.name for f in dataclasses.fields(spec)]


def test_a_tensor_as_metric_is_its_mean():
    spec = EstimatorSpec(EVAL, **_LOSS, metrics={"norm": tf.constant(3.0)})
    assert spec.metrics["norm"].factory is keras.metrics.Mean
    assert float(spec.metrics["norm"].args[0]) == 3.0


def test_fields_come_in_their_normal_form(train_op):
    spec = EstimatorSpec(
        TRAIN,
        loss=[1.0, 2.0],
        train_op=train_op,
        regularization_losses=tf.constant(0.5),
        scalars={"rate": 1},
    )
    assert spec.loss.dtype == tf.float32
    assert spec.train_op == (train_op,)
    assert [float(r) for r in spec.regularization_losses] == [0.5]
    assert spec.scalars["rate"].dtype == tf.float32
    assert spec.metrics == {}
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.loss = None


def test_several_train_ops_keep_their_order(weight):
    ops = [TrainOp(SGD(), [weight]), TrainOp(SGD(), [weight])]
    spec = EstimatorSpec(TRAIN, **_LOSS, train_op=ops)
    assert spec.train_op == tuple(ops)


_NO_POSITIONS = (
    r"write weights\[\.\.\., tf.newaxis\], or weights\[tf.newaxis\] where they are "
    "none of examples."
)


def test_weights_of_examples_are_not_taken_for_those_of_positions():
    """[batch] meets the last dimension of [batch, time]; with 3 x 3 nothing fails."""

    @tf.function(
        input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec([None])],
        autograph=False,
    )
    def weighted(loss, weights):
        EstimatorSpec(EVAL, loss=loss, loss_weights=weights[:, tf.newaxis])
        EstimatorSpec(EVAL, loss=loss, loss_weights=tf.ones([3]))
        with pytest.raises(SpecError, match=_NO_POSITIONS):
            EstimatorSpec(EVAL, loss=loss, loss_weights=weights)

    weighted.get_concrete_function()


@pytest.mark.parametrize("shape", [[3, 3], [3, 3, 3], [3, 2]])
def test_weights_of_as_many_examples_as_positions_are_refused(shape):
    with pytest.raises(SpecError, match=_NO_POSITIONS):
        EstimatorSpec(EVAL, loss=tf.ones(shape), loss_weights=tf.ones([3]))
    weights = tf.ones([3, *[1] * (len(shape) - 1)])
    EstimatorSpec(EVAL, loss=tf.ones(shape), loss_weights=weights)


def test_a_scalar_whose_shape_only_the_run_tells():
    @tf.function(input_signature=[tf.TensorSpec(None)], autograph=False)
    def reported(value):
        return EstimatorSpec(EVAL, **_LOSS, scalars={"norm": value}).scalars["norm"]

    assert reported.get_concrete_function().output_shapes == []
    with pytest.raises(tf.errors.InvalidArgumentError, match="not compatible"):
        reported(tf.ones([2]))


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        (1.0, "tensors is float 1.0: write {'logits': logits}."),
        ({"loss": 1.0}, "tensors has the name 'loss', which the driver reports itself"),
        ({"norm": 1.0}, "tensors has the name 'norm', which metrics, scalars or summ"),
        ({"seen": 1.0}, "'seen', which metrics, scalars or summaries have: choose"),
        ({"x": object()}, "tensor 'x' is object"),
        (
            {"x": tf.ragged.constant([[1], []])},
            "RaggedTensor, which is no array: write",
        ),
        ({"x": tf.sparse.eye(2)}, "write x.to_tensor(), or tf.sparse.to_dense(x)."),
        ({"x": tf.Variable(0).handle}, "of dtype resource, which is no array"),
    ],
)
def test_tensors_that_no_hook_can_be_given_are_refused(tensors, text):
    reported = {"scalars": {"norm": 1.0}, "summaries": {"seen": histogram([1.0])}}
    with pytest.raises(SpecError) as error:
        EstimatorSpec(EVAL, **_LOSS, **reported, tensors=tensors)
    assert text in str(error.value)


def test_tensors_of_another_graph_or_an_unknown_rank_are_refused():
    kept = []

    @tf.function(input_signature=[tf.TensorSpec(None)], autograph=False)
    def traced(x):
        kept.append(x)
        with pytest.raises(SpecError, match=r"write tf.ensure_shape\(x, \[None, 10\]"):
            EstimatorSpec(EVAL, **_LOSS, tensors={"x": x})

    traced.get_concrete_function()
    with pytest.raises(SpecError, match="'x' is .* none that model_fn can hand out"):
        EstimatorSpec(EVAL, **_LOSS, tensors={"x": kept[0]})


@pytest.mark.parametrize("weights", [[2.0], [3.0, 4.0], 1.0])
def test_weights_that_broadcast_are_taken(weights):
    assert EstimatorSpec(EVAL, **_LOSS, loss_weights=weights).loss_weights == weights


def test_the_same_spec_serves_all_modes(train_op):
    # A model_fn need not tell the modes apart.
    for mode in ModeKeys.ALL:
        spec = EstimatorSpec(mode, **_LOSS, train_op=train_op, predictions={"x": 1.0})
        assert spec.mode == mode


def test_specs_can_be_replaced(train_op):
    spec = EstimatorSpec(EVAL, loss=1.0, metrics={"m": 1.0})
    assert float(dataclasses.replace(spec, loss=2.0).loss) == 2.0
    assert dataclasses.replace(spec, loss=2.0).metrics == spec.metrics
    spec = EstimatorSpec(PREDICT, predictions=1.0)
    assert dataclasses.replace(spec, predictions=2.0).predictions == 2.0
    spec = EstimatorSpec(TRAIN, loss=1.0, train_op=train_op)
    assert dataclasses.replace(spec, loss=2.0).train_op == (train_op,)
    with pytest.raises(SpecError, match="train_op is an empty list"):
        dataclasses.replace(spec, train_op=())
