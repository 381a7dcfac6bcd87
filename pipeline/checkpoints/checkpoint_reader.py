"""Reads a checkpoint: names, shapes, and values that are checked.

Each value has a checksum, which TensorFlow compares only when the value is read. So
whoever sets variables from a checkpoint reads all of the values first: a damaged one
then leaves every variable as it was.
"""

import collections
import contextlib
import functools
import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from pipeline.model_dir import paths
from pipeline.process.refusals import Refusal
from pipeline.strategy.sharding import ShardedVariable, shards_of

_VARIABLE = "/.ATTRIBUTES/VARIABLE_VALUE"
_TABLE = "/.ATTRIBUTES/table-keys"
_TABLE_VALUES = "/.ATTRIBUTES/table-values"
# From here on a value is not held while others are read.
_LARGE_BYTES = 32 * 2**20
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


class UnreadableCheckpointError(Refusal, RuntimeError):
    """A checkpoint of which a file is missing, cut short or damaged."""


class Reader:
    """The content of one checkpoint.

    Attributes:
      path: its path prefix.
      shapes: shape of each variable by its name, `network/conv2d/kernel`.
      tables: key of each lookup table, without TensorFlow's suffix, by its name.
    """

    def __init__(self, path: str) -> None:
        """Opens the checkpoint, and reads its index.

        Args:
          path: checkpoint path prefix.

        Raises:
          UnreadableCheckpointError: its index is missing or damaged.
        """
        self.path = path
        with self._reported():
            self._reader = tf.train.load_checkpoint(path)
            shapes = self._reader.get_variable_to_shape_map()
            self._dtypes = self._reader.get_variable_to_dtype_map()
        self._keys = self._named(shapes)
        self.shapes = {name: shapes[key] for name, key in self._keys.items()}
        self.tables = {
            name: key.removesuffix(_TABLE)
            for name, key in _by_name(shapes, _TABLE).items()
        }

    def take_names(self, wanted: Sequence[str]) -> None:
        """Calls variables that Keras had named by its counter as a model does now.

        Earlier versions have saved such names: the third variable that was given none
        in a process was `variable_2`, the third LSTM of two ways `forward_lstm_2`.

        Args:
          wanted: names of the model's variables, in its order.
        """
        new = _counted_names(wanted, list(self._keys)) | _both_ways(
            set(wanted), self._keys
        )
        self._keys = {new.get(name, name): key for name, key in self._keys.items()}
        self.shapes = {new.get(name, name): s for name, s in self.shapes.items()}

    def _named(self, shapes: Mapping[str, Any]) -> dict[str, str]:
        """Returns the keys of variables by their names."""
        return _by_name(shapes, _VARIABLE)

    def dtype(self, name: str) -> tf.DType:
        """Returns the dtype of a variable that is there."""
        return self._dtypes[self._keys[name]]

    def value(self, name: str) -> Any:
        """Returns the value of a variable that is there, as an array.

        Raises:
          UnreadableCheckpointError: the value is cut short or damaged.
        """
        return self._tensor(self._keys[name])

    def assign(
        self, pairs: Sequence[tuple[Any, str]], *, in_place: bool = False
    ) -> None:
        """Sets variables, all of them or none.

        Args:
          pairs: variables, each with the name of its value in the checkpoint.
          in_place: whether each large variable gives up its memory before its value is
            read, so that no two are there. Where one cannot be read it is NaN then, and
            those before it are set.

        Raises:
          UnreadableCheckpointError: a value is cut short or damaged; nothing was set,
            unless in place.
        """
        # A large value is read twice, once to check it, then to set it: one at a time
        # is in memory. A table in shards is read by shards, as it may not fit whole.
        large = [pair for pair in pairs if _num_bytes(pair[0]) >= _LARGE_BYTES]
        large_ids = {id(variable) for variable, _ in large}
        small = [pair for pair in pairs if id(pair[0]) not in large_ids]
        values = [self.value(name) for _, name in small]
        for pair in large:
            if not (in_place and _copies(pair[0])):
                # In a loop the last value would stay while the next one is read.
                collections.deque(self._parts(*pair), maxlen=0)
        for (variable, _), value in zip(small, values, strict=True):
            variable.assign(value)
        for pair in large:
            self._replace(*pair) if in_place else self._set(*pair)

    def _set(self, variable: Any, name: str) -> None:
        for part, value in self._parts(variable, name):
            # The model may be of another dtype than the checkpoint.
            part.assign(tf.cast(value, part.dtype))

    def _replace(self, variable: Any, name: str) -> None:
        """Sets a variable to a value that is read once it has given up its own."""
        copies = _copies(variable)
        if not copies:
            self._set(variable, name)
            return
        try:
            _put(copies, tf.zeros([0], variable.dtype))
            ((_, value),) = self._parts(variable, name)
            _put(copies, tf.cast(value, variable.dtype))
        except BaseException:
            # Whoever reads an empty variable computes with nothing, in silence.
            lost = tf.constant(math.nan, variable.dtype)
            _put(copies, tf.fill(variable.shape, lost))
            raise

    def _parts(self, variable: Any, name: str) -> Iterator[tuple[Any, tf.Tensor]]:
        """Yields a variable, or each shard of one, with its value: one in memory."""
        key, first = self._keys[name], 0
        if not isinstance(variable, ShardedVariable):
            yield variable, self._restored(key, "", self._dtypes[key])
            return
        shape = " ".join(map(str, variable.shape))
        for shard in shards_of(variable):
            rows = shard.shape[0]
            # As RestoreV2 wants it: "100 8 0,50:-" is rows 0 to 49 of a table [100, 8].
            slices = ":".join([f"{first},{rows}", *["-"] * (len(shard.shape) - 1)])
            yield shard, self._restored(key, f"{shape} {slices}", shard.dtype)
            first += rows

    def _restored(self, key: str, part: str, dtype: tf.DType) -> tf.Tensor:
        with self._reported():
            (value,) = tf.raw_ops.RestoreV2(
                prefix=self.path,
                tensor_names=[key],
                shape_and_slices=[part],
                dtypes=[dtype],
            )
        return value

    def place_of(self, name: str) -> list[str]:
        """Returns the path of a lookup table in the checkpoint's tree."""
        return [_unescaped(part) for part in self.tables[name].split("/")]

    def check_table(self, name: str) -> None:
        """Reads all that TensorFlow reads in order to restore a table."""
        place = self.tables[name]
        for key in (_OBJECT_GRAPH, place + _TABLE, place + _TABLE_VALUES):
            self._tensor(key)

    def check(self) -> None:
        """Reads everything: variables, tables and the positions of iterators.

        Raises:
          UnreadableCheckpointError: a value is cut short or damaged.
        """
        for key, dtype in self._dtypes.items():
            # `get_tensor` makes arrays, and an iterator's state is a variant.
            self._restored(key, "", dtype)

    def _tensor(self, key: str) -> Any:
        with self._reported():
            return self._reader.get_tensor(key)

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """Turns TensorFlow's errors of reading into UnreadableCheckpointError."""
        try:
            yield
        # The reader's own statuses arrive as one of these two.
        except (tf.errors.OpError, IndexError) as error:
            raise UnreadableCheckpointError(
                f"checkpoint {self.path} cannot be read: {self._reason(error)}. Give "
                "another one, or restore its files from a copy."
            ) from error

    def _reason(self, error: Exception) -> str:
        if not tf.io.gfile.exists(f"{self.path}.index"):
            return f"there is no {self.path}.index"
        if paths.is_pattern(self.path):
            text = "TensorFlow takes '[a]' and a backslash in its path for a pattern"
            return f"{text}: rename the folder"
        # Without the name of TensorFlow's operation.
        line = str(error).partition("\n")[0].rpartition("}} ")[2].partition(" [Op:")[0]
        if isinstance(error, (IndexError, tf.errors.OutOfRangeError)):
            return f"one of its files is cut short ({line})"
        return line.rstrip(".")


def _num_bytes(variable: Any) -> float:
    """Returns the size of a variable; of one in shards it counts as endless."""
    if isinstance(variable, ShardedVariable):
        return math.inf
    return (variable.shape.num_elements() or 0) * variable.dtype.size


def _copies(variable: Any) -> Sequence[Any]:
    """Returns the variables of this machine's CPUs that one stands for, if all are.

    Empty for one of integers, for one in shards or of parameter servers, and for one
    whose replicas hold different values.
    """
    if isinstance(variable, ShardedVariable) or not variable.dtype.is_floating:
        return ()
    copies = (variable,)
    if isinstance(variable, tf.distribute.DistributedValues):
        if variable.synchronization == tf.VariableSynchronization.ON_READ:
            return ()
        copies = variable.values
    here = all(
        "CPU" in each.device and "/job:ps/" not in each.device for each in copies
    )
    return copies if here else ()


def _put(copies: Sequence[Any], value: tf.Tensor) -> None:
    """Sets variables to a value of any shape, which `assign` would refuse."""
    for copy in copies:
        with tf.device(copy.device):
            tf.raw_ops.AssignVariableOp(
                resource=copy.handle, value=value, validate_shape=False
            )


def _by_name(keys: Any, suffix: str) -> dict[str, str]:
    """Returns, by name, the keys `module/index/name` that end in `suffix`."""
    names = {}
    for key in sorted(keys):
        pattern = r"([^/]+)/\d+((?:/.+)?)" + re.escape(suffix)
        if match := re.fullmatch(pattern, key, re.DOTALL):
            module = _unescaped(match[1])
            # The dot of a name that was taken, see `key_of`.
            if module == key_of(module[:-1]):
                module = module[:-1]
            names[module + _unescaped(match[2])] = key
    return names


def _counted_names(wanted: Sequence[str], saved: Sequence[str]) -> dict[str, str]:
    """Returns names of a model by the names that a counter gave to the same variables.

    Those of one layer follow each other in both; a slot's name ends in its variable's.

    Args:
      wanted: names of the model's variables, in its order.
      saved: names in a checkpoint, in its order.
    """
    mine, theirs = _unnamed(wanted), _unnamed(saved)
    new_names: dict[str, str] = {}
    for above, names in mine.items():
        in_order = [f"{above}/variable{f'_{i}' * (i > 0)}" for i in range(len(names))]
        # Else they are the names of attributes, or of slots.
        if names == in_order and len(theirs.get(above, ())) == len(names):
            new_names |= zip(theirs.pop(above), names, strict=True)
    for name in itertools.chain.from_iterable(theirs.values()):
        for old, new in list(new_names.items()):
            if name.endswith(f"/{old}"):
                new_names[name] = name.removesuffix(old) + new
    return new_names


def _both_ways(wanted: Collection[str], saved: Collection[str]) -> dict[str, str]:
    """Returns names of a model by those that had the counter of a bidirectional layer.

    Args:
      wanted: names of the model's variables.
      saved: names in a checkpoint.
    """
    news = {
        old: re.sub(r"(?<=/)((?:forward|backward)_[^/]+?)_\d+(?=/)", r"\1", old)
        for old in saved
    }
    # Where two would become one they are no such pair, but the user's own names.
    counts = collections.Counter(news.values())
    return {
        old: new
        for old, new in news.items()
        if new in wanted and old not in wanted and counts[new] == 1
    }


def _unnamed(names: Sequence[str]) -> dict[str, list[str]]:
    """Returns the names of variables that were given none, by those of their layers."""
    found: dict[str, list[str]] = {}
    for name in names:
        above, _, own = name.rpartition("/")
        if re.fullmatch(r"variable(_\d+)?", own):
            found.setdefault(above, []).append(name)
    return found


def key_of(module: str) -> str:
    """Returns a module's name in the checkpoint's tree: a dot follows a taken name."""
    return f"{module}." if module in _taken() else module


@functools.cache
def _taken() -> frozenset[str]:
    """Returns the names of the arguments and attributes of `tf.train.Checkpoint`."""
    return frozenset({"root", "self", *dir(tf.train.Checkpoint())})


def _unescaped(key: str) -> str:
    """Undoes TensorFlow's escape of dots in attribute names."""
    return key.replace("..", ".")


def insert(node: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Puts a value into nested dicts, which it makes along the path.

    Args:
      node: dict of the checkpoint's tree.
      path: keys from there on.
      value: what to put there.
    """
    # Dicts and no `tf.train.Checkpoint`s, which take "root" and "self" for arguments.
    for part in path[:-1]:
        node = node.setdefault(part, {})
    node[path[-1]] = value
