"""The shape of the house: wings, arrows, order and nevers."""

import ast
import functools
import re

import pytest

import pipeline
from tests.sources import FILES, PIPELINE, ROOT, ids, imports, tree

# The files beside the wings: the public names and the commands.
DOORS = {p.stem for p in PIPELINE if p.parent.name == "pipeline"}
WINGS = sorted({p.parent.name for p in PIPELINE} - {"pipeline"})
# What `from pipeline import X` gives.
PUBLIC = set(pipeline.__all__)
IN_WINGS = [p for p in PIPELINE if p.parent.name in WINGS]


def imported_files(path):
    """`(wing, file)` of each file of pipeline that a file imports.

    The wing is "" for a file beside the wings, and for pipeline's public names.
    """
    found = set()
    for name in imports(path):
        package, *parts = name.split(".")
        if package != "pipeline":
            continue
        if parts and parts[0] in WINGS:
            found.add((parts[0], parts[1] if parts[1:] else "__init__"))
        else:
            found.add(("", parts[0] if parts and parts[0] in DOORS else "__init__"))
    return found


def arrows(paths):
    """`(from, to)` between wings, and the files that draw each."""
    found = {}
    for path in paths:
        wing = path.parent.name
        for other, file in sorted(imported_files(path)):
            if other != wing:
                found.setdefault((wing, other), []).append(f"{path.name} -> {file}.py")
    return found


def declared_arrows(text):
    """The wings that each wing imports, of WORKSPACE.md's table of wings."""
    rows = re.findall(r"^\| `(\w+)/` \| [^|]+ \|([^|]*)\|$", text, re.MULTILINE)
    return {wing: set(re.findall(r"\w+", cell)) for wing, cell in rows}


@functools.cache
def workspace():
    return (ROOT / "WORKSPACE.md").read_text(encoding="utf-8")


def contents(wing):
    """The files of a wing, in the order in which its `__init__` lists them."""
    text = ast.get_docstring(tree(ROOT / "pipeline" / wing / "__init__.py"))
    return re.findall(r"^    (\w+) {2,}\S", text, re.MULTILINE)


def undeclared(paths, declared):
    """The arrows of files that a table does not have, with the files that draw them."""
    return {
        f"{wing} -> {other or 'pipeline'}": files
        for (wing, other), files in arrows(paths).items()
        if other not in declared.get(wing, ())
    }


def test_arrows_between_wings_are_those_of_the_table():
    declared = declared_arrows(workspace())
    assert sorted(declared) == WINGS
    assert not undeclared(IN_WINGS, declared)
    drawn = set(arrows(IN_WINGS))
    unused = {(a, b) for a, others in declared.items() for b in others} - drawn
    assert not unused, "arrows of the table that no import draws"


def test_arrows_go_one_way():
    """A wing imports only wings that stand above it in the table."""
    declared = declared_arrows(workspace())
    order = list(declared)
    for wing, others in declared.items():
        assert {order.index(other) < order.index(wing) for other in others} <= {True}


# What a table could be changed to allow, and must not be.
NEVER = [
    ("loop", "hooks"),
    ("hooks", "loop"),
    ("loop", "model_dir"),
    ("loop", "checkpoints"),
    ("loop", "cluster"),
    ("export", "loop"),
    ("export", "feed"),
]


@pytest.mark.parametrize(("wing", "other"), NEVER)
def test_never(wing, other):
    assert (wing, other) not in arrows(IN_WINGS)


def test_only_roles_inspection_and_commands_import_the_driver():
    above = {wing for wing, other in arrows(IN_WINGS) if other == "driver"}
    assert above <= {"roles", "inspection", "command"}


def test_the_launcher_and_sweeps_know_processes_and_no_tensorflow():
    allowed = {
        "launcher": {"process"},
        "trials": {"process", "launcher"},
        "moving": {"process", "mistakes"},
    }
    for wing, others in allowed.items():
        files = [p for p in PIPELINE if p.parent.name == wing]
        assert {other for _, other in arrows(files)} <= others
        assert not [p.name for p in files if computes(p)]


def computes(path):
    """Whether a file imports what takes seconds to import."""
    return bool({n.partition(".")[0] for n in imports(path)} & {"tensorflow", "keras"})


def test_no_wing_imports_what_stands_beside_the_wings():
    """Nor pipeline's public names, which are for those outside."""
    assert not [arrow for arrow in arrows(IN_WINGS) if not arrow[1]]


@pytest.mark.parametrize("wing", WINGS)
def test_a_wing_begins_with_its_contents(wing):
    path = ROOT / "pipeline" / wing / "__init__.py"
    assert not holds_code(path), "a docstring only"
    files = {p.stem for p in path.parent.glob("*.py")} - {"__init__"}
    assert set(contents(wing)) == files
    assert len(files) + 1 <= 12, "one finds one's way in twelve files"


def holds_code(path):
    """Whether there is more in a file than a docstring."""
    return [type(node) for node in tree(path).body] != [ast.Expr]


@pytest.mark.parametrize("path", IN_WINGS, ids=ids(IN_WINGS))
def test_a_file_imports_only_files_listed_before_it(path):
    assert not out_of_order(path)


def out_of_order(path):
    """What a file imports of its own wing and is not listed before it."""
    wing = path.parent.name
    order = contents(wing)
    before = order[: order.index(path.stem)] if path.stem in order else []
    return {file for other, file in imported_files(path) if other == wing} - {*before}


@pytest.mark.parametrize("path", FILES, ids=ids(FILES))
def test_imports_stand_at_the_top(path):
    """Within a function an import hides an edge."""
    assert not inner_imports(path)


def inner_imports(path):
    """The places of imports inside of functions."""
    return [
        f"line {node.lineno}"
        for function in ast.walk(tree(path))
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for node in ast.walk(function)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]


@pytest.mark.parametrize("path", PIPELINE, ids=ids(PIPELINE))
def test_imports_are_absolute(path):
    """A relative one would be an arrow that the other tests do not see."""
    assert not relative_imports(path)


def relative_imports(path):
    """What a file imports by its own place."""
    return [name for name in imports(path) if name.startswith(".")]


OUTSIDE = sorted(
    p
    for name in ("models", "inputs", "benchmarks")
    for p in (ROOT / name).rglob("*.py")
)


@pytest.mark.parametrize("path", OUTSIDE, ids=ids(OUTSIDE))
def test_outside_of_pipeline_public_names_are_used(path):
    """`from pipeline import X` stays right where a file moves to another wing."""
    assert not roundabout(path)


def roundabout(path):
    """Public names that a file takes from a wing and not from `pipeline`."""
    names = [name for name in imports(path) if name.startswith("pipeline.")]
    direct = {n for n in names if n.count(".") > 1 and n.rpartition(".")[2] in PUBLIC}
    modules = {
        alias.asname or alias.name
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").count(".") == 1
        for alias in node.names
        if node.module.startswith("pipeline.")
    }
    by_module = {
        ast.unparse(node)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute)
        and getattr(node.value, "id", None) in modules
        and node.attr in PUBLIC
    }
    return direct | by_module


@pytest.mark.parametrize("path", PIPELINE, ids=ids(PIPELINE))
def test_pipeline_knows_no_model_and_no_input(path):
    assert not [n for n in imports(path) if n.partition(".")[0] in ("models", "inputs")]


@pytest.mark.parametrize("path", PIPELINE, ids=ids(PIPELINE))
def test_gin_is_imported_at_the_edge_only(path):
    assert not uses_gin(path) or path.parent.name == "command"


def uses_gin(path):
    """Whether a file imports gin."""
    return any(name.partition(".")[0] == "gin" for name in imports(path))


def test_gin_has_no_init():
    """It would replace gin-config for whoever runs in the repository's root."""
    assert not (ROOT / "gin" / "__init__.py").exists()


def undeclared_of(path):
    return undeclared([path], declared_arrows(workspace()))


# Each kind of mistake: the file that holds it, its text, and the rule that finds it.
FORBIDDEN = {
    "upward": ("loop/new", "from pipeline.driver import estimator", undeclared_of),
    "not in the table": (
        "export/new",
        "from pipeline.checkpoints import lease",
        undeclared_of,
    ),
    "as a module": ("export/new", "import pipeline.feed.feed", undeclared_of),
    "a wing": ("export/new", "from pipeline import feed", undeclared_of),
    "a public name": ("loop/new", "from pipeline import Estimator", undeclared_of),
    "a door": ("driver/new", "from pipeline import launch", undeclared_of),
    "in a function": (
        "loop/new",
        "def f():\n    from pipeline.feed import feed",
        inner_imports,
    ),
    "relative": ("loop/new", "from ..driver import estimator", relative_imports),
    "order": ("loop/steps", "from pipeline.loop import train_loop", out_of_order),
    "itself": ("loop/steps", "from pipeline.loop import steps", out_of_order),
    "unlisted": ("loop/new", "from pipeline.loop import steps", out_of_order),
    "code": ("loop/__init__", '"""Contents."""\nTOTAL = 1', holds_code),
    "code alone": ("loop/__init__", "TOTAL = 1", holds_code),
    "gin": ("driver/new", "import gin", uses_gin),
    "a part of gin": ("driver/new", "from gin import config", uses_gin),
    "TensorFlow": ("launcher/new", "import tensorflow as tf", computes),
    "a part of Keras": ("launcher/new", "from keras import layers", computes),
    "roundabout": (
        "models/new",
        "from pipeline.contract.spec import TrainOp",
        roundabout,
    ),
    "roundabout by a module": (
        "models/new",
        "from pipeline.contract import spec\nspec.TrainOp",
        roundabout,
    ),
}


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_a_mistake_is_found(kind, tmp_path):
    name, text, rule = FORBIDDEN[kind]
    path = (tmp_path / name).with_suffix(".py")
    path.parent.mkdir()
    path.write_text(f"{text}\n")
    assert rule(path)
