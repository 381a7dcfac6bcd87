"""A chief, two workers and a server: one cluster trains several models, one after the other."""

import importlib.util
import signal
import time

import numpy as np
import pytest
import tensorflow as tf

from tasks import PROGRAMS, servers

pytestmark = pytest.mark.oldest

IDS = sum(range(640))


@pytest.fixture(scope="module")
def program():
    spec = importlib.util.spec_from_file_location("servers_program", PROGRAMS / "servers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Returns the folder and the cluster after all acts."""
    folder = tmp_path_factory.mktemp("servers")
    with servers(folder, PROGRAMS / "servers.py", "acts", folder) as cluster:
        assert cluster["chief 0"].wait(200) == 0, cluster["chief 0"].output
        yield folder, cluster


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Returns the folder and the cluster after the acts in which a worker is killed."""
    folder = tmp_path_factory.mktemp("killed")
    with servers(folder, PROGRAMS / "servers.py", "kills", folder) as cluster:
        kills, end = 0, time.monotonic() + 200
        chief = cluster["chief 0"]
        while chief.process.poll() is None and time.monotonic() < end:
            if chief.output.count("\nkill ") > kills:
                kills += 1
                cluster["worker 1"].send(signal.SIGKILL)
                cluster["worker 1"].wait()
                cluster.start("worker 1")
            time.sleep(0.01)
        assert chief.wait() == 0, chief.output
        assert kills == 2
        yield folder, cluster


def test_steps_examples_and_updates_are_exact(ran):
    _, cluster = ran
    counts = cluster.result("counts")
    assert [part["steps"] for part in counts["parts"]] == [60, 40]
    assert [part["examples"] for part in counts["parts"]] == [960, 640]
    assert counts["updates"] == [100, 50]


@pytest.mark.slow
def test_they_are_exact_when_a_worker_is_killed(killed):
    _, cluster = killed
    result = cluster.result("killed")
    assert (result["parts"][0]["steps"], result["parts"][0]["examples"]) == (300, 4800)
    assert result["updates"] == [300, 150]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["unequal", "resumed", "other", "replaced"])
def test_finite_data_are_used_once(killed, name):
    """Also by a run that resumed or got other data, and by a worker in place of a killed one."""
    _, cluster = killed
    parts = cluster.result(name)["parts"]
    if name == "resumed":
        assert parts.pop() == {"steps": 40, "examples": 640, "ids": IDS}  # Another pass.
    assert sum(part["steps"] for part in parts) == 40
    assert sum(part["ids"] for part in parts) == IDS


@pytest.mark.slow
def test_other_data_begin_at_their_start(killed):
    _, cluster = killed
    assert "The input of 2 workers begins at its start" in cluster["chief 0"].output


@pytest.mark.slow
def test_one_process_continues_a_run_of_servers(killed, program):
    folder, _ = killed
    estimator = program.make_estimator(folder / "other")
    estimator.train(program.shared, steps=2)
    assert estimator.last_run.step == 47


def test_the_chief_evaluates_and_predicts_as_one_process_does(ran, program):
    folder, cluster = ran
    estimator = program.make_estimator(folder / "counts")
    assert estimator.evaluate(program.shared) == pytest.approx(cluster.result("evaluated"))
    assert cluster.result("evaluated")["ids"] == cluster.result("predicted") == IDS


def test_no_update_of_two_workers_is_lost(ran):
    _, cluster = ran
    assert cluster.result("constant") == [-200.0, -200.0]


def test_tables_in_shards_lose_no_update_and_are_saved_whole(ran, program):
    """Three shards, then two, then none: each step moves the same rows by the same gradient."""
    folder, cluster = ran
    assert cluster.result("rows") == {"parts": 2}
    estimator = program.make_rows(folder / "rows")
    estimator.train(program.shared, max_steps=201)
    names = ("tables/0/embeddings", "optimizer/accumulator/tables/0/embeddings")
    first, accumulator = (estimator.get_variable_value(name) for name in names)
    second = estimator.get_variable_value("tables/1/embeddings")
    ids = program.TABLE_IDS.numpy()
    moved = -np.sum(1 / np.sqrt(1 + np.arange(1, 202)))
    for values, expected in ((first, moved), (accumulator - 1, 201), (second, -201)):
        np.testing.assert_allclose(values[ids], expected, rtol=1e-5)
        assert not np.delete(values, ids, axis=0).any()


def test_averages_of_tables_in_shards_follow_the_stops_of_the_chief(ran, program):
    """Three shards, then two, of which the second run continues the average."""
    folder, cluster = ran
    stops = cluster.result("stops")
    counted = np.diff(stops, prepend=0)
    reader = tf.train.load_checkpoint(str(folder / "rows/model.ckpt-200"))
    ids, names = program.TABLE_IDS.numpy(), reader.get_variable_to_shape_map()
    [name] = [n for n in names if "swa/tables/1/embeddings" in n]
    expected = -np.sum(counted * stops) / 200
    np.testing.assert_allclose(reader.get_tensor(name)[ids], expected, rtol=1e-5)
    moved = -np.cumsum(1 / np.sqrt(1 + np.arange(1, 201)))[np.array(stops[1:]) - 1]
    first = np.sum(counted[1:] * moved) / 200
    loss = (first + expected) * len(ids) * 8
    assert cluster.result("averaged")["loss"] == pytest.approx(loss, rel=1e-4)


def test_refusals(ran):
    _, cluster = ran
    assert "the dataset of input_fn calls Python" in cluster.result("python")
    assert "expected the same structure" in cluster.result("structures")
    assert "Set parameter_server.allow_lost_updates = True" in cluster.result("lost_updates")
    assert "expected a module. Set Estimator(modules=" in cluster.result("captured")


def test_a_table_is_a_module(ran):
    _, cluster = ran
    ids = [min(i % 12, 10) if i % 12 < 10 else 3 for i in range(64)]
    assert cluster.result("table") == {"steps": 16, "examples": 64, "ids": sum(ids)}


def test_workers_and_servers_end_with_the_chief(ran):
    _, cluster = ran
    assert cluster.codes() == {"chief 0": 0, "worker 0": 0, "worker 1": 0, "ps 0": 0}
    assert "SERVED" in cluster["worker 1"].output


@pytest.mark.slow
def test_masks_are_drawn_once_and_hooks_get_no_tensors(tmp_path):
    with servers(tmp_path, PROGRAMS / "servers.py", "more", tmp_path) as cluster:
        assert set(cluster.codes().values()) == {0}, cluster["chief 0"].output
        assert "wants_tensors on parameter servers" in cluster.result("wants")
        assert "on_nan is 'restore', and training runs on" in cluster.result("restores")
        # The sum of 200 independent draws of 0 and 2; drawn by both workers, twice the variance.
        assert cluster.result("masks") == [pytest.approx(-200, abs=1), pytest.approx(200, rel=0.2)]
