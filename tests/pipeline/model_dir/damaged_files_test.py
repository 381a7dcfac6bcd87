"""Small files that are damaged: named, set aside, and begun anew."""

import json
import pathlib

import numpy as np
import pytest

import pipeline as ge
from pipeline.model_dir import atomic_file, end_marker
from tests.evaluator_world import World

# Half written, no UTF-8, empty, of another kind.
TEXTS = [b'{"lo', b'{"loss": "\xff"}', b"", b"3", b"null", b"[]", b"[" * 100_000]
MARKERS = [
    {"step": "4"},
    {"reason": "bored"},
    {"details": [3]},
    {"details": 3},
    {"checkpoint_step": "x"},
    {"more": 1},
]


class FakeEstimator:
    """Exports by making a directory."""

    def export_saved_model(self, base, *args, checkpoint_path=None):
        path = pathlib.Path(base, "1")
        path.mkdir(parents=True, exist_ok=True)
        return str(path)


def is_set_aside(file, data, caplog):
    """Checks that a warning named the file, and where it is now."""
    (warning,) = [r.getMessage() for r in caplog.records if "damaged" in r.getMessage()]
    assert warning.startswith(f"{file} is damaged (")
    assert warning.endswith(f"What is left of it is at {file}.damaged.")
    assert pathlib.Path(f"{file}.damaged").read_bytes() == data


def export(exporter, base, **result):
    return exporter.export(FakeEstimator(), str(base), "ckpt", result, False)


@pytest.mark.parametrize("data", [*TEXTS, b'{"loss": "0.5"}', b'{"loss": [1]}'])
def test_the_best_so_far(data, tmp_path, caplog):
    record = tmp_path / "best.json"
    record.write_bytes(data)
    assert export(ge.BestExporter(), tmp_path, loss=np.float32(2.0), global_step=3)
    is_set_aside(record, data, caplog)
    best = {"loss": 2.0, "global_step": 3}
    assert json.loads(record.read_text(encoding="utf-8")) == best
    assert not export(ge.BestExporter(), tmp_path, loss=2.0)


def test_a_best_that_is_nan_is_no_best(tmp_path):
    """Another comparison may have left it."""
    (tmp_path / "best.json").write_text('{"loss": NaN}', encoding="utf-8")
    assert export(ge.BestExporter(), tmp_path, loss=2.0)


def test_a_metric_that_is_an_array(tmp_path):
    with pytest.raises(ValueError) as error:
        export(ge.BestExporter(metric="iou"), tmp_path, iou=np.zeros(3))
    assert "compares 'iou', which is an array of shape (3,): write compare_fn" in str(
        error.value
    )


@pytest.mark.parametrize("data", [*TEXTS, b'{"step": "4", "written_at": 1}'])
def test_what_was_evaluated(data, tmp_path, caplog):
    world = World(tmp_path)
    world.save_at((0, 0), (60, 10))
    world.end(10)
    world.run(max_steps=10)
    record = tmp_path / "eval" / "evaluated.json"
    record.write_bytes(data)
    world.evaluated.clear()
    world.run(max_steps=10)
    assert world.evaluated == [0, 10]
    is_set_aside(record, data, caplog)


@pytest.mark.parametrize("data", [*TEXTS, *MARKERS])
def test_how_training_ended(data, tmp_path, caplog):
    if isinstance(data, dict):
        whole = {"step": 4, "reason": "finished", "details": [], "time": 1.0}
        data = json.dumps({**whole, "checkpoint_step": 4, **data}).encode()
    file = tmp_path / end_marker.FILE
    file.write_bytes(data)
    assert end_marker.read(str(tmp_path)) is None
    is_set_aside(file, data, caplog)
    assert end_marker.read(str(tmp_path)) is None


def test_a_file_that_stays_is_named_once(tmp_path, caplog):
    """On a disk that is read-only; a directory in its place hinders root, too."""
    file = tmp_path / "a.json"
    file.write_bytes(b"{")
    (tmp_path / "a.json.damaged" / "inner").mkdir(parents=True)
    for _ in range(3):
        assert atomic_file.read_json(str(file), dict, instead="none") is None
    assert file.exists()
    assert caplog.text.count("is damaged") == 1
    assert f"What is left of it is at {file}." in caplog.text
