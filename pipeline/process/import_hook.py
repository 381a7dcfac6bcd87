"""Has the first import of a module run in a context, whoever imports it."""

import contextlib
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any

Context = Callable[[], contextlib.AbstractContextManager[None]]


def surround(names: tuple[str, ...], context: Context) -> None:
    """Has the first import of any of the modules run in a context.

    Does nothing where one of them was imported, or where it was called before.

    Args:
      names: names of modules.
      context: function that makes the context.
    """
    hook = _Hook(names, context)
    if not any(name in sys.modules for name in names) and hook not in sys.meta_path:
        sys.meta_path.insert(0, hook)


class _Hook:
    """Finds a module as the other finders do, with a loader that runs in a context."""

    def __init__(self, names: tuple[str, ...], context: Context) -> None:
        self._names = names
        self._context = context

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hook) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self._names, self._context))

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> ModuleSpec | None:
        """Returns the spec of one of the modules; None for all others."""
        if name not in self._names:
            return None
        # Else `importlib.util.find_spec` below would come here again.
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_in_context(module: Any) -> None:
                with self._context():
                    execute(module)

            spec.loader.exec_module = execute_in_context
        return spec
