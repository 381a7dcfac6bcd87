"""Metrics on one and two replicas, compared with those of Keras, and refused ones."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

import gin_estimator as ge
from small import X, Y, data, eval_input, make, model_fn

ROWS, CLASSES = 11, 3
RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, CLASSES, ROWS)
SCORES = RNG.uniform(0.05, 1, [ROWS, CLASSES]).astype("float32")
WEIGHTS = RNG.uniform(0, 2, ROWS).astype("float32")
DATA = {
    "labels": LABELS,
    "choices": SCORES.argmax(1),
    "one_hot": np.eye(CLASSES, dtype="float32")[LABELS],
    "probabilities": SCORES / SCORES.sum(1, keepdims=True),
    "yes": (LABELS == 1).astype("float32")[:, None],
    "positive": (SCORES / SCORES.sum(1, keepdims=True))[:, 1:2],
    "scores": SCORES,
    "weights": WEIGHTS,
    "text": np.array([f"text {i}" for i in range(ROWS)]),
    "number": np.arange(ROWS),
}
K = keras.metrics
INDICES, SPARSE = ("labels", "choices"), ("labels", "probabilities")
DENSE, YES_NO = ("one_hot", "probabilities"), ("yes", "positive")
CASES = {
    "Accuracy": (K.Accuracy, INDICES),
    "BinaryAccuracy": (K.BinaryAccuracy, YES_NO),
    "CategoricalAccuracy": (K.CategoricalAccuracy, DENSE),
    "SparseCategoricalAccuracy": (K.SparseCategoricalAccuracy, SPARSE),
    "TopKCategoricalAccuracy": (lambda: K.TopKCategoricalAccuracy(2), DENSE),
    "SparseTopKCategoricalAccuracy": (lambda: K.SparseTopKCategoricalAccuracy(2), SPARSE),
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
    "IoU": (lambda: K.IoU(CLASSES, [0, 2]), INDICES),
    "MeanIoU": (lambda: K.MeanIoU(CLASSES), INDICES),
    "OneHotIoU": (lambda: K.OneHotIoU(CLASSES, [1]), DENSE),
    "OneHotMeanIoU": (lambda: K.OneHotMeanIoU(CLASSES), DENSE),
    "BinaryCrossentropy": (K.BinaryCrossentropy, YES_NO),
    "CategoricalCrossentropy": (K.CategoricalCrossentropy, DENSE),
    "SparseCategoricalCrossentropy": (K.SparseCategoricalCrossentropy, SPARSE),
    "KLDivergence": (K.KLDivergence, DENSE),
    "Poisson": (K.Poisson, YES_NO),
    "Mean": (K.Mean, ("scores",)),
    "Sum": (K.Sum, ("scores",)),
    "CosineSimilarity": (K.CosineSimilarity, DENSE),
    "LogCoshError": (K.LogCoshError, YES_NO),
    "MeanAbsoluteError": (K.MeanAbsoluteError, YES_NO),
    "MeanAbsolutePercentageError": (K.MeanAbsolutePercentageError, YES_NO),
    "MeanSquaredError": (K.MeanSquaredError, YES_NO),
    "MeanSquaredLogarithmicError": (K.MeanSquaredLogarithmicError, YES_NO),
    "R2Score": (K.R2Score, YES_NO),
    "RootMeanSquaredError": (K.RootMeanSquaredError, YES_NO),
}
for name in ("ConcordanceCorrelation", "PearsonCorrelation"):  # Keras 3.6 has none.
    if hasattr(K, name):
        CASES[name] = getattr(K, name), DENSE
# Numbers of single examples, [batch].
NUMBERS = {
    f"{name}, numbers": CASES[name]
    for name in ("MeanAbsoluteError", "MeanSquaredError", "LogCoshError", "BinaryCrossentropy")
}


def input_fn(mode):
    data = tf.data.Dataset.from_tensor_slices(DATA).batch(4)  # The last batch has three.
    return data.map(lambda each: (each, each["labels"]))


def evaluate(folder, metrics_fn, strategy=None, **config):
    """Evaluates the metrics that `metrics_fn` returns for a batch."""

    def model_fn(features, labels, mode, variable):
        loss = tf.cast(labels, tf.float32) * variable
        return ge.EstimatorSpec(mode, loss=loss, metrics=metrics_fn(features))

    config = ge.RunConfig(str(folder), train_distribute=strategy, **config)
    modules = {"variable": lambda: tf.Variable(1.0)}
    return ge.Estimator(model_fn, modules=modules, config=config).evaluate(input_fn)


def test_every_class_of_keras_is_tried():
    classes = {name for name, each in vars(K).items() if isinstance(each, type)}
    assert classes - {"Metric", "MeanMetricWrapper"} == set(CASES)


@pytest.mark.slow
@pytest.mark.parametrize(
    "one_or_two", [pytest.param("default", marks=pytest.mark.slow), "mirrored 2"], indirect=True
)
def test_all_classes_equal_keras(tmp_path, one_or_two):
    def metrics(features):
        found = {
            name: ge.metric(factory, *(features[key] for key in keys))
            for name, (factory, keys) in CASES.items()
        }
        for name, (factory, keys) in NUMBERS.items():
            y, p = (features[key][:, 0] for key in keys)
            weights = features["weights"]
            found[name] = ge.metric(factory, y_true=y, y_pred=p, sample_weight=weights)
        found["scalar"] = tf.reduce_mean(features["scores"])
        found["tensor"] = features["scores"]
        return found

    results = evaluate(tmp_path, metrics, one_or_two)
    for name, (factory, keys) in {**CASES, **NUMBERS}.items():
        expected = factory()
        for i in range(0, ROWS, 4):
            weights = {"sample_weight": WEIGHTS[i : i + 4]} if name in NUMBERS else {}
            expected.update_state(*(DATA[key][i : i + 4] for key in keys), **weights)
        np.testing.assert_allclose(results[name], expected.result(), rtol=1e-5, err_msg=name)
    assert results["scalar"] == pytest.approx(SCORES.mean(), rel=1e-5)
    assert results["tensor"] == pytest.approx(SCORES.mean(), rel=1e-5)


def test_counts_are_exact_beyond_float32(tmp_path):
    values = tf.constant([2.0**24, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0])

    def metrics(features):
        return {"sum": ge.metric(K.Sum, tf.gather(values, features["number"]))}

    # In float32, 2**24 + 1 is 2**24.
    assert evaluate(tmp_path, metrics, steps_per_loop=1)["sum"] == 2**24 + 2


def test_hooks_that_are_due_together_report_the_metrics_of_their_own_steps(tmp_path):
    def recalls():
        return K.Recall(thresholds=[0.3, 0.5, 0.7])

    def fn(features, labels, mode, network, optimizer):
        spec = model_fn(features, labels, mode, network, optimizer)
        recall = ge.metric(recalls, labels == 1, tf.sigmoid(features[:, 0]))
        return dataclasses.replace(spec, metrics={"recalls": recall})

    class Reports(ge.Hook):
        def __init__(self, every_steps):
            self.every_steps, self.seen = every_steps, {}

        def after_step(self, run):
            values = run.report.metrics["recalls"]
            self.seen[run.step] = values.copy()
            values[:] = -1  # It is this hook's own.

    def expected(first, end):
        metric = recalls()
        metric.update_state(Y[first:end] == 1, tf.sigmoid(X[first:end, 0]))
        return metric.result()

    each, another, pairs = Reports(1), Reports(1), Reports(2)
    make(tmp_path, fn=fn).train(lambda: data(4).repeat(), max_steps=4, hooks=[each, another, pairs])
    for step in (1, 2, 3, 4):
        for hook in (each, another):
            np.testing.assert_allclose(hook.seen[step], expected(4 * step - 4, 4 * step))
    for step in (2, 4):
        np.testing.assert_allclose(pairs.seen[step], expected(4 * step - 8, 4 * step))


class Maximum(K.Metric):
    def __init__(self, name="maximum"):
        super().__init__(name=name)
        self.largest = self.add_weight(name="largest", initializer="zeros")

    def update_state(self, values):
        self.largest.assign(tf.maximum(self.largest, tf.reduce_max(values)))

    def result(self):
        return self.largest


class Text(K.Mean):
    def result(self):
        return "good"


class Fails(K.Mean):
    def result(self):
        raise ZeroDivisionError("by zero")


class Hidden(K.Metric):
    def update_state(self, values):
        self.total = values

    def result(self):
        return 0.0


class Pair(K.Mean):
    def result(self):
        return {"a": super().result(), "b": 0.0}


REFUSED = {
    "no sum": ({"m": (Maximum, "scores")}, "'m' .Maximum. has a state that is not a sum"),
    "text": ({"m": (Text, "scores")}, "'m' .Text. has the result 'good': expected a number"),
    "hidden": ({"m": (Hidden, "scores")}, "'m' .Hidden. has no Keras variable"),
    "no metric": ({"m": (dict, "scores")}, "factory of metric 'm' returned .*expected a Keras"),
    "shapes": ({"m": (K.AUC, "scores", "yes")}, r"'m' .AUC. does not take .*\(1, 3\), \(1, 1\)"),
    "vectors": ({"m": (K.CosineSimilarity, "weights", "weights")}, "expected a vector of each"),
    "names": ({"m": (Pair, "scores"), "m/a": (K.Mean, "scores")}, "'m/a' reports 'm/a', as"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_mistakes_are_named(tmp_path, case):
    declared, message = REFUSED[case]
    with pytest.raises(ge.errors.SpecError, match=message):
        evaluate(
            tmp_path,
            lambda features: {
                name: ge.metric(factory, *(features[key] for key in keys))
                for name, (factory, *keys) in declared.items()
            },
        )


def test_an_error_of_a_metric_names_it(tmp_path):
    with pytest.raises(ZeroDivisionError) as caught:
        evaluate(tmp_path, lambda features: {"m": ge.metric(Fails, features["scores"])})
    assert any("metric 'm', Fails.result" in note for note in caught.value.__notes__)


@pytest.mark.thin
@pytest.mark.parametrize("config", [{}, {"run_eagerly": True}], ids=["compiled", "eager"])
def test_numpy_metrics_get_each_example_once_in_order(tmp_path, strategy, config):
    calls = []

    def record(numbers, *, text, scores):
        calls.append((numbers.tolist(), text.tolist()))
        return scores.sum(axis=0)

    def metrics(features):
        host = ge.numpy_metric(
            record, features["number"], text=features["text"], scores=features["scores"]
        )
        return {"host": host, "mean": features["scores"]}

    results = evaluate(tmp_path, metrics, strategy, **config)
    assert calls == [(list(range(ROWS)), [f"text {i}".encode() for i in range(ROWS)])]
    np.testing.assert_allclose(results["host"], SCORES.sum(axis=0), rtol=1e-6)
    assert results["mean"] == pytest.approx(SCORES.mean(), rel=1e-5)


@pytest.mark.slow
def test_numpy_metrics_under_xla(tmp_path):
    def with_host(features, labels, mode, network, optimizer):
        spec = model_fn(features, labels, mode, network, optimizer)
        total = ge.numpy_metric(lambda x: float(x.sum()), features)
        return dataclasses.replace(spec, metrics={**spec.metrics, "total": total})

    one = make(tmp_path, fn=with_host, jit_compile=True)
    assert one.evaluate(eval_input)["total"] == pytest.approx(X.sum(), rel=1e-5)


HOST_REFUSED = {
    "text": (lambda numbers: "good", lambda x: x, "'m' returned 'good': expected a number"),
    "dict": (lambda numbers: {}, lambda x: x, "'m' returned {}: expected a number"),
    "scalar": (len, lambda x: x[0], r"numpy_metric\(\) has .*expected tensors \[batch"),
    "shapes": (len, lambda x: tf.zeros([tf.size(x), tf.size(x)]), "different shapes.*tf.pad"),
}


@pytest.mark.parametrize("case", HOST_REFUSED)
def test_mistakes_of_host_metrics_are_named(tmp_path, case):
    function, argument, message = HOST_REFUSED[case]
    with pytest.raises(ge.errors.SpecError, match=message):
        evaluate(tmp_path, lambda each: {"m": ge.numpy_metric(function, argument(each["number"]))})
