"""Tells what this package is called and where it lies, in a checkout and installed.

A checkout has the packages `pipeline`, `models` and `inputs` and the folder gin/ side
by side. An installation has one package `gin_estimator`, with `gin_estimator.models`,
`gin_estimator.inputs` and the folder gin/ in it (setup.py makes it). A checkout knows
the name `gin_estimator` too.
"""

import importlib.util
import os
import pathlib
import sys

NAME = __name__.partition(".")[0]
CHECKOUT_NAME = "pipeline"
INSTALLED_NAME = "gin_estimator"
IS_INSTALLED = NAME == INSTALLED_NAME

# The folder of this package. Without resolving links, as stack traces name the files.
PACKAGE_ROOT = pathlib.Path(os.path.abspath(sys.modules[NAME].__file__)).parent
# Where models/, inputs/ and gin/ lie.
HOME = PACKAGE_ROOT if IS_INSTALLED else PACKAGE_ROOT.parent
GIN = HOME / "gin"
# The packages whose functions a gin file has to import.
LIBRARIES = ("models", "inputs")


def defines(kind: type) -> bool:
    """Returns whether a class is one of this package, and not of its user."""
    # None in a class that was made without a module, as by exec.
    return (kind.__module__ or "").startswith(f"{NAME}.")


def library(name: str) -> str:
    """Returns the name by which one of `LIBRARIES` is imported here, such as "models".

    In a checkout the name is "gin_estimator.models" where `import models` finds another
    package, see `other_library`.

    Args:
      name: one of `LIBRARIES`.
    """
    if IS_INSTALLED or other_library(name):
        return f"{INSTALLED_NAME}.{name}"
    return name


def other_library(name: str) -> str | None:
    """Returns the folder of a package `name` of somebody else's; None where ours comes.

    Args:
      name: one of `LIBRARIES`.
    """
    found = importlib.util.find_spec(name)
    places = list((found and found.submodule_search_locations) or ())
    if found and not places:
        return found.origin  # A file models.py.
    folder = (HOME / name).resolve()
    ours = [place for place in places if pathlib.Path(place).resolve() == folder]
    return None if ours or not places else str(places[0])


def other_copy() -> str | None:
    """Returns the folder of a checkout imported beside this installation, or None."""
    other = sys.modules.get(CHECKOUT_NAME) if IS_INSTALLED else None
    path = getattr(other, "__path__", ())
    # The user may have a package `pipeline` of another kind, without this file.
    return next(
        (p for p in path if (pathlib.Path(p) / "process" / "package.py").exists()), None
    )
