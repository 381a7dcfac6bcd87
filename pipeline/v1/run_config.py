# SPDX-License-Identifier: Apache-2.0
"""RunConfig, TPUConfig, TrainSpec and EvalSpec with the arguments and defaults of TensorFlow 1."""

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import Any

from ..contract.run_config import RunConfig as DriverRunConfig

# Options of sessions, devices and TPUs without an effect here.
_IGNORED = (
    "session_config",
    "device_fn",
    "protocol",
    "experimental_distribute",
    "experimental_max_worker_delay_secs",
    "session_creation_timeout_secs",
    "checkpoint_save_graph_def",
    "master",
    "cluster",
    "tpu_config",
    "evaluation_master",
    "gpu_memory_fraction",
    "num_cores",
    "environment",
    "log_device_placement",
)
_INTERVALS = ("save_checkpoints_steps", "save_checkpoints_secs")
_FIELDS = tuple(field.name for field in dataclasses.fields(DriverRunConfig) if field.init)


@dataclasses.dataclass(frozen=True, init=False)
class RunConfig(DriverRunConfig):
    """`tf.estimator.RunConfig`: options of TensorFlow's sessions have no effect."""

    def __init__(self, model_dir: str | None = None, **options: Any) -> None:
        ignored = {name: options.pop(name) for name in _IGNORED if name in options}
        if unknown := options.keys() - {*_FIELDS}:
            raise TypeError(f"RunConfig got unexpected arguments {sorted(unknown)}")
        if not options.keys() & {*_INTERVALS}:
            options["save_checkpoints_secs"] = 600
        intervals = [options.get(name) for name in _INTERVALS]
        if None not in intervals:
            raise ValueError(
                "`save_checkpoints_steps` and `save_checkpoints_secs` cannot be both set."
            )
        if intervals == [None, None]:
            options["save_checkpoints_steps"] = 0  # Saves nothing.
        options.setdefault("execution", _execution())
        super().__init__(model_dir=model_dir or None, **options)
        object.__setattr__(self, "ignored", ignored)

    def replace(self, **changes: Any) -> "RunConfig":
        """Returns a config with other values; one interval of checkpoints replaces the other."""
        ignored = {name: changes.pop(name) for name in _IGNORED if name in changes}
        config = super().replace(**changes)
        object.__setattr__(config, "ignored", {**self.ignored, **ignored})
        return config

    @property
    def session_config(self) -> Any:
        """The option of this name, which has no effect."""
        return self.ignored.get("session_config")

    @property
    def tpu_config(self) -> Any:
        """The TPUConfig, if there is one."""
        return self.ignored.get("tpu_config") or TPUConfig()

    @property
    def master(self) -> str:
        """No master: there are no sessions."""
        return ""


def _execution() -> str:
    """Returns the execution that TF_CONFIG asks for: servers, several workers, or this host."""
    cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
    if cluster.get("ps"):
        return "parameter_server"
    tasks = sum(len(cluster.get(kind, ())) for kind in ("chief", "master", "worker"))
    return "multi_worker" if tasks > 1 else "single_host"


@dataclasses.dataclass
class TPUConfig:
    """`tf.estimator.tpu.TPUConfig`."""

    iterations_per_loop: int = 2
    num_shards: int | None = None
    num_cores_per_replica: int | None = None
    per_host_input_for_training: Any = True
    tpu_job_name: str | None = None
    initial_infeed_sleep_secs: int | None = None
    input_partition_dims: Any = None
    eval_training_input_configuration: Any = None
    experimental_host_call_every_n_steps: int = 1


class InputPipelineConfig:
    """`tf.estimator.tpu.InputPipelineConfig`."""

    PER_SHARD_V1, PER_HOST_V1, PER_HOST_V2, BROADCAST, SLICED = 1, 2, 3, 4, 5


@dataclasses.dataclass
class TrainSpec:
    """`tf.estimator.TrainSpec`."""

    input_fn: Any
    max_steps: int | None = None
    hooks: Sequence[Any] | None = None
    saving_listeners: Sequence[Any] | None = None


@dataclasses.dataclass
class EvalSpec:
    """`tf.estimator.EvalSpec`."""

    input_fn: Any
    steps: int | None = 100
    name: str | None = None
    hooks: Sequence[Any] | None = None
    exporters: Any = None
    start_delay_secs: float = 120
    throttle_secs: float = 600
