"""A task that is stopped, not killed, ends those that would wait for it."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time

import psutil
import pytest

from pipeline import PeerLostError
from pipeline.cluster import liveness
from tests import clusters, patience
from tests.fakes import listening, silent

MOST_SECS = 150


def replying():
    """A server that says something to whoever connects, and its address."""
    server, address = listening()

    def serve():
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            with peer:
                peer.recv(64)
                peer.sendall(b"\0")

    threading.Thread(target=serve, daemon=True).start()
    return server, address


def closed(server):
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def test_a_port_alone_is_no_reply():
    server, address = replying()
    stopped, port = listening()
    assert not liveness.is_silent(address, timeout_secs=20)
    assert liveness.is_silent(port, timeout_secs=0.2)
    # It has ended; that is for others to notice.
    assert not liveness.is_silent(silent(), timeout_secs=20)
    closed(server)
    stopped.close()


def test_silence_counts_from_the_last_reply():
    stopped, address = listening()
    silence = liveness.Silence({"ps 0": address}, lost_after_secs=0.5)
    expected = f"ps 0 .{address}. of the cluster has not replied for 0.5 s"
    with stopped, pytest.raises(PeerLostError, match=expected):
        for _ in range(100):
            silence.listen()


class Clock:
    """Stands for the module `time`."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def sleep(self, secs):
        self.now += secs


def test_the_time_for_which_one_was_stopped_itself_does_not_count(monkeypatch):
    clock = Clock()
    secs_of_each = [5, 5, 600, 5, 5, 5]
    monkeypatch.setattr(liveness, "time", clock)
    monkeypatch.setattr(
        liveness, "is_silent", lambda *a, **k: not clock.sleep(secs_of_each.pop(0))
    )
    silence = liveness.Silence({"ps 0": "localhost:1"}, lost_after_secs=15)
    for _ in range(5):
        silence.listen()
    with pytest.raises(PeerLostError, match="has not replied for 15 s"):
        silence.listen()


def test_a_stopped_parent_waits_for_nobody(monkeypatch):
    class Parent:
        is_gone = False
        stopped = [True, True, True, True, False]

        @property
        def is_stopped(self):
            return self.stopped.pop(0)

    class Silence:
        calls = ""

        def listen(self):
            self.calls += "l"
            raise PeerLostError(self.calls)

        def forget(self):
            self.calls += "f"

    monkeypatch.setattr(liveness, "time", Clock())
    assert str(liveness._first_loss(Silence(), Parent())) == "lflfl"


CODE = """
import ctypes, socket, sys, time
from pipeline.cluster import liveness
from pipeline.cluster.ports import PeerLostError
way, address = sys.argv[1:]
liveness._NOTICE_SECS = 60 if "notices" in way else 1
liveness._UNWIND_SECS = 1
port = socket.create_server(("", 0))
port.set_inheritable(True)
watch = liveness.Watch({"ps 0": address}, lost_after_secs=0.1)
print(watch._process.pid, flush=True)
try:
    while "notices" in way:
        watch.check()
        time.sleep(0.1)
except PeerLostError as error:
    sys.stderr.write(f"raised {error}")
if way == "notices":
    sys.exit(3)
# Holds Python's lock, as TensorFlow does.
ctypes.PyDLL(None).sleep(90)
"""


def watched(way, address):
    return subprocess.Popen(
        [sys.executable, "-c", CODE, way, address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("way", "code", "said"),
    [
        ("locks", 75, "error: ps 0 ({}) of the cluster has not replied for 0.1 s"),
        ("notices", 3, "raised ps 0 ({}) of the cluster has not replied for 0.1 s"),
        # What a program does in `finally` may ask the task again.
        ("notices, locks", 75, "error: ps 0 ({}) of the cluster has not replied for 1"),
    ],
)
def test_what_waits_for_a_stopped_task_ends(way, code, said):
    stopped, address = listening()
    with stopped:
        process = watched(way, address)
        # The process that watches has ended, too: else stderr would be open.
        _, text = process.communicate(timeout=patience.stretched(40))
    assert process.returncode == code, text
    assert said.format(address) in text


def test_the_watch_ends_with_its_process_and_only_then():
    server, address = replying()
    with watched("locks", address) as process:
        watch = psutil.Process(int(process.stdout.readline()))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            watch.send_signal(number)
        time.sleep(2)
        assert watch.is_running() and process.poll() is None
        assert psutil.CONN_LISTEN not in [c.status for c in watch.net_connections()]
        process.kill()
        _, text = process.communicate(timeout=patience.stretched(20))
    assert text == ""
    watch.wait(timeout=patience.stretched(20))
    closed(server)


@pytest.mark.parametrize("victim", ["worker 1", "ps 0", "chief 0"])
def test_no_task_waits_for_one_that_is_stopped(victim, tmp_path):
    clusters.run_forked("stopped_task", [str(tmp_path), victim], MOST_SECS)
    codes = json.loads((tmp_path / "codes.json").read_text())["codes"]
    logs = {path.stem: path.read_text() for path in tmp_path.glob("*_?.log")}
    if victim == "chief 0":
        assert codes["worker 0"] == codes["worker 1"] == codes["ps 0"] == 75, logs
        assert "chief 0 (" in logs["ps_0"] and "has not replied for 3 s" in logs["ps_0"]
        return
    assert codes["chief 0"] == 75, logs["chief_0"]
    assert codes["worker 0"] == 0, logs["worker_0"]
    assert f"{victim} (" in logs["chief_0"]
    assert "Traceback" not in logs["chief_0"]
