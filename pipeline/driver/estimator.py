"""Estimator: a model_fn, its modules, and where they are trained.

Each method has `Runtimes` choose the modules and their values, for a file below.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.checkpoints import checkpoint
from pipeline.contract import arguments, averages
from pipeline.contract import params as params_lib
from pipeline.contract.hooks import Hook, Run, SavingListener
from pipeline.contract.run_config import RunConfig
from pipeline.driver import evaluating, exporting
from pipeline.driver.along import Evaluation
from pipeline.driver.recipe import Recipe
from pipeline.driver.runtime_pair import Runtimes
from pipeline.driver.trainer import Trainer
from pipeline.export.receivers import ServingFn
from pipeline.hooks import summary
from pipeline.loop import predictions
from pipeline.mistakes import checks, habits
from pipeline.mistakes.threads import one_at_a_time
from pipeline.model_dir import paths
from pipeline.process import run_log
from pipeline.strategy import parameter_server
from pipeline.strategy.peers import watches
from pipeline.warm_start.warm_start_settings import WarmStartSettings


class Estimator:
    """Trains, evaluates, predicts with and exports one model."""

    @habits.estimator
    def __init__(
        self,
        model_fn: Callable[..., Any],
        *,
        modules: Mapping[str, Callable[..., Any]] | None = None,
        config: RunConfig | None = None,
        params: Any = None,
        warm_start_from: str | WarmStartSettings | None = None,
        model_dir: str | None = None,
    ) -> None:
        """Checks the contract; builds nothing yet.

        Args:
          model_fn: any callable that keeps the contract, see `pipeline.contract.spec`.
          modules: factories of all state, by the name under which model_fn takes what
            they make. A factory gets `params` and `config` where it requires them.
          config: RunConfig; None for the default.
          params: hyperparameters, a dict or an object with attributes; each function
            that takes them gets a copy.
          warm_start_from: a checkpoint, a model_dir or `WarmStartSettings`, whose
            values are taken where model_dir has no checkpoint of its own.
          model_dir: folder of the run, in place of `RunConfig.model_dir`.

        Raises:
          TypeError: an argument is of another kind, or model_fn does not take it.
          ValueError: Keras' backend is not TensorFlow, or an evaluator lacks model_dir.
        """
        factories, params = arguments.contract(model_fn, modules, params)
        config = arguments.run_config(config, model_dir)
        if isinstance(start := warm_start_from, (str, os.PathLike)):
            start = WarmStartSettings(start)
        checks.check_kind("warm_start_from", start, WarmStartSettings, "'runs/1'")
        self.recipe = Recipe(model_fn, factories, config, params, start)
        self._runtimes = Runtimes(self.recipe)
        self._eval_writers = summary.Writers()
        self._evaluations: Sequence[Evaluation] = ()

    @property
    def config(self) -> RunConfig:
        """The RunConfig, with `model_dir` set."""
        return self.recipe.config

    @property
    def model_dir(self) -> str:
        """The folder of checkpoints, events and exports."""
        return self.config.model_dir

    @property
    def params(self) -> Any:
        """A copy of the hyperparameters that model_fn gets as `params`."""
        return params_lib.own(self.recipe.params)

    @property
    def global_step(self) -> int:
        """The global step of the live weights, or else of the latest checkpoint."""
        return self._runtimes.step(self.latest_checkpoint())

    @property
    def loaded_checkpoint(self) -> str | None:
        """Path prefix of the checkpoint whose values the modules hold, or None.

        While training it may still be being written, see `wait_until_saved`.
        """
        return self._runtimes.loaded

    @contextlib.contextmanager
    def along(self, evaluations: Sequence[Evaluation]) -> Iterator[None]:
        """Has `train`, which users may override, evaluate its checkpoints meanwhile."""
        self._evaluations = evaluations
        try:
            yield
        finally:
            self._evaluations = ()

    @habits.train
    @one_at_a_time
    @run_log.shows
    @watches
    def train(
        self,
        input_fn: Callable[..., Any],
        *,
        steps: int | None = None,
        max_steps: int | None = None,
        hooks: Sequence[Hook] = (),
        saving_listeners: Sequence[SavingListener] = (),
    ) -> "Estimator":
        """Trains from the newest checkpoint on, with the first example it has not seen.

        With parameter servers the chief trains; in a server's or a worker's process
        this call serves the chief, and returns when the chief has ended. Without
        `steps` and `max_steps` it trains to the end of the input.

        Args:
          input_fn: function that returns the data, see `pipeline.feed.feed`.
          steps: number of steps to take. The input begins anew where it ends before,
            if an earlier call has read a part of it.
          max_steps: global step to train to; nothing is done where it is reached.
          hooks: hooks that are called after the config's own.
          saving_listeners: listeners that are told of each checkpoint.

        Returns:
          This Estimator.

        Raises:
          ValueError: both steps and max_steps, one not positive, or an empty input.
          NanLossDuringTrainingError: the loss was NaN or Inf and `on_nan` is "stop".
          PeerLostError: another task of the cluster died.
          CheckpointMismatchError: the checkpoint in model_dir is of another model.
          UnreadableCheckpointError: no checkpoint in model_dir can be read.
          ClaimedError: another training goes on in model_dir.
          StorageError: model_dir cannot be written.
        """
        if self.config.cluster.serves:
            parameter_server.serve(self.config)
            return self
        arguments.training(self.config, steps, max_steps, saving_listeners)
        if self._runtimes.finished(self.latest_checkpoint(), max_steps):
            return self
        trainer = Trainer(
            self._runtimes.to_train(),
            input_fn,
            hooks=hooks,
            saving_listeners=saving_listeners,
            evaluations=self._evaluations,
        )
        trainer(steps=steps, max_steps=max_steps)
        return self

    @habits.evaluate
    @one_at_a_time
    @run_log.shows
    @watches
    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        *,
        hooks: Sequence[Hook] = (),
        checkpoint_path: str | None = None,
        name: str | None = None,
        weights: str | None = None,
        all_checkpoints: bool = False,
    ) -> Any:
        """Evaluates a checkpoint on every example of the input, once.

        Args:
          input_fn: function that returns the data, see `pipeline.feed.feed`.
          steps: most steps; None for all of the input.
          hooks: hooks whose `begin`, `after_loop` and `end` are called.
          checkpoint_path: path prefix of the checkpoint, "best" or "latest"; None for
            the newest, or for the live weights while training or saving nothing.
          name: name of this evaluation, where there are several; see `eval_dir`.
          weights: 'live', 'average' or 'both'; None for `RunConfig.average`'s choice.
          all_checkpoints: whether to evaluate each checkpoint in model_dir, by step.

        Returns:
          `loss`, the metrics by name, and `global_step`; of 'both' also `ema/loss`.
          With `all_checkpoints` a list of them.

        Raises:
          ValueError: an empty input, an endless one without `steps`, no checkpoint.
          UnreadableCheckpointError: `checkpoint_path` is damaged, or every checkpoint.
          StorageError: model_dir cannot be written.
        """
        arguments.evaluation(steps, name, hooks)
        if arguments.all_checkpoints(all_checkpoints, checkpoint_path):
            same = {"hooks": hooks, "name": name, "weights": weights}
            one = functools.partial(self.evaluate, input_fn, steps, **same)
            return evaluating.each_checkpoint(self.model_dir, one)
        run, report = evaluating.evaluate(
            self._runtimes,
            input_fn,
            steps=steps,
            hooks=hooks,
            checkpoint_path=checkpoint_path,
            weights=weights,
        )
        writer = self._eval_writers[self.eval_dir(name)]
        return evaluating.told(run, report, name, writer)

    def eval_metrics(self, input_fn: Callable[..., Any]) -> dict[str, Any]:
        """Returns loss and metrics of no example, by name; traces, needs no checkpoint.

        Args:
          input_fn: function that returns the data, see `pipeline.feed.feed`.
        """
        return evaluating.metrics(self._runtimes, input_fn)

    @habits.predict
    @one_at_a_time
    def predict(
        self,
        input_fn: Callable[..., Any],
        *,
        predict_keys: Sequence[str] | str | None = None,
        hooks: Sequence[Hook] = (),
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
        weights: str | None = None,
    ) -> Iterator[Any]:
        """Returns predictions in the input's order, computed as they are asked for.

        All are made with the weights of this call: where another call changes them
        meanwhile, a copy is kept for the predictions that are left.

        Args:
          input_fn: function that returns the data; labels are left aside.
          predict_keys: names of the predictions to yield; None for all.
          hooks: hooks whose `begin` and `end` are called.
          checkpoint_path: path prefix of the checkpoint; None as in `evaluate`.
          yield_single_examples: whether to yield example by example, else by batches.
          weights: 'live' or 'average'; None for `RunConfig.average`'s choice.

        Returns:
          A generator of nests of arrays, shaped as `EstimatorSpec.predictions`; an
          example's have no batch dimension.

        Raises:
          ValueError: no predictions of a name, or batch dimensions that differ.
          RuntimeError: several processes train in step, and the weights have changed.
        """
        checks.check_all("hooks", hooks, Hook)
        weights = averages.to_serve(weights, self.config.average)
        path = self._runtimes.found(checkpoint_path)
        step, feed, reader = self._runtimes.predictor(input_fn, path, weights)
        return predictions.watched(
            predictions.predict(reader, feed),
            run=Run(self.model_dir, step, None),
            hooks=hooks,
            keys=predict_keys,
            one_by_one=yield_single_examples,
        )

    @one_at_a_time
    @run_log.shows
    def export_saved_model(
        self,
        export_dir_base: str,
        serving_input_receiver_fn: ServingFn | None = None,
        *,
        input_fn: Callable[..., Any] | None = None,
        assets_extra: Mapping[str, str] | None = None,
        checkpoint_path: str | None = None,
        weights: str | None = None,
    ) -> str:
        """Writes a SavedModel, which can be served without this project.

        Args:
          export_dir_base: folder of the new directory, which is named by the time.
          serving_input_receiver_fn: result of `build_raw_serving_input_receiver_fn` or
            `build_parsing_serving_input_receiver_fn`, which says what clients send;
            None for what a module says as its attribute of this name, else for the raw
            features of `input_fn` in PREDICT, or of the input that was seen last.
          input_fn: function that returns the data; None for an input that was seen.
          assets_extra: files to copy, by their paths below `assets.extra`.
          checkpoint_path: path prefix of the checkpoint; None as in `evaluate`.
          weights: 'live' or 'average'; None for `RunConfig.average`'s choice.

        Returns:
          Path of the new directory.

        Raises:
          ValueError: there is no checkpoint, or nothing says what clients send.
        """
        return exporting.export(
            self._runtimes,
            serving_input_receiver_fn,
            paths.normal(export_dir_base),
            input_fn=input_fn,
            path=checkpoint_path,
            weights=averages.to_serve(weights, self.config.average),
            assets_extra=assets_extra,
        )

    def check_export(
        self,
        serving_input_receiver_fn: ServingFn | None = None,
        *,
        input_fn: Callable[..., Any] | None = None,
    ) -> None:
        """Traces what `export_saved_model` would write, and raises what it would raise.

        Args:
          serving_input_receiver_fn: as in `export_saved_model`, but `input_fn` is
            called in EVAL. No checkpoint is needed.
          input_fn: function that returns the data, see `pipeline.feed.feed`.
        """
        exporting.check(self._runtimes.exporting, serving_input_receiver_fn, input_fn)

    @one_at_a_time
    def export_weights(
        self,
        name: str,
        path: str,
        *,
        checkpoint_path: str | None = None,
        weights: str | None = None,
    ) -> str:
        """Writes the weights of one Keras model as `.weights.h5`.

        `model.load_weights(path)` reads them into a model of the same architecture.

        Args:
          name: name of the module.
          path: path of the new file; ends in `.weights.h5`.
          checkpoint_path: path prefix of the checkpoint; None as in `evaluate`.
          weights: as in `predict`.

        Returns:
          The path, normalized.

        Raises:
          ValueError: the module is no built Keras model, or there is no checkpoint.
        """
        return exporting.keras_weights(
            self._runtimes.exporting,
            name,
            paths.normal(path),
            load=lambda: self._runtimes.prepare_export(checkpoint_path),
            weights=averages.to_serve(weights, self.config.average),
        )

    @watches
    def wait_for_peers(self) -> None:
        """Waits until each process that trains in step with this one has called it."""
        self._runtimes.training.peers.wait()

    def wait_until_saved(self) -> None:
        """Waits until the files of `loaded_checkpoint` are on disk.

        Raises:
          StorageError: the checkpoint could not be written.
        """
        self._runtimes.wait_until_saved()

    def latest_checkpoint(self) -> str | None:
        """Returns the path prefix of the newest checkpoint in model_dir, or None."""
        return checkpoint.latest(self.model_dir)

    def get_variable_names(self) -> list[str]:
        """Returns variables' names in the newest checkpoint: `network/dense/kernel`.

        Raises:
          ValueError: there is no checkpoint.
        """
        return sorted(checkpoint.read_names(self._runtimes.newest()))

    def get_variable_value(self, name: str) -> np.ndarray:
        """Returns the value of one variable in the newest checkpoint.

        Raises:
          ValueError: there is no checkpoint.
          KeyError: it holds no such variable.
        """
        return checkpoint.read_value(self._runtimes.newest(), name)

    def eval_dir(self, name: str | None = None) -> str:
        """Returns the folder of an evaluation's events, `eval` or `eval_<name>`."""
        return os.path.join(self.model_dir, f"eval_{name}" if name else "eval")
