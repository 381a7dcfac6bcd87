"""Says what was found in a program, by line, and what is left to decide."""

from collections.abc import Iterator

from pipeline.moving import findings
from pipeline.moving.findings import Finding
from pipeline.moving.move import Move

_WIDTH = 88
_OF_SEVERAL = {
    findings.MECHANICAL: "mechanical",
    findings.DECISION: "need a decision",
    findings.NONE: "have no equal",
    findings.UNKNOWN: "are not known",
}


def lines(move: Move) -> Iterator[str]:
    """Yields the lines that tell of one program.

    Args:
      move: of the program.
    """
    yield f"{move.program.path}:"
    told: set[str] = set()
    for each in move.found:
        yield from _of(each, kind(each, move), told)
    for proposal in move.proposals:
        yield ""
        yield f"  {proposal.function} makes modules as it goes; by factories:"
        yield from (f"    {line}" for line in proposal.lines)
    yield ""
    yield from _summary(move)


def kind(finding: Finding, move: Move) -> str:
    """Returns one of `findings.KINDS`: that of the finding, or of its edit.

    Args:
      finding: one of the move's.
      move: of its program.
    """
    return findings.MECHANICAL if finding in move.done else finding.kind


def _of(finding: Finding, found_kind: str, told: set[str]) -> Iterator[str]:
    row = finding.row
    again = row is not None and row.name in told
    yield f"{finding.line:6}  {finding.name}: {found_kind}{', as above' * again}"
    yield from (f"        {note}" for note in finding.notes)
    if row is None or again:
        return
    told.add(row.name)
    yield f"        here: {row.here}"
    yield f"        write: {row.write}"
    if row.numbers:
        yield f"        in numbers: {row.numbers}"
    yield f"        {row.place}, {row.name}"


def _summary(move: Move) -> Iterator[str]:
    """Yields how many findings of each kind there are, and where."""
    if not move.found:
        yield "  nothing of tf.estimator or TensorFlow 1"
    for each in findings.KINDS:
        found = [f.line for f in move.found if kind(f, move) == each]
        if found:
            numbers = ", ".join(map(str, dict.fromkeys(found)))
            words = each if len(found) == 1 else _OF_SEVERAL[each]
            yield f"  {len(found)} {words}: {_short(numbers)}"


def _short(numbers: str) -> str:
    """Returns the numbers of lines, as many as fit in one."""
    if len(numbers) <= _WIDTH:
        return f"lines {numbers}"
    return f"lines {numbers[:_WIDTH].rpartition(',')[0]}, ..."
