"""Fixtures of the tests of sweeps."""

import pytest
import sqlalchemy


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
