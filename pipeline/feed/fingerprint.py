"""Describes what an input is made of, so that another process knows it again.

A `tf.data.Dataset` comes in, a `Fingerprint` comes out, which is JSON beside a
checkpoint. It describes the dataset operation by operation, from its sources on: the
data that an operation holds, its arguments, and what its functions compute. It holds
nothing that changes from process to process: no names that TensorFlow numbers, no
handles of resources, no seeds. Large data are sampled, so that they cost no more.

TensorFlow's own `DatasetToGraphV2` and `DatasetFingerprint` copy all data in memory
into one protocol buffer, so the description is made of the Python objects instead.
"""

import dataclasses
import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from pipeline.feed import code_digest
from pipeline.tracing import graph_defs

# Attributes of a node that have no part in what it computes.
_NOT_COMPARED = {
    "config",
    "config_proto",
    "container",
    "executor_type",
    "metadata",
    "seed",
    "seed2",
    "shared_name",
    "token",
}
# Nodes that make the seed of a shuffle inside of a function: a seed is not compared.
_SEED = re.compile(r"(.*/)?seed2?(_\d+)?(/.*)?")
_GENERATOR = "GeneratorDataset"
_GENERATES = "generator "
# Operations whose arguments decide which examples are read: these count as data.
_CHOOSE = {"shard", "skip", "take"}
# Attributes of a dataset object that are not arguments of its operation.
_HIDDEN = {"name", "structure", "seed", "seed2"}
# Types of tensors that hold no data themselves.
HANDLES = (tf.variant, tf.resource)
# Of so many files, at most, the size is asked for; remotely each is a round trip.
_MOST_FILES = 10_000
_MOST_REMOTE_FILES = 16


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation of a dataset.

    Attributes:
      kind: its name, such as "tensor slice" or "batch".
      is_source: whether it reads no other dataset.
      data: the data that it holds, each as text: "float32 [20] #digest".
      arguments: its arguments as text, by name.
      functions: the digest of each of its functions, by the function's name.
    """

    kind: str
    is_source: bool = False
    data: Sequence[str] = ()
    arguments: Mapping[str, str] = dataclasses.field(default_factory=dict)
    functions: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Fingerprint:
    """All operations of a dataset.

    Attributes:
      operations: the operations, sources first.
      made_by: versions of TensorFlow and Python. Digests of functions can be compared
        between equal versions only.
    """

    operations: Sequence[Operation]
    made_by: str

    def as_json(self) -> dict[str, Any]:
        """Returns the fields as JSON, which `from_json` reads."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "Fingerprint":
        """Returns the fingerprint of which `as_json` made `tree`.

        Raises:
          TypeError, KeyError: `tree` has other fields.
        """
        operations = [Operation(**each) for each in tree["operations"]]
        return cls(operations, str(tree["made_by"]))

    @property
    def rows(self) -> int | None:
        """Examples in a batch; None where no operation tells."""
        for operation in reversed(self.operations):
            size = operation.arguments.get("batch_size", "")
            if size.isdigit():
                return int(size)
        return None

    @property
    def digest(self) -> int:
        """A number of 56 bits, the same for equal operations."""
        return int(code_digest.of(repr(self.operations).encode())[:14], 16)


@dataclasses.dataclass(frozen=True)
class Change:
    """The difference between an input and an earlier one.

    Attributes:
      in_data: whether the data are others; else the same data are treated otherwise.
      words: the differences, each as "before -> now".
    """

    in_data: bool
    words: str


def of(dataset: tf.data.Dataset) -> Fingerprint:
    """Describes a dataset, without an iterator over it."""
    return Fingerprint(list(_operations(dataset, set())), code_digest.VERSIONS)


def parts_of(
    dataset: tf.data.Dataset,
) -> tuple[str, list[tf.data.Dataset], dict[str, list[Any]]]:
    """Returns what a dataset's last operation is made of.

    Returns:
      Its kind, such as "tensor slice"; the datasets that it reads, as often as it reads
      each; and what else it holds, as flat lists by the attribute's name.
    """
    inputs, values = [], {}
    for name, value in vars(dataset).items():
        leaves = _leaves(value)
        if any(isinstance(leaf, tf.data.Dataset) for leaf in leaves):
            # Some operations keep the same inputs under two names, such as concatenate.
            known = {id(each) for each in inputs}
            read = [leaf for leaf in leaves if isinstance(leaf, tf.data.Dataset)]
            inputs += [each for each in read if id(each) not in known]
        else:
            values[name.strip("_")] = leaves
    return _kind(type(dataset).__name__), inputs, values


def function_in(value: Any) -> Any:
    """Returns the traced function in tf.data's wrapper of a user's one, or None."""
    function = getattr(value, "function", None)
    return function if hasattr(function, "captured_inputs") else None


def compare(before: Fingerprint, now: Fingerprint) -> Change | None:
    """Returns how `now` differs from `before`; None where it does not."""
    comparable = before.made_by == now.made_by
    olds, news = before.operations, now.operations
    # By default difflib takes frequent items of long sequences for junk.
    matcher = difflib.SequenceMatcher(
        None, [each.kind for each in olds], [each.kind for each in news], autojunk=False
    )
    in_data, words = False, []
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag == "equal":
            for old, new in zip(olds[i:j], news[k:m], strict=True):
                other_data, lines = _compared(old, new, functions=comparable)
                in_data |= other_data
                words += lines
            continue
        gone, added = olds[i:j], news[k:m]
        in_data |= any(o.is_source or o.kind in _CHOOSE for o in (*gone, *added))
        old, new = (" + ".join(o.kind for o in some) for some in (gone, added))
        whole = f"{old} -> {new}" if old and new else ""
        words.append(whole or (f"no {old}" if old else f"{new} added"))
    return Change(in_data, "; ".join(words)) if words else None


def _operations(dataset: tf.data.Dataset, seen: set[int]) -> Iterator[Operation]:
    """Yields the operations that `dataset` reads, then its own, each once."""
    if id(dataset) in seen:
        return
    seen.add(id(dataset))
    kind, inputs, values = parts_of(dataset)
    for each in inputs:
        yield from _operations(each, seen)
    # Options say how a dataset is read, not which data.
    if kind != "options":
        yield _operation(kind, values, is_source=not inputs)


def _operation(
    kind: str, values: Mapping[str, Sequence[Any]], *, is_source: bool
) -> Operation:
    data, texts, functions = [], {}, {}
    for name, leaves in values.items():
        if name in _HIDDEN:
            continue
        for leaf in leaves:
            if (function := function_in(leaf)) is not None:
                title, digest, held, generates = _function(leaf, function)
                data += [*held, *([f"{_GENERATES}{title} #{digest}"] * generates)]
                functions[title] = digest
            elif isinstance(leaf, tf.Tensor) and leaf.shape.rank:
                if is_source:
                    data.append(_held(leaf))
                else:
                    texts.setdefault(name, []).append(_held(leaf))
            elif isinstance(leaf, tf.Tensor) and leaf.dtype not in HANDLES:
                texts.setdefault(name, []).append(str(leaf.numpy()))
            elif isinstance(leaf, (bool, int, float, str, bytes)):
                texts.setdefault(name, []).append(str(leaf))
    arguments = {name: ", ".join(each) for name, each in texts.items()}
    if is_source or kind in _CHOOSE:
        data += [f"{name} {value}" for name, value in arguments.items()]
        arguments = {}
    return Operation(kind, is_source, data, arguments, functions)


def _function(wrapper: Any, function: Any) -> tuple[str, str, list[str], bool]:
    """Returns a function's name, its digest, its data and whether it is a generator."""
    definition = function.graph.as_graph_def()
    library = {each.signature.name: each for each in definition.library.function}
    kinds = {node.op for node in graph_defs.nodes(definition)}
    text = _Digests(library).of_nodes(definition.node)
    if graph_defs.calls_python(definition):
        # The graph names the Python function by a number of this process only.
        text += code_digest.of_function(getattr(wrapper, "_func", None))
    name = function.name
    name = name.decode() if isinstance(name, bytes) else str(name)
    # TensorFlow's prefix and its running number go: another process counts otherwise.
    title = re.sub(r"^__inference_(Dataset_)?|_\d+$", "", name)
    held = [
        _held(tensor)
        for tensor in function.captured_inputs
        if tensor.dtype not in HANDLES and hasattr(tensor, "numpy")
    ]
    return title, code_digest.of(text.encode()), held, _GENERATOR in kinds


class _Digests:
    """Digests of a graph's nodes and functions, independent of the names in them."""

    def __init__(self, library: Mapping[str, Any]) -> None:
        self._library = library
        self._known: dict[str, str] = {}

    def of_nodes(self, nodes: Iterable[Any], arguments: Iterable[str] = ()) -> str:
        """Returns a digest of what `nodes` compute; a node's name is its number."""
        numbers = {name: f"argument {i}" for i, name in enumerate(arguments)}
        lines = []
        kept = [node for node in nodes if not _SEED.fullmatch(node.name)]
        for index, node in enumerate(kept):
            numbers[node.name] = str(index)
            inputs = [_renamed(each, numbers) for each in node.input]
            attributes = [
                f"{name}={self._attribute(node.attr[name])}"
                for name in sorted(node.attr)
                if not name.startswith("_") and name not in _NOT_COMPARED
            ]
            op = self._function(node.op) if node.op in self._library else node.op
            lines.append(f"{op}({inputs}, {attributes})")
        return code_digest.of("\n".join(lines).encode())

    def _attribute(self, value: Any) -> str:
        functions = [value.func] if value.HasField("func") else [*value.list.func]
        if functions:
            return ",".join(self._function(each.name) for each in functions)
        return code_digest.of(value.SerializeToString(deterministic=True))

    def _function(self, name: str) -> str:
        if name not in self._library:
            return name
        if name not in self._known:
            self._known[name] = ""  # Ends the recursion where it calls itself.
            body = self._library[name]
            arguments = [each.name for each in body.signature.input_arg]
            self._known[name] = self.of_nodes(body.node_def, arguments)
        return self._known[name]


def _renamed(text: str, numbers: Mapping[str, str]) -> str:
    """Writes an input of a node, such as "^name" or "name:0", by the node's number."""
    name = graph_defs.name_in(text)
    return text.replace(name, numbers.get(name, "?"), 1)


def _held(tensor: tf.Tensor) -> str:
    """Describes a tensor by its elements, names of files by the files' sizes."""
    if tensor.dtype == tf.string:
        names = tf.reshape(tensor, [-1])
        if are_files(names):
            return _files([os.fsdecode(name) for name in names.numpy()])
    shape = tensor.shape.as_list()
    return f"{tensor.dtype.name} {shape} #{code_digest.of_array(tensor)}"


def are_files(names: tf.Tensor) -> bool:
    """Whether texts name files or folders that are there; the first few are tried.

    Args:
      names: vector of strings.
    """
    some = [os.fsdecode(name) for name in names[:3].numpy()]
    try:
        return bool(some) and all(name and tf.io.gfile.exists(name) for name in some)
    except (tf.errors.OpError, UnicodeError, ValueError):
        return False


def _files(names: Sequence[str]) -> str:
    remote = "://" in names[0]
    most = _MOST_REMOTE_FILES if remote else _MOST_FILES
    paths = names if remote else [os.path.abspath(name) for name in names]
    every = -(-len(paths) // most)
    sizes = []
    for path in paths[::every]:
        try:
            sizes.append(tf.io.gfile.stat(path).length)
        except tf.errors.OpError:
            sizes.append(-1)
    digest = code_digest.of(repr((list(paths), sizes)).encode())
    total = f"{sum(sizes)} bytes" if every == 1 else "of some sizes"
    first = os.path.basename(paths[0])
    return f"files {first}, ... ({len(paths)}, {total}) #{digest}"


def _leaves(value: Any) -> list[Any]:
    """Flattens lists, tuples and mappings; anything else is one leaf."""
    if isinstance(value, Mapping):
        return [leaf for each in value.values() for leaf in _leaves(each)]
    if isinstance(value, (list, tuple)):
        return [leaf for each in value for leaf in _leaves(each)]
    return [value]


def _kind(name: str) -> str:
    """Returns words for a class: "tensor slice" for "_TensorSliceDataset"."""
    name = re.sub(r"Dataset(V\d+)?$|^_+", "", name)
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower() or "dataset"


def _compared(
    old: Operation, new: Operation, *, functions: bool
) -> tuple[bool, list[str]]:
    """Returns whether two operations' data differ, and all differences in words."""
    before, now = (_data_of(each, functions=functions) for each in (old, new))
    other_data = before != now
    words = [
        f"{old.kind}: {_both(a, b)}"
        for a, b in zip(*_as_long(before, now), strict=True)
        if a != b
    ]
    for name in sorted({*old.arguments, *new.arguments}):
        a, b = (each.arguments.get(name, "none") for each in (old, new))
        if a != b:
            words.append(f"{old.kind}: {name} {a} -> {b}")
    if functions and sorted(old.functions.values()) != sorted(new.functions.values()):
        names = [", ".join(each.functions) or "none" for each in (old, new)]
        words.append(f"another function: {' -> '.join(dict.fromkeys(names))}")
    return other_data, words


def _data_of(operation: Operation, *, functions: bool) -> list[str]:
    """Returns an operation's data; without `functions`, generators have no digest."""
    return [
        each.partition(" #")[0]
        if each.startswith(_GENERATES) and not functions
        else each
        for each in operation.data
    ]


def _as_long(old: Sequence[str], new: Sequence[str]) -> tuple[list[str], list[str]]:
    """Fills up the shorter list with "nothing"."""
    size = max(len(old), len(new))
    return (
        [*old, *["nothing"] * (size - len(old))],
        [*new, *["nothing"] * (size - len(new))],
    )


def _both(old: str, new: str) -> str:
    """Says in words how two descriptions of data differ, without their digests."""
    before, now = (text.partition(" #")[0] for text in (old, new))
    if before == now:
        return f"{now} of other content"
    name, _, value = now.rpartition(" ")
    if before.startswith(f"{name} "):
        return f"{before} -> {value}"
    return f"{before} -> {now}"
