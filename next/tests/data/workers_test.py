"""Two workers read unequal data to their ends, and continue them after a restart."""

import json
import pathlib

import pytest

import tasks

TESTS = pathlib.Path(__file__).parents[1]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Returns the rows by name of the input, phase and worker, and the output of both phases."""
    folder = tmp_path_factory.mktemp("workers")
    outputs = []
    for phase in ("first", "second"):
        with tasks.workers(folder, folder, phase, program="input_workers.py") as started:
            for task in started:
                assert task.wait(180) == 0, task.output
            outputs.append(started[0].output)
    results = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    return results, outputs


@pytest.fixture(scope="module", autouse=True)
def path_of_tests():
    before = tasks.ENVIRONMENT.get("PYTHONPATH")
    tasks.ENVIRONMENT["PYTHONPATH"] = str(TESTS)
    yield
    tasks.ENVIRONMENT.pop("PYTHONPATH") if before is None else None


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


PHASES = ("first", "second")


def test_processes_share_one_order(found):
    results, _ = found
    rows = [sum((results[f"shuffled-{p}-{task}"]["rows"] for p in PHASES), []) for task in (0, 1)]
    assert len(rows[0]) == len(rows[1]) == 20
    assert sorted(rows[0] + rows[1]) == [*range(40)]
    assert sorted(
        results["shuffled-second-0"]["evaluated"] + results["shuffled-second-1"]["evaluated"]
    ) == [*range(40)]


def test_an_input_that_starts_anywhere_is_called_for_the_rest(found):
    _, (_, second) = found
    assert "FIRST 5" in second
