"""Tasks of parameter servers that are killed, stopped or asked to end."""

import re
import signal
import time

import pytest

from tasks import PROGRAMS, servers

pytestmark = pytest.mark.slow

TASKS = {"chief 0", "worker 0", "worker 1", "ps 0"}


@pytest.fixture
def measured(record_property):
    """Returns a context's seconds; shown by `pytest -rA`."""
    began = time.monotonic()

    def done(what):
        print(f"{what}: {time.monotonic() - began:.1f} s after the signal")

    def begin():
        nonlocal began
        began = time.monotonic()
        return done

    return begin


def training(folder, *options, **others):
    arguments = "train", folder / "model", "sleep=0.02", *options
    return servers(folder, PROGRAMS / "servers.py", *arguments, **others)


def test_a_killed_server_ends_all(tmp_path, measured):
    with training(tmp_path, "steps=100_000") as cluster:
        cluster["chief 0"].wait_for("STEP 10")
        done = measured()
        cluster["ps 0"].send(signal.SIGKILL)
        assert cluster["chief 0"].wait(30) == 75
        done("chief")
        assert "error: ps 0 of the cluster was lost" in cluster["chief 0"].output
        codes = cluster.codes()
        done("all")
        assert codes == {"chief 0": 75, "worker 0": 0, "worker 1": 0, "ps 0": -9}


def test_a_killed_chief_ends_all(tmp_path, measured):
    with training(tmp_path, "steps=100_000") as cluster:
        cluster["chief 0"].wait_for("STEP 10")
        done = measured()
        cluster["chief 0"].send(signal.SIGKILL)
        codes = cluster.codes()
        done("all")
        assert codes == {"chief 0": -9, "worker 0": 0, "worker 1": 0, "ps 0": 0}


@pytest.mark.parametrize("name", ["worker 1", "ps 0", "chief 0"])
def test_a_stopped_task_is_named(tmp_path, measured, name):
    with training(tmp_path, "steps=100_000", "lost_after_secs=3") as cluster:
        cluster["chief 0"].wait_for("STEP 10")
        done = measured()
        cluster[name].send(signal.SIGSTOP)
        others = TASKS - {name} if name == "chief 0" else {"chief 0"}
        codes = {each: cluster[each].wait(60) for each in others}
        done("the others")
        # TensorFlow may hold Python's lock while it waits for the server.
        assert set(codes.values()) <= {75, -9 if name == "ps 0" else 75}
        for each in others:
            assert re.search(rf"error: .*{name}", cluster[each].output)
        cluster[name].send(signal.SIGCONT)
        cluster.codes()


def test_a_stopped_worker_that_continues_is_not_lost(tmp_path):
    with training(tmp_path, "steps=150", "lost_after_secs=60") as cluster:
        cluster["chief 0"].wait_for("STEP 10")
        cluster["worker 1"].send(signal.SIGSTOP)
        time.sleep(8)
        cluster["worker 1"].send(signal.SIGCONT)
        assert set(cluster.codes().values()) == {0}
        assert cluster.result()["steps"] == 150


def test_without_any_worker_the_chief_ends(tmp_path, measured):
    with training(tmp_path, "steps=100_000", "lost_after_secs=5") as cluster:
        cluster["chief 0"].wait_for("STEP 10")
        done = measured()
        cluster["worker 0"].send(signal.SIGKILL)
        cluster["worker 1"].send(signal.SIGKILL)
        assert cluster["chief 0"].wait(60) == 75
        done("chief")
        assert "error: no worker has answered for" in cluster["chief 0"].output


def test_sigterm_to_all_saves_and_the_same_command_continues(tmp_path, measured):
    with training(tmp_path, "steps=200") as cluster:
        cluster["chief 0"].wait_for("STEP 10")
        done = measured()
        for task in cluster.tasks.values():
            task.send(signal.SIGTERM)
        codes = cluster.codes()
        done("all")
        assert set(codes.values()) == {75}
        step = re.findall(r"at step (\d+)\. The checkpoint is", cluster["chief 0"].output)[-1]
        assert (tmp_path / "model" / f"model.ckpt-{step}.index").exists()
    with training(tmp_path, "steps=200") as cluster:
        assert set(cluster.codes().values()) == {0}
        result = cluster.result()
        assert (result["global_step"], result["updates"]) == (200, [200, 100])
        assert result["steps"] == 200 - int(step)


def test_sigterm_to_the_chief_in_its_first_call_of_slow_steps(tmp_path, measured):
    with training(tmp_path, "steps=1000", "slow=1.0", "log_step_count_steps=100") as cluster:
        cluster["worker 1"].wait_for("serving")
        time.sleep(8)  # In the first calls.
        done = measured()
        cluster["chief 0"].send(signal.SIGTERM)
        assert cluster["chief 0"].wait(30) == 75
        done("chief")


def test_sigterm_while_a_worker_is_stopped(tmp_path, measured):
    with training(tmp_path, "steps=100_000") as cluster:
        cluster["chief 0"].wait_for("STEP 10")
        cluster["worker 1"].send(signal.SIGSTOP)
        time.sleep(2)
        done = measured()
        cluster["chief 0"].send(signal.SIGTERM)
        assert cluster["chief 0"].wait(90) == 75
        done("chief")
        step = re.findall(r"STEP (\d+)", cluster["chief 0"].output)[-1]
        assert (tmp_path / "model" / f"model.ckpt-{step}.index").exists()


def test_sigterm_to_a_worker_ends_it_and_training_continues(tmp_path, measured):
    """No hook slows it down: a busy worker must not send NaN while it leaves."""
    options = "steps=1_000_000", "log_step_count_steps=100"
    with servers(tmp_path, PROGRAMS / "servers.py", "train", tmp_path / "m", *options) as cluster:
        chief = cluster["chief 0"]
        chief.wait_for("train | step 100 ")
        done = measured()
        cluster["worker 1"].send(signal.SIGTERM)
        assert cluster["worker 1"].wait(60) == 75
        done("worker")
        step = 100 * (len(re.findall(r"train \| step", chief.output)) + 3)
        chief.wait_for(f"train | step {step} ")
        assert "NaN" not in chief.output


def test_an_error_of_the_user_ends_all(tmp_path, measured):
    with training(tmp_path, "steps=100_000", "fail=10") as cluster:
        codes = cluster.codes()
        assert codes == {"chief 0": 1, "worker 0": 0, "worker 1": 0, "ps 0": 0}
        assert "RuntimeError: the user's own error" in cluster["chief 0"].output


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_task_lost_after_the_meeting_ends_the_others(tmp_path, measured, number):
    """TensorFlow holds Python's lock while it connects."""
    done = measured()
    options = "steps=10", "lost=1", f"signal={int(number)}", "connect_secs=8"
    with training(tmp_path, *options) as cluster:
        assert cluster["chief 0"].wait(60) == -signal.SIGKILL
        assert "TensorFlow did not connect chief 0, worker 0, worker 1" in cluster["chief 0"].output
        assert {cluster[name].wait(60) for name in ("worker 0", "ps 0")} <= {0, 75}
        done("all, from the start")


def test_each_task_names_an_absent_one(tmp_path):
    options = "steps=10", "start_timeout_secs=10"
    with training(tmp_path, *options, absent=["worker 1"]) as cluster:
        assert set(cluster.codes().values()) == {75}
        for task in cluster.tasks.values():
            assert re.search(r"error: worker 1 \(.*\) did not start in time", task.output)


def test_a_chief_that_never_starts_is_named(tmp_path):
    options = "steps=10", "start_timeout_secs=5"
    with training(tmp_path, *options, absent=["chief 0"]) as cluster:
        assert set(cluster.codes().values()) == {75}
        assert re.search(r"error: chief 0 \(.*\) did not start", cluster["ps 0"].output)


def test_the_command_in_each_task(tmp_path):
    flags = "--gin_file=gin/digits.gin", f"--model_dir={tmp_path / 'model'}"
    server = "--execution=parameter_server", "--gin.parameter_server.lost_after_secs=60"
    steps = "--gin.TRAIN_STEPS=50"
    command = "-m", "gin_estimator.main", *flags, *server, steps
    with servers(tmp_path, *command) as cluster:
        assert cluster.codes() == {"chief 0": 0, "worker 0": 0, "worker 1": 0, "ps 0": 0}
        assert "accuracy" in cluster["chief 0"].output
        assert "SavedModel" in cluster["chief 0"].output
        assert "SavedModel" not in cluster["worker 0"].output


def test_a_second_ctrl_c_ends_a_worker_at_once(tmp_path, measured):
    with training(tmp_path, "steps=100_000") as cluster:
        cluster["chief 0"].wait_for("STEP 10")
        worker = cluster["worker 1"]
        worker.send(signal.SIGINT)
        worker.wait_for("stopping")
        began = time.monotonic()
        worker.send(signal.SIGINT)
        assert worker.wait(30) == 130
        assert time.monotonic() - began < 10
