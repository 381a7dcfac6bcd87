"""Says which name of TensorFlow an expression is, whatever the program calls it."""

import functools
import pathlib
import re
from collections.abc import Iterator

import libcst as cst
from libcst import metadata as meta

from pipeline.moving import table

_VERSION_ONE = pathlib.Path(__file__).with_name("version_one.txt")
_VERSION_TWO = re.compile(
    r"tf\.(optimizers\.|(losses|metrics|initializers)\.(?!Reduction)[A-Z]|nn\.gelu|"
    r"summary\.(create_file_writer|write|record_if|experimental)|linalg\.eig|"
    r"image\.(resize_with_pad|stateless_random)|eig)"
)
# Packages that held the same names.
_PACKAGES = (
    (
        r"tensorflow_estimator\.(?:python\.)?(?:estimator|contrib\.estimator)",
        "tf.estimator",
    ),
    (r"tensorflow\.python\.estimator", "tf.estimator"),
    (r"tensorflow\.python\.tpu", "tf.estimator.tpu"),
    (r"tensorflow\.python\.feature_column", "tf.feature_column"),
    (r"tensorflow\.python\.training", "tf.train"),
    (r"tensorflow\.contrib\.tpu\.python\.tpu", "tf.contrib.tpu"),
    (r"tf_slim", "tf.contrib.slim"),
    (r"(?:tf_)?keras", "tf.keras"),
    (r"tensorflow\.python\.keras", "tf.keras"),
    (r"tensorflow\.contrib\.slim", "tf.contrib.slim"),
    (r"tensorflow_estimator", "tf.estimator"),
    (r"tensorflow(?:\.compat\.v[12])*", "tf"),
)
# Where a name may stand that is no public one's place: the last word decides.
_PLACES = (
    "tf.estimator",
    "tf.estimator.experimental",
    "tf.estimator.tpu",
    "tf.estimator.export",
    "tf.train",
    "tf.contrib.tpu",
)
_SAME = ("tf.train", "tf.contrib.learn", "tf.contrib.estimator", "tf.estimator")


@functools.cache
def version_one() -> frozenset[str]:
    """Returns the names that only TensorFlow 1 has, without `tf.`."""
    lines = _VERSION_ONE.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))


def is_version_two(name: str) -> bool:
    """Whether only TensorFlow 2 has a name.

    Args:
      name: as `public` gives it.
    """
    return bool(_VERSION_TWO.match(name))


def public(dotted: str) -> str | None:
    """Returns a dotted name as the table writes it: `tf.`, and no compat.v1.

    Args:
      dotted: name with its module, `tensorflow.compat.v1.layers.dense`.

    Returns:
      The name; None where it is none of TensorFlow's.
    """
    for pattern, name in _PACKAGES:
        if found := re.fullmatch(rf"{pattern}((?:\..*)?)", dotted):
            return f"{name}{found[1]}"
    return None


def row_of(name: str) -> tuple[table.Row, str] | None:
    """Returns the row of a name, and what of the name is an attribute of the row's.

    Args:
      name: as `public` gives it.

    Returns:
      Row and rest, such as `.TRAIN`; None where no row knows the name.
    """
    rows = table.rows()
    parts = name.split(".")
    for end in range(len(parts), 1, -1):
        start, rest = ".".join(parts[:end]), "".join(f".{p}" for p in parts[end:])
        for known in _places(start):
            if known in rows:
                return rows[known], rest
    return None


def _places(name: str) -> Iterator[str]:
    """Yields the names under which the table may have a name."""
    yield name
    place, _, last = name.rpartition(".")
    if place in _SAME:
        yield f"tf.estimator.{last}"
    if re.match(r"tf\.(estimator|train|contrib\.tpu)\.\w+\.", name):
        # A file inside of the package, tf.estimator.canned.dnn.DNNClassifier.
        yield from (f"{place}.{last}" for place in _PLACES if last[:1].isupper())


class Origins:
    """The names of TensorFlow that stand in one program."""

    def __init__(self, wrapper: meta.MetadataWrapper) -> None:
        """Reads imports, and variables that are other names of what they bring.

        Args:
          wrapper: of the program's tree.
        """
        self._names = wrapper.resolve(meta.QualifiedNameProvider)
        self._aliases: dict[str, str] = {}
        # Values that went to such a variable: each use of it is known.
        self.followed: set[cst.CSTNode] = set()
        self._find_aliases(wrapper)

    def of(self, node: cst.CSTNode) -> tuple[str, ...]:
        """Returns the full dotted names that an expression may be; () for a local one.

        Args:
          node: a Name or an Attribute.
        """
        dotted = [self._resolved(each) for each in self._qualified(node)]
        return tuple(sorted({name for name in dotted if name}))

    def is_certain(self, node: cst.CSTNode) -> bool:
        """Whether an expression is one thing wherever the program gets there.

        Args:
          node: a Name or an Attribute.
        """
        known = {public(name) for name in self.of(node)}
        certain = all(self._resolved(each) for each in self._qualified(node))
        return len(known) == 1 and certain

    def is_by_variable(self, node: cst.CSTNode) -> bool:
        """Whether a variable stands for a row's name, which its assignment replaces.

        Args:
          node: a Name or an Attribute.
        """
        while isinstance(node, cst.Attribute):
            node = node.value
        targets = [
            self._aliases.get(each.name)
            for each in self._qualified(node)
            if each.source is not meta.QualifiedNameSource.IMPORT
        ]
        return any(target and row_of(public(target)) for target in targets)

    def _qualified(self, node: cst.CSTNode) -> list[meta.QualifiedName]:
        found = self._names.get(node, ())
        # libcst computes some of them when they are first asked for.
        return list(found() if callable(found) else found)

    def _resolved(self, name: meta.QualifiedName) -> str | None:
        if name.source is meta.QualifiedNameSource.IMPORT:
            return name.name
        parts = name.name.split(".")
        for end in range(len(parts), 0, -1):
            start = ".".join(parts[:end])
            if start in self._aliases:
                return ".".join([self._aliases[start], *parts[end:]])
        return None

    def _find_aliases(self, wrapper: meta.MetadataWrapper) -> None:
        """Finds variables that are given a dotted name once, and nothing else."""
        finder = _Assignments()
        wrapper.module.visit(finder)
        scopes = wrapper.resolve(meta.ScopeProvider)
        # In the order of the program: one may be made of another.
        for target, value in finder.found:
            scope = scopes.get(target)
            origin = self.of(value)
            once = scope is not None and len(scope[target.value]) == 1
            if once and len({public(name) for name in origin} - {None}) == 1:
                self.followed.add(value)
                for each in self._qualified(target):
                    self._aliases[each.name] = origin[0]


class _Assignments(cst.CSTVisitor):
    """Collects `name = dotted.name`."""

    def __init__(self) -> None:
        self.found: list[tuple[cst.Name, cst.BaseExpression]] = []

    def visit_Assign(self, node: cst.Assign) -> None:
        value = node.value
        if len(node.targets) == 1 and isinstance(value, (cst.Name, cst.Attribute)):
            target = node.targets[0].target
            if isinstance(target, cst.Name):
                self.found.append((target, value))
