"""MLflow in files and Weights & Biases offline: what they hold after a training."""

import functools
import importlib.util
import math
import struct
import time

import mlflow
import pytest
import wandb
from wandb.proto import wandb_internal_pb2

import pipeline as ge
from pipeline.contract.hooks import Run
from tests import patience


@pytest.fixture
def mlflow_uri(tmp_path, monkeypatch):
    """An address of MLflow that is a folder."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return (tmp_path / "mlruns").as_uri()


def make_run(folder, step=0):
    return Run(str(folder / "digits"), step, None)


def use(make_tool, folder, *, exits=lambda tool: None):
    """A training that is killed, and another that goes on at step 4."""
    killed = make_tool()
    killed.begin(make_run(folder), {"rate": 0.5, "net": "@cnn"})
    killed.write(2, {"loss": 0.5, "f1(a,b)": math.nan}, "train")
    killed.write(4, {"loss": 0.25}, "train")
    killed.write(4, {"accuracy": 0.75}, "eval")
    exits(killed)
    again = make_tool()
    again.begin(make_run(folder, 4), {"rate": 0.25, "size": 3})
    again.write(6, {"loss": 0.125}, "train")
    again.begin(make_run(folder, 4), {"rate": 0.25, "size": 3})  # It goes back.
    again.write(6, {"loss": 0.0625}, "train")
    again.end()


def test_mlflow(tmp_path, mlflow_uri, caplog):
    use(lambda: ge.MlflowTool(experiment="first", tracking_uri=mlflow_uri), tmp_path)
    client = mlflow.MlflowClient(mlflow_uri)
    (run,) = client.search_runs([client.get_experiment_by_name("first").experiment_id])
    assert run.info.run_name == "digits"
    assert run.info.status == "FINISHED"
    # What MLflow was given first it keeps, and says so.
    assert run.data.params == {"rate": "0.5", "net": "@cnn", "size": "3"}
    assert "MLflow keeps the first values of rate, which" in caplog.text
    assert run.data.tags["model_dir"] == str(tmp_path / "digits")

    def points(name):
        history = client.get_metric_history(run.info.run_id, name)
        return [(point.step, point.value) for point in history]

    assert points("train/loss") == [(2, 0.5), (4, 0.25), (6, 0.125), (6, 0.0625)]
    assert points("eval/accuracy") == [(4, 0.75)]
    ((step, value),) = points("train/f1_a_b_")
    assert step == 2
    assert math.isnan(value)


def test_many_values_go_to_mlflow_in_parts(tmp_path, mlflow_uri):
    tool = ge.MlflowTool(tracking_uri=mlflow_uri)
    values = {f"iou/{i}": float(i) for i in range(1500)}
    tool.begin(make_run(tmp_path), {f"p{i}": "x" * 9000 for i in range(150)})
    tool.write(1, values, "eval")
    tool.end()
    client = mlflow.MlflowClient(mlflow_uri)
    (run,) = client.search_runs(
        [client.get_experiment_by_name("Default").experiment_id]
    )
    assert len(run.data.params) == 150
    assert run.data.metrics == {f"eval/{name}": v for name, v in values.items()}


def test_a_run_that_is_no_more_in_mlflow_is_named(tmp_path, mlflow_uri):
    tool = ge.MlflowTool(tracking_uri=mlflow_uri)
    tool.begin(make_run(tmp_path), {})
    (tmp_path / "digits/tools/mlflow.json").write_text('{"run_id": "0123"}')
    with pytest.raises(mlflow.exceptions.MlflowException, match="0123"):
        ge.MlflowTool(tracking_uri=mlflow_uri).begin(make_run(tmp_path), {})


def test_wandb(tmp_path):
    # When a process ends, its run in it does.
    make_tool = functools.partial(ge.WandbTool, project="first", mode="offline")
    use(make_tool, tmp_path, exits=ge.WandbTool.end)
    runs, steps = [], []
    for path in sorted(tmp_path.glob("digits/wandb/offline-run-*/*.wandb")):
        for record in ended(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                runs.append((record.run.run_id, record.run.project, name_of(record)))
            elif kind == "history":
                items = {
                    i.key or i.nested_key[0]: i.value_json for i in record.history.item
                }
                steps.append({k: v for k, v in items.items() if k[0] != "_"})
    assert len({*runs}) == 1
    assert runs[0][1:] == ("first", "digits")
    assert [step["global_step"] for step in steps] == ["2", "4", "4", "6", "6"]
    assert steps[0]["train/f1(a,b)"] == "NaN"
    assert steps[1]["train/loss"] == "0.25"
    assert steps[2] == {"global_step": "4", "eval/accuracy": "0.75"}
    assert wandb.run is None  # The program's own is left alone.


def name_of(record):
    return record.run.display_name


def ended(path):
    """The records of a file, when its last one is there: W&B writes behind `finish`."""
    is_over = patience.deadline(60)
    while not is_over():
        found = list(records(path))
        if found and found[-1].WhichOneof("record_type") == "exit":
            break
        time.sleep(0.1)
    return found


def records(path):
    """What an offline run has written, for `wandb sync`: LevelDB's format of logs."""
    data, place, parts = path.read_bytes(), 7, b""
    while place + 7 <= len(data):  # What is half written is left out.
        left = 32768 - place % 32768  # No header is cut by the end of a block.
        if left < 7:
            place += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, place)
        if place + 7 + size > len(data):
            return
        parts += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # All of a record, or its last part.
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_what_is_not_installed_is_asked_for_at_once(monkeypatch, name):
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    make = {"mlflow": ge.MlflowTool, "wandb": ge.WandbTool}[name]
    with pytest.raises(ImportError, match=rf'pip install "gin-estimator\[{name}\]"'):
        make()
