"""What an input is made of, so that another process knows it again.

A dataset is described operation by operation, from its sources on: what they hold, what
they were given, what their functions compute. A description depends on nothing that is
another in the next process: no names that TensorFlow counts up, no handles of
resources, no seeds. It costs no more for large data, of which it takes samples.

TensorFlow's own `DatasetToGraphV2` and `DatasetFingerprint` copy all data in memory
into one protocol buffer, so the description is made of the Python objects instead.
"""

import dataclasses
import difflib
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from pipeline import code_digest

# Attributes of an operation that change how it computes, or its name, not what.
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
# What comes to the seed of a shuffle inside of a function.
_SEED = re.compile(r"(.*/)?seed2?(_\d+)?(/.*)?")
# What calls Python; the graph knows it by a number of this process.
_PYTHON_OPS = {"PyFunc", "EagerPyFunc", "PyFuncStateless"}
_GENERATOR = "GeneratorDataset"
_GENERATES = "generator "
# They choose data, by what they are given.
_CHOOSE = {"shard", "skip", "take"}
# A dataset's attributes that are no arguments.
_HIDDEN = {"name", "structure", "seed", "seed2"}
_HANDLES = (tf.variant, tf.resource)
_MOST_FILES = 10_000
_MOST_REMOTE_FILES = 16


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation of a dataset.

    Attributes:
      kind: such as "tensor slice" or "batch".
      is_source: whether it reads no other dataset.
      data: what it holds, each as "float32 [20] #digest".
      arguments: as text, by name.
      functions: digest by the function's name.
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
      operations: from the sources on.
      made_by: versions of TensorFlow and Python; functions of other ones cannot be
        compared.
    """

    operations: Sequence[Operation]
    made_by: str

    def as_json(self) -> dict[str, Any]:
        """What `from_json` takes."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "Fingerprint":
        """The fingerprint that `as_json` gave.

        Raises:
          TypeError, KeyError: it is none.
        """
        operations = [Operation(**each) for each in tree["operations"]]
        return cls(operations, str(tree["made_by"]))

    @property
    def rows(self) -> int | None:
        """Examples in a batch, None where no operation tells."""
        for operation in reversed(self.operations):
            size = operation.arguments.get("batch_size", "")
            if size.isdigit():
                return int(size)
        return None

    @property
    def digest(self) -> int:
        """A number that fingerprints of equal operations share."""
        return int(code_digest.of(repr(self.operations).encode())[:14], 16)


@dataclasses.dataclass(frozen=True)
class Change:
    """How an input differs from an earlier one.

    Attributes:
      in_data: whether it holds other data; else it is the same data, treated otherwise.
      words: what differs, before -> now.
    """

    in_data: bool
    words: str


def of(dataset: tf.data.Dataset) -> Fingerprint:
    """Describes a dataset, of which no iterator was made yet."""
    made_by = f"tensorflow {tf.__version__}, python {platform.python_version()}"
    return Fingerprint(list(_operations(dataset, set())), made_by)


def compare(before: Fingerprint, now: Fingerprint) -> Change | None:
    """How `now` differs from `before`; None where it does not."""
    comparable = before.made_by == now.made_by
    olds, news = before.operations, now.operations
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
    """Those that `dataset` reads, then its own."""
    if id(dataset) in seen:
        return
    seen.add(id(dataset))
    inputs, values = [], {}
    for name, value in vars(dataset).items():
        leaves = _leaves(value)
        if any(isinstance(leaf, tf.data.Dataset) for leaf in leaves):
            inputs += [leaf for leaf in leaves if isinstance(leaf, tf.data.Dataset)]
        else:
            values[name.strip("_")] = leaves
    for each in inputs:
        yield from _operations(each, seen)
    kind = _kind(type(dataset).__name__)
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
            function = getattr(leaf, "function", None)
            if hasattr(function, "captured_inputs"):
                title, digest, held, generates = _function(leaf, function)
                data += [*held, *([f"{_GENERATES}{title} #{digest}"] * generates)]
                functions[title] = digest
            elif isinstance(leaf, tf.Tensor) and leaf.shape.rank:
                if is_source:
                    data.append(_held(leaf))
                else:
                    texts.setdefault(name, []).append(_held(leaf))
            elif isinstance(leaf, tf.Tensor) and leaf.dtype not in _HANDLES:
                texts.setdefault(name, []).append(str(leaf.numpy()))
            elif isinstance(leaf, (bool, int, float, str, bytes)):
                texts.setdefault(name, []).append(str(leaf))
    arguments = {name: ", ".join(each) for name, each in texts.items()}
    if is_source or kind in _CHOOSE:
        data += [f"{name} {value}" for name, value in arguments.items()]
        arguments = {}
    return Operation(kind, is_source, data, arguments, functions)


def _function(wrapper: Any, function: Any) -> tuple[str, str, list[str], bool]:
    """Name, digest, what it holds, and whether it runs a generator."""
    definition = function.graph.as_graph_def()
    library = {each.signature.name: each for each in definition.library.function}
    nodes = [*definition.node]
    for each in library.values():
        nodes += each.node_def
    kinds = {node.op for node in nodes}
    text = _Digests(library).of_nodes(definition.node)
    if kinds & _PYTHON_OPS:
        # What it calls is not in the graph.
        text += code_digest.of_function(getattr(wrapper, "_func", None))
    name = function.name
    name = name.decode() if isinstance(name, bytes) else str(name)
    title = re.sub(r"^__inference_(Dataset_)?|_\d+$", "", name)
    held = [
        _held(tensor)
        for tensor in function.captured_inputs
        if tensor.dtype not in _HANDLES and hasattr(tensor, "numpy")
    ]
    return title, code_digest.of(text.encode()), held, _GENERATOR in kinds


class _Digests:
    """Digests of a graph's nodes and functions, whatever the names in them."""

    def __init__(self, library: Mapping[str, Any]) -> None:
        self._library = library
        self._known: dict[str, str] = {}

    def of_nodes(self, nodes: Iterable[Any], arguments: Iterable[str] = ()) -> str:
        """What `nodes` compute, in their order, by which they are told apart."""
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
            self._known[name] = ""  # One that calls itself.
            body = self._library[name]
            arguments = [each.name for each in body.signature.input_arg]
            self._known[name] = self.of_nodes(body.node_def, arguments)
        return self._known[name]


def _renamed(text: str, numbers: Mapping[str, str]) -> str:
    """An input of a node, such as "^name" or "name:0", by the node's number."""
    name, colon, output = text.lstrip("^").partition(":")
    return f"{'^' * text.startswith('^')}{numbers.get(name, '?')}{colon}{output}"


def _held(tensor: tf.Tensor) -> str:
    """What a tensor holds; of names of files, their sizes."""
    if tensor.dtype == tf.string:
        names = tf.reshape(tensor, [-1])
        if _are_files(names):
            return _files([os.fsdecode(name) for name in names.numpy()])
    shape = tensor.shape.as_list()
    return f"{tensor.dtype.name} {shape} #{code_digest.of_array(tensor)}"


def _are_files(names: tf.Tensor) -> bool:
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
    """A nest of lists, tuples and mappings as a list; anything else is one leaf."""
    if isinstance(value, Mapping):
        return [leaf for each in value.values() for leaf in _leaves(each)]
    if isinstance(value, (list, tuple)):
        return [leaf for each in value for leaf in _leaves(each)]
    return [value]


def _kind(name: str) -> str:
    """Such as "tensor slice" for "_TensorSliceDataset"."""
    name = re.sub(r"Dataset(V\d+)?$|^_+", "", name)
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower() or "dataset"


def _compared(
    old: Operation, new: Operation, *, functions: bool
) -> tuple[bool, list[str]]:
    """Whether the data of two operations differ, and all that differs in words."""
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
    """Returns what it holds; of generators their digests only with other functions'."""
    return [
        each.partition(" #")[0]
        if each.startswith(_GENERATES) and not functions
        else each
        for each in operation.data
    ]


def _as_long(old: Sequence[str], new: Sequence[str]) -> tuple[list[str], list[str]]:
    size = max(len(old), len(new))
    return (
        [*old, *["nothing"] * (size - len(old))],
        [*new, *["nothing"] * (size - len(new))],
    )


def _both(old: str, new: str) -> str:
    """Two descriptions of data that differ, without their digests."""
    before, now = (text.partition(" #")[0] for text in (old, new))
    if before == now:
        return f"{now} of other content"
    name, _, value = now.rpartition(" ")
    if before.startswith(f"{name} "):
        return f"{before} -> {value}"
    return f"{before} -> {now}"
