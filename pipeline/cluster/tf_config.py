# SPDX-License-Identifier: Apache-2.0
"""Parses TF_CONFIG as tf.estimator did. RunConfig reads this environment variable."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from ..errors import UserValueError

# In the order of global ids.
TRAINING_JOBS = ("chief", "worker", "ps")
JOBS = (*TRAINING_JOBS, "evaluator")

_EXAMPLE = (
    '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'
)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The tasks that train, and which of them this process is.

    Attributes:
      task_type: 'chief', 'worker', 'ps' or 'evaluator'.
      task_id: index of the task among those of its type.
      jobs: addresses by job; empty in a local run and in an evaluator.
      has_evaluator: whether a job evaluates, so that training does not have to.
    """

    task_type: str = "worker"
    task_id: int = 0
    jobs: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict, hash=False)
    has_evaluator: bool = False

    @property
    def tasks(self) -> dict[str, str]:
        """Addresses by name, `{'worker 0': 'host0:2222'}`, in the order of global ids."""
        return {
            f"{job} {index}": address
            for job in TRAINING_JOBS
            for index, address in enumerate(self.jobs.get(job, ()))
        }

    @property
    def name(self) -> str:
        """Name of this task: 'worker 0'."""
        return f"{self.task_type} {self.task_id}"

    @property
    def is_chief(self) -> bool:
        """Whether this task saves: the chief, or worker 0 of a cluster without chief."""
        return self.name == ("chief 0" if "chief" in self.jobs else "worker 0")

    @property
    def num_worker_replicas(self) -> int:
        """Number of workers and chief; 1 in a local run, 0 in an evaluator."""
        if not self.jobs:
            return 0 if self.task_type == "evaluator" else 1
        return len(self.jobs.get("chief", ())) + len(self.jobs.get("worker", ()))

    @property
    def num_ps_replicas(self) -> int:
        """Number of parameter servers."""
        return len(self.jobs.get("ps", ()))

    @property
    def has_servers(self) -> bool:
        """Whether parameter servers hold the variables."""
        return "ps" in self.jobs

    @property
    def global_id(self) -> int | None:
        """Index of this task among chief, workers and servers; None in an evaluator."""
        if self.task_type == "evaluator":
            return None
        return list(self.tasks).index(self.name) if self.jobs else 0


def parse_tf_config(text: str | None) -> Cluster:
    """Returns the cluster that TF_CONFIG describes.

    Args:
      text: JSON; None, blank, '{}' or an empty cluster is a local run.

    Raises:
      UserValueError: `text` is not a valid cluster.
    """
    if text is None or not text.strip():
        return Cluster()
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _error("", f"{text:.200}", f"JSON such as {_EXAMPLE}") from error
    config = _expect("", config, dict, _EXAMPLE)
    if "model_dir" in config:
        raise UserValueError(
            f'TF_CONFIG["model_dir"] is {config["model_dir"]!r}: expected a cluster and a task '
            "only. Set RunConfig(model_dir=...) or --model_dir."
        )
    jobs = _parse_jobs(_expect("cluster", config.get("cluster", {}), dict, _EXAMPLE))
    task = _expect("task", config.get("task", {}), dict, '{"type": "worker", "index": 0}')
    if not jobs:
        return _local(task)
    for key, example in (("type", '"worker"'), ("index", "0")):
        if task.get(key) is None:
            raise _error(f"task.{key}", "missing", example)
    job = _expect("task.type", task["type"], str, '"worker"')
    index = _parse_index(task["index"])
    if job == "evaluator":  # It needs no address.
        return Cluster(job, index, has_evaluator=True)
    if job not in jobs:
        hint = ' Write "chief" instead of "master".' if job == "master" else ""
        raise _error("task.type", repr(job), f"one of {sorted(jobs)}", hint)
    if index >= len(jobs[job]):
        raise _error("task.index", index, f"0 to {len(jobs[job]) - 1}, one for each {job}")
    training = {name: jobs[name] for name in TRAINING_JOBS if name in jobs}
    return Cluster(job, index, training, has_evaluator="evaluator" in jobs)


def split(address: str, source: str = "TF_CONFIG") -> tuple[str, int]:
    """Returns host and port of an address, "host:2222" or "grpc://host:2222".

    Args:
      address: the address.
      source: what contains it, for the error.

    Raises:
      UserValueError: the address has no port from 1 to 65535.
    """
    host, _, port = address.removeprefix("grpc://").rpartition(":")
    number = int(port) if port.isascii() and port.isdigit() and len(port) < 6 else 0
    if not host or not 0 < number < 65536:
        raise UserValueError(
            f'{source}: the address is {address!r}: expected a port from 1 to 65535, "host:2222".'
        )
    return host.strip("[]"), number


def _parse_jobs(cluster: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    jobs: dict[str, tuple[str, ...]] = {}
    seen: set[str] = set()
    for job, value in cluster.items():
        if job not in JOBS:
            hint = ' Write "chief" instead of "master".' if job == "master" else ""
            raise _error("cluster", f"a mapping with {job!r}", f"one of {list(JOBS)}", hint)
        for address in (addresses := _parse_addresses(job, value)):
            split(address)
            if address in seen:
                raise _error(f"cluster.{job}", list(addresses), f"{address!r} only once")
            seen.add(address)
        if addresses:  # Launchers write "ps": [] if there are none.
            jobs[job] = addresses
    if len(jobs.get("chief", ())) > 1:
        hint = ' List the others under "worker".'
        raise _error("cluster.chief", list(jobs["chief"]), "one address", hint)
    if "ps" in jobs and "chief" not in jobs:
        raise _error("cluster.chief", "missing", 'a chief if there are "ps", ["host0:2222"]')
    return jobs


def _parse_addresses(job: str, value: Any) -> tuple[str, ...]:
    """Returns the addresses of one job, a list or `{"0": address, "1": address}`."""
    if isinstance(value, dict):
        try:
            value = [value[str(index)] for index in range(len(value))]
        except KeyError as error:
            expected = f'"0" to "{len(value) - 1}" without a gap'
            raise _error(f"cluster.{job}", f"numbered {list(value)}", expected) from error
    for address in _expect(f"cluster.{job}", value, list, '["host:2222"]'):
        _expect(f"cluster.{job}", address, str, '"host:2222"')
    return tuple(value)


def _local(task: dict[str, Any]) -> Cluster:
    """Returns the cluster of a TF_CONFIG without addresses."""
    job, index = task.get("type", "worker"), _parse_index(task.get("index", 0))
    if job == "evaluator":
        return Cluster(job, index, has_evaluator=True)
    if (job, index) != ("worker", 0):
        raise _error("cluster", "missing or empty", f"the addresses of {job!r} {index}")
    return Cluster()


def _parse_index(index: Any) -> int:
    if type(index) is not int or index < 0:  # True is not an index.
        raise _error("task.index", repr(index), "a number from 0, without quotes")
    return index


def _expect(key: str, value: Any, kind: type, example: str) -> Any:
    if not isinstance(value, kind):
        raise _error(key, repr(value)[:200], example)
    return value


def _error(key: str, value: Any, expected: str, hint: str = "") -> UserValueError:
    place = f"TF_CONFIG{''.join(f'[{part!r}]' for part in key.split('.') if part)}"
    return UserValueError(f"{place} is {value}: expected {expected}.{hint}")
