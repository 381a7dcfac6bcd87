"""Mistakes that are certain, and what is to be looked at, each with a line to write."""

import dataclasses
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something that was found.

    Attributes:
      text: the value, and the line to write instead.
      is_certain: whether a training would fail by it, or be wrong; else it is for
        somebody to look at.
    """

    text: str
    is_certain: bool = False

    def __str__(self) -> str:
        """Returns 'mistake: ...' or 'look: ...', for the report."""
        return f"{'mistake' if self.is_certain else 'look'}: {self.text}"


def certain(findings: Iterable[Finding]) -> list[Finding]:
    """Returns the findings that are mistakes in any case."""
    return [each for each in findings if each.is_certain]


def size(num_bytes: float) -> str:
    """Returns a number of bytes as people write it: '12.5 kB', '1.2 GB'."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:,.1f} {unit}"
    return f"{num_bytes / 1e3:,.1f} kB"


def plural(number: int, word: str) -> str:
    """Returns '1 worker', '2 workers', '1,437 examples'."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"
