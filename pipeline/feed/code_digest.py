"""Digests of arrays and of Python functions, the same in each process.

Of an array larger than 16 MiB samples are read, so that its digest costs no more. The
digest of a function covers its code, the functions that it calls, and the values that
they see; of classes and modules what the code names, methods of bases too. It ends at
libraries: the version of TensorFlow and Python is compared apart.
Of a program's settings, absl's flags, argparse's values and dataclasses, it covers
those that the code reads: another number of steps makes no other input.
"""

import argparse
import array
import collections
import dataclasses
import datetime
import decimal
import dis
import enum
import functools
import hashlib
import logging
import os
import platform
import re
import sys
import sysconfig
import types
from collections.abc import Iterable, Mapping, MappingView
from typing import Any

import numpy as np
import tensorflow as tf
from absl import flags

# Digests of functions can be compared between equal versions only.
VERSIONS = f"tensorflow {tf.__version__}, python {platform.python_version()}, digests 3"
_SAMPLES = 1024
_SAMPLE_BYTES = 16 * 1024
_MOST_STRINGS = 10_000
_MOST_VALUES = 2_000
# Types whose `repr` tells values apart and holds no address.
_PLAIN = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    range,
    np.generic,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
)
# A program's settings, of which code reads some by name.
_SETTINGS = (flags.FlagValues, argparse.Namespace, types.SimpleNamespace)
# Instructions that load a global or closed-over name, in Python 3.11 to 3.13.
_LOADS = (
    "LOAD_GLOBAL",
    "LOAD_NAME",
    "LOAD_DEREF",
    "LOAD_CLASSDEREF",
    "LOAD_FROM_DICT_OR_DEREF",
    "LOAD_FROM_DICT_OR_GLOBALS",
)
# Methods that code calls without their names.
_UNNAMED = ("__call__", "__getitem__", "__iter__", "__len__", "__next__")
_MAKING = ("__init__", "__new__", "__post_init__")
_LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
)


def of(data: bytes) -> str:
    """Returns the digest of bytes, as 16 hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def of_array(value: Any) -> str:
    """Returns the digest of an array's shape, dtype and elements.

    Of more than 16 MiB, 1024 pieces of 16 KiB are read, from all over the array; of
    more than 10,000 strings, or rows of a ragged or sparse tensor, each n-th.

    Args:
      value: numpy array or eager tensor, of any dtype.
    """
    if isinstance(value, tf.Tensor) and value.dtype == tf.string:
        flat = tf.reshape(value, [-1])
        value = flat[:: max(1, int(tf.size(flat)) // _MOST_STRINGS)].numpy()
    if isinstance(value, tf.Tensor) and value.dtype == tf.variant:
        some = value[:: max(1, value.shape[0] // _MOST_STRINGS)]
        value = np.frombuffer(tf.io.serialize_tensor(some).numpy(), np.uint8)
    # A tensor's `numpy()` would copy all of it.
    elements = value if isinstance(value, np.ndarray) else _view(value)
    if elements.dtype.hasobject:
        flat = elements.reshape(-1)
        some = flat[:: max(1, flat.size // _MOST_STRINGS)]
        texts = [repr(elements.shape), *map(_text, some.tolist())]
        return of(f"[{', '.join(texts)}]".encode())
    if not elements.flags.c_contiguous:
        elements = np.ascontiguousarray(elements)
    data = elements.reshape(-1).view(np.uint8)
    digest = hashlib.blake2b(
        f"{elements.shape} {elements.dtype}".encode(), digest_size=8
    )
    if data.size <= _SAMPLES * _SAMPLE_BYTES:
        digest.update(data)
    else:
        last = data.size - _SAMPLE_BYTES
        for index in range(_SAMPLES):
            start = last * index // (_SAMPLES - 1)
            digest.update(data[start : start + _SAMPLE_BYTES])
    return digest.hexdigest()


def of_function(function: Any) -> str:
    """Returns the digest of a callable: its code, its closure, the globals it names."""
    seen = _Seen()
    return of("\n".join([*seen.lines(function), *seen.named_lines()]).encode())


def _view(tensor: Any) -> np.ndarray:
    """Returns a tensor as an array, without a copy where its dtype allows that."""
    try:
        return np.asarray(memoryview(tensor))
    except (TypeError, ValueError, BufferError):
        return np.asarray(tensor)


class _Seen:
    """Describes values as lines of text, each value once."""

    def __init__(self) -> None:
        self._ids: dict[int, int] = {}
        self._kept: list[Any] = []
        # The user's classes and modules, and the names that code may look up in them.
        self._owners: dict[int, tuple[Any, set[str]]] = {}
        self._names: set[str] = set()

    def lines(self, value: Any) -> Iterable[str]:
        """Yields the lines that describe a value and all that it refers to."""
        if isinstance(value, (*_PLAIN, os.PathLike, re.Pattern)):
            yield _text(value)
            return
        if id(value) in self._ids:
            yield f"again {self._ids[id(value)]}"
            return
        # Enough to tell functions apart; a model in a closure has many thousands.
        if len(self._ids) >= _MOST_VALUES:
            return
        self._ids[id(value)] = len(self._ids)
        self._kept.append(value)  # Else it might die, and another get its id.
        if isinstance(value, functools.partial):
            yield "partial"
            yield from self._all([value.func, value.args, value.keywords])
        elif isinstance(value, types.MethodType):
            yield from self._all([value.__func__, value.__self__])
        elif isinstance(value, types.FunctionType):
            yield from self._function(value)
        elif isinstance(value, types.CodeType):
            yield from self._code(value)
        elif isinstance(value, (np.ndarray, tf.Tensor)):
            yield self._array(value)
        elif isinstance(value, flags.FlagHolder):
            yield from self.lines(_value_of(value))
        elif isinstance(value, flags.FlagValues):
            yield from self.lines(_flags_of(value))
        elif isinstance(value, logging.Logger):
            yield "logger"  # It changes with what is logged.
        elif isinstance(value, Mapping):
            yield "mapping"
            yield from self._all([part for item in value.items() for part in item])
        elif isinstance(value, (list, tuple, collections.deque, MappingView)):
            yield type(value).__name__
            yield from self._all(value)
        elif isinstance(value, (bytearray, memoryview, array.array)):
            yield of(bytes(value))
        elif _is_of_pandas(value):
            yield from self._of_pandas(value)
        elif isinstance(value, (set, frozenset)):
            yield f"set {sorted(map(_text, value))}"
        else:
            yield from self._object(value)

    def named_lines(self) -> Iterable[str]:
        """Yields what describes the attributes that code reads of classes and modules.

        What is described may bring more code, and with it more names.
        """
        done, size = set(), -1
        while size < len(done):
            size = len(done)
            for owner, unnamed in [*self._owners.values()]:
                held = vars(owner)
                for name in sorted((self._names | unnamed) & {*held}):
                    if (id(owner), name) not in done:
                        done.add((id(owner), name))
                        yield f"{owner.__name__} {name}"
                        yield from self.lines(_unbound(held[name]))

    def _look_in(self, owner: Any, *unnamed: str) -> None:
        """Has `named_lines` look up names in a class and its bases, or in a module."""
        for each in getattr(owner, "__mro__", [owner]):
            if _is_users(each):
                _, names = self._owners.setdefault(id(each), (each, set()))
                names.update(unnamed)

    def _all(self, values: Iterable[Any]) -> Iterable[str]:
        for each in values:
            yield from self.lines(each)

    def _function(self, value: types.FunctionType) -> Iterable[str]:
        yield f"function {value.__qualname__.rpartition('.')[2]}"
        # A library's function is known by its name; its closure may hold the user's.
        if _is_library(value.__code__.co_filename) and not value.__closure__:
            return
        yield from self._code(value.__code__)
        yield from self._all([value.__defaults__, value.__kwdefaults__])
        code = value.__code__
        for name, cell in zip(code.co_freevars, value.__closure__ or (), strict=True):
            try:
                held = cell.cell_contents
            except ValueError:  # Not set yet.
                yield "empty"
                continue
            yield from self._used(code, name, held)
        if _is_library(code.co_filename):
            return
        for name in _names(code):
            if name in value.__globals__:
                yield name
                yield from self._used(code, name, value.__globals__[name])

    def _used(self, code: types.CodeType, name: str, value: Any) -> Iterable[str]:
        """Yields what describes a value that the code has under a name."""
        read = _read_of(code, name) if _are_settings(value) else None
        if read is None:
            yield from self.lines(value)
            return
        flagged = isinstance(value, flags.FlagValues)
        held = _flags_of(value) if flagged else _attributes(value)
        # A method, or what its class has, may read any of them.
        yield from self.lines(
            {x: held[x] for x in sorted(read)} if read <= {*held} else value
        )

    def _code(self, code: types.CodeType) -> Iterable[str]:
        yield of(code.co_code)
        yield repr(code.co_names)
        self._names.update(code.co_names)
        yield from self._all(code.co_consts)

    def _of_pandas(self, value: Any) -> Iterable[str]:
        """Yields what describes a frame by its columns, a series, or an index."""
        yield type(value).__name__
        if hasattr(value, "index"):
            yield from self.lines(value.index)
        for name, column in value.items() if value.ndim == 2 else [("", value)]:
            yield _text(name)
            yield of_array(np.asarray(column))

    def _array(self, value: Any) -> str:
        hidden = value.dtype in (tf.variant, tf.resource) or not hasattr(value, "numpy")
        if isinstance(value, tf.Tensor) and hidden:
            return value.dtype.name
        return of_array(value)

    def _object(self, value: Any) -> Iterable[str]:
        yield type(value).__qualname__
        if isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)):
            yield value.__name__
            self._look_in(value, *_UNNAMED, *_MAKING)
            return
        self._look_in(type(value), *_UNNAMED)
        library = type(value).__module__.partition(".")[0] in ("tensorflow", "keras")
        for name, each in sorted(_attributes(value).items()):
            # TensorFlow's and Keras' objects count and cache things in attributes: only
            # the callables in them are the user's.
            if not library or callable(each):
                yield name
                yield from self.lines(each)


def _is_of_pandas(value: Any) -> bool:
    """Whether a value is a DataFrame, Series or Index; pandas may not be installed."""
    of_pandas = type(value).__module__.partition(".")[0] == "pandas"
    return of_pandas and hasattr(value, "__array__") and hasattr(value, "ndim")


def _text(value: Any) -> str:
    """Returns a value as one line, without the address that a `repr` may hold."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, enum.Enum):
        return f"{value} {_text(value.value)}"
    if isinstance(value, os.PathLike):
        return repr(os.fspath(value))
    if isinstance(value, re.Pattern):  # Its `repr` stops after 200 characters.
        return repr((value.pattern, value.flags))
    if isinstance(value, np.ndarray):
        return of_array(value)
    kind = type(value).__qualname__
    if isinstance(value, Mapping):
        return f"{kind} {[_text(part) for item in value.items() for part in item]}"
    if isinstance(value, (list, tuple)):
        return f"{kind} {[_text(each) for each in value]}"
    if isinstance(value, (set, frozenset)):
        return f"{kind} {sorted(map(_text, value))}"
    return str(getattr(value, "__qualname__", kind))


def _unbound(value: Any) -> Any:
    """Returns the function of a class' attribute, if it wraps one."""
    if isinstance(value, property):
        return value.fget
    if isinstance(value, functools.cached_property):
        return value.func
    return value.__func__ if isinstance(value, (classmethod, staticmethod)) else value


def _is_users(owner: Any) -> bool:
    """Whether a class or a module is of the program, and of no library."""
    of_class = isinstance(owner, type)
    module = sys.modules.get(owner.__module__) if of_class else owner
    file = getattr(module, "__file__", None)
    # A notebook's module has no file.
    return not _is_library(file) if file else module is sys.modules["__main__"]


def _attributes(value: Any) -> dict[str, Any]:
    """Returns an object's attributes by name, with the values in its slots."""
    held = dict(getattr(value, "__dict__", {}))
    for each in type(value).__mro__:
        slots = vars(each).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            # Python stores a private slot under a name with the class's.
            if name.startswith("__") and not name.endswith("__"):
                name = f"_{each.__name__.lstrip('_')}{name}"
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                held[name] = getattr(value, name)
    return held


def _names(code: types.CodeType) -> Iterable[str]:
    """Yields the names that a function and the functions inside of it use."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _names(each)


def _are_settings(value: Any) -> bool:
    """Whether code that names a value may read some of its attributes, by name."""
    if isinstance(value, type):
        return False
    return isinstance(value, _SETTINGS) or dataclasses.is_dataclass(value)


def _read_of(code: types.CodeType, name: str) -> set[str] | None:
    """Returns the attributes of a name that code reads; None where it does more.

    Args:
      code: of a function; those inside of it are asked, too.
      name: a global or closed-over name, which the code may hand on as a whole.
    """
    found = set()
    steps = [x for x in dis.get_instructions(code) if x.opname != "EXTENDED_ARG"]
    for step, after in zip(steps, steps[1:], strict=False):
        if step.opname in _LOADS and step.argval == name:
            if after.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                return None
            found.add(after.argval)
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            inside = _read_of(each, name)
            if inside is None:
                return None
            found |= inside
    return found


def _value_of(holder: flags.FlagHolder) -> Any:
    """Returns a flag's value, before it is parsed its default."""
    try:
        return holder.value
    except flags.UnparsedFlagAccessError:
        return holder.default


def _flags_of(values: flags.FlagValues) -> dict[str, Any]:
    """Returns the flags' values by name, before they are parsed, too."""
    return {name: values[name].value for name in sorted(values)}


def _is_library(file: str) -> bool:
    return file.startswith((*_LIBRARIES, "<frozen")) or "site-packages" in file
