"""Fixtures of the tests of sweeps."""

import pytest
import sqlalchemy

from tests.clusters import ROOT
from tests.sweeps import CURVE, Sweeps


@pytest.fixture(autouse=True, scope="session")
def without_waiting_for_the_disk():
    """A kill is survived without that, and no test cuts the power."""

    def connected(connection, record):
        del record
        connection.execute("PRAGMA synchronous=OFF")

    engine = sqlalchemy.engine.Engine
    sqlalchemy.event.listen(engine, "connect", connected)
    yield
    sqlalchemy.event.remove(engine, "connect", connected)


@pytest.fixture
def sweeps(tmp_path, monkeypatch):
    """Makes sweeps of a program, for this process and for those that it starts."""

    def make(program=CURVE, check=""):
        made = Sweeps(tmp_path, program, check)
        for name, text in made.environ.items():
            monkeypatch.setenv(name, text)
        monkeypatch.setattr("pipeline.trials.runner._POLL_SECS", 0.01)
        monkeypatch.chdir(ROOT)
        return made

    monkeypatch.delenv("TF_CONFIG", raising=False)
    return make
