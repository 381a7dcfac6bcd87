"""The table in the log of a warm start: each variable, and where it comes from."""

import collections
from collections.abc import Mapping
from typing import Any

from absl import logging

# Rows of the table in the log; verbosity DEBUG shows all.
_MOST_ROWS = 40


def log(
    path: str,
    taken: Mapping[str, str],
    left: Mapping[str, str],
    spare: Mapping[str, str],
) -> None:
    """Logs where variables come from, and why others were left.

    Args:
      path: where the values are.
      taken: by name, the name there.
      left: by name, the reason.
      spare: shapes of what is there and stands for nothing here, by its name.
    """
    head = f"warm start | {len(taken)} of {len(taken) + len(left)} from {path}"
    sections = [
        ("taken over", "from there", taken),
        ("left as it is", "why", left),
        ("left there", "shape", spare),
    ]
    short, full = (_table(sections, most) for most in (_MOST_ROWS, None))
    logging.info("%s", "\n".join([head, *short]))
    if short != full:
        logging.debug("%s", "\n".join([head, *full]))


def _table(sections: Any, most: int | None) -> list[str]:
    rows = []
    for title, other, items in sections:
        if items:
            # The names that are left as they are get few rows: most are slots of one
            # optimizer, for one reason.
            few = most if items is sections[0][2] or most is None else most // 8
            rows += [(title, other, ""), *_rows(items, few)]
    width = max((len(name) for name, _, _ in rows), default=0)
    return [f"  {n.ljust(width)}  {other}{count}".rstrip() for n, other, count in rows]


def _rows(items: Mapping[str, str], most: int | None) -> list[tuple[str, str, str]]:
    """Returns rows of names, origins and counts: `network/*`, `encoder/*`, `(8)`.

    Where there are too many names, one row stands for all below one prefix.

    Args:
      items: by name, the name in the checkpoint or a reason.
      most: rows at the most; None for a row a name.
    """
    deepest = max(name.count("/") for name in items)
    tries = (
        collections.Counter(_shortened(*item, depth) for item in items.items())
        for depth in range(deepest, -1, -1)
    )
    full = next(tries)
    # Where no depth makes few rows, the first of all rows say more than `network/*`.
    few = (each for each in (full, *tries) if len(each) <= (most or len(full)))
    groups = next(few, full)
    rows = [
        (name, other, f"  ({count})" if count > 1 else "")
        for (name, other), count in groups.items()
    ]
    if most is not None and len(rows) > most:
        rest = sum(list(groups.values())[most:])
        return [*rows[:most], ("...", f"and {rest} more", "")]
    return rows


def _shortened(name: str, other: str, depth: int) -> tuple[str, str]:
    """Returns a name and its origin, cut to the name's first `depth` + 1 parts."""
    parts = name.split("/")
    if len(parts) <= depth + 1:
        return name, other
    end = "/" + "/".join(parts[depth + 1 :])
    if other.endswith(end):
        return name.removesuffix(end) + "/*", other.removesuffix(end) + "/*"
    # A name there that has another end is the name of this variable alone.
    return (name if "/" in other else name.removesuffix(end) + "/*"), other
