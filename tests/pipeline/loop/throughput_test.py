"""Examples a second, and the share of time spent waiting for input."""

import time

import numpy as np
import pytest
import tensorflow as tf

from pipeline.contract.hooks import Hook, Report
from pipeline.feed import feed as input_lib
from pipeline.feed.dataset import Source
from pipeline.hooks import stock
from pipeline.loop import compiled_loop, stretch
from pipeline.loop.losses import Totals
from pipeline.loop.metrics import MetricSet
from pipeline.loop.watchers import Window
from pipeline.strategy.peers import Peers
from tests import fakes


class Clock:
    """Seconds that pass when somebody says so, inside of a graph as well."""

    now = 1e9
    read = None

    def __call__(self):
        read = tf.py_function(lambda: self.now, [], tf.float64)
        self.read = tf.ensure_shape(read, [])
        return self.read

    def passing(self, seconds, value):
        """`value`, after so many seconds."""

        def passed(tensor):
            self.now += seconds
            return tensor

        result = tf.py_function(passed, [value], value.dtype)
        return tf.ensure_shape(result, value.shape)


def test_the_clock_of_a_program_that_is_deterministic_is_pythons(monkeypatch):
    """`enable_op_determinism`, which cannot be taken back, forbids TensorFlow's."""

    def forbidden():
        raise tf.errors.FailedPreconditionError(None, None, "determinism is enabled")

    monkeypatch.setattr(tf, "timestamp", forbidden)
    before = time.time()
    read = tf.function(stretch.now, autograph=False).get_concrete_function()
    assert "Timestamp" not in {op.type for op in read.graph.get_operations()}
    assert before <= float(read()) <= time.time()


def segments_of(monkeypatch, boundaries, *, input_secs, step_secs, asks, eager=False):
    """Runs a loop whose input and step take so many seconds of a clock by hand."""
    clock = Clock()
    monkeypatch.setattr(stretch, "now", clock)

    def input_fn():
        data = tf.data.Dataset.range(100).batch(2)
        data = data.map(lambda x: clock.passing(input_secs, tf.ensure_shape(x, [2])))
        # Or the clock would be moved on by a thread of its own.
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False
        data = data.with_options(options)
        return data if asks else data.repeat()

    def step(batches, step):
        number = tf.cast(batches[0][0].features[0], tf.float32)
        # TensorFlow reads a clock of its own before it computes, and this one whenever.
        with tf.control_dependencies([clock.read]):
            one = clock.passing(step_secs, tf.ones([]) + 0 * number)
        return Totals(one, one, {}, 2 * one, {})

    peers = Peers(tf.distribute.get_strategy())
    feed = input_lib.make_feed(Source(input_fn, "train"), peers=peers)
    assert feed.plan.asks == asks
    loop = compiled_loop.CompiledLoop(
        feed.plan, step, MetricSet({}), [], run_eagerly=eager
    )
    return loop(feed.iterator(), 0, boundaries)


@pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])
@pytest.mark.parametrize("asks", [False, True], ids=["endless", "asks"])
@pytest.mark.parametrize(("input_secs", "step_secs"), [(3, 1), (0, 5), (1, 0)])
def test_the_share_says_what_is_slow(monkeypatch, input_secs, step_secs, asks, eager):
    times = {"input_secs": input_secs, "step_secs": step_secs}
    segments = segments_of(monkeypatch, [2, 5], **times, asks=asks, eager=eager)
    assert [s.waited for s in segments] == [2 * input_secs, 3 * input_secs]
    window = Window(MetricSet({}))
    for segment in segments:
        window.add(segment)
    report = window.report()
    assert report.num_examples == 10
    assert report.seconds == 5 * (input_secs + step_secs)
    assert report.input_wait == input_secs / (input_secs + step_secs)
    assert report.examples_per_sec == 2 / (input_secs + step_secs)


class Counts(Hook):
    """Keeps the number of examples of each window."""

    def __init__(self):
        self.every_steps, self.counted = 2, []

    def after_step(self, run):
        self.counted.append(run.report.num_examples)


def test_stand_ins_are_no_examples(tmp_path):
    """Of ragged batches on two replicas, with two micro-batches each."""
    x, y = fakes.classification_data(50)
    estimator = fakes.make_estimator(
        tmp_path, devices=("CPU:0", "CPU:1"), gradient_accumulation_steps=2
    )
    hook = Counts()
    estimator.train(fakes.make_input_fn(x, y, batch_size=7), hooks=[hook])
    assert (hook.counted, estimator.global_step) == ([28, 22], 4)


def report(**fields):
    given = {"step": 1200, "num_steps": 10, "seconds": 0.5, "loss": 0.25}
    return Report(**given, metrics={}, scalars={}, **fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"num_examples": 2660, "input_seconds": 0.185},
            "5320 examples/s | input 37 % | ",
        ),
        ({"num_examples": 2, "input_seconds": 0.0}, "4.0 examples/s | input 0 % | "),
        # Another process waited longer than this one's steps took.
        ({"num_examples": 5, "input_seconds": 0.6}, "10 examples/s | input 100 % | "),
        ({}, ""),
    ],
)
def test_the_log_line(fields, words):
    line = stock.log_line("train", report(**fields))
    assert line == f"train | step 1200 | 20.0 steps/s | {words}loss 0.25"


def test_the_events():
    values = stock.SummaryHook().values(report(num_examples=50, input_seconds=0.1))
    speed = {"global_step/sec": 20.0, "examples/sec": 100.0, "input_wait": 0.2}
    assert values == {"loss": 0.25, **speed}
    assert list(stock.SummaryHook().values(report())) == ["loss", "global_step/sec"]


def test_a_window_that_an_earlier_version_saved_has_none():
    saved = Window(MetricSet({})).state()
    assert saved.pop("examples") == saved.pop("waited") == 0
    old = Window(MetricSet({}))
    assert old.restore({**saved, "num_steps": 3, "seconds": 1.0})
    assert old.report().num_examples is old.report().input_wait is None
    again = Window(MetricSet({}))
    again.restore(old.state())
    assert again.report().examples_per_sec is None
    assert np.isfinite(again.report().loss)
