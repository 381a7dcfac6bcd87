"""Each worker's iterator over its training data, on its own host.

The chief sends the graph of the data; the worker reads, by TensorFlow alone.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from pipeline import iterators
from pipeline.input_fn import Feed
from pipeline.parameter_server import ParameterServers

_coordinator = tf.distribute.coordinator
# Operations that call Python, which is not there on a worker.
_PYTHON_OPS = ("PyFunc", "EagerPyFunc", "PyFuncStateless")


class WorkerIterators:
    """One iterator a worker, which of them have ended, and where they stand.

    A worker that was started again opens its data anew, and skips the steps that count
    as done. The variable that says how many is set to what the chief counted whenever
    no work is under way; in between each worker adds to it what it did.

    Attributes:
      per_worker: what `ClusterCoordinator.schedule` takes.
      steps: by worker, done with what it read and returned to the chief.
      ended: indices of the workers whose data have ended.
    """

    def __init__(
        self,
        feeds: Sequence[Feed],
        strategy: ParameterServers,
        *,
        steps: Sequence[int],
        start_there: bool = False,
    ) -> None:
        """Sends the data's graphs to the workers.

        Args:
          feeds: by worker, of one type spec.
          strategy: whose workers read.
          steps: by worker, done before.
          start_there: whether the data do without what these read; else it is skipped.

        Raises:
          ValueError: a pipeline that calls Python.
        """
        self.steps = list(steps)
        self.ended: set[int] = set()
        self._strategy = strategy
        strategy.worker_steps.assign(self.steps)
        graphs = [graph_of(each.dataset) for each in feeds]
        spec = feeds[0].dataset.element_spec
        nexts_per_step = feeds[0].plan.nexts_per_step
        left_out = tf.constant(steps if start_there else [0] * len(steps), tf.int64)

        def worker_dataset() -> tf.data.Dataset:
            index = _coordinator.experimental_get_current_worker_index()
            graph = tf.gather(tf.stack(graphs), index)
            variant = tf.raw_ops.DatasetFromGraph(graph_def=graph)
            dataset = tf.data.experimental.from_variant(variant, spec)
            if not strategy.resume_input:
                return dataset
            done = strategy.worker_steps.read_value() - left_out
            return dataset.skip(tf.gather(done, index) * nexts_per_step)

        coordinator = _coordinator.ClusterCoordinator(strategy)
        self.per_worker = iter(coordinator.create_per_worker_dataset(worker_dataset))

    def count(self, pieces: Iterable[Any]) -> None:
        """Adds what workers did; no work may be under way.

        Args:
          pieces: each with a `worker` and its `num_steps`.
        """
        for piece in pieces:
            self.steps[piece.worker] += piece.num_steps
        # One that died may have added what it did not return.
        self._strategy.worker_steps.assign(self.steps)


def graph_of(dataset: tf.data.Dataset) -> tf.Tensor:
    """What `dataset` does, as a graph that another process can run."""
    graph = iterators.serialized(dataset)
    definition = tf.compat.v1.GraphDef.FromString(graph.numpy())
    nodes = [*definition.node]
    for function in definition.library.function:
        nodes += function.node_def
    if any(node.op in _PYTHON_OPS for node in nodes):
        raise ValueError(
            "input_fn returned a dataset that calls Python (from_generator, "
            "numpy_function, py_function), and parameter servers' workers run no "
            "Python: write the data as TFRecord files, and read them by "
            "inputs.tfrecord_input."
        )
    return graph
