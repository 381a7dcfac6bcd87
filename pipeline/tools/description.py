"""Describes a run: parameters in the log, hyperparameters in TensorBoard.

`parameter_table` says what a model is made of, layer by layer. `DescriptionHook` logs
it, and writes it as text for TensorBoard, beside what its HParams tab compares runs by;
at the end it tells HParams that the run is done.
"""

import dataclasses
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging
from google.protobuf import struct_pb2

from pipeline.contract.hooks import Hook, Run
from pipeline.contract.params import Scalar
from pipeline.hooks import preemption, summary
from pipeline.strategy import variables
from pipeline.strategy.modules import Modules
from pipeline.strategy.sharding import shards_of

# Layers of a module that the table shows; the others are counted.
_MOST_LAYERS = 20
# Shapes of a layer that it shows.
_MOST_SHAPES = 4
# The state of a random stream is no parameter.
_SEED = "seed_generator_state"
# Tags under which HParams looks for a run's start and end.
_START, _END = "_hparams_/session_start_info", "_hparams_/session_end_info"


class DescriptionHook(Hook):
    """Logs the parameters at the start; writes them and the hyperparameters as events.

    Only the process that leads does, and once, though training goes back. Of a run that
    a signal ends, or an error, HParams is not told the end.
    """

    only_watches = True

    def __init__(
        self,
        table: Sequence[str],
        hparams: Mapping[str, Scalar],
        *,
        writes_events: bool,
    ) -> None:
        """Takes what there is to say.

        Args:
          table: lines of the table of parameters; empty where they were logged.
          hparams: hyperparameters by name.
          writes_events: whether to write for TensorBoard, too.
        """
        self._table = table
        self._hparams = hparams
        self._writes_events = writes_events
        self._is_open = False

    def begin(self, run: Run) -> None:
        table, self._table = self._table, ()
        hparams, self._hparams = self._hparams, {}
        if not run.leads:
            return
        if table:
            logging.info("train | %s", "\n  ".join(table))
        if self._writes_events:
            writer = summary.Writer(run.model_dir)
            if table:
                text = "\n".join(table)
                writer.text(run.step, "parameters", f"```\n{text}\n```")
            if hparams:
                writer.plugin(run.step, _START, "hparams", start(hparams))
                self._is_open = True
            writer.close()

    def end(self, run: Run) -> None:
        if self._is_open and not preemption.is_stopped(run):
            writer = summary.Writer(run.model_dir)
            writer.plugin(run.step, _END, "hparams", end())
            writer.close()


@dataclasses.dataclass(frozen=True)
class _Layer:
    """The parameters of one layer.

    Attributes:
      name: name in its module: `conv2d`; "" for those of the module itself.
      shapes: shapes of the variables.
      trained: number of trainable parameters.
      frozen: number of the others, such as moving averages.
      num_bytes: size of all of them.
    """

    name: str
    shapes: list[str]
    trained: int
    frozen: int
    num_bytes: int


def parameter_table(modules: Modules) -> list[str]:
    """Returns the lines of a table: layers, their shapes and numbers of parameters.

    Args:
      modules: modules that are built.
    """
    lines, total = [], [0, 0, 0]
    for name, state in modules.named_state().items():
        module = modules.by_name.get(name)
        if module is None:  # The driver's own.
            continue
        layers = _layers(module, variables.variables_of({name: state}))
        size = sum(layer.num_bytes for layer in layers)
        trained = sum(layer.trained for layer in layers)
        frozen = sum(layer.frozen for layer in layers)
        if isinstance(module, keras.optimizers.Optimizer):
            count = sum(len(layer.shapes) for layer in layers)
            what = f"{type(module).__name__}, {count} variables"
            lines.append([name, what, f"{trained + frozen:,}", _size(size)])
            continue
        shown, rest = layers[:_MOST_LAYERS], layers[_MOST_LAYERS:]
        for layer in shown:
            place = f"{name}/{layer.name}" if layer.name else name
            numbers = f"{layer.trained + layer.frozen:,}", _size(layer.num_bytes)
            lines.append([place, _in_words(layer), *numbers])
        if rest:
            numbers = sum(layer.trained + layer.frozen for layer in rest)
            more = _size(sum(layer.num_bytes for layer in rest))
            lines.append(
                [f"{name}/...", f"{len(rest)} more layers", f"{numbers:,}", more]
            )
        total = [a + b for a, b in zip(total, (trained, frozen, size), strict=True)]
    head = (
        f"parameters {total[0] + total[1]:,} ({total[0]:,} trainable, {total[1]:,} "
        f"not) | {_size(total[2])}"
    )
    return [head, *_aligned(lines)]


def start(hparams: Mapping[str, Scalar]) -> bytes:
    """Returns what TensorBoard's HParams reads of a run: its hyperparameters.

    It is the protocol buffer HParamsPluginData(version=0, session_start_info=...) of
    the tensorboard package, which need not be installed.

    Args:
      hparams: hyperparameters by name.
    """
    entries = (_field(1, _entry(name, value)) for name, value in hparams.items())
    return _field(3, b"".join(entries) + _time_now(5))


def end() -> bytes:
    """Returns what HParams reads of a run that is done, see `start`."""
    # Field 1 is the status, whose 1 is a success.
    return _field(4, b"\x08\x01" + _time_now(2))


def _time_now(number: int) -> bytes:
    """Returns a field of seconds since 1970, a double: 1 is for eight bytes."""
    return bytes([number << 3 | 1]) + struct.pack("<d", time.time())


def _entry(name: str, value: Scalar) -> bytes:
    """Returns the entry of a map: the name as field 1, the value as field 2."""
    if isinstance(value, bool):
        held = struct_pb2.Value(bool_value=value)
    elif isinstance(value, str):
        held = struct_pb2.Value(string_value=value)
    else:
        held = struct_pb2.Value(number_value=value)
    return _field(1, name.encode()) + _field(2, held.SerializeToString())


def _field(number: int, content: bytes) -> bytes:
    """Returns a field of a protocol buffer that holds bytes or a message."""
    # Type 2: the length comes first.
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    """Returns a number, seven bits a byte, the lowest first."""
    found = []
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def _layers(module: Any, named: Mapping[str, Any]) -> list[_Layer]:
    """Returns a module's layers in their order.

    Args:
      module: the module.
      named: its variables by their full names.
    """
    # By their first shards: the whole of a table may be another object each time.
    trainable = {id(_first_shard(v)) for v in _trainable(module)}
    by_layer: dict[str, list[tuple[Any, bool]]] = {}
    for full, variable in named.items():
        if not full.endswith(_SEED):
            layer = full.partition("/")[2].rpartition("/")[0]
            held = variable, id(_first_shard(variable)) in trainable
            by_layer.setdefault(layer, []).append(held)
    return [_layer(name, held) for name, held in by_layer.items()]


def _layer(name: str, held: Iterable[tuple[Any, bool]]) -> _Layer:
    shapes, counts, num_bytes = [], [0, 0], 0
    for variable, is_trained in held:
        # One of any size may tell none.
        size = variable.shape.num_elements() or 0
        shapes.append(str(variable.shape))
        counts[0 if is_trained else 1] += size
        num_bytes += size * variable.dtype.size
    return _Layer(name, shapes, *counts, num_bytes)


def _first_shard(variable: Any) -> tf.Variable:
    return shards_of(variables.raw(variable))[0]


def _trainable(module: Any) -> Iterable[Any]:
    found = getattr(module, "trainable_variables", None)
    if found is not None:
        return found
    return [module] if getattr(module, "trainable", False) else []


def _in_words(layer: _Layer) -> str:
    """Returns the shapes of a layer, and what of it is not trained."""
    shapes = " ".join(layer.shapes[:_MOST_SHAPES])
    if len(layer.shapes) > _MOST_SHAPES:
        shapes += f" and {len(layer.shapes) - _MOST_SHAPES} more"
    if not layer.frozen:
        return shapes
    what = f"{layer.frozen:,}" if layer.trained else "all"
    return f"{shapes} | {what} not trainable"


def _size(num_bytes: int) -> str:
    if num_bytes < 1e6:
        return f"{num_bytes / 1e3:.1f} kB"
    return f"{num_bytes / 1e6:,.1f} MB"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns rows of two texts and two numbers as lines, in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        f"{name:<{widths[0]}}  {what:<{widths[1]}}  {count:>{widths[2]}}  "
        f"{size:>{widths[3]}}"
        for name, what, count, size in rows
    ]
