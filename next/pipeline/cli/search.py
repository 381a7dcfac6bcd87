"""The values that a sweep searches: `--search="LEARNING_RATE=log(1e-4, 1e-1)"`."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Sequence

from ..errors import UserValueError
from .near import near

EXAMPLE = '--search="LEARNING_RATE=log(1e-4, 1e-1)"'

_SEARCH = re.compile(r"\s*([A-Za-z_][\w/.]*)\s*=\s*(\w+)\s*\((.*)\)\s*", re.DOTALL)
# Kinds with bounds: what reads a bound, and whether a step may follow the bounds.
_NUMBERS: dict[str, tuple[Callable[[str], float], bool]] = {
    "uniform": (float, True),
    "log": (float, False),
    "int": (int, True),
    "log_int": (int, False),
}
KINDS = (*_NUMBERS, "choice")
_ELSEWHERE = {"loguniform": "log", "categorical": "choice", "randint": "int", "float": "uniform"}
_MAX_GRID_VALUES = 1_000

Value = float | int | str


@dataclasses.dataclass(frozen=True)
class Dimension:
    """One name and its possible values.

    Attributes:
      name: left side of the gin binding, such as `cnn.dropout`.
      kind: one of `KINDS`.
      values: the choices as gin text; else the lowest and the highest number, and maybe a step.
    """

    name: str
    kind: str
    values: tuple[Value, ...]

    def __str__(self) -> str:
        return f"{self.name}={self.kind}({', '.join(map(str, self.values))})"

    @property
    def ends(self) -> tuple[Value, ...]:
        """The values to check before the first trial: all choices, or both bounds."""
        return self.values if self.kind == "choice" else self.values[:2]

    @property
    def step(self) -> float | None:
        """The difference of neighbouring values; None for a continuous range."""
        if self.kind in ("choice", "log"):
            return None
        return self.values[2] if len(self.values) > 2 else (1 if "int" in self.kind else None)

    def grid(self) -> Sequence[Value]:
        """Returns all values.

        Raises:
          UserValueError: there are too many.
        """
        if self.kind == "choice":
            return self.values
        low, high = self.values[:2]
        count = math.floor((high - low) / self.step + 1e-9) + 1 if self.step else math.inf
        if count > _MAX_GRID_VALUES:
            raise UserValueError(
                f"--search is {self}: expected at most {_MAX_GRID_VALUES} values for "
                f"--sampler=grid. Set {self.name}=choice(...), or --sampler=random."
            )
        return [low + index * self.step for index in range(count)]

    def binding(self, value: Value) -> str:
        """Returns `NAME=VALUE` as gin reads it."""
        return f"{self.name}={value if isinstance(value, str) else repr(value)}"


def read(texts: Iterable[str]) -> tuple[Dimension, ...]:
    """Returns the dimensions of a search.

    Args:
      texts: `NAME=KIND(VALUES)` each.

    Raises:
      UserValueError: a text is something else, or two have the same name.
    """
    found: dict[str, Dimension] = {}
    for text in texts:
        dimension = _read(text)
        if dimension.name in found:
            raise UserValueError(
                f"--search has {dimension.name} twice: expected one of {found[dimension.name]} "
                f"and {dimension}."
            )
        found[dimension.name] = dimension
    return tuple(found.values())


def _read(text: str) -> Dimension:
    match = _SEARCH.fullmatch(text)
    if match is None:
        raise UserValueError(f"--search is {text}: expected NAME=KIND(VALUES), as {EXAMPLE}.")
    name, kind, inside = match.groups()
    if kind not in KINDS:
        known = _ELSEWHERE.get(kind.lower().replace("_", ""))
        hint = f" Did you mean {known}?" if known else near(kind, KINDS)
        raise UserValueError(f"--search is {text}: expected one of {', '.join(KINDS)}.{hint}")
    items = _split(inside)
    if kind == "choice":
        if len(set(items)) < len(items) or len(items) < 2 or not all(items):
            raise UserValueError(
                f"--search is {text}: expected two or more different values, as "
                f"{name}=choice(32, 64)."
            )
        return Dimension(name, kind, items)
    return Dimension(name, kind, _bounds(text, name, kind, items))


def _bounds(text: str, name: str, kind: str, items: Sequence[str]) -> tuple[float, ...]:
    number, may_step = _NUMBERS[kind]
    try:
        values = tuple(number(item) for item in items)
    except ValueError:
        values = ()
    low, high, *step = values if len(values) >= 2 else (0, 0)
    is_valid = low < high and all(map(math.isfinite, values)) and len(values) <= 2 + may_step
    is_valid = is_valid and (low > 0 or "log" not in kind)
    if not is_valid or not all(0 < each <= high - low for each in step):
        sample = {"uniform": "0, 0.5", "int": "0, 200, 50", "log_int": "8, 512"}
        positive = "positive " if "log" in kind else ""
        raise UserValueError(
            f"--search is {text}: expected two {positive}numbers, the lower one first"
            f"{', and maybe a step' if may_step else ''}, as "
            f"{name}={kind}({sample.get(kind, '1e-4, 1e-1')})."
        )
    return values


def _split(text: str) -> tuple[str, ...]:
    """Splits at the commas outside of brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character == "," and not depth:
            parts.append("")
            continue
        depth += (character in "([{") - (character in ")]}") if not quote else 0
        parts[-1] += character
    return tuple(part.strip() for part in parts)
