# SPDX-License-Identifier: Apache-2.0
"""Describes a run: the size of its model in the log, hyperparameters in TensorBoard."""

import math
from collections.abc import Mapping
from typing import Any

import keras
from absl import logging

from ..contract.hooks import Hook, RunContext
from ..distribute import names
from .events import EventWriter


class DescriptionHook(Hook):
    """Logs the numbers of parameters at the start of a new run; writes them to TensorBoard.

    TensorBoard's tab HParams gets the hyperparameters, and the end of a run that no signal and no
    error ended.
    """

    def __init__(
        self, modules: Mapping[str, Any], hparams: Mapping[str, Any], *, writes_events: bool
    ) -> None:
        """Takes modules and hyperparameters by name, and whether to write for TensorBoard."""
        self._modules, self._hparams = modules, hparams
        self._writes_events = writes_events

    def begin(self, run: RunContext) -> None:
        """Logs and writes, in the process that leads."""
        if not run.is_chief:
            return
        writer = EventWriter(run.model_dir)
        if not run.step:
            line = sizes(self._modules)
            logging.info("model | %s", line)
            if self._writes_events:
                writer.write_text(run.step, "model", line)
        if self._writes_events and self._hparams and (hparams := _hparams_plugin()):
            start, _ = hparams
            writer.write_summary(run.step, start.hparams_pb(dict(self._hparams)))

    def end(self, run: RunContext) -> None:
        """Writes that the run has ended, unless a signal ended it."""
        writes = run.is_chief and run.has_ended and self._writes_events and self._hparams
        if writes and (hparams := _hparams_plugin()):
            _, end = hparams
            pb = end.session_end_pb(end.api_pb2.STATUS_SUCCESS)
            EventWriter(run.model_dir).write_summary(run.step, pb)


def sizes(modules: Mapping[str, Any]) -> str:
    """Returns `network 1,234 parameters (1,200 trainable, 0.01 MB) | ...`, without optimizers."""
    found = []
    for name, module in modules.items():
        if isinstance(module, keras.optimizers.Optimizer):
            continue
        state = names.state_of({name: module})
        variables = [
            part
            for key, v in state.items()
            if hasattr(v, "shape") and not key.endswith("seed_generator_state")
            for part in names.parts_of(v)
        ]
        total = sum(math.prod(v.shape) for v in variables)
        trainable = sum(math.prod(v.shape) for v in variables if v.trainable)
        size = sum(math.prod(v.shape) * v.dtype.size for v in variables)
        found.append(f"{name} {total:,} parameters ({trainable:,} trainable, {size / 1e6:.2f} MB)")
    return " | ".join(found)


def _hparams_plugin() -> tuple[Any, Any] | None:
    """Returns TensorBoard's modules for the start and the end of a run; None without it."""
    try:
        from tensorboard.plugins.hparams import summary, summary_v2
    except ImportError:
        return None
    return summary_v2, summary
