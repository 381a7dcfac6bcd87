"""The files of examples/clusters: valid for their schedulers, and their tasks find each other."""

import json
import os
import re
import subprocess
import sys

import kubernetes_validate
import pytest
import yaml
from conftest import ROOT
from docs_test import check_shell
from kubeflow_trainer_api import models as kubeflow

from gin_estimator.cluster.tf_config import parse_tf_config

FOLDER = ROOT / "examples/clusters"
KUBERNETES = sorted((FOLDER / "kubernetes").glob("*.yaml"))
SCRIPTS = sorted((FOLDER / "slurm").glob("*.sbatch"))
VERSIONS = ("1.29", "1.34")
# Kinds that Kubernetes itself does not know.
MODELS = {
    "TrainJob": kubeflow.TrainerV1alpha1TrainJob,
    "TrainingRuntime": kubeflow.TrainerV1alpha1TrainingRuntime,
}


def documents(path):
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def jobs_of(document):
    """Returns the Jobs that a document makes, by the name of their part of a pod's name."""
    spec = document["spec"]
    if document["kind"] == "TFJob":
        roles = spec["tfReplicaSpecs"]
        for each in roles.values():
            each["template"]["spec"]["restartPolicy"] = each["restartPolicy"]
        return {role: {"template": each["template"]} for role, each in roles.items()}
    if document["kind"] == "Job":
        return {document["metadata"]["name"]: spec}
    spec = spec.get("template", {}).get("spec", spec)
    return {each["name"]: each["template"]["spec"] for each in spec.get("replicatedJobs", [])}


@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.stem)
def test_kubernetes_takes_the_file(path):
    for document in documents(path):
        for spec in jobs_of(document).values():
            job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": spec}
            for version in VERSIONS:
                kubernetes_validate.validate(job, version, strict=True)
        kind = document["kind"]
        if kind in MODELS:
            known = MODELS[kind].from_dict(document).to_dict()
            assert lost(document, known) == [], kind
        elif kind == "JobSet":
            known = kubeflow.JobsetV1alpha2JobSetSpec.from_dict(document["spec"]).to_dict()
            assert lost(document["spec"], known) == [], kind
        elif kind != "TFJob":
            kubernetes_validate.validate(document, VERSIONS[0], strict=True)


def lost(written, known, place=""):
    """Returns the keys that a model dropped, since it does not know them."""
    if isinstance(written, dict):
        missing = [f"{place}.{key}" for key in written if key not in known]
        both = [
            (each, known[key], f"{place}.{key}") for key, each in written.items() if key in known
        ]
    elif isinstance(written, list):
        missing = []
        both = [
            (a, b, f"{place}[{i}]") for i, (a, b) in enumerate(zip(written, known, strict=True))
        ]
    else:
        return []
    return missing + [each for pair in both for each in lost(*pair)]


def scripts_of(path):
    """Returns role, number of pods, environment and script of each kind of pod in a file."""
    parts = documents(path)
    for document in parts:
        if document["kind"] == "TrainJob":
            trainer = document["spec"]["trainer"]
            yield "worker", trainer["numNodes"], trainer["env"], trainer["args"][0]
        elif document["kind"] in ("Job", "JobSet"):
            for name, spec in jobs_of(document).items():
                [container] = spec["template"]["spec"]["containers"]
                role = "worker" if document["kind"] == "Job" else name
                yield role, spec["completions"], container["env"], container["args"][0]


# The operator of a TFJob sets TF_CONFIG.
@pytest.mark.parametrize(
    "path", [path for path in KUBERNETES if path.stem != "tfjob"], ids=lambda path: path.stem
)
def test_the_pods_agree_on_a_cluster(path, tmp_path):
    fake = tmp_path / "gin-estimator"
    fake.write_text('#!/bin/bash\necho "$TF_CONFIG"\n')
    fake.chmod(0o755)
    found = {}
    for role, number, variables, script in scripts_of(path):
        given = {each["name"]: each["value"] for each in variables if "value" in each}
        for index in range(number):
            environment = {
                **given,
                "PATH": f"{tmp_path}:{os.environ['PATH']}",
                "ROLE": role,
                "JOB_COMPLETION_INDEX": str(index),
            }
            printed = subprocess.run(
                ["bash", "-c", script], env=environment, capture_output=True, text=True, check=True
            ).stdout
            config = json.loads(printed)
            assert config["task"] == {"type": role, "index": index}
            parse_tf_config(printed)
            found.setdefault(json.dumps(config["cluster"]), []).append((role, index))
        check_shell(script)
    [(cluster, tasks)] = found.items()
    cluster = json.loads(cluster)
    assert len(tasks) == sum(map(len, cluster.values()))
    hosts = [host for each in cluster.values() for host in each]
    assert len({*hosts}) == len(hosts)
    # `digits` is the Service, or the JobSet, by which the pods find each other.
    assert all(re.fullmatch(r"digits-[a-z0-9-]+\.digits:2222", host) for host in hosts)


def test_the_page_changes_the_number_of_pods():
    [script] = re.findall(r"^sed '(.*)'", (ROOT / "docs/clusters.md").read_text(), re.MULTILINE)
    command = ["sed", script, FOLDER / "kubernetes/job.yaml"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    spec = list(yaml.safe_load_all(text))[1]["spec"]
    [container] = spec["template"]["spec"]["containers"]
    assert container["env"] == [{"name": "WORKERS", "value": "3"}]
    assert spec["completions"] == spec["parallelism"] == 3


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_of_slurm_has_valid_commands(path):
    subprocess.run(["bash", "-n", path], check=True)
    text = path.read_text(encoding="utf-8")
    check_shell(re.sub(r"^#   ", "", text, flags=re.MULTILINE).replace('"$@"', ""))


def test_the_image_installs_what_is_there(tmp_path):
    """The RUN lines are run; pip looks nothing up and installs nothing."""
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")
    extras = ",".join(re.findall(r"EXTRAS=([\w,]+)", text))
    config = (ROOT / "setup.cfg").read_text() + (ROOT / "pyproject.toml").read_text()
    for extra in extras.split(","):
        assert re.search(rf"^{extra} *=", config, re.MULTILINE), extra
    options = "--dry-run --no-deps --no-index --no-build-isolation"
    fake = tmp_path / "pip"
    fake.write_text(f'#!/bin/bash\nexec {sys.executable} -m pip "$@" {options}\n')
    fake.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "EXTRAS": extras}
    lines = re.findall(r"^RUN (.*)", text, re.MULTILINE)
    assert lines
    for line in lines:
        subprocess.run(["bash", "-ec", line], env=environment, cwd=ROOT, check=True)
