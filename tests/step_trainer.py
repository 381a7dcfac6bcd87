"""One step of a small model, fed by hand, and what it should do, in numpy."""

import keras
import numpy as np
import tensorflow as tf

from pipeline import EstimatorSpec, ModeKeys, TrainOp
from pipeline.feed.batch import Batch
from pipeline.loop import steps
from pipeline.loop.losses import Totals
from pipeline.loop.metrics import MetricSet
from pipeline.strategy import modules

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
        return self.call(self._as_tensors(replicas))

    def graph(self, replicas):
        """The graph of a step."""
        return self.graph_of(self._as_tensors(replicas))

    def graph_of(self, batches):
        """As `graph`, of tensors."""
        step = tf.constant(0, tf.int64)
        return self._call.get_concrete_function(batches, step).graph

    @staticmethod
    def _as_tensors(replicas):
        return [
            [tuple(None if p is None else tf.constant(p) for p in part) for part in r]
            for r in replicas
        ]

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
