"""Tasks meet; whoever is missing is named."""

import contextlib
import socket
import threading
import time

import pytest

from pipeline import PeerLostError
from pipeline.cluster import ports, rendezvous
from tests import patience


@contextlib.contextmanager
def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        ports = [each.getsockname()[1] for each in sockets]
    yield ports


def tasks_of(count):
    with free_ports(count) as ports:
        return {f"worker {i}": f"127.0.0.1:{port}" for i, port in enumerate(ports)}


def run_all(calls):
    """The outcome of each call in a thread of its own: None, or what it raised."""
    outcomes = [None] * len(calls)

    def run(index):
        try:
            calls[index]()
        except Exception as error:
            outcomes[index] = error

    threads = [threading.Thread(target=run, args=[i]) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return outcomes


def meeting(tasks, index, delay=0.0, timeout_secs=20.0):
    def call():
        time.sleep(delay)
        rendezvous.meet(tasks, index, timeout_secs=timeout_secs)

    return call


@pytest.mark.parametrize("delays", [(0, 0, 0), (1, 0, 0.5), (0, 1, 0.5)])
def test_all_meet_whoever_is_first(delays):
    tasks = tasks_of(3)
    calls = [meeting(tasks, i, delay) for i, delay in enumerate(delays)]
    assert run_all(calls) == [None] * 3


def test_the_port_is_free_afterwards():
    tasks = tasks_of(2)
    assert run_all([meeting(tasks, i) for i in range(2)]) == [None] * 2
    for address in tasks.values():
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("", ports.split(address)[1]))


def test_a_missing_worker_is_named_by_all():
    tasks = tasks_of(3)
    calls = [meeting(tasks, 0, timeout_secs=3), meeting(tasks, 2, timeout_secs=20)]
    for error in run_all(calls):
        assert isinstance(error, PeerLostError)
        assert f"worker 1 ({tasks['worker 1']}) did not start in time" in str(error)


def test_a_missing_leader_is_named():
    tasks = tasks_of(2)
    (error,) = run_all([meeting(tasks, 1, timeout_secs=1)])
    assert isinstance(error, PeerLostError)
    assert f"worker 0 ({tasks['worker 0']}) did not start" in str(error)


def connected(address):
    """A connection, once somebody listens there."""
    is_over = patience.deadline(10)
    while True:
        try:
            return socket.create_connection(ports.split(address))
        except OSError:
            assert not is_over()
            time.sleep(0.02)


def test_strangers_on_the_port_do_no_harm():
    tasks, were_there = tasks_of(2), threading.Event()

    def strange():
        for words in (b"GET / HTTP/1.1\n\n", b"\xff\xfe\n", b""):
            with connected(tasks["worker 0"]) as peer:
                peer.sendall(words)
        were_there.set()

    def meets_after_them():
        were_there.wait(20)
        meeting(tasks, 1)()

    calls = [meeting(tasks, 0), strange, meets_after_them]
    assert run_all(calls) == [None] * 3


def test_two_clusters_do_not_mix():
    tasks = tasks_of(2)
    other = {**tasks, "worker 1": "127.0.0.1:1"}
    for error in run_all([meeting(other, 0), meeting(tasks, 1)]):
        assert isinstance(error, ValueError)
        assert 'TF_CONFIG\'s "cluster" must be the same' in str(error)


@pytest.mark.parametrize("index", [0, 1])
def test_a_taken_port_is_named(index):
    tasks = tasks_of(2)
    address = tasks[f"worker {index}"]
    with socket.socket() as taken:
        taken.bind(("", ports.split(address)[1]))
        taken.listen()
        (error,) = run_all([meeting(tasks, index)])
    assert isinstance(error, ValueError)
    assert f"gives worker {index} (this process) the address {address}" in str(error)
    assert "is in use here (Address already in use)" in str(error)


def test_one_task_meets_nobody():
    rendezvous.meet({"worker 0": "localhost:1"}, 0, timeout_secs=1)


@pytest.mark.parametrize("address", ["host", "host:", ":1", "host:http"])
def test_an_address_without_a_port(address):
    with pytest.raises(ValueError, match="has no port: write host:2222"):
        ports.split(address)
