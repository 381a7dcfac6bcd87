"""Clusters from the environment of made-up SLURM steps."""

import json
import os

import pytest

from pipeline import RunConfig
from pipeline.cluster import slurm, tf_config
from tests import forked

ONE_NODE = {
    "SLURM_JOB_ID": "4123456",
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "n7",
    "SLURM_STEP_TASKS_PER_NODE": "4",
    "SLURMD_NODENAME": "n7",
}
TWO_NODES = {
    **ONE_NODE,
    "SLURM_PROCID": "3",
    "SLURM_STEP_NODELIST": "n[09-10]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURMD_NODENAME": "n10",
}
UNEVEN = {
    **TWO_NODES,
    "SLURM_STEP_NODELIST": "gpu1,login",
    "SLURM_STEP_TASKS_PER_NODE": "3,1",
    "SLURMD_NODENAME": "login",
}


@pytest.fixture
def step(monkeypatch):
    def enter(variables, **changes):
        for name in [n for n in os.environ if n.startswith("SLURM")]:
            monkeypatch.delenv(name)
        monkeypatch.delenv("NUM_PS", raising=False)
        for name, value in {**variables, **changes}.items():
            if value is not None:
                monkeypatch.setenv(name, value)

    return enter


def resolved(execution):
    text = slurm.tf_config(execution)
    found = tf_config.parse_tf_config(text)
    return found.task_type, found.task_id, dict(found.jobs)


@pytest.mark.parametrize(
    ("variables", "addresses"),
    [
        (ONE_NODE, ("n7:18456", "n7:18457", "n7:18458", "n7:18459")),
        (TWO_NODES, ("n09:18456", "n09:18457", "n10:18456", "n10:18457")),
        (UNEVEN, ("gpu1:18456", "gpu1:18457", "gpu1:18458", "login:18456")),
    ],
)
def test_every_task_is_a_worker_or_has_its_role(step, variables, addresses):
    step(variables)
    rank = int(variables["SLURM_PROCID"])
    assert resolved("multi_worker") == ("worker", rank, {"worker": addresses})
    jobs = {"chief": addresses[:1], "ps": addresses[1:2], "worker": addresses[2:]}
    place = ("ps", 0) if rank == 1 else ("worker", rank - 2)
    assert resolved("parameter_server") == (*place, jobs)
    step(variables, NUM_PS="2")
    jobs = {"chief": addresses[:1], "ps": addresses[1:3], "worker": addresses[3:]}
    assert resolved("parameter_server")[2] == jobs


def test_task_0_leads(step):
    step(ONE_NODE, SLURM_PROCID="0")
    for execution, task_type in (
        ("multi_worker", "worker"),
        ("parameter_server", "chief"),
    ):
        config = RunConfig(execution=execution)
        assert (config.task_type, config.task_id) == (task_type, 0)
        assert config.is_chief
        assert not config.cluster.has_evaluator


def test_gpus_are_left_alone(step, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    step(TWO_NODES)
    assert slurm.tf_config("multi_worker")
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


@pytest.mark.parametrize(
    "changes",
    [
        {"execution": "single_host"},
        {"execution": "tpu"},
        {"SLURM_STEP_NUM_TASKS": "1"},
        # A batch script has a rank, and no step.
        {"SLURM_STEP_NUM_TASKS": None},
        {"SLURM_PROCID": None},
    ],
)
def test_what_is_no_cluster_is_a_local_run(step, changes):
    execution = changes.pop("execution", "multi_worker")
    step(ONE_NODE, **changes)
    assert slurm.tf_config(execution) is None
    assert RunConfig(execution=execution).cluster == tf_config.Cluster()


def test_tf_config_wins(step, monkeypatch):
    step(ONE_NODE)
    given = {"cluster": {"worker": ["h:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(given))
    assert RunConfig(execution="multi_worker").num_worker_replicas == 1
    monkeypatch.setenv("TF_CONFIG", "{}")
    assert RunConfig(execution="multi_worker").cluster == tf_config.Cluster()
    monkeypatch.setenv("TF_CONFIG", " ")
    assert RunConfig(execution="multi_worker").num_worker_replicas == 4


REFUSED = {
    "no_nodes": (
        {"SLURM_STEP_NODELIST": None},
        "no cluster can be told.*SLURM_STEP_NODELIST not found.*Set TF_CONFIG",
    ),
    "broken_nodes": ({"SLURM_STEP_NODELIST": "n[1"}, r"Invalid hostlist.*\"n\[1\""),
    "too_few": ({"SLURM_STEP_TASKS_PER_NODE": "3"}, "4 tasks but only 3.*TF_CONFIG"),
    "no_number": ({"SLURM_STEP_NUM_TASKS": "x"}, "NUM_TASKS is 'x': write an integer"),
    "rank": ({"SLURM_PROCID": "x"}, "no cluster can be told.*'x'"),
    "negative_rank": ({"SLURM_PROCID": "-1"}, "is '-1' in a step of 4.*: write 0 to 3"),
    "no_worker": ({"NUM_PS": "3"}, "4 tasks cannot be .* NUM_PS=3 .*NUM_PS=1 srun"),
    "no_ps": ({"NUM_PS": "0"}, "NUM_PS=0 parameter servers.*NUM_PS=1 srun"),
    "elsewhere": (
        {"SLURMD_NODENAME": "n8"},
        "task 1 is on 'n8' and was expected on 'n7'.*srun --distribution=block",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(step, case):
    changes, message = REFUSED[case]
    step(ONE_NODE, **changes)
    with pytest.raises(ValueError, match=f"(?s)^SLURM: .*{message}"):
        RunConfig(execution="parameter_server")


def test_nodes_that_do_not_sort_as_the_tasks_do_are_noticed(step):
    step(TWO_NODES, SLURM_STEP_NODELIST="n[9-10]", SLURMD_NODENAME="n10")
    with pytest.raises(ValueError, match="is on 'n10' and was expected on 'n9'"):
        slurm.tf_config("multi_worker")


def test_tensorflow_is_not_initialised_by_it(step, tmp_path):
    """MultiWorkerMirroredStrategy must be the first to do that."""
    program = tmp_path / "program.py"
    program.write_text(
        "import tensorflow as tf\n"
        "from pipeline.contract.run_config import RunConfig\n"
        "assert RunConfig(execution='multi_worker').num_worker_replicas == 4\n"
        # Refused once the devices are initialised.
        "cpu = tf.config.list_physical_devices('CPU')[0]\n"
        "two = [tf.config.LogicalDeviceConfiguration()] * 2\n"
        "tf.config.set_logical_device_configuration(cpu, two)\n"
    )
    step(TWO_NODES)
    code, log = forked.finished([str(program)], tmp_path)
    assert code == 0, log
