"""`ge.fit` on workers and on parameter servers, against one replica."""

import json
import signal

import numpy as np
import pytest
import tasks

PROGRAM = tasks.PROGRAMS / "fit.py"


def result_of(output):
    lines = [line for line in output.splitlines() if line.startswith("RESULT")]
    return json.loads(lines[-1].removeprefix("RESULT"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    done = tasks.run(PROGRAM, tmp_path_factory.mktemp("alone"), "single_host")
    assert done.returncode == 0, done.stderr
    return result_of(done.stdout)


def assert_same(found, expected):
    for mine, other in zip(found["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-5)
    assert found["history"].keys() == expected["history"].keys()
    for name, values in found["history"].items():
        np.testing.assert_allclose(values, expected["history"][name], atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_two_workers_train_as_one_replica(tmp_path, alone):
    with tasks.workers(tmp_path, tmp_path / "run", "multi_worker", program="fit.py") as both:
        assert [task.wait() for task in both] == [0, 0], both[0].output
        results = [result_of(task.output) for task in both]
    for each in results:
        assert_same(each, alone)
    assert [each["is_chief"] for each in results] == [True, False]


@pytest.mark.slow
def test_a_callback_of_one_worker_alone_does_not_stop_the_other(tmp_path):
    with tasks.workers(tmp_path, tmp_path, program="fit_rows.py") as both:
        assert [task.wait() for task in both] == [0, 0], both[0].output
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 3


@pytest.mark.slow
def test_a_worker_that_was_killed_changes_nothing(tmp_path, alone):
    arguments = (tmp_path / "run", "multi_worker")
    with tasks.workers(tmp_path, *arguments, program="fit.py") as both:
        both[0].wait_for("STEP 7\n")
        both[1].send(signal.SIGKILL)
        assert both[0].wait() == 75, both[0].output
    with tasks.workers(tmp_path, *arguments, program="fit.py") as both:
        assert [task.wait() for task in both] == [0, 0], both[0].output
        for task in both:
            assert_same(result_of(task.output), alone)


@pytest.mark.slow
def test_parameter_servers_count_steps_exactly(tmp_path):
    command = [PROGRAM, tmp_path / "run", "parameter_server", 4]
    with tasks.servers(tmp_path, *command) as cluster:
        assert set(cluster.codes().values()) == {0}, cluster["chief 0"].output
        found = cluster.result()
    assert found["step"] == 12
    assert {len(values) for values in found["history"].values()} == {3}
    assert all(np.isfinite(values).all() for values in found["history"].values())


@pytest.fixture(scope="module")
def two_calls(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calls") / "run"
    done = tasks.run(tasks.PROGRAMS / "fit_calls.py", folder, "single_host")
    assert done.returncode == 0, done.stderr
    return result_of(done.stdout)


@pytest.mark.slow
def test_a_program_of_two_calls_that_was_killed_resumes_each_of_them(tmp_path, two_calls):
    command = [tasks.PROGRAMS / "fit_calls.py", tmp_path / "run", "two"]
    for place in ((1, 2), (2, 0), (2, 1), (2, 4)):
        assert tasks.run(*command, *place).returncode == -signal.SIGKILL
    done = tasks.run(*command)
    assert done.returncode == 0, done.stderr
    assert_same(result_of(done.stdout), two_calls)


@pytest.mark.slow
def test_workers_with_a_model_and_data_at_the_top_of_the_program(tmp_path, two_calls):
    for place in ((1, 2), (2, 2), ()):
        arguments = (tmp_path / "run", "multi_worker", *place)
        with tasks.workers(tmp_path, *arguments, program="fit_calls.py") as both:
            codes = [task.wait() for task in both]
            assert codes == ([75, -signal.SIGKILL] if place else [0, 0]), both[0].output
            results = [result_of(task.output) for task in both] if not place else []
    for each in results:
        assert_same(each, two_calls)
