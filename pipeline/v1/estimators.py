# SPDX-License-Identifier: Apache-2.0
"""Estimators of TensorFlow 1 on the driver."""

import copy
import inspect
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from ..contract import signatures
from ..contract.hooks import Hook
from ..contract.spec import EstimatorSpec as DriverSpec
from ..contract.spec import ModeKeys
from ..data.batch import as_pair, num_rows
from ..data.source import InputContext, Source
from ..estimator import estimator as driver
from ..export import exporters as driver_exporters
from ..loop import exporter
from ..loop.bound_model import BoundModel
from ..loop.specs import EvalSpec as DriverEvalSpec
from ..loop.specs import TrainSpec as DriverTrainSpec
from ..train import doubled_batch
from . import checkpoints, inputs, serving
from . import hooks as hooks_lib
from .errors import refusal
from .run_config import EvalSpec, RunConfig, TrainSpec
from .specs import EstimatorSpec, TPUEstimatorSpec, converted
from .trace import Trace
from .updates import Updates
from .variables import Model


class Estimator(driver.Estimator):
    """`tf.estimator.Estimator`.

    Its model_fn is traced by the driver; variables are in the module `model`, slots in
    `optimizer`.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | None = None,
        config: Any = None,
        params: Any = None,
        warm_start_from: Any = None,
    ) -> None:
        config = RunConfig() if config is None else config
        self._program, self._given_params, self._given_warm = model_fn, params, warm_start_from
        self._train_hooks: list[Any] = []  # Those of the call of `train`.
        self._is_sum = False
        settings = checkpoints.settings(
            lambda: self.config, warm_start_from, lambda: self._own_state
        )
        super().__init__(
            self._new_model_fn(),
            model_dir or config.model_dir,
            config,
            None,
            modules={"model": self._new_model, "optimizer": Updates},
            warm_start_from=settings,
        )

    @property
    def params(self) -> Any:
        """A copy of the hyperparameters."""
        return signatures.own({} if self._given_params is None else self._given_params)

    @property
    def model_fn(self) -> Callable[..., Any]:
        """The model_fn of the program."""
        return self._program

    def _new_model(self) -> Model:
        """Returns the module with the variables."""
        return Model()

    def _model_params(self, mode: str, features: Any) -> Any:
        """Returns the `params` of a model_fn."""
        return self.params

    def _batch_size(self, mode: str) -> int | None:
        """Returns `params['batch_size']` of an input_fn; None for none."""
        return None

    def _new_model_fn(self, *, calls_hooks: bool = True) -> Callable[..., DriverSpec]:
        """Returns the model_fn of the driver; another one if it depends on other settings."""
        hooks, is_sum = list(self._train_hooks) if calls_hooks else None, self._is_sum

        def model_fn(
            features: Any,
            labels: Any,
            mode: str,
            step: Any,
            config: Any,
            model: Any,
            optimizer: Any,
        ) -> DriverSpec:
            trace = Trace(model, optimizer, mode, step, _seed(config))
            with trace.running():
                spec = self._call(features, labels, mode, config)
                result = converted(spec, trace, hooks, is_sum=is_sum)
            if model.trace is None:
                model.trace = trace  # Of EVAL or PREDICT: for init_from_checkpoint.
            return result

        model_fn.__name__ = signatures.name_of(self._program)
        return model_fn

    def _call(self, features: Any, labels: Any, mode: str, config: Any) -> Any:
        """Calls the program's model_fn with the arguments that it takes."""
        params = self._model_params(mode, features)
        given = {"labels": labels, "mode": mode, "params": params, "config": config}
        parameters = inspect.signature(self._program).parameters
        if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            given = {name: value for name, value in given.items() if name in parameters}
        return self._program(features, **given)

    def _input(self, input_fn: Any, mode: str) -> Any:
        # Before the driver looks for its own.
        checkpoints.taken_over(self.model_dir, is_chief=self.config.is_chief)
        return inputs.adapted(input_fn, self.params, self._batch_size(mode))

    def train(
        self,
        input_fn: Any,
        hooks: Any = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Any = None,
    ) -> "Estimator":
        """Trains; see `tf.estimator.Estimator.train`."""
        adapted = self._input(input_fn, ModeKeys.TRAIN)
        own, listeners = self._prepared(hooks, saving_listeners)
        self._tell_sum(adapted, ModeKeys.TRAIN)
        self.state.modules["model"].is_fresh = True
        super().train(adapted, own, _whole(steps), _whole(max_steps), listeners)
        return self

    def _prepared(self, hooks: Any, listeners: Any) -> tuple[list[Hook], list[Any]]:
        """Returns hooks and listeners of the driver for those of the program, which it keeps."""
        given = list(hooks or ())
        if any(isinstance(each, hooks_lib.ProgramHooks) for each in given):  # By the driver.
            return given, list(listeners or ())
        savers = [each for each in given if isinstance(each, hooks_lib.CheckpointSaverHook)]
        self._save_as(savers)
        own = [each for each in given if isinstance(each, Hook)]
        others = [each for each in given if not isinstance(each, Hook)]
        if others != self._train_hooks:
            self._train_hooks = others
            self._change_model_fn()
        of_savers = [listener for saver in savers for listener in saver.listeners]
        program = hooks_lib.ProgramHooks(others, lambda: self.state.modules["model"])
        return [*own, program], hooks_lib.listeners_of([*of_savers, *(listeners or ())])

    def _change_model_fn(self) -> None:
        """Traces model_fn again, with other hooks or as a sum."""
        self._model_fn = self._new_model_fn()
        if self._trained is not None:
            self._trained = BoundModel(self._model_fn, self._trained.state, self._trained.params)

    def _tell_sum(self, input_fn: Any, mode: str) -> None:
        """Finds out whether the loss is a sum over the batch, where that makes a difference.

        A sum with a large regularization does not double, and counts as a mean.
        """
        config, is_first = self.config, self._trained is None
        if not is_first or config.cluster.has_servers or self.state.replicas.total == 1:
            return
        source = Source(input_fn, mode, config, self._params)
        batch = as_pair(next(iter(source.dataset(InputContext()).take(1))))
        other = copy.copy(self)
        other._model_fn = self._new_model_fn(calls_hooks=False)
        model = other.on_one_device()
        model.build(mode, tf.nest.map_structure(tf.type_spec_from_value, batch))
        losses = doubled_batch.losses_of(model.in_mode(mode), batch)
        if losses is None:
            logging.warning(
                "train | model_fn fails on twice the batch: its loss counts as a mean over the "
                "batch, also if it is a sum"
            )
        is_sum = losses is not None and doubled_batch.is_sum(losses)
        self._is_sum = self.state.replicas.any(is_sum)
        if self._is_sum:
            logging.info("train | the loss is a sum over the batch: replicas are added up")
            self._change_model_fn()

    def _save_as(self, savers: Iterable[hooks_lib.CheckpointSaverHook]) -> None:
        """Saves at the intervals of a CheckpointSaverHook, as tf.estimator does."""
        for saver in savers:
            if all(getattr(self.config, n) == value for n, value in saver.interval.items()):
                continue
            if self._trained is not None:
                raise refusal(
                    f"CheckpointSaverHook has {saver.interval}, and the Estimator has trained: "
                    "expected the interval of its RunConfig. Set it in RunConfig."
                )
            self.config = self.config.replace(**saver.interval)

    def evaluate(
        self,
        input_fn: Any,
        steps: int | None = None,
        hooks: Any = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Evaluates; see `tf.estimator.Estimator.evaluate`. `loss` is the mean over batches."""
        own = self._hooks_of(hooks, ModeKeys.EVAL)
        adapted = self._input(input_fn, ModeKeys.EVAL)
        self._tell_sum(adapted, ModeKeys.EVAL)
        return super().evaluate(adapted, steps, own, checkpoint_path, name)

    def predict(
        self,
        input_fn: Any,
        predict_keys: Any = None,
        hooks: Any = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Predicts; see `tf.estimator.Estimator.predict`."""
        own = self._hooks_of(hooks, ModeKeys.PREDICT)
        adapted = self._input(input_fn, ModeKeys.PREDICT)
        yield from super().predict(
            adapted, predict_keys, own, checkpoint_path, yield_single_examples
        )

    def _hooks_of(self, hooks: Any, mode: str) -> list[Hook]:
        """Returns hooks of the driver for those of an evaluation or a prediction."""
        given = [each for each in hooks or () if not isinstance(each, hooks_lib.NoHook)]
        own = [each for each in given if isinstance(each, Hook)]
        others = [each for each in given if not isinstance(each, Hook)]

        def made() -> list[Any]:
            return self._own_state.modules["model"].hooks.get(mode, [])

        return [*own, hooks_lib.EvaluationHooks(others, made)]

    def export_saved_model(
        self,
        export_dir_base: str,
        serving_input_receiver_fn: Any = None,
        assets_extra: Any = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        **options: Any,
    ) -> bytes:
        """Writes a SavedModel; see `tf.estimator.Estimator.export_saved_model`."""
        options.pop("experimental_mode", None)
        path = super().export_saved_model(
            export_dir_base,
            serving.receiver_fn(serving_input_receiver_fn),
            checkpoint_path=checkpoint_path,
            assets_extra=assets_extra,
            **options,
        )
        return path.encode()

    def export_savedmodel(self, *args: Any, **kwargs: Any) -> bytes:
        """Writes a SavedModel: the older name."""
        kwargs.pop("strip_default_attrs", None)
        return self.export_saved_model(*args, **kwargs)

    def get_variable_names(self) -> list[str]:
        """Returns the names of TensorFlow 1 of the variables in the newest checkpoint."""
        return [checkpoints.plain(name) for name in super().get_variable_names()]

    def get_variable_value(self, name: str) -> Any:
        """Returns the value of a variable in the newest checkpoint."""
        return checkpoints.Values(self._find()).value(name.removesuffix(":0"))

    def train_and_evaluate(self, train_spec: TrainSpec, eval_spec: EvalSpec) -> Any:
        """Trains and evaluates; see `tf.estimator.train_and_evaluate`."""
        adapted = self._input(train_spec.input_fn, ModeKeys.TRAIN)
        own, listeners = self._prepared(train_spec.hooks, train_spec.saving_listeners)
        exporters = () if eval_spec.exporters is None else eval_spec.exporters
        evaluated = DriverEvalSpec(
            self._input(eval_spec.input_fn, ModeKeys.EVAL),
            eval_spec.steps,
            eval_spec.name,
            self._hooks_of(eval_spec.hooks, ModeKeys.EVAL),
            exporters,
            eval_spec.start_delay_secs,
            eval_spec.throttle_secs,
        )
        trained = DriverTrainSpec(adapted, _whole(train_spec.max_steps), own, listeners)
        return driver.train_and_evaluate(self, trained, evaluated)


def _whole(steps: float | None) -> int | None:
    """Returns a number of steps as programs divide it: 2343.75 ends after step 2344."""
    return None if steps is None else math.ceil(steps)


def _seed(config: Any) -> int:
    """Returns the seed of a run: without `tf_random_seed` another one for each model_dir."""
    seed = config.tf_random_seed
    return zlib.crc32(config.model_dir.encode()) if seed is None else seed


def train_and_evaluate(estimator: Any, train_spec: TrainSpec, eval_spec: EvalSpec) -> Any:
    """Trains and evaluates; see `tf.estimator.train_and_evaluate`."""
    return estimator.train_and_evaluate(train_spec, eval_spec)


def add_metrics(estimator: Estimator, metric_fn: Callable[..., Mapping[str, Any]]) -> Estimator:
    """Replaces `tf.estimator.add_metrics`: metrics of features, labels, predictions and config."""

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> EstimatorSpec:
        spec = estimator._call(features, labels, mode, config)
        if isinstance(spec, TPUEstimatorSpec):
            spec = spec.as_estimator_spec()
        if mode != ModeKeys.EVAL:
            return spec
        given = {"features": features, "labels": labels, "config": config}
        given["predictions"] = spec.predictions
        wanted = inspect.signature(metric_fn).parameters
        own = metric_fn(**{name: value for name, value in given.items() if name in wanted})
        return spec._replace(eval_metric_ops={**(spec.eval_metric_ops or {}), **own})

    settings = estimator._given_params, estimator._given_warm
    return Estimator(model_fn, estimator.model_dir, estimator.config, *settings)


class Exporter(exporter.Exporter):
    """`tf.estimator.Exporter`: a program's subclass has `name` and `export`."""

    def __init__(self) -> None:  # Without the driver's checks: `name` may be a property.
        pass


class LatestExporter(driver_exporters.LatestExporter):
    """`tf.estimator.LatestExporter`."""

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Any,
        assets_extra: Any = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        receiver_fn = serving.receiver_fn(serving_input_receiver_fn)
        super().__init__(
            name, receiver_fn, assets_extra=assets_extra, exports_to_keep=exports_to_keep
        )


class FinalExporter(driver_exporters.FinalExporter):
    """`tf.estimator.FinalExporter`."""

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Any,
        assets_extra: Any = None,
        as_text: bool = False,
    ) -> None:
        receiver_fn = serving.receiver_fn(serving_input_receiver_fn)
        super().__init__(name, receiver_fn, assets_extra=assets_extra, exports_to_keep=None)


class BestExporter(driver_exporters.BestExporter):
    """`tf.estimator.BestExporter`; its best evaluation is in `best.json`, not in event files."""

    def __init__(
        self,
        name: str = "best_exporter",
        serving_input_receiver_fn: Any = None,
        event_file_pattern: str | None = "eval/*.tfevents.*",
        compare_fn: Callable[[Mapping[str, Any], Mapping[str, Any]], bool] | None = None,
        assets_extra: Any = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        receiver_fn = serving.receiver_fn(serving_input_receiver_fn)
        super().__init__(
            name,
            receiver_fn,
            compare_fn=compare_fn and _with_keywords(compare_fn),
            assets_extra=assets_extra,
            exports_to_keep=exports_to_keep,
        )


def _with_keywords(compare_fn: Callable[..., bool]) -> Callable[[Any, Any], bool]:
    return lambda best, current: compare_fn(best_eval_result=best, current_eval_result=current)


class TPUEstimator(Estimator):
    """`tf.estimator.tpu.TPUEstimator` on CPUs and GPUs: `params['batch_size']` is set."""

    def __init__(
        self,
        model_fn: Any = None,
        model_dir: str | None = None,
        config: Any = None,
        params: Any = None,
        use_tpu: bool = True,
        train_batch_size: int | None = None,
        eval_batch_size: int | None = None,
        predict_batch_size: int | None = None,
        batch_axis: Any = None,
        eval_on_tpu: bool = True,
        export_to_tpu: bool = True,
        export_to_cpu: bool = True,
        warm_start_from: Any = None,
        **_: Any,
    ) -> None:
        if params is not None and "batch_size" in params:
            raise ValueError("batch_size are reserved keys but existed in params.")
        self._sizes = {
            ModeKeys.TRAIN: train_batch_size,
            ModeKeys.EVAL: eval_batch_size or train_batch_size,
            ModeKeys.PREDICT: predict_batch_size or train_batch_size,
        }
        super().__init__(model_fn, model_dir, config, params, warm_start_from)

    def _batch_size(self, mode: str) -> int | None:
        return self._sizes[mode]

    def _call(self, features: Any, labels: Any, mode: str, config: Any) -> Any:
        """Gives a replica's part of a batch the static shape that programs for TPUs need."""
        context = tf.distribute.get_replica_context()
        replicas, size = context.num_replicas_in_sync if context else 1, self._sizes[mode]
        is_known = size is None or size % replicas or isinstance(num_rows(features), int)
        if mode == ModeKeys.TRAIN and not is_known:

            def with_rows(x: Any) -> Any:
                is_dense = isinstance(x, tf.Tensor)
                return tf.ensure_shape(x, [size // replicas, *x.shape[1:]]) if is_dense else x

            features, labels = tf.nest.map_structure(with_rows, (features, labels))
        return super()._call(features, labels, mode, config)

    def _model_params(self, mode: str, features: Any) -> Any:
        """Returns the `params` of a model_fn, with the batch size of one replica."""
        params, size, rows = self.params, self._sizes[mode], num_rows(features)
        if size is None:
            return params
        context = tf.distribute.get_replica_context()
        replicas = context.num_replicas_in_sync if context else 1
        params = dict(params) if isinstance(params, Mapping) else params
        params["batch_size"] = rows if isinstance(rows, int) else size // replicas
        return params
