"""Builds the modules on this machine's CPU, and tells their sizes and places."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from pipeline.contract.spec import EstimatorSpec, ModeKeys
from pipeline.driver.recipe import Recipe
from pipeline.driver.runtime import Runtime
from pipeline.inspection.findings import Finding, plural, size
from pipeline.inspection.topology import Topology
from pipeline.mistakes import user_errors
from pipeline.strategy import variables
from pipeline.strategy.modules import Modules
from pipeline.tools import description


@dataclasses.dataclass(frozen=True)
class StateLook:
    """The modules as they were built, and what is wrong with them.

    Attributes:
      lines: lines of the report.
      findings: mistakes.
      checkpoint_bytes: size of the values in a checkpoint; None where the modules
        could not be built.
    """

    lines: list[str]
    findings: list[Finding]
    checkpoint_bytes: int | None = None


def look(
    recipe: Recipe, inputs: Iterable[tuple[str, Any]], topology: Topology
) -> StateLook:
    """Calls the factories, traces model_fn on each input, and measures the variables.

    Args:
      recipe: arguments of the Estimator.
      inputs: pairs of a mode and the specs `(features, labels)` of a replica's batch;
        specs of None where the input failed, in whose mode nothing is built.
      topology: replicas and servers that would hold the variables.
    """
    findings: list[Finding] = []
    outline: EstimatorSpec | None = None
    with tf.device("/CPU:0"):
        try:
            runtime = Runtime(recipe, tf.distribute.get_strategy())
        except Exception as error:
            text = f"the modules cannot be made: {user_errors.text_of(error)}"
            return StateLook(["modules: fail, see below"], [Finding(text, True)])
        for mode, element_spec in inputs:
            if element_spec is None:
                continue
            try:
                built = runtime.build(mode, runtime.bound(mode), element_spec)
            except Exception as error:
                text = f"model_fn fails in mode {mode!r}: {user_errors.text_of(error)}"
                findings.append(Finding(text, is_certain=True))
                continue
            outline = built if mode == ModeKeys.TRAIN else outline
    modules = runtime.modules
    lines = list(description.parameter_table(modules))
    if outline is None:
        lines.append("  not all is built: there is no batch to train on, see below")
        return StateLook(lines, findings)
    lines += _placement(modules, topology)
    lines += _memory(modules, outline, topology)
    return StateLook(lines, findings, _bytes(modules.named_variables().values()))


def _placement(modules: Modules, topology: Topology) -> Iterator[str]:
    """Yields where the variables lie."""
    replicas = topology.num_workers * topology.num_replicas
    if topology.num_ps:
        held = modules.named_variables().values()
        largest = max(map(_bytes_of, held), default=0)
        each = size(_bytes(held) / topology.num_ps)
        yield (
            f"placement: on {plural(topology.num_ps, 'parameter server')} in turn, "
            f"about {each} each; the largest variable has {size(largest)}"
        )
        return
    own = [n for n in modules.replica_local() if not n.startswith("driver/")]
    if replicas == 1:
        yield f"placement: on {topology.place}"
        return
    yield f"placement: a copy of each variable on each of {replicas:,} replicas"
    if own:
        yield (
            f"  but {plural(len(own), 'variable')} of its own on each, averaged when "
            f"saved:\n  {own[0]}{', ...' if len(own) > 1 else ''}"
        )


def _memory(
    modules: Modules, outline: EstimatorSpec, topology: Topology
) -> Iterator[str]:
    """Yields the memory that a replica needs, at least."""
    slots = variables.optimizer_prefixes(modules.by_name)
    named = modules.named_variables()
    averages = [v for n, v in named.items() if n.startswith("driver/")]
    optimizers = [v for n, v in named.items() if n.startswith(slots)]
    rest = [v for n, v in named.items() if not n.startswith((*slots, "driver/"))]
    trained = {
        id(variables.raw(v)): variables.raw(v)
        for op in outline.train_op
        for v in op.variables
    }
    sizes = {
        "variables": _bytes(rest),
        "optimizers": _bytes(optimizers),
        "averages, counters": _bytes(averages),
        "gradients": _bytes(trained.values()),
    }
    where = "all servers and a worker" if topology.num_ps else "each replica"
    yield f"memory of {where}, at least {size(sum(sizes.values()))}:"
    yield "  " + ", ".join(f"{name} {size(n)}" for name, n in sizes.items())
    yield "  activations, batches and the input's buffers come on top"


def _bytes(held: Iterable[Any]) -> int:
    return sum(map(_bytes_of, held))


def _bytes_of(variable: Any) -> int:
    shape = tf.TensorShape(variable.shape)
    return (shape.num_elements() or 0) * tf.as_dtype(variable.dtype).size
