"""One step: what is minimised, by hand in numpy, however the batch is cut."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline import modules, steps
from pipeline.input_fn import Batch
from pipeline.losses import Totals
from pipeline.metrics import MetricSet
from pipeline.model_fn import EstimatorSpec, ModeKeys, SpecError, TrainOp, metric

TRAIN, EVAL, PREDICT = ModeKeys.ALL
SGD = keras.optimizers.SGD
ROWS, TIME = 5, 3

_RNG = np.random.default_rng(0)
X = _RNG.normal(size=[ROWS, TIME, 2]).astype(np.float32)
Y = _RNG.normal(size=[ROWS, TIME]).astype(np.float32)
EXAMPLE_WEIGHTS = np.array([[1.0], [0.0], [2.0], [0.5], [3.0]], np.float32)
MASK = (_RNG.uniform(size=[ROWS, TIME]) < 0.6).astype(np.float32)
W = np.array([0.5, -1.0], np.float32)
RATE = 0.1


def two_cpus():
    return tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


class Trainer:
    """A model_fn's modules and its TrainStep, fed by hand."""

    def __init__(
        self,
        model_fn,
        *,
        replicas=1,
        precision="float32",
        jit_compile=False,
        eager=False,
        features=None,
        labels=None,
        mode=TRAIN,
        **factories,
    ):
        factories = {
            "network": lambda: tf.Variable(W, name="w"),
            "optimizer": lambda: SGD(RATE),
            **factories,
        }
        strategy = two_cpus() if replicas == 2 else tf.distribute.get_strategy()
        self.modules = modules.Modules(factories, strategy, precision=precision, seed=0)
        bound = modules.bind(model_fn, mode, self.modules, {})
        features = tf.TensorSpec([None, TIME, 2]) if features is None else features
        labels = tf.TensorSpec([None, TIME]) if labels is None else labels
        outline = self.modules.build(bound, (features, labels))
        metrics = MetricSet(outline.metrics if mode != PREDICT else {})
        if mode == TRAIN:
            self._step = steps.TrainStep(
                bound, self.modules, outline, metrics, jit_compile=jit_compile
            )
        else:
            self._step = steps.EvalStep(bound, self.modules, metrics)
        self._call = self._run
        if not eager:
            self._call = tf.function(self._run, autograph=False)
        self.done = 0

    def __getitem__(self, name):
        return self.modules.by_name[name]

    @property
    def w(self):
        return self["network"].numpy()

    def learning_rates(self):
        return {k: float(v) for k, v in self._step.learning_rates().items()}

    def step(self, *replicas):
        """One step on `(features, labels[, share])` by replica and micro-batch."""
        batches = [
            [tuple(None if p is None else tf.constant(p) for p in part) for part in r]
            for r in replicas
        ]
        return self.call(batches)

    def call(self, batches):
        """As `step`, of tensors."""
        tree = self._call(batches, tf.constant(self.done, tf.int64))
        self.done += 1
        return Totals(*tree)

    def _run(self, batches, step):
        totals = self._step([[Batch(*part) for part in r] for r in batches], step)
        return totals.as_tree()


def squares(features, labels, mode, network, optimizer):
    """Losses [batch, time] with equal weights."""
    loss = tf.square(tf.linalg.matvec(features, network) - labels)
    return EstimatorSpec(mode, loss=loss, train_op=TrainOp(optimizer, [network]))


def changed(**fields):
    """`squares` with other fields of its spec: values, or functions of the spec."""

    def model_fn(features, labels, mode, network, optimizer):
        x, weights = features if isinstance(features, tuple) else (features, None)
        spec = squares(x, labels, mode, network, optimizer)
        values = {
            k: f(spec, network, weights) if callable(f) else f
            for k, f in fields.items()
        }
        return EstimatorSpec(
            mode, **{"loss": spec.loss, "train_op": spec.train_op, **values}
        )

    return model_fn


def objective(w, weights, l2=0.0):
    """The loss and its gradient over the whole batch, in numpy."""
    weights = np.broadcast_to(weights, Y.shape)
    error = X @ w - Y
    loss = np.sum(error**2 * weights) / np.sum(weights) + l2 * np.sum(w**2)
    gradient = np.einsum("btd,bt->d", X, 2 * error * weights) / np.sum(weights)
    return loss, gradient + 2 * l2 * w


CASES = {
    "per_example": ({}, np.ones([1, 1]), 0),
    "of_a_row": (
        {"loss": lambda spec, *_: tf.reduce_mean(spec.loss, 1)},
        np.ones([1, 1]),
        0,
    ),
    "scalar": (
        {"loss": lambda spec, *_: tf.reduce_mean(spec.loss)},
        np.ones([1, 1]),
        0,
    ),
    "example_weights": (
        {"loss_weights": lambda spec, w, weights: weights[:, :1]},
        EXAMPLE_WEIGHTS,
        0,
    ),
    "mask": ({"loss_weights": lambda spec, w, weights: weights[:, 1:]}, MASK, 0),
    "regularized": (
        {"regularization_losses": lambda spec, w, _: [0.3 * tf.reduce_sum(w**2)]},
        np.ones([1, 1]),
        0.3,
    ),
}
CUTS = {
    "whole": [[(0, 5)]],
    "replicas": [[(0, 4)], [(4, 5)]],
    "micro": [[(0, 2), (2, 5)]],
    "both": [[(0, 1), (1, 3)], [(3, 4), (4, 5)]],
}
EXTRA = np.concatenate([EXAMPLE_WEIGHTS, MASK], 1)
EXTRA_SPEC = (tf.TensorSpec([None, TIME, 2]), tf.TensorSpec([None, 1 + TIME]))


def parts(cut, *, extra=False):
    def part(i, j):
        return ((X[i:j], EXTRA[i:j]) if extra else X[i:j]), Y[i:j]

    return [[part(i, j) for i, j in replica] for replica in CUTS[cut]]


def feed(trainer, cut, share=None):
    """A step of (features, weights) batches; nested, so built here."""
    batches = [
        [
            ((tf.constant(x[0]), tf.constant(x[1])), tf.constant(y), share)
            for x, y in replica
        ]
        for replica in parts(cut, extra=True)
    ]
    return trainer.call(batches)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("case", CASES)
def test_the_loss_rule(case, cut):
    fields, weights, l2 = CASES[case]
    trainer = Trainer(changed(**fields), replicas=len(CUTS[cut]), features=EXTRA_SPEC)
    totals = feed(trainer, cut)
    loss, gradient = objective(W, weights, l2)
    np.testing.assert_allclose(trainer.w, W - RATE * gradient, rtol=1e-5)
    np.testing.assert_allclose(totals.loss / totals.weight, loss, rtol=1e-5)


@pytest.mark.parametrize("cut", ["whole", "both"])
def test_a_batch_of_no_weight_changes_nothing(cut):
    model_fn = changed(loss_weights=lambda spec, w, _: tf.zeros_like(spec.loss))
    trainer = Trainer(model_fn, replicas=len(CUTS[cut]))
    totals = trainer.step(*parts(cut))
    np.testing.assert_array_equal(trainer.w, W)
    assert (float(totals.loss), float(totals.weight)) == (0, 0)


def test_a_stand_in_counts_for_nothing():
    trainer = Trainer(changed(metrics=lambda spec, *_: {"m": spec.loss}), replicas=2)
    totals = trainer.step([(X, Y, 1.0)], [(X[:2], Y[:2], 0.0)])
    loss, gradient = objective(W, 1)
    np.testing.assert_allclose(trainer.w, W - RATE * gradient, rtol=1e-5)
    np.testing.assert_allclose(totals.loss / totals.weight, loss, rtol=1e-5)
    np.testing.assert_allclose(totals.metrics["m"], [loss * ROWS, ROWS], rtol=1e-5)


def test_batch_normalization_survives_a_stand_in():
    def model_fn(features, labels, mode, network, optimizer):
        outputs = network(tf.reshape(features, [-1, 2]), training=mode == TRAIN)
        loss = tf.square(tf.reduce_sum(outputs, 1) - tf.reshape(labels, [-1]))
        loss = tf.reshape(loss, [-1, TIME])
        op = TrainOp(optimizer, network.trainable_variables)
        return EstimatorSpec(mode, loss=loss, train_op=op)

    weights = {}
    for replicas in (1, 2):
        trainer = Trainer(
            model_fn, replicas=replicas, network=keras.layers.BatchNormalization
        )
        trainer.step(*[[(X, Y, 1.0)], [(X[:1], Y[:1], 0.0)]][:replicas])
        weights[replicas] = [v.numpy() for v in trainer["network"].trainable_variables]
    for one, two in zip(weights[1], weights[2], strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5)


@pytest.mark.parametrize("cut", ["whole", "micro", "both"])
@pytest.mark.parametrize("where", ["train_op", "optimizer"])
def test_the_norm_that_is_clipped_is_that_of_the_whole(cut, where):
    norm = 0.01

    def model_fn(features, labels, mode, network, optimizer):
        spec = squares(features, labels, mode, network, optimizer)
        clip_norm = norm if where == "train_op" else None
        op = TrainOp(optimizer, [network], clip_norm=clip_norm)
        return EstimatorSpec(mode, loss=spec.loss, train_op=op)

    def optimizer():
        return SGD(RATE, global_clipnorm=norm if where == "optimizer" else None)

    trainer = Trainer(model_fn, replicas=len(CUTS[cut]), optimizer=optimizer)
    trainer.step(*parts(cut))
    gradient = objective(W, 1)[1]
    clipped = gradient * norm / np.linalg.norm(gradient)
    np.testing.assert_allclose(trainer.w, W - RATE * clipped, rtol=1e-5)


def test_keras_still_reduces_where_we_turn_it_off():
    """`_all_reduce_sum_gradients` is private: see `steps._leave_reduction_to_us`."""
    assert hasattr(SGD(), "_all_reduce_sum_gradients"), (
        "Keras has dropped Optimizer._all_reduce_sum_gradients: without another way to "
        "turn its all-reduce off, gradients on several replicas are summed twice and "
        "clipped before they are whole"
    )


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("micro", [1, 2])
def test_sparse_gradients(replicas, micro):
    tokens = np.array([[0, 1, 1], [3, 1, 0], [0, 0, 0], [2, 2, 1]])
    targets = np.arange(12, dtype=np.float32).reshape([4, 3])

    def model_fn(features, labels, mode, network, optimizer):
        loss = tf.square(network(features)[..., 0] - labels)
        op = TrainOp(optimizer, network.trainable_variables)
        return EstimatorSpec(mode, loss=loss, train_op=op)

    trainer = Trainer(
        model_fn,
        replicas=replicas,
        features=tf.TensorSpec([None, 3], tf.int64),
        network=lambda: keras.layers.Embedding(5, 1, embeddings_initializer="zeros"),
    )
    size = 4 // (replicas * micro)
    each = [(tokens[i : i + size], targets[i : i + size]) for i in range(0, 4, size)]
    trainer.step(*[each[i : i + micro] for i in range(0, len(each), micro)])
    expected = np.zeros([5, 1])
    np.add.at(expected[:, 0], tokens, RATE * 2 * targets / 12)
    (table,) = trainer["network"].variables
    np.testing.assert_allclose(table, expected, rtol=1e-5)


def two_losses(features, labels, mode, network, other, optimizer, second):
    """The spec's loss moves `network`; the second op's own moves `other`."""
    spec = squares(features, labels, mode, network, optimizer)
    own = 3 * tf.square(tf.linalg.matvec(features, other))
    ops = [TrainOp(optimizer, [network]), TrainOp(second, [other], loss=own)]
    return EstimatorSpec(mode, loss=spec.loss, train_op=ops)


SECOND = {"other": lambda: tf.Variable(W, name="v"), "second": lambda: SGD(0.5)}


@pytest.mark.parametrize("cut", ["whole", "both"])
def test_ops_with_losses_of_their_own(cut):
    trainer = Trainer(two_losses, replicas=len(CUTS[cut]), **SECOND)
    totals = trainer.step(*parts(cut))
    loss, gradient = objective(W, 1)
    np.testing.assert_allclose(trainer.w, W - RATE * gradient, rtol=1e-5)
    own = np.einsum("btd,bt->d", X, 6 * (X @ W)) / Y.size
    np.testing.assert_allclose(trainer["other"], W - 0.5 * own, rtol=1e-5)
    # What is reported is the spec's.
    np.testing.assert_allclose(totals.loss / totals.weight, loss, rtol=1e-5)
    rates = trainer.learning_rates()
    assert rates == pytest.approx(
        {"learning_rate/optimizer": RATE, "learning_rate/second": 0.5}
    )


def test_ops_may_share_variables_and_an_optimizer():
    def model_fn(features, labels, mode, network, other, optimizer):
        loss = squares(features, labels, mode, network, optimizer).loss
        ops = [
            TrainOp(optimizer, [network]),
            TrainOp(optimizer, [network, other], loss=loss + tf.reduce_sum(other**2)),
        ]
        return EstimatorSpec(mode, loss=loss, train_op=ops)

    trainer = Trainer(model_fn, other=SECOND["other"])
    trainer.step(*parts("whole"))
    # Both gradients are of the step's beginning.
    np.testing.assert_allclose(trainer.w, W - 2 * RATE * objective(W, 1)[1], rtol=1e-5)
    np.testing.assert_allclose(trainer["other"], W - RATE * 2 * W, rtol=1e-5)
    assert int(trainer["optimizer"].iterations.numpy()) == 2
    assert trainer.learning_rates() == pytest.approx({"learning_rate": RATE})


def counted(**options):
    def model_fn(features, labels, mode, network, other, optimizer, second):
        spec = two_losses(features, labels, mode, network, other, optimizer, second)
        first = TrainOp(optimizer, [network], **options)
        return EstimatorSpec(mode, loss=spec.loss, train_op=[first, spec.train_op[1]])

    return model_fn


def test_every_applies_an_op_at_the_steps_that_it_divides():
    trainer = Trainer(counted(every=3), **SECOND)
    counts = []
    for _ in range(7):
        trainer.step(*parts("whole"))
        counts.append(int(trainer["optimizer"].iterations.numpy()))
    assert counts == [0, 0, 1, 1, 1, 2, 2]
    assert int(trainer["second"].iterations.numpy()) == 7


@pytest.mark.parametrize("cut", ["whole", "both"])
def test_repeat_updates_several_times_a_step(cut):
    trainer = Trainer(counted(repeat=3), replicas=len(CUTS[cut]), **SECOND)
    totals = trainer.step(*parts(cut))
    assert int(trainer["optimizer"].iterations.numpy()) == 3
    assert int(trainer["second"].iterations.numpy()) == 1
    w = W
    for _ in range(3):
        loss, gradient = objective(w, 1)
        w = w - RATE * gradient
    np.testing.assert_allclose(trainer.w, w, rtol=1e-4)
    # Of the last forward pass; each example counts once.
    np.testing.assert_allclose(totals.loss / totals.weight, loss, rtol=1e-4)
    assert float(totals.weight) == Y.size


def test_a_variable_that_the_loss_does_not_depend_on_is_left_alone():
    def model_fn(features, labels, mode, network, other, optimizer):
        loss = squares(features, labels, mode, network, optimizer).loss
        op = TrainOp(optimizer, [network, other])
        return EstimatorSpec(mode, loss=loss, train_op=op)

    trainer = Trainer(
        model_fn, other=SECOND["other"], optimizer=lambda: SGD(RATE, weight_decay=0.5)
    )
    trainer.step(*parts("whole"))
    np.testing.assert_array_equal(trainer["other"], W)
    assert np.all(trainer.w != W)


def test_a_loss_that_depends_on_nothing_trained_is_an_error():
    trainer = Trainer(changed(loss=lambda spec, *_: tf.stop_gradient(spec.loss)))
    with pytest.raises(SpecError) as error:
        trainer.step(*parts("whole"))
    assert (
        "the loss depends on none of TrainOp.variables ['w:0']: was it computed from "
        "the network's output inside of model_fn?" in str(error.value)
    )


def test_a_loss_of_another_number_of_examples_is_an_error():
    trainer = Trainer(changed(loss=lambda spec, *_: tf.reshape(spec.loss, [-1])))
    with pytest.raises(SpecError) as error:
        trainer.step(*parts("whole"))
    assert (
        "loss has shape (15,) for a batch of 5 examples: return per-example losses "
        "[batch, ...] or the scalar mean." in str(error.value)
    )


@pytest.mark.parametrize("cut", ["whole", "replicas", "both"])
@pytest.mark.parametrize("options", [{"jit_compile": True}, {"eager": True}])
def test_the_same_weights_compiled_or_eager(options, cut):
    reference = Trainer(two_losses, **SECOND)
    trainer = Trainer(two_losses, replicas=len(CUTS[cut]), **SECOND, **options)
    for _ in range(2):
        reference.step(*parts("whole"))
        trainer.step(*parts(cut))
    np.testing.assert_allclose(trainer.w, reference.w, rtol=1e-4)
    np.testing.assert_allclose(trainer["other"], reference["other"], rtol=1e-4)


def dense_fn(features, labels, mode, network, optimizer):
    loss = tf.square(network(features)[..., 0] - tf.cast(labels, network.compute_dtype))
    op = TrainOp(optimizer, network.trainable_variables)
    return EstimatorSpec(mode, loss=loss, train_op=op)


def one_dense():
    return keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")


def mixed(precision, **options):
    return Trainer(dense_fn, precision=precision, network=one_dense, **options)


def test_bfloat16_computes_in_half_and_keeps_float32():
    trainer = mixed("mixed_bfloat16")
    totals = trainer.step(*parts("whole"))
    (kernel,) = trainer["network"].variables
    assert kernel.dtype == "float32"
    assert totals.loss.dtype == tf.float32
    gradient = objective(np.ones(2, np.float32), 1)[1]
    np.testing.assert_allclose(kernel.numpy()[:, 0], 1 - RATE * gradient, atol=5e-3)


def kernel_of(trainer):
    return trainer["network"].kernel.numpy()[:, 0]


@pytest.mark.parametrize("replicas", [1, 2])
def test_float16_skips_an_overflow_and_halves_the_scale(replicas):
    trainer = mixed("mixed_float16", replicas=replicas)
    state = trainer.modules.driver_state
    state["loss_scale_good_steps"].assign(7)
    big = X * 60000.0  # Finite in float16, its squared error is not.
    trainer.step(*[[(X, Y)], [(big, Y)]][-replicas:])
    np.testing.assert_array_equal(kernel_of(trainer), [1, 1])
    assert int(trainer["optimizer"].iterations.numpy()) == 0
    assert state["loss_scale"].numpy() == 2.0**14
    assert state["loss_scale_good_steps"].numpy() == 0


def test_float16_doubles_the_scale_after_enough_good_steps(monkeypatch):
    monkeypatch.setattr(steps, "_LOSS_SCALE_GROWTH_STEPS", 2)
    trainer = mixed("mixed_float16")
    state = trainer.modules.driver_state
    state["loss_scale"].assign(16.0)
    scales = []
    for _ in range(5):
        trainer.step(*parts("whole"))
        scales.append(float(state["loss_scale"]))
    assert scales == [16, 32, 32, 64, 64]
    assert int(trainer["optimizer"].iterations.numpy()) == 5


def test_float16_takes_the_scale_out_of_the_gradient():
    trainer = mixed("mixed_float16")
    trainer.modules.driver_state["loss_scale"].assign(64.0)
    trainer.step(*parts("whole"))
    gradient = objective(np.ones(2, np.float32), 1)[1]
    np.testing.assert_allclose(kernel_of(trainer), 1 - RATE * gradient, atol=2e-3)


def test_the_scale_never_falls_below_one():
    trainer = mixed("mixed_float16")
    scale = trainer.modules.driver_state["loss_scale"]
    scale.assign(1.0)
    trainer.step([(X * 60000.0, Y)])
    assert float(scale) == 1.0


@pytest.mark.parametrize("replicas", [1, 2])
def test_evaluation_sums_and_changes_nothing(replicas):
    model_fn = changed(
        metrics=lambda spec, *_: {"total": metric(keras.metrics.Sum, spec.loss)},
        scalars=lambda spec, *_: {"largest": tf.reduce_max(spec.loss)},
    )
    trainer = Trainer(model_fn, replicas=replicas, mode=EVAL)
    totals = trainer.step(*parts("replicas" if replicas == 2 else "whole"))
    loss, _ = objective(W, 1)
    np.testing.assert_allclose(totals.loss, loss * Y.size, rtol=1e-5)
    np.testing.assert_allclose(totals.metrics["total"], [loss * Y.size], rtol=1e-5)
    assert float(totals.weight) == Y.size
    assert list(totals.scalars) == ["largest"]
    np.testing.assert_array_equal(trainer.w, W)


def test_predictions_come_by_replica():
    def model_fn(features, labels, mode, network, optimizer, step):
        assert labels is None
        outputs = tf.linalg.matvec(features, network)
        return EstimatorSpec(mode, predictions={"y": outputs, "step": step + 0})

    trainer = Trainer(squares, replicas=2)
    bound = modules.bind(model_fn, PREDICT, trainer.modules, {})

    def predict_fn(features, labels, step):
        return bound(features, labels, step)

    trainer.modules.global_step.assign(7)
    predict = steps.PredictStep(predict_fn, trainer.modules)
    first, second = tf.function(predict, autograph=False)([X[:3], X[3:]])
    np.testing.assert_allclose(first["y"], X[:3] @ W, rtol=1e-5)
    np.testing.assert_allclose(second["y"], X[3:] @ W, rtol=1e-5)
    assert int(first["step"]) == 7
