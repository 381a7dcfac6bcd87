"""RunConfig, which says where and how a model is trained.

It is tf.estimator's, with fields for what has been added since. They are checked here,
and TF_CONFIG is read once (`cluster/environment.py`): the rest of the driver relies on
both.
"""

import dataclasses
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from pipeline.cluster import devices, environment, ports
from pipeline.cluster import tf_config as cluster_lib
from pipeline.cluster.tf_config import EXECUTIONS
from pipeline.contract import averages, params
from pipeline.contract.hooks import Tool
from pipeline.mistakes import habits
from pipeline.mistakes.checks import (
    check_all,
    check_amount,
    check_choice,
    check_loop,
    check_whole,
    checked_steps,
)
from pipeline.model_dir import paths
from pipeline.process.refusals import RefusedTypeError, RefusedValueError, near

# A strategy, or a function that makes it of a RunConfig.
StrategyChoice = (
    tf.distribute.Strategy | Callable[["RunConfig"], tf.distribute.Strategy] | None
)

# Values in place of None, in fields that a RunConfig never shows as None.
_SET_BY_DEFAULT = {"save_checkpoints_secs": 600, "cluster": cluster_lib.Cluster()}


@habits.run_config
@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The place and the manner of a training, apart from what is trained.

    It is checked when it is made: a wrong value is a ValueError that names the field,
    rather than a surprise after an hour of training. It does not change; `replace`
    returns another.

    Attributes:
      model_dir: directory of checkpoints, summaries and exports (str or os.PathLike).
        None: the Estimator makes a temporary one.
      tf_random_seed: seed of initial weights, dropout and shuffling. NumPy's and
        Python's own random numbers are seeded while factories and input_fn are called,
        and left alone otherwise. None: each run differs.
      save_summary_steps: steps between two summaries; None or 0 writes none. The cost
        of the default cannot be measured.
      save_checkpoints_steps: steps between two checkpoints; 0 saves none: the trained
        weights last as long as the Estimator, whose calls go on with them. Not together
        with `save_checkpoints_secs`.
      save_checkpoints_secs: seconds between two checkpoints; 600 where neither is
        given, so that a crash costs ten minutes at most.
      keep_checkpoint_max: number of the last checkpoints that stay; None or 0 keeps
        all. 5 bounds the disk, and is enough for a slow evaluator.
      keep_checkpoint_every_n_hours: hours of training after each of which one more
        checkpoint stays for good. The default is longer than any training.
      keep_checkpoint_every_n_steps: steps; those of each multiple are saved, and their
        checkpoints stay for good. None keeps none beyond the others.
      keep_checkpoint_steps: global steps that are saved, and whose checkpoints stay for
        good, such as (0, 1000, 5000).
      log_norms: whether summaries show the norms of gradients and updates by module.
      log_step_count_steps: steps between two log lines of loss and speed; None logs
        none.
      progress: whether to show a line that moves in a terminal or a notebook, with
        metrics and the time left, and to log at INFO where the program has set no
        level for absl's log. Followers never show it, nor does an output to a file.
      train_distribute: strategy to train with, or a function that makes it of this
        RunConfig, such as a row of `strategy/strategies`. None: `execution`'s.
      eval_distribute: strategy to evaluate with, or such a function. None: the one to
        train with.
      steps_per_loop: most steps that one call of the compiled loop runs. The loop stops
        earlier wherever a log, summary, checkpoint or hook is due, so 1000 only bounds
        how long a signal waits. Or a duration, "30s": as many steps as take about that
        long, measured; logs and summaries of the steps in a call come at its end.
      train_batch_size: examples of a training batch of all replicas, for an input_fn
        that takes `params`: it finds its own batch size there as "batch_size", one
        replica's where it takes `input_context`, and else that of all. None: input_fn
        knows the size by itself.
      eval_batch_size: that of an evaluation's batch.
      predict_batch_size: that of a prediction's batch.
      gradient_accumulation_steps: micro-batches whose gradients make up one step; 1
        takes the whole batch at once.
      precision: 'float32', 'mixed_bfloat16' (GPUs since Ampere, TPUs) or
        'mixed_float16' (older GPUs; scales the loss).
      jit_compile: whether XLA compiles the step. By default it does not, for it slows
        down convolutions on the CPU and compiles again for each batch shape. None:
        TensorFlow decides.
      run_eagerly: whether each step runs as plain Python, for a debugger; slow.
      async_checkpoint: whether checkpoints are written while training goes on, of a
        copy; None: where less than 1 GB of it lies in the memory of CPUs, and at once,
        without a copy, where it is more.
      on_nan: effect of a loss of NaN or Inf: 'stop' the run; 'record', which also
        writes its batch to model_dir/bad_batches; 'restore' the last checkpoint, and go
        on without the batch; or 'warn' and go on.
      max_restores: most steps of a training whose batches are left out.
      average: average of the weights to keep beside them, `ExponentialAverage` or
        `StochasticWeightAverage`; None for none.
      changed_input: effect of another input than the one that model_dir has read.
        'auto' begins other data anew, and goes on in the same data that are treated
        otherwise; 'anew', 'skip' (after as much as was read) or 'error' in both cases.
      devices: local devices to train on under 'single_host', say ('GPU:0', 'GPU:1').
        None: all GPUs, or the one CPU.
      execution: 'single_host', 'multi_worker', 'parameter_server' or 'tpu'.
      evaluation: who evaluates in `train_and_evaluate`: 'inline', the training itself
        at its checkpoints; 'evaluator', a job of its own; 'auto', such a job if
        TF_CONFIG lists one in "cluster", else the training. Kubernetes' training
        operator starts one without listing it, and needs 'evaluator'.
      tools: tools beside TensorBoard that get its numbers, such as `CsvTool()`.
      hparams: hyperparameters by name, for TensorBoard's HParams and for `tools`,
        beside the Estimator's params. None: what gin binds, where the command trains.
      cluster: the processes that train together. None: those of TF_CONFIG or, where it
        is not set, of the SLURM step, read once when the RunConfig is made.
    """

    model_dir: str | None = None
    tf_random_seed: int | None = None
    save_summary_steps: int | None = 100
    save_checkpoints_steps: int | None = None
    save_checkpoints_secs: float | None = None
    keep_checkpoint_max: int | None = 5
    keep_checkpoint_every_n_hours: float = 10000
    keep_checkpoint_every_n_steps: int | None = None
    keep_checkpoint_steps: Sequence[int] = ()
    log_norms: bool = False
    log_step_count_steps: int | None = 100
    progress: bool = True
    train_distribute: StrategyChoice = None
    eval_distribute: StrategyChoice = None
    steps_per_loop: int | str = 1000
    train_batch_size: int | None = None
    eval_batch_size: int | None = None
    predict_batch_size: int | None = None
    gradient_accumulation_steps: int = 1
    precision: str = "float32"
    jit_compile: bool | None = False
    run_eagerly: bool = False
    async_checkpoint: bool | None = None
    on_nan: str = "stop"
    max_restores: int = 3
    average: averages.Average | None = None
    changed_input: str = "auto"
    devices: tuple[str, ...] | None = None
    execution: str = "single_host"
    evaluation: str = "auto"
    tools: Sequence[Tool] = ()
    hparams: Mapping[str, Any] | None = dataclasses.field(default=None, hash=False)
    cluster: cluster_lib.Cluster | None = None

    def __post_init__(self) -> None:
        self._set("model_dir", paths.checked_model_dir(self.model_dir))
        self._set("devices", devices.checked(self.devices))
        for name, allowed in _INTEGERS.items():
            check_whole(f"RunConfig.{name}", getattr(self, name), *allowed)
        if (self.tf_random_seed or 0) >= 2**32:  # More than NumPy takes.
            raise RefusedValueError(
                f"RunConfig.tf_random_seed is {self.tf_random_seed}: write an integer "
                "below 2**32, such as tf_random_seed=42."
            )
        check_loop("RunConfig.steps_per_loop", self.steps_per_loop)
        hours = self.keep_checkpoint_every_n_hours
        check_amount("RunConfig.keep_checkpoint_every_n_hours", hours)
        kept = checked_steps("keep_checkpoint_steps", self.keep_checkpoint_steps)
        self._set("keep_checkpoint_steps", kept)
        self._check_save_checkpoints()
        for name, choices in _CHOICES.items():
            check_choice(f"RunConfig.{name}", getattr(self, name), choices)
        self._check_strategies()
        self._check_objects()
        self._check_combinations()
        if self.cluster is None:
            self._set("cluster", environment.cluster(self.execution))
        elif not isinstance(self.cluster, cluster_lib.Cluster):
            raise RefusedValueError(
                f"RunConfig.cluster is {self.cluster!r}, not a Cluster: write "
                f"cluster=parse_tf_config(text), or leave it out to read TF_CONFIG."
            )
        # A wrong port would be waited for without end.
        for address in self.cluster.training_tasks.values():
            if ":" in address:
                ports.split(address)

    @property
    def cluster_spec(self) -> tf.train.ClusterSpec:
        """Addresses of chief, workers and parameter servers; empty in a local run."""
        return tf.train.ClusterSpec(dict(self.cluster.jobs))

    @property
    def task_type(self) -> str:
        """The role of this process: 'chief', 'worker', 'ps' or 'evaluator'."""
        return self.cluster.task_type

    @property
    def task_id(self) -> int:
        """The number of this process among those of its role, from 0."""
        return self.cluster.task_id

    @property
    def is_chief(self) -> bool:
        """Whether this process writes checkpoints, summaries and logs."""
        return self.cluster.is_chief

    @property
    def num_worker_replicas(self) -> int:
        """The number of workers with the chief; 0 in the evaluator."""
        return self.cluster.num_worker_replicas

    @property
    def num_ps_replicas(self) -> int:
        """The number of parameter servers; 0 in the evaluator."""
        return self.cluster.num_ps_replicas

    @property
    def global_id_in_cluster(self) -> int | None:
        """This task's number: chief 0, then workers, then servers; None: evaluator."""
        return self.cluster.global_id_in_cluster

    @property
    def evaluates_inline(self) -> bool:
        """Whether training evaluates at its checkpoints, rather than an evaluator."""
        if self.evaluation == "auto":
            return not self.cluster.has_evaluator
        return self.evaluation == "inline"

    def with_model_dir(self) -> "RunConfig":
        """Returns a RunConfig with a `model_dir` in normal form, maybe a temporary one.

        Raises:
          ValueError: an evaluator has no model_dir to watch; or TensorFlow would not
            find in model_dir what it writes there.
        """
        if self.model_dir is not None:
            directory = paths.normal(self.model_dir)
            if paths.is_pattern(directory):
                raise RefusedValueError(
                    f"RunConfig.model_dir is {directory!r}, and TensorFlow takes '[a]' "
                    "and a backslash in the path of a checkpoint for a pattern: it "
                    "would save there, and find nothing again. Write a path without "
                    "them, or rename the folder."
                )
            changed = directory != self.model_dir
            return self.replace(model_dir=directory) if changed else self
        if self.task_type == cluster_lib.EVALUATOR:
            raise RefusedValueError(
                "RunConfig.model_dir is not set, and this task is an evaluator, which "
                "evaluates the checkpoints of a training. Give it the training's, by "
                "RunConfig(model_dir=...) or --model_dir=..."
            )
        directory = tempfile.mkdtemp()
        logging.warning("model_dir is not set; using %s", directory)
        return self.replace(model_dir=directory)

    def replace(self, **changes: Any) -> "RunConfig":
        """Returns a copy with the named fields changed, checked anew.

        Either of `save_checkpoints_steps` and `save_checkpoints_secs` unsets the other,
        as in tf.estimator. TF_CONFIG is not read again.

        Args:
          **changes: values by field name.

        Raises:
          ValueError: a name is no field, or a value is wrong.
        """
        names = [field.name for field in dataclasses.fields(RunConfig)]
        unknown = sorted(set(changes) - set(names))
        if unknown:
            raise RefusedValueError(
                f"RunConfig has no field {', '.join(unknown)}.{near(unknown[0], names)}"
                f" Its fields are {', '.join(names)}."
            )
        steps, secs = "save_checkpoints_steps", "save_checkpoints_secs"
        for given, other in ((steps, secs), (secs, steps)):
            if changes.get(given) is not None:
                changes.setdefault(other, None)
        return dataclasses.replace(self, **changes)

    def describe(self) -> dict[str, str]:
        """Returns the fields that differ from their defaults, in words, for logs."""
        described = {}
        for field in dataclasses.fields(RunConfig):
            value = getattr(self, field.name)
            if value in (field.default, _SET_BY_DEFAULT.get(field.name, field.default)):
                continue
            if isinstance(value, tf.distribute.Strategy):
                value = type(value).__name__
            described[field.name] = getattr(value, "__name__", str(value))
        return described

    def _set(self, name: str, value: Any) -> None:
        """Puts a field into its normal form; only while the object is being made."""
        object.__setattr__(self, name, value)

    def _check_objects(self) -> None:
        """Checks what is no number or text; a wrong field is a ValueError, always."""
        self._set("tools", () if self.tools is None else self.tools)
        try:
            averages.check(self.average)
            check_all("RunConfig.tools", self.tools, Tool)
            params.check_flat("RunConfig.hparams", self.hparams)
        except RefusedTypeError as error:
            raise RefusedValueError(str(error)) from None
        self._set("tools", tuple(self.tools))

    def _check_save_checkpoints(self) -> None:
        steps, secs = self.save_checkpoints_steps, self.save_checkpoints_secs
        if steps is not None and secs is not None:
            raise RefusedValueError(
                f"RunConfig.save_checkpoints_steps ({steps!r}) and "
                f"RunConfig.save_checkpoints_secs ({secs!r}) cannot both be set. Leave "
                f"one of them out."
            )
        if secs is not None:
            hint = "save_checkpoints_steps=0 to never save"
            check_amount("RunConfig.save_checkpoints_secs", secs, hint=hint)
        elif steps is None:
            self._set("save_checkpoints_secs", _SET_BY_DEFAULT["save_checkpoints_secs"])
        for name in ("keep_checkpoint_every_n_steps", "keep_checkpoint_steps"):
            if steps == 0 and getattr(self, name):
                raise RefusedValueError(
                    f"RunConfig.{name} is {getattr(self, name)!r}, and "
                    "save_checkpoints_steps=0 saves nothing: write "
                    "save_checkpoints_steps=1000, or leave it out."
                )

    def _check_strategies(self) -> None:
        for name in ("train_distribute", "eval_distribute"):
            value = getattr(self, name)
            fits = isinstance(value, tf.distribute.Strategy)
            fits = fits or callable(value) and not isinstance(value, type)
            if value is not None and not fits:
                raise RefusedValueError(
                    f"RunConfig.{name} is {value!r}: write a tf.distribute.Strategy, a "
                    "function that makes one of this RunConfig, or None, such as "
                    f"{name}=tf.distribute.MirroredStrategy(); in gin @mirrored."
                )

    def _check_combinations(self) -> None:
        made = isinstance(self.train_distribute, tf.distribute.Strategy)
        if self.devices is not None and made:
            raise RefusedValueError(
                f"RunConfig.devices ({self.devices}) and train_distribute are both "
                f"set, but a strategy has its own devices. Leave one of them out."
            )
        if self.devices is not None and self.execution != "single_host":
            raise RefusedValueError(
                f"RunConfig.devices is {self.devices} and execution is "
                f"{self.execution!r}, but devices are chosen only under "
                "execution='single_host'. Leave devices out."
            )
        if self.run_eagerly and self.jit_compile:
            raise RefusedValueError(
                "RunConfig.run_eagerly and RunConfig.jit_compile are both True, but "
                "eager steps are not compiled. Write jit_compile=False."
            )


# By field: its least value, whether None is allowed, and an example.
_INTEGERS = {
    "tf_random_seed": (0, True, 42),
    "save_summary_steps": (0, True, 100),
    "save_checkpoints_steps": (0, True, 1000),
    "keep_checkpoint_max": (0, True, 5),
    "keep_checkpoint_every_n_steps": (1, True, 10000),
    "log_step_count_steps": (1, True, 100),
    "train_batch_size": (1, True, 64),
    "eval_batch_size": (1, True, 64),
    "predict_batch_size": (1, True, 64),
    "gradient_accumulation_steps": (1, False, 1),
    "max_restores": (1, False, 3),
}
_CHOICES = {
    "precision": ("float32", "mixed_bfloat16", "mixed_float16"),
    "progress": (True, False),
    "jit_compile": (False, True, None),
    "run_eagerly": (False, True),
    "log_norms": (False, True),
    "async_checkpoint": (None, True, False),
    "on_nan": ("stop", "warn", "restore", "record"),
    "changed_input": ("auto", "anew", "skip", "error"),
    "execution": EXECUTIONS,
    "evaluation": ("auto", "inline", "evaluator"),
}
