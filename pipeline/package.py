"""What this package is called and where it lies, in a checkout and installed.

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

# As stack traces name it: links are not resolved.
FOLDER = pathlib.Path(os.path.abspath(__file__)).parent
# Where models/, inputs/ and gin/ lie.
HOME = FOLDER if IS_INSTALLED else FOLDER.parent
GIN = HOME / "gin"
# The packages whose functions a gin file has to import.
LIBRARIES = ("models", "inputs")


def library(name: str) -> str:
    """Returns how to import one of `LIBRARIES` here, such as "models".

    In a checkout that is `gin_estimator.models` where `import models` finds another
    package, see `other_library`.
    """
    if IS_INSTALLED or other_library(name):
        return f"{INSTALLED_NAME}.{name}"
    return name


def other_library(name: str) -> str | None:
    """Returns the folder of a package `name` that is not this project's, if any.

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
    """Returns the folder of a checkout that was imported beside what is installed.

    Its model_fns return classes that this copy does not know.
    """
    other = sys.modules.get(CHECKOUT_NAME) if IS_INSTALLED else None
    path = getattr(other, "__path__", ())
    # A user's own package of that name is another matter.
    return next((p for p in path if (pathlib.Path(p) / "package.py").exists()), None)
