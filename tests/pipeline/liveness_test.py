"""A task that is stopped, not killed, ends those that would wait for it."""

import json
import socket
import subprocess
import sys
import threading

import pytest

from pipeline import liveness
from pipeline.ports import PeerLostError
from tests import clusters
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


CODE = """
import sys, time
from pipeline import liveness
watch = liveness.Watch({"ps 0": sys.argv[1]}, lost_after_secs=0.1)
time.sleep(60)
"""


def test_what_is_stuck_in_tensorflow_ends():
    stopped, address = listening()
    with stopped:
        done = subprocess.run(
            [sys.executable, "-c", CODE, address],
            timeout=MOST_SECS,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 75
    assert f"error: ps 0 ({address}) of the cluster has not replied" in done.stderr


@pytest.mark.parametrize("victim", ["worker 1", "ps 0", "chief 0"])
def test_no_task_waits_for_one_that_is_stopped(victim, tmp_path):
    clusters.run_forked("stopped_task", [str(tmp_path), victim], MOST_SECS)
    codes = json.loads((tmp_path / "codes.json").read_text())
    logs = {path.stem: path.read_text() for path in tmp_path.glob("*_?.log")}
    if victim == "chief 0":
        assert codes["worker 0"] == codes["worker 1"] == codes["ps 0"] == 75, logs
        assert "chief 0 (" in logs["ps_0"] and "has not replied for 3 s" in logs["ps_0"]
        return
    assert codes["chief 0"] == 75, logs["chief_0"]
    assert codes["worker 0"] == 0, logs["worker_0"]
    assert f"{victim} (" in logs["chief_0"]
    assert "Traceback" not in logs["chief_0"]
