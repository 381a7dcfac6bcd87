"""The processes that train in step: they agree before they branch.

Each calls the same methods in the same order; every call is an exchange with all the
others, so nothing here is for inside of a step. Alone, a process agrees with itself.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from pipeline import ports
from pipeline.cluster import Cluster
from pipeline.compiling import compiled
from pipeline.ports import PeerLostError
from pipeline.replicas import Replicas, all_reduce

_Method = TypeVar("_Method", bound=Callable[..., Any])

# What TensorFlow raises on the others where a task has died, and where one is stuck.
_LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.CancelledError,
)


class Peers:
    """All processes of a strategy.

    Attributes:
      replicas: of all, and of this process.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        """
        Args:
          strategy: that they train on.
        """
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
        """What each process gave, by process; as many numbers as it likes."""
        if self.alone:
            return [list(numbers)]
        framed = tf.constant([len(numbers), *numbers], tf.int64)
        flat = self._gather_compiled(framed).numpy().tolist()
        given = []
        while flat:
            size = 1 + flat[0]
            given.append(flat[1:size])
            flat = flat[size:]
        return given

    def any(self, flag: bool) -> bool:
        """Whether any process says so."""
        return any(number for (number,) in self.gather([int(flag)]))

    def all(self, flag: bool) -> bool:
        """Whether all processes say so."""
        return all(number for (number,) in self.gather([int(flag)]))

    def same(self, number: int) -> bool:
        """Whether all processes give the same number."""
        return len({given for (given,) in self.gather([number])}) == 1

    def wait(self) -> None:
        """Returns once all processes have called it."""
        self.gather([])

    # The rest is for inside of a graph, in cross-replica context.

    def anywhere(self, flag: tf.Tensor) -> tf.Tensor:
        """Whether a bool scalar is true in any process."""
        if self.alone:
            return flag
        return self.total(tf.cast(flag, tf.float32)) > 0

    def total(self, tree: Any) -> Any:
        """The sums over processes of a nest of tensors."""
        if self.alone:
            return tree
        return self._on_first(
            lambda first: all_reduce(
                tf.distribute.ReduceOp.SUM,
                tf.nest.map_structure(tf.identity if first else tf.zeros_like, tree),
            )
        )

    def least(self, number: tf.Tensor) -> tf.Tensor:
        """The least number of any process, of int64 scalars; negative ones are none."""
        if self.alone:
            return number
        given = self._gather(tf.reshape(number, [1]))
        least = tf.reduce_min(tf.where(given < 0, given.dtype.max, given))
        return tf.where(least == given.dtype.max, tf.constant(-1, tf.int64), least)

    def _gather(self, numbers: tf.Tensor) -> tf.Tensor:
        """All processes' numbers, one after the other."""
        context = tf.distribute.get_replica_context
        return self._on_first(
            lambda first: context().all_gather(
                tf.identity(numbers) if first else numbers[:0], 0
            )
        )

    def _on_first(self, fn: Callable[[bool], Any]) -> Any:
        """`fn` on all replicas, told whether it is its process' first; the result.

        What it sums or gathers has to be an operation of its own: TensorFlow looks up
        where the result goes by the device, and a function's argument has none.
        """
        results = self._strategy.run(lambda: fn(self.replicas.running() == 0))
        local = self._strategy.experimental_local_results
        return tf.nest.map_structure(lambda value: local(value)[0], results)


@contextlib.contextmanager
def watched(cluster: Cluster) -> Iterator[None]:
    """Turns what TensorFlow raises where a peer died into an error that names it.

    Args:
      cluster: of this process.

    Raises:
      PeerLostError: names the tasks that died.
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
    """Decorates a method of an object that has a `config`, see `watched`."""

    @functools.wraps(method)
    def watching(self: Any, *args: Any, **kwargs: Any) -> Any:
        with watched(self.config.cluster):
            return method(self, *args, **kwargs)

    return watching


def _named(text: str) -> list[str]:
    """The tasks that TensorFlow says are unhealthy."""
    _, found, rest = text.partition("unhealthy")
    tasks = re.findall(r"/job:(\w+)(?:/replica:\d+)?/task:(\d+)", rest if found else "")
    return [f"{job} {index}" for job, index in dict.fromkeys(tasks)]


def _silent(cluster: Cluster) -> list[str]:
    """The tasks whose ports do not answer."""
    own = f"{cluster.task_type} {cluster.task_id}"
    others = {n: a for n, a in cluster.training_tasks.items() if n != own}
    return [name for name, address in others.items() if not ports.answers(address)]
