"""A warm start from a run whose features mean something else is told."""

import json

import pytest

import pipeline as ge
from inputs.schema import record
from pipeline.warm_start import schemas
from tests import fakes

FEATURES = {"x": {"kind": "number", "scale": "standard"}, "w": {"kind": "word"}}
STATISTICS = {"x": {"mean": 1.0, "std": 2.0}, "w": {"vocabulary": ["a", "b"]}}


def write(folder, *, features=FEATURES, statistics=STATISTICS):
    folder.mkdir(exist_ok=True)
    content = {"version": 1, "features": features, "statistics": statistics}
    (folder / "schema.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, None),
        ({"statistics": {**STATISTICS, "w": {"vocabulary": ["b", "a"]}}}, "['w']"),
        ({"features": {**FEATURES, "x": {"kind": "number", "log": True}}}, "['x']"),
        ({"features": {**FEATURES, "w": {"kind": "word", "embedding": 3}}}, None),
        ({"features": dict(reversed(FEATURES.items()))}, None),
        ({"features": {"x": FEATURES["x"]}}, None),
    ],
)
def test_features_that_mean_something_else(changed, told, tmp_path, log):
    write(tmp_path / "old", **changed)
    write(tmp_path / "new")
    path = tmp_path / "old" / "model.ckpt-10"
    schemas.say_differences(ge.WarmStartSettings(str(path)), str(tmp_path / "new"))
    assert any(f"the features {told} are another" in x for x in log()) == bool(told)
    if told:
        assert f"Schema.statistics = '{tmp_path}/old/schema.json'" in log()[-1]


def test_runs_without_a_record(tmp_path, log):
    old, new = tmp_path / "old", tmp_path / "new"
    write(new)
    old.mkdir()
    for text in (None, "{", "[]", '{"features": 1}'):
        if text is not None:
            (old / "schema.json").write_text(text)
        schemas.say_differences(ge.WarmStartSettings(str(old)), str(new))
    assert not log()


def test_a_run_that_starts_warm_asks(tmp_path, log):
    x, y = fakes.classification_data(rows=8)
    input_fn = fakes.make_input_fn(x, y, batch_size=8)
    old = fakes.make_estimator(tmp_path / "old", run_eagerly=True)
    old.train(input_fn, max_steps=1)
    write(tmp_path / "old", statistics={})
    write(tmp_path / "new")
    new = fakes.make_estimator(
        tmp_path / "new", run_eagerly=True, warm_start_from=str(tmp_path / "old")
    )
    new.train(input_fn, max_steps=1)
    assert any("the features ['x', 'w'] are another thing" in x for x in log())


def test_the_file_is_that_of_schemas():
    assert schemas.FILE == record.FILE
