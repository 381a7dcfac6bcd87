"""Gathers tensors of an evaluation on the host, for metrics of all examples at once.

Each replica's tensors leave the graph after its step, with the step and the replica's
number. So they are put in the input's order however the steps ran, and a stand-in's are
left out.
"""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from pipeline.contract.metrics import HostMetric
from pipeline.contract.spec import EstimatorSpec
from pipeline.contract.train_op import SpecError
from pipeline.mistakes import user_errors
from pipeline.mistakes.checks import kind_of

# Bytes that an evaluation may hold without a word.
_MANY_BYTES = 2**30
# Step, process and replica of a batch, and its arrays.
Row = tuple[tuple[int, int, int], list[np.ndarray]]


class HostMetrics:
    """The host metrics of one model_fn, and what an evaluation has gathered for them.

    Attributes:
      names: names of the metrics.
    """

    def __init__(
        self,
        declared: Mapping[str, Any],
        exchange: Callable[[bytes], list[bytes]] | None = None,
    ) -> None:
        """Holds nothing yet.

        Args:
          declared: `EstimatorSpec.metrics`, of symbolic tensors.
          exchange: takes this process' bytes, and returns those of all processes in
            their order; all call it together. None: there is only this process.
        """
        found = {n: m for n, m in declared.items() if isinstance(m, HostMetric)}
        self.names = list(found)
        self._fns = {name: metric.fn for name, metric in found.items()}
        self._counts = [len(metric.tensors) for metric in found.values()]
        self._exchange = exchange
        self._rows: list[Row] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self.names)

    def begin(self) -> None:
        """Lets go of what was gathered before."""
        self._rows, self._bytes = [], 0

    def tensors(self, spec: EstimatorSpec) -> list[tf.Tensor]:
        """Returns the tensors of one replica's batch; in replica context.

        Args:
          spec: EstimatorSpec of the batch.
        """
        return [tensor for name in self.names for tensor in spec.metrics[name].tensors]

    def keep(self, step: tf.Tensor, by_replica: Sequence[Any]) -> None:
        """Hands one step's tensors to the host; inside of a graph or not.

        Args:
          step: int64 scalar, number of the step in this evaluation.
          by_replica: by local replica, what `tensors` returned, and a float32 scalar
            that is 0 for a stand-in.
        """
        for replica, (tensors, share) in enumerate(by_replica):
            given = [step, tf.constant(replica, tf.int64), share, *tensors]
            with tf.device("CPU:0"):
                tf.numpy_function(self._kept, given, [])

    def results(self) -> dict[str, Any]:
        """Calls each metric's function; all processes call this together.

        Raises:
          SpecError: the batches' shapes do not fit together, or a function returns no
            number.
        """
        if not (self.names and self._rows_of_all()):
            return {}
        columns = [arrays for _, arrays in sorted(self._rows, key=lambda row: row[0])]
        self.begin()
        joined = iter([_joined(column) for column in zip(*columns, strict=True)])
        del columns
        found = {}
        for (name, fn), count in zip(self._fns.items(), self._counts, strict=True):
            arrays = [next(joined) for _ in range(count)]
            value = user_errors.call(lambda n=name: f"host metric {n!r}", fn, *arrays)
            if isinstance(value, Mapping) or np.asarray(value).dtype.kind not in "biuf":
                raise SpecError(
                    f"host metric {name!r} returned {kind_of(value)}: return a number "
                    "or an array, and declare one host_metric for each."
                )
            found[name] = value
        return found

    def _kept(self, step: Any, replica: Any, share: Any, *arrays: np.ndarray) -> None:
        if not share:
            return
        # TensorFlow may use an argument's memory again.
        self._rows.append(((int(step), 0, int(replica)), [np.array(a) for a in arrays]))
        before, self._bytes = self._bytes, self._bytes + sum(a.nbytes for a in arrays)
        if before <= _MANY_BYTES < self._bytes:
            logging.warning(
                "eval | host metrics %s hold more than 1 GiB, for they see all "
                "examples at once: hand in less, such as tf.argmax(logits, -1).",
                ", ".join(self.names),
            )

    def _rows_of_all(self) -> list[Row]:
        """Returns the rows of all processes, which are kept from now on."""
        if self._exchange is not None:
            contents = self._exchange(packed(self._rows))
            self._rows = [
                ((step, process, replica), arrays)
                for process, content in enumerate(contents)
                for (step, _, replica), arrays in unpacked(content, sum(self._counts))
            ]
        return self._rows


def _joined(parts: Iterable[np.ndarray]) -> np.ndarray:
    """Returns the examples of all batches in one array."""
    parts = list(parts)
    shapes = sorted({part.shape[1:] for part in parts})
    if len(shapes) > 1:
        raise SpecError(
            f"host_metric() got tensors of examples of shapes {shapes} in one "
            "evaluation, which make up no array: pad them to one length in model_fn, "
            "tf.pad(x, [[0, 0], [0, 128 - tf.shape(x)[1]]])."
        )
    return np.concatenate(parts)


def packed(rows: Sequence[Row]) -> bytes:
    """Returns rows as bytes, without pickles."""
    arrays = [np.array([key for key, _ in rows], np.int64).reshape(-1, 3)]
    for _, values in rows:
        for value in values:
            strings = value.dtype == object
            # Strings of any bytes have no dtype of their own: lengths, and all bytes.
            flat = [bytes(each) for each in value.ravel()] if strings else []
            lengths = np.array([len(each) for each in flat], np.int64)
            content = np.frombuffer(b"".join(flat), np.uint8) if strings else value
            arrays += [np.array(value.shape, np.int64), lengths, content]
            arrays.append(np.array(value.dtype.name))
    file = io.BytesIO()
    np.savez(file, *arrays)
    return file.getvalue()


def unpacked(content: bytes, count: int) -> Iterable[Row]:
    """Yields the rows that `packed` made bytes of, each of `count` arrays."""
    loaded = np.load(io.BytesIO(content))
    arrays = (loaded[name] for name in loaded.files)
    for key in next(arrays):
        values = []
        for _ in range(count):
            shape, lengths, value, dtype = (next(arrays) for _ in range(4))
            if dtype == "object":
                ends = np.cumsum(lengths)
                whole = value.tobytes()
                flat = np.empty(len(lengths), object)
                flat[:] = [
                    whole[end - size : end]
                    for end, size in zip(ends, lengths, strict=True)
                ]
                value = flat.reshape(shape)
            elif value.dtype.kind == "V":  # A dtype that is not NumPy's: bfloat16.
                value = value.view(tf.as_dtype(str(dtype)).as_numpy_dtype)
            values.append(value)
        yield tuple(int(number) for number in key), values
