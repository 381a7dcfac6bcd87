"""Two workers read unequal data to their ends, and continue them after a restart."""

import json

import pytest
import tensorflow as tf

import tasks
from data.reads import Reads

PHASES = ("first", "second")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("workers")


@pytest.fixture(scope="module")
def found(folder):
    """Returns the rows by name of the input, phase and worker, and the output of both phases."""
    outputs = []
    for phase in PHASES:
        with tasks.workers(folder, folder, phase, program="input_workers.py") as started:
            for task in started:
                assert task.wait(180) == 0, task.output
            outputs.append(started[0].output)
    results = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    return results, outputs


@pytest.mark.slow
@pytest.mark.parametrize("name", ["unequal", "unequal_unknown", "anywhere"])
def test_unequal_data_are_read_to_the_end_of_the_longest(name, found):
    """A worker without data repeats its first batch, which does not count."""
    results, _ = found
    first, second = ([results[f"{name}-{phase}-{task}"] for task in (0, 1)] for phase in PHASES)
    assert {each["steps"] for each in first} == {5} and {each["steps"] for each in second} == {10}
    for task, data in enumerate([[*range(20)], [*range(100, 113)]]):
        rows = first[task]["rows"] + second[task]["rows"]
        assert rows[: len(data)] == data
        assert set(rows[len(data) :]) <= {*data[:2]}
        assert {*second[task]["evaluated"]} == {*data}


@pytest.mark.slow
def test_processes_share_one_order(found):
    results, _ = found
    rows = [sum((results[f"shuffled-{p}-{task}"]["rows"] for p in PHASES), []) for task in (0, 1)]
    assert len(rows[0]) == len(rows[1]) == 20
    assert sorted(rows[0] + rows[1]) == [*range(40)]
    assert sorted(
        results["shuffled-second-0"]["evaluated"] + results["shuffled-second-1"]["evaluated"]
    ) == [*range(40)]


@pytest.mark.slow
def test_an_input_that_starts_anywhere_is_called_for_the_rest(found):
    _, (_, second) = found
    assert "FIRST 5" in second


@pytest.mark.slow
@pytest.mark.usefixtures("found")
def test_one_process_continues_after_as_many_examples_as_two_have_read(folder, caplog):
    def input_fn(input_context):
        return tf.data.Dataset.range(60).batch(input_context.get_per_replica_batch_size(2))

    # The workers have read 20 and 13; the last batch of 2 is left out whole.
    assert Reads(folder / "unequal")(input_fn, steps=1) == [34, 35]
    assert "The input was read by 2 processes, now by 1: some examples may" in caplog.text


@pytest.mark.slow
def test_batches_that_differ_between_workers_are_refused(tmp_path):
    with tasks.workers(tmp_path, tmp_path, program="other_batches.py") as started:
        for task in started:
            assert task.wait(180) == 0, task.output
            for method in ("train", "evaluate"):
                assert f"unseeded {method} input_fn" in task.output
                assert f"map {method} input_fn" in task.output
                assert f"seeded {method} ended" in task.output
            assert "its Python code yields other batches in some processes" in task.output
            assert "deterministic=False in ParallelMap" in task.output
