"""Lets the processes that train in step agree before they branch.

Where one process stopped, saved or raised alone, the others would wait for it in their
next step. So each asks all the others first. All call the same methods in the same
order. Each call is an exchange over the network, too slow for every step. A process
that trains alone agrees with itself.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from pipeline.cluster import ports
from pipeline.cluster.ports import PeerLostError
from pipeline.cluster.tf_config import Cluster
from pipeline.strategy.replicas import Replicas, all_reduce
from pipeline.tracing.compiling import compiled

_Method = TypeVar("_Method", bound=Callable[..., Any])

# Errors that TensorFlow raises in the other tasks where one has died or is stuck.
_LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.CancelledError,
)


class Peers:
    """All processes of a strategy, as this one reaches them.

    Attributes:
      replicas: replicas of all processes, and those of this one.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        """Prepares the exchange between the strategy's processes; asks nobody yet."""
        self.replicas = Replicas.of(strategy)
        self._strategy = strategy
        self._gather_compiled = compiled(
            self._gather, input_signature=[tf.TensorSpec([None], tf.int64)]
        )

    @property
    def alone(self) -> bool:
        """Whether there is only this process."""
        return self.replicas.num_processes == 1

    @property
    def leads(self) -> bool:
        """Whether this process logs and writes for all."""
        return self.replicas.process == 0

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """Exchanges numbers with all processes.

        Args:
          numbers: int64s of this process; each process may give another count.

        Returns:
          The numbers that each process gave, in the order of processes.
        """
        if self.alone:
            return [list(numbers)]
        # Each process' numbers come after their count: the exchange yields one row of
        # all of them.
        framed = tf.constant([len(numbers), *numbers], tf.int64)
        flat = self._gather_compiled(framed).numpy().tolist()
        given = []
        while flat:
            size = 1 + flat[0]
            given.append(flat[1:size])
            flat = flat[size:]
        return given

    def gather_bytes(self, content: bytes) -> list[bytes]:
        """Exchanges bytes with all processes, in their order, as `gather` does."""
        if self.alone:
            return [content]
        words = np.frombuffer(content + bytes(-len(content) % 8), np.int64)
        framed = np.concatenate([np.array([len(content)], np.int64), words])
        flat, given = self._gather_compiled(tf.constant(framed)).numpy(), []
        while flat.size:
            size = 1 + (int(flat[0]) + 7) // 8
            given.append(flat[1:size].tobytes()[: int(flat[0])])
            flat = flat[size:]
        return given

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true in any process."""
        return any(number for (number,) in self.gather([int(flag)]))

    def all(self, flag: bool) -> bool:
        """Whether `flag` is true in all processes."""
        return all(number for (number,) in self.gather([int(flag)]))

    def same(self, number: int) -> bool:
        """Whether all processes give the same number."""
        return len({given for (given,) in self.gather([number])}) == 1

    def from_leader(self, text: str) -> str:
        """Returns the text that the process that leads gives."""
        own = text.encode() if self.leads else b""
        return text if self.alone else bytes(self.gather(list(own))[0]).decode()

    def wait(self) -> None:
        """Waits until all processes have called this."""
        self.gather([])

    # The methods below are for the inside of a graph, in cross-replica context.

    def anywhere(self, flag: tf.Tensor) -> tf.Tensor:
        """Whether a bool scalar is true in any process."""
        if self.alone:
            return flag
        return self.total(tf.cast(flag, tf.float32)) > 0

    def total(self, tree: Any) -> Any:
        """Returns the sums over processes of a nest of tensors.

        Args:
          tree: nest of tensors, of the same shapes in each process.
        """
        if self.alone:
            return tree
        # An all-reduce adds up replicas: all but the first of a process give zeros.
        return self._on_first(
            lambda first: all_reduce(
                tf.distribute.ReduceOp.SUM,
                tf.nest.map_structure(tf.identity if first else tf.zeros_like, tree),
            )
        )

    def least(self, number: tf.Tensor) -> tf.Tensor:
        """Returns the least of all processes' numbers that is not negative.

        Args:
          number: int64 scalar; a negative one says that this process has none.

        Returns:
          int64 scalar; -1 where no process has a number.
        """
        if self.alone:
            return number
        given = self._gather(tf.reshape(number, [1]))
        least = tf.reduce_min(tf.where(given < 0, given.dtype.max, given))
        return tf.where(least == given.dtype.max, tf.constant(-1, tf.int64), least)

    def _gather(self, numbers: tf.Tensor) -> tf.Tensor:
        """Returns all processes' numbers in one vector, one process after the other."""
        context = tf.distribute.get_replica_context
        return self._on_first(
            lambda first: context().all_gather(
                tf.identity(numbers) if first else numbers[:0], 0
            )
        )

    def _on_first(self, fn: Callable[[bool], Any]) -> Any:
        """Calls `fn` on all replicas, and returns its result on the first of them.

        Args:
          fn: gets whether the replica is the first of its process. The tensors that it
            sums or gathers must come out of operations, be it `tf.identity`: TensorFlow
            takes the result's place from their device, and a function's arguments have
            none.
        """
        results = self._strategy.run(lambda: fn(self.replicas.running() == 0))
        local = self._strategy.experimental_local_results
        return tf.nest.map_structure(lambda value: local(value)[0], results)


@contextlib.contextmanager
def watched(cluster: Cluster) -> Iterator[None]:
    """Turns TensorFlow's errors after the death of a task into one that names it.

    Args:
      cluster: cluster of this process; with a single task every error passes through.

    Raises:
      PeerLostError: names the tasks that are lost.
    """
    try:
        yield
    except _LOST as error:
        if cluster.num_worker_replicas + cluster.num_ps_replicas < 2:
            raise
        lost = _named(str(error)) or _silent(cluster)
        raise PeerLostError(
            f"{' and '.join(lost) or 'a task'} of the cluster is lost: it died, or "
            "this host does not reach it. Its own log says why. Start all tasks again: "
            "they go on from the last checkpoint."
        ) from error


def watches(method: _Method) -> _Method:
    """Decorates a method of an object with a `config` to run in `watched`."""

    @functools.wraps(method)
    def watching(self: Any, *args: Any, **kwargs: Any) -> Any:
        with watched(self.config.cluster):
            return method(self, *args, **kwargs)

    return watching


def _named(text: str) -> list[str]:
    """Returns the tasks that TensorFlow's error says are unhealthy, "worker 1"."""
    _, found, rest = text.partition("unhealthy")
    tasks = re.findall(r"/job:(\w+)(?:/replica:\d+)?/task:(\d+)", rest if found else "")
    return [f"{job} {index}" for job, index in dict.fromkeys(tasks)]


def _silent(cluster: Cluster) -> list[str]:
    """Returns the other tasks whose ports do not answer."""
    own = f"{cluster.task_type} {cluster.task_id}"
    others = {n: a for n, a in cluster.training_tasks.items() if n != own}
    return [name for name, address in others.items() if not ports.answers(address)]
