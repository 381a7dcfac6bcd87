"""The lines that a job says at its end: metrics, places, commands to try next.

Each function yields lines; `command_job` decides which process says them.
"""

import importlib.util
import os
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from pipeline.command.flags import command, program
from pipeline.command.jobs import CONFIG_FILE
from pipeline.contract.run_config import RunConfig
from pipeline.export.saved_model import existing_exports
from pipeline.model_dir import paths


def metric_lines(metrics: Mapping[str, Any]) -> Iterator[str]:
    """Yields lines such as `accuracy 0.9812`; loss and global_step come last.

    Args:
      metrics: value by name; for several evaluations, metrics by the evaluation's name.
    """
    flat = {}
    for name, value in metrics.items():
        inner = value if isinstance(value, Mapping) else {}
        flat.update({f"{name}/{key}": item for key, item in inner.items()})
        if not inner:
            flat[name] = value
    last = ("loss", "global_step")
    names = [name for name in flat if name.rpartition("/")[2] not in last]
    names += [n for end in last for n in flat if n.rpartition("/")[2] == end]
    for name in names:
        yield f"{name} {number(flat[name])}"


def number(value: Any) -> str:
    """Writes a metric's value: ints in full, floats with 4 decimals or digits."""
    value = value.item() if hasattr(value, "item") else value
    if not isinstance(value, float):
        return str(value)
    small = value != 0 and abs(value) < 1e-3
    return f"{value:.4g}" if small else f"{value:.4f}"


def places(model_dir: str) -> Iterator[str]:
    """Yields the places of a run's results: its folder, and each kind's newest export.

    Args:
      model_dir: the run's folder. A best model of an earlier run in it counts, too.
    """
    model_dir = paths.shown(model_dir)
    yield f"checkpoints {model_dir}"
    folder = os.path.join(model_dir, "export")
    if tf.io.gfile.isdir(folder):
        for name in sorted(tf.io.gfile.listdir(folder)):
            saved = existing_exports(os.path.join(folder, name.rstrip("/")))
            yield from (f"SavedModel {path}" for path in saved[-1:])


def next_commands(model_dir: str, steps: int | None) -> Iterator[str]:
    """Yields three commands to try after a training.

    Args:
      model_dir: the run's folder, which holds its configuration.
      steps: the run's macro TRAIN_STEPS; None where it has none.
    """
    model_dir = paths.shown(model_dir)
    quoted = shlex.quote(model_dir)
    run = f"{command()} --gin_file={shlex.quote(os.path.join(model_dir, CONFIG_FILE))}"
    yield "try next:"
    # TensorFlow 2.21 does not bring TensorBoard along.
    missing = not importlib.util.find_spec("tensorboard")
    install = f"{program('python')} -m pip install tensorboard && " if missing else ""
    yield f"  {install}{program('tensorboard')} --logdir={quoted}"
    yield f"  {run} --model_dir={quoted} --job=evaluate"
    if isinstance(steps, int):
        yield f"  {run} --model_dir={quoted} --gin.TRAIN_STEPS={2 * steps}"
    else:
        other = shlex.quote(f"{model_dir}-2")
        yield f"  {run} --model_dir={other} --gin.RunConfig.tf_random_seed=1"


def topology(job: str, config: RunConfig) -> Iterator[str]:
    """Yields lines that say where a job would run, without building anything.

    Args:
      job: one of `flags.JOBS`.
      config: how to run it.
    """
    local = ", ".join(config.devices) if config.devices else "all local devices"
    local = "a TPU" if config.execution == "tpu" else local
    strategy = config.train_distribute
    yield f"job {job}"
    yield f"execution {config.execution} on {local}"
    if strategy is not None:
        yield f"strategy {getattr(strategy, '__name__', type(strategy).__name__)}"
    yield f"task {config.cluster}"
    yield f"model_dir {config.model_dir or '(a temporary one)'}"
    yield f"RunConfig {words(config.describe()) or '(defaults)'}"


def words(described: Mapping[str, str]) -> str:
    """Joins options: `precision=mixed_bfloat16, tf_random_seed=1`."""
    return ", ".join(f"{name}={value}" for name, value in described.items())
