"""Compiled loops and windows, over a step that adds up the numbers of its input."""

import contextlib
import dataclasses
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline import Hook, ModeKeys, NanHook, RunConfig, StopAtStepHook, metric
from pipeline.contract.hooks import Run
from pipeline.driver.trainer import TrainLoop
from pipeline.feed import feed as input_lib
from pipeline.feed.dataset import Source
from pipeline.hooks.saving import Saving
from pipeline.loop import compiled_loop, eval_loop, watchers
from pipeline.loop.losses import Totals
from pipeline.loop.metrics import MetricSet
from pipeline.strategy.peers import Peers

METRICS = {"largest": metric(keras.metrics.Sum, tf.zeros([1]))}


class Fake:
    """A loop over numbers: each step's loss is its number, of weight 1 or 2.

    Even numbers weigh 2. The metric is their sum, the scalar the last one.
    """

    def __init__(
        self, numbers, *, repeat=False, num_steps=None, run_eagerly=False, **options
    ):
        numbers = np.asarray(numbers, np.float32)

        def input_fn():
            data = tf.data.Dataset.from_tensor_slices(numbers).batch(1)
            return data.repeat() if repeat else data

        strategy = tf.distribute.get_strategy()
        self.feed = input_lib.make_feed(
            Source(input_fn, ModeKeys.TRAIN), peers=Peers(strategy)
        )
        self.metrics = MetricSet(METRICS)
        self.calls = []
        self._loop = compiled_loop.CompiledLoop(
            dataclasses.replace(self.feed.plan, num_steps=num_steps),
            self._step,
            self.metrics,
            ["last"],
            run_eagerly=run_eagerly,
            **options,
        )

    @staticmethod
    def _step(batches, step):
        (batch,) = batches[0]
        number = batch.features[0]
        weight = tf.where(tf.equal(number % 2, 0), 2.0, 1.0)
        scalars = {"last": tf.stack([number, 1.0])}
        sums = number * weight, weight, {"largest": [number]}, tf.ones([])
        return Totals(*sums, scalars)

    def __call__(self, iterator, start, boundaries):
        self.calls.append((start, *boundaries))
        return self._loop(iterator, start, boundaries)

    def train(self, *hooks, start=0, max_step=None, steps_per_loop=1000):
        run = Run("model_dir", start, max_step)
        mine = watchers.Watchers(hooks, self.metrics, steps_per_loop=steps_per_loop)
        data = types.SimpleNamespace(iterator=iter(self.feed.dataset), resumed=False)
        saving = Saving(RunConfig(save_checkpoints_steps=0), None, None, None)
        run.ended = TrainLoop(self, data, mine, saving)(run)
        return run


class Watch(Hook):
    """Keeps where it was called, and the report there."""

    def __init__(self, every_steps=None, stop_at=None):
        self.every_steps = every_steps
        self.stop_at = stop_at
        self.calls, self.reports = [], []

    def begin(self, run):
        self._note("begin", run)

    def after_step(self, run):
        self._note("step", run)
        if run.step == self.stop_at:
            run.request_stop(f"{self.every_steps} wants to")

    def end(self, run):
        self._note("end", run)

    def _note(self, name, run):
        self.calls.append((name, run.step))
        self.reports.append(run.report)


@pytest.fixture(scope="module")
def endless():
    """Numbers 1 to 12, again and again."""
    return Fake(range(1, 13), repeat=True)


@pytest.fixture(scope="module", params=[None, 10], ids=["asks", "counts"])
def finite(request):
    return Fake(range(1, 11), num_steps=request.param)


def mean_of(numbers):
    weights = [2 - n % 2 for n in numbers]
    return np.average(numbers, weights=weights)


def test_a_hook_is_called_exactly_at_its_steps(endless):
    three, four, five = Watch(3), Watch(4), Watch(5)
    endless.calls.clear()
    run = endless.train(three, four, five, max_step=12)
    steps = lambda hook: [s for name, s in hook.calls if name == "step"]  # noqa: E731
    assert steps(three) == [3, 6, 9, 12]
    assert steps(four) == [4, 8, 12]
    assert steps(five) == [5, 10]
    assert run.step == 12
    assert not run.ended
    # The loop returns where somebody looks, and nowhere else.
    stops = [call[-1] for call in endless.calls]
    assert stops == [3, 4, 5, 6, 8, 9, 10, 12]


class Onlooker(Watch):
    only_watches = True


def test_a_call_passes_through_what_is_only_watched(endless):
    three, ten = Onlooker(3), Watch(10)
    endless.train(three, max_step=3)  # The first call learns how fast steps are.
    endless.calls.clear()
    endless.train(three, ten, max_step=23)
    assert endless.calls[0] == (0, 3)
    assert {call[-1] for call in endless.calls} >= {10, 20, 23}
    assert any(len(call) > 2 for call in endless.calls)
    steps = [step for name, step in three.calls if name == "step"]
    assert steps == [3, 3, 6, 9, 12, 15, 18, 21]
    reports = three.reports[-6:-1]
    assert [report.num_steps for report in reports] == [3] * 5
    numbers = [[(s - k - 1) % 12 + 1 for k in range(3)] for s in steps[-5:]]
    assert [r.metrics["largest"] for r in reports] == [sum(n) for n in numbers]
    assert all(report.seconds > 0 for report in reports)


def test_slow_steps_are_seen_one_boundary_at_a_time(endless, monkeypatch):
    monkeypatch.setattr(watchers, "_MOST_SECS_UNSEEN", 1e-9)
    endless.calls.clear()
    endless.train(Onlooker(3), max_step=12)
    assert endless.calls == [(0, 3), (3, 6), (6, 9), (9, 12)]


def test_a_bad_loss_is_named_though_nobody_acts_at_its_step():
    fake = Fake([1, 2, 3, np.nan, 5, 6], repeat=True)
    segments = fake(iter(fake.feed.dataset), 0, [2, 4, 6])
    assert [segment.nonfinite_step for segment in segments] == [None, 4, None]
    stops = Fake([1, 2, 3, np.nan, 5, 6], repeat=True, stop_at_nonfinite=True)
    segments = stops(iter(stops.feed.dataset), 0, [2, 4, 6])
    assert [segment.step for segment in segments] == [2, 4]
    assert segments[-1].nonfinite_step == 4


def test_steps_are_counted_from_the_global_one(endless):
    hook = Watch(5)
    endless.train(hook, start=7, max_step=12)
    assert hook.calls == [("begin", 7), ("step", 10), ("end", 12)]


def test_each_report_covers_its_own_window(endless):
    three, five = Watch(3), Watch(5)
    endless.train(three, five, max_step=7)
    for hook, spans in (
        (three, [(), (1, 2, 3), (4, 5, 6), (7,)]),
        (five, [(), (1, 2, 3, 4, 5), (6, 7)]),
    ):
        assert len(hook.reports) == len(spans)
        for report, window in zip(hook.reports, spans, strict=True):
            assert report.num_steps == len(window)
            if window:
                assert report.step == window[-1]
                assert report.loss == pytest.approx(mean_of(window))
                assert report.metrics == {"largest": sum(window)}
                assert report.scalars == {"last": window[-1]}
    assert three.reports[0].values() == {"loss": 0.0}
    assert three.reports[0].steps_per_sec == 0


def test_steps_per_loop_bounds_a_call(endless):
    endless.calls.clear()
    endless.train(max_step=10, steps_per_loop=4)
    assert endless.calls == [(0, 4), (4, 8), (8, 10)]


def test_a_finite_input_ends_the_run(finite):
    hook = Watch(4)
    run = finite.train(hook)
    assert run.ended
    assert run.step == 10
    assert run.finished
    assert hook.calls == [("begin", 0), ("step", 4), ("step", 8), ("end", 10)]
    assert hook.reports[-1].loss == pytest.approx(mean_of([9, 10]))


def test_the_call_that_only_finds_the_end_does_not_clear_the_scalars(finite):
    hook = Watch()
    finite.train(hook, steps_per_loop=5)
    assert hook.reports[-1].num_steps == 10
    assert hook.reports[-1].scalars == {"last": 10.0}


def test_a_pass_of_known_length_ends_that_many_steps_after_its_start():
    start = tf.Variable(7, dtype=tf.int64, trainable=False)
    fake = Fake(range(1, 9), num_steps=4, pass_start=start)
    segments = fake(iter(fake.feed.dataset), 9, [10, 11])
    assert [(s.step, s.ended) for s in segments] == [(10, False), (11, False)]
    (last,) = fake(iter(fake.feed.dataset), 11, [20])
    assert (last.step, last.num_steps, last.ended) == (11, 0, True)
    start.assign(11)
    (again,) = fake(iter(fake.feed.dataset), 11, [20])
    assert (again.step, again.num_steps, again.ended) == (15, 4, True)


def test_an_empty_input_ends_at_once():
    run = Fake([]).train(Watch(1))
    assert (run.step, run.ended) == (0, True)


def test_requests_to_stop_accumulate(endless):
    hooks = Watch(3, stop_at=6), Watch(2, stop_at=6), Watch(1)
    run = endless.train(*hooks, max_step=12)
    assert run.stop_reasons == ["3 wants to", "2 wants to"]
    assert run.step == 6
    # The one after them is called at that step too.
    assert hooks[2].calls[-2:] == [("step", 6), ("end", 6)]


@pytest.mark.parametrize(
    ("hook", "start", "last"),
    [
        (StopAtStepHook(num_steps=3), 4, 7),
        (StopAtStepHook(last_step=6), 4, 6),
        (StopAtStepHook(last_step=2), 4, 5),
    ],
    ids=["num_steps", "last_step", "behind"],
)
def test_stop_at_step(hook, start, last, endless):
    run = endless.train(hook, start=start, max_step=12)
    assert run.step == last
    assert len(run.stop_reasons) == 1


class Asks(Watch):
    """Wants to see what it was told to."""

    def __init__(self, answer):
        super().__init__()
        self.next_step = answer


@pytest.mark.parametrize("only_watches", [False, True])
@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (
            lambda step: 5,
            ValueError,
            "Asks.next_step(5) is 5, which is not ahead of step 5: return 6 or more",
        ),
        (lambda step: step - 2, ValueError, "Asks.next_step(0) is -2, which is not a"),
        (lambda step: step + 1.0, TypeError, "Asks.next_step(0) is 1.0: return an int"),
        (lambda step: True, TypeError, "Asks.next_step(0) is True: return an int, 1 o"),
    ],
    ids=["constant", "back", "float", "bool"],
)
def test_a_step_that_is_not_ahead(answer, error, text, only_watches, endless):
    hook = Asks(answer)
    hook.only_watches = only_watches
    with pytest.raises(error) as raised:
        endless.train(hook, max_step=12)
    assert text in str(raised.value)


def test_numpy_counts_steps_too(endless):
    hook = Asks(lambda step: np.int64(step + 7))
    endless.train(hook, max_step=12)
    assert ("step", 7) in hook.calls


def test_a_run_beyond_its_last_step_ends_at_once(endless):
    endless.calls.clear()
    assert endless.train(Watch(5), start=14, max_step=12).step == 14
    assert endless.calls == []


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("repeat", [True, False])
def test_the_loop_stops_behind_the_first_bad_loss(bad, repeat):
    fake = Fake([1, 2, bad, 4, 5, 6], repeat=repeat, stop_at_nonfinite=True)
    (segment,) = fake(iter(fake.feed.dataset), 10, [16])
    assert (segment.step, segment.num_steps) == (13, 3)
    assert segment.nonfinite_step == 13


def test_the_loop_goes_on_where_it_may_and_names_the_first():
    fake = Fake([1, np.inf, np.nan, 4], repeat=True)
    (segment,) = fake(iter(fake.feed.dataset), 0, [4])
    assert (segment.step, segment.nonfinite_step) == (4, 2)
    (good,) = fake(iter(fake.feed.dataset), 0, [1])
    assert good.nonfinite_step is None


def test_a_guard_sees_the_loop_before_any_hook_sees_the_step():
    fake = Fake([1, 2, np.nan], repeat=True, stop_at_nonfinite=True)
    hook = Watch(3)
    with pytest.raises(RuntimeError, match="at step 3"):
        fake.train(hook, NanHook(), max_step=6)
    assert hook.calls == [("begin", 0)]


def test_at_end_adds_scalars():
    def at_end(step):
        return {"rate": tf.cast(step * 2, tf.float32)}

    fake = Fake([1, 2, 3], repeat=True, at_end=at_end, at_end_scalars=["rate"])
    (segment,) = fake(iter(fake.feed.dataset), 0, [3])
    assert float(segment.totals.scalars["rate"]) == 6
    hook = Watch(2)
    fake.train(hook, max_step=2)
    assert hook.reports[-2].scalars == {"last": 2.0, "rate": 4.0}


@pytest.mark.parametrize("repeat", [True, False])
def test_the_same_eagerly(repeat):
    fake = Fake(range(1, 6), repeat=repeat, run_eagerly=True)
    hook = Watch(2)
    run = fake.train(hook, max_step=5)
    assert run.step == 5
    assert [r.metrics.get("largest") for r in hook.reports] == [None, 3, 7, 5]


def evaluate(fake, *hooks, steps=None, steps_per_loop=1000):
    run = Run("model_dir", 77, None)
    return eval_loop.evaluate(
        fake,
        fake.metrics,
        fake.feed,
        run=run,
        hooks=hooks,
        steps=steps,
        steps_per_loop=steps_per_loop,
    )


@pytest.mark.parametrize("steps_per_loop", [3, 5, 1000])
def test_evaluation_reads_all_of_the_input(finite, steps_per_loop):
    report = evaluate(finite, steps_per_loop=steps_per_loop)
    assert report.loss == pytest.approx(mean_of(range(1, 11)))
    assert report.metrics == {"largest": 55}
    assert report.scalars == {"last": 10.0}
    assert (report.step, report.num_steps) == (77, 10)


def test_evaluation_of_some_steps(endless):
    endless.calls.clear()
    report = evaluate(endless, steps=5, steps_per_loop=3)
    assert report.metrics == {"largest": 15}
    assert endless.calls == [(0, 3), (3, 5)]


def test_evaluation_calls_hooks(finite):
    class Stop(Watch):
        def after_loop(self, run):
            self._note("loop", run)
            run.request_stop("enough")

    hook = Stop()
    report = evaluate(finite, hook, steps_per_loop=4)
    assert [name for name, _ in hook.calls] == ["begin", "loop", "end"]
    assert report.num_steps == 4


def test_an_evaluation_shows_how_far_it_is(monkeypatch):
    seen = []

    @contextlib.contextmanager
    def bar(phase, *, last_step, shown):
        seen.append((phase, last_step))
        yield types.SimpleNamespace(move=seen.append)

    monkeypatch.setattr(eval_loop.progress, "bar", bar)
    evaluate(Fake(range(100)))
    assert seen == [("eval", 100), 16, 48, 100]
