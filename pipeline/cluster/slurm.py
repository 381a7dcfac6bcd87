"""Describes a SLURM job step as a TF_CONFIG, from its environment variables.

    srun --ntasks=4 python -m pipeline.main --execution=multi_worker ...
    NUM_PS=1 srun --ntasks=4 python -m pipeline.main --execution=parameter_server ...

Under multi_worker every task of the step is a worker, and task 0 leads. Under
parameter_server task 0 is the chief, the next NUM_PS tasks (an environment variable; 1
where it is not set) are parameter servers, and the others are workers. An evaluator is
no part of a step: start it apart, with TF_CONFIG='{"task": {"type": "evaluator"}}'.

GPUs are left as SLURM assigns them, by `srun --gpus-per-task=1`, say.
"""

import json
import os

import tensorflow as tf

from pipeline.cluster.tf_config import OF_CLUSTERS
from pipeline.process.refusals import RefusedValueError


def tf_config(execution: str) -> str | None:
    """Returns the TF_CONFIG of this process, from its step's environment variables.

    Leaves TensorFlow uninitialised: MultiWorkerMirroredStrategy has to come first.

    Args:
      execution: that of RunConfig; only 'multi_worker' and 'parameter_server' have
        clusters.

    Returns:
      JSON; None where this is no step, or a step of a single task.

    Raises:
      ValueError: no cluster can be told from the variables; names them.
    """
    num_tasks = _integer("SLURM_STEP_NUM_TASKS", 1)
    if (
        execution not in OF_CLUSTERS
        or "SLURM_PROCID" not in os.environ
        or num_tasks < 2
    ):
        return None
    rank = os.environ["SLURM_PROCID"]
    number = rank.removeprefix("-")
    if number.isdecimal() and (
        number != rank or len(rank) > 9 or int(rank) >= num_tasks
    ):
        raise RefusedValueError(
            f"SLURM: SLURM_PROCID is {rank!r} in a step of {num_tasks} tasks: write 0 "
            f"to {num_tasks - 1}, or unset it for a local run."
        )
    resolver = _resolver(_jobs(execution, num_tasks), num_tasks)
    jobs = resolver.cluster_spec().as_dict()
    job, index = resolver.get_task_info()
    _check_node(jobs[job][index])
    return json.dumps({"cluster": jobs, "task": {"type": job, "index": index}})


def _jobs(execution: str, num_tasks: int) -> dict[str, int]:
    """Returns the number of tasks by job, in the order of ranks, which is by name."""
    if execution == "multi_worker":
        return {"worker": num_tasks}
    num_ps = _integer("NUM_PS", 1)
    if not 1 <= num_ps <= num_tasks - 2:
        raise RefusedValueError(
            f"SLURM: a step of {num_tasks} tasks cannot be a chief, NUM_PS={num_ps} "
            f"parameter servers and at least one worker. Write NUM_PS=1 srun "
            f"--ntasks={max(3, num_tasks)} ..."
        )
    return {"chief": 1, "ps": num_ps, "worker": num_tasks - 1 - num_ps}


def _resolver(
    jobs: dict[str, int], num_tasks: int
) -> tf.distribute.cluster_resolver.SlurmClusterResolver:
    try:
        return tf.distribute.cluster_resolver.SlurmClusterResolver(
            jobs=jobs,
            # By the job's id, so that jobs on one node have ports of their own; below
            # 32768, where Linux begins to give out ports to clients.
            port_base=15000 + _integer("SLURM_JOB_ID", 0) % 10000,
            # Left to itself, the resolver asks nvidia-smi, divides by the number of
            # GPUs, which is 0 on CPU nodes, and sets CUDA_VISIBLE_DEVICES. One imagined
            # GPU for each task keeps it from all three.
            gpus_per_node=num_tasks,
            gpus_per_task=1,
            auto_set_gpu=False,
        )
    except (RuntimeError, ValueError) as error:
        raise RefusedValueError(
            f"SLURM: no cluster can be told from this step's variables: {error} Set "
            f"TF_CONFIG, or unset SLURM_PROCID for a local run."
        ) from error


def _check_node(address: str) -> None:
    """Checks that this task's address is on this node.

    The resolver sorts the nodes by name (n10 before n9) and fills one after the other.
    SLURM may number the tasks in another order, and then each task would listen at the
    address of another one.

    Raises:
      ValueError: this task runs on another node than the resolver says.
    """
    here = os.environ.get("SLURMD_NODENAME")
    expected = address.rpartition(":")[0]
    if here is not None and here != expected:
        raise RefusedValueError(
            f"SLURM: task {os.environ['SLURM_PROCID']} is on {here!r} and was expected "
            f"on {expected!r}: nodes must sort by name in the order of the tasks. "
            f"Write srun --distribution=block, or set TF_CONFIG."
        )


def _integer(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise RefusedValueError(
            f"SLURM: {name} is {text!r}: write an integer, {name}=1."
        )
    return int(text)
