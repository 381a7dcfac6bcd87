# SPDX-License-Identifier: Apache-2.0
"""Writes numbers of a training to servers: MLflow, Weights & Biases, Prometheus, Kubeflow.

The id of the run there is in `model_dir/metric_writers`, so that a restart continues it. Steps
that are trained again after a kill have two points there.
"""

import datetime
import importlib.util
import json
import os
import pathlib
import re
import ssl
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from ..contract.hooks import MetricWriter, RunContext
from ..errors import UserValueError
from ..model_dir import phases, records
from ..model_dir.files import read_json, write_atomic

STATUS_URL = "KUBEFLOW_TRAINER_STATUS_URL"  # Environment variable, set by Kubeflow Trainer.
_FOLDER = "metric_writers"  # Below model_dir.
# Limits of MLflow: entities in a call, characters of a parameter, characters of names.
_MOST_ENTITIES = 100
_MOST_CHARACTERS = 500
_NOT_IN_NAMES = re.compile(r"[^\w\-. :/]")


class MlflowWriter(MetricWriter):
    """Writes to a run of MLflow: `train/loss`, `eval/accuracy`.

    Hyperparameters are its parameters, which MLflow never changes: new values at a restart have no
    effect.
    """

    is_remote = True

    def __init__(
        self,
        *,
        experiment: str = "Default",
        run_name: str | None = None,
        tracking_uri: str | None = None,
    ) -> None:
        """Sets where to write; connects to nothing yet.

        Args:
          experiment: name of the experiment, which is created if it does not exist.
          run_name: name of the run; None for the last part of model_dir.
          tracking_uri: address of the server; None for that of MLFLOW_TRACKING_URI.

        Raises:
          ImportError: MLflow is not installed.
        """
        _check_installed("mlflow", "MlflowWriter")
        self._experiment = experiment
        self._run_name = run_name
        self._tracking_uri = tracking_uri

    def begin(self, run: RunContext, hparams: Mapping[str, Any]) -> None:
        """Creates the run of model_dir, or continues it."""
        import mlflow

        # A separate client leaves the program's own run of MLflow alone.
        self._client = mlflow.MlflowClient(self._tracking_uri)
        known = _known_run(run, "mlflow")
        self._run_id = known or self._create_run(run)
        if known:
            self._client.update_run(known, status="RUNNING")
        before = self._client.get_run(self._run_id).data.params
        given = {_NOT_IN_NAMES.sub("_", k): str(v)[:_MOST_CHARACTERS] for k, v in hparams.items()}
        new = [mlflow.entities.Param(k, v) for k, v in given.items() if k not in before]
        self._log("params", new)

    def write(self, step: int, values: Mapping[str, float], name: str) -> None:
        """Writes points."""
        import mlflow

        now = int(1000 * time.time())
        tags = {_NOT_IN_NAMES.sub("_", f"{name}/{tag}"): value for tag, value in values.items()}
        points = [mlflow.entities.Metric(tag, value, now, step) for tag, value in tags.items()]
        self._log("metrics", points)

    def end(self) -> None:
        """Marks the run as finished."""
        self._client.set_terminated(self._run_id)

    def _create_run(self, run: RunContext) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        if found is None:
            experiment = self._client.create_experiment(self._experiment)
        else:
            experiment = found.experiment_id
        name = self._run_name or os.path.basename(run.model_dir)
        tags = {"model_dir": run.model_dir}
        run_id = self._client.create_run(experiment, run_name=name, tags=tags).info.run_id
        _remember_run(run, "mlflow", run_id)
        return run_id

    def _log(self, kind: str, entities: list[Any]) -> None:
        for start in range(0, len(entities), _MOST_ENTITIES):
            self._client.log_batch(self._run_id, **{kind: entities[start : start + _MOST_ENTITIES]})


class WandbWriter(MetricWriter):
    """Writes to a run of Weights & Biases: `train/loss`, `eval/accuracy` over `global_step`.

    An evaluator job writes to another run there, since only one process can write to a run. If the
    server does not answer in time at the end, the data that were not sent are in
    `model_dir/wandb`, for `wandb sync`.
    """

    is_remote = True

    def __init__(
        self, *, project: str | None = None, run_name: str | None = None, mode: str | None = None
    ) -> None:
        """Sets where to write; connects to nothing yet.

        Args:
          project: name of the project; None for that of WANDB_PROJECT.
          run_name: name of the run; None for the last part of model_dir.
          mode: 'online', or 'offline' to write below `model_dir/wandb` for `wandb sync`; None for
            that of WANDB_MODE.

        Raises:
          ImportError: Weights & Biases is not installed.
        """
        _check_installed("wandb", "WandbWriter")
        self._project = project
        self._run_name = run_name
        self._mode = mode

    def begin(self, run: RunContext, hparams: Mapping[str, Any]) -> None:
        """Creates the run of model_dir, or continues it."""
        import wandb

        file = "wandb-evaluator" if run.is_evaluator else "wandb"
        known = _known_run(run, file)
        self._run = wandb.init(
            project=self._project,
            name=self._run_name or os.path.basename(run.model_dir),
            id=known,
            resume="allow",
            dir=run.model_dir,
            mode=self._mode,
            config={**hparams, "model_dir": run.model_dir},
            reinit="create_new",  # Leaves the program's own run alone.
            settings=wandb.Settings(silent=True, console="off"),
        )
        # Its own count of steps can only grow, and evaluations may come late.
        self._run.define_metric("*", step_metric="global_step")
        if known is None:
            _remember_run(run, file, self._run.id)

    def write(self, step: int, values: Mapping[str, float], name: str) -> None:
        """Writes points."""
        tagged = {f"{name}/{tag}": value for tag, value in values.items()}
        self._run.log({"global_step": step, **tagged})

    def end(self) -> None:
        """Ends the run."""
        self._run.finish()

    def abandon(self) -> None:
        """Ends the service process of wandb, for which the program would wait at its exit."""
        import wandb

        if wandb.run is None:  # Otherwise the program itself uses the service.
            threading.Thread(target=wandb.teardown, name="wandb-teardown", daemon=True).start()


class PrometheusWriter(MetricWriter):
    """Serves the last numbers of a training to Prometheus, at `http://HOST:PORT/metrics`.

    `gin_estimator_step`, `gin_estimator_loss`, `gin_estimator_steps_per_second`,
    `gin_estimator_examples_per_second`, of `history.jsonl` `gin_estimator_goodput`, 0 to 1, and
    `gin_estimator_seconds_since_checkpoint`. Evaluations are not served.

    Attributes:
      port: port of the server; of port 0 the one that the system chose, after `begin`.
    """

    def __init__(self, *, port: int = 9464, address: str = "0.0.0.0") -> None:
        """Sets where to serve; opens no port yet.

        Args:
          port: port; 0 for a free one, which is logged.
          address: address of this host at which the port is open; "127.0.0.1" for this host only.

        Raises:
          ImportError: the client of Prometheus is not installed.
        """
        _check_installed("prometheus_client", "PrometheusWriter")
        self.port, self._address = port, address
        self._server: Any = None
        self._values: dict[str, float] = {}

    def begin(self, run: RunContext, hparams: Mapping[str, Any]) -> None:
        """Starts the server, in a thread; not in an evaluator job."""
        if run.is_evaluator:
            return
        import prometheus_client

        self._path = os.path.join(run.model_dir, phases.HISTORY)
        self._values = {"step": run.step}
        registry = prometheus_client.CollectorRegistry()
        registry.register(self)
        self._server, _ = prometheus_client.start_http_server(self.port, self._address, registry)
        self.port = self._server.server_port
        logging.info("train | metrics at http://%s:%d/metrics", self._address, self.port)

    def write(self, step: int, values: Mapping[str, float], name: str) -> None:
        """Keeps the numbers of a training until the next ones."""
        if name == "train":
            speeds = {
                "steps_per_second": values["global_step/sec"],
                "examples_per_second": values["examples/sec"],
            }
            self._values = {"step": step, "loss": values["loss"], **speeds}

    def end(self) -> None:
        """Closes the port."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def collect(self) -> Iterator[Any]:
        """Yields the metrics; the server calls it for each request."""
        from prometheus_client.core import GaugeMetricFamily

        lines = phases.parse(records.content(self._path)[0])
        values = dict(self._values)
        if lines:
            values["goodput"] = phases.times(lines).goodput
        saves = [line.end for line in lines if line.phase == phases.SAVE]
        if saves:
            values["seconds_since_checkpoint"] = time.time() - saves[-1]
        for name, value in values.items():
            yield GaugeMetricFamily(f"gin_estimator_{name}", f"{name} of a training", value)

    def describe(self) -> list[Any]:
        """Returns no metrics: the server need not call `collect` before the first request."""
        return []


class KubeflowWriter(MetricWriter):
    """Sends progress, remaining time and the last numbers to the status of a TrainJob.

    `kubectl get trainjob NAME -o yaml` shows them in `status.trainerStatus`. Kubeflow Trainer's
    feature gate TrainJobStatus sets the address; a training adds this writer by itself then. An
    evaluator job sends nothing.
    """

    is_remote = True

    def __init__(self, *, every_secs: float = 5.0) -> None:
        """Sets how often to send; connects to nothing yet.

        Args:
          every_secs: least number of seconds between two requests, which the server limits.
        """
        self._every_secs = every_secs
        self._url = ""
        self._context: ssl.SSLContext | None = None
        self._max_step: int | None = None
        self._sent_at, self._is_new = -every_secs, False
        self._status: dict[str, Any] = {}
        self._metrics: dict[str, float] = {}

    def begin(self, run: RunContext, hparams: Mapping[str, Any]) -> None:
        """Reads where to send.

        Raises:
          UserValueError: Kubeflow Trainer has not set the address.
        """
        if run.is_evaluator:
            return
        self._max_step, self._url = run.max_step, os.environ.get(STATUS_URL, "")
        if not self._url:
            raise UserValueError(
                f"{STATUS_URL} is not set: expected the address of Kubeflow Trainer. Set its "
                "feature gate TrainJobStatus."
            )
        authority = os.environ.get("KUBEFLOW_TRAINER_STATUS_CA_CERT")
        self._context = ssl.create_default_context(cafile=authority)

    def write(self, step: int, values: Mapping[str, float], name: str) -> None:
        """Sends the numbers, or keeps them until the next ones."""
        self._metrics |= {"step": step, **{f"{name}/{tag}": v for tag, v in values.items()}}
        self._is_new = True
        if self._max_step:
            self._status["progressPercentage"] = min(100, int(100 * step / self._max_step))
            if speed := values.get("global_step/sec"):
                remaining = max(0, self._max_step - step) / speed
                self._status["estimatedRemainingSeconds"] = int(remaining)
        if time.monotonic() - self._sent_at >= self._every_secs:
            self._send()

    def end(self) -> None:
        """Sends the last numbers."""
        if self._is_new:
            self._send()

    def _send(self) -> None:
        if not self._url:
            return  # An evaluator job.
        self._sent_at, self._is_new = time.monotonic(), False
        metrics = [{"name": name, "value": str(value)} for name, value in self._metrics.items()]
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        status = {**self._status, "metrics": metrics, "lastUpdatedTime": now}
        # Kubernetes renews the token in this file.
        token = pathlib.Path(os.environ["KUBEFLOW_TRAINER_STATUS_TOKEN"]).read_text().strip()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        content = json.dumps({"trainerStatus": status}).encode()
        request = urllib.request.Request(self._url, content, headers, method="POST")
        urllib.request.urlopen(request, timeout=30, context=self._context).close()


def _check_installed(package: str, writer: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ImportError(
            f"{writer} needs the package {package}: expected it to be installed. Run "
            f"pip install 'gin-estimator[{package.partition('_')[0]}]'."
        )


def _path(run: RunContext, tracker: str) -> str:
    return os.path.join(run.model_dir, _FOLDER, f"{tracker}.json")


def _known_run(run: RunContext, tracker: str) -> str | None:
    return read_json(_path(run, tracker), lambda content: str(content["run_id"]))


def _remember_run(run: RunContext, tracker: str, run_id: str) -> None:
    tf.io.gfile.makedirs(os.path.dirname(_path(run, tracker)))
    write_atomic(_path(run, tracker), json.dumps({"run_id": run_id}))
