"""Metrics of all examples at once, in Python: exact wherever the examples lie."""

import json
import re

import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.tracing import host_values
from tests import fakes

X, Y = fakes.classification_data(rows=72)
WORDS = np.array([b"w%d" % i for i in range(len(X))], object)
CPUS = ("CPU:0", "CPU:1", "CPU:2", "CPU:3")


class Called:
    """A metric function that keeps what it was called with; returns the median."""

    def __init__(self):
        self.calls = []

    def __call__(self, labels, words):
        self.calls.append((labels, words))
        return np.median(labels)


def make_estimator(tmp_path, fn, tensors=None, **config):
    """Evaluates with the host metric `median` beside those of the fakes."""

    def model_fn(features, labels, mode, network, optimizer):
        spec = fakes.classifier_fn(features["x"], labels, mode, network, optimizer, {})
        given = [labels, features["word"]] if tensors is None else tensors(features)
        metrics = {**spec.metrics, "median": ge.host_metric(fn, *given)}
        return ge.EstimatorSpec(
            mode, loss=spec.loss, train_op=spec.train_op, metrics=metrics
        )

    return fakes.make_estimator(tmp_path, model_fn=model_fn, **config)


def make_input_fn(per_replica=False, rows=72):
    features = {"x": X[:rows], "word": WORDS[:rows].astype("S")}
    return fakes.make_input_fn(
        features, Y[:rows], batch_size=32, per_replica=per_replica
    )


def central(_):
    return tf.distribute.experimental.CentralStorageStrategy(CPUS[:2])


@pytest.mark.parametrize(
    ("config", "per_replica"),
    [
        ({}, False),
        ({"devices": CPUS[:2]}, False),
        ({"devices": CPUS, "steps_per_loop": 1}, True),
        ({"train_distribute": central}, True),
        ({"run_eagerly": True}, False),
    ],
    ids=["one", "mirrored_2", "mirrored_4", "central_2", "eager"],
)
def test_a_host_metric_sees_each_example_once_in_order(tmp_path, config, per_replica):
    # 72 of 32: the last batch is ragged, and leaves replicas without an example.
    fn = Called()
    estimator = make_estimator(tmp_path, fn, save_checkpoints_steps=0, **config)
    estimator.train(make_input_fn(per_replica), max_steps=2)
    assert not fn.calls
    for _ in range(2):
        found = estimator.evaluate(make_input_fn(per_replica))
        assert found["median"] == np.median(Y) and found["examples"] == 72
    assert len(fn.calls) == 2
    for labels, words in fn.calls:
        np.testing.assert_array_equal(labels, Y)
        assert words.tolist() == WORDS.tolist()


def test_under_xla(tmp_path):
    options = {"model_fn": fakes.in_order_fn, "jit_compile": True}
    estimator = fakes.make_estimator(tmp_path, devices=CPUS[:2], **options)
    found = estimator.evaluate(fakes.make_input_fn(X, Y, batch_size=32))
    assert found["order"] == fakes.order_of(Y)


def test_a_host_metric_goes_where_metrics_go(tmp_path):
    seen = []

    class Watch(ge.Hook):
        def after_loop(self, run):
            seen.append("median" in run.report.metrics)

        def end(self, run):
            seen.append(run.report.metrics["median"])

    estimator = make_estimator(tmp_path, Called(), average=ge.ExponentialAverage())
    ge.train_and_evaluate(
        estimator,
        ge.TrainSpec(make_input_fn(), max_steps=2),
        ge.EvalSpec(
            make_input_fn(),
            hooks=[Watch()],
            early_stopping=ge.StopIfHigher("median", 100),
        ),
    )
    assert seen[-1] == np.median(Y) and seen[0] is False
    (line,) = (tmp_path / "eval" / "evaluations.jsonl").read_text().splitlines()
    assert {"median", "ema/median"} <= json.loads(line)["metrics"].keys()


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x: {"f1": 1.0}, "host metric 'median' returned dict .*one host_metric"),
        (lambda x: "good", "host metric 'median' returned str 'good'"),
        (lambda x: 1 / 0, "division by zero"),
    ],
)
def test_a_bad_result_is_told(tmp_path, fn, message):
    estimator = make_estimator(tmp_path, fn, tensors=lambda features: [features["x"]])
    with pytest.raises(Exception, match=message):
        estimator.evaluate(make_input_fn(rows=8))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((np.mean,), ".* and 0 tensors: write host_metric(f1,"),
        ((3, [1.0]), "got int 3 and 1 tensors"),
        ((np.mean, 3.0), "got a scalar, and examples are gathered"),
        ((np.mean, tf.ragged.constant([[1], []])), "write x.to_tensor(shape=[None,"),
        ((np.mean, object()), "not a tensor: hand in tensors [batch, ...]."),
    ],
)
def test_a_bad_declaration_is_told(given, message):
    message = ".*".join(map(re.escape, message.split(".*")))
    with pytest.raises(ge.SpecError, match=message):
        ge.host_metric(*given)


def test_examples_of_other_shapes_make_up_no_array():
    with pytest.raises(ge.SpecError, match=r"shapes \[\(3,\), \(5,\)\] in one evalua"):
        host_values._joined([np.zeros([2, 5]), np.zeros([2, 3])])


def test_rows_of_all_processes_come_in_the_inputs_order():
    metric = {"all": ge.host_metric(lambda x, w: x, [0.0], ["a"])}

    def of(process):
        made = host_values.HostMetrics(metric, lambda content: contents)
        for step in (1, 0):
            number = 10 * step + process
            made._kept(step, 0, 1.0, np.array([number]), np.array([b"\0w\0"], object))
            made._kept(step, 1, 0.0, np.array([-1]), np.array([b""], object))
        return made

    first, second = of(0), of(1)
    none = host_values.HostMetrics(metric, lambda content: contents)
    contents = [host_values.packed(each._rows) for each in (first, second, none)]
    for each in (first, second, none):
        assert each.results()["all"].tolist() == [0, 1, 10, 11]
    rows = list(host_values.unpacked(contents[1], 2))
    assert [arrays[1].tolist() for _, arrays in rows] == [[b"\0w\0"]] * 2
    assert rows[0][0] == (1, 0, 0)
