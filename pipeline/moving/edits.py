"""Writes the mechanical part of a move, and marks what is left for people.

Comments and format stay. A name is replaced only where the program means the same
with the other one; wherever that is not certain there is a mark and no edit.
"""

import re
from collections.abc import Callable, Mapping

import libcst as cst

from pipeline.moving import findings
from pipeline.moving.findings import Finding

MARK = "# MOVING: "
VERSION_ONE = "tensorflow.compat.v1"
# tf.metrics' functions of labels and predictions, whose Keras metrics are the same.
_METRICS = {
    "tf.metrics.accuracy": "keras.metrics.Accuracy",
    "tf.metrics.root_mean_squared_error": "keras.metrics.RootMeanSquaredError",
}
# Weights are left to people: which shapes they may have differs.
_OF_METRICS = ("labels", "predictions", "name")
# tf.estimator's defaults of an EvalSpec, by name and place; ours are others.
_EVAL_DEFAULTS = {"steps": (100, 1), "throttle_secs": (600, 6)}
Edit = Callable[[cst.CSTNode], cst.CSTNode]
Parents = Mapping[cst.CSTNode, cst.CSTNode]


def of(
    found: list[Finding], parents: Parents, alias: str = "ge"
) -> dict[cst.CSTNode, Edit]:
    """Returns the edits of a program: a function of a node, by the node.

    Args:
      found: findings of the program.
      parents: the node above each node.
      alias: what the program shall call this project.
    """
    edits: dict[cst.CSTNode, Edit] = {}
    for each in found:
        if each.row is None or not each.row.equal:
            continue
        if isinstance(each.node, (cst.Import, cst.ImportFrom)):
            if not each.notes:
                edits[each.node] = _of_version_one
        elif each.is_by_variable or isinstance(each.node, cst.Call):
            pass  # The name stands elsewhere.
        elif each.row.rename not in (None, each.row.name):
            name = each.row.rename.replace("ge.", f"{alias}.", 1)
            edits[each.node] = _renamed(name + each.rest)
        if each.row.name == "tf.estimator.EvalSpec" and _lacks(each.call):
            edits[each.call] = _with_defaults
        if each.row.name in _METRICS and _is_a_metric(
            each.row.name, each.call, parents
        ):
            edits[each.call] = _metric(_METRICS[each.row.name], alias)
        if each.row.name == "tf.data.make_one_shot_iterator":
            edits.update(_returned_dataset(each, parents))
    return edits


def is_done(finding: Finding, edits: Mapping[cst.CSTNode, Edit]) -> bool:
    """Whether the edits do all that a finding asks for.

    Args:
      finding: one of the program's.
      edits: as `of` gives them.
    """
    if finding.kind == findings.MECHANICAL:
        return True
    if finding.row is None or finding.notes:
        return False
    name = finding.row.name
    if name == "tf.data.make_one_shot_iterator":
        return any(finding.call is node or finding.node is node for node in edits)
    return name in _METRICS and finding.call in edits


def _renamed(name: str) -> Edit:
    def edit(node: cst.CSTNode) -> cst.CSTNode:
        return cst.parse_expression(name).with_changes(lpar=node.lpar, rpar=node.rpar)

    return edit


def _of_version_one(node: cst.Import | cst.ImportFrom) -> cst.CSTNode:
    """Returns the import of TensorFlow 1's names in place of TensorFlow's."""
    package = cst.parse_expression(VERSION_ONE)
    if isinstance(node, cst.ImportFrom):
        return node.with_changes(module=package)
    names = [
        each.with_changes(name=package) if _is_tensorflow(each.name) else each
        for each in node.names
    ]
    return node.with_changes(names=names)


def _is_tensorflow(name: cst.BaseExpression) -> bool:
    return isinstance(name, cst.Name) and name.value == "tensorflow"


def _lacks(call: cst.Call | None) -> list[str]:
    """Returns the arguments of an EvalSpec that it leaves to the defaults."""
    if call is None or any(arg.star for arg in call.args):
        return []
    by_position = [arg for arg in call.args if arg.keyword is None]
    names = {arg.keyword.value for arg in call.args if arg.keyword}
    return [
        name
        for name, (_, place) in _EVAL_DEFAULTS.items()
        if name not in names and len(by_position) <= place
    ]


def _with_defaults(node: cst.Call) -> cst.Call:
    """Returns an EvalSpec with tf.estimator's defaults, set out as the others."""
    for name in _lacks(node):
        node = _with_argument(node, name, _EVAL_DEFAULTS[name][0])
    return node


def _with_argument(node: cst.Call, name: str, value: int) -> cst.Call:
    nothing = cst.SimpleWhitespace("")
    added = cst.Arg(
        keyword=cst.Name(name),
        value=cst.Integer(str(value)),
        equal=cst.AssignEqual(nothing, nothing),
    )
    if not node.args:
        return node.with_changes(args=[added])
    *first, last = node.args
    between = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    # A comment there belongs to the argument before it.
    if first and "#" not in cst.Module([]).code_for_node(first[-1].comma):
        between = first[-1].comma
    added = added.with_changes(
        comma=last.comma, whitespace_after_arg=last.whitespace_after_arg
    )
    last = last.with_changes(comma=between, whitespace_after_arg=nothing)
    return node.with_changes(args=[*first, last, added])


def _is_a_metric(name: str, call: cst.Call | None, parents: Parents) -> bool:
    """Whether a call is a value in a dict that is given as eval_metric_ops at once.

    Elsewhere the program may take the pair apart that it returns.
    """
    if call is None or not _are_labels_and_predictions(call):
        return False
    if name == "tf.metrics.accuracy" and not _are_numbers_of_classes(call):
        return False
    element = parents[call]
    given = parents.get(parents.get(element))
    return (
        isinstance(element, cst.DictElement)
        and isinstance(given, cst.Arg)
        and given.keyword is not None
        and given.keyword.value == "eval_metric_ops"
    )


def _are_labels_and_predictions(call: cst.Call) -> bool:
    names = [
        arg.keyword.value if arg.keyword else _OF_METRICS[n] if n < 2 else "?"
        for n, arg in enumerate(call.args)
    ]
    plain = set(names) <= set(_OF_METRICS) and {"labels", "predictions"} <= set(names)
    return plain and not any(arg.star for arg in call.args)


def _are_numbers_of_classes(call: cst.Call) -> bool:
    """Whether predictions are numbers of classes for certain.

    Of others tf.metrics.accuracy would compare what a cast to the labels' kind leaves.
    """
    named = [
        a.value for a in call.args if a.keyword and a.keyword.value == _OF_METRICS[1]
    ]
    given = named or [arg.value for arg in call.args[1:2]]
    code = cst.Module([]).code_for_node(given[0])
    return re.match(r"\(*\w+(\.\w+)*\.argmax\(", code) is not None


def _metric(factory: str, alias: str) -> Edit:
    def edit(node: cst.Call) -> cst.Call:
        given = {
            arg.keyword.value if arg.keyword else _OF_METRICS[n]: arg.value
            for n, arg in enumerate(node.args)
        }
        made = cst.parse_expression(f"{alias}.metric({factory}, y, p)")
        factory_arg, *args = made.args
        args = [
            arg.with_changes(value=given[name])
            for arg, name in zip(args, _OF_METRICS, strict=False)
        ]
        return made.with_changes(
            args=[factory_arg, *args], lpar=node.lpar, rpar=node.rpar
        )

    return edit


def _returned_dataset(finding: Finding, parents: Parents) -> dict[cst.CSTNode, Edit]:
    """Returns the edit of `return dataset.make_one_shot_iterator().get_next()`.

    In an input_fn it is `return dataset`; elsewhere somebody may use the tensors.
    """
    next_method = parents.get(finding.call)
    next_call = parents.get(next_method)
    is_next = isinstance(next_method, cst.Attribute) and (
        next_method.attr.value == "get_next" and isinstance(next_call, cst.Call)
    )
    if not is_next or not isinstance(parents[next_call], cst.Return):
        return {}
    name = finding.function.rpartition(".")[2]
    if "input_fn" not in name or _is_unpacked(name, parents, next_call):
        return {}
    return {next_call: _dataset_of, finding.call: lambda node: node}


def _is_unpacked(name: str, parents: Parents, node: cst.CSTNode) -> bool:
    """Whether the program itself takes the tensors that an input_fn returns."""
    while parents.get(node) is not None:
        node = parents[node]
    return re.search(rf"\w\s*,\s*\w+\)?\s*=\s*{name}\(", node.code) is not None


def _dataset_of(node: cst.Call) -> cst.BaseExpression:
    """Returns the dataset of a call of get_next."""
    iterator = node.func.value
    if iterator.args:  # tf.data.make_one_shot_iterator(dataset)
        return iterator.args[0].value
    return iterator.func.value


def imports_keras(module: cst.Module) -> bool:
    """Whether a program has a name `keras` of its own at the top.

    Args:
      module: the program's tree.
    """
    return any(
        (alias.asname.name if alias.asname else alias.name).value == "keras"
        for statement in module.body
        if isinstance(statement, cst.SimpleStatementLine)
        for line in statement.body
        if isinstance(line, (cst.Import, cst.ImportFrom))
        and not isinstance(line.names, cst.ImportStar)
        for alias in line.names
        if not isinstance(alias.name, cst.Attribute) or alias.asname
    )


class Writer(cst.CSTTransformer):
    """Makes the edits, and writes marks above statements."""

    def __init__(
        self,
        edits: Mapping[cst.CSTNode, Edit],
        marks: Mapping[cst.CSTNode, list[str]],
    ) -> None:
        """Takes what is to be done.

        Args:
          edits: as `of` gives them.
          marks: texts of comments, by statement.
        """
        self._edits = edits
        self._marks = marks

    def on_leave(
        self, original_node: cst.CSTNode, updated_node: cst.CSTNode
    ) -> cst.CSTNode:
        """Returns a node with its edit, and its marks.

        Args:
          original_node: as it was.
          updated_node: with the edits below it.
        """
        edit = self._edits.get(original_node)
        if edit is not None:
            updated_node = edit(updated_node)
        texts = self._marks.get(original_node)
        if not texts:
            return updated_node
        lines = [cst.EmptyLine(comment=cst.Comment(f"{MARK}{text}")) for text in texts]
        above = [*updated_node.leading_lines, *lines]
        return updated_node.with_changes(leading_lines=above)
