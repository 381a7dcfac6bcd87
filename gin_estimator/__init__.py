"""The installed name, known in a checkout too: `import gin_estimator as ge`.

setup.py makes one package of this name of `pipeline`, `models` and `inputs`, and
installs that. Here the name stands for those three, so that a project of one's own is
the same text for both. `gin_estimator.x` is the module `pipeline.x` itself, never a
second copy. `gin_estimator.models` is this project's, even where `import models` finds
another package.
"""

import importlib
import importlib.abc
import importlib.util
import pathlib
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pipeline

if TYPE_CHECKING:  # At run time it would import TensorFlow for a mistyped flag, too.
    from pipeline import *  # noqa: F403

_NAME = "gin_estimator"
_ROOT = pathlib.Path(__file__).resolve().parent.parent
_LIBRARIES = ("models", "inputs")

_found = str(next(iter(getattr(pipeline, "__path__", ())), pipeline.__file__))
if pathlib.Path(_found).resolve() != _ROOT / "pipeline":
    raise ImportError(
        f"`import pipeline` found {_found}, not {_ROOT / 'pipeline'}: rename yours, or "
        f"run `pip install {_ROOT}` without --editable, which installs no package of "
        "that name."
    )


class _Finder(importlib.abc.MetaPathFinder):
    """Finds `gin_estimator.x` where `pipeline.x`, `models` and `inputs` are."""

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != _NAME:
            return None
        library = name.partition(".")[0]
        if library not in _LIBRARIES:
            return _same(fullname, f"{pipeline.__name__}.{name}")
        folder = _ROOT / library
        if _is_at(library, folder):
            return _same(fullname, name)
        if name != library:
            return None  # Python finds it in the folder of the package.
        return importlib.util.spec_from_file_location(
            fullname,
            folder / "__init__.py",
            submodule_search_locations=[str(folder)],
        )


class _Same(SourceFileLoader):
    """Gives a module that has another name."""

    def __init__(self, fullname: str, path: str, other: str) -> None:
        super().__init__(fullname, path)
        self._other = other

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._other)
        # Python is about to overwrite it.
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def _same(fullname: str, other: str) -> ModuleSpec | None:
    found = importlib.util.find_spec(other)
    if found is None:
        return None
    return importlib.util.spec_from_file_location(
        fullname,
        found.origin,
        loader=_Same(fullname, found.origin, other),
        submodule_search_locations=found.submodule_search_locations,
    )


def _is_at(name: str, folder: pathlib.Path) -> bool:
    """Whether `import name` finds the package in `folder`."""
    found = importlib.util.find_spec(name)
    places = found.submodule_search_locations if found else None
    return any(pathlib.Path(place).resolve() == folder for place in places or ())


sys.meta_path.insert(0, _Finder())
sys.modules[__name__] = pipeline
