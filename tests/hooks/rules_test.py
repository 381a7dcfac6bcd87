"""Rules that end a training, and reductions of learning rates, as functions of evaluations."""

import math

import pytest

import gin_estimator as ge
from gin_estimator.model_dir.evaluated import Evaluated

NAN, INF = math.nan, math.inf

# Values at steps 1000, 2000, ... and where tf.estimator 2.15's hooks stop.
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


def record(values):
    return [Evaluated(step=1000 * i, metrics={"m": v}) for i, v in enumerate(values, 1)]


def stops(rule, values):
    """Returns the number of the first evaluation after which a rule stops."""
    history = record(values)
    found = [rule.decide(history[:i]) is not None for i in range(1, len(values) + 1)]
    # Later evaluations change nothing, so that a restart decides the same.
    assert found == sorted(found)
    return found.index(True) + 1 if True in found else None


@pytest.mark.parametrize("kind, expected", [(ge.StopIfHigher, HIGHER), (ge.StopIfLower, LOWER)])
def test_thresholds_are_those_of_tf_estimator(kind, expected):
    for name, values in HISTORIES.items():
        rules = [kind("m", t, min_steps=least) for t in (0.25, 0.5) for least in (0, 3000)]
        assert [stops(rule, values) for rule in rules] == expected[name], name


@pytest.mark.parametrize(
    "kind, expected", [(ge.StopIfNoIncrease, NO_INCREASE), (ge.StopIfNoDecrease, NO_DECREASE)]
)
def test_patience_is_that_of_tf_estimator(kind, expected):
    for name, numbers in expected.items():
        rules = [
            kind("m", max_steps=most, min_steps=least)
            for most in (1000, 1001, 2000, 3000)
            for least in (0, 2001)
        ]
        assert [stops(rule, HISTORIES[name]) for rule in rules] == numbers, name
    # tf.estimator takes a first value of NaN as the best, and stops at 3.
    assert stops(ge.StopIfNoIncrease("m", max_steps=2000), HISTORIES["nan first"]) is None
    assert stops(ge.StopIfNoIncrease("m", max_steps=2000), [NAN, NAN, NAN]) == 3


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
    if "baseline" in options:
        options = {**options, "baseline": -options["baseline"]}
    assert stops(ge.StopIfNoDecrease("m", **options), [-v for v in values]) == expected


def test_divergence_and_reasons():
    for value in (NAN, INF, -INF):
        assert stops(ge.StopIfDiverged("m"), [1.0, value]) == 2
    assert ge.StopIfDiverged().metric == "loss"
    assert stops(ge.StopIfDiverged("m"), [1.0, 9.0]) is None
    assert ge.StopIfHigher("m", 0.5).decide(record([0.9])) == (
        "0.9 at step 1000 is higher than 0.5"
    )
    assert ge.StopIfNoDecrease("m", max_steps=2000).decide(record([0.5, 0.25, 0.3, 0.75])) == (
        "no decrease in 2000 steps; best 0.25 at step 2000, 0.75 at step 4000"
    )
    assert ge.StopIfNoDecrease("m", max_steps=1000).decide(record([NAN, NAN])) == (
        "no decrease in 1000 steps; best: none, nan at step 2000"
    )
    with pytest.raises(ge.UserTypeError, match=r"has shape \(2,\): expected one number"):
        ge.StopIfHigher("m", 0.5).decide(record([[0.1, 0.9]]))


@pytest.mark.parametrize(
    "options, values, expected",
    [
        ({}, [1, 1, 1, 1], [2000, 3000, 4000]),
        ({}, [1, 2, 3, 2, 4], [4000]),
        ({"cooldown_steps": 1500}, [1, 1, 1, 1, 1, 1], [2000, 4000, 6000]),
        ({"max_evaluations": 2}, [1, 1, 1, 1, 1], [3000, 5000]),
        ({"min_steps": 3000}, [1, 1, 1, 1], [4000]),
    ],
)
def test_reductions_of_the_learning_rate(options, values, expected):
    options = {"max_evaluations": 1, "higher_is_better": True, **options}
    assert ge.ReduceOnPlateau("m", **options).reductions(record(values)) == expected


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: ge.StopIfHigher("m", "0.5"), "StopIfHigher.threshold is '0.5'"),
        (lambda: ge.StopIfLower("m", NAN), "StopIfLower.threshold is nan"),
        (lambda: ge.StopIfHigher(3, 0.5), "StopIfHigher.metric is 3"),
        (lambda: ge.StopIfNoIncrease("m"), r"StopIfNoIncrease\('m'\) has no patience"),
        (lambda: ge.StopIfNoIncrease("m", max_steps=-1), "max_steps is -1"),
        (lambda: ge.StopIfNoIncrease("m", max_steps=1, min_delta=-1), "min_delta is -1"),
        (lambda: ge.StopIfNoIncrease("m", max_steps=1, restore_best="yes"), "restore_best is"),
        (lambda: ge.StopIfNoIncrease("m", patience=3), "Write instead: max_evaluations=5, or max"),
        (lambda: ge.StopIfNoIncrease("m", max_secs=3), "Write instead: max_evaluations=5, or max"),
        (lambda: ge.StopIfHigher(metric_name="m"), "Write instead: metric='accuracy'"),
        (lambda: ge.ReduceOnPlateau("loss", factor=2, max_steps=1), "factor is 2"),
        (lambda: ge.ReduceOnPlateau("quality", max_steps=1), "higher_is_better to True or False"),
        (lambda: ge.ReduceOnPlateau("loss"), "no patience"),
        (lambda: ge.ReduceOnPlateau("loss", max_steps=1, optimizers="a"), "optimizers is 'a'"),
        (lambda: ge.StopAfterSecsHook("3 hours"), "secs is '3 hours'"),
        (lambda: ge.StopAfterEpochsHook(0), "num_epochs is 0"),
        (lambda: ge.ProfilerHook(0), "first_step is 0"),
    ],
)
def test_wrong_values_are_refused(make, text):
    with pytest.raises(ge.UserError, match=text):
        make()


def test_old_names_have_the_line_to_write():
    for name, text in {
        "stop_if_no_decrease_hook": r"early_stopping=StopIfNoDecrease\('loss', max_steps=5000",
        "EarlyStopping": "early_stopping=StopIfNoIncrease",
        "CsvTool": "CsvWriter",
        "Tool": "MetricWriter",
    }.items():
        with pytest.raises(AttributeError, match=text):
            getattr(ge, name)
    with pytest.raises(ge.UserTypeError, match=r"metric_writers=\[CsvWriter"):
        ge.RunConfig(tools=[])
