"""Feeds the workers of parameter servers: each reads its own data on its own host.

The chief calls input_fn once for each worker, with an InputContext of its own, as every
strategy does. It sends each worker the graph of the dataset. The worker runs this graph
by TensorFlow alone: there is no Python of the user's there.
"""

import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from pipeline.checkpoints.checkpoint_reader import Reader, UnreadableCheckpointError
from pipeline.feed import dataset as dataset_lib
from pipeline.feed import fingerprint, input_record, iterators, position
from pipeline.feed.batch import Plan
from pipeline.feed.dataset import Source
from pipeline.feed.feed import AS_YIELDED, Feed
from pipeline.feed.fingerprint import Fingerprint
from pipeline.feed.input_record import Verdict
from pipeline.process.refusals import RefusedValueError
from pipeline.strategy.modules import Modules
from pipeline.strategy.parameter_server import ParameterServers
from pipeline.strategy.replicas import Replicas
from pipeline.tracing import graph_defs

_coordinator = tf.distribute.coordinator
# The name, in a position's file, of the steps that each worker has done.
_STEPS = "workers"


@dataclasses.dataclass(frozen=True)
class WorkerPlan(Plan):
    """The way in which a worker takes a step's batches."""

    def where(self, more: tf.Tensor, step: Callable[[], Any], state: Any) -> Any:
        """Does the same as `Plan.where`, by a loop of one turn at most.

        TensorFlow hands each worker's own lookup tables to a function when it is
        called. They reach the body of a loop, but not the branches of `tf.cond`.
        """
        _, state = tf.while_loop(
            lambda again, _: again,
            lambda *_: (tf.constant(False), step()),
            [more, state],
        )
        return state


@dataclasses.dataclass(frozen=True)
class WorkerFeed:
    """The workers' data and how they are taken.

    Attributes:
      feeds: feeds by worker, all of one type spec.
      without: takes a number of first elements by worker, and returns the feeds without
        them; None for an input_fn that does not take `first_batch`.
      yielded: dataset that input_fn returned for the first worker.
    """

    feeds: Sequence[Feed]
    without: Callable[[Sequence[int]], Sequence[Feed]] | None = None
    yielded: tf.data.Dataset | None = None

    @property
    def plan(self) -> Plan:
        """The way to take a step's batches; the same for all workers."""
        return self.feeds[0].plan

    @property
    def element_spec(self) -> tuple[Any, Any]:
        """The type specs `(features, labels)` of one worker's batch."""
        return self.feeds[0].element_spec

    def fingerprint(self) -> Fingerprint:
        """Describes the first worker's data; the others are of the same kind."""
        feed = self.feeds[0]
        return fingerprint.of(feed.dataset if self.yielded is None else self.yielded)

    def again(self) -> "WorkerFeed":
        """Returns this feed: the graphs of its data are sent to the workers anew."""
        return self

    def __str__(self) -> str:
        """Returns 'input pipelines of 2 workers | each batch 64', for logs."""
        size = self.feeds[0].global_batch or AS_YIELDED
        return f"input pipelines of {len(self.feeds)} workers | each batch {size}"


def make_worker_feed(
    source: Source, *, strategy: ParameterServers, num_micro_batches: int = 1
) -> WorkerFeed:
    """Calls an input_fn once for each worker.

    An input_fn that takes no `input_context` is called once. Each worker then takes
    every `num_workers`-th batch.

    Args:
      source: the input_fn.
      strategy: strategy whose workers are fed.
      num_micro_batches: batches per worker and step.

    Raises:
      TypeError: see `Source.dataset`.
      ValueError: the workers' data are of different kinds.
    """
    num_workers, replicas = strategy.num_workers, Replicas.of(strategy)
    splits = source.yields_global_batches
    # One seed for all: workers that share the batches shuffle alike, and so does a
    # worker's replacement, which skips what was read before.
    if strategy.resume_input:
        source = source.in_one_order()
    else:  # Each run begins anew, so each draws another order.
        chance = int.from_bytes(os.urandom(4), "big")
        source = source.in_one_order(lambda seed: seed ^ chance)
    pipelines = [
        dataset_lib.InputContext(
            num_input_pipelines=1 if splits else num_workers,
            input_pipeline_id=0 if splits else index,
            num_replicas_in_sync=replicas.total,
        )
        for index in range(1 if splits else num_workers)
    ]

    def opened(first: Sequence[int]) -> list[tf.data.Dataset]:
        return [
            source.dataset(pipeline, first_batch=number)
            for pipeline, number in zip(pipelines, first, strict=True)
        ]

    datasets = opened([0] * len(pipelines))
    yielded = datasets[0]
    if splits:
        datasets = [datasets[0].shard(num_workers, i) for i in range(num_workers)]
    infinite = tf.data.INFINITE_CARDINALITY
    endless = all(bool(dataset.cardinality() == infinite) for dataset in datasets)
    plan = WorkerPlan(
        endless=endless,
        replicas=replicas,
        num_micro_batches=num_micro_batches,
        splits=splits,
    )
    size = pipelines[0].global_batch

    def feeds(datasets: list[tf.data.Dataset]) -> list[Feed]:
        return [Feed(dataset, plan, size) for dataset in _alike(datasets)]

    starts = source.starts_anywhere and not splits
    return WorkerFeed(
        feeds(datasets),
        (lambda first: feeds(opened(first))) if starts else None,
        yielded,
    )


class WorkerIterators:
    """The workers' iterators, the steps that each has done, and which have ended.

    A worker that was started again opens its data anew, and skips the steps that a
    variable on a server counts as done. Each worker adds to it what it did. When no
    work is under way, the chief sets it to the steps that were returned.

    Attributes:
      per_worker: iterators as `ClusterCoordinator.schedule` takes them.
      steps: steps by worker, done and returned to the chief.
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
          feeds: feeds by worker, all of one type spec.
          strategy: strategy whose workers read.
          steps: steps by worker that were done before.
          start_there: whether the feeds leave out what these steps read; else each
            worker skips it.

        Raises:
          ValueError: a dataset calls Python.
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
            # Runs on the worker, also on one that takes another's place.
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
        """Adds the steps of pieces that workers did; no work may be under way."""
        for piece in pieces:
            self.steps[piece.worker] += piece.num_steps
        # A worker that died may have added steps that it did not return.
        self._strategy.worker_steps.assign(self.steps)


class WorkerInput:
    """The training data's iterators, in the place of `position.TrainingInput`.

    The iterators live on the workers, where the chief cannot save them. It saves how
    many steps each worker has done, and a resumed run skips these steps.

    Attributes:
      iterator: iterators over the data of all workers.
      resumed: whether the run goes on in the middle of an earlier run's pass.
    """

    def __init__(
        self,
        feed: WorkerFeed,
        modules: Modules,
        path: str | None,
        *,
        changed_input: str = "auto",
    ) -> None:
        """Opens the input where the workers left it, or at its beginning.

        Args:
          feed: the training input.
          modules: modules on the strategy whose workers read the input.
          path: path prefix of the checkpoint that was loaded, or None.
          changed_input: `RunConfig.changed_input`.

        Raises:
          ValueError: the position is another input's, and `changed_input` is "error".
        """
        self._feed = feed
        self._modules = modules
        self._changed_input = changed_input
        self._now = position.recorded(feed, pipelines=modules.strategy.num_workers)
        steps = self._found_again(path)
        self.resumed = bool(steps)
        self.iterator = self._opened(steps)

    @property
    def place(self) -> str:
        """The place where it was opened, for logs; right until the first step."""
        if not self.resumed:
            return "its beginning"
        return f"steps {list(self.iterator.steps)} of the workers' passes"

    def begin_anew(self) -> WorkerIterators:
        """Starts another pass over the data, and returns its iterators."""
        logging.info(
            "train | the input ended at step %d: it begins anew.", self._modules.step
        )
        self.resumed = False
        self.iterator = self._opened([])
        return self.iterator

    def save(self, path: str) -> bool:
        """Writes how many steps each worker has done, and returns True: it is saved.

        Args:
          path: path prefix of the checkpoint. A run without parameter servers that goes
            on from it begins a pass over the input there.
        """
        self._modules.driver_state["input_start"].assign(self._modules.step)
        prefix = position.position_path(path)
        tf.io.gfile.makedirs(os.path.dirname(prefix))
        read = sum(self.iterator.steps) * self._feed.plan.nexts_per_step
        input_record.write(prefix, dataclasses.replace(self._now, read=read))
        steps = tf.Variable(self.iterator.steps, dtype=tf.int64)
        tf.train.Checkpoint(**{_STEPS: [steps]}).write(prefix)
        return True

    def close(self) -> None:
        """Does nothing: the workers let go of the iterators."""

    def _opened(self, steps: Sequence[int]) -> WorkerIterators:
        """Returns iterators past these steps by worker; empty is the beginning."""
        feed, strategy = self._feed, self._modules.strategy
        if not steps:
            beginning = [0] * strategy.num_workers
            return WorkerIterators(feed.feeds, strategy, steps=beginning)
        if feed.without is None:
            return WorkerIterators(feed.feeds, strategy, steps=steps)
        size = feed.plan.nexts_per_step
        feeds = feed.without([number * size for number in steps])
        return WorkerIterators(feeds, strategy, steps=steps, start_there=True)

    def _found_again(self, path: str | None) -> list[int]:
        """Returns the steps by worker of a pass to go on with; empty to begin anew."""
        prefix = position.position_path(path) if path else ""
        if not (path and tf.io.gfile.exists(f"{prefix}.index")):
            return []
        try:
            saved = Reader(prefix)
            if _STEPS not in saved.shapes:
                return []  # A run without parameter servers has saved an iterator.
            steps = [int(number) for number in saved.value(_STEPS)]
        except UnreadableCheckpointError as error:
            logging.warning("train | %s The data begin anew.", error)
            return []
        strategy = self._modules.strategy
        if not strategy.resume_input or not any(steps):
            return []
        if len(steps) != strategy.num_workers:
            said = (
                f"the position of the data is that of {len(steps)} workers, and there "
                f"are {strategy.num_workers}"
            )
            if self._changed_input == "error":
                raise RefusedValueError(
                    f"{said}: start {len(steps)} workers, or write RunConfig("
                    "changed_input='anew') to read the data from their beginning."
                )
            logging.warning("train | %s: they begin anew.", said)
            return []
        return self._judged(path, steps)

    def _judged(self, path: str, steps: list[int]) -> list[int]:
        """Returns the steps by worker that read as many examples of this input.

        The list is empty where the data begin anew, as they are another input's.
        """
        record = input_record.read(position.position_path(path))
        if record is not None:
            size = self._now.nexts_per_step
            read = [
                dataclasses.replace(record, read=number * record.nexts_per_step)
                for number in steps
            ]
            steps = [-(-each.read_by(self._now) // size) for each in read]
        verdict = input_record.judged(
            record,
            self._now,
            path=path,
            read=sum(steps) * self._now.nexts_per_step,
            changed_input=self._changed_input,
        )
        return [] if verdict == Verdict.ANEW else steps


def _alike(datasets: list[tf.data.Dataset]) -> list[tf.data.Dataset]:
    """Returns the datasets under one type spec, since all workers run one function."""
    specs = [dataset.element_spec for dataset in datasets]
    try:
        common = tf.nest.map_structure(
            lambda spec, *others: spec.most_specific_common_supertype(others), *specs
        )
    except (TypeError, ValueError):
        common = None
    if None in tf.nest.flatten(common):
        raise RefusedValueError(
            f"input_fn yields other kinds of data to each worker: {specs}. It must "
            "yield the same structure and dtypes whatever input_context is."
        )
    as_variant, from_variant = (
        tf.data.experimental.to_variant,
        tf.data.experimental.from_variant,
    )
    return [from_variant(as_variant(dataset), common) for dataset in datasets]


def graph_of(dataset: tf.data.Dataset) -> tf.Tensor:
    """Returns a dataset's graph as a string scalar, which another process can run."""
    graph = iterators.serialized(dataset)
    definition = tf.compat.v1.GraphDef.FromString(graph.numpy())
    if graph_defs.calls_python(definition):
        raise RefusedValueError(
            "input_fn returned a dataset that calls Python (from_generator, "
            "numpy_function, py_function), and parameter servers' workers run no "
            "Python: write the data as TFRecord files, and read them by "
            "inputs.tfrecord_input."
        )
    return graph
