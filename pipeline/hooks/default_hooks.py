# SPDX-License-Identifier: Apache-2.0
"""The hooks that a RunConfig adds to each training."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..contract.hooks import Hook
from ..contract.run_config import RunConfig
from .cluster_hook import ClusterHook
from .logging_hook import LoggingHook
from .metric_writers_hook import MetricWritersHook
from .progress_hook import ProgressHook
from .remote_writers import STATUS_URL, KubeflowWriter
from .run_description import DescriptionHook
from .summary_hook import SummaryHook


def stock_hooks(
    config: RunConfig,
    modules: Mapping[str, Any],
    hparams: Mapping[str, Any],
    hooks: Sequence[Hook],
    *,
    is_chief: bool,
) -> list[Hook]:
    """Returns the hooks of a RunConfig, in the order of their calls.

    Args:
      config: how to run.
      modules: modules by name.
      hparams: hyperparameters by name.
      hooks: hooks of the user; one of a class replaces the stock hook of that class.
      is_chief: whether this process has the progress bar.
    """
    stock: list[Hook] = []
    if config.log_step_count_steps and not _has(hooks, LoggingHook):
        stock.append(LoggingHook(config.log_step_count_steps))
    saves, every_steps = config.save_checkpoints_steps != 0, config.save_summary_steps or None
    if saves and not _has(hooks, SummaryHook):
        stock.append(SummaryHook(every_steps, writes_evaluations=not config.has_evaluator))
    stock.append(DescriptionHook(modules, hparams, writes_events=bool(saves and every_steps)))
    writers = config.metric_writers
    if os.environ.get(STATUS_URL) and not any(isinstance(w, KubeflowWriter) for w in writers):
        writers = (*writers, KubeflowWriter())
    if writers:
        stock.append(MetricWritersHook(config, writers, hparams))
    tasks = config.cluster.tasks
    if len(tasks) > 1 and config.cluster.is_chief:
        others = {name: tasks[name] for name in tasks if name != config.cluster.name}
        stock.append(ClusterHook(others))
    if config.progress and is_chief:
        stock.append(ProgressHook())
    return stock


def _has(hooks: Sequence[Hook], kind: type[Hook]) -> bool:
    return any(isinstance(hook, kind) for hook in hooks)
