"""Tensors of a step for hooks: what is kept of a batch, and how parts become one array.

A part is what one replica has computed of one micro-batch. A state holds the values of
all parts in one vector, and the shape of each: so parts of any sizes go together.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.contract.spec import EstimatorSpec
from pipeline.contract.train_op import SpecError
from pipeline.tracing.batch_sums import is_by_example
from pipeline.tracing.host_values import packed, unpacked

# Begins the name of a state. No summary's name does: each can be printed.
_MARK = "\n"

State = dict[str, Any]


class StepTensors:
    """The tensors of one model_fn, and how a step's parts of each go together.

    Attributes:
      names: names of the tensors.
    """

    def __init__(
        self,
        declared: Mapping[str, tf.Tensor],
        *,
        rows: int | None = None,
        micro_batches: int = 1,
        under_xla: bool = False,
    ) -> None:
        """Finds out which tensors have a row for each example.

        Args:
          declared: `EstimatorSpec.tensors`, of symbolic tensors.
          rows: examples in the batch that they are computed of; None where the shapes
            do not tell.
          micro_batches: micro-batches of a step.
          under_xla: whether XLA compiles what a replica computes.
        """
        self.names = list(declared)
        self._specs = {n: tf.TensorSpec(x.shape, x.dtype) for n, x in declared.items()}
        self._joins = {n for n, x in declared.items() if is_by_example(x, rows)}
        self._micro_batches, self._under_xla = micro_batches, under_xla

    def zeros(self) -> dict[str, State]:
        """Returns the states before the first batch, by key.

        Raises:
          SpecError: XLA could not compile a step that hands these tensors out.
        """
        self._check()
        return {
            _MARK + name: {
                "values": _of_any_length(tf.zeros([0], spec.dtype)),
                "parts": _of_any_length(tf.zeros([0, 1 + spec.shape.rank], tf.int64)),
            }
            for name, spec in self._specs.items()
        }

    def of(self, spec: EstimatorSpec, share: tf.Tensor | None) -> dict[str, State]:
        """Returns the states of one replica's batch, by key.

        Args:
          spec: EstimatorSpec of the batch.
          share: float32 scalar, 1, or 0 for a stand-in that counts for nothing; None
            for 1.

        Raises:
          SpecError: the spec has other tensors than the first one.
        """
        if not self.names:
            return {}
        given = {n: (x.dtype, x.shape.rank) for n, x in spec.tensors.items()}
        known = {n: (s.dtype, s.shape.rank) for n, s in self._specs.items()}
        if given != known:
            raise SpecError(
                f"tensors are {given} for one batch, and {known} for another: give the "
                "same ones for each."
            )
        counts = tf.ones([], tf.int64) if share is None else tf.cast(share, tf.int64)
        # The next micro-batch's parts are put behind these.
        sized = _of_any_length if self._micro_batches > 1 else tf.identity
        states = {}
        for name, value in spec.tensors.items():
            part = tf.concat([[counts], tf.shape(value, tf.int64)], 0)
            states[_MARK + name] = {
                "values": sized(tf.reshape(value, [-1])),
                "parts": sized(part[tf.newaxis]),
            }
        return states

    def seen(
        self,
        states: Mapping[str, Mapping[str, Any]],
        exchange: Callable[[bytes], list[bytes]] | None = None,
    ) -> dict[str, np.ndarray]:
        """Returns the tensors of a step, by name.

        Args:
          states: this process' states, tensors or arrays, by key.
          exchange: takes this process' bytes, and returns those of all processes in
            their order; all call it together. None: there is only this process.

        Raises:
          SpecError: the parts of a tensor make up no array.
        """
        if not self.names:
            return {}
        mine = [states[_MARK + name] for name in self.names]
        arrays = [np.asarray(each[k]) for each in mine for k in ("values", "parts")]
        everyone = [arrays]
        if exchange is not None:
            contents = exchange(packed([((0, 0, 0), arrays)]))
            rows = [next(iter(unpacked(each, len(arrays)))) for each in contents]
            everyone = [theirs for _, theirs in rows]
        found = {}
        for index, name in enumerate(self.names):
            states_of = [each[2 * index : 2 * index + 2] for each in everyone]
            parts, stand_ins = self._in_order(states_of)
            if name in self._joins:
                found[name] = _joined(name, parts or [stand_ins[0][:0]])
            else:
                found[name] = (parts or stand_ins)[0]
        return found

    def _check(self) -> None:
        """Checks that XLA, where it compiles a step, can hand out these tensors."""
        if not self._under_xla:
            return
        strings = [n for n, spec in self._specs.items() if spec.dtype == tf.string]
        if strings:
            raise SpecError(
                f"tensor {strings[0]!r} is of strings, which XLA does not compile: "
                "leave it out on a TPU and with RunConfig(jit_compile=True)."
            )
        if self.names and self._micro_batches > 1:
            raise SpecError(
                f"tensor {self.names[0]!r} would grow with each micro-batch, and XLA "
                "compiles no shapes that grow: write RunConfig(jit_compile=False), or "
                "leave out gradient_accumulation_steps or tensors."
            )

    def _in_order(
        self, states: Sequence[Sequence[np.ndarray]]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Returns the parts that count, in the order of the input, and the others.

        Args:
          states: values and parts of each process. Those of a replica follow one
            another, and of the input each micro-batch does.
        """
        found, stand_ins = {}, []
        for process, (values, parts) in enumerate(states):
            sizes = [math.prod(shape) for _, *shape in parts.tolist()]
            each = np.split(values, np.cumsum(sizes)[:-1])
            for place, (counts, *shape) in enumerate(parts.tolist()):
                replica, micro_batch = divmod(place, self._micro_batches)
                part = each[place].reshape(shape)
                if counts:
                    found[micro_batch, process, replica] = part
                else:
                    stand_ins.append(part)
        return [found[key] for key in sorted(found)], stand_ins


def plus(first: State, second: State) -> State | None:
    """Returns the state of two parts of a step; None for states of another kind."""
    if "parts" not in first:
        return None
    return {name: tf.concat([first[name], second[name]], 0) for name in first}


def _of_any_length(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a tensor whose first size a loop may change."""
    shape = [None, *tensor.shape[1:]]
    return tf.raw_ops.PlaceholderWithDefault(input=tensor, shape=shape)


def _joined(name: str, parts: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the examples of all parts in one array."""
    shapes = sorted({part.shape[1:] for part in parts})
    if len(shapes) > 1:
        raise SpecError(
            f"tensor {name!r} has examples of shapes {shapes} in one step, on several "
            "replicas or in several micro-batches, which make up no array: pad them to "
            "one length in model_fn, tf.pad(x, [[0, 0], [0, 128 - tf.shape(x)[1]]])."
        )
    return np.concatenate(parts)
