"""Chooses the way of feeding that a strategy needs.

A TPU needs a distributed dataset, for an iterator cannot be read on it. Workers of
parameter servers read for themselves. Everybody else reads a plain iterator in the
compiled loop, which is faster and can be saved.
"""

import tensorflow as tf

from pipeline import distributed_input, input_fn, worker_input
from pipeline.distributed_input import DistributedFeed
from pipeline.input_dataset import Source
from pipeline.input_fn import Feed
from pipeline.modules import Modules
from pipeline.parameter_server import ParameterServers
from pipeline.peers import Peers
from pipeline.position import TrainingInput
from pipeline.replicas import has_one_trace
from pipeline.worker_input import WorkerFeed, WorkerInput

AnyFeed = Feed | DistributedFeed | WorkerFeed


def make(
    source: Source,
    *,
    strategy: tf.distribute.Strategy,
    peers: Peers,
    num_micro_batches: int = 1,
) -> AnyFeed:
    """Calls an input_fn for the replicas of a strategy.

    Args:
      source: the input_fn.
      strategy: the strategy whose replicas are fed.
      peers: the processes that share the data.
      num_micro_batches: batches per replica and step.
    """
    options = {"num_micro_batches": num_micro_batches}
    if has_one_trace(strategy):
        return distributed_input.make_feed(source, strategy=strategy, **options)
    if isinstance(strategy, ParameterServers):
        return worker_input.make_worker_feed(source, strategy=strategy, **options)
    return input_fn.make_feed(source, peers=peers, **options)


def training_input(
    feed: AnyFeed,
    modules: Modules,
    *,
    peers: Peers,
    path: str | None,
    changed_input: str = "auto",
) -> TrainingInput | WorkerInput:
    """Opens the training data where an earlier run left them.

    Args:
      feed: the training input.
      modules: at the step to go on from.
      peers: the processes that train in step.
      path: path prefix of the checkpoint that the modules were loaded from, or None.
      changed_input: `RunConfig.changed_input`.

    Raises:
      ValueError: the position is another input's, and `changed_input` is "error".
    """
    if isinstance(feed, WorkerFeed):
        return WorkerInput(feed, modules, path, changed_input=changed_input)
    return TrainingInput(feed, modules, peers, path, changed_input=changed_input)
