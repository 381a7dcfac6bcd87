"""The shape of the code, read with `ast`: wings, arrows, levels, docstrings."""

import ast
import functools
import pathlib
import re

import pytest

from tests import longest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGES = ("pipeline", "models", "inputs")
FILES = sorted(p for name in PACKAGES for p in (ROOT / name).rglob("*.py"))
PIPELINE = [p for p in FILES if p.is_relative_to(ROOT / "pipeline")]
# The files beside the wings: the public names and the commands.
DOORS = {p.stem for p in PIPELINE if p.parent.name == "pipeline"}
WINGS = sorted({p.parent.name for p in PIPELINE} - {"pipeline"})
IN_WINGS = [p for p in PIPELINE if p.parent.name in WINGS]


def ids(paths):
    return [str(p.relative_to(ROOT)) for p in paths]


@functools.cache
def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(node):
    """Names of modules, as dotted paths, that an import brings in."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def imports(path):
    return [name for node in ast.walk(tree(path)) for name in imported(node)]


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
            # The wing itself holds nothing that could be imported.
            found.add((parts[0], parts[1]))
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


def test_only_commands_import_the_driver():
    above = {wing for wing, other in arrows(IN_WINGS) if other == "driver"}
    assert above <= {"command"}


def test_the_launcher_knows_processes_and_no_tensorflow():
    files = [p for p in PIPELINE if p.parent.name == "launcher"]
    assert {other for _, other in arrows(files)} <= {"process"}
    assert not {n.partition(".")[0] for p in files for n in imports(p)} & {
        "tensorflow",
        "keras",
    }


def test_no_wing_imports_what_stands_beside_the_wings():
    """Nor pipeline's public names, which are for those outside."""
    assert not [arrow for arrow in arrows(IN_WINGS) if not arrow[1]]


@pytest.mark.parametrize("wing", WINGS)
def test_a_wing_begins_with_its_contents(wing):
    path = ROOT / "pipeline" / wing / "__init__.py"
    (docstring,) = tree(path).body
    assert isinstance(docstring, ast.Expr), "a docstring only"
    files = {p.stem for p in path.parent.glob("*.py")} - {"__init__"}
    assert set(contents(wing)) == files
    assert len(files) + 1 <= 12, "one finds one's way in twelve files"


@pytest.mark.parametrize("wing", WINGS)
def test_a_file_imports_only_files_listed_before_it(wing):
    order = contents(wing)
    for path in (ROOT / "pipeline" / wing).glob("*.py"):
        own = order[: order.index(path.stem)] if path.stem in order else []
        inner = {file for other, file in imported_files(path) if other == wing}
        assert inner <= set(own), path.name


# A file that draws each kind of arrow that is forbidden, and what refuses it.
FORBIDDEN = {
    "upward": ("loop", "from pipeline.driver import estimator"),
    "not in the table": ("export", "from pipeline.checkpoints import lease"),
    "a public name": ("loop", "from pipeline import Estimator"),
    "a door": ("driver", "from pipeline import launch"),
    "as a module": ("export", "import pipeline.feed.feed"),
}


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_a_forbidden_arrow_is_found(kind, tmp_path):
    wing, line = FORBIDDEN[kind]
    path = tmp_path / wing / "new.py"
    path.parent.mkdir()
    path.write_text(f"{line}\n")
    assert undeclared([path], declared_arrows(workspace()))


@pytest.mark.parametrize("path", FILES, ids=ids(FILES))
def test_imports_stand_at_the_top(path):
    """Within a function an import hides an edge."""
    inner = [
        f"line {node.lineno}"
        for function in ast.walk(tree(path))
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for node in ast.walk(function)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    assert not inner


# What has no public way: (file, name) -> why, and the test that breaks when it goes.
PRIVATE = {
    ("coordination", "tensorflow.python.eager.context"): (
        "tf.distribute sets no heartbeat timeout",
        "coordination_test.py::test_the_heartbeat_is_set",
    ),
    ("batch_sums", "_get_function"): (
        "a graph shows no body of a function that it calls",
        "trace_checks_test.py::test_a_sum_over_the_batch_is_said",
    ),
    ("replica_means", "sys.modules"): (
        "Keras and TensorFlow divide mean losses by the number of replicas",
        "replica_means_test.py::test_only_inside_are_they_means_over_a_replica",
    ),
    ("updates", "_all_reduce_sum_gradients"): (
        "Keras adds up gradients that are all-reduced already",
        "steps_test.py::test_keras_still_reduces_where_we_turn_it_off",
    ),
    ("variables", "_layers"): (
        "Keras lists the sublayers of models alone",
        "variables_test.py::test_keras_still_keeps_sublayers_where_the_walk_looks",
    ),
    ("variables", "_learning_rate"): (
        "Keras hands out the rate's value, not what it was given",
        "bad_value_test.py::test_a_layer_as_a_learning_rate",
    ),
    ("gin_registry", "_REGISTRY"): (
        "gin lists no configurables",
        "gin_config_test.py::test_the_registry_that_gin_does_not_list_publicly",
    ),
    ("fingerprint", "_func"): (
        "a dataset's graph holds no Python function that it calls",
        "fingerprint_test.py::test_what_differs_is_said",
    ),
}
# Public in spite of their names.
NOT_PRIVATE = {"_exit", "_fields", "_replace", "_asdict"}


def own_names(path):
    """What a file itself calls by a name that begins with an underscore."""
    for node in ast.walk(tree(path)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif is_of_self(node) and isinstance(node.ctx, ast.Store):
            yield node.attr


def is_of_self(node):
    return isinstance(node, ast.Attribute) and (
        getattr(node.value, "id", "") in ("self", "cls")
    )


def foreign_names(path):
    """Private names that a file takes of modules and objects of others."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute) and not is_of_self(node):
            yield node.attr
        elif (
            isinstance(node, ast.Call)
            and getattr(node.func, "id", "") in ("getattr", "setattr", "hasattr")
            and isinstance(node.args[1], ast.Constant)
        ):
            yield node.args[1].value
        elif isinstance(node, ast.Subscript) and "__module__" in ast.unparse(
            node.slice
        ):
            yield ast.unparse(node.value)  # A module that has no public name.
    prefixes = ("tensorflow.python", "keras.src", "tf_keras", "gin.config._")
    yield from (name for name in imports(path) if name.startswith(prefixes))


def is_private(name):
    inner = name.startswith("_") and not name.startswith("__")
    return inner or "." in name


@pytest.mark.parametrize("path", FILES, ids=ids(FILES))
def test_what_is_private_is_listed(path):
    own = set(own_names(path)) | NOT_PRIVATE
    used = {name for name in foreign_names(path) if is_private(name)} - own
    assert used == {name for file, name in PRIVATE if file == path.stem}
    text = path.read_text(encoding="utf-8")
    assert "keras.src" not in text
    assert "tf.python." not in text


def test_a_test_breaks_where_a_private_name_goes():
    for _, test in PRIVATE.values():
        file, _, name = test.partition("::")
        (found,) = (ROOT / "tests").rglob(file)
        assert f"def {name}(" in found.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", PIPELINE, ids=ids(PIPELINE))
def test_pipeline_knows_no_model_and_no_input(path):
    assert not [n for n in imports(path) if n.partition(".")[0] in ("models", "inputs")]


@pytest.mark.parametrize("path", PIPELINE, ids=ids(PIPELINE))
def test_gin_is_imported_at_the_edge_only(path):
    uses_gin = any(name.partition(".")[0] == "gin" for name in imports(path))
    assert not uses_gin or path.parent.name == "command"


def test_gin_has_no_init():
    """It would replace gin-config for whoever runs in the repository's root."""
    assert not (ROOT / "gin" / "__init__.py").exists()


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
    assert longest.rank(folder / "levels_test.py") == len(longest.FILES)
