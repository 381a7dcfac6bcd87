# SPDX-License-Identifier: Apache-2.0
"""The training input, the traced model_fn, and the compiled loop over both."""

import functools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from absl import logging

from ..contract.hooks import Hook
from ..contract.run_config import RunConfig
from ..contract.spec import EstimatorSpec, ModeKeys
from ..contract.summaries import Summary
from ..data.source import Source
from ..errors import UserValueError
from ..train import runners
from ..train.compiled_loop import Steps
from ..train.fetches import named_fetches, summaries_of
from ..train.metrics import MetricSet
from ..train.step import TrainStep
from ..train.untrained_variables import log_untrained
from .bound_model import BoundModel
from .learning_rate_factors import ScalesRates, scale_rates
from .train_state import TrainState

_MAX_LOSSES = 1000  # Of a call that keeps the loss of each step.


class TrainProgram:
    """The input and the compiled loop of a training; all variables exist.

    Attributes:
      model: the model_fn.
      state: the variables.
      input_fn: the training input.
      params: hyperparameters.
      hooks: hooks of the user.
      runner: opens the input, and runs steps on the strategy.
      run_steps: the compiled loop.
      metrics: metrics of mode TRAIN.
      tensors: names of `EstimatorSpec.tensors`.
      summaries: `EstimatorSpec.summaries` that training reports, of the build trace.
      num_passes: number of passes over the data; None for one.
      max_steps_per_call: maximum number of steps of a call.
    """

    def __init__(
        self,
        model: BoundModel,
        input_fn: Callable[..., Any],
        *,
        hooks: Sequence[Hook] = (),
    ) -> None:
        """Calls input_fn and traces model_fn; the trace creates all variables.

        The arguments are passed on by the Estimator.

        Raises:
          UserValueError: a hook, an option and the strategy do not fit together.
        """
        state, params = model.state, model.params
        config = state.config
        self.model, self.state, self.input_fn, self.params = model, state, input_fn, params
        source = Source(input_fn, ModeKeys.TRAIN, config, params)
        self.runner = runners.create(source, state.replicas, config)
        self.num_passes = _num_passes(hooks)
        if (self.num_passes or math.inf) < math.inf and self.runner.endless:
            raise UserValueError(
                f"max_epochs is {self.num_passes}, and {source.name} returns endless data: "
                "expected data with an end. Drop its repeat(), or set max_steps."
            )
        self._num_losses = _losses_to_keep(hooks, config, state.replicas.num_processes)
        self.max_steps_per_call = self._num_losses or config.steps_per_loop
        strategy = state.replicas.strategy
        self.hooks = scale_rates(hooks, state.modules, state.rate_factors, strategy)
        self.metrics, self.tensors, self.summaries, self.run_steps = model.program(
            self._cache_key(), self._compile
        )

    def _cache_key(self) -> Hashable:
        """Returns all that the program depends on; hooks may scale learning rates."""
        scaling = tuple(hook for hook in self.hooks if isinstance(hook, ScalesRates))
        return ModeKeys.TRAIN, self.runner.kind, scaling, self._num_losses

    def _compile(
        self,
    ) -> tuple[MetricSet, Sequence[str], Mapping[str, Summary], Callable[..., Steps]]:
        """Traces model_fn; TensorFlow compiles the loop at its first call."""
        state, config = self.state, self.state.config
        spec = self.model.build(ModeKeys.TRAIN, self.runner.element_spec)
        metrics = MetricSet(spec.metrics)
        log_untrained(spec.train_op, state.modules)
        make_step = functools.partial(
            getattr(spec, "train_step", TrainStep),  # A model may have a step of its own.
            self.model.in_mode(ModeKeys.TRAIN),
            spec,
            state.modules,
            metrics,
            state.replicas,
            loss_scale=state.loss_scale,
            jit_compile=config.jit_compile,
            log_norms=config.log_norms,
            checks_gradients=_checks_gradients(config),
        )
        summaries = _summaries(spec, state)
        step = make_step()
        fetches = [
            named_fetches(names, spec, "EstimatorSpec.tensors")
            for names in (spec.tensors, [*spec.tensors, *summaries])
        ]
        detailed = [make_step(fetches=each) if each else step for each in fetches]
        loop = self.runner.loop(
            step,
            detailed,
            spec.train_op,
            state.modules,
            config,
            num_losses=self._num_losses,
            averages=state.averages,
        )
        return metrics, tuple(spec.tensors), summaries, loop


def _num_passes(hooks: Sequence[Hook]) -> float | None:
    epochs = [hook.num_epochs for hook in hooks if hook.num_epochs is not None]
    return min(epochs, default=None)


def _checks_gradients(config: RunConfig) -> bool:
    """Returns whether steps look for gradients that are not finite."""
    return config.on_nan in ("restore", "dump")


def _losses_to_keep(hooks: Sequence[Hook], config: RunConfig, num_processes: int) -> int:
    """Returns of how many steps a call keeps the losses; 0 if nothing needs them.

    Raises:
      UserValueError: a hook wants values of single steps on parameter servers.
    """
    for name in ("wants_tensors", "wants_losses"):
        if config.cluster.has_servers and any(getattr(hook, name) for hook in hooks):
            raise UserValueError(
                f"a hook has {name} on parameter servers, whose workers are at different "
                "steps: expected False. Evaluate with metrics instead, such as by "
                "EvalSpec(early_stopping=EarlyStopping('loss', 'max', threshold=100.0))."
            )
    # A call of several processes does not end at a loss of NaN: it is found afterwards.
    stays = config.on_nan == "warn" or num_processes > 1
    keeps = stays or _checks_gradients(config) or any(hook.wants_losses for hook in hooks)
    return min(config.steps_per_loop, _MAX_LOSSES) if keeps else 0


def _summaries(spec: EstimatorSpec, state: TrainState) -> Mapping[str, Summary]:
    """Returns the summaries that training reports, by name."""
    config = state.config
    if spec.summaries and config.cluster.has_servers:
        logging.warning(
            "EstimatorSpec.summaries are not shown in training on parameter servers, whose "
            "workers are at different steps. Evaluations show them."
        )
        return {}
    return summaries_of(spec, under_xla=config.jit_compile or state.replicas.shares_trace)
