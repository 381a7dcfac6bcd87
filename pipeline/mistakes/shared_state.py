"""Refuses a factory whose state is another run's already.

A factory that returns what it has returned before shares its variables: what one run
trains, or reads from a checkpoint, the other one has, too.
"""

from collections.abc import Mapping
from typing import Any

from pipeline.process.refusals import RefusedValueError

_OWNER = "_gin_estimator_owner"


def claim(state: Mapping[str, Any], owner: object) -> None:
    """Notes whose some state is, for as long as it exists.

    Args:
      state: variables and lookup tables by full name, `network/dense/kernel`.
      owner: what stands for the run; kept.

    Raises:
      RefusedValueError: some of it is another one's.
    """
    shared = [n for n, s in state.items() if getattr(s, _OWNER, owner) is not owner]
    if shared:
        name, *others = shared
        more = f" and {len(others)} more are" if others else " is"
        module = name.partition("/")[0]
        raise RefusedValueError(
            f"{name}{more} what a factory has returned before, for another Estimator "
            "or for other weights of this one: what is trained or read from a "
            "checkpoint here would change it there. A factory makes at each call what "
            f"it returns: modules={{{module!r}: make_{module}}}, where make_{module} "
            "holds the lines that make it. Of an object that is there, "
            "type(it).from_config(it.get_config()) makes another one."
        )
    for each in state.values():
        setattr(each, _OWNER, owner)
