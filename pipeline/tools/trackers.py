"""Hands the numbers of a training to MLflow, or to Weights & Biases.

Neither is imported before it is asked for. The name of a model_dir's run there is kept
in `model_dir/tools`, so that a restart goes on in the same run.
"""

import importlib
import importlib.util
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from pipeline.contract.hooks import Run, Tool
from pipeline.model_dir import atomic_file
from pipeline.process.refusals import RefusedImportError

# Below model_dir.
_FOLDER = "tools"
# Most metrics or parameters that MLflow takes in a call, and characters of a parameter.
_MOST_ENTITIES = 100
_MOST_CHARACTERS = 500
# Runs that this process has open, by id: a run cannot be opened twice.
_wandb_runs: dict[str, Any] = {}
_NOT_IN_MLFLOW = re.compile(r"[^\w\-. :/]")


class MlflowTool(Tool):
    """Writes to a run of MLflow: `train/loss`, `eval/accuracy`.

    What a restart trains again MLflow has twice, with one step and two times.
    """

    def __init__(
        self,
        *,
        experiment: str | None = None,
        run_name: str | None = None,
        tracking_uri: str | None = None,
    ) -> None:
        """Takes where to write; connects to nothing yet.

        Args:
          experiment: name of the experiment, which is made where there is none; None
            for MLflow's "Default".
          run_name: name of the run; None for the last part of model_dir's path.
          tracking_uri: address of the server; None for MLFLOW_TRACKING_URI's.

        Raises:
          ImportError: MLflow is not installed.
        """
        _check_installed("mlflow", "MlflowTool")
        self._experiment = experiment or "Default"
        self._run_name = run_name
        self._tracking_uri = tracking_uri
        self._client: Any = None
        self._run_id = ""

    def begin(self, run: Run, hparams: Mapping[str, Any]) -> None:
        mlflow = importlib.import_module("mlflow")
        # A client of its own: the program's own run of MLflow stays as it is.
        self._client = mlflow.MlflowClient(self._tracking_uri)
        known = _known(run, "mlflow")
        if known:
            self._run_id = known
            self._client.update_run(known, status="RUNNING")
        else:
            self._run_id = self._new_run(run)
            _remember(run, "mlflow", self._run_id)
        self._log_params(hparams)

    def write(self, step: int, values: Mapping[str, float], name: str) -> None:
        metric, now = _class("mlflow.entities", "Metric"), int(1000 * time.time())
        metrics = [
            metric(_key(f"{name}/{tag}"), value, now, step)
            for tag, value in values.items()
        ]
        for some in _some(metrics):
            self._client.log_batch(self._run_id, metrics=some)

    def end(self) -> None:
        self._client.set_terminated(self._run_id)

    def _new_run(self, run: Run) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = found.experiment_id if found else None
        if experiment is None:
            experiment = self._client.create_experiment(self._experiment)
        name = self._run_name or _name_of(run)
        made = self._client.create_run(
            experiment, run_name=name, tags={"model_dir": run.model_dir}
        )
        return made.info.run_id

    def _log_params(self, hparams: Mapping[str, Any]) -> None:
        """Writes the parameters; one that was written before cannot be changed."""
        param = _class("mlflow.entities", "Param")
        before = self._client.get_run(self._run_id).data.params
        given = {_key(k): str(v)[:_MOST_CHARACTERS] for k, v in hparams.items()}
        changed = [k for k, v in given.items() if before.get(k, v) != v]
        if changed:
            text = "train | MLflow keeps the first values of %s, which have changed."
            logging.warning(text, ", ".join(changed))
        new = [param(key, value) for key, value in given.items() if key not in before]
        for some in _some(new):
            self._client.log_batch(self._run_id, params=some)


class WandbTool(Tool):
    """Writes to a run of Weights & Biases: `train/loss`, `eval/accuracy`.

    Its axis is `global_step`. What a restart trains again is there twice.
    """

    def __init__(
        self,
        *,
        project: str | None = None,
        run_name: str | None = None,
        mode: str | None = None,
    ) -> None:
        """Takes where to write; connects to nothing yet.

        Args:
          project: name of the project; None for WANDB_PROJECT's.
          run_name: name of the run; None for the last part of model_dir's path.
          mode: 'online', or 'offline' to write below `model_dir/wandb`, for
            `wandb sync`; None for WANDB_MODE's.

        Raises:
          ImportError: Weights & Biases' package is not installed.
        """
        _check_installed("wandb", "WandbTool")
        self._project = project
        self._run_name = run_name
        self._mode = mode
        self._run: Any = None

    def begin(self, run: Run, hparams: Mapping[str, Any]) -> None:
        wandb = importlib.import_module("wandb")
        known = _known(run, "wandb")
        # Training goes back, or another one begins here after an error.
        self._run = _wandb_runs.get(known or "")
        if self._run is not None:
            return
        self._run = wandb.init(
            project=self._project,
            name=self._run_name or _name_of(run),
            id=known,
            resume="allow",
            dir=run.model_dir,
            mode=self._mode,
            config={**hparams, "model_dir": run.model_dir},
            # The program's own run stays as it is.
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )
        # Its own count of steps only goes up, and another one's evaluations come late.
        self._run.define_metric("*", step_metric="global_step")
        _remember(run, "wandb", self._run.id)
        _wandb_runs[self._run.id] = self._run

    def write(self, step: int, values: Mapping[str, float], name: str) -> None:
        tagged = {f"{name}/{tag}": value for tag, value in values.items()}
        self._run.log({"global_step": step, **tagged})

    def end(self) -> None:
        self._run.finish()
        _wandb_runs.pop(self._run.id, None)


def _check_installed(package: str, tool: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise RefusedImportError(
            f"{tool} needs {package}, which is not installed: run "
            f'pip install "gin-estimator[{package}]".'
        )


def _class(module: str, name: str) -> Any:
    """Returns a class of a package that is not imported with this file."""
    return getattr(importlib.import_module(module), name)


def _file_of(run: Run, tool: str) -> str:
    return os.path.join(run.model_dir, _FOLDER, f"{tool}.json")


def _known(run: Run, tool: str) -> str | None:
    """Returns the name of the run that model_dir has with a tool; None without any."""
    return atomic_file.read_json(
        _file_of(run, tool),
        lambda known: str(known["run_id"]),
        instead="another run begins there",
    )


def _remember(run: Run, tool: str, run_id: str) -> None:
    atomic_file.write(_file_of(run, tool), json.dumps({"run_id": run_id}))


def _name_of(run: Run) -> str:
    return os.path.basename(run.model_dir)


def _key(name: str) -> str:
    """Returns a name with the characters that MLflow allows."""
    return _NOT_IN_MLFLOW.sub("_", name)


def _some(entities: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yields parts that are small enough for one call of MLflow."""
    for start in range(0, len(entities), _MOST_ENTITIES):
        yield entities[start : start + _MOST_ENTITIES]
