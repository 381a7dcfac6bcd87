"""Which evaluations are exported, and which exports stay."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.export import exporters


class FakeEstimator:
    """Exports by making the next directory."""

    def __init__(self):
        self.calls = []

    def export_saved_model(
        self, export_dir_base, serving_input_receiver_fn=None, *, checkpoint_path=None
    ):
        self.calls.append((serving_input_receiver_fn, checkpoint_path))
        path = pathlib.Path(export_dir_base, str(100 + len(self.calls)))
        path.mkdir(parents=True)
        return str(path)


@pytest.fixture
def run(tmp_path):
    """Evaluations, one after the other, through an exporter; whether each exported."""

    def through(exporter, *results, final=False, estimator=None):
        estimator = estimator or FakeEstimator()
        paths = [
            exporter.export(estimator, str(tmp_path), "ckpt", result, final)
            for result in results
        ]
        return [path is not None for path in paths]

    through.directory = tmp_path
    return through


def losses(*values):
    return [{"loss": v, "global_step": i} for i, v in enumerate(values)]


def test_latest_always_exports(run):
    assert run(ge.LatestExporter(), *losses(1.0, 2.0, 3.0)) == [True, True, True]


def test_final_exports_at_the_end_alone(run):
    exporter = ge.FinalExporter()
    assert run(exporter, *losses(1.0, 2.0)) == [False, False]
    assert run(exporter, *losses(3.0), final=True) == [True]


def test_best_exports_what_is_better_than_all_before(run):
    exported = run(ge.BestExporter(), *losses(3.0, 4.0, 2.0, 2.0, 2.5, 1.0))
    assert exported == [True, False, True, False, False, True]


@pytest.mark.parametrize(
    "values, exported",
    [
        ((0.5, 0.4, 0.3), [True, True, True]),
        ((0.3, 0.4, 0.5), [True, False, False]),
        ((0.5, 0.5, 0.4, 0.4), [True, False, True, False]),
        ((0.5, np.nan, 0.4, np.nan, 0.6), [True, False, True, False, False]),
        ((np.inf, 0.5, np.inf), [True, True, False]),
    ],
)
def test_best_is_that_of_tf_estimator(values, exported, run):
    # What tf.estimator 2.15.1 exports. Only two differ: it takes a first NaN for the
    # best of all, and after a restart the first evaluation, be it worse.
    assert run(ge.BestExporter(), *losses(*values)) == exported


def test_best_keeps_its_record_over_a_restart(run):
    run(ge.BestExporter(), *losses(2.0))
    estimator = FakeEstimator()
    estimator.calls = [None] * 5  # Times go on.
    again = run(ge.BestExporter(), *losses(3.0, 1.5), estimator=estimator)
    assert again == [False, True]
    record = json.loads((run.directory / "best.json").read_text(encoding="utf-8"))
    assert record == {"loss": 1.5, "global_step": 1}


@pytest.mark.parametrize("first", [float("nan"), 2.0])
def test_nan_is_never_best(first, run):
    nan = float("nan")
    exported = run(ge.BestExporter(), *losses(first, nan, 3.0, 1.0))
    assert exported == (
        [False, False, True, True] if np.isnan(first) else [True, False, False, True]
    )


def test_higher_may_be_better(run):
    # More is better: its name tells.
    exporter = ge.BestExporter(metric="accuracy")
    results = [{"loss": 1.0, "accuracy": a} for a in (0.5, 0.4, 0.6)]
    assert run(exporter, *results) == [True, False, True]


def test_another_comparison(run):
    exporter = ge.BestExporter(
        compare_fn=lambda best, current: current["global_step"] == 2
    )
    assert run(exporter, *losses(1.0, 1.0, 9.0)) == [True, False, True]


def test_a_metric_that_there_is_not(run):
    with pytest.raises(KeyError) as error:
        run(ge.BestExporter(metric="auc"), *losses(1.0))
    assert (
        "BestExporter 'best' compares 'auc', which the evaluation does not have: it "
        "has ['global_step', 'loss']; write one of these." in str(error.value)
    )


def test_a_metric_whose_name_does_not_tell_what_is_better(run):
    with pytest.raises(ValueError, match="write higher_is_better=True, or False"):
        run(ge.BestExporter(metric="height"), {"height": 2.0})
    less = ge.BestExporter(metric="height", higher_is_better=False)
    assert run(less, {"height": 2.0}, {"height": 1.0}) == [True, True]


def test_the_record_takes_arrays(run):
    result = {"loss": np.float32(1.0), "iou": np.array([0.5, 1.0]), "global_step": 3}
    run(ge.BestExporter(), result)
    record = json.loads((run.directory / "best.json").read_text(encoding="utf-8"))
    assert record == {"loss": 1.0, "iou": [0.5, 1.0], "global_step": 3}


def test_a_record_is_written_once_the_export_is_there(run):
    class Full(FakeEstimator):
        def export_saved_model(self, *args, **kwargs):
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        run(ge.BestExporter(), *losses(1.0), estimator=Full())
    assert run(ge.BestExporter(), *losses(2.0)) == [True]


@pytest.mark.parametrize(
    ("options", "left"),
    [({}, 5), ({"exports_to_keep": 2}, 2), ({"exports_to_keep": None}, 7)],
)
def test_the_newest_stay(options, left, run):
    (run.directory / "notes").mkdir()
    run(ge.LatestExporter(**options), *losses(*range(7)))
    numbers = sorted(int(p.name) for p in run.directory.iterdir() if p.name.isdigit())
    assert numbers == list(range(108 - left, 108))
    assert (run.directory / "notes").exists()


@pytest.mark.parametrize("keep", [0, -1, 1.5, True, "5", float("nan")])
@pytest.mark.parametrize("kind", [ge.LatestExporter, ge.FinalExporter, ge.BestExporter])
def test_at_least_one_stays(kind, keep):
    with pytest.raises(ValueError) as error:
        kind(exports_to_keep=keep)
    assert (
        f"exports_to_keep is {keep!r}: write a positive number, or None to keep all."
        in str(error.value)
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"metric": 3}, "BestExporter.metric is int 3: write metric='loss'."),
        ({"metric": None}, "BestExporter.metric is None: write metric='loss'."),
        ({"higher_is_better": "False"}, "BestExporter.higher_is_better is str 'False'"),
        ({"compare_fn": "less"}, "BestExporter.compare_fn is str 'less': write Best"),
        ({"serving_input_receiver_fn": {}}, "serving_input_receiver_fn is dict {}: wr"),
        ({"name": 0}, "BestExporter has no name, and so no directory: write BestExpor"),
        (
            {"name": "n" * 300},
            "nnn'..., of 300 bytes, and names a folder: write a name",
        ),
        ({"name": "a\0b"}, "is 'a\\x00b', which is no folder's name in UTF-8: write a"),
    ],
)
def test_a_wrong_argument_is_named(options, text):
    with pytest.raises((TypeError, ValueError)) as error:
        ge.BestExporter(**options)
    assert text in str(error.value)


@pytest.mark.parametrize("name", ["/tmp/mine", "../mine", "a/../../b"])
def test_a_name_stays_within(name):
    with pytest.raises(ValueError) as error:
        ge.LatestExporter(name)
    assert f"the name of LatestExporter is {name!r}, which leads out of" in str(
        error.value
    )


def test_a_name_is_a_string():
    with pytest.raises(TypeError) as error:
        ge.FinalExporter(ge.build_raw_serving_input_receiver_fn(tf.TensorSpec([1])))
    text = str(error.value)
    assert text.startswith("the name of FinalExporter is function <function ")
    assert "serving_input_receiver_fn at 0x" in text


def test_an_exporter_hands_on_what_it_was_given(run):
    estimator, serving = FakeEstimator(), (lambda: None)
    run(ge.LatestExporter("mine", serving), *losses(1.0), estimator=estimator)
    assert estimator.calls == [(serving, "ckpt")]


def test_names_by_default():
    names = [e().name for e in (ge.LatestExporter, ge.FinalExporter, ge.BestExporter)]
    assert names == ["latest", "final", "best"]


def test_an_exporter_of_ones_own_says_what_to_do(run):
    with pytest.raises(NotImplementedError):
        run(exporters.Exporter("mine"), *losses(1.0))
