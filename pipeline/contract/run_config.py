# SPDX-License-Identifier: Apache-2.0
"""How to run: where to write, how often to save and log, on which devices."""

import copy
import dataclasses
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from ..cluster import slurm
from ..cluster.tf_config import Cluster, parse_tf_config
from ..errors import UserValueError
from .checks import (
    Check,
    boolean,
    check_fields,
    choice,
    instance,
    integer,
    is_int,
    number,
    objects,
    repr_short,
)
from .hooks import MetricWriter
from .old_names import reject_unknown_arguments
from .paths import normal
from .weight_averages import Average

EXECUTIONS = ("single_host", "multi_worker", "parameter_server", "tpu")
# A strategy, or a function that returns one.
StrategyChoice = tf.distribute.Strategy | Callable[..., tf.distribute.Strategy] | None
# A device of `RunConfig.devices`, in any case: 'GPU:0', '/gpu:0', '/device:GPU:0'.
_DEVICE = re.compile(r"/?(?:DEVICE:)?([A-Z_]+:\d{1,3})")
_MAX_CPUS = 64
_SCALAR = str | bool | int | float | np.generic
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")

_STEPS = integer(1, example=1000, optional=True)
_STEPS_OR_0 = integer(0, example=1000, optional=True)
_BATCH_SIZE = integer(1, example=64, optional=True)
_STRATEGY = Check(
    lambda v: isinstance(v, tf.distribute.Strategy) or callable(v),
    "a tf.distribute strategy, or a function that returns one",
    "tf.distribute.MirroredStrategy()",
    optional=True,
)
_CHECKS = {
    "model_dir": instance((str, os.PathLike), "the path of a folder", "'runs/1'", optional=True),
    "tf_random_seed": integer(0, most=2**32 - 1, example=1, optional=True),
    "save_summary_steps": _STEPS_OR_0,
    "save_checkpoints_steps": _STEPS_OR_0,
    "save_checkpoints_secs": number(0, above=True, example=600, optional=True),
    "keep_checkpoint_max": integer(0, example=5, optional=True),
    "keep_checkpoint_every_n_hours": number(0, above=True, example=24, optional=True),
    "keep_checkpoint_every_n_steps": _STEPS,
    "keep_checkpoint_steps": Check(
        lambda v: isinstance(v, list | tuple) and all(is_int(s) and s >= 0 for s in v),
        "a list of global steps",
        "[1000, 5000]",
    ),
    "async_checkpoint": boolean(optional=True),
    "max_unreachable_secs": number(0, above=True, example=600),
    "log_step_count_steps": _STEPS_OR_0,
    "progress": boolean(),
    "steps_per_loop": integer(1, example=1000),
    "max_loop_secs": number(0, above=True, example=3),
    "train_distribute": _STRATEGY,
    "eval_distribute": _STRATEGY,
    "devices": Check(
        lambda v: isinstance(v, list | tuple | str), "a list", "('GPU:0', 'GPU:1')", optional=True
    ),
    "execution": choice(*EXECUTIONS),
    "evaluation": choice("auto", "inline", "evaluator"),
    "train_batch_size": _BATCH_SIZE,
    "eval_batch_size": _BATCH_SIZE,
    "predict_batch_size": _BATCH_SIZE,
    "changed_input": choice("auto", "restart", "skip", "error"),
    "on_nan": choice("stop", "warn", "restore", "dump"),
    "max_skipped_steps": integer(0, example=5),
    "gradient_accumulation_steps": integer(1, example=4),
    "precision": choice(*PRECISIONS),
    "log_norms": boolean(),
    "average": instance(
        Average, "an average of the weights", "ExponentialAverage(0.999)", optional=True
    ),
    "jit_compile": boolean(),
    "run_eagerly": boolean(),
    "hparams": Check(
        lambda v: (
            isinstance(v, Mapping)
            and all(isinstance(n, str) and isinstance(h, _SCALAR) for n, h in v.items())
        ),
        "a dict of numbers, texts, True and False",
        "{'learning_rate': 0.1}",
    ),
}


@reject_unknown_arguments
@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Options of a run that are not part of the model or the input.

    Attributes:
      model_dir: directory of checkpoints, events and exports; None for that of the Estimator, or
        for a temporary one, which is logged.
      tf_random_seed: seed of initial weights, dropout and other random numbers; None for
        another one in each run.
      save_summary_steps: steps between points of a training in TensorBoard; None or 0 writes
        none, and no summaries of evaluations.
      save_checkpoints_steps: steps between checkpoints; 0 saves nothing: the trained weights last
        as long as the Estimator.
      save_checkpoints_secs: seconds between checkpoints; excludes the above. If both are
        None, 600 seconds.
      keep_checkpoint_max: number of checkpoints to keep; None or 0 keeps all.
      keep_checkpoint_every_n_hours: hours after which one more checkpoint stays for good.
      keep_checkpoint_every_n_steps: checkpoints at multiples of this step stay for good.
      keep_checkpoint_steps: steps that are saved, and stay for good.
      async_checkpoint: whether training continues while a checkpoint is written, from a copy of the
        variables; None: if they have less than 1,000 MB.
      max_unreachable_secs: seconds for which training continues while a model_dir such as
        `gs://bucket/run` cannot be reached; then the process ends with exit code 75 and without
        Python's cleanup.
      log_step_count_steps: steps between log lines; None or 0 logs none.
      progress: whether a terminal or notebook shows a progress bar, and `fit` prints a line for
        each epoch.
      steps_per_loop: maximum number of steps in one compiled call; no call has more than 1,000.
      max_loop_secs: approximate maximum duration of one compiled call; signals are
        answered between calls. Where steps become slower in a call, several workers make up to as
        many more of them as they made before in a sixth of this time.
      train_distribute: strategy to train on, or a function that returns it, which may take the
        RunConfig as `config` and is called before the first training; None for the strategy of
        `execution`.
      eval_distribute: strategy on which an evaluator job and the chief of parameter servers
        evaluate, or such a function; None for the local devices. It has no effect elsewhere:
        a process that trains evaluates on the strategy of its training.
      devices: local devices of 'single_host', such as ('GPU:0', 'GPU:1'), ('CPU:0', 'CPU:1') for
        logical CPUs; None for all GPUs, or the CPU.
      execution: 'single_host'; 'multi_worker' for the workers of TF_CONFIG in lockstep;
        'parameter_server' for workers that update servers asynchronously; or 'tpu'.
      evaluation: what evaluates in train_and_evaluate: 'inline', the training at its checkpoints;
        'evaluator', a separate job; 'auto', that job if TF_CONFIG lists one in "cluster".
      train_batch_size: examples of all replicas in a training step, for an input_fn that takes
        `params`, where it is `params["batch_size"]`: of one replica if the input_fn takes
        `input_context`, else of all. None: input_fn chooses.
      eval_batch_size: the same for evaluations.
      predict_batch_size: the same for predictions.
      changed_input: effect of another training input than the one that model_dir has read.
        'auto' begins other data at their start, and skips the examples that were read before if
        the same data have another pipeline; 'restart', 'skip' or 'error' in both cases.
      on_nan: effect of a loss that is NaN or infinite, or of such a variable before it is saved.
        'stop' ends training with an error; 'warn' logs a warning; 'restore' returns to the last
        checkpoint and continues without the batches of that step, which are written to
        `model_dir/bad_batches`; 'dump' writes them and ends.
        The last two also look at gradients. They need checkpoints, and no parameter servers or TPU.
      max_skipped_steps: maximum number of steps that a run skips.
      gradient_accumulation_steps: number of batches per replica whose gradients make one step.
      precision: 'float32', 'mixed_bfloat16' or 'mixed_float16': dtype in which layers compute.
        Variables stay float32. 'mixed_float16' scales the loss.
      log_norms: whether `Report.scalars` has the norms of each module's gradient and update.
      average: ExponentialAverage or StochasticWeightAverage of the weights, which is kept along
        with them, evaluated and exported; training itself is the same. None for none.
      jit_compile: whether XLA compiles the forward and backward pass.
      run_eagerly: whether steps run without tf.function, for a debugger.
      metric_writers: objects that receive the numbers of trainings and evaluations, every
        `save_summary_steps`: CsvWriter, JsonLinesWriter, KubeflowWriter, which is added where
        Kubeflow Trainer sets its address, MlflowWriter, PrometheusWriter, WandbWriter or your own.
      hparams: hyperparameters for metric writers and TensorBoard's tab HParams, in addition to
        the `params` of the Estimator and, under the command, the bindings of gin.
      cluster: tasks of TF_CONFIG or of the SLURM step, read when the RunConfig is created.
    """

    model_dir: str | None = None
    _: dataclasses.KW_ONLY
    tf_random_seed: int | None = None
    save_summary_steps: int | None = 100
    save_checkpoints_steps: int | None = None
    save_checkpoints_secs: float | None = None
    keep_checkpoint_max: int | None = 5
    keep_checkpoint_every_n_hours: float | None = 10000
    keep_checkpoint_every_n_steps: int | None = None
    keep_checkpoint_steps: Sequence[int] = ()
    async_checkpoint: bool | None = None
    max_unreachable_secs: float = 600.0
    log_step_count_steps: int | None = 100
    progress: bool = True
    steps_per_loop: int = 1000
    max_loop_secs: float = 3.0
    train_distribute: StrategyChoice = None
    eval_distribute: StrategyChoice = None
    devices: Sequence[str] | None = None
    execution: str = "single_host"
    evaluation: str = "auto"
    train_batch_size: int | None = None
    eval_batch_size: int | None = None
    predict_batch_size: int | None = None
    changed_input: str = "auto"
    on_nan: str = "stop"
    max_skipped_steps: int = 5
    gradient_accumulation_steps: int = 1
    precision: str = "float32"
    log_norms: bool = False
    average: Average | None = None
    jit_compile: bool = False
    run_eagerly: bool = False
    metric_writers: Sequence[MetricWriter] = ()
    hparams: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    cluster: Cluster = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        check_fields(self, _CHECKS)
        text = os.environ.get("TF_CONFIG") or slurm.tf_config(self.execution, os.environ)
        object.__setattr__(self, "cluster", parse_tf_config(text))
        self._complete()

    def _complete(self) -> None:
        """Checks the fields together, after each by itself, and sets their final values."""
        if self.devices is not None:
            object.__setattr__(self, "devices", self._checked_devices())
        object.__setattr__(self, "keep_checkpoint_steps", tuple(self.keep_checkpoint_steps))
        writers = objects("RunConfig.metric_writers", self.metric_writers, MetricWriter)
        object.__setattr__(self, "metric_writers", writers)
        self._check_combinations()
        self._check_cluster()
        if self.model_dir is not None:
            object.__setattr__(self, "model_dir", normal(self.model_dir))

    def replace(self, **changes: Any) -> "RunConfig":
        """Returns a copy with other values.

        One of `save_checkpoints_steps` and `save_checkpoints_secs` unsets the other.

        Args:
          **changes: values by the names of arguments.
        """
        pair = {"save_checkpoints_steps", "save_checkpoints_secs"}
        given = pair & changes.keys()
        if len(given) == 1 and changes[next(iter(given))] is not None:
            changes |= dict.fromkeys(pair - given)
        known = {field.name for field in dataclasses.fields(self) if field.init}
        if "execution" in changes or not changes.keys() <= known:  # The cluster depends on it.
            return dataclasses.replace(self, **changes)
        config = copy.copy(self)  # With its cluster: TF_CONFIG may have changed since.
        for name, value in changes.items():
            object.__setattr__(config, name, value)
        check_fields(config, _CHECKS)
        config._complete()
        return config

    def alone(self, **changes: Any) -> "RunConfig":
        """Returns a copy for one replica of this process, which connects to no other task.

        Args:
          **changes: values by the names of arguments.
        """
        strategies = {"train_distribute": tf.distribute.get_strategy, "eval_distribute": None}
        config = self.replace(**strategies, devices=None, **changes)
        object.__setattr__(config, "cluster", Cluster())
        return config

    def in_model_dir(self, model_dir: str | None) -> "RunConfig":
        """Returns a copy with a directory: this one, or its own, or a temporary one.

        Args:
          model_dir: argument of an Estimator.

        Raises:
          UserValueError: both are set and differ, or none is in an evaluator.
        """
        given = None if model_dir is None else normal(model_dir)
        if given is not None and self.model_dir not in (None, given):
            raise UserValueError(
                f"model_dir is {given!r}, and RunConfig.model_dir is {self.model_dir!r}: expected "
                "one directory. Set one of them."
            )
        given = given or self.model_dir
        if given is None and (self.task_type == "evaluator" or len(self.cluster.tasks) > 1):
            raise UserValueError(
                f"model_dir is None, and TF_CONFIG has other tasks than {self.cluster.name}: "
                "expected the directory that all share. Set model_dir='runs/1' in each task."
            )
        if given is None:
            given = normal(tempfile.mkdtemp(prefix="run-"))
            logging.warning("model_dir is not set: writing to %s.", given)
        config = copy.copy(self)
        object.__setattr__(config, "model_dir", given)
        return config

    def changes(self) -> dict[str, Any]:
        """Returns the options that are not the default, by name."""
        fields = {f.name: f for f in dataclasses.fields(self) if f.init and f.name != "model_dir"}
        values = {name: getattr(self, name) for name in fields}
        defaults = {name: field.default for name, field in fields.items()} | {"hparams": {}}
        return {name: value for name, value in values.items() if value != defaults[name]}

    @property
    def cluster_spec(self) -> tf.train.ClusterSpec:
        """Addresses by job; empty in a local run and in an evaluator."""
        jobs = self.cluster.jobs.items()
        return tf.train.ClusterSpec({job: list(addresses) for job, addresses in jobs})

    @property
    def task_type(self) -> str:
        """'chief', 'worker', 'ps' or 'evaluator'."""
        return self.cluster.task_type

    @property
    def task_id(self) -> int:
        """Index of this task among those of its type."""
        return self.cluster.task_id

    @property
    def is_chief(self) -> bool:
        """Whether this process saves."""
        return self.cluster.is_chief

    @property
    def has_evaluator(self) -> bool:
        """Whether an evaluator job makes the evaluations of train_and_evaluate."""
        is_listed = self.evaluation == "auto" and self.cluster.has_evaluator
        return self.evaluation == "evaluator" or is_listed

    @property
    def num_worker_replicas(self) -> int:
        """Number of workers and chief; 1 in a local run."""
        return self.cluster.num_worker_replicas

    @property
    def num_ps_replicas(self) -> int:
        """Number of parameter servers."""
        return self.cluster.num_ps_replicas

    @property
    def global_id_in_cluster(self) -> int | None:
        """Index of this task among chief, workers and servers; None in an evaluator."""
        return self.cluster.global_id

    def _checked_devices(self) -> tuple[str, ...]:
        """Returns `devices` as 'GPU:0'; whether they exist is known when the strategy is made."""
        expected = "expected names such as ('GPU:0', 'GPU:1') or ('CPU:0', 'CPU:1')"
        given = f"devices is {self.devices!r}"
        if isinstance(self.devices, str) or not self.devices:
            raise UserValueError(f"{given}: {expected}, or None for all GPUs.")
        matches = [_DEVICE.fullmatch(str(name).upper()) for name in self.devices]
        names = tuple(match[1] for match in matches if match)
        names = tuple(f"{kind}:{int(number)}" for kind, number in (n.split(":") for n in names))
        if len(set(names)) < len(self.devices):
            raise UserValueError(f"{given}: {expected}, each once.")
        if any(name.startswith("CPU") and int(name[4:]) >= _MAX_CPUS for name in names):
            raise UserValueError(f"{given}: expected at most {_MAX_CPUS} logical CPUs.")
        if isinstance(self.train_distribute, tf.distribute.Strategy):
            raise UserValueError(
                f"{given}, and train_distribute is a strategy, which has devices: set one of them, "
                "or train_distribute to a function such as mirrored."
            )
        if self.execution != "single_host":
            raise UserValueError(f"{given} with execution {self.execution!r}: expected None.")
        return names

    def _check_combinations(self) -> None:
        """Refuses options that exclude each other."""

        def refuse(name: str, other: str, remedy: str) -> None:
            raise UserValueError(
                f"RunConfig.{name} is {repr_short(getattr(self, name))}, and {other} is "
                f"{repr_short(getattr(self, other))}: expected one of them. {remedy}"
            )

        if self.save_checkpoints_steps is not None and self.save_checkpoints_secs is not None:
            refuse("save_checkpoints_steps", "save_checkpoints_secs", "Leave out the other.")
        if self.save_checkpoints_steps == 0:
            for name in self.changes():
                if name.startswith("keep_checkpoint"):
                    refuse(name, "save_checkpoints_steps", f"Leave out {name}: nothing is saved.")
        if self.run_eagerly and self.jit_compile:
            refuse("run_eagerly", "jit_compile", "XLA compiles what tf.function traces.")

    def _check_cluster(self) -> None:
        execution, cluster = self.execution, self.cluster
        if self.train_distribute is not None or cluster.task_type == "evaluator":
            return
        if execution == "multi_worker" and not cluster.jobs:
            if slurm.is_single_task(os.environ):
                logging.info("The SLURM step has one task: training on a single host.")
                return
            raise UserValueError(
                "execution is 'multi_worker' without a cluster: expected one in TF_CONFIG. Set "
                "TF_CONFIG in each task, or execution='single_host'."
            )
        if execution == "multi_worker" and "ps" in cluster.jobs:
            raise UserValueError(
                "execution is 'multi_worker', and TF_CONFIG has parameter servers: expected chief "
                "and workers only."
            )
        if execution == "single_host" and len(cluster.tasks) > 1:
            raise UserValueError(
                f"execution is 'single_host', and TF_CONFIG has {len(cluster.tasks)} tasks: "
                "expected a local run. Set execution='multi_worker', or unset TF_CONFIG."
            )
