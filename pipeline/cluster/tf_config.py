"""Parses TF_CONFIG: the tasks of the cluster, and which of them this process is.

Everything is checked here, before anything connects: a wrong address or index would
otherwise be a task that waits for another one without end.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from pipeline.process.refusals import RefusedValueError

# Global ids are given out in this order; parameter servers come last.
TRAINING_JOBS = ("chief", "worker", "ps")
EVALUATOR = "evaluator"
TASK_TYPES = (*TRAINING_JOBS, EVALUATOR)

# The places where a training runs, as flags and RunConfig name them. The executions of
# the first tuple need a cluster of several tasks.
OF_CLUSTERS = ("multi_worker", "parameter_server")
EXECUTIONS = ("single_host", *OF_CLUSTERS, "tpu")

_EXAMPLE = (
    '{"cluster": {"chief": ["host0:2222"], "worker": ["host1:2222"]}, '
    '"task": {"type": "worker", "index": 0}}'
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
    """The tasks that train, and which of them this process is.

    `parse_tf_config` makes and checks a cluster. `Cluster()` is a local run: one
    worker, which is the chief. The evaluator is no part of the training cluster: it
    sees an empty one, as under tf.estimator.

    Attributes:
      task_type: 'chief', 'worker', 'ps' or 'evaluator'.
      task_id: number of the task among those of its type, from 0.
      jobs: addresses of the training tasks by task type; empty in a local run and in
        the evaluator.
      has_evaluator: whether the cluster lists an evaluator, so that training need not
        evaluate; True in the evaluator itself.
    """

    task_type: str = "worker"
    task_id: int = 0
    # A dict has no hash. Clusters that differ in their jobs alone may share one.
    jobs: Mapping[str, tuple[str, ...]] = dataclasses.field(
        default_factory=dict, hash=False
    )
    has_evaluator: bool = False

    def __str__(self) -> str:
        """Returns 'worker 1 of chief: 1, worker: 2', say, for logs."""
        sizes = ", ".join(f"{job}: {len(tasks)}" for job, tasks in self.jobs.items())
        return f"{self.task_type} {self.task_id} of {sizes or 'no cluster'}"

    @property
    def training_tasks(self) -> dict[str, str]:
        """Addresses by name, `{"worker 0": "host0:2222"}`, in order of global ids."""
        return {
            f"{job} {index}": address
            for job in TRAINING_JOBS
            for index, address in enumerate(self.jobs.get(job, ()))
        }

    @property
    def is_chief(self) -> bool:
        """Whether this process saves: the chief or, where there is none, worker 0."""
        lead = "chief" if "chief" in self.jobs else "worker"
        return (self.task_type, self.task_id) == (lead, 0)

    @property
    def serves(self) -> bool:
        """Whether this process works for a chief: a ps, or a worker beside a ps."""
        return "ps" in self.jobs and self.task_type in ("worker", "ps")

    @property
    def num_worker_replicas(self) -> int:
        """Number of workers and chief; 1 in a local run, 0 in the evaluator."""
        if not self.jobs:
            return 0 if self.task_type == EVALUATOR else 1
        return len(self.jobs.get("chief", ())) + len(self.jobs.get("worker", ()))

    @property
    def num_ps_replicas(self) -> int:
        """Number of parameter servers; 0 in the evaluator."""
        return len(self.jobs.get("ps", ()))

    @property
    def global_id_in_cluster(self) -> int | None:
        """Number of this task: chief, then workers, then ps; None in the evaluator."""
        if self.task_type == EVALUATOR:
            return None
        earlier = TRAINING_JOBS[: TRAINING_JOBS.index(self.task_type)]
        return sum(len(self.jobs.get(job, ())) for job in earlier) + self.task_id


def parse_tf_config(text: str | None) -> Cluster:
    """Reads the value of the environment variable TF_CONFIG.

    Ignores other keys than 'cluster' and 'task' (schedulers add 'environment', 'job'),
    but refuses 'model_dir': training would go to another place in silence.

    Args:
      text: JSON; None, blank or '{}' is a local run.

    Returns:
      The checked cluster.

    Raises:
      ValueError: this is no legal cluster; names the key.
    """
    if text is None or not text.strip():
        return Cluster()
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RefusedValueError(
            f"TF_CONFIG is {text!r:.500}, which is no JSON ({error}): write it like "
            f"{_EXAMPLE}, or unset it for a local run."
        ) from error
    if not isinstance(config, dict):
        raise RefusedValueError(
            f"TF_CONFIG is {text!r}, which is no JSON object: write it like {_EXAMPLE}."
        )
    if "model_dir" in config:
        raise RefusedValueError(
            f'TF_CONFIG: "model_dir" is {config["model_dir"]!r}, and is not read from '
            f"there: take it out and write RunConfig(model_dir=...) or --model_dir=..."
        )
    jobs = _parse_jobs(config.get("cluster", {}))
    task = config.get("task", {})
    if not isinstance(task, dict):
        raise RefusedValueError(
            f'TF_CONFIG: "task" is {task!r}, which is no object: write '
            f'"task": {{"type": "worker", "index": 0}}.'
        )
    if not jobs:
        return _parse_local_task(task)
    _check_roles(jobs)
    return _parse_task(task, jobs)


def _parse_jobs(cluster: Any) -> dict[str, tuple[str, ...]]:
    """Returns the addresses of every job, the evaluator's included."""
    if not isinstance(cluster, dict):
        raise RefusedValueError(
            f'TF_CONFIG: "cluster" is {cluster!r}, which is no object of job names and '
            f'addresses: write "cluster": {{"chief": ["host0:2222"]}}.'
        )
    unknown = sorted(set(cluster) - set(TASK_TYPES))
    if "master" in unknown:
        raise RefusedValueError(
            'TF_CONFIG: "cluster" has a job "master", which tf.distribute does not '
            'know: write "chief" instead, here and in "task".'
        )
    if unknown:
        raise RefusedValueError(
            f'TF_CONFIG: "cluster" has the unknown job {unknown[0]!r}: write one of '
            f"{', '.join(TASK_TYPES)}."
        )
    jobs = {job: _parse_addresses(job, cluster[job]) for job in cluster}
    seen: dict[str, str] = {}
    for job, addresses in jobs.items():
        for index, address in enumerate(addresses):
            place = f"{job}[{index}]"
            if address in seen:
                raise RefusedValueError(
                    f'TF_CONFIG: "cluster" has the address {address!r} twice, for '
                    f"{seen[address]} and {place}: give every task its own port."
                )
            seen[address] = place
    # Launchers write "ps": [] where they start no parameter servers.
    return {job: addresses for job, addresses in jobs.items() if addresses}


def _parse_addresses(job: str, value: Any) -> tuple[str, ...]:
    """Returns the addresses of one job, given as a list or as {index: address}."""
    if isinstance(value, dict):
        # JSON has string keys only. Behind a gap, positions in the list would not be
        # the indices that the tasks are given.
        if sorted(value) != sorted(str(index) for index in range(len(value))):
            raise RefusedValueError(
                f'TF_CONFIG: the indices of "{job}" in "cluster" are {list(value)}: '
                f'write "0" to "{len(value) - 1}" without a gap, or a list of '
                f"addresses."
            )
        value = [value[str(index)] for index in range(len(value))]
    if not isinstance(value, list):
        raise RefusedValueError(
            f'TF_CONFIG: "{job}" in "cluster" is {value!r}, which is no list of '
            f'addresses: write "{job}": ["host:2222"].'
        )
    for address in value:
        if not isinstance(address, str) or not address:
            raise RefusedValueError(
                f'TF_CONFIG: "{job}" in "cluster" holds {address!r}, which is no '
                f'address: write "{job}": ["host:2222"].'
            )
    return tuple(value)


def _check_roles(jobs: Mapping[str, tuple[str, ...]]) -> None:
    """Refuses clusters in which nobody, or more than one, leads."""
    num_chiefs = len(jobs.get("chief", ()))
    if num_chiefs > 1:
        raise RefusedValueError(
            f'TF_CONFIG: "cluster" has {num_chiefs} chiefs, {list(jobs["chief"])}: '
            f'keep one under "chief" and write the others under "worker".'
        )
    if "ps" in jobs and not num_chiefs:
        trainers = "no chief" if "worker" in jobs else "neither chief nor worker"
        raise RefusedValueError(
            f'TF_CONFIG: "cluster" has parameter servers but {trainers}, and a chief '
            f'hands out their work: add "chief": ["host0:2222"].'
        )


def _parse_local_task(task: dict[str, Any]) -> Cluster:
    """Returns the cluster of a TF_CONFIG that lists no addresses.

    An evaluator needs none, as it only watches model_dir.
    """
    task_type = task.get("type", "worker")
    task_id = _parse_index(task.get("index", 0))
    if task_type == EVALUATOR:
        return Cluster(task_type=EVALUATOR, task_id=task_id, has_evaluator=True)
    if (task_type, task_id) != ("worker", 0):
        raise RefusedValueError(
            f'TF_CONFIG: "task" is {task_type!r} {task_id}, but "cluster" is missing '
            f'or empty: add "cluster": {{"chief": ["host0:2222"], ...}}, or unset '
            f"TF_CONFIG for a local run."
        )
    return Cluster()


def _parse_task(task: dict[str, Any], jobs: dict[str, tuple[str, ...]]) -> Cluster:
    """Returns the cluster as the process that `task` names sees it."""
    for key, example in (("type", '"worker"'), ("index", "0")):
        if task.get(key) is None:
            raise RefusedValueError(
                f'TF_CONFIG: "task" is {task!r} beside a "cluster", and does not say '
                f'its "{key}": add "{key}": {example}.'
            )
    task_type = task["type"]
    task_id = _parse_index(task["index"])
    if task_type == EVALUATOR:
        return Cluster(task_type=EVALUATOR, task_id=task_id, has_evaluator=True)
    if task_type not in TASK_TYPES:
        hint = ' A "master" is a "chief" here.' if task_type == "master" else ""
        raise RefusedValueError(
            f'TF_CONFIG: "type" in "task" is {task_type!r}: write one of '
            f"{', '.join(TASK_TYPES)}.{hint}"
        )
    if task_type not in jobs:
        raise RefusedValueError(
            f'TF_CONFIG: "task" is a {task_type!r}, but "cluster" lists only '
            f'{", ".join(jobs)}: add "{task_type}": ["host:2222"] to "cluster".'
        )
    if task_id >= len(jobs[task_type]):
        raise RefusedValueError(
            f'TF_CONFIG: "index" in "task" is {task_id}, but "cluster" lists '
            f"{len(jobs[task_type])} {task_type} address(es): write 0 to "
            f"{len(jobs[task_type]) - 1}, or add the address."
        )
    training = {job: jobs[job] for job in TRAINING_JOBS if job in jobs}
    return Cluster(
        task_type=task_type,
        task_id=task_id,
        jobs=training,
        has_evaluator=EVALUATOR in jobs,
    )


def _parse_index(index: Any) -> int:
    """Returns the task's index, at least 0 and a number rather than a string."""
    if type(index) is not int:  # True is an int to isinstance.
        raise RefusedValueError(
            f'TF_CONFIG: "index" in "task" is {index!r}, which is no integer: write '
            f'"index": 0, without quotes.'
        )
    if index < 0:
        raise RefusedValueError(
            f'TF_CONFIG: "index" in "task" is {index}, which is negative: write '
            f'"index": 0 for the first task of a job.'
        )
    return index
