"""Chooses the way of feeding that a strategy needs.

A TPU needs a distributed dataset, for its program cannot read an iterator. Workers of
parameter servers read their own data. All other strategies read a plain iterator in the
compiled loop, which is faster and can be saved.
"""

from typing import Any, Protocol

import tensorflow as tf

from pipeline.feed import feed as feed_lib
from pipeline.feed import servers_feed, tpu_feed
from pipeline.feed.dataset import Source
from pipeline.feed.feed import AnyFeed
from pipeline.feed.position import TrainingInput
from pipeline.feed.servers_feed import WorkerFeed, WorkerInput
from pipeline.strategy.modules import Modules
from pipeline.strategy.parameter_server import ParameterServers
from pipeline.strategy.peers import Peers
from pipeline.strategy.replicas import has_one_trace


class TrainingData(Protocol):
    """The training data's iterators, and where they stand.

    Attributes:
      resumed: whether they go on in an earlier run's pass, maybe at its end.
    """

    resumed: bool

    @property
    def iterator(self) -> Any:
        """The iterator that a `StepsLoop` reads, after the last example trained on."""

    @property
    def place(self) -> str:
        """The place where it was opened, for logs; right until the first step."""

    def begin_anew(self) -> Any:
        """Starts another pass over the data."""

    def save(self, path: str) -> bool:
        """Writes where it stands, at the checkpoint of that path prefix."""

    def close(self) -> None:
        """Lets go of the iterators."""


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

    Raises:
      TypeError: see `Source.dataset`.
      ValueError: input_fn yields what the strategy cannot take, see
        `tpu_feed.dataset_for` and `servers_feed.make_worker_feed`.
    """
    options = {"num_micro_batches": num_micro_batches}
    if has_one_trace(strategy):
        return tpu_feed.make_feed(source, strategy=strategy, **options)
    if isinstance(strategy, ParameterServers):
        return servers_feed.make_worker_feed(source, strategy=strategy, **options)
    return feed_lib.make_feed(source, peers=peers, **options)


def training_input(
    feed: AnyFeed,
    modules: Modules,
    *,
    peers: Peers,
    path: str | None,
    changed_input: str = "auto",
) -> TrainingData:
    """Opens the training data where an earlier run left them.

    Args:
      feed: the training input.
      modules: modules at the step to go on from.
      peers: the processes that train in step.
      path: path prefix of the checkpoint that the modules were loaded from, or None.
      changed_input: `RunConfig.changed_input`.

    Raises:
      ValueError: the position is another input's, and `changed_input` is "error".
    """
    if isinstance(feed, WorkerFeed):
        return WorkerInput(feed, modules, path, changed_input=changed_input)
    return TrainingInput(feed, modules, peers, path, changed_input=changed_input)
