"""The workers, replicas and servers of a training: those of here, or pretended ones.

Nothing connects. In a cluster, and for one that is pretended, a worker's replicas are
counted, not made.
"""

import dataclasses
import math
from collections.abc import Iterator

import tensorflow as tf

from pipeline.cluster.tf_config import OF_CLUSTERS
from pipeline.contract.run_config import RunConfig
from pipeline.feed.dataset import InputContext
from pipeline.inspection.findings import plural
from pipeline.mistakes import checks
from pipeline.process.refusals import RefusedValueError
from pipeline.strategy import strategies

# Replicas whose batches make up one batch where all data are read: more take memory.
_MOST_TIMES = 64


@dataclasses.dataclass(frozen=True)
class Split:
    """The pipelines among which one input is divided.

    Attributes:
      num_pipelines: pipelines, one a worker.
      num_replicas: replicas of all workers that share a global batch.
      in_step: whether all workers take part in each step, so that each needs a batch.
      is_static: whether shapes have to be known before, as a TPU's do.
    """

    num_pipelines: int = 1
    num_replicas: int = 1
    in_step: bool = True
    is_static: bool = False

    @property
    def replicas_each(self) -> int:
        """Replicas of one worker."""
        return max(self.num_replicas // self.num_pipelines, 1)

    def context(self, pipeline: int) -> InputContext:
        """Returns the InputContext that input_fn gets in a pipeline."""
        return InputContext(self.num_pipelines, pipeline, self.num_replicas)

    def whole(self, *, larger: bool) -> InputContext:
        """Returns the InputContext of one pipeline of all data.

        Args:
          larger: whether its batches are those of several replicas, which are read
            sooner. An incomplete last batch, if it is dropped, is then another.
        """
        times = math.gcd(self.num_replicas, _MOST_TIMES) if larger else 1
        return InputContext(1, 0, self.num_replicas // times)


@dataclasses.dataclass(frozen=True)
class Topology:
    """Who would compute.

    Attributes:
      num_workers: processes that train, each with an input pipeline.
      num_replicas: replicas of each worker.
      num_ps: parameter servers; 0 where the workers train in step.
      is_simulated: whether a number was given, in place of what is here.
      is_tpu: whether the replicas are cores of a TPU.
      place: words for where a worker computes.
    """

    num_workers: int
    num_replicas: int
    num_ps: int
    is_simulated: bool
    is_tpu: bool
    place: str

    def training(self) -> Split:
        """Returns how the training input is divided."""
        if self.num_ps:
            return Split(self.num_workers, 1, in_step=False)
        total = self.num_workers * self.num_replicas
        return Split(self.num_workers, total, is_static=self.is_tpu)

    def evaluation(self, config: RunConfig) -> Split:
        """Returns how an evaluation's input is divided."""
        chosen = config.eval_distribute
        together = config.evaluates_inline and not self.num_ps
        if together and chosen in (None, config.train_distribute):
            return self.training()
        return Split(num_replicas=getattr(chosen, "num_replicas_in_sync", 1))

    def lines(self, config: RunConfig) -> Iterator[str]:
        """Yields lines that say who computes, and who evaluates."""
        pretended = " (simulated)" if self.is_simulated else ""
        if self.num_ps:
            yield (
                f"topology{pretended}: a chief, {plural(self.num_workers, 'worker')}, "
                f"each at its own pace, and {plural(self.num_ps, 'parameter server')}"
            )
        elif self.num_workers == 1:
            replicas = plural(self.num_replicas, "replica")
            yield f"topology{pretended}: one process, {replicas} on {self.place}"
        else:
            total = self.num_workers * self.num_replicas
            yield (
                f"topology{pretended}: {plural(self.num_workers, 'worker')} x "
                f"{plural(self.num_replicas, 'replica')} = "
                f"{plural(total, 'replica')} in step"
            )
        yield f"  task {config.cluster}, execution {config.execution}"
        who = "the training itself" if config.evaluates_inline else "an evaluator job"
        if self.num_ps and config.evaluates_inline:
            who = "the chief, alone"
        yield f"  evaluations by {who}"


def of(
    config: RunConfig,
    *,
    num_workers: int | None = None,
    num_replicas: int | None = None,
    num_ps: int | None = None,
) -> Topology:
    """Returns the topology of a RunConfig, with the numbers that are given.

    Args:
      config: how to run.
      num_workers: workers to pretend; None for those of the cluster.
      num_replicas: replicas of each of them; None for those of this machine.
      num_ps: parameter servers to pretend; None for those of the cluster.

    Raises:
      ValueError: a number is not positive, or a cluster is missing.
    """
    given = {"workers": num_workers, "replicas": num_replicas, "ps": num_ps}
    for name, number in given.items():
        checks.check_positive(f"simulate_{name}", number)
    if num_ps and (num_replicas or 1) > 1:
        raise RefusedValueError(
            f"simulate_replicas is {num_replicas}, and a worker of parameter servers "
            "has one replica: leave simulate_replicas or simulate_ps out."
        )
    simulated = any(number is not None for number in given.values())
    if config.execution in OF_CLUSTERS and not (simulated or config.cluster.jobs):
        raise RefusedValueError(
            f"execution is {config.execution!r}, and TF_CONFIG names no cluster: write "
            "--simulate_workers=2, or set TF_CONFIG."
        )
    # Beside parameter servers, the chief hands out the work.
    chief = 1 if config.num_ps_replicas else 0
    workers = num_workers or max(config.num_worker_replicas - chief, 1)
    servers = config.num_ps_replicas if num_ps is None else num_ps
    local, place = _here(config, alone=not simulated and workers == 1 and not servers)
    replicas = 1 if servers else num_replicas or local
    is_tpu = config.execution == "tpu"
    return Topology(workers, replicas, servers, simulated, is_tpu, place)


def _here(config: RunConfig, *, alone: bool) -> tuple[int, str]:
    """Returns a worker's replicas on this machine, and words for its devices.

    Args:
      config: how to run.
      alone: whether one process trains, so that its strategy can be made.
    """
    if config.execution == "tpu":
        return 1, "a TPU, whose cores --simulate_replicas says"
    if config.devices:
        return len(config.devices), ", ".join(config.devices)
    chosen = config.train_distribute
    if alone and callable(chosen):
        chosen = strategies.resolved(chosen, config)
    # TensorFlow's own placement is a strategy, too, and names no devices.
    none = type(tf.distribute.get_strategy())
    if isinstance(chosen, tf.distribute.Strategy) and type(chosen) is not none:
        devices = chosen.extended.worker_devices
        names = [device.rpartition("device:")[2] for device in devices]
        return len(names), ", ".join(names)
    gpus = [name for name in strategies.present() if name.startswith("GPU")]
    return max(len(gpus), 1), ", ".join(gpus) or "the CPU"
