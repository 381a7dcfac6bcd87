"""An Estimator's runtimes: the one that trains, and the one that evaluates."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from pipeline import checkpoint
from pipeline import strategy as strategy_lib
from pipeline.run_config import RunConfig
from pipeline.runtime import Runtime


class Runtimes:
    """The runtime that trains and the one that evaluates, made when first used."""

    def __init__(
        self,
        model_fn: Callable[..., Any],
        factories: Mapping[str, Callable[..., Any]],
        config: RunConfig,
        params: Any,
    ) -> None:
        """The arguments are the Estimator's."""
        self._model_fn = model_fn
        self._factories = factories
        self._config = config
        self._params = params
        self._training: Runtime | None = None
        self._evaluating: Runtime | None = None

    @property
    def training(self) -> Runtime:
        """On the strategy to train on."""
        if self._training is None:
            self._training = self._made(self._config)
        return self._training

    @property
    def evaluating(self) -> Runtime:
        """The same, or another on `eval_distribute`, which reads checkpoints.

        So does the chief of parameter servers, by itself.
        """
        strategy = self._config.eval_distribute
        if strategy in (None, self._config.train_distribute):
            if not self._config.num_ps_replicas:
                return self.training
            strategy = tf.distribute.get_strategy()
        if self._evaluating is None:
            made = strategy_lib.resolved(strategy, self._config)
            config = self._config.replace(train_distribute=made, devices=None)
            self._evaluating = self._made(config)
        self.wait_until_saved()
        return self._evaluating

    @property
    def exporting(self) -> Runtime:
        """What a SavedModel can be made of: no parameter servers."""
        return self.evaluating if self._config.num_ps_replicas else self.training

    def finished(self, latest: str | None, max_steps: int | None) -> bool:
        """Whether there is nothing to train; says so.

        Args:
          latest: path prefix of the latest checkpoint, or None.
          max_steps: global step to train to, or None.
        """
        if latest is None or max_steps is None:
            return False
        step = checkpoint.step_of(latest)
        # Where it cannot be read, training says what it goes on from.
        if step < max_steps or not checkpoint.is_readable(latest):
            return False
        logging.warning(
            "train | step %d is at max_steps %d already: not training.", step, max_steps
        )
        if self._config.num_ps_replicas:
            # Tasks that wait for this chief go; they end when it does.
            strategy_lib.create(self._config)
        return True

    @property
    def features_spec(self) -> Any:
        """Spec of the features that were seen last, or None."""
        made = [r for r in (self._evaluating, self._training) if r is not None]
        specs = [r.features_spec for r in made if r.features_spec is not None]
        return specs[0] if specs else None

    @property
    def values_from(self) -> str | None:
        """Checkpoint whose values the trained modules hold, or None."""
        return self._training.values_from if self._training is not None else None

    def wait_until_saved(self) -> None:
        """Returns once what the training runtime saves is on disk."""
        if self._training is not None:
            self._training.saver().wait()

    def step(self, latest: str | None) -> int:
        """The trained modules' global step, or that of the latest checkpoint."""
        live = self._training
        if live is not None and (live.training or latest is None):
            return live.modules.step
        return checkpoint.step_of(latest) if latest else 0

    def _made(self, config: RunConfig) -> Runtime:
        strategy = strategy_lib.create(config)
        return Runtime(self._model_fn, self._factories, strategy, config, self._params)
