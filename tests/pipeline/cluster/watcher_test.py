"""The process that watches; `link_watch_test` and `liveness_test` have what it does."""

import pytest

from pipeline.cluster import watcher


def test_one_that_cannot_run_is_an_error(capfd):
    """Else the tasks would wait, and nobody would watch."""
    with pytest.raises(RuntimeError, match="cannot run pipeline.cluster.nowhere"):
        watcher.start("pipeline.cluster.nowhere", {}, code=75)
    assert "No module named 'pipeline.cluster.nowhere'" in capfd.readouterr().err


@pytest.mark.parametrize("module", ["link_watch", "liveness"])
def test_what_it_imports_is_pythons_and_ours(module):
    """It runs without the packages that are installed, see `_BOOT`."""
    process = watcher.start(
        f"pipeline.cluster.{module}", {"tasks": {}, "links": {}}, code=75
    )
    process.kill()
    process.communicate()
