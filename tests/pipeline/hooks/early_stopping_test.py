"""The rules by which evaluations end a training, on evaluations that are made up."""

import json
import math

import pytest

import pipeline as ge

NAN, INF = math.nan, math.inf

# Values at steps 1000, 2000, ... of tf.estimator 2.15.1's own stop_if_*_hooks.
HISTORIES = {
    "rises": [0.1, 0.2, 0.3, 0.4, 0.5],
    "falls": [0.5, 0.4, 0.3, 0.2, 0.1],
    "flat": [0.5, 0.5, 0.5, 0.5, 0.5],
    "peak": [0.1, 0.5, 0.3, 0.4, 0.2],
    "dip": [0.5, 0.1, 0.3, 0.2, 0.4],
    "ties": [0.3, 0.5, 0.5, 0.5, 0.6],
    "late": [0.2, 0.1, 0.1, 0.1, 0.9],
    "nan inside": [0.1, NAN, 0.3, NAN, 0.2],
    "inf inside": [0.1, INF, 0.3, 0.2, 0.4],
    "minus inf": [0.5, -INF, 0.3, 0.2, 0.1],
    "nan first": [NAN, 0.1, 0.3, 0.2, 0.4],
    "unittest": [0.5, 0.6, 0.7, 0.8, 0.75, 0.65],
}

# The number of the evaluation that stopped: threshold 0.25, then 0.5, each with
# min_steps 0 and 3000.
HIGHER = {
    "rises": [3, 3, None, None],
    "falls": [1, 3, None, None],
    "flat": [1, 3, None, None],
    "peak": [2, 3, None, None],
    "dip": [1, 3, None, None],
    "ties": [1, 3, 5, 5],
    "late": [5, 5, 5, 5],
    "nan inside": [3, 3, None, None],
    "inf inside": [2, 3, 2, None],
    "minus inf": [1, 3, None, None],
    "nan first": [3, 3, None, None],
    "unittest": [1, 3, 2, 3],
}
LOWER = {
    "rises": [1, None, 1, 3],
    "falls": [4, 4, 2, 3],
    "flat": [None, None, None, None],
    "peak": [1, 5, 1, 3],
    "dip": [2, 4, 2, 3],
    "ties": [None, None, 1, None],
    "late": [1, 3, 1, 3],
    "nan inside": [1, 5, 1, 3],
    "inf inside": [1, 4, 1, 3],
    "minus inf": [2, 4, 2, 3],
    "nan first": [2, 4, 2, 3],
    "unittest": [None, None, None, None],
}
# max_steps 1000, 1001, 2000 and 3000, each with min_steps 0 and 2001.
NO_INCREASE = {
    "rises": [None, None, None, None, None, None, None, None],
    "falls": [2, 4, 3, 5, 3, 5, 4, None],
    "flat": [2, 4, 3, 5, 3, 5, 4, None],
    "peak": [3, 5, 4, None, 4, None, 5, None],
    "dip": [2, 4, 3, None, 3, None, 4, None],
    "ties": [3, 4, 4, None, 4, None, None, None],
    "late": [2, 4, 3, None, 3, None, 4, None],
    "nan inside": [2, 4, 5, 5, 5, 5, None, None],
    "inf inside": [3, 4, 4, None, 4, None, 5, None],
    "minus inf": [2, 4, 3, 5, 3, 5, 4, None],
    "unittest": [5, 5, 6, 6, 6, 6, None, None],
}
NO_DECREASE = {
    "rises": [2, 4, 3, 5, 3, 5, 4, None],
    "falls": [None, None, None, None, None, None, None, None],
    "flat": [2, 4, 3, 5, 3, 5, 4, None],
    "peak": [2, 4, 3, None, 3, None, 4, None],
    "dip": [3, 5, 4, None, 4, None, 5, None],
    "ties": [2, 4, 3, 5, 3, 5, 4, None],
    "late": [3, 4, 4, 5, 4, 5, 5, None],
    "nan inside": [2, 4, 3, None, 3, None, 4, None],
    "inf inside": [2, 5, 3, None, 3, None, 4, None],
    "minus inf": [3, None, 4, None, 4, None, 5, None],
    "unittest": [2, 4, 3, 5, 3, 5, 4, None],
}


def begun(rule, state=None):
    """Returns a run that a rule begins, maybe with a state that a checkpoint keeps."""
    run = ge.Run("/tmp/none", 0, None)
    rule.begin(run)
    if state is not None:
        rule.restore(run, json.loads(json.dumps(state)))
    return run


def show(rule, run, values, *, first=1, name=None):
    """Tells a rule of evaluations; returns the number of the one that stopped it."""
    for number, value in enumerate(values, first):
        metrics = {"m": value, "global_step": number * 1000}
        rule.after_evaluation(run, name, metrics)
        if run.stop_reasons:
            return number
    return None


def stops(rule, values):
    return show(rule, begun(rule), values)


# The semantics of tf.estimator.


@pytest.mark.parametrize("name", HIGHER)
def test_thresholds_are_those_of_tf_estimator(name):
    values = HISTORIES[name]
    for kind, expected in ((ge.StopIfHigher, HIGHER), (ge.StopIfLower, LOWER)):
        found = [
            stops(kind("m", threshold, min_steps=least), values)
            for threshold in (0.25, 0.5)
            for least in (0, 3000)
        ]
        assert found == expected[name]


@pytest.mark.parametrize("name", NO_INCREASE)
def test_patience_is_that_of_tf_estimator(name):
    values = HISTORIES[name]
    kinds = (ge.StopIfNoIncrease, NO_INCREASE), (ge.StopIfNoDecrease, NO_DECREASE)
    for kind, expected in kinds:
        found = [
            stops(kind("m", max_steps=most, min_steps=least), values)
            for most in (1000, 1001, 2000, 3000)
            for least in (0, 2001)
        ]
        assert found == expected[name]


def test_nan_is_never_the_best():
    # In tf.estimator nothing is better than a first value of NaN: it stops at 3.
    values = HISTORIES["nan first"]
    assert stops(ge.StopIfNoIncrease("m", max_steps=2000), values) is None
    assert stops(ge.StopIfNoIncrease("m", max_steps=2000), [NAN, NAN, NAN]) == 3


# What tf.estimator does not have.


@pytest.mark.parametrize(
    "options, values, expected",
    [
        ({"max_evaluations": 2}, [0.1, 0.2, 0.2, 0.1], 4),
        ({"max_evaluations": 2}, [0.1, 0.2, 0.2, 0.3, 0.3, 0.3], 6),
        ({"max_evaluations": 1, "min_delta": 0.5}, [0.0, 1.0, 1.5, 2.0], 3),
        ({"max_evaluations": 2, "min_delta": 0.5}, [0.0, 1.0, 1.5, 1.25, 2.5], 4),
        ({"max_evaluations": 2, "baseline": 0.5}, [0.1, 0.2, 0.3, 0.4], 3),
        ({"max_evaluations": 2, "baseline": 0.5}, [0.1, 0.2, 0.6, 0.5, 0.5], 5),
        ({"max_steps": 9000, "max_evaluations": 1}, [0.1, 0.1], 2),
    ],
)
def test_evaluations_delta_and_baseline(options, values, expected):
    assert stops(ge.StopIfNoIncrease("m", **options), values) == expected
    falling = [-value for value in values]
    if "baseline" in options:
        options = {**options, "baseline": -options["baseline"]}
    assert stops(ge.StopIfNoDecrease("m", **options), falling) == expected


@pytest.mark.parametrize(
    "value, expected", [(NAN, 2), (INF, 2), (-INF, 2), (9.0, None)]
)
def test_divergence_stops_at_once(value, expected):
    assert stops(ge.StopIfDiverged("m"), [1.0, value]) == expected


def test_patience_in_seconds_of_training():
    rule = ge.StopIfNoIncrease("m", max_secs=60)
    now = [0.0]
    rule.patience._time._clock = lambda: now[0]
    run = begun(rule)
    for secs, value in [(50, 0.1), (100, 0.2), (159, 0.2)]:
        now[0] = secs
        show(rule, run, [value], first=secs)
    assert not run.stop_reasons
    # Another process goes on 1000 seconds later; none of them were training.
    again = ge.StopIfNoIncrease("m", max_secs=60)
    then = [1159.0]
    again.patience._time._clock = lambda: then[0]
    later = begun(again, rule.state())
    assert show(again, later, [0.2], first=160) is None
    then[0] = 1160.5
    assert show(again, later, [0.2], first=161) == 161


def test_of_another_evaluation_nothing_counts():
    rule = ge.StopIfHigher("m", 0.5, evaluation="test")
    run = begun(rule)
    assert show(rule, run, [0.9]) is None
    assert show(rule, run, [0.9], name="train") is None
    assert show(rule, run, [0.9], name="test") == 1
    (reason,) = run.stop_reasons
    assert reason == "StopIfHigher('m'): 0.9 at step 1000 is higher than 0.5"


def test_the_reason_says_what_was_best():
    rule = ge.StopIfNoDecrease("m", max_steps=2000)
    run = begun(rule)
    show(rule, run, [0.5, 0.25, 0.3, 0.75])
    assert run.stop_reasons == [
        "StopIfNoDecrease('m'): no decrease in 2000 steps; best 0.25 at step 2000, "
        "0.75 at step 4000"
    ]
    assert rule.best == (2000, 0.25)


# Runs that go on.


@pytest.mark.parametrize("kind", [ge.StopIfNoIncrease, ge.StopIfNoDecrease])
@pytest.mark.parametrize("name", HISTORIES)
def test_killed_anywhere_and_resumed_is_not_killed(name, kind):
    values = HISTORIES[name]
    options = {"max_steps": 2000, "max_evaluations": 3}
    expected = stops(kind("m", **options), values)
    for killed_after in range(1, expected or len(values)):
        first = kind("m", **options)
        show(first, begun(first), values[:killed_after])
        again = kind("m", **options)
        run = begun(again, first.state())
        # The last evaluation is repeated: nothing said whether it was done.
        assert show(again, run, values[killed_after - 1 :], first=killed_after) == (
            expected
        )


def test_a_stopped_run_ends_at_once_and_for_the_same_reason():
    rule = ge.StopIfHigher("m", 0.5)
    stopped = begun(rule)
    show(rule, stopped, [0.9])
    again = begun(ge.StopIfHigher("m", 0.5), rule.state())
    assert again.stop_reasons == stopped.stop_reasons


def test_another_rule_goes_on_and_says_so(log):
    rule = ge.StopIfNoIncrease("m", max_evaluations=1)
    show(rule, begun(rule), [0.9, 0.8])
    patient = ge.StopIfNoIncrease("m", max_evaluations=3, restore_best=False)
    run = begun(patient, rule.state())
    assert not run.stop_reasons
    assert any("training goes on" in line for line in log())
    # What was best before still is.
    assert show(patient, run, [0.7, 0.7, 0.7], first=3) == 4
    # Of another question nothing is known.
    other = ge.StopIfNoIncrease("m", max_evaluations=1, min_delta=0.5)
    assert show(other, begun(other, rule.state()), [0.7, 0.7], first=3) == 4
    assert any("patience begins anew" in line for line in log())


def test_one_object_may_watch_two_trainings():
    rule = ge.StopIfNoIncrease("m", max_evaluations=1)
    assert stops(rule, [0.9, 0.8]) == 2
    assert stops(rule, [0.1, 0.2, 0.1]) == 3


# Mistakes.


@pytest.mark.parametrize(
    "make, texts",
    [
        (lambda: ge.StopIfHigher(None, 1), ["StopIfHigher.metric is None"]),
        (lambda: ge.StopIfHigher("m", "1"), ["threshold is str '1'", "threshold=0.9"]),
        (lambda: ge.StopIfLower("m", NAN), ["threshold is float nan"]),
        (lambda: ge.StopIfLower("m", 1, min_steps=-1), ["min_steps is -1"]),
        (lambda: ge.StopIfNoIncrease("m"), ["no patience", "max_steps=5000"]),
        (lambda: ge.StopIfNoIncrease("m", max_steps=0), ["max_steps is 0"]),
        (lambda: ge.StopIfNoIncrease("m", max_secs=-1), ["max_secs is -1", ">= 0"]),
        (
            lambda: ge.StopIfNoDecrease("m", max_steps=1, min_delta=-0.5),
            ["min_delta is -0.5"],
        ),
        (
            lambda: ge.StopIfNoDecrease("m", max_steps=1, baseline="low"),
            ["baseline is str 'low'", "baseline=0.5"],
        ),
        (lambda: ge.StopIfHigher("m", 1, evaluation=3), ["evaluation is int 3"]),
    ],
)
def test_wrong_values_are_refused(make, texts):
    with pytest.raises(ge.Refusal) as info:
        make()
    assert all(text in str(info.value) for text in texts), info.value


@pytest.mark.parametrize(
    "make, texts",
    [
        (
            lambda: ge.StopIfNoIncrease("m", max_steps_without_increase=9),
            ["max_steps=5000"],
        ),
        (lambda: ge.StopIfNoDecrease(metric_name="m"), ["write 'accuracy'"]),
        (lambda: ge.StopIfHigher("m", 1, eval_dir="x"), ["evaluation='test'"]),
        (lambda: ge.StopIfNoIncrease("m", patience=3), ["max_evaluations=5"]),
        (lambda: ge.StopIfNoIncrease("m", patients=3), ["takes no patients", "max_"]),
        (lambda: ge.ReduceOnPlateau("m", min_lr=3), ["min_rate=1e-6"]),
    ],
)
def test_habits_have_a_line_to_write(make, texts):
    with pytest.raises(ge.RefusedTypeError) as info:
        make()
    assert all(text in str(info.value) for text in texts), info.value


def test_a_metric_that_there_is_not():
    rule = ge.StopIfHigher("acuracy", 0.5, evaluation="test")
    with pytest.raises(ValueError, match="'test' does not have. It has accuracy, loss"):
        rule.after_evaluation(
            begun(rule), "test", {"accuracy": 1.0, "loss": 0.0, "global_step": 1}
        )


def test_a_metric_that_is_no_scalar():
    rule = ge.StopIfHigher("m", 0.5)
    with pytest.raises(TypeError, match=r"of shape \(2,\): name a scalar"):
        show(rule, begun(rule), [[1.0, 2.0]])
