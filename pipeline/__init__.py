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

__all__ = sorted(_PLACES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        value = getattr(importlib.import_module(_PLACES[name], __package__), name)
        globals()[name] = value
        return value
    hint = old_names.hint(name, __all__, old_names.NAMES)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{hint}")


def __dir__() -> list[str]:
    return __all__
