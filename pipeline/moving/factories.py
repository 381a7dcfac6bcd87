"""Proposes the factories of what a function makes as it goes: layers, optimizers."""

import ast
import dataclasses
import re
from collections.abc import Mapping

import libcst as cst

from pipeline.moving.findings import Finding

Parents = Mapping[cst.CSTNode, cst.CSTNode]
_INPUTS = ("inputs", "input", "value", "x")
# Arguments by position, where tf.layers and Keras have another order.
_POSITIONS = {
    "dense": ("inputs", "units", "activation", "use_bias"),
    "dropout": ("inputs", "rate"),
    "batch_normalization": ("inputs", "axis", "momentum", "epsilon"),
    "batch_norm": ("inputs", "momentum", "center", "scale", "epsilon"),
    "fully_connected": ("inputs", "units", "activation"),
    "flatten": ("inputs",),
}
_OF_CONVOLUTIONS = ("inputs", "filters", "kernel_size", "strides", "padding")
_OF_POOLINGS = ("inputs", "pool_size", "strides", "padding")
# What a call said at each use, and the layer does not take.
_LEFT_OUT = {
    *_INPUTS,
    "training",
    "is_training",
    "reuse",
    "_reuse",
    "scope",
    "begin_norm_axis",
    "begin_params_axis",
    "fused",
    "virtual_batch_size",
    "variables_collections",
    "outputs_collections",
    "updates_collections",
}
_RENAMED = {
    "num_outputs": "units",
    "activation_fn": "activation",
    "weights_initializer": "kernel_initializer",
    "weights_regularizer": "kernel_regularizer",
    "biases_initializer": "bias_initializer",
    "stride": "strides",
    "decay": "momentum",
}
_RATE = ("learning_rate",)
_OF_OPTIMIZERS = {
    "AdamOptimizer": ("learning_rate", "beta1", "beta2", "epsilon"),
    "AdagradOptimizer": ("learning_rate", "initial_accumulator_value"),
    "AdadeltaOptimizer": ("learning_rate", "rho", "epsilon"),
    "MomentumOptimizer": ("learning_rate", "momentum"),
    "RMSPropOptimizer": ("learning_rate", "decay", "momentum", "epsilon"),
    "AdamWOptimizer": ("weight_decay", "learning_rate", "beta1", "beta2", "epsilon"),
}
_RENAMED_OF_OPTIMIZERS = {
    "beta1": "beta_1",
    "beta2": "beta_2",
    "decay": "rho",
    "use_nesterov": "nesterov",
}
_MAKERS = ("keras.layers.", "models.Embedding")
# What a keras.Model has for itself: a layer of such a name would take its place.
_OF_KERAS = """
activity_regularizer add_loss add_metric add_variable add_weight autocast build
build_from_config built call call_signature_parameters compile compile_from_config
compiled compiled_loss compiled_metrics compute_dtype compute_loss compute_mask
compute_metrics compute_output_shape compute_output_spec count_params
distribute_reduction_method distribute_strategy dtype dtype_policy evaluate export fit
from_config get_build_config get_compile_config get_config get_layer get_metrics_result
get_quantization_layer_structure get_state_tree get_weights input input_dtype input_spec
jit_compile layers load_own_variables load_weights loss losses make_predict_function
make_test_function make_train_function metrics metrics_names metrics_variables name
non_trainable_variables non_trainable_weights output path predict predict_function
predict_on_batch predict_step quantization_mode quantize quantized_build quantized_call
rematerialized_call reset_metrics run_eagerly save save_own_variables save_weights
set_state_tree set_weights stateless_call stateless_compute_loss steps_per_execution
summary supports_jit supports_masking symbolic_call test_function test_on_batch
test_step to_json train_function train_on_batch train_step trainable trainable_variables
trainable_weights unrolled_steps_per_execution variable_dtype variables weights
"""


@dataclasses.dataclass(frozen=True)
class Proposal:
    """The modules that one function makes as it goes.

    Attributes:
      function: its name.
      lines: Python that makes them by factories.
    """

    function: str
    lines: tuple[str, ...]


def proposals(
    found: list[Finding], module: cst.Module, parents: Parents
) -> list[Proposal]:
    """Returns a proposal for each function that makes layers, variables, optimizers.

    Args:
      found: findings of a program.
      module: its tree.
      parents: the node above each node.
    """
    functions: dict[str, list[Finding]] = {}
    for each in found:
        if each.function and each.row is not None and each.call is not None:
            functions.setdefault(each.function, []).append(each)
    made = []
    for function, calls in functions.items():
        network = _network(calls, module, parents)
        optimizers = _optimizers(calls, module)
        if network or optimizers:
            modules = {**({"network": "Network"} if network else {}), **optimizers}
            pairs = ", ".join(f'"{k}": {v}' for k, v in modules.items())
            made.append(Proposal(function, (*network, f"modules = {{{pairs}}}")))
    return made


def _network(
    calls: list[Finding], module: cst.Module, parents: Parents
) -> tuple[str, ...]:
    """Returns a Keras model that holds the layers; none where there are none."""
    lines, names = [], set()
    for each in calls:
        line = _layer(each, module) or _variable(each, module)
        if line is None:
            continue
        name = _fresh(_name(each, module), names)
        loop = ", in a loop: one a turn" if _is_in_a_loop(each, parents) else ""
        lines.append(f"        self.{name} = {line}  # Line {each.line}{loop}.")
    if not lines:
        return ()
    lines.append(f"# The function takes `network`, and uses network.{min(names)}.")
    head = (
        "class Network(keras.Model):",
        f"    def __init__(self{_taken(lines)}):",
        "        super().__init__()",
    )
    return (*head, *lines)


def _layer(finding: Finding, module: cst.Module) -> str | None:
    """Returns the layer of a call, with the call's arguments."""
    if finding.row.name == "tf.keras":
        is_layer = finding.rest.startswith((".layers.", ".Sequential", ".models."))
        return _as_it_is(finding, module) if is_layer else None
    write = finding.row.write
    maker = write.partition("(")[0]
    if (
        not write.startswith(_MAKERS)
        or finding.row.name.startswith("tf.nn.")
        or (finding.rest and "slim" not in finding.row.name)
    ):
        return None
    given = _arguments(finding, module)
    plain = re.fullmatch(r"tf\.(layers|contrib\.layers)\.\w+", finding.row.name)
    if not plain:
        return write
    if finding.row.name.startswith("tf.contrib"):
        given = {**_defaults(write), **given}
    pairs = [f"{name}={value}" for name, value in given.items()]
    return f"{maker}({', '.join(pairs)})"


def _as_it_is(finding: Finding, module: cst.Module) -> str:
    """Returns a call of Keras', as Keras 3 has it."""
    args = ", ".join(_code(arg, module).rstrip(" ,") for arg in finding.call.args)
    place = finding.row.name.removeprefix("tf.").removesuffix(".legacy")
    return f"{place}{finding.rest}({args})"


def _arguments(finding: Finding, module: cst.Module) -> dict[str, str]:
    """Returns the arguments that the layer keeps, by Keras' names."""
    last = finding.row.name.rpartition(".")[2].lower()
    positions = _POSITIONS.get(last, ("inputs",))
    if "conv" in last:
        positions = _OF_CONVOLUTIONS
    elif "pooling" in last:
        positions = _OF_POOLINGS
    if finding.row.name.rpartition(".")[2][:1].isupper():
        positions = positions[1:]  # A class gets its input when it is called.
    given = {}
    for n, arg in enumerate(finding.call.args):
        if arg.keyword is not None:
            name = arg.keyword.value
        else:
            name = positions[n] if n < len(positions) else f"argument_{n + 1}"
        name = _RENAMED.get(name, name)
        if name == "scope" and _code(arg.value, module)[:1] in ("'", '"'):
            name = "name"  # What its values are found by in old checkpoints.
        if "conv" in last and name == "units":
            name = "filters"
        if name not in _LEFT_OUT and not arg.star:
            given[name] = _regularizer(_code(arg.value, module))
    return given


def _regularizer(code: str) -> str:
    """Returns Keras' regularizer for contrib's, which is half as strong."""
    found = re.fullmatch(r"[\w.]+\.l2_regularizer\((?:scale=)?(.*)\)", code)
    return f"keras.regularizers.L2(0.5 * ({found[1]}))" if found else code


def _code(node: cst.CSTNode, module: cst.Module) -> str:
    """Returns the text of an expression, in one line."""
    return " ".join(module.code_for_node(node).split())


def _defaults(write: str) -> dict[str, str]:
    """Returns the keywords of a row's line, which are the original's defaults."""
    call = ast.parse(write, mode="eval").body
    return {each.arg: ast.unparse(each.value) for each in call.keywords}


def _variable(finding: Finding, module: cst.Module) -> str | None:
    """Returns what makes the variable of a call of get_variable."""
    if finding.row.name != "tf.get_variable":
        return None
    positions = ("name", "shape", "dtype", "initializer")
    given = {}
    for n, arg in enumerate(finding.call.args):
        name = arg.keyword.value if arg.keyword else positions[n] if n < 4 else ""
        if name in ("name", "shape", "initializer", "trainable"):
            given[name] = _code(arg.value, module)
    pairs = [f"{name}={value}" for name, value in given.items()]
    return f"self.add_weight({', '.join(pairs)})"


def _name(finding: Finding, module: cst.Module) -> str:
    """Returns a name for a layer: the one that it was given, or its kind's."""
    for arg in finding.call.args:
        text = module.code_for_node(arg.value)
        is_name = arg.keyword is not None and arg.keyword.value in ("name", "scope")
        is_first = arg is finding.call.args[0] and finding.row.name == "tf.get_variable"
        if (is_name or is_first) and re.fullmatch(r"[\"'][A-Za-z]\w*[\"']", text):
            return text[1:-1]
    last = (finding.name + finding.rest).rpartition(".")[2]
    return "variable" if last == "get_variable" else last.lower()


def _fresh(name: str, names: set[str]) -> str:
    """Returns a name that neither a layer nor Keras has yet, and notes it."""
    name = f"own_{name}" if name in _OF_KERAS.split() else name
    found, number = name, 1
    while found in names:
        number += 1
        found = f"{name}_{number}"
    names.add(found)
    return found


def _is_in_a_loop(finding: Finding, parents: Parents) -> bool:
    node = finding.node
    while node is not None and not isinstance(node, cst.FunctionDef):
        if isinstance(node, (cst.For, cst.While, cst.CompFor, cst.ListComp)):
            return True
        node = parents.get(node)
    return False


def _optimizers(calls: list[Finding], module: cst.Module) -> dict[str, str]:
    """Returns factories of the optimizers, by names for them."""
    names, made = set(), {}
    for each in calls:
        line = _optimizer(each, module)
        if line is not None and line not in made.values():
            made[_fresh("optimizer", names)] = line
    return made


def _optimizer(finding: Finding, module: cst.Module) -> str | None:
    """Returns a factory of the row's optimizer, with the call's arguments.

    Defaults of TensorFlow 1 are written out where Keras has others. None for a call
    that makes no optimizer.
    """
    write = finding.row.write
    is_keras = finding.rest.startswith(".optimizers.") and finding.rest.count(".") == 2
    if is_keras or (finding.row.name.endswith(".legacy") and finding.rest):
        made = _as_it_is(finding, module)
        return f"lambda{_taken([made]).removeprefix(',')}: {made}"
    # The row of the base class has no call: nothing is made of it.
    is_maker = write.startswith("keras.optimizers.") and write.endswith(")")
    if not (is_maker and finding.row.name.endswith("Optimizer")):
        return None
    given = {
        name: value
        for name, value in _defaults(write).items()
        if name not in ("momentum", "weight_decay") and name[:3] not in ("l1_", "l2_")
    }
    positions = _OF_OPTIMIZERS.get(finding.row.name.rpartition(".")[2], _RATE)
    for n, arg in enumerate(finding.call.args):
        at = positions[n] if n < len(positions) else f"argument_{n + 1}"
        name = arg.keyword.value if arg.keyword else at
        if name not in ("use_locking", "name") and not arg.star:
            name = _RENAMED_OF_OPTIMIZERS.get(name, name)
            given[name] = _code(arg.value, module)
    rate = given.pop("learning_rate", "0.001")
    pairs = [rate, *(f"{name}={value}" for name, value in given.items())]
    made = f"{write.partition('(')[0]}({', '.join(pairs)})"
    return f"lambda{_taken([made]).removeprefix(',')}: {made}"


def _taken(lines: list[str]) -> str:
    """Returns the arguments of a factory, which gets these names where it asks."""
    names = ("params", "config")
    used = [n for n in names if any(re.search(rf"\b{n}\b", line) for line in lines)]
    return "".join(f", {name}" for name in used)
