"""What is kept of a batch for a summary, and how it is put together with another's.

A state is a dict of tensors of static shapes. Counts add up. Of rows, such as pictures,
those with the highest scores stay: where no score is given, all have the same, and the
first ones stay. Each row has its place in the input. So a state is the same however the
examples lie on processes, replicas and micro-batches, and all of it works in a graph,
and on arrays.
"""

import io
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.contract.spec import EstimatorSpec
from pipeline.contract.summaries import (
    HISTOGRAM_BITS,
    ConfusionMatrix,
    Histogram,
    Kind,
    Number,
    PrCurve,
    Seen,
    Summary,
)
from pipeline.contract.train_op import SpecError
from pipeline.tracing import step_tensors
from pipeline.tracing.step_tensors import StepTensors

State = dict[str, Any]
States = dict[str, State]

# The score of a row that is none.
_NONE = -np.inf
_LEAST, _GREATEST = np.finfo(np.float32).min, np.finfo(np.float32).max
# A row's place is the number of its batch, of its replica, and its own, in these bits.
_BATCH_BITS, _REPLICA_BITS = 40, 24


class SummarySet:
    """The summaries of one mode: which they are, and what is kept of a batch.

    Attributes:
      kinds: the kind of each summary, by name.
      tensors: tensors for hooks, which are kept beside them.
    """

    def __init__(
        self,
        declared: Mapping[str, Summary] | None,
        *,
        under_xla: bool,
        numbers: Iterable[str] = (),
        tensors: StepTensors | None = None,
    ) -> None:
        """Takes over the kinds.

        Args:
          declared: `EstimatorSpec.summaries`, of symbolic tensors; None to take none.
          under_xla: whether XLA compiles what a replica computes.
          numbers: names of numbers that the driver adds to the states of a batch.
          tensors: tensors that are kept beside the summaries; None for none.

        Raises:
          SpecError: XLA compiles it, and a summary is of strings.
        """
        self.tensors = StepTensors({}) if tensors is None else tensors
        self._takes = declared is not None
        self._declared = {n: summary.kind for n, summary in (declared or {}).items()}
        added = {name: Number() for name in numbers}
        self.kinds: dict[str, Kind] = {**self._declared, **added}
        for name, kind in self.kinds.items():
            if under_xla and any(f.dtype == tf.string for f in kind.fields.values()):
                raise SpecError(
                    f"summary {name!r} is a text, and XLA compiles no strings: leave "
                    "it out on a TPU and with RunConfig(jit_compile=True)."
                )

    def __bool__(self) -> bool:
        return bool(self.kinds or self.tensors.names)

    def zeros(self) -> States:
        """Returns the states before the first batch, by name."""
        zeros = {name: _zeros(kind) for name, kind in self.kinds.items()}
        return {**zeros, **self.tensors.zeros()}

    def of(self, spec: EstimatorSpec, share: tf.Tensor | None) -> States:
        """Returns the states of one replica's batch.

        Args:
          spec: EstimatorSpec of the batch.
          share: float32 scalar, 1, or 0 for a stand-in that counts for nothing; None
            for 1.

        Raises:
          SpecError: the spec has other summaries than the first one.
        """
        states = self.tensors.of(spec, share)
        if not self._takes:
            return states
        kinds = {name: summary.kind for name, summary in spec.summaries.items()}
        if kinds != self._declared:
            raise SpecError(
                f"summaries are {kinds} for one batch, and {self._declared} for "
                "another: give the same ones for each."
            )
        for name, summary in spec.summaries.items():
            states[name] = _shared(_of(summary), share)
        return states

    def seen(self, states: Mapping[str, Mapping[str, Any]]) -> dict[str, Seen]:
        """Returns summaries with their kinds, by name.

        Args:
          states: states, tensors or arrays, by name.
        """
        kept = {name: dict(states[name]) for name in self.kinds}
        as_arrays = tf.nest.map_structure(np.asarray, kept)
        return {name: Seen(kind, as_arrays[name]) for name, kind in self.kinds.items()}


def number(value: tf.Tensor) -> State:
    """Returns the state of a float32 scalar that is the same on all replicas."""
    place = tf.zeros([1], tf.int64)
    return {"score": tf.ones([1]), "place": place, "value": tf.reshape(value, [1])}


def placed(states: States, batch: tf.Tensor) -> States:
    """Returns states whose rows come after those of all batches with lower numbers.

    Args:
      states: states of one batch, by name.
      batch: integer scalar, number of a micro-batch, or of an evaluation's step.
    """
    first = tf.bitwise.left_shift(tf.cast(batch, tf.int64), _BATCH_BITS)
    return {
        name: {**state, "place": state["place"] + first} if "place" in state else state
        for name, state in states.items()
    }


def merged(first: States, second: States) -> States:
    """Returns the states of two parts of the data, the first one's rows before.

    Args:
      first: states by name, tensors or arrays.
      second: states of the same names.
    """
    return {name: _merged(first[name], second[name]) for name in first}


def merged_seen(parts: Iterable[Mapping[str, Seen]]) -> dict[str, Seen]:
    """Returns the summaries of several parts of the data, in their order, as one.

    Args:
      parts: summaries by name; those without any are passed over.
    """
    result: dict[str, Seen] = {}
    for part in parts:
        for name, seen in part.items():
            state = dict(seen.state)
            if name in result:
                state = _merged(dict(result[name].state), state)
            arrays = {field: np.asarray(value) for field, value in state.items()}
            result[name] = Seen(seen.kind, arrays)
    return result


def over_processes(
    states: States, gather: Callable[[list[int]], list[list[int]]]
) -> States:
    """Returns the states of the data of all processes.

    Args:
      states: this process' states, tensors or arrays.
      gather: exchanges int64s with all processes, which call it together.
    """
    flat = [np.asarray(value) for value in tf.nest.flatten(states)]
    file = io.BytesIO()
    # Python's bytes have no dtype of a fixed width, which a file of arrays needs.
    np.savez(
        file, *[each.astype("S") if each.dtype == object else each for each in flat]
    )
    content = file.getvalue()
    padded = content + bytes(-len(content) % 8)
    result: States = {}
    for numbers in gather([len(content), *np.frombuffer(padded, np.int64).tolist()]):
        size, *words = numbers
        loaded = np.load(io.BytesIO(np.array(words, np.int64).tobytes()[:size]))
        arrays = [loaded[key] for key in loaded.files]
        theirs = tf.nest.pack_sequence_as(states, arrays)
        result = merged(result, theirs) if result else theirs
    return result


def _zeros(kind: Kind) -> State:
    if kind.most is None:
        return {n: tf.zeros(f.shape, f.dtype) for n, f in kind.fields.items()}
    rows = {n: tf.zeros([kind.most, *f.shape], f.dtype) for n, f in kind.fields.items()}
    return {**_none(kind), **rows}


def _none(kind: Kind) -> State:
    """Returns the scores and places of rows that are none."""
    score = tf.fill([kind.most], tf.constant(_NONE, tf.float32))
    return {"score": score, "place": tf.fill([kind.most], tf.constant(0, tf.int64))}


def _of(summary: Summary) -> State:
    """Returns the state of a batch that counts."""
    kind, tensors = summary.kind, dict(summary.tensors)
    if type(kind) in _COUNTS:
        counts = _COUNTS[type(kind)](kind, **tensors)
        if kind.most is None:
            return {"counts": counts}
        tensors = {"counts": counts[tf.newaxis]}
    score = tensors.pop("score", None)
    rows = tf.shape(next(iter(tensors.values())))[0]
    if score is None:
        score = tf.ones([rows])
    else:
        # A loss that is no number is the worst; infinity is above all others' scores.
        score = tf.where(tf.math.is_nan(score), np.inf, score)
        score = tf.clip_by_value(score, _LEAST, _GREATEST)
    none = _none(kind)["score"]
    score, places = tf.math.top_k(tf.concat([score, none], 0), kind.most)
    places = tf.minimum(places, rows - 1)
    tensors["place"] = _first_place() + tf.range(tf.cast(rows, tf.int64))
    return {"score": score, **{n: tf.gather(x, places) for n, x in tensors.items()}}


def _first_place() -> tf.Tensor:
    """Returns the place of the first row of this replica's batch."""
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    # A number, where it is known, for XLA's sake.
    known = tf.get_static_value(replica)
    number = tf.cast(replica if known is None else known, tf.int64)
    return tf.bitwise.left_shift(number, _REPLICA_BITS)


def _shared(state: State, share: tf.Tensor | None) -> State:
    """Returns the state, or one of nothing where the batch is a stand-in."""
    if share is None:
        return state
    if "score" in state:
        return {**state, "score": tf.where(share > 0, state["score"], _NONE)}
    return {n: value * tf.cast(share, value.dtype) for n, value in state.items()}


def _merged(first: State, second: State) -> State:
    if (parts := step_tensors.plus(first, second)) is not None:
        return parts
    if "score" not in first:
        return {name: tf.add(first[name], second[name]) for name in first}
    both = {name: tf.concat([first[name], second[name]], 0) for name in first}
    # Of equal scores the first one in the input comes first.
    order = tf.argsort(both["place"], stable=True)
    score = tf.gather(both.pop("score"), order)
    score, places = tf.math.top_k(score, first["score"].shape[0])
    places = tf.gather(order, places)
    return {"score": score, **{n: tf.gather(x, places) for n, x in both.items()}}


def _histogram(kind: Histogram, values: tf.Tensor) -> tf.Tensor:
    del kind
    bits = tf.bitcast(tf.reshape(values, [-1]), tf.uint32)
    shift = tf.constant(32 - HISTOGRAM_BITS, tf.uint32)
    buckets = tf.cast(tf.bitwise.right_shift(bits, shift), tf.int32)
    return _counted(buckets, 2**HISTOGRAM_BITS)


def _pr_curve(kind: PrCurve, labels: tf.Tensor, probabilities: tf.Tensor) -> tf.Tensor:
    size = kind.num_thresholds
    labels, probabilities = tf.reshape(labels, [-1]), tf.reshape(probabilities, [-1])
    fits = (probabilities >= 0) & (probabilities <= 1)
    fits &= tf.equal(labels, 0) | tf.equal(labels, 1)
    # The last threshold that the probability reaches.
    bucket = tf.cast(tf.floor(tf.where(fits, probabilities, 0) * (size - 1)), tf.int32)
    bucket += tf.where(labels > 0, size, 0)
    return _counted(tf.where(fits, bucket, 2 * size), 2 * size + 1)


def _confusion_matrix(
    kind: ConfusionMatrix, labels: tf.Tensor, predictions: tf.Tensor
) -> tf.Tensor:
    size = kind.num_classes
    labels, predictions = tf.reshape(labels, [-1]), tf.reshape(predictions, [-1])
    fits = (labels >= 0) & (labels < size) & (predictions >= 0) & (predictions < size)
    pair = tf.where(fits, labels * size + predictions, size**2)
    return _counted(tf.cast(pair, tf.int32), size**2 + 1)


def _counted(buckets: tf.Tensor, size: int) -> tf.Tensor:
    """Returns how often each bucket is there, int64 `[size]`."""
    return tf.math.unsorted_segment_sum(tf.ones_like(buckets, tf.int64), buckets, size)


_COUNTS: dict[type[Kind], Callable[..., tf.Tensor]] = {
    Histogram: _histogram,
    PrCurve: _pr_curve,
    ConfusionMatrix: _confusion_matrix,
}
