# SPDX-License-Identifier: Apache-2.0
"""Keras models that override `train_step`, `test_step` or `compute_loss`, unchanged.

    share of a replica = its examples / examples of the step
    on each replica: the model's train_step
        an optimizer applies the sum over replicas of share * gradient, and clips that
        a Mean counts a scalar by the share; the state of metrics begins at zero
    return the increments of the metrics, and other results by share

So N replicas train as one wherever the loss is a mean over examples. Nothing of the class is
changed: the metrics and optimizers of one model get methods that act while TensorFlow traces.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from .. import private
from ..contract.batch_functions import random_numbers
from ..contract.checks import repr_short
from ..contract.run_config import RunConfig
from ..contract.spec import EstimatorSpec, Metric, ModeKeys
from ..contract.train_op import TrainOp
from ..data.batch import Batch, num_rows
from ..distribute import names
from ..distribute.replicas import Replicas
from ..errors import SpecError
from ..train import indexed_slices, losses
from ..train.fetches import Fetches
from ..train.forward_steps import EvalStep
from ..train.metrics import MetricSet, is_sum_over_batches
from ..train.step import Batches, BoundModelFn, compiled, learning_rate_of, used_optimizers
from ..train.totals import Totals, sum_of, totals_of, zeros_of

_SUMS = ("sum", "none", None)  # Reductions with the gradient of a sum.
_METHODS = ("train_step", "test_step", "compute_loss", "compute_metrics")


def own_methods(model: keras.Model) -> list[str]:
    """Returns the methods of a step that a model overrides."""
    found = {name: getattr(model, name, None) for name in _METHODS}
    return [
        name
        for name, method in found.items()
        if not str(getattr(method, "__module__", "keras.")).startswith("keras.")
    ]


def reason_for_own_step(model: keras.Model) -> str | None:
    """Returns why a compiled model is trained by its own step or by Keras' own.

    None if its loss and metrics are known by example, which is exact in more cases.
    """
    if found := own_methods(model):
        return f"{type(model).__name__}.{found[0]} is overridden"
    for loss in _losses_of(model):
        if loss.reduction in _SUMS:
            return f"the loss {loss.name!r} has reduction={loss.reduction!r}"
        if type(loss).__call__ is not keras.losses.Loss.__call__:
            return f"the loss {loss.name!r} has its own __call__"
    if found := private.metrics_of_call(model):
        return f"metric {found[0].name!r} is one of a layer or of the model, and not of compile"
    return None


def _losses_of(model: keras.Model) -> list[keras.losses.Loss]:
    given = tf.nest.flatten(private.compile_arguments(model).get("loss"))
    return [each for each in given if isinstance(each, keras.losses.Loss)]


def _summed_losses(model: keras.Model) -> list[keras.losses.Loss]:
    """Returns the losses of `compile` that are summed.

    An own `train_step` takes the mean of those without a reduction itself, or the warning of
    joined examples finds that it does not.
    """
    sums = ("sum",) if "train_step" in own_methods(model) else _SUMS
    return [each for each in _losses_of(model) if each.reduction in sums]


def optimizers_of(model: keras.Model) -> dict[str, keras.optimizers.Optimizer]:
    """Returns the optimizers in the attributes of a model and its layers, each once."""
    found: dict[str, Any] = {}
    for prefix, layer in names.layers_of(model):
        for name, value in vars(layer).items():
            if name.startswith("_self_"):  # Of TensorFlow.
                continue
            keys = value if isinstance(value, Mapping) else None
            if isinstance(value, list | tuple):
                keys = range(len(value))
            named = {name: value} if keys is None else {f"{name}_{k}": value[k] for k in keys}
            for key, each in named.items():
                is_new = not any(each is other for other in found.values())
                if isinstance(each, keras.optimizers.Optimizer) and is_new:
                    found[f"{prefix}{key}".strip("_").replace("/", "_")] = each
    return found


def check_own_steps(reason: str, config: RunConfig) -> None:
    """Refuses options of a RunConfig that a model's own step cannot have.

    Args:
      reason: a result of `reason_for_own_step`.
      config: how to run.

    Raises:
      SpecError: an option cannot be kept.
    """
    remedy = "or write the step as a model_fn, and call train_and_evaluate"
    if config.cluster.has_servers:
        raise SpecError(
            f"{reason}, on parameter servers, whose workers update one after the other: expected "
            f"workers that train in lockstep. Set execution='multi_worker', {remedy}, as "
            "docs/keras.md shows."
        )
    refused = {
        "gradient_accumulation_steps": config.gradient_accumulation_steps > 1,
        "precision": config.precision == "mixed_float16",
        "log_norms": config.log_norms,
        "on_nan": config.on_nan in ("restore", "dump"),
    }
    for option, is_set in refused.items():
        if is_set:
            raise SpecError(
                f"RunConfig.{option} is {getattr(config, option)!r}, and {reason}: expected the "
                f"default. Leave {option} out, {remedy}."
            )


class OwnStepSpec(EstimatorSpec):
    """The result of a model's own step, which has updated the variables already."""

    @property
    def train_step(self) -> type:
        """The class of the training step."""
        return OwnTrainStep

    @property
    def eval_step(self) -> type:
        """The class of the step of an evaluation."""
        return OwnEvalStep


def own_step_spec(mode: str, model: keras.Model, data: Any) -> OwnStepSpec:
    """Calls `train_step` or `test_step`; outside of a running step it only builds the model.

    Args:
      mode: TRAIN or EVAL.
      model: a compiled model.
      data: what Keras passes to the step.

    Returns:
      The increments of the loss and of each metric.

    Raises:
      SpecError: the step returns no dict, or uses a metric or optimizer that cannot be summed.
    """
    _prepare(model)
    step = model.train_step if mode == ModeKeys.TRAIN else model.test_step
    step = getattr(step, "python_function", step)  # Of a tf.function, which is traced anyway.
    trace = _current.trace or _Trace()
    with trace.active(), tf.variable_creator_scope(assignable):
        returned = step(data)
    if _current.trace is None and mode == ModeKeys.TRAIN:
        _warn_of_joined_gradients(model, step, data)
    if not isinstance(returned, Mapping) or not returned:
        raise SpecError(
            f"{type(model).__name__}.{getattr(step, '__name__', 'train_step')} returned "
            f"{repr_short(returned)}: expected a dict. Write return {{'loss': loss}}."
        )
    return trace.spec(mode, _flat(returned), num_rows(data))


def call(model: keras.Model, features: Any) -> Any:
    """Returns the outputs of a model in inference; metrics that it updates have no effect."""
    _prepare(model)
    with _Trace().active():
        return model(features, training=False)


def _prepare(model: keras.Model) -> None:
    """Gives the metrics, losses and optimizers of a model methods that act in a trace."""
    containers = private.compile_containers(model)
    for metric in model.metrics:
        if not any(metric is each for each in containers):
            _watch(metric)
    for container in containers:
        _watch_parts(container)
    for optimizer in optimizers_of(model).values():
        _sum_gradients(optimizer)
    for loss in _summed_losses(model):
        if not isinstance(vars(loss).get("call"), functools.partial):
            loss.call = functools.partial(_summed_loss, loss, loss.call)


def build(model: keras.Model, data: Any) -> None:
    """Creates the variables of a model and of its optimizers, without a step.

    Args:
      model: a compiled model outside of any strategy.
      data: a batch, as Keras passes it to the step.
    """

    def trace(*leaves: Any) -> tf.Tensor:
        nest = tf.nest.pack_sequence_as(data, leaves)
        ops.extend(own_step_spec(ModeKeys.TRAIN, model, nest).train_op)
        return tf.zeros([])

    ops: list[TrainOp] = []
    tf.function(trace, autograph=False).get_concrete_function(*tf.nest.flatten(data))
    for op in ops:
        if not op.optimizer.built:
            op.optimizer.build(list(op.variables))


def _warn_of_joined_gradients(model: keras.Model, step: Callable[[Any], Any], data: Any) -> None:
    """Warns, on several replicas, if the gradient of a batch is not the mean of its halves'.

    The step is called on eight random examples without an effect. A step that draws random
    numbers cannot be judged: it changes a seed, or its gradient when the examples change places.
    """
    number = model.distribute_strategy.num_replicas_in_sync
    layers = [layer for _, layer in names.layers_of(model)]
    if number == 1 or _summed_losses(model):
        return
    masks = [
        each.name
        for each in layers
        if isinstance(each, keras.layers.Masking) or getattr(each, "mask_zero", False)
    ]
    if masks:
        logging.warning(
            "%s.train_step has layers that mask positions, %s: a mean over positions counts each "
            "of the %d replicas by its examples, so that weights depend on them where lengths "
            "differ. Take the mean of each example first, or train on one device.",
            type(model).__name__,
            masks,
            number,
        )
    random = np.random.default_rng(0)
    weights = {id(v) for v in model.weights}
    seeds = [v for v in model.variables if id(v) not in weights]

    def gradient_of(places: Sequence[int]) -> np.ndarray:
        trace = _Trace()
        with trace.active(), without_effect(model) as scope:
            step(tf.nest.map_structure(lambda each: tf.gather(each, places), batch))
        if any(scope.get_current_value(v) is not None for v in seeds):
            raise SpecError("The step draws random numbers.")
        found = [tf.convert_to_tensor(each) for each in trace.gradients if each is not None]
        return np.concatenate([np.ravel(each) for each in found])

    # Exact on replicas, but not in halves, which have no replicas.
    exact = [each for each in layers if getattr(each, "synchronized", False)]
    with contextlib.suppress(Exception), _in_inference(exact):  # It may need other examples.
        batch = tf.nest.map_structure(
            lambda each: random_numbers(random, each.shape[1:], each.dtype), data
        )
        whole, turned, first, second = (
            outside(gradient_of, list(places))
            for places in (range(8), range(7, -1, -1), range(4), range(4, 8))
        )
        close = 1e-3 * np.abs(whole).max()
        if np.allclose(whole, turned, 0, close) and not np.allclose(
            whole, (first + second) / 2, 0, 10 * close
        ):
            logging.warning(
                "%s.train_step joins the examples of a batch, by a sum, batch statistics or pairs "
                "of examples: its gradient of 8 examples is not the mean of both halves' "
                "gradients, and depends on the %d replicas. Take means over examples, "
                "BatchNormalization(synchronized=True), or train on one device.",
                type(model).__name__,
                number,
            )


@contextlib.contextmanager
def without_effect(model: keras.Model) -> Iterator[keras.StatelessScope]:
    """Keeps the values of a model's variables in the block, which runs in eager mode."""
    plain = names.plain_variables(model)  # Keras' scope knows its own alone.
    values = [variable.numpy() for variable in plain]
    try:
        with keras.StatelessScope() as scope:
            yield scope
    finally:
        for variable, value in zip(plain, values, strict=True):
            variable.assign(value)


@contextlib.contextmanager
def _in_inference(layers: Sequence[keras.Layer]) -> Iterator[None]:
    """Freezes trainable layers in the block, so that they take their moving statistics."""
    trained = [each for each in layers if each.trainable]
    try:
        for each in trained:
            each.trainable = False
        yield
    finally:
        for each in trained:
            each.trainable = True


def assignable(next_creator: Callable[..., Any], **options: Any) -> Any:
    """Creates weights that a step may assign on replicas, as a moving average of weights."""
    none = (None, tf.VariableAggregation.NONE)
    is_weight = options.get("trainable") and options.get("aggregation") in none
    if is_weight and tf.as_dtype(options.get("dtype") or tf.float32).is_floating:
        options["aggregation"] = tf.VariableAggregation.MEAN
    return next_creator(**options)


class _OwnStep:
    """One step on all replicas by a method of the model."""

    _model_fn: BoundModelFn
    _metrics: MetricSet
    _replicas: Replicas
    _fetches: Fetches | None = None
    _jit_compile: bool

    def _run(self, batches: Batches, step: tf.Tensor) -> Totals:
        [batch] = batches
        run = compiled(functools.partial(self._on_replica, step), self._jit_compile)
        if self._replicas.total == 1:
            return sum_of(self._replicas.run(run, batch), batches, self._fetches)
        rows = [tf.cast(num_rows(each.features), tf.float32) for each in batch]
        counts = [losses.counted(n, each) for n, each in zip(rows, batch, strict=True)]
        total = self._replicas.sum_over_processes(tf.add_n(counts))
        shares = [tf.math.divide_no_nan(count, total) for count in counts]
        inputs = list(zip(batch, shares, strict=True))
        results = self._replicas.run(lambda each: run(each[0], share=each[1]), inputs)
        return sum_of(results, batches, self._fetches)

    def _on_replica(
        self, step: tf.Tensor, batch: Batch, *, share: tf.Tensor | None = None
    ) -> Totals:
        with _Trace(self._replicas, share).active(), losses.per_replica_means():
            spec = self._model_fn(batch.features, batch.labels, step)
        total = losses.total_loss(spec, batch)
        return totals_of(spec, batch, total, self._metrics, self._fetches)


class OwnTrainStep(_OwnStep):
    """One training step by `train_step`."""

    def __init__(
        self,
        model_fn: BoundModelFn,
        spec: EstimatorSpec,
        modules: Mapping[str, Any],
        metrics: MetricSet,
        replicas: Replicas,
        *,
        jit_compile: bool = False,
        **_: Any,
    ) -> None:
        """Takes the arguments of TrainStep; `check_own_steps` refuses the other options."""
        self._model_fn, self._metrics, self._replicas = model_fn, metrics, replicas
        self._jit_compile = jit_compile
        if jit_compile and replicas.total > 1:
            raise SpecError(
                f"RunConfig.jit_compile is True for a train_step on {replicas.total} replicas: "
                "expected False, since XLA cannot compile the sums over replicas."
            )
        self._optimizers = used_optimizers(modules, spec)
        self._scalars = [*spec.scalars, *self._optimizers]

    def zeros(self) -> Totals:
        """Returns the totals of no step."""
        return zeros_of(self._metrics, self._scalars, None)

    def __call__(self, batches: Batches, step: tf.Tensor) -> Totals:
        """Runs the step after global step `step`, in cross-replica context."""
        rates = {name: learning_rate_of(each) for name, each in self._optimizers.items()}
        with tf.control_dependencies(list(rates.values())):
            return self._run(batches, step).with_scalars(rates)


class OwnEvalStep(_OwnStep, EvalStep):
    """One step of an evaluation by `test_step`."""

    def __call__(self, batches: Batches, step: tf.Tensor) -> Totals:
        """Returns the totals of one step's batches."""
        return self._run(batches, tf.identity(self._global_step))


class _Current(threading.local):
    """The trace of this thread: each replica is traced in its own."""

    trace: "_Trace | None" = None


_current = _Current()


class _Trace:
    """One call of a step on one replica while TensorFlow traces it.

    Without `replicas` it builds the model: optimizers apply nothing. `share` is None on one
    replica.
    """

    def __init__(self, replicas: Replicas | None = None, share: tf.Tensor | None = None) -> None:
        self._replicas, self.share = replicas, share
        self._metrics: dict[int, tuple[keras.metrics.Metric, list[tf.Tensor]]] = {}
        self._results: dict[int, tuple[tf.Tensor, keras.metrics.Metric, Any]] = {}
        self._applied: dict[int, tuple[Any, dict[int, Any]]] = {}
        self._summed: list[tf.Tensor] = []
        self.gradients: list[Any] = []  # Of a trace that builds.

    @contextlib.contextmanager
    def active(self, *, is_active: bool = True) -> Iterator[None]:
        """Makes this the trace of the thread in the block, or none."""
        before, _current.trace = _current.trace, self if is_active else None
        try:
            yield
        finally:
            _current.trace = before

    def apply(self, optimizer: Any, apply: Callable[..., Any], grads: Any, variables: Any) -> None:
        """Applies the sum over replicas of share * gradient."""
        grads = list(grads)
        variables = private.trained_by(optimizer) if variables is None else list(variables)
        known = self._applied.setdefault(id(optimizer), (optimizer, {}))[1]
        known.update((id(variable), variable) for variable in variables)
        if self._replicas is None:
            self.gradients += grads
            return
        if self.share is not None:
            given = [i for i, each in enumerate(grads) if each is not None]
            # One sum after the other: collectives of replicas in different orders would wait.
            with tf.control_dependencies(self._summed):
                scaled = [indexed_slices.times(grads[i], self.share) for i in given]
            summed = self._replicas.all_reduce(scaled)
            self._summed = tf.nest.flatten(summed, expand_composites=True)
            for i, each in zip(given, summed, strict=True):
                grads[i] = indexed_slices.each_row_once(each)
        apply(grads, variables)

    def update_state(
        self, metric: Any, update: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> None:
        """Updates the state of a metric in this step."""
        if self._replicas is None:
            self._check(metric, args, kwargs)
        args, kwargs = self._by_share(metric, args, kwargs)
        state = self._state(metric)
        with self.active(is_active=False):
            scope = keras.StatelessScope(zip(metric.variables, state, strict=True))
            with scope:
                update(*args, **kwargs)
        state += [tf.zeros(v.shape, v.dtype) for v in metric.variables[len(state) :]]
        new = [scope.get_current_value(v) for v in metric.variables]
        state = [old if n is None else n for n, old in zip(new, state, strict=True)]
        self._metrics[id(metric)] = metric, state

    def result(self, metric: Any, result: Callable[[], Any]) -> Any:
        """Returns the result of a metric in this step, and keeps the metric with it."""
        mapping = zip(metric.variables, self._state(metric), strict=True)
        with self.active(is_active=False), keras.StatelessScope(mapping):
            value = tf.nest.map_structure(
                lambda each: tf.convert_to_tensor(names.variable_of(each)), result()
            )
        for key, each in value.items() if isinstance(value, dict) else [(None, value)]:
            self._results[id(each)] = each, metric, key
        return value

    def reset_state(self, metric: Any, _: Callable[[], Any]) -> None:
        """Forgets the updates of a metric in this step."""
        self._metrics.pop(id(metric), None)

    def spec(self, mode: str, values: Mapping[str, Any], rows: Any) -> OwnStepSpec:
        """Returns the results of the step: increments of metrics, values of others."""
        tensors = {name: _scalar(value) for name, value in values.items()}
        name = "loss" if "loss" in values else next(iter(values))
        found = self._results.get(id(values[name]))
        count = tf.ones([]) if self.share is None else self.share
        total = tf.math.multiply_no_nan(tensors[name], count)
        if name == "loss" and found is not None and type(found[1]) is keras.metrics.Mean:
            total, count = self._state(found[1])
        is_finite = tf.reduce_all([tf.math.is_finite(each) for each in tensors.values()])
        loss = tf.where(is_finite, tf.math.divide_no_nan(total, count), float("nan"))
        metrics: dict[str, Any] = {}
        scalars: dict[str, Any] = {}
        for name, value in values.items():
            if name == "loss":
                continue
            if id(value) in self._results:
                _, metric, key = self._results[id(value)]
                state = [
                    indexed_slices.with_shape(value, v.shape)
                    for value, v in zip(self._state(metric), metric.variables, strict=True)
                ]
                factory = functools.partial(_Summed, metric, key)
                metrics[name] = Metric(factory, tuple(state), {})
            elif mode == ModeKeys.TRAIN:
                scalars[name] = tensors[name]
            else:
                metrics[name] = tensors[name]
        ops = [TrainOp(opt, list(by_id.values())) for opt, by_id in self._applied.values()]
        if mode == ModeKeys.TRAIN and not ops:
            raise SpecError(
                "train_step applied no optimizer of the model: expected one in an attribute of "
                "it. Write self.optimizer.apply(gradients, self.trainable_variables)."
            )
        weight = count / tf.cast(rows, tf.float32)
        return OwnStepSpec(
            mode,
            loss=tf.fill([rows], loss),
            loss_weights=tf.fill([rows], weight),
            train_op=ops,
            metrics=metrics,
            scalars=scalars,
        )

    def _state(self, metric: Any) -> list[tf.Tensor]:
        zeros = [tf.zeros(v.shape, v.dtype) for v in metric.variables]
        state = self._metrics.get(id(metric), (metric, zeros))[1]
        graph = tf.compat.v1.get_default_graph()
        if not tf.executing_eagerly() and any(
            getattr(each, "graph", graph) is not graph for each in state
        ):
            if self._replicas is None:  # Keras calls a model once to build it.
                return zeros
            raise SpecError(
                f"metric {metric.name!r} is updated in a tf.function, a tf.cond or a loop of "
                "train_step: expected updates in train_step itself. Leave out @tf.function."
            )
        return list(state)

    def _by_share(self, metric: Any, args: Any, kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Returns the arguments of an update, with the share as the weight of a scalar."""
        if self.share is None or not isinstance(metric, keras.metrics.Mean | keras.metrics.Sum):
            return args, kwargs
        if isinstance(metric, keras.metrics.MeanMetricWrapper):
            weighs = private.takes_number(metric, *args, **kwargs)
            return args, {**kwargs, "sample_weight": self.share} if weighs else kwargs
        named = dict(zip(("values", "sample_weight"), args, strict=False)) | kwargs
        values = named.get("values")
        if values is None or set(named) - {"values", "sample_weight"}:
            return args, kwargs
        values = tf.convert_to_tensor(values)
        if values.shape.rank != 0 or named.get("sample_weight") is not None:
            return args, kwargs
        if isinstance(metric, keras.metrics.Sum):
            raise SpecError(
                f"metric {metric.name!r} (Sum) got one number of the batch on "
                f"{self._replicas.total} replicas: expected the values of the examples, [batch], "
                "since replicas add up a sum and not a mean. Leave out the reduction, or use "
                "keras.metrics.Mean."
            )
        share = tf.cast(self.share, values.dtype)
        values = tf.where(share > 0, values, tf.zeros([], values.dtype))
        return (), {"values": values, "sample_weight": share}

    def _check(self, metric: Any, args: Any, kwargs: Any) -> None:
        if outside(is_sum_over_batches, metric, args, kwargs):
            return
        raise SpecError(
            f"metric {metric.name!r} ({type(metric).__name__}) has a state that is not a sum over "
            "batches: expected sums, such as those of keras.metrics.Mean."
        )


class _Summed(keras.metrics.Metric):
    """A metric of the model with summed increments as its state, or one of its results."""

    def __init__(self, metric: keras.metrics.Metric, key: Any) -> None:
        super().__init__(name=metric.name)
        for index, v in enumerate(metric.variables):
            self.add_variable(v.shape, "zeros", dtype=v.dtype, name=f"sum_{index}")

        def compute(values: Sequence[Any]) -> Any:
            with keras.StatelessScope(zip(metric.variables, values, strict=True)):
                value = metric.result()
            return value if key is None else value[key]

        self._compute = compute

    def update_state(self, *increments: Any) -> None:
        for variable, value in zip(self.variables, increments, strict=True):
            variable.assign_add(value)

    def result(self) -> Any:
        return self._compute([tf.convert_to_tensor(v) for v in self.variables])


def _watch(metric: keras.metrics.Metric) -> None:
    """Gives a metric methods that keep its state in the trace of a step."""
    if isinstance(vars(metric).get("update_state"), functools.partial):
        return
    for name in ("update_state", "result", "reset_state"):
        setattr(metric, name, functools.partial(_watched, name, metric, getattr(metric, name)))


def _watched(
    name: str, metric: Any, method: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    if _current.trace:
        method = functools.partial(getattr(_current.trace, name), metric, method)
    return method(*args, **kwargs)


def _watch_parts(container: Any) -> None:
    """Watches the metrics of a part of `compile`, which it makes in its `build`."""

    def build(*args: Any) -> None:
        outside(made, *args)
        for metric in container.metrics:
            _watch(metric)

    if container.built:
        for metric in container.metrics:
            _watch(metric)
    elif "build" not in vars(container):
        made, container.build = container.build, build


def _summed_loss(loss: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Returns summed losses divided by the share, since their mean by share is taken."""
    losses = call(*args, **kwargs)
    share = _current.trace.share if _current.trace else None
    if share is None:
        return losses
    if loss.reduction != "sum":
        raise SpecError(
            f"the loss {loss.name!r} has reduction={loss.reduction!r} on several replicas: "
            "expected 'sum', whose gradient Keras takes for it. Set reduction='sum'."
        )
    return losses * tf.cast(tf.math.reciprocal_no_nan(share), losses.dtype)


def outside(function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function outside of the trace, in eager mode, with its own creators of variables."""
    with futures.ThreadPoolExecutor(1) as thread:  # tf.init_scope records no gradient.
        return thread.submit(function, *args).result()


def _sum_gradients(optimizer: Any) -> None:
    if "apply" in vars(optimizer):
        return
    private.use_summed_gradients(optimizer)
    apply = optimizer.apply

    def applied(grads: Any, trainable_variables: Any = None) -> Any:
        if _current.trace is None:
            return apply(grads, trainable_variables)
        return _current.trace.apply(optimizer, apply, grads, trainable_variables)

    optimizer.apply = applied


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the results of a step by name, of nested dicts those within, as Keras does."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value) if isinstance(value, Mapping) else {name: value}
    return flat


def _scalar(value: Any) -> tf.Tensor:
    return tf.reduce_mean(tf.cast(tf.convert_to_tensor(names.variable_of(value)), tf.float32))
