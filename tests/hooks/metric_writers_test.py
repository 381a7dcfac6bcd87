"""Metric writers: files over kills, servers that do not answer, MLflow and Weights & Biases."""

import csv
import json
import math
import pathlib
import http.server
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.request

import numpy as np
import pytest

import gin_estimator as ge
from gin_estimator.hooks import metric_writers_hook
import tasks
from small import Do, eval_input, make, train_input


def read_json_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_csv(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def begun(writer, folder, step=0, hparams=()):
    writer.begin(ge.RunContext(str(folder), step, None), dict(hparams))
    return writer


@pytest.mark.parametrize(
    "kind, ending", [(ge.writers.JsonLinesWriter, "jsonl"), (ge.writers.CsvWriter, "csv")]
)
def test_files_have_one_row_a_step_over_kills(kind, ending, tmp_path):
    path = tmp_path / f"metrics/train.{ending}"
    read = read_json_lines if ending == "jsonl" else read_csv
    writer = begun(kind(), tmp_path)
    writer.write(10, {"loss": 1.5}, "train")
    writer.write(10, {"accuracy": 0.5}, "eval")
    writer.write(20, {"loss": math.nan, 'f1(a,"b")': 0.5}, "train")  # A new column.
    writer.write(30, {"loss": 1.0}, "train")
    writer.write(40, {"loss": math.inf}, "train")
    with path.open("a") as file:
        file.write('{"global_step": 5')  # A kill left half a line.
    again = begun(kind(), tmp_path, step=20)
    again.write(30, {"loss": 0.25}, "train")
    again.write(40, {"loss": 0.125}, "train")
    rows = read(path)
    assert [int(row["global_step"]) for row in rows] == [10, 20, 30, 40]
    assert [float(row["loss"]) for row in rows][::2] == [1.5, 0.25]
    assert math.isnan(float(rows[1]["loss"])) and float(rows[3]["loss"]) == 0.125
    assert [float(row.get('f1(a,"b")') or -1) for row in rows] == [-1, 0.5, -1, -1]
    again.write(40, {"loss": -math.inf}, "train")  # A repeated one replaces its row.
    assert [float(row["loss"]) for row in read(path)][3] == -math.inf
    [row] = read(tmp_path / f"metrics/eval.{ending}")
    assert float(row["accuracy"]) == 0.5 and float(row["wall_time"]) > 1e9


class Records(ge.MetricWriter):
    def __init__(self):
        self.calls = []

    def begin(self, run, hparams):
        self.calls.append(("begin", run.step, hparams))

    def write(self, step, values, name):
        self.calls.append((name, step, values))

    def end(self):
        self.calls.append(("end",))


class Fails(ge.MetricWriter):
    def __init__(self, method):
        self.method = method
        self.number = 0

    def begin(self, run, hparams):
        self._call("begin")

    def write(self, step, values, name):
        self._call("write")

    def _call(self, method):
        self.number += 1
        if method == self.method:
            raise OSError("no space")


class Hangs(Records):
    """A writer to a server that accepts and never answers."""

    is_remote = True

    def __init__(self):
        super().__init__()
        self.answers = threading.Event()

    def write(self, step, values, name):
        super().write(step, values, name)
        self.answers.wait(60)


def test_a_training_calls_the_writers(tmp_path, caplog, monkeypatch):
    caplog.set_level("INFO", logger="absl")
    monkeypatch.setattr(metric_writers_hook, "END_SECS", 0.3)
    monkeypatch.setattr(metric_writers_hook, "MAX_WAITING", 3)
    local, hanging, remote = Records(), Hangs(), Records()
    remote.is_remote = True
    no_begin, no_write = Fails("begin"), Fails("write")
    one = make(
        tmp_path,
        save_summary_steps=2,
        save_checkpoints_steps=3,
        metric_writers=[no_begin, no_write, local, hanging, remote, ge.writers.CsvWriter()],
        hparams={"seed": 1},
    )
    began = time.monotonic()
    ge.train_and_evaluate(
        one, ge.TrainSpec(train_input, 13), ge.EvalSpec(eval_input, name="test", throttle_secs=0)
    )
    assert time.monotonic() - began < 30
    assert local.calls[0] == ("begin", 0, {"seed": 1})
    assert local.calls[-1] == ("end",)
    assert [call[:2] for call in local.calls[1:-1]] == [
        *(("train", 2), ("eval_test", 3), ("train", 4), ("train", 6), ("eval_test", 6)),
        *(("train", 8), ("eval_test", 9), ("train", 10), ("train", 12), ("eval_test", 12)),
        *(("eval_test", 13), ("train", 13)),
    ]
    names = {"loss", "accuracy", "learning_rate", "global_step/sec", "examples/sec", "input_wait"}
    assert set(local.calls[1][2]) == names
    assert all(type(value) is float for value in local.calls[1][2].values())
    assert set(local.calls[2][2]) == {"loss", "accuracy"}
    assert remote.calls == local.calls
    # One point was being sent; all others were dropped, as the queue took three.
    assert [call[0] for call in hanging.calls] == ["begin", "train"]
    assert "Hangs: 12 points were dropped" in caplog.text
    hanging.answers.set()
    assert no_begin.number == 1 and no_write.number == 13
    for method in ("begin", "write"):
        assert caplog.text.count(f"Fails.{method} failed: OSError: no space") == 1
    assert len(read_csv(tmp_path / "metrics/eval_test.csv")) == 5


def test_wrong_writers_are_refused():
    with pytest.raises(ge.errors.UserTypeError, match=r"metric_writers.*\[CsvWriter\(\)\]"):
        ge.RunConfig(metric_writers=[ge.writers.CsvWriter])
    with pytest.raises(ge.errors.UserTypeError, match="expected a list of MetricWriter"):
        ge.RunConfig(metric_writers=ge.writers.CsvWriter())
    with pytest.raises(ge.errors.UserValueError, match="hparams is"):
        ge.RunConfig(hparams={"layers": [1, 2]})


def use(make_writer, folder):
    """Writes in a training that is killed, and in one that continues it."""
    killed = begun(make_writer(), folder, 0, {"rate": 0.5, "net": "@cnn"})
    killed.write(2, {"loss": 0.5, "f1(a,b)": math.nan}, "train")
    killed.write(2, {f"iou/{i}": float(i) for i in range(150)}, "eval")
    killed.end()  # Weights & Biases takes one writer at a time.
    again = begun(make_writer(), folder, 2, {"rate": 0.25, "size": 3})
    again.write(4, {"loss": 0.25}, "train")
    again.end()


@pytest.mark.slow
def test_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    use(lambda: ge.writers.MlflowWriter(experiment="first", tracking_uri=uri), tmp_path / "digits")
    client = mlflow.MlflowClient(uri)
    [run] = client.search_runs([client.get_experiment_by_name("first").experiment_id])
    assert (run.info.run_name, run.info.status) == ("digits", "FINISHED")
    assert run.data.params == {"rate": "0.5", "net": "@cnn", "size": "3"}
    assert run.data.tags["model_dir"] == str(tmp_path / "digits")
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(point.step, point.value) for point in history] == [(2, 0.5), (4, 0.25)]
    assert math.isnan(run.data.metrics["train/f1_a_b_"])
    assert sum(name.startswith("eval/iou/") for name in run.data.metrics) == 150


@pytest.mark.slow
def test_wandb(tmp_path):
    wandb = pytest.importorskip("wandb")
    use(lambda: ge.writers.WandbWriter(project="first", mode="offline"), tmp_path / "digits")
    ids = {path.name.rpartition("-")[2] for path in tmp_path.glob("digits/wandb/offline-run-*")}
    content = json.loads((tmp_path / "digits/metric_writers/wandb.json").read_text())
    assert ids == {content["run_id"]}
    assert wandb.run is None


def scraped(port):
    """Returns the metrics that a server answers, by name."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    found = dict(line.split() for line in text.splitlines() if not line.startswith("#"))
    return {name.removeprefix("gin_estimator_"): float(value) for name, value in found.items()}


def test_prometheus_scrapes_a_training(tmp_path):
    pytest.importorskip("prometheus_client")
    writer, scrapes = ge.writers.PrometheusWriter(port=0, address="127.0.0.1"), []
    hook = Do(lambda run: scrapes.append(scraped(writer.port)), every_steps=4)
    options = {"save_summary_steps": 2, "save_checkpoints_steps": 3}
    one = make(tmp_path, metric_writers=[writer], **options)
    one.train(train_input, [hook], max_steps=np.int64(8))
    assert [each["step"] for each in scrapes] == [4, 8]
    speeds = {"steps_per_second", "examples_per_second"}
    assert set(scrapes[1]) >= {"step", "loss", "goodput", *speeds}
    assert scrapes[1]["loss"] > 0 and 0 <= scrapes[1]["goodput"] < 1
    port = writer.port
    with pytest.raises(OSError):
        scraped(port)
    # The port is kept for the next training, in which the history has the saves of this one.
    one.train(train_input, [hook], max_steps=12)
    assert writer.port == port and 0 < scrapes[-1]["seconds_since_checkpoint"] < 600
    other = ge.writers.PrometheusWriter(port=port, address="127.0.0.1")
    other.begin(ge.RunContext(str(tmp_path), 0, None, is_evaluator=True), {})  # It serves nothing.
    with pytest.raises(OSError):
        scraped(port)


def test_a_training_without_checkpoints_serves_no_goodput(tmp_path):
    writer, scrapes = ge.writers.PrometheusWriter(port=0, address="127.0.0.1"), []
    hook = Do(lambda run: scrapes.append(scraped(writer.port)), every_steps=2)
    make(tmp_path, metric_writers=[writer], save_checkpoints_steps=0).train(
        train_input, [hook], max_steps=np.int64(2)
    )
    assert "step" in scrapes[0] and "goodput" not in scrapes[0]


@pytest.fixture
def kubeflow(tmp_path, monkeypatch):
    """A status server of Kubeflow Trainer, with its certificate; yields what it gets."""
    subprocess.run(
        f"openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256 -subj /CN=localhost "
        f"-addext subjectAltName=IP:127.0.0.1 -keyout {tmp_path}/key -out {tmp_path}/ca.crt",
        shell=True,
        check=True,
        capture_output=True,
    )
    requests = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            content = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append((self.path, self.headers, content.decode()))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "ca.crt", tmp_path / "key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (tmp_path / "token").write_text("secret\n")
    name = "KUBEFLOW_TRAINER_STATUS"
    monkeypatch.setenv(f"{name}_URL", f"https://127.0.0.1:{server.server_port}/trainjobs/a/status")
    monkeypatch.setenv(f"{name}_CA_CERT", str(tmp_path / "ca.crt"))
    monkeypatch.setenv(f"{name}_TOKEN", str(tmp_path / "token"))
    yield requests
    server.shutdown()
    server.server_close()


def test_a_training_in_a_trainjob_sends_its_progress(kubeflow, tmp_path):
    make(tmp_path, save_summary_steps=1).train(train_input, max_steps=2)
    sent = [json.loads(content)["trainerStatus"] for _, _, content in kubeflow]
    assert sent[-1]["progressPercentage"] == 100


@pytest.mark.slow  # The schemas of Kubeflow are imported in 4 s.
def test_kubeflow_gets_the_status_of_a_training(kubeflow, tmp_path, caplog, monkeypatch):
    models = pytest.importorskip("kubeflow_trainer_api.models")
    writer = ge.writers.KubeflowWriter(every_secs=0)
    writer.begin(ge.RunContext(str(tmp_path), 0, np.int64(8)), {})
    values = {"loss": np.float32(0.25), "global_step/sec": 0.5, "examples/sec": 1.0}
    for step in (2, np.int64(4)):
        writer.write(step, values, "train")
    path, headers, content = kubeflow[1]
    assert path == "/trainjobs/a/status" and headers["Authorization"] == "Bearer secret"
    sent = models.TrainerV1alpha1UpdateTrainJobStatusRequest.from_json(content).trainer_status
    assert (sent.progress_percentage, sent.estimated_remaining_seconds) == (50, 8)
    assert abs(sent.last_updated_time.timestamp() - time.time()) < 600
    metrics = {each.name: each.value for each in sent.metrics}
    assert metrics["step"] == "4" and metrics["train/loss"] == "0.25"
    # Requests are limited; the last numbers are sent at the end.
    limited = begun(ge.writers.KubeflowWriter(every_secs=600), tmp_path)
    for step in (1, 2, 3):
        limited.write(step, {"loss": 1.0 / step}, "train")
    limited.write(3, {"accuracy": 0.5}, "eval")
    limited.end()
    values = [
        {each["name"]: each["value"] for each in json.loads(content)["trainerStatus"]["metrics"]}
        for _, _, content in kubeflow[2:]
    ]
    assert values == [
        {"step": "1", "train/loss": "1.0"},
        {"step": "3", "train/loss": str(1.0 / 3), "eval/accuracy": "0.5"},
    ]
    evaluator = ge.writers.KubeflowWriter()
    evaluator.begin(ge.RunContext(str(tmp_path), 0, None, is_evaluator=True), {})
    evaluator.write(4, {"accuracy": 0.5}, "eval")
    assert len(kubeflow) == 4
    monkeypatch.delenv("KUBEFLOW_TRAINER_STATUS_URL")
    with pytest.raises(ge.errors.UserValueError, match="STATUS_URL is not set: expected.*Set its"):
        begun(ge.writers.KubeflowWriter(), tmp_path)


def training(folder, writer, url, *sleep):
    """Starts a training with a writer of a server, which writes 6 points."""
    program = pathlib.Path(tasks.PROGRAMS, "remote_writer.py")
    return tasks.Task("program", [program, folder, writer, url, *sleep], folder)


@pytest.mark.slow
@pytest.mark.parametrize("package, writer", [("mlflow", "MlflowWriter"), ("wandb", "WandbWriter")])
def test_a_server_that_never_answers_stops_nothing(package, writer, tmp_path):
    """Neither the training nor the exit: by itself wandb waits for over a minute there."""
    pytest.importorskip(package)
    with socket.create_server(("127.0.0.1", 0), backlog=50) as server:
        task = training(tmp_path, writer, f"http://127.0.0.1:{server.getsockname()[1]}")
        task.wait_for("ENDED 60")
        assert task.wait(30) == 0, task.output
    assert f"{writer}.begin has not returned" in task.output
    assert f"{writer}: 6 points were dropped" in task.output


def tracking_server(folder):
    """Starts a server; returns it and its address."""
    server = tasks.Task("server", [tasks.PROGRAMS / "tracking_server.py"], folder)
    server.wait_for("\n")
    return server, f"http://127.0.0.1:{server.output.split()[1]}"


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True])
def test_wandb_with_a_server(is_killed, tmp_path):
    """Points go to a process of wandb, which alone waits for a server that was killed."""
    pytest.importorskip("wandb")
    server, url = tracking_server(tmp_path)
    task = training(tmp_path, "WandbWriter", url, 0.1)
    server.wait_for("STREAM")
    if is_killed:
        server.send(signal.SIGKILL)
    assert "ENDED" not in task.output
    task.wait_for("ENDED 60")
    assert task.wait(30) == 0, task.output
    assert ("WandbWriter.end has not returned in time" in task.output) == is_killed
    assert is_killed or server.output.count("POINT") >= 6
    assert len(list(tmp_path.glob("wandb/run-*"))) == 1  # For `wandb sync`.


@pytest.mark.slow
@pytest.mark.parametrize("writer", ["Posts", "MlflowWriter"])
def test_a_server_that_is_killed_stops_nothing(writer, tmp_path):
    """MLflow's client tries a call for four minutes; the other writer raises at once."""
    if writer == "MlflowWriter":
        pytest.importorskip("mlflow")
    server, url = tracking_server(tmp_path)
    task = training(tmp_path, writer, url, 0.1)
    server.wait_for("POINT\nPOINT\n")
    server.send(signal.SIGKILL)
    assert "ENDED" not in task.output
    task.wait_for("ENDED 60")
    assert task.wait(30) == 0, task.output
    [dropped] = re.findall(rf"{writer}: (\d+) points were dropped", task.output)
    # A point that the killed server had not answered counts as dropped.
    assert server.output.count("POINT") + int(dropped) in (6, 7)


@pytest.mark.parametrize(
    "package, kind",
    [
        ("mlflow", "MlflowWriter"),
        ("wandb", "WandbWriter"),
        ("prometheus", "PrometheusWriter"),
    ],
)
def test_a_missing_package_is_named(package, kind, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=rf"pip install 'gin-estimator\[{package}\]'"):
        getattr(ge.writers, kind)()
