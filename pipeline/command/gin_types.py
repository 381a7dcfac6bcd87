"""Checks a value written in gin against a type annotation, which gin itself ignores.

A check that errs would refuse a configuration that runs. So each doubt is a yes: an
annotation that cannot be resolved, and what a call in the value returns.
"""

import collections.abc
import inspect
import types
import typing
from typing import Any

from pipeline.command.gin_reader import Macro, Reference
from pipeline.mistakes.checks import is_int, is_number

_ABSENT = (inspect.Parameter.empty, Any, object)
_SEQUENCES = (
    collections.abc.Sequence,
    collections.abc.Iterable,
    collections.abc.Collection,
    list,
)
_MAPPINGS = (collections.abc.Mapping, collections.abc.MutableMapping, dict)
# Types that no function or class is an instance of: `@name` does not fit them.
_PLAIN = (int, float, bool, str, bytes, type(None), tuple, *_SEQUENCES, *_MAPPINGS)


def accepts(annotation: Any, value: Any) -> bool:
    """Returns whether `value` fits `annotation`, and True where nobody can tell.

    Ints pass for floats and lists for tuples, as gin users write them; bools do not
    pass for ints, nor strings for sequences.

    Args:
      annotation: a parameter's annotation, resolved; `inspect.Parameter.empty` where it
        has none.
      value: a literal or a `Reference`, maybe nested in lists, tuples and dicts. A
        `Reference` that is evaluated fits, as its result is not known yet.
    """
    if annotation in _ABSENT or isinstance(annotation, typing.TypeVar):
        return True
    if isinstance(value, Macro):
        return True
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return accepts(args[0], value)
    if origin in (typing.Union, types.UnionType):
        return any(accepts(choice, value) for choice in args)
    if isinstance(value, Reference):
        return value.evaluate or (
            origin is not typing.Literal
            and (origin or annotation) not in (*_PLAIN, None)
        )
    # The types are compared, too: in Python, True == 1.
    if origin is typing.Literal:
        return any(type(value) is type(arg) and value == arg for arg in args)
    return _accepts_literal(origin or annotation, args, value)


def _accepts_literal(kind: Any, args: tuple[Any, ...], value: Any) -> bool:
    if kind is None:
        return value is None
    if kind is int:
        return is_int(value)
    if kind is float:
        return is_number(value)
    if kind is tuple:
        return isinstance(value, (list, tuple)) and _accepts_items(args, value)
    if kind in _SEQUENCES:
        return isinstance(value, (list, tuple)) and all(
            accepts(arg, item) for arg in args[:1] for item in value
        )
    if kind in _MAPPINGS:
        return isinstance(value, dict) and all(
            accepts(arg, item)
            for arg, items in zip(args, (value.keys(), value.values()), strict=False)
            for item in items
        )
    if kind in (collections.abc.Callable, type):
        return False
    try:
        return isinstance(value, kind)
    except TypeError:  # Not a class, or a Protocol, which isinstance refuses.
        return True


def _accepts_items(args: tuple[Any, ...], value: Any) -> bool:
    if not args:
        return True
    if args[-1] is Ellipsis:
        return all(accepts(args[0], item) for item in value)
    return len(args) == len(value) and all(map(accepts, args, value))
