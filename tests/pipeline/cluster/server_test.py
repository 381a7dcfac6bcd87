import functools
import os
import signal
import socket
import threading
import time

import pytest
import tensorflow as tf

import pipeline as ge
from pipeline import PeerLostError, PreemptedError
from pipeline.cluster import liveness, ports, server
from pipeline.cluster.tf_config import Cluster
from pipeline.strategy import parameter_server
from tests.fakes import listening, silent


class FakeServer:
    """In the place of `tf.distribute.Server`, which only its process' end stops."""

    target = "grpc://fake"
    last = None

    def __init__(self, cluster_spec, **options):
        del cluster_spec
        self.options = options
        FakeServer.last = self


@pytest.fixture
def fake_server(monkeypatch):
    monkeypatch.setattr(FakeServer, "last", None)
    monkeypatch.setattr(tf.distribute, "Server", FakeServer)
    monkeypatch.setattr(server, "_POLL_SECS", 0.05)
    # The chiefs here have open ports and say nothing.
    monkeypatch.setattr(liveness, "_MOST_REPLY_SECS", 0.1)


def task_of(chief, job="worker"):
    jobs = {"chief": (chief,), "worker": (silent(),), "ps": (silent(),)}
    return Cluster(task_type=job, task_id=0, jobs=jobs)


def test_waits_until_all_answer():
    answering, address = listening()
    late = silent()

    def come_up():
        time.sleep(0.4)
        host, port = late.split(":")
        late_socket.bind((host, int(port)))
        late_socket.listen()

    late_socket = socket.socket()
    thread = threading.Thread(target=come_up)
    with answering, late_socket:
        thread.start()
        server.wait_for({"ps 0": address, "worker 0": late}, timeout_secs=20)
        assert ports.answers(late)
        thread.join()


@pytest.mark.parametrize("job", ["worker", "ps"])
def test_a_taken_port_is_named(job):
    taken, address = listening()
    jobs = {"chief": (silent(),), "worker": (silent(),), "ps": (silent(),)}
    jobs[job] = (address,)
    with taken, pytest.raises(ValueError) as error:
        server.serve(Cluster(task_type=job, task_id=0, jobs=jobs))
    assert f"gives {job} 0 (this process) the address {address}" in str(error.value)
    assert "is in use here (Address already in use)" in str(error.value)


def test_names_who_did_not_start():
    answering, address = listening()
    absent = silent()
    with answering, pytest.raises(PeerLostError, match=f"worker 1 .{absent}. did not"):
        server.wait_for({"worker 0": address, "worker 1": absent}, timeout_secs=0.3)


def test_ends_when_the_chief_ends(fake_server):
    chief, address = listening()
    thread = threading.Thread(target=server.serve, args=[task_of(address)])
    thread.start()
    assert within(20, lambda: FakeServer.last is not None)
    time.sleep(0.5)
    assert thread.is_alive()
    assert FakeServer.last.options["job_name"] == "worker"
    chief.close()
    thread.join(10)
    assert not thread.is_alive()


def test_a_chief_that_never_comes_is_named(fake_server):
    chief = silent()
    with pytest.raises(PeerLostError, match=f"chief 0 .{chief}. did not start"):
        server.serve(task_of(chief), start_timeout_secs=0.3)


@pytest.fixture
def signalled():
    """Sends signals to this process, each once it is awaited."""
    threads = []
    interrupt = signal.getsignal(signal.SIGINT)

    def send(numbers):
        # Earlier, it would end the tests; this handler is the last to be set.
        if not within(20, lambda: signal.getsignal(signal.SIGINT) is not interrupt):
            return
        os.kill(os.getpid(), numbers[0])
        for number in numbers[1:]:
            # Not `interrupt`: a worker of xdist ignores the signal.
            within(20, _interrupts)
            os.kill(os.getpid(), number)

    def soon(*numbers):
        threads.append(threading.Thread(target=send, args=[numbers]))
        threads[-1].start()

    yield soon
    for thread in threads:
        thread.join()


def _interrupts():
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler


def within(secs, condition):
    """Waits for a condition; whether it came."""
    deadline = time.monotonic() + secs
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_serves_on_for_a_while_after_a_signal(
    fake_server, signalled, monkeypatch, number
):
    monkeypatch.setattr(server, "_LEAVE_SECS", 0.5)
    handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    chief, address = listening()
    began = time.monotonic()
    signalled(number)
    with chief, pytest.raises(PreemptedError, match=f"{number.name} ended it"):
        server.serve(task_of(address))
    assert time.monotonic() - began >= 0.5
    now = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    assert now == handlers


@pytest.mark.parametrize("job", ["worker", "ps"])
def test_after_a_signal_it_ends_with_the_chief(
    fake_server, signalled, monkeypatch, job
):
    # A server holds what the chief saves, however long that takes.
    monkeypatch.setattr(server, "_LEAVE_SECS", 0.1 if job == "ps" else 60)
    chief, address = listening()
    ends = threading.Timer(2, chief.close)
    began = time.monotonic()
    ends.start()
    signalled(signal.SIGTERM)
    with pytest.raises(PreemptedError, match=f"{job} 0 of .*: SIGTERM ended it"):
        server.serve(task_of(address, job))
    assert 2 <= time.monotonic() - began < 40
    ends.join()


def test_ctrl_c_again_ends_it_at_once(fake_server, signalled):
    before = signal.getsignal(signal.SIGINT)
    chief, address = listening()
    signalled(signal.SIGINT, signal.SIGINT)
    with chief, pytest.raises(KeyboardInterrupt):
        server.serve(task_of(address))
    assert signal.getsignal(signal.SIGINT) is before


def test_a_chief_that_is_stopped_is_named(fake_server):
    chief, address = listening()
    with (
        chief,
        pytest.raises(PeerLostError, match="chief 0 .* has not replied"),
    ):
        server.serve(task_of(address), lost_after_secs=0.3)


def serving(**row):
    return ge.RunConfig(
        execution="parameter_server", cluster=task_of(silent(), "ps"), **row
    )


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({}, {"start_timeout_secs": 600.0, "lost_after_secs": 300.0}),
        (
            {
                "train_distribute": functools.partial(
                    parameter_server.parameter_server, lost_after_secs=15
                )
            },
            {"start_timeout_secs": 600.0, "lost_after_secs": 15},
        ),
        (
            {"train_distribute": lambda config: pytest.fail("no strategy here")},
            {"start_timeout_secs": 600.0, "lost_after_secs": 300.0},
        ),
    ],
    ids=["default", "configured", "another"],
)
def test_who_serves_waits_as_the_strategy_is_told(monkeypatch, row, expected):
    monkeypatch.setattr(server, "serve", lambda cluster, **waits: told.update(waits))
    told = {}
    parameter_server.serve(serving(**row))
    assert told == expected
