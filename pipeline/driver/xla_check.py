"""Finds on a CPU what a TPU's compiler would refuse: `--dry_run --execution=tpu`.

input_fn is called in TRAIN and EVAL, and its dataset is checked. Then XLA compiles the
whole train step (forward, backward, update) and the eval step for the CPU, and runs
each once, on zeros. XLA refuses the same here as for a TPU: operations on strings,
Python, tables, printing, shapes that change in a loop.

Some limits are a TPU's alone: its memory, the dtypes that its replicas can add up, and
shapes that depend on values (tf.boolean_mask, tf.unique), which XLA takes on a CPU. The
operations that make such shapes are listed.
"""

import linecache
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from pipeline.contract.run_config import RunConfig
from pipeline.contract.spec import ModeKeys
from pipeline.driver.recipe import Recipe
from pipeline.driver.runtime import Runtime
from pipeline.feed import dataset as dataset_lib
from pipeline.feed import tpu_feed
from pipeline.feed.batch import Batch, pair_of
from pipeline.loop import losses, steps
from pipeline.loop.metrics import MetricSet
from pipeline.process import package
from pipeline.process.refusals import RefusedValueError
from pipeline.tracing import graph_defs
from pipeline.tracing.summary_states import SummarySet

# The call that users write, by the operation that XLA names in its refusal.
_WRITTEN_AS = {
    "PrintV2": "tf.print",
    "StringFormat": "tf.print",
    "PyFunc": "tf.numpy_function",
    "PyFuncStateless": "tf.numpy_function",
    "EagerPyFunc": "tf.py_function",
    "LookupTableFindV2": "a lookup table",
    "WriteSummary": "tf.summary",
    "WriteScalarSummary": "tf.summary",
}
# The call that users write, by an operation whose result's shape depends on values.
_SHAPED_BY_VALUES = {
    "Where": "tf.where of one argument or tf.boolean_mask",
    "Unique": "tf.unique",
    "UniqueV2": "tf.unique",
    "UniqueWithCounts": "tf.unique_with_counts",
    "UniqueWithCountsV2": "tf.unique_with_counts",
    "ListDiff": "tf.sets.difference",
}


def compile_steps(
    model_fn: Callable[..., Any],
    factories: Mapping[str, Callable[[], Any]],
    input_fns: Iterable[tuple[str, Callable[..., Any]]],
    *,
    config: RunConfig,
    params: Mapping[str, Any] | None = None,
    num_replicas: int = 1,
) -> Iterator[str]:
    """Compiles one step of each mode on the CPU.

    Args:
      model_fn: function of the user, see `pipeline.contract.spec`.
      factories: factories of the modules, by name; they are called here, on the CPU.
      input_fns: pairs of a mode, TRAIN or EVAL, and its input_fn.
      config: RunConfig of the run on the TPU.
      params: hyperparameters of model_fn and input_fn.
      num_replicas: replicas that share a global batch; a step is compiled for one part.

    Yields:
      A line for the user for each step, and for each doubtful operation in it.

    Raises:
      ValueError: a TPU cannot be fed with an input, or XLA refuses a step.
    """
    with tf.device("/CPU:0"):
        here = tf.distribute.get_strategy()
        runtime = Runtime(Recipe(model_fn, factories, config, params or {}), here)
        one = dataset_lib.InputContext(num_replicas_in_sync=num_replicas)
        # A loop of its own: an input is refused before minutes of compiling.
        datasets = []
        for mode, input_fn in input_fns:
            source = dataset_lib.Source(input_fn, mode, runtime.context)
            dataset, _ = tpu_feed.dataset_for(source, one)
            datasets.append((mode, dataset))
        for mode, dataset in datasets:
            yield from _compiled(runtime, mode, pair_of(dataset.element_spec))


def _compiled(runtime: Runtime, mode: str, element_spec: Any) -> Iterator[str]:
    """Compiles and runs the step of one mode; yields lines for the user."""
    phase = f"{mode} step"
    step = _step(runtime, mode, element_spec)
    features, labels = tf.nest.map_structure(
        lambda spec: tf.zeros(spec.shape, spec.dtype), element_spec
    )
    compiled = tf.function(step, jit_compile=True, autograph=False)
    start = time.monotonic()
    try:
        graph = compiled.get_concrete_function(features, labels).graph
        compiled(features, labels)
    except tf.errors.OpError as error:
        raise RefusedValueError(f"{phase}: {_refused(str(error))}") from error
    yield f"{phase}: XLA compiled, {time.monotonic() - start:.1f} s"
    found = sorted({_SHAPED_BY_VALUES[op] for op in _ops(graph) & {*_SHAPED_BY_VALUES}})
    if found:
        yield (
            f"{phase}: {', '.join(found)}: the result's shape depends on values, which "
            "XLA takes on a CPU and may refuse for a TPU, or pad; a mask of a fixed "
            "shape, tf.where(condition, x, 0.0), does not."
        )


def _step(runtime: Runtime, mode: str, element_spec: Any) -> Callable[[Any, Any], Any]:
    """Returns one step of `mode` as a function of a batch's features and labels."""
    model_fn = runtime.bound(mode)
    outline = runtime.build(mode, model_fn, element_spec)
    metrics = MetricSet(outline.metrics)
    micro_batches, summaries = 1, SummarySet(outline.summaries, under_xla=True)
    if mode == ModeKeys.TRAIN:
        micro_batches = runtime.config.gradient_accumulation_steps
        step = steps.TrainStep(
            model_fn,
            runtime.modules,
            outline,
            metrics,
            sparse=False,
            summaries=summaries,
        )
    else:
        step = steps.EvalStep(model_fn, runtime.modules, metrics, summaries=summaries)

    def run(features: Any, labels: Any) -> Any:
        batches = [Batch(features, labels)] * micro_batches
        totals: losses.Totals = step([batches], tf.zeros([], tf.int64))
        return totals.as_tree()

    return run


def _ops(graph: Any) -> set[str]:
    """Returns the types of all operations, in branches and loops, too."""
    return {node.op for node in graph_defs.nodes(graph.as_graph_def())}


def _refused(message: str) -> str:
    """Returns what to change and where, from XLA's error."""
    # XLA names an operation once for each place: a dict keeps the order, without these.
    ops = dict.fromkeys(re.findall(r"(\w+) \(No registered", message))
    if ops:
        named = [f"{op} ({_WRITTEN_AS[op]})" if op in _WRITTEN_AS else op for op in ops]
        what = (
            f"XLA cannot compile {', '.join(named)}, and so no TPU can run it: do it "
            "in input_fn, on the host, or leave it out."
        )
    else:
        first = message.partition("\n")[0]
        what = f"XLA refuses it, and so would a TPU: {first}"
    return what + _source(message)


def _source(message: str) -> str:
    """Returns the innermost line of the user's code that made the operation, or ""."""
    folders = [os.path.dirname(module.__file__) for module in (tf, keras)]
    libraries = [os.path.join(each, "") for each in (*folders, package.PACKAGE_ROOT)]
    places = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', message)
    for path, line, function in reversed(places):
        # TensorFlow's stack traces leave out the first slash of a path.
        found = path if os.path.exists(path) else f"/{path}"
        if any(os.path.abspath(found).startswith(library) for library in libraries):
            continue
        text = linecache.getline(found, int(line)).strip()
        return f"\n  {found}, line {line}, in {function}\n    {text}"
    return ""
