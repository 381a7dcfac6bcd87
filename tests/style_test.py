"""How the code is written: docstrings, their arguments, length, errors."""

import ast
import re

import pytest

from tests import longest
from tests.sources import FILES, PIPELINE, ROOT, ids, tree


def public_definitions(path):
    """`(qualified name, node)` of public functions, classes and methods."""

    def walk(body, prefix):
        for node in body:
            is_class = isinstance(node, ast.ClassDef)
            if not is_class and not isinstance(node, ast.FunctionDef):
                continue
            if node.name.startswith("_"):
                continue
            yield f"{prefix}{node.name}", node
            if is_class:
                yield from walk(node.body, f"{node.name}.")

    yield from walk(tree(path).body, "")


def overrides(path):
    """Names of methods that a base class of the project documents."""
    documented = {
        node.name
        for file in FILES
        for name, node in public_definitions(file)
        if "." in name and ast.get_docstring(node)
    }
    return documented | {"call", "build", "get_config", "compute_output_shape"}


@pytest.mark.parametrize("path", FILES, ids=ids(FILES))
def test_what_is_public_has_a_docstring(path):
    assert ast.get_docstring(tree(path)), "the module"
    inherited = overrides(path)
    lacking = [
        name
        for name, node in public_definitions(path)
        if not ast.get_docstring(node) and not ("." in name and node.name in inherited)
    ]
    assert not lacking


def functions(path):
    """`(name, function, docstring)` of all functions that document their arguments."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef):
            text = ast.get_docstring(node)
            if text and re.search(r"^Args:$", text, re.MULTILINE):
                yield node.name, node, text


def documented_arguments(text):
    block = re.split(r"^Args:\n", text, flags=re.MULTILINE)[1]
    lines = []
    for line in block.splitlines():
        if line and not line.startswith(" "):
            break
        lines.append(line)
    return re.findall(r"^  (\*{0,2}\w+):", "\n".join(lines), re.MULTILINE)


def declared_arguments(function):
    spec = function.args
    names = [a.arg for a in (*spec.posonlyargs, *spec.args)]
    names += [f"*{spec.vararg.arg}"] if spec.vararg else []
    names += [a.arg for a in spec.kwonlyargs]
    names += [f"**{spec.kwarg.arg}"] if spec.kwarg else []
    return [n for n in names if n not in ("self", "cls")]


@pytest.mark.parametrize("path", FILES, ids=ids(FILES))
def test_args_are_those_of_the_signature(path):
    drifted = {
        name: {"documented": documented_arguments(text), "declared": declared}
        for name, function, text in functions(path)
        if documented_arguments(text) != (declared := declared_arguments(function))
    }
    assert not drifted


@pytest.mark.parametrize("path", PIPELINE, ids=ids(PIPELINE))
def test_files_stay_short(path):
    """CLU's and Sonnet's files have 100 to 155 lines at the median."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize("path", PIPELINE, ids=ids(PIPELINE))
def test_library_code_does_not_print_or_assert(path):
    speaks_to_people = path.stem in ("main", "report", "jobs", "__init__")
    calls = [n for n in ast.walk(tree(path)) if isinstance(n, ast.Call)]
    printed = [n.lineno for n in calls if getattr(n.func, "id", None) == "print"]
    assert speaks_to_people or not printed
    assert not [n for n in ast.walk(tree(path)) if isinstance(n, ast.Assert)]


PLAIN = ("ValueError", "TypeError", "KeyError", "RuntimeError", "ImportError")


@pytest.mark.parametrize("path", FILES, ids=ids(FILES))
def test_what_is_refused_is_a_refusal(path):
    """Another error keeps its traceback, as a fault of the project, see `exits`."""
    calls = [
        node.exc.func if isinstance(node, ast.Raise) else node.value.func
        for node in ast.walk(tree(path))
        if isinstance(getattr(node, "exc", None), ast.Call)
        or (isinstance(node, ast.Return) and isinstance(node.value, ast.Call))
    ]
    assert not [f.lineno for f in calls if getattr(f, "id", None) in PLAIN]


def test_every_error_is_raised():
    """An exception that is built and not raised says nothing."""
    idle = [
        f"{path.name}:{node.lineno}"
        for path in FILES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and str(getattr(node.value.func, "id", "")).endswith("Error")
    ]
    assert not idle


def test_the_files_that_take_longest_are_there():
    folder = ROOT / "tests"
    ranks = [longest.rank(folder / file) for file in longest.FILES]
    assert ranks == list(range(len(longest.FILES)))
    assert [file for file in longest.FILES if not (folder / file).exists()] == []
    assert longest.rank(folder / "style_test.py") == len(longest.FILES)
