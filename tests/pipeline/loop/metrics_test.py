"""Metrics by increments: the same as Keras' own, over any cut into batches."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline import EstimatorSpec, ModeKeys, SpecError, metric
from pipeline.loop.metrics import MetricSet

ROWS, CLASSES = 11, 3
CUTS = (0, 4, 8, 9, 11)  # Batches of 4, 4, 1 and 2.

_RNG = np.random.default_rng(0)
LABELS = _RNG.integers(0, CLASSES, ROWS)
SCORES = _RNG.uniform(0.05, 1, [ROWS, CLASSES]).astype(np.float32)
ONE_HOT = np.eye(CLASSES, dtype=np.float32)[LABELS]
PROBABILITIES = SCORES / SCORES.sum(1, keepdims=True)
BINARY = (LABELS == 1).astype(np.float32)[:, None]
POSITIVE = PROBABILITIES[:, 1:2]
WEIGHTS = _RNG.uniform(0, 2, ROWS).astype(np.float32)

K = keras.metrics
SPARSE, DENSE, YES_NO = (
    (LABELS, PROBABILITIES),
    (ONE_HOT, PROBABILITIES),
    (BINARY, POSITIVE),
)
CASES = {
    "Accuracy": (K.Accuracy, (LABELS, SCORES.argmax(1))),
    "BinaryAccuracy": (K.BinaryAccuracy, YES_NO),
    "CategoricalAccuracy": (K.CategoricalAccuracy, DENSE),
    "SparseCategoricalAccuracy": (K.SparseCategoricalAccuracy, SPARSE),
    "TopKCategoricalAccuracy": (lambda: K.TopKCategoricalAccuracy(2), DENSE),
    "SparseTopKCategoricalAccuracy": (
        lambda: K.SparseTopKCategoricalAccuracy(2),
        SPARSE,
    ),
    "AUC": (lambda: K.AUC(num_thresholds=50), YES_NO),
    "FalseNegatives": (K.FalseNegatives, YES_NO),
    "FalsePositives": (K.FalsePositives, YES_NO),
    "TrueNegatives": (K.TrueNegatives, YES_NO),
    "TruePositives": (K.TruePositives, YES_NO),
    "Precision": (K.Precision, YES_NO),
    "Recall": (lambda: K.Recall(thresholds=[0.2, 0.4]), YES_NO),
    "PrecisionAtRecall": (lambda: K.PrecisionAtRecall(0.5), YES_NO),
    "RecallAtPrecision": (lambda: K.RecallAtPrecision(0.3), YES_NO),
    "SensitivityAtSpecificity": (lambda: K.SensitivityAtSpecificity(0.5), YES_NO),
    "SpecificityAtSensitivity": (lambda: K.SpecificityAtSensitivity(0.5), YES_NO),
    "F1Score": (K.F1Score, DENSE),
    "FBetaScore": (lambda: K.FBetaScore(beta=2.0), DENSE),
    "CategoricalHinge": (K.CategoricalHinge, DENSE),
    "Hinge": (K.Hinge, YES_NO),
    "SquaredHinge": (K.SquaredHinge, YES_NO),
    "BinaryIoU": (K.BinaryIoU, YES_NO),
    "IoU": (lambda: K.IoU(CLASSES, [0, 2]), (LABELS, SCORES.argmax(1))),
    "MeanIoU": (lambda: K.MeanIoU(CLASSES), (LABELS, SCORES.argmax(1))),
    "OneHotIoU": (lambda: K.OneHotIoU(CLASSES, [1]), DENSE),
    "OneHotMeanIoU": (lambda: K.OneHotMeanIoU(CLASSES), DENSE),
    "BinaryCrossentropy": (K.BinaryCrossentropy, YES_NO),
    "CategoricalCrossentropy": (K.CategoricalCrossentropy, DENSE),
    "SparseCategoricalCrossentropy": (K.SparseCategoricalCrossentropy, SPARSE),
    "KLDivergence": (K.KLDivergence, DENSE),
    "Poisson": (K.Poisson, YES_NO),
    "Mean": (K.Mean, (SCORES,)),
    "Sum": (K.Sum, (SCORES,)),
    "CosineSimilarity": (K.CosineSimilarity, DENSE),
    "LogCoshError": (K.LogCoshError, YES_NO),
    "MeanAbsoluteError": (K.MeanAbsoluteError, YES_NO),
    "MeanAbsolutePercentageError": (K.MeanAbsolutePercentageError, YES_NO),
    "MeanSquaredError": (K.MeanSquaredError, YES_NO),
    "MeanSquaredLogarithmicError": (K.MeanSquaredLogarithmicError, YES_NO),
    "R2Score": (K.R2Score, YES_NO),
    "RootMeanSquaredError": (K.RootMeanSquaredError, YES_NO),
    "ConcordanceCorrelation": (K.ConcordanceCorrelation, DENSE),
    "PearsonCorrelation": (K.PearsonCorrelation, DENSE),
}


def batches(arrays):
    bounds = zip(CUTS, CUTS[1:], strict=False)
    return [[tf.constant(a[i:j]) for a in arrays] for i, j in bounds]


def results(declare, arrays):
    """Of a MetricSet over the batches; `declare` makes metrics of one batch."""
    metrics = MetricSet(declare(*batches(arrays)[0]))
    states = [
        metrics.increments(declare(*batch), len(batch[0]), None)
        for batch in batches(arrays)
    ]
    return metrics.results(states)


@pytest.mark.parametrize("name", CASES)
def test_equals_keras(name):
    factory, arrays = CASES[name]
    theirs = factory()
    for batch in batches(arrays):
        theirs.update_state(*batch)
    ours = results(lambda *batch: {"m": metric(factory, *batch)}, arrays)
    np.testing.assert_allclose(ours["m"], theirs.result(), rtol=1e-5)


NUMBERS = [
    name
    for name, (factory, arrays) in CASES.items()
    if arrays is YES_NO and issubclass(type(factory()), K.MeanMetricWrapper)
]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_examples_count_by_themselves(name, weighted):
    """Keras would take the mean of a batch `[batch]` for one example's value."""
    factory, (labels, scores) = CASES[name]
    arrays = (labels[:, 0], scores[:, 0], WEIGHTS)

    def declare(labels, scores, weights):
        given = {"sample_weight": weights} if weighted else {}
        named = {"y_true": labels, "y_pred": scores}
        return {
            "m": metric(factory, labels, scores, **given),
            "named": metric(factory, **named, **given),
        }

    theirs = factory()
    theirs.update_state(labels, scores, WEIGHTS if weighted else None)
    ours = results(declare, arrays)
    wanted = float(theirs.result())
    assert ours == {"m": pytest.approx(wanted), "named": pytest.approx(wanted)}


@pytest.mark.parametrize("name", ["CosineSimilarity", "PearsonCorrelation"])
def test_vectors_of_one_number_are_refused(name):
    with pytest.raises(SpecError, match="Give it .batch, numbers"):
        results(lambda y, p: {"m": metric(CASES[name][0], y, p)}, (WEIGHTS, WEIGHTS))


def test_every_metric_of_keras_is_tried():
    abstract = {"Metric", "MeanMetricWrapper"}
    classes = {n for n, c in vars(K).items() if inspect.isclass(c)}
    assert classes - abstract == set(CASES)


def test_sample_weights_count():
    arrays = (LABELS, PROBABILITIES, WEIGHTS)
    ours = results(
        lambda y, p, w: {
            "m": metric(K.SparseCategoricalAccuracy, y, p, sample_weight=w)
        },
        arrays,
    )
    right = (PROBABILITIES.argmax(1) == LABELS).astype(float)
    assert ours["m"] == pytest.approx(np.average(right, weights=WEIGHTS), rel=1e-5)


def _spec_metrics(values):
    loss = tf.constant([0.0])
    return EstimatorSpec(ModeKeys.EVAL, loss=loss, metrics={"m": values}).metrics


def test_a_tensor_is_averaged_over_examples():
    ours = results(_spec_metrics, (SCORES,))
    assert ours["m"] == pytest.approx(SCORES.mean(), rel=1e-6)


def test_a_scalar_counts_for_the_examples_of_its_batch():
    ours = results(lambda x: _spec_metrics(tf.reduce_mean(x)), (SCORES,))
    assert ours["m"] == pytest.approx(SCORES.mean(), rel=1e-6)


def test_a_stand_in_counts_for_nothing():
    declared = {"m": metric(K.Sum, tf.constant([2.0, 3.0]))}
    metrics = MetricSet(declared)
    states = [
        metrics.increments(declared, 2, tf.constant(share)) for share in (1.0, 0.0)
    ]
    assert metrics.results(states) == {"m": 5.0}


class Pair(K.Mean):
    """Two values in one metric."""

    def result(self):
        mean = super().result()
        return {"plain": mean, "double": 2 * mean}


def test_results_of_several_values():
    ours = results(
        lambda x, y, p: {
            "pair": metric(Pair, x),
            "f1": metric(K.F1Score, y, p),
        },
        (SCORES, ONE_HOT, PROBABILITIES),
    )
    assert ours["pair/double"] == pytest.approx(2 * SCORES.mean(), rel=1e-5)
    assert ours["pair/plain"] == pytest.approx(SCORES.mean(), rel=1e-5)
    assert ours["f1"].shape == (CLASSES,)


def test_no_metrics_give_no_results():
    assert MetricSet({}).results([{}]) == {}


def test_counts_stay_exact_beyond_what_float32_can_count():
    metrics = MetricSet({"m": metric(K.Sum, tf.zeros([1]))})
    big, one = float(2**24), [tf.constant(1.0)]
    states = [{"m": [tf.constant(big)]}] + [{"m": one}] * 100
    assert metrics.results(states) == {"m": big + 100}
    # One by one in float32 they are lost.
    assert np.float32(big) + np.float32(1) == np.float32(big)


class Maximum(K.Metric):
    """A metric whose state is no sum."""

    def __init__(self):
        super().__init__()
        self.largest = self.add_weight(name="largest", initializer="zeros")

    def update_state(self, values, sample_weight=None):
        self.largest.assign(tf.maximum(self.largest, tf.reduce_max(values)))

    def result(self):
        return self.largest.value


class Moving(Maximum):
    """A moving average, which depends on the order of batches."""

    def update_state(self, values, sample_weight=None):
        self.largest.assign(0.9 * self.largest + 0.1 * tf.reduce_mean(values))


@pytest.mark.parametrize("factory", [Maximum, Moving])
def test_what_is_no_sum_is_refused_by_name(factory):
    with pytest.raises(SpecError) as error:
        MetricSet({"peak": metric(factory, tf.constant([1.0]))})
    assert (
        f"metric 'peak' ({factory.__name__}) keeps a state that is no sum over batches "
        "(a maximum, a moving average)" in str(error.value)
    )


def test_a_factory_of_something_else_is_refused():
    with pytest.raises(SpecError) as error:
        MetricSet({"acc": metric(lambda: 3)})
    assert "the factory of metric 'acc' returned int 3, not a Keras metric" in str(
        error.value
    )


@pytest.mark.parametrize(
    ("arguments", "shapes"),
    [((SPARSE[0], PROBABILITIES, WEIGHTS, 1), ""), ((BINARY,), "[(11, 1)]")],
)
def test_arguments_that_do_not_fit_are_named_with_their_shapes(arguments, shapes):
    with pytest.raises(SpecError) as error:
        MetricSet({"acc": metric(K.SparseCategoricalAccuracy, *arguments)})
    text = "metric 'acc' (SparseCategoricalAccuracy) does not take what it was given"
    assert f"{text} (shapes {shapes}" in str(error.value)
