"""The way to a TPU, with stand-ins for TensorFlow's calls: there is no TPU here."""

import dataclasses
import json
import socket

import pytest
import tensorflow as tf

from pipeline import RunConfig
from pipeline.cluster import tf_config
from pipeline.strategy import strategies, tpu


@dataclasses.dataclass
class FakeApi:
    """Writes down what is called; raises `error` in the call named `fails`."""

    fails: str | None = None
    error: Exception | None = None
    calls: list = dataclasses.field(default_factory=list)

    def api(self):
        names = [field.name for field in dataclasses.fields(tpu.Api)]
        return tpu.Api(**{name: self._made(name) for name in names})

    def _made(self, name):
        def call(*args, **kwargs):
            self.calls.append((name, args, kwargs))
            if name == self.fails:
                raise self.error
            return f"what {name} returns"

        return call


def connected(fake, name="local", *, zone=None, project=None, num_replicas=None):
    return tpu.connected(name, zone, project, num_replicas, api=fake.api())


def test_the_documented_order():
    fake = FakeApi()
    made = connected(fake, "mine", zone="us-central1-b", project="p")
    assert made == "what strategy returns"
    resolver = "what resolver returns"
    assert fake.calls == [
        ("resolver", (), {"tpu": "mine", "zone": "us-central1-b", "project": "p"}),
        ("connect", (resolver,), {}),
        ("initialize", (resolver,), {}),
        ("strategy", (resolver,), {}),
    ]


def test_some_of_the_cores():
    fake = FakeApi()
    connected(fake, num_replicas=4)
    *_, assign, made = fake.calls
    assert assign == ("assign", ("what initialize returns",), {"num_replicas": 4})
    assert made == (
        "strategy",
        ("what resolver returns",),
        {"experimental_device_assignment": "what assign returns"},
    )


def test_the_calls_are_tensorflows():
    api = tpu.Api()
    assert api.resolver is tf.distribute.cluster_resolver.TPUClusterResolver
    assert api.connect is tf.config.experimental_connect_to_cluster
    assert api.initialize is tf.tpu.experimental.initialize_tpu_system
    assert api.assign == tf.tpu.experimental.DeviceAssignment.build
    assert api.strategy is tf.distribute.TPUStrategy


def test_a_tpu_is_initialised_once():
    """A second time would lose the variables on it."""
    fake = FakeApi()
    api = fake.api()
    for _ in range(2):
        tpu.connected("twice", None, None, None, api=api)
    assert len(fake.calls) == 4


@pytest.mark.parametrize(
    ("name", "fails", "error", "advice"),
    [
        (
            "local",
            "initialize",
            tf.errors.NotFoundError(None, None, "TPUs not found in the cluster"),
            "On a Cloud TPU VM, install a TensorFlow that brings libtpu",
        ),
        (
            "mine",
            "resolver",
            RuntimeError("Missing runtime dependency on the Google API client."),
            "pip install cloud-tpu-client",
        ),
        (
            "mine",
            "resolver",
            OSError("Name or service not known"),
            "write --tpu_zone=ZONE --tpu_project=PROJECT",
        ),
        (
            "mine",
            "connect",
            ValueError("Could not lookup TPU metadata from name 'mine'"),
            "that `gcloud compute tpus tpu-vm list --zone=ZONE` shows",
        ),
        (
            "mine",
            "initialize",
            tf.errors.UnavailableError(None, None, "failed to connect"),
            "Write the name, zone and project",
        ),
    ],
)
def test_a_tpu_that_is_not_found(name, fails, error, advice):
    with pytest.raises(RuntimeError) as raised:
        connected(FakeApi(fails, error), name, zone="z")
    text = str(raised.value)
    assert text.startswith(f"--tpu={name} --tpu_zone=z: no TPU was found (")
    assert str(getattr(error, "message", error)).rstrip(".") in text
    assert advice in text


def test_more_replicas_than_cores():
    error = ValueError("num_replicas (64) is too large")
    with pytest.raises(ValueError, match=r"tpu.num_replicas is 64.*too large"):
        connected(FakeApi("assign", error), num_replicas=64)


def test_addresses_are_reached_as_tensorflow_reads_them(monkeypatch):
    asked = []

    def connect(address, timeout):
        asked.append(address)
        return socket.socket()

    monkeypatch.setattr(socket, "create_connection", connect)
    tpu.Api().reach("grpc://10.0.0.2,grpc://10.0.0.3:8471,10.0.0.4")
    assert asked == [("10.0.0.2", 8470), ("10.0.0.3", 8471), ("10.0.0.4", 8470)]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "grpc://h:99999",
            "the address 'h:99999' has the port 99999: write one from 1",
        ),
        ("grpc://h:http", "'h:http' has no port: write --tpu=grpc://ADDRESS:8470"),
        ("grpc://h:", "the address 'h:' has no port: write --tpu=grpc://ADDRESS:8470"),
    ],
)
def test_a_port_that_no_host_has(name, message):
    with pytest.raises(ValueError) as raised:
        connected(FakeApi(), name)
    assert str(raised.value).startswith(f"--tpu={name}: ")
    assert message in str(raised.value)


# TensorFlow's own calls, without a TPU.


def test_this_machine_has_no_tpu():
    with pytest.raises(RuntimeError) as error:
        strategies.create(RunConfig(execution="tpu"))
    text = str(error.value)
    assert text.startswith("--tpu=local: no TPU was found (TPUs not found in the ")
    assert "'ConfigureDistributedTPU'" in text
    assert "--dry_run" in text


def test_an_empty_name_without_an_environment(monkeypatch):
    for name in ("TPU_NAME", "COLAB_TPU_ADDR", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeError, match="Please provide a TPU Name to connect to"):
        tpu.tpu(RunConfig(execution="tpu"), name="")


# What no TPU can run, found before anything is connected.


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"run_eagerly": True}, "debug with --execution=single_host"),
        ({"precision": "mixed_float16"}, "write precision='mixed_bfloat16'"),
    ],
)
def test_a_config_for_no_tpu(fields, message):
    with pytest.raises(ValueError, match=message):
        tpu.tpu(RunConfig(execution="tpu", **fields))


def test_one_process_drives_all_hosts():
    task = {"type": "worker", "index": 0}
    text = json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": task})
    config = RunConfig(execution="tpu", cluster=tf_config.parse_tf_config(text))
    with pytest.raises(ValueError, match="TF_CONFIG names 2 tasks, and one process"):
        tpu.tpu(config)


def test_checkpoints_of_several_hosts(monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(tpu, "connected", lambda *_: "strategy")
    for name, model_dir in (
        ("mine", "gs://bucket/run"),
        ("local", str(tmp_path)),
        ("mine", str(tmp_path)),
    ):
        assert "write --model_dir=gs://BUCKET/FOLDER" not in caplog.text
        config = RunConfig(execution="tpu", model_dir=model_dir)
        assert tpu.tpu(config, name=name) == "strategy"
    assert "write --model_dir=gs://BUCKET/FOLDER" in caplog.text
