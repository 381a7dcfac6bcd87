"""Moves one program: what is found in it, the edits, the marks, the new text."""

import dataclasses
import re
import textwrap
from collections.abc import Mapping

import libcst as cst
from libcst import metadata as meta

from pipeline.moving import edits, factories, findings
from pipeline.moving.factories import Proposal
from pipeline.moving.findings import Finding
from pipeline.moving.program import Program

_WIDTH = 78
_PACKAGE = __package__.partition(".")[0]


@dataclasses.dataclass(frozen=True)
class Move:
    """What is known of a program, and what comes of it.

    Attributes:
      program: as it was read.
      found: what is of tf.estimator or TensorFlow 1 in it, by line.
      done: those findings whose edit does all that is to be done.
      proposals: factories of what its functions make as they go.
      text: the program with the edits and marks; parses.
    """

    program: Program
    found: tuple[Finding, ...]
    done: tuple[Finding, ...]
    proposals: tuple[Proposal, ...]
    text: bytes


def of(program: Program) -> Move:
    """Finds what has to be moved, and moves what is mechanical.

    Args:
      program: to move; stays as it is.
    """
    wrapper = meta.MetadataWrapper(program.module, unsafe_skip_copy=True)
    finder = findings.Finder(wrapper)
    wrapper.module.visit(finder)
    found = finder.found
    parents = wrapper.resolve(meta.ParentNodeProvider)
    alias = _alias(program.module)
    changes = edits.of(found, parents, alias)
    done = [each for each in found if edits.is_done(each, changes)]
    proposed = factories.proposals(found, program.module, parents)
    marks = _marks(found, done)
    for function, lines in _proposed(proposed, found, parents).items():
        marks.setdefault(function, []).extend(lines)
    moved = wrapper.module.visit(edits.Writer(changes, marks))
    moved = _with_imports(moved, alias)
    return Move(program, tuple(found), tuple(done), tuple(proposed), moved.bytes)


def _alias(module: cst.Module) -> str:
    """Returns the name for this project: ge, or another where that has a meaning."""
    return "ge_" if re.search(r"\bge\b", module.code) else "ge"


def _marks(found: list[Finding], done: list[Finding]) -> dict[cst.CSTNode, list[str]]:
    """Returns the comments above each statement: what is left to do there."""
    left = [each for each in found if each not in done]
    told: set[str] = set()
    marks: dict[cst.CSTNode, list[str]] = {}
    for each in left:
        text = _mark(each, told)
        texts = marks.setdefault(each.statement, [])
        if text not in texts:
            texts.append(text)
    return {
        statement: [line for text in texts for line in _wrapped(text)]
        for statement, texts in marks.items()
    }


def _wrapped(text: str) -> list[str]:
    """Returns the lines of a comment."""
    return textwrap.wrap(
        text,
        _WIDTH,
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _mark(finding: Finding, told: set[str]) -> str:
    """Returns the comment of a finding, in full where it is the first of its row."""
    notes = "; ".join(finding.notes)
    row = finding.row
    if row is None:
        return f"{finding.name}: {notes or 'no row of the table knows it'}"
    if row.name in told:
        return f"{finding.name}, as above{': ' if notes else ''}{notes}"
    told.add(row.name)
    differs = f"; in numbers: {row.numbers}" if row.numbers else ""
    more = f"; {notes}" if notes else ""
    return f"{finding.name}: {row.here}: write `{row.write}`{more}{differs}"


def _proposed(
    proposed: list[Proposal],
    found: list[Finding],
    parents: Mapping[cst.CSTNode, cst.CSTNode],
) -> dict[cst.CSTNode, list[str]]:
    """Returns the comments with factories, by the function that they are for."""
    marks = {}
    for each in proposed:
        inside = next(f for f in found if f.function == each.function)
        node = inside.node
        while not isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            node = parents[node]
        head = f"{each.function} gets what it makes below as modules, of factories:"
        marks[node] = [head, *(f"    {line}" for line in each.lines)]
    return marks


def _with_imports(module: cst.Module, alias: str) -> cst.Module:
    """Returns a program that imports what the edits brought in."""
    code = re.sub(rf"^\s*{edits.MARK}.*$", "", module.code, flags=re.M)
    lines = []
    if re.search(rf"\b{alias}\.", code):
        lines.append(f"import {_PACKAGE} as {alias}")
    if f"{alias}.metric(keras." in code and not edits.imports_keras(module):
        lines.append("import keras")
    if not lines:
        return module
    at = _first_import(module.body)
    made = [cst.parse_statement(f"{line}\n") for line in lines]
    if at:  # A blank line after the docstring.
        made[0] = made[0].with_changes(leading_lines=[cst.EmptyLine(indent=False)])
    body = [*module.body[:at], *made, *module.body[at:]]
    return module.with_changes(body=body)


def _first_import(body: tuple[cst.BaseStatement, ...]) -> int:
    """Returns the place after the docstring and what is imported from __future__."""
    at = 0
    for n, statement in enumerate(body):
        line = (
            statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else 0
        )
        is_docstring = n == 0 and isinstance(line, cst.Expr)
        is_future = (
            isinstance(line, cst.ImportFrom)
            and isinstance(line.module, cst.Name)
            and line.module.value == "__future__"
        )
        if is_docstring or is_future:
            at = n + 1
    return at
