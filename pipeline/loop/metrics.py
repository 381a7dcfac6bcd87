"""Metrics by their increments: exact on every strategy.

A replica returns what its batch adds to a metric's state that starts from zero. The
increments are summed over replicas, steps and loops, and the sum is the state. Keras'
own metric variables lose or multiply updates under several strategies. So a metric
whose state is not a sum, such as a maximum, is refused.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.contract.metrics import Metric, reserved
from pipeline.contract.train_op import SpecError
from pipeline.mistakes import user_errors
from pipeline.mistakes.checks import kind_of
from pipeline.process.refusals import RefusedTypeError
from pipeline.tracing.compiling import compiled
from pipeline.tracing.host_values import HostMetrics

# One number of each example is no vector that these could compare.
_OF_VECTORS = (
    keras.metrics.ConcordanceCorrelation,
    keras.metrics.CosineSimilarity,
    keras.metrics.PearsonCorrelation,
)

States = dict[str, list[Any]]


class MetricSet:
    """The metrics of one mode: objects that compute and hold no state.

    Attributes:
      host: the host metrics, which an evaluation computes at its end.
    """

    def __init__(
        self,
        declared: Mapping[str, Any],
        scalars: Iterable[str] = (),
        host: HostMetrics | None = None,
    ) -> None:
        """Builds each metric from its factory and probes it.

        Args:
          declared: `EstimatorSpec.metrics`, of symbolic tensors.
          scalars: names of `EstimatorSpec.scalars`, which are reported beside metrics.
          host: the host metrics among the declared; None leaves them out.

        Raises:
          SpecError: a factory returns no metric; a metric does not take its arguments;
            its state is no sum over batches, so that replicas could not share it; its
            result is no number; or two values would be reported under one name.
        """
        self._metrics: dict[str, keras.metrics.Metric] = {}
        for name, each in declared.items():
            if isinstance(each, Metric):
                self._metrics[name] = _build(name, each)
        self.host = HostMetrics({}) if host is None else host
        self._check_names(scalars)
        self._compiled = compiled(self.compute)

    @property
    def names(self) -> list[str]:
        """The names of the metrics."""
        return list(self._metrics)

    def zeros(self) -> States:
        """Returns the state before the first batch: tensors by metric name."""
        return {
            name: [tf.zeros(v.shape, v.dtype) for v in metric.variables]
            for name, metric in self._metrics.items()
        }

    def increments(
        self, declared: Mapping[str, Metric], rows: Any, share: tf.Tensor | None
    ) -> States:
        """Returns what one replica's batch adds to the state.

        Args:
          declared: `EstimatorSpec.metrics` of this batch.
          rows: examples in the batch: the weight of a scalar in a mean.
          share: float32 scalar, 1, or 0 for a stand-in that counts for nothing; None
            for 1.
        """
        zeros = self.zeros()
        added = {}
        for name, metric in self._metrics.items():
            args, kwargs = _by_example(metric, *_weighted(declared[name], rows))
            update = functools.partial(metric.stateless_update_state, **kwargs)
            where = _method_of(name, metric, "update_state")
            state = user_errors.call(where, update, zeros[name], *args)
            state = [tf.convert_to_tensor(s) for s in state]
            if share is not None:
                state = [s * tf.cast(share, s.dtype) for s in state]
            added[name] = state
        return added

    def compute(self, states: States) -> dict[str, Any]:
        """Computes each metric's value, a tensor or a dict of tensors, by name.

        Args:
          states: the state of each metric, by name.
        """
        return {
            name: _result(name, metric, states[name])
            for name, metric in self._metrics.items()
        }

    def results(self, states: Sequence[States]) -> dict[str, Any]:
        """Computes each metric's value over the sum of `states`, see `as_arrays`.

        Args:
          states: the metrics' increments, one for each call of the loop.
        """
        if not (self._metrics and states):
            return {}
        total = self.total(states)
        tensors = {
            name: [
                tf.constant(value, v.dtype)
                for value, v in zip(total[name], metric.variables, strict=True)
            ]
            for name, metric in self._metrics.items()
        }
        return as_arrays(self._compiled(tensors))

    def total(self, states: Sequence[States]) -> States:
        """Adds up `states` as arrays, in float64 or int64.

        So counts stay exact beyond 2**24, where float32 stops counting.
        """
        return {
            name: [
                np.sum([np.asarray(s[name][i]) for s in states], axis=0, dtype=_wide(v))
                for i, v in enumerate(metric.variables)
            ]
            for name, metric in self._metrics.items()
        }

    def holds(self, states: States) -> bool:
        """Returns whether `states` have the names and shapes of these metrics."""
        return {
            name: [np.shape(s) for s in state] for name, state in states.items()
        } == {
            name: [tuple(v.shape) for v in metric.variables]
            for name, metric in self._metrics.items()
        }

    def _check_names(self, scalars: Iterable[str]) -> None:
        """Checks that no two values are reported under one name."""
        # A metric of several values, such as `f1/micro`, shows their names only in a
        # result.
        owners = {name: f"scalar {name!r}" for name in scalars}
        owners |= {name: f"host metric {name!r}" for name in self.host.names}
        for name, state in self.zeros().items():
            metric = self._metrics[name]
            value = _result(name, metric, state)
            try:
                reported = as_arrays({name: value})
            except (TypeError, ValueError) as error:
                raise SpecError(
                    f"metric {name!r} ({type(metric).__name__}) has the result "
                    f"{kind_of(value)}: return a number, an array, or a dict of them."
                ) from error
            for tag in reported:
                if tag in owners or reserved(tag):
                    raise SpecError(
                        f"metric {name!r} reports {tag!r}, which is also the name of "
                        f"{owners.get(tag, 'what the driver reports itself')}: give "
                        "each a name of its own."
                    )
                owners[tag] = f"metric {name!r}"


def as_arrays(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns floats and np.ndarrays by name; a metric of several values by `name/key`.

    Args:
      values: a number, an array or a dict of them, by name.

    Raises:
      TypeError: a value is not numeric.
    """
    flat: dict[str, Any] = {}
    for name, value in values.items():
        items = value.items() if isinstance(value, dict) else [(None, value)]
        for key, item in items:
            array = np.asarray(item)
            # NumPy takes bfloat16, which is not its own, for no number.
            if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
                raise RefusedTypeError(f"a value of dtype {array.dtype}")
            full = name if key is None else f"{name}/{key}"
            flat[full] = float(array) if array.ndim == 0 else array
    return flat


def _wide(variable: Any) -> type:
    """Returns the dtype in which a variable's increments are added up."""
    return np.float64 if "float" in str(variable.dtype) else np.int64


def _weighted(declared: Metric, rows: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments of an update; a scalar's mean is weighted by the rows.

    A scalar is a mean over its batch already: batches of different sizes would
    otherwise count alike.
    """
    scalar = declared.factory is keras.metrics.Mean and len(declared.args) == 1
    if scalar and not declared.kwargs and len(np.shape(declared.args[0])) == 0:
        return declared.args, {"sample_weight": rows}
    return declared.args, dict(declared.kwargs)


def _by_example(
    metric: keras.metrics.Metric, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments of an update, in which each number is an example.

    Keras takes the mean over the last axis for the value of an example. Of numbers
    `[batch]` that would be the batch's, and unequal batches would count alike: such
    numbers become `[batch, 1]`.
    """
    values = [*args, *(v for k, v in kwargs.items() if k != "sample_weight")]
    ranks = {getattr(getattr(v, "shape", None), "rank", None) for v in values}
    if not isinstance(metric, keras.metrics.MeanMetricWrapper) or ranks != {1}:
        return args, kwargs
    if isinstance(metric, _OF_VECTORS):
        raise SpecError(
            f"{type(metric).__name__} compares two vectors of each example, and was "
            "given one number of each, [batch]: over the batch it would be no mean "
            "over examples. Give it [batch, numbers]."
        )
    args = tuple(value[:, tf.newaxis] for value in args)
    named = {k: v if k == "sample_weight" else v[:, None] for k, v in kwargs.items()}
    return args, named


def _build(name: str, declared: Metric) -> keras.metrics.Metric:
    """Makes a metric, and tries it on a batch of one example, of zeros."""
    metric = user_errors.call(
        lambda: f"the factory of metric {name!r}", declared.factory
    )
    if not isinstance(metric, keras.metrics.Metric):
        raise SpecError(
            f"the factory of metric {name!r} returned {kind_of(metric)}, not a Keras "
            "metric: write metric(keras.metrics.SparseCategoricalAccuracy, y, p)."
        )
    args = tf.nest.map_structure(_zeros_like, declared.args)
    kwargs = tf.nest.map_structure(_zeros_like, dict(declared.kwargs))
    args, kwargs = _by_example(metric, args, kwargs)
    update = functools.partial(metric.update_state, **kwargs)
    try:
        # Some metrics make their variables at the first update.
        user_errors.call(_method_of(name, metric, "update_state"), update, *args)
        user_errors.call(_method_of(name, metric, "reset_state"), metric.reset_state)
        additive = _is_additive(metric, args, kwargs)
    except (TypeError, ValueError, tf.errors.OpError) as error:
        if isinstance(error, tf.errors.OpError):
            words = user_errors.words_of(error)
        else:
            words = str(error)
        shapes = [tuple(np.shape(a)) for a in tf.nest.flatten((args, kwargs))]
        lines = [
            f"metric {name!r} ({type(metric).__name__}) does not take what it was "
            f"given (shapes {shapes}, the batch taken as 1): {words}",
            *user_errors.lines_of(error),
        ]
        raise SpecError("\n".join(lines)) from error
    if not metric.variables:
        raise SpecError(
            f"metric {name!r} ({type(metric).__name__}) keeps its state in no Keras "
            "variable, where the driver could find it: write self.total = self."
            "add_variable((), 'zeros') in its constructor."
        )
    if not additive:
        raise SpecError(
            f"metric {name!r} ({type(metric).__name__}) keeps a state that is no sum "
            "over batches (a maximum, a moving average), so that several replicas or "
            "loops could not be put together: express it by sums, such as "
            "keras.metrics.Mean of a tensor."
        )
    return metric


def _result(name: str, metric: keras.metrics.Metric, state: list[Any]) -> Any:
    """Computes a metric's value from its state."""
    where = _method_of(name, metric, "result")
    value = user_errors.call(where, metric.stateless_result, state)
    # Some metrics return a plain number, where `compute` promises tensors.
    if isinstance(value, (int, float)):
        return tf.convert_to_tensor(value)
    return value


def _method_of(
    name: str, metric: keras.metrics.Metric, method: str
) -> Callable[[], str]:
    return lambda: f"metric {name!r}, {type(metric).__name__}.{method}"


def _is_additive(metric: keras.metrics.Metric, args: Any, kwargs: Any) -> bool:
    """Returns whether an update adds the same to the states 0, 1 and -1."""

    def added(start: float) -> list[np.ndarray]:
        state = [tf.fill(v.shape, tf.cast(start, v.dtype)) for v in metric.variables]
        after = metric.stateless_update_state(state, *args, **kwargs)
        return [
            np.asarray(a) - np.asarray(s) for a, s in zip(after, state, strict=True)
        ]

    # The batch is of zeros: a maximum shows itself at -1, a minimum and a moving
    # average at 1.
    at_zero = added(0)
    return all(
        np.allclose(a, b, atol=1e-6, equal_nan=True)
        for start in (1, -1)
        for a, b in zip(added(start), at_zero, strict=True)
    )


def _zeros_like(value: Any) -> Any:
    """Returns a concrete tensor of one example in place of a symbolic tensor."""
    if not tf.is_tensor(value):
        return value
    shape = [1 if size is None else size for size in value.shape]
    if value.dtype == tf.string:
        return tf.fill(shape, "")
    return tf.zeros(shape, value.dtype)
