"""An Estimator's runtimes: the one that trains, and the one that evaluates.

Calls of the Estimator come in any order: an evaluation during a training, a prediction
of an old checkpoint, a training after model_dir was deleted. `Runtimes` decides for
each which modules to use and which values count: the live ones, a checkpoint's, or
initial ones.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

from pipeline.checkpoints import checkpoint, checkpoint_path
from pipeline.checkpoints.holding import Snapshot
from pipeline.contract.averages import AVERAGE
from pipeline.contract.run_config import RunConfig
from pipeline.contract.spec import ModeKeys
from pipeline.driver.recipe import Recipe
from pipeline.driver.runtime import Runtime
from pipeline.feed.feed import AnyFeed
from pipeline.loop.predictions import OnOwnWeights
from pipeline.model_dir import paths
from pipeline.process.refusals import RefusedRuntimeError, RefusedValueError
from pipeline.strategy import strategies as strategy_lib
from pipeline.tracing import seeds


class Runtimes:
    """The runtime that trains and the one that evaluates, made when first used."""

    def __init__(self, recipe: Recipe) -> None:
        """Keeps the arguments of the Estimator; makes no runtime yet."""
        strategy_lib.look_for_devices()
        self._recipe = recipe
        self._config = recipe.config
        self._training: Runtime | None = None
        self._evaluating: Runtime | None = None

    @property
    def config(self) -> RunConfig:
        """The RunConfig of the recipe."""
        return self._config

    @property
    def training(self) -> Runtime:
        """The runtime on the strategy to train on."""
        if self._training is None:
            strategy = strategy_lib.create(self._config)
            self._training = Runtime(self._recipe, strategy)
        return self._training

    @property
    def evaluating(self) -> Runtime:
        """The runtime that trains, or another one on `eval_distribute`.

        The other one gets its values by checkpoints or by a copy. The chief of
        parameter servers has one too: it evaluates by itself, without the workers.
        """
        strategy = self._config.eval_distribute
        if strategy in (None, self._config.train_distribute):
            if not self._config.num_ps_replicas:
                return self.training
            strategy = tf.distribute.get_strategy()
        if self._evaluating is None:
            made = strategy_lib.resolved(strategy, self._config)
            config = self._config.replace(train_distribute=made, devices=None)
            recipe = dataclasses.replace(self._recipe, config=config)
            self._evaluating = Runtime(recipe, strategy_lib.create(config))
        # What it will load may still be being written.
        self.wait_until_saved()
        return self._evaluating

    @property
    def exporting(self) -> Runtime:
        """The runtime to export, whose variables lie on no parameter server."""
        return self.evaluating if self._config.num_ps_replicas else self.training

    def to_train(self) -> Runtime:
        """Returns the runtime that trains, made anew as in `to_use`."""
        return self._renewed(self.training, None, together=True)

    def to_use(self, path: str | None, *, together: bool) -> Runtime:
        """Returns the runtime that evaluates, made anew where initial values count.

        They count where model_dir has no checkpoint. The modules may hold others then:
        from a checkpoint elsewhere that was looked at, or a model_dir that was deleted.

        Args:
          path: path prefix of the checkpoint to use; None for where the run stands.
          together: whether all processes that train in step call this.
        """
        return self._renewed(self.evaluating, path, together=together)

    def found(self, path: str | None) -> str | None:
        """Returns a checkpoint that a caller asked for, see `checkpoint_path.found`.

        The live weights' checkpoint is found while its files are still being written.

        Args:
          path: path as the caller gave it; None for where the run stands.

        Raises:
          ValueError: there is no such checkpoint.
        """
        live = self._training.holding.path if self._training is not None else None
        if path and live and self._training.holding.is_live and paths.same(path, live):
            return live
        return checkpoint_path.found(path, self._config.model_dir)

    def prepare(
        self, runtime: Runtime, path: str | None, doing: str, *, together: bool
    ) -> None:
        """Sets a runtime's modules to the values that count.

        The first of these: the checkpoint that was asked for; the live values of a
        training under way, or of one that saved nothing; the newest checkpoint; initial
        values.

        Args:
          runtime: runtime of `to_use`, with the mode's program built.
          path: path prefix of the checkpoint that was asked for, or None.
          doing: word for the log, "evaluating".
          together: whether all processes that train in step call this.
        """
        for each in (runtime, self._training):
            if each is not None:
                each.settle()
        newest = None if path else checkpoint.latest(self._config.model_dir)
        if path is not None:
            runtime.load(path)
        elif self.is_live(newest):
            self._take_live(runtime, together=together)
        elif newest is not None:
            runtime.load_newest(newest, together=together)
        else:
            if runtime.holding.initial:
                values = "initial values"
                if self._recipe.warm_start_from is not None:
                    values = "what training would start warm from"
                text = "%s has no checkpoint: %s %s."
                logging.warning(text, self._config.model_dir, doing, values)
            runtime.start()

    def prepare_export(self, path: str | None) -> None:
        """Sets the runtime to export to the values that count, see `prepare`.

        Args:
          path: checkpoint as the caller asked for it, see `found`.

        Raises:
          ValueError: nothing was trained, or there is no such checkpoint.
        """
        path = self.found(path)
        if path is None:
            self.check_trained("")
        self.prepare(self.exporting, path, "exporting", together=False)

    def predictor(
        self, input_fn: Callable[..., Any], path: str | None, weights: str
    ) -> tuple[int, AnyFeed, OnOwnWeights]:
        """Returns the step, the input and the prediction step of a prediction.

        Args:
          input_fn: function that returns the data.
          path: path prefix of the checkpoint that was asked for, or None.
          weights: 'live' or 'average'.
        """
        runtime = self.to_use(path, together=False)
        feed = runtime.feed(input_fn, ModeKeys.PREDICT)
        runtime.program(ModeKeys.PREDICT, feed)
        self.prepare(runtime, path, "predicting", together=False)
        step = runtime.modules.step
        return step, feed, self._reader(runtime, feed, weights)

    def _reader(self, runtime: Runtime, feed: AnyFeed, weights: str) -> OnOwnWeights:
        """Returns a prediction step that keeps to the values that the modules hold now.

        Args:
          runtime: runtime that `prepare` was called for.
          feed: input that its program was built for.
          weights: 'live', or 'average' for the average of these values.

        Raises:
          RuntimeError: the average is wanted of several processes that train.
        """

        def elsewhere(kept: Snapshot) -> Callable[[Any], Any]:
            # Modules are made by all processes together, and only this one predicts.
            if not runtime.peers.alone:
                raise RefusedRuntimeError(
                    "a prediction was under way when its weights were about to change "
                    "by another call, and several processes cannot keep them for it: "
                    "take all of it first, results = list(estimator.predict(...))."
                )
            # Making modules draws random numbers: without this, the program's own would
            # depend on whether a prediction was left open.
            with seeds.undisturbed():
                other = runtime.anew(seeded=False)
                program = other.program(ModeKeys.PREDICT, feed)
            kept.put(other.modules)
            return program.compiled

        compiled = runtime.program(ModeKeys.PREDICT, feed).compiled
        step = OnOwnWeights(compiled, lambda: Snapshot(runtime.modules), elsewhere)
        if weights == AVERAGE and runtime.holding.is_live:
            if not runtime.peers.alone:
                raise RefusedRuntimeError(
                    "a prediction under the average, while several processes train, "
                    "needs modules of its own, which one process cannot make: write "
                    "predict(..., weights='live'), or predict when training has ended."
                )
            with runtime.weights(AVERAGE):
                step.keep()
            return step
        if weights == AVERAGE:
            runtime.take_average()
        runtime.holding.add_reader(step)
        return step

    def newest(self) -> str:
        """Returns the path prefix of the newest checkpoint in model_dir.

        Raises:
          ValueError: there is none.
        """
        path = checkpoint.latest(self._config.model_dir)
        if path is None:
            raise RefusedValueError(
                f"{self._config.model_dir} has no checkpoint: train first."
            )
        return path

    def check_trained(self, purpose: str, instead: str = "") -> None:
        """Checks that something was trained, in a checkpoint or not.

        Args:
          purpose: words for the error, " to export", or "".
          instead: words for what else the caller can do, ", or give checkpoint_path".

        Raises:
          ValueError: nothing was trained.
        """
        newest = checkpoint.latest(self._config.model_dir)
        if newest is None and not self.is_live(newest):
            raise RefusedValueError(
                f"{self._config.model_dir} has no checkpoint{purpose}: train first"
                f"{instead}."
            )

    def is_live(self, newest: str | None) -> bool:
        """Returns whether the run stands at values that were trained in this process.

        That is while training, and after one that saved nothing. The modules may hold
        other values meanwhile, see `Holding.bring_back`.

        Args:
          newest: path prefix of the newest checkpoint in model_dir, or None.
        """
        live = self._training
        return live is not None and (
            live.holding.is_live or live.holding.is_unsaved(newest)
        )

    def finished(self, latest: str | None, max_steps: int | None) -> bool:
        """Returns whether max_steps is reached already, and logs it.

        Args:
          latest: path prefix of the newest checkpoint, or None.
          max_steps: global step to train to, or None.
        """
        step = self.step(latest)
        if max_steps is None or step < max_steps:
            return False
        # Of a damaged checkpoint nothing is known: training goes on from one before it.
        if not self.is_live(latest) and not checkpoint.is_readable(latest):
            return False
        logging.warning(
            "train | step %d is at max_steps %d already: not training.", step, max_steps
        )
        if self._config.num_ps_replicas:
            # Workers and servers wait for a chief to connect, and end when it ends.
            strategy_lib.create(self._config)
        return True

    @property
    def features_spec(self) -> Any:
        """Spec of the features of an input that was seen, or None."""
        made = [r for r in (self._evaluating, self._training) if r is not None]
        specs = [r.features_spec for r in made if r.features_spec is not None]
        return specs[0] if specs else None

    @property
    def loaded(self) -> str | None:
        """Path prefix of the checkpoint that the trained modules equal, or None."""
        return self._training.holding.path if self._training is not None else None

    def wait_until_saved(self) -> None:
        """Waits until the checkpoint of the training runtime is on disk."""
        if self._training is not None:
            self._training.saver().wait()

    def step(self, latest: str | None) -> int:
        """Returns the global step at which the run stands.

        Args:
          latest: path prefix of the newest checkpoint, or None.
        """
        live = self._training
        if live is not None and live.holding.is_live:
            return live.modules.step
        if self.is_live(latest):
            return live.holding.unsaved_step
        return checkpoint.step_of(latest) if latest else 0

    def _take_live(self, runtime: Runtime, *, together: bool) -> None:
        """Sets a runtime to the live values, unless it is the one that holds them."""
        live = self._training
        if not live.holding.is_live:
            live.holding.bring_back()
        if together or live.peers.alone:
            # Adds up over all processes, so all have to be here. An export is made by
            # one alone, right after an evaluation in which all were.
            live.modules.synchronize()
        if runtime is live:
            return
        # Through the file, where they are in one: that costs no copy in memory.
        if live.holding.path is not None:
            runtime.load(live.holding.path)
        else:
            runtime.holding.take(Snapshot(live.modules))

    def _renewed(
        self, runtime: Runtime, path: str | None, *, together: bool
    ) -> Runtime:
        """Returns the runtime, or a new one where the values it holds do not count."""
        wanted = False
        if path is None and not runtime.holding.initial:
            newest = checkpoint.latest(self._config.model_dir)
            wanted = newest is None and not self.is_live(newest)
        # A deleted model_dir may be seen by some processes first: all begin anew, or
        # none.
        if not (runtime.peers.any(wanted) if together else wanted):
            return runtime
        logging.warning(
            "%s has no checkpoint, and the modules hold values from elsewhere: "
            "beginning anew.",
            self._config.model_dir,
        )
        made = runtime.anew()
        if runtime is self._training:
            self._training = made
        else:
            self._evaluating = made
        return made
