"""Several evaluations, each with exports and records of its own."""

import json

import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.roles import specs
from tests import fakes

X, Y = fakes.classification_data(rows=40)
TRAIN = fakes.make_input_fn(X, Y, batch_size=8, change=lambda d: d.repeat())
EVAL = fakes.make_input_fn(X, Y, batch_size=20)
OTHER = fakes.make_input_fn(X[:8], Y[:8], batch_size=8)


def best(**options):
    return ge.BestExporter(**options)


def evaluations(*names, exporters=lambda: [best()], fn=EVAL):
    return [
        ge.EvalSpec(fn, name=name, throttle_secs=0, exporters=exporters())
        for name in names
    ]


def test_each_evaluation_has_its_own_best(tmp_path):
    estimator = fakes.make_estimator(tmp_path)
    named = [*evaluations("all"), *evaluations("some", fn=OTHER)]
    metrics, exported = ge.train_and_evaluate(estimator, ge.TrainSpec(TRAIN, 2), named)
    assert None not in exported
    for name in ("all", "some"):
        folder = tmp_path / "export" / name / "best"
        record = json.loads((folder / "best.json").read_text(encoding="utf-8"))
        assert record == metrics[name]
        assert [path for path in exported if path.startswith(str(folder))]


def folders(*names):
    each = evaluations(*names)
    return [specs.export_folder("m", spec, each) for spec in each]


def test_the_folders():
    # As tf.estimator, which has one evaluation, named or not.
    assert folders(None) == ["m/export"]
    assert folders("one") == ["m/export"]
    assert folders(None, "a", "b") == ["m/export", "m/export/a", "m/export/b"]


@pytest.mark.parametrize(
    ("make", "places"),
    [
        (
            lambda: [
                *evaluations(None, exporters=lambda: [ge.FinalExporter("a/b")]),
                *evaluations("a", exporters=lambda: [ge.FinalExporter("b")]),
            ],
            "'export/a/b' and 'export/a/b'",
        ),
        (
            lambda: [
                *evaluations(None),
                *evaluations("best", exporters=lambda: [ge.FinalExporter("7")]),
            ],
            "'export/best' and 'export/best/7'",
        ),
        (
            lambda: [
                *evaluations(None, exporters=lambda: [best(), best(name="best-a")]),
                *evaluations("best", exporters=lambda: [ge.FinalExporter("7")]),
            ],
            "'export/best' and 'export/best/7'",
        ),
        (
            lambda: evaluations(
                None, exporters=lambda: [best(), ge.FinalExporter("best/inner")]
            ),
            "'export/best' and 'export/best/inner'",
        ),
    ],
)
def test_no_two_exporters_share_a_directory(make, places):
    with pytest.raises(ValueError) as error:
        specs.as_list(make())
    assert f"exporters of eval_spec write to {places}, and one of them would" in str(
        error.value
    )


@pytest.mark.parametrize("name", ["best/", "./best"])
def test_two_exporters_of_one_name(name):
    with pytest.raises(ValueError) as error:
        evaluations(None, exporters=lambda: [best(), best(name=name)])
    assert f"share the names ['best', '{name}'], and so a directory" in str(error.value)


@pytest.mark.parametrize("names", [["a", "a/"], ["a/b", "a//b"], [None, "."]])
def test_names_that_mean_one_directory(names):
    with pytest.raises(ValueError) as error:
        specs.as_list(evaluations(*names))
    assert f"eval_spec names its evaluations {names}: give at least one" in str(
        error.value
    )


@pytest.mark.parametrize("shared", [False, True])
def test_a_record_from_before_there_were_folders(shared, tmp_path, log):
    old = tmp_path / "export" / "best" / "best.json"
    old.parent.mkdir(parents=True)
    old.write_text('{"loss": 0.5}', encoding="utf-8")
    named = evaluations("a")
    named += evaluations("b", exporters=lambda: [best()] if shared else [])
    specs.keep_records(str(tmp_path), named)
    kept = tmp_path / "export" / "a" / "best" / "best.json"
    assert kept.exists() is not shared
    assert any("does not say of which evaluation" in line for line in log()) is shared
    if not shared:
        kept.write_text('{"loss": 0.25}', encoding="utf-8")
        specs.keep_records(str(tmp_path), named)
        assert json.loads(kept.read_text(encoding="utf-8")) == {"loss": 0.25}


def test_a_damaged_record_from_before_there_were_folders(tmp_path, caplog):
    old = tmp_path / "export" / "best" / "best.json"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"\xff\xfe")
    specs.keep_records(str(tmp_path), evaluations("a", "b", exporters=list)[:1])
    named = [*evaluations("a"), *evaluations("b", exporters=list)]
    specs.keep_records(str(tmp_path), named)
    assert f"{tmp_path}/export/a/best begins anew" in caplog.text
    assert not (tmp_path / "export" / "a").exists()


def test_a_receiver_in_place_of_its_function_is_found_before_training():
    receiver = ge.build_raw_serving_input_receiver_fn(tf.TensorSpec([None, 6]))()
    with pytest.raises(TypeError) as error:
        ge.LatestExporter("x", receiver)
    assert "serving_input_receiver_fn is ServingInputReceiver" in str(error.value)
    assert "=ge.build_raw_serving_input_receiver_fn(" in str(error.value)
