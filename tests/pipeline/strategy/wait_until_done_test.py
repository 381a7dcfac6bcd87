"""What needs no cluster; `parameter_server_test.py` has the rest."""

import types

import pytest

from pipeline import PeerLostError
from pipeline.cluster.tf_config import Cluster
from pipeline.strategy import parameter_server
from tests.fakes import listening, silent


class Coordinator:
    """Is done after so many times of asking."""

    def __init__(self, times):
        self.times = times

    def done(self):
        self.times -= 1
        return self.times < 0


def strategy_of(*workers):
    cluster = Cluster(jobs={"worker": workers})
    return types.SimpleNamespace(
        cluster=cluster,
        lost_after_secs=0.1,
        watch=types.SimpleNamespace(check=lambda: None),
    )


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(parameter_server, "_CHECK_SECS", 0.05)


def test_waits_while_a_worker_answers():
    answering, address = listening()
    coordinator = Coordinator(30)
    with answering:
        parameter_server.wait_until_done(coordinator, strategy_of(silent(), address))
    assert coordinator.times < 0


def test_without_any_worker_it_gives_up():
    strategy = strategy_of(silent(), silent())
    with pytest.raises(PeerLostError, match="no worker .* has answered for 0.1 s"):
        parameter_server.wait_until_done(Coordinator(10**6), strategy)
