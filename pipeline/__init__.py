# SPDX-License-Identifier: Apache-2.0
"""Trains, evaluates and exports models written as a model_fn and an input_fn.

    import gin_estimator as ge

    estimator = ge.Estimator(
        model_fn,
        modules={"network": make_network, "optimizer": keras.optimizers.Adam},
        config=ge.RunConfig(model_dir="runs/1"),
    )
    ge.train_and_evaluate(
        estimator, ge.TrainSpec(train_input_fn, max_steps=1000), ge.EvalSpec(eval_input_fn)
    )

Names are imported at their first use, because TensorFlow takes seconds to import.
"""

import importlib
import os
import re
import sys
from typing import Any

from .contract import old_names
from .run import startup
from .run.run import run as run  # Not lazily: the name is also that of the package.

__version__ = "0.2.0"

startup.prepare()

if os.path.basename(os.path.dirname(__file__)) == "pipeline":  # A checkout: one module, two names.
    # A submodule exists twice if a process imports it by both names.
    sys.modules.setdefault("pipeline", sys.modules[__name__])
    sys.modules.setdefault("gin_estimator", sys.modules[__name__])

# The stub has the names once, for type checkers and for this module.
with open(os.path.join(os.path.dirname(__file__), "__init__.pyi"), encoding="utf-8") as _stub:
    _PLACES = {
        n: module for module, n in re.findall(r"^from (\S+) import \(?\s*(\w+)", _stub.read(), re.M)
    }

_GROUPS = [name for name, place in _PLACES.items() if place == "."]

__all__ = sorted(_PLACES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        place = _PLACES[name]
        if name in _GROUPS:
            value = importlib.import_module(f".{name}", __package__)
        else:
            value = getattr(importlib.import_module(place, __package__), name)
        globals()[name] = value
        return value
    group = next((each for each in _GROUPS if _has(each, name)), None)
    moved = {name: f"{group}.{name}"} if group else {}
    hint = old_names.hint(name, __all__, {**old_names.NAMES, **moved})
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{hint}")


def _has(group: str, name: str) -> bool:
    """Returns whether a group has a name, without importing it: this may be during an import."""
    places = [f"{group}.py", f"{group}/__init__.py"]
    for path in (os.path.join(os.path.dirname(__file__), each) for each in places):
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                pattern = rf"^(from .* as|class) {re.escape(name)}\b"
                return re.search(pattern, file.read(), re.M) is not None
    return False


def __dir__() -> list[str]:
    return __all__
