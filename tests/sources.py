"""The project's own files, read with `ast`, for tests of the code's shape."""

import ast
import functools
import pathlib

ROOT = pathlib.Path(__file__).parent.parent
PACKAGES = ("pipeline", "models", "inputs")
FILES = sorted(p for name in PACKAGES for p in (ROOT / name).rglob("*.py"))
PIPELINE = [p for p in FILES if p.is_relative_to(ROOT / "pipeline")]


def ids(paths):
    """Names of files for pytest's report."""
    return [str(p.relative_to(ROOT)) for p in paths]


@functools.cache
def tree(path):
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(node):
    """Names of modules, as dotted paths, that an import brings in."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        # A relative import keeps its dots: no rule takes it for an absolute one.
        module = "." * node.level + (node.module or "")
        return [f"{module}.{alias.name}" for alias in node.names]
    return []


def imports(path):
    """All that a file imports, as dotted paths."""
    return [name for node in ast.walk(tree(path)) for name in imported(node)]
