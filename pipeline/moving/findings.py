"""Finds in a program what is of tf.estimator or TensorFlow 1, line by line."""

import dataclasses

import libcst as cst
from libcst import metadata as meta

from pipeline.moving import arguments, origins, table
from pipeline.moving.origins import Origins

MECHANICAL = "mechanical"
DECISION = "needs a decision"
NONE = "has no equal"
UNKNOWN = "is not known"
KINDS = (MECHANICAL, DECISION, NONE, UNKNOWN)
# Methods that tell by their names what their objects are.
_METHODS = {
    "minimize": "optimizer.minimize",
    "apply_gradients": "optimizer.apply_gradients",
    "compute_gradients": "optimizer.compute_gradients",
    "make_one_shot_iterator": "tf.data.make_one_shot_iterator",
    "make_initializable_iterator": "tf.data.make_initializable_iterator",
    "export_savedmodel": "estimator.export_savedmodel",
}
# Methods of what has one of these names.
_OF_NAMES = {
    ("iterator", "get_next"): "iterator.get_next",
    ("sess", "run"): "session.run",
    ("session", "run"): "session.run",
}
_IMPORT = "this import fails: leave it out once nothing uses what it brings"
_UNCERTAIN = "what this name is depends on the way that the program takes"
_UNNAMED = "write it with `as`, and use that name"
_BOTH = (
    "the program uses TensorFlow 2's names, too, or asks for the version: choose one"
)
_MADE = "model_fn makes it as it goes: make it by a factory, a module"
_HANDED_ON = "another module brings it: see that it is TensorFlow's"
# Of Keras, what has variables.
_MAKERS = (".layers.", ".Sequential", ".Model", ".optimizers.", ".metrics.", ".models.")
_NOT_FOLLOWED = "it is handed on here: what uses it is not followed"
_PACKAGES = (
    "tf.estimator",
    "tf.estimator.experimental",
    "tf.estimator.export",
    "tf.estimator.inputs",
    "tf.estimator.tpu",
    "tf.contrib",
)
_MODES = ("", ".TRAIN", ".EVAL", ".PREDICT")
_MODULES = ("tf.estimator", "tf.contrib")


@dataclasses.dataclass(frozen=True)
class Finding:
    """One place of a program.

    Attributes:
      line: its number, from 1.
      name: the name as the table writes it.
      row: the table's row; None for an import, and for what no row knows.
      node: the expression that is that name, or the import.
      statement: the statement around it.
      function: name of the function around it; "" at the top.
      call: the call of that name; None where it stands by itself.
      rest: what stands after the row's name, such as `.TRAIN`.
      notes: what has to be decided, besides what the row says.
      is_by_variable: whether a variable stands there, whose assignment is replaced.
    """

    line: int
    name: str
    row: table.Row | None
    node: cst.CSTNode
    statement: cst.CSTNode
    function: str
    call: cst.Call | None = None
    rest: str = ""
    notes: tuple[str, ...] = ()
    is_by_variable: bool = False

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        if self.row is None:
            return DECISION if self.notes else UNKNOWN
        if not self.row.equal:
            return NONE
        is_sure = self.row.rename and not self.row.decide and not self.notes
        return MECHANICAL if is_sure else DECISION


class Finder(cst.CSTVisitor):
    """Collects findings, in the order of the program."""

    def __init__(self, wrapper: meta.MetadataWrapper) -> None:
        """Takes a program's tree, with its places and names.

        Args:
          wrapper: of the tree.
        """
        self.found: list[Finding] = []
        self.is_version_one = False
        self._imports: list[cst.Import | cst.ImportFrom] = []
        self._said: set[str] = set()
        self._is_version_two = False
        self._origins = Origins(wrapper)
        self._places = wrapper.resolve(meta.PositionProvider)
        self._parents = wrapper.resolve(meta.ParentNodeProvider)

    def visit_Import(self, node: cst.Import) -> bool:
        """Notes imports of what is gone."""
        names = [_dotted(alias.name) for alias in node.names]
        if "tensorflow" in names:
            self._imports.append(node)
        self._import(node, names)
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        """Notes imports of what is gone, and of nobody knows what."""
        module = _dotted(node.module) if node.module and not node.relative else ""
        if isinstance(node.names, cst.ImportStar):
            if public := origins.public(module):
                notes = ("write the names that it brings: nothing says which they are",)
                self._add(node, f"{public}.*", None, notes=notes)
            return False
        names = [f"{module}.{alias.name.value}" for alias in node.names]
        if module == "tensorflow" and not any(map(_is_gone, names)):
            self._imports.append(node)
        self._import(node, names)
        return False

    def leave_Module(self, original_node: cst.Module) -> None:
        """Notes the imports of a program that was written for TensorFlow 1."""
        if self.is_version_one:
            for node in self._imports:
                both = (_BOTH,) if self._is_version_two else ()
                named = isinstance(node, cst.ImportFrom) or all(
                    alias.asname or alias.name.value != "tensorflow"
                    for alias in node.names
                    if isinstance(alias.name, cst.Name)
                )
                notes = both if named else (*both, _UNNAMED)
                row = table.rows()["tensorflow"]
                self._add(node, "tensorflow", row, notes=notes)
        self.found.sort(key=lambda each: each.line)

    def _import(self, node: cst.CSTNode, names: list[str]) -> None:
        for name in names:
            if _is_gone(name):
                self._add(node, origins.public(name), None, notes=(_IMPORT,))

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        """Notes a dotted name, or a method."""
        if not _is_dotted(node):
            self._method(node)
            return True
        if not self._name(node):
            self._method(node)
        return False

    def visit_Name(self, node: cst.Name) -> None:
        """Notes a name that an import or a variable gave to one of TensorFlow's."""
        parent = self._parents[node]
        is_label = isinstance(parent, (cst.Param, cst.AssignTarget, cst.NameItem)) or (
            isinstance(parent, cst.Arg) and parent.keyword is node
        )
        is_part = isinstance(parent, cst.Attribute) and parent.attr is node
        if not is_label and not is_part:
            self._name(node)

    def _name(self, node: cst.Name | cst.Attribute) -> bool:
        """Notes what a name of TensorFlow is; returns whether it is one."""
        dotted = self._origins.of(node)
        names = [name for name in map(origins.public, dotted) if name]
        if not names:
            return self._by_another_module(node, dotted)
        self._note_version(node, dotted)
        for name in names:
            if found := origins.row_of(name):
                self._row(node, name, *found)
                return True
        name = names[0]
        if name in _PACKAGES:
            if node not in self._origins.followed:
                self._add(node, name, None, notes=(_NOT_FOLLOWED,))
        elif name.startswith("tf.estimator."):
            self._add(node, name, None)
        return True

    def _by_another_module(self, node: cst.CSTNode, dotted: tuple[str, ...]) -> bool:
        """Notes names that a module of the program's hands on: v1.train.Saver."""
        for name in dotted:
            parts = name.split(".")
            ends = range(1, len(parts)) if {"v1", "estimator"} & {*parts} else ()
            for found in (origins.row_of(".".join(["tf", *parts[n:]])) for n in ends):
                if found is not None:
                    row, rest = found
                    self._add(node, row.name, row, rest=rest, notes=(_HANDED_ON,))
                    return True
        return False

    def _row(self, node: cst.CSTNode, name: str, row: table.Row, rest: str) -> None:
        call = self._parents[node]
        call = call if isinstance(call, cst.Call) and call.func is node else None
        if row.rename == row.name:
            made = call is not None and rest.startswith(_MAKERS)
            if made and self._is_in_model_fn(node):
                self._add(node, name, row, call=call, rest=rest, notes=(_MADE,))
            elif row.decide and row.name not in self._said:
                # It stays as it is; what is to be known of it is said once.
                self._said.add(row.name)
                self._add(node, name, row)
            return
        is_by_variable = self._origins.is_by_variable(node)
        if is_by_variable and call is None:
            return  # Its assignment is found.
        notes = [] if rest else arguments.notes(row.name, call, self._use(node))
        if not self._origins.is_certain(node):
            notes.append(_UNCERTAIN)
        if row.name == "tf.estimator.ModeKeys" and rest not in _MODES:
            notes.append("write ge.ModeKeys.PREDICT for INFER")
        more = {"call": call, "rest": rest, "is_by_variable": is_by_variable}
        self._add(node, name, row, notes=tuple(notes), **more)

    def _is_in_model_fn(self, node: cst.CSTNode) -> bool:
        """Whether a function around a node is a model_fn, by its name or arguments."""
        while (node := self._parents.get(node)) is not None:
            if isinstance(node, cst.FunctionDef):
                names = {param.name.value for param in node.params.params}
                if "model_fn" in node.name.value or {"features", "mode"} <= names:
                    return True
        return False

    def _use(self, node: cst.CSTNode) -> str:
        """Returns what a name that is not called is used as."""
        parent = self._parents[node]
        above = self._parents.get(parent)
        if isinstance(above, cst.ClassDef):
            return arguments.SUBCLASS
        in_check = isinstance(above, cst.Call) and isinstance(above.func, cst.Name)
        if isinstance(parent, cst.Annotation) or (
            in_check and above.func.value in ("isinstance", "issubclass")
        ):
            return arguments.TYPE
        return arguments.VALUE

    def _method(self, node: cst.Attribute) -> None:
        call = self._parents[node]
        if isinstance(call, cst.Call) and node.attr.value in ("replace", "_replace"):
            self._replaced(call)
            return
        owner = node.value.value if isinstance(node.value, cst.Name) else ""
        known = _OF_NAMES.get((owner, node.attr.value)) or _METHODS.get(node.attr.value)
        row = table.rows().get(known or "")
        # Of a module that is none of TensorFlow's, scipy's minimize.
        if row and isinstance(call, cst.Call) and not self._origins.of(node):
            self._add(node, row.name, row, call=call)

    def _replaced(self, call: cst.Call) -> None:
        """Notes what a RunConfig's `replace` is given that is gone."""
        row = table.rows()["tf.estimator.RunConfig"]
        if notes := arguments.gone(row.name, call):
            self._add(call, row.name, row, notes=tuple(notes))

    def _note_version(self, node: cst.CSTNode, dotted: tuple[str, ...]) -> None:
        """Notes whether the program was written for TensorFlow 1."""
        for name in dotted:
            parts = name.split(".")
            if origins.is_version_two(origins.public(name) or "") or (
                name.endswith((".__version__", ".VERSION")) and self._is_compared(node)
            ):
                self._is_version_two = True
            if parts[0] == "tensorflow" and "compat" not in parts:
                starts = (".".join(parts[1:end]) for end in range(2, len(parts) + 1))
                if origins.version_one() & set(starts):
                    self.is_version_one = True

    def _is_compared(self, node: cst.CSTNode) -> bool:
        while (node := self._parents.get(node)) is not None:
            if isinstance(node, (cst.Comparison, cst.BooleanOperation)):
                return True
        return False

    def _add(
        self, node: cst.CSTNode, name: str, row: table.Row | None, **more: object
    ) -> None:
        statement, function = self._around(node)
        line = self._places[node].start.line
        self.found.append(Finding(line, name, row, node, statement, function, **more))

    def _around(self, node: cst.CSTNode) -> tuple[cst.CSTNode, str]:
        """Returns the statement that can have a comment, and the function's name."""
        statement, names = None, []
        while (parent := self._parents.get(node)) is not None:
            if statement is None and hasattr(node, "leading_lines"):
                statement = node
            if isinstance(parent, (cst.FunctionDef, cst.ClassDef)):
                names.append(parent.name.value)
            node = parent
        return statement or node, ".".join(reversed(names))


def _is_dotted(node: cst.BaseExpression) -> bool:
    """Whether an expression is names and dots alone: no call in between."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return isinstance(node, cst.Name)


def _is_gone(name: str) -> bool:
    """Whether TensorFlow 2.21 has no such module, or keeps it to itself."""
    public = origins.public(name) or ""
    return public.startswith(_MODULES) or name.startswith("tensorflow.python")


def _dotted(node: cst.BaseExpression) -> str:
    if isinstance(node, cst.Attribute):
        return f"{_dotted(node.value)}.{node.attr.value}"
    return node.value if isinstance(node, cst.Name) else ""
