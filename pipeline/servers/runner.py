# SPDX-License-Identifier: Apache-2.0
"""Reads the training input and runs the steps on the workers of parameter servers."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from ..contract.run_config import RunConfig
from ..contract.train_op import TrainOp
from ..data.source import Source
from ..distribute.replicas import Replicas
from ..distribute.weight_averages import Averages
from ..train.compiled_loop import Loop, Steps
from ..train.runners import Runner
from ..train.step import Step
from ..train.weight_averages import averaged_calls
from .server_loop import PIECES_PER_WORKER, ServerLoop, cond_on_worker
from .worker_input import WorkerInput


class ServerRunner(Runner):
    """Reads the input and runs the steps on the workers."""

    def __init__(self, source: Source, replicas: Replicas, config: RunConfig) -> None:
        """Calls the input_fn for each worker."""
        self._strategy = replicas.strategy
        self._data = WorkerInput(source, self._strategy)
        local = self._data.local
        self.element_spec, self.endless = local.element_spec, local.endless
        self.kind: Hashable = id(self._data)  # The loop keeps the data: no other can share it.

    def loop(
        self,
        step: Step,
        detailed: Sequence[Step],
        ops: Sequence[TrainOp],
        modules: Mapping[str, Any],
        config: RunConfig,
        *,
        num_losses: int,
        averages: Averages | None,
    ) -> Callable[..., Steps]:
        """Returns the loop that schedules training steps on the workers; it keeps no losses."""
        loop = Loop(
            step,
            self._data.local,
            max_secs=config.max_loop_secs / PIECES_PER_WORKER,
            stop_at_nonfinite=config.on_nan != "warn",
            cond=cond_on_worker,
        )
        max_secs = config.max_loop_secs
        run = ServerLoop(loop, step, self._data, ops, modules, self._strategy, max_secs=max_secs)
        return run if averages is None else averaged_calls(run, averages)

    def open(
        self, step: int, checkpoint: str | None, record: Mapping[str, Any] | None
    ) -> WorkerInput:
        """Opens the workers' inputs where a checkpoint left them; see `Runner.open`."""
        return self._data.open(record)
