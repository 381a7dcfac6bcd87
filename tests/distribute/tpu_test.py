"""The connection to a TPU, with fakes of TensorFlow's calls."""

import json
import socket

import pytest
import tensorflow as tf

import gin_estimator as ge
from gin_estimator.distribute import tpu as tpu_lib


class Fakes:
    """Replaces TensorFlow's calls; `fails` maps the name of a call to its error."""

    def __init__(self, monkeypatch):
        self.calls, self.fails = [], {}
        for name, owner, attribute in (
            ("resolver", tf.distribute.cluster_resolver, "TPUClusterResolver"),
            ("connect", tf.config, "experimental_connect_to_cluster"),
            ("initialize", tf.tpu.experimental, "initialize_tpu_system"),
            ("assign", tf.tpu.experimental.DeviceAssignment, "build"),
            ("strategy", tf.distribute, "TPUStrategy"),
        ):
            monkeypatch.setattr(owner, attribute, self._fake(name))
        tpu_lib.connected.cache_clear()

    def _fake(self, name):
        def call(*args, **kwargs):
            self.calls.append((name, args, kwargs))
            if name in self.fails:
                raise self.fails[name]
            return f"result of {name}"

        return call


@pytest.fixture
def fakes(monkeypatch):
    yield Fakes(monkeypatch)
    tpu_lib.connected.cache_clear()


def tpu(model_dir="gs://bucket/run", *, config=None, **options):
    return ge.tpu(ge.RunConfig(str(model_dir), execution="tpu", **(config or {})), **options)


def test_a_tpu_is_connected_and_initialized_once(fakes):
    for _ in range(2):
        assert tpu(name="mine", zone="z", project="p") == "result of strategy"
    resolver = "result of resolver"
    assert fakes.calls == [
        ("resolver", (), {"tpu": "mine", "zone": "z", "project": "p"}),
        ("connect", (resolver,), {}),
        ("initialize", (resolver,), {}),
        ("strategy", (resolver,), {}),
    ]


def test_some_of_the_cores(fakes):
    tpu(num_replicas=4)
    *_, assign, made = fakes.calls
    assert assign == ("assign", ("result of initialize",), {"num_replicas": 4})
    assert made[2] == {"experimental_device_assignment": "result of assign"}
    fakes.fails["assign"] = ValueError("too large")
    with pytest.raises(ge.errors.UserValueError, match="num_replicas is 64: expected .*too large"):
        tpu(num_replicas=64)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("initialize", tf.errors.NotFoundError(None, None, "TPUs not found in the cluster")),
        ("resolver", RuntimeError("Missing runtime dependency on the Google API client.")),
        ("resolver", OSError("Name or service not known")),
        ("connect", ValueError("Could not lookup TPU metadata")),
    ],
)
def test_a_tpu_that_is_not_found(fakes, call, error):
    fakes.fails[call] = error
    with pytest.raises(ge.errors.UserRuntimeError) as raised:
        tpu(name="mine", zone="z")
    text = str(raised.value)
    assert text.startswith("tpu.name is 'mine', zone 'z', project None: no TPU was found (")
    assert getattr(error, "message", str(error)).rstrip(".") in text
    assert "Set tpu.name='local' on a Cloud TPU VM" in text


def test_addresses_are_tried_before_tensorflow_waits_for_them(fakes, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # Nobody listens.
        with pytest.raises(ge.errors.UserRuntimeError, match="no TPU was found .*refused"):
            tpu(name=f"grpc://127.0.0.1:{unused.getsockname()[1]}")
    assert not fakes.calls
    asked = []

    def connect(address, timeout):
        asked.append((*address, timeout))
        return socket.socket()

    monkeypatch.setattr(socket, "create_connection", connect)
    tpu(name="grpc://10.0.0.2,grpc://10.0.0.3:8471")
    assert asked == [("10.0.0.2", 8470, 20), ("10.0.0.3", 8471, 20)]


@pytest.mark.parametrize("address", ["h:99999", "h:http", "h:"])
def test_a_port_that_no_host_has(fakes, address):
    with pytest.raises(ge.errors.UserValueError, match=f"tpu.name: the address is '{address}'"):
        tpu(name=f"grpc://{address}")
    assert not fakes.calls


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"run_eagerly": True}, "run_eagerly is True on a TPU: expected False"),
        ({"precision": "mixed_float16"}, "'mixed_float16' on a TPU: expected 'mixed_bfloat16'"),
    ],
)
def test_options_that_no_tpu_has(fakes, config, text):
    with pytest.raises(ge.errors.UserValueError, match=text):
        tpu(config=config)
    assert not fakes.calls


def test_one_process_drives_all_hosts(fakes, monkeypatch):
    task = {"type": "worker", "index": 0}
    cluster = {"worker": ["a:1", "b:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    with pytest.raises(ge.errors.UserValueError, match="TF_CONFIG has 2 tasks: expected none"):
        tpu()
    assert not fakes.calls


def test_checkpoints_of_several_hosts_need_a_shared_directory(fakes, tmp_path, caplog):
    tpu("gs://bucket/run", name="mine")
    tpu(tmp_path, name="local")
    assert "gs://BUCKET" not in caplog.text
    tpu(tmp_path, name="mine")
    assert "Set model_dir='gs://BUCKET/FOLDER'" in caplog.text


def test_this_machine_has_no_tpu(tmp_path):
    with pytest.raises(ge.errors.UserRuntimeError, match="name is 'local'.*no TPU was found"):
        tpu(tmp_path)
