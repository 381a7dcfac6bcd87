"""Rules that end a training, and reductions of learning rates, as functions of evaluations."""

import math

import pytest

import gin_estimator as ge
from gin_estimator.model_dir.evaluation_results import Evaluated

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


def stops(values, mode="max", **options):
    """Returns the number of the first evaluation after which a rule stops."""
    rule, history = ge.EarlyStopping("m", mode, **options), record(values)
    found = [rule.reason(history[:i]) is not None for i in range(1, len(values) + 1)]
    # Later evaluations change nothing, so that a restart decides the same.
    assert found == sorted(found)
    return found.index(True) + 1 if True in found else None


@pytest.mark.parametrize("mode, expected", [("max", HIGHER), ("min", LOWER)])
def test_thresholds_are_those_of_tf_estimator(mode, expected):
    for name, values in HISTORIES.items():
        options = [{"threshold": t, "min_steps": n} for t in (0.25, 0.5) for n in (0, 3000)]
        assert [stops(values, mode, **each) for each in options] == expected[name], name


@pytest.mark.parametrize("mode, expected", [("max", NO_INCREASE), ("min", NO_DECREASE)])
def test_patience_is_that_of_tf_estimator(mode, expected):
    for name, numbers in expected.items():
        options = [
            {"patience_steps": most, "min_steps": least}
            for most in (1000, 1001, 2000, 3000)
            for least in (0, 2001)
        ]
        assert [stops(HISTORIES[name], mode, **each) for each in options] == numbers, name
    # tf.estimator takes a first value of NaN as the best, and stops at 3.
    assert stops(HISTORIES["nan first"], patience_steps=2000) is None
    assert stops([NAN, NAN, NAN], patience_steps=2000) == 3


@pytest.mark.parametrize(
    "options, values, expected",
    [
        ({}, [0.1, 0.2, 0.2, 0.3, 0.3, 0.3], 6),
        ({"patience_steps": 1, "min_delta": 0.5}, [0.0, 1.0, 1.5, 2.0], 3),
        ({"min_delta": 0.5}, [0.0, 1.0, 1.5, 1.25, 2.5], 4),
        # The first limit that is reached stops.
        ({"threshold": 0.2}, [0.1, 0.1, 0.3, 0.1], 3),
        ({"threshold": 0.2}, [0.1, 0.1, 0.1, 0.3], 3),
        ({"threshold": 0.2, "check_finite": True}, [0.1, NAN, 0.3], 2),
    ],
)
def test_delta_and_several_limits(options, values, expected):
    options = {"patience_steps": 2000, **options}
    assert stops(values, **options) == expected
    if "threshold" in options:
        options = {**options, "threshold": -options["threshold"]}
    assert stops([-v for v in values], "min", **options) == expected


def test_values_that_are_not_finite_and_reasons():
    for value in (NAN, INF, -INF):
        assert stops([1.0, value], check_finite=True) == 2
    assert stops([1.0, 9.0], check_finite=True) is None
    finite = ge.EarlyStopping("loss", check_finite=True)
    assert finite.reason([Evaluated(step=9, metrics={"loss": NAN})]) == (
        "EarlyStopping('loss'): nan at step 9"
    )
    higher = ge.EarlyStopping("m", "max", threshold=0.5)
    assert higher.reason(record([0.9])) == (
        "EarlyStopping('m'): 0.9 at step 1000 is higher than 0.5"
    )
    patient = ge.EarlyStopping("m", "min", patience_steps=2000)
    assert patient.reason(record([0.5, 0.25, 0.3, 0.75])) == (
        "EarlyStopping('m'): no decrease in 2000 steps; best 0.25 at step 2000, 0.75 at step 4000"
    )
    assert patient.reason(record([NAN, NAN, NAN])) == (
        "EarlyStopping('m'): no decrease in 2000 steps; best: none, nan at step 3000"
    )
    with pytest.raises(ge.errors.UserValueError, match=r"expected a number among .*, \[\]"):
        higher.reason(record([[0.1, 0.9]]))


def test_the_name_of_a_metric_shows_the_mode():
    assert ge.EarlyStopping("val_loss", patience_steps=1).mode == "min"
    assert ge.EarlyStopping("accuracy", patience_steps=1).mode == "max"
    assert ge.EarlyStopping("loss", "max", threshold=9.0).mode == "max"
    assert ge.ReduceOnPlateau("auc", patience_steps=1).mode == "max"


@pytest.mark.parametrize(
    "options, values, expected",
    [
        ({}, [1, 1, 1, 1], [2000, 3000, 4000]),
        ({}, [1, 2, 3, 2, 4], [4000]),
        ({"cooldown_steps": 1500}, [1, 1, 1, 1, 1, 1], [2000, 4000, 6000]),
        ({"patience_steps": 2000}, [1, 1, 1, 1, 1], [3000, 5000]),
        ({"patience_steps": 2000, "cooldown_steps": 1500}, [1] * 9, [3000, 6000, 9000]),
        ({"min_steps": 3000}, [1, 1, 1, 1], [4000]),
    ],
)
def test_reductions_of_the_learning_rate(options, values, expected):
    options = {"patience_steps": 1000, "mode": "max", **options}
    assert ge.ReduceOnPlateau("m", **options).reductions(record(values)) == expected


def patient(**options):
    return ge.EarlyStopping("loss", **{"patience_steps": 1, **options})


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: ge.EarlyStopping("loss", threshold="0.5"), "EarlyStopping.threshold is '0.5'"),
        (lambda: ge.EarlyStopping("loss", threshold=NAN), "EarlyStopping.threshold is nan"),
        (lambda: ge.EarlyStopping(3, threshold=0.5), "EarlyStopping.metric is 3"),
        (lambda: ge.EarlyStopping("loss", "auto"), "mode is 'auto': expected 'max' or 'min' or No"),
        (lambda: ge.EarlyStopping("quality", threshold=1), "EarlyStopping.mode to 'max' or 'min'"),
        (lambda: ge.EarlyStopping("loss"), "EarlyStopping.patience_steps is None: expected it, or"),
        (
            lambda: ge.EarlyStopping("loss", threshold=1, restore_best=True),
            "patience_steps is None",
        ),
        (lambda: patient(restore_best="yes"), "restore_best is 'yes'"),
        (lambda: patient(patience_steps=-1), "patience_steps is -1"),
        (lambda: patient(min_delta=-1), "min_delta is -1"),
        (lambda: patient(patience=3), "Write instead: patience_steps=5000, in global steps"),
        (lambda: patient(max_steps=3), "Write instead: patience_steps=5000, in global steps"),
        (lambda: ge.EarlyStopping(metric_name="m"), "Write instead: metric='accuracy'"),
        (lambda: ge.ReduceOnPlateau("loss", factor=2, patience_steps=1), "factor is 2"),
        (lambda: ge.ReduceOnPlateau("loss", higher_is_better=True), "Write instead: mode='max'"),
        (lambda: ge.ReduceOnPlateau("loss"), "patience_steps is None: expected an int > 0. Set"),
        (lambda: ge.ReduceOnPlateau("loss", patience_steps=1, optimizers="a"), "optimizers is 'a'"),
        (lambda: ge.hooks.StopAfterSecsHook("3 hours"), "secs is '3 hours'"),
        (lambda: ge.hooks.StopAfterEpochsHook(0), "num_epochs is 0"),
        (lambda: ge.ProfilerHook(0), "first_step is 0"),
    ],
)
def test_wrong_values_are_refused(make, text):
    with pytest.raises(ge.UserError, match=text):
        make()


def test_old_names_have_the_line_to_write():
    for name, text in {
        "stop_if_higher_hook": r"=EarlyStopping\('loss', 'max', threshold=100.0\)",
        "stop_if_lower_hook": r"=EarlyStopping\('loss', 'min', threshold=0.1\)",
        "stop_if_no_increase_hook": r"=EarlyStopping\('accuracy', 'max', patience_steps=5000\)",
        "stop_if_no_decrease_hook": r"=EarlyStopping\('loss', 'min', patience_steps=5000\)",
        "make_early_stopping_hook": "after_evaluation calls run.request_stop",
        "StopIfNoIncrease": r"=EarlyStopping\('accuracy', 'max', patience_steps=5000\)",
        "StopIfDiverged": r"=EarlyStopping\('loss', check_finite=True\)",
        "ClaimedError": "Write instead: ModelDirInUseError",
        "CsvWriter": "Write instead: writers.CsvWriter",
    }.items():
        with pytest.raises(AttributeError, match=text):
            getattr(ge, name)
    with pytest.raises(ge.errors.UserTypeError, match="Write instead: max_skipped_steps=3"):
        ge.RunConfig(max_restores=3)
