"""Leaves modules for later that few programs need.

Keras imports pandas for `fit`, and scikit-learn for its wrappers of it, wherever they
are installed: seconds at the start of each process, and 120 MB in it. Here they are
imported when something of them is asked for.
"""

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from pipeline.process import import_hook

_IMPORTERS = ("keras", "tensorflow")
# Modules, with the classes whose instances Keras will want to know; of Keras itself the
# one that has classes of scikit-learn's.
_LATER = {"keras.wrappers": (), "pandas": ("Series", "DataFrame")}


def leave_for_later() -> None:
    """Has the first import of Keras leave out what it needs for few programs.

    Does nothing where Keras is imported already.
    """
    import_hook.surround(_IMPORTERS, _left_out)


def module(name: str) -> ModuleType | None:
    """Returns a module that is imported when something of it is first asked for.

    Args:
      name: full name of the module.

    Returns:
      What stands for the module; None where its package is not installed.
    """
    package = name.partition(".")[0]
    return _Later(name) if importlib.util.find_spec(package) else None


@contextlib.contextmanager
def _left_out() -> Iterator[None]:
    """Has imports in the block find stand-ins of the modules."""
    names = [name for name in _LATER if name not in sys.modules and _is_there(name)]
    placed = {name: _Later(name) for name in names}
    sys.modules.update(placed)
    try:
        yield
    finally:
        for name, module in placed.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


def _is_there(name: str) -> bool:
    # Keras is not to be imported in order to find a part of it.
    return "." in name or importlib.util.find_spec(name) is not None


class _Later(ModuleType):
    """Stands in the place of a module, until something of it is asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            if name in _LATER[self.__name__]:
                return _Class(name, (), {"__module__": self.__name__})
            # Asked of all modules by whoever looks for the source of a function.
            if name in ("__file__", "__warningregistry__"):
                raise AttributeError(name)
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


class _Class(type):
    """Stands in the place of a class in `isinstance`.

    Where nobody has imported the module there is no instance.
    """

    def __instancecheck__(cls, value: Any) -> bool:
        own = getattr(sys.modules.get(cls.__module__), cls.__name__, ())
        return not isinstance(own, _Class) and isinstance(value, own)
