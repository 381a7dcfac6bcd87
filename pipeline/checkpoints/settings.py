"""Keeps what the factories have set where a checkpoint would set it otherwise.

Keras keeps a learning rate as a variable, so a checkpoint brings back the rate that it
was trained with, and a new rate in the configuration would be lost without a word. So
each checkpoint also records the settings of its time, as
`driver/index/configured/optimizer/learning_rate`. Where a run goes on,

    a learning rate or seed that is configured otherwise now is set as configured now;
    one that is configured as then stays as in the checkpoint: a hook may have set it;
    another constant, table or vocabulary that differs stays too, with a warning.
"""

import hashlib
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from pipeline.checkpoints.checkpoint_reader import Reader
from pipeline.strategy import variables
from pipeline.strategy.modules import Modules

_RECORD = "configured"
_SEED = re.compile(r"(.+)/seed_generator_state(_\d+)?")
# Last part of the name under which a hash of a table's or vocabulary's items stands.
_ITEMS = "items"
_VOCABULARIES = (
    keras.layers.IntegerLookup,
    keras.layers.StringLookup,
    keras.layers.TextVectorization,
)


class Configured:
    """The settings that a runtime's factories made, and how a checkpoint differs.

    note what the factories set, before anything is restored
    with each checkpoint that is saved: record
    with each checkpoint that is restored: loaded, then apply where training begins
    """

    def __init__(self, modules: Modules) -> None:
        """Notes what is built already.

        Args:
          modules: none of whose values was restored yet.
        """
        self._modules = modules
        self._values: dict[str, np.ndarray] = {}
        self._told: set[str] = set()
        # What `apply` is to set and to log for the checkpoint that was loaded last.
        self._changed: dict[str, np.ndarray] = {}
        self._lines: list[str] = []
        self._is_old = False
        self.note()

    def note(self) -> None:
        """Notes what was built since the last call, before it is restored."""
        state = self._modules.named_state()
        for module, value in self._modules.by_name.items():
            for name, setting in _settings(value, state[module]):
                full = f"{module}/{name}".rstrip("/")
                if full not in self._values:
                    self._values[full] = np.asarray(setting())

    def rate_of(self, variable: tf.Variable) -> Any:
        """Returns the value that a factory has set a learning rate to.

        Args:
          variable: variable of the rate.
        """
        named = self._modules.named_variables()
        name = next(n for n, each in named.items() if variables.raw(each) is variable)
        return self._values[name]

    def record(self) -> dict[str, tf.Variable]:
        """Returns the settings as variables by name, to be saved with a checkpoint."""
        # The first entry tells a record of no settings from an earlier version's
        # checkpoint, which has no record.
        values = {_RECORD: np.int64(1)} | {
            f"{_RECORD}/{name}": value for name, value in self._values.items()
        }
        return {n: tf.Variable(value, trainable=False) for n, value in values.items()}

    def loaded(self, path: str) -> None:
        """Finds what a checkpoint sets otherwise; warns once of what `apply` leaves so.

        Args:
          path: path prefix of the checkpoint, which was restored.

        Raises:
          UnreadableCheckpointError: it is damaged.
        """
        reader, names = Reader(path), self._modules.named_variables()
        recorded = _recorded(reader)
        self._lines = [*_dropped_rates(reader.shapes, names)]
        self._changed = {}
        self._is_old = not recorded
        for name, now in self._values.items():
            is_rate = variables.is_rate(name, names)
            held = reader.value(name) if is_rate and name in reader.shapes else None
            # A checkpoint of an earlier version has no record: the rate that it holds
            # stands for the one that was configured, and of the rest nothing is known.
            then = recorded.get(name, held if is_rate and not recorded else None)
            seed = _SEED.fullmatch(name)
            if np.array_equal(then, now) or not (recorded or is_rate):
                continue
            if is_rate or seed:
                self._changed[name] = now
            if is_rate:
                self._lines.append(_rate_line(name, now, held, then))
            elif seed:
                self._lines.append(_seed_line(seed[1], now, then))
            elif then is not None:
                self._tell(_constant_line(name, now, then, reader))

    def apply(self, *, tells: bool) -> None:
        """Sets the learning rates and seeds that the loaded checkpoint has otherwise.

        Does so once for a checkpoint: what training changes afterwards stays.

        Args:
          tells: whether this process logs the changes.
        """
        named = self._modules.named_variables()
        for name, now in self._changed.items():
            named[name].assign(tf.cast(now, named[name].dtype))
        # The checkpoint's own seeds were spread over the replicas when it was restored:
        # shifting them again would give other streams.
        self._modules.spread_seeds(spread_before=named.keys() - self._changed.keys())
        for line in self._lines if tells else ():
            # Without a record a rate that a hook has lowered looks as if it had been
            # configured otherwise, and is now set back.
            level = logging.WARNING if self._is_old else logging.INFO
            logging.log(level, "train | %s", line)
        self.forget()

    def forget(self) -> None:
        """Forgets the loaded checkpoint: training has begun, or does not go by it."""
        self._changed, self._lines = {}, []

    def _tell(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            logging.warning("checkpoint | %s", line)


def _settings(
    module: Any, named: Mapping[str, Any]
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yields what a factory has set: a name, and a function that returns the value.

    Args:
      module: of the factory.
      named: its variables and tables by their names in it.
    """
    is_optimizer = isinstance(module, keras.optimizers.Optimizer)
    for name, value in named.items():
        if hasattr(value, "export"):
            yield _items_of(name), partial(_hash_of_table, value)
        elif variables.is_rate(name, named) or (
            isinstance(value, tf.Variable)
            and not (is_optimizer or value.trainable)
            and value.shape.rank == 0
        ):
            yield name, value.numpy
    names = {id(value): name for name, value in named.items()}
    drawn = None
    for prefix, part in variables.parts(module):
        if isinstance(part, tf.lookup.StaticHashTable):
            yield _items_of(prefix), partial(_hash_of_table, part)
        elif isinstance(part, _VOCABULARIES):
            yield _items_of(prefix), partial(_hash_of_vocabulary, part)
        elif isinstance(part, keras.layers.RandomCrop):
            # Its config holds a seed that the layer drew, where the user gave none: in
            # a cloned model the generator, a later part, has it as if it were given.
            drawn = part.generator
        elif isinstance(part, keras.layers.Normalization):
            for variable in map(variables.raw, part.variables):
                yield names[id(variable)], variable.numpy
        elif isinstance(part, keras.random.SeedGenerator):
            seed = part.get_config()["seed"]
            if seed is not None and part is not drawn:
                yield names[id(variables.raw(part.state))], partial(list, [seed, 0])


def _items_of(holder: str) -> str:
    return f"{holder}/{_ITEMS}".replace("//", "/").lstrip("/")


def _hash_of_table(table: Any) -> np.int64:
    keys, values = (np.asarray(column).ravel() for column in table.export())
    return _hash(
        sorted(f"{key}\t{value}" for key, value in zip(keys, values, strict=False))
    )


def _hash_of_vocabulary(layer: Any) -> np.int64:
    return _hash(map(str, layer.get_vocabulary()))


def _hash(lines: Iterable[str]) -> np.int64:
    digest = hashlib.blake2b("\n".join(lines).encode(), digest_size=8).digest()
    return np.int64(int.from_bytes(digest, "big", signed=True))


def _recorded(reader: Reader) -> dict[str, Any]:
    """Returns what was configured when a checkpoint was saved, by name.

    Empty for a checkpoint of a version that kept no record.
    """
    prefix = f"driver/{_RECORD}"
    names = [name for name in reader.shapes if name.startswith(prefix)]
    return {name[len(prefix) + 1 :]: reader.value(name) for name in names}


def _dropped_rates(saved: Mapping[str, Any], own: Container[str]) -> Iterator[str]:
    """Yields a line for each constant rate in a checkpoint that is now a schedule."""
    for name in saved:
        if variables.is_rate(name, saved) and name not in own:
            optimizer, _, rate = name.rpartition("/")
            if f"{optimizer}/iteration" in own:
                yield (
                    f"{rate} of {optimizer}: a schedule as configured now; the "
                    "checkpoint was trained with a constant"
                )


def _rate_line(name: str, now: Any, held: Any, then: Any) -> str:
    optimizer, _, rate = name.rpartition("/")
    trained = "a schedule" if held is None else f"{held:.6g}"
    line = (
        f"{rate} of {optimizer}: {now:.6g} as configured now; the checkpoint was "
        f"trained with {trained}"
    )
    if held is not None and then is not None and then != held:
        line += f", and {then:.6g} configured"
    return line


def _seed_line(layer: str, now: Any, then: Any) -> str:
    trained = "no seed of its own" if then is None else then[0]
    return (
        f"seed of {layer}: {now[0]} as configured now; the checkpoint was trained "
        f"with {trained}"
    )


def _constant_line(name: str, now: Any, then: Any, reader: Reader) -> str:
    if name.rpartition("/")[2] == _ITEMS:
        holder = name.rpartition("/")[0]
        saved = holder in reader.tables
        return (
            f"{holder} has other items as configured now than when {reader.path} was "
            + (
                "saved; the checkpoint's are taken."
                if saved
                else "trained: what was learnt for one may stand for another."
            )
        )
    return (
        f"{name} is {now} as configured now, and was {then} when {reader.path} was "
        f"saved, which holds {reader.value(name)}: that is taken. To have another, "
        "assign it in Hook.begin, or keep it as a Python number."
    )
