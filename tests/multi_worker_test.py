"""Two workers on one machine: they agree on everything, and find out who died."""

import signal
import time

import numpy as np
import pytest

from pipeline.checkpoints import checkpoint
from tests import (
    clusters,
    fakes,
    kinds,
    patience,
    players,
    row_tables,
    shown,
    shuffled,
    tabled_training,
)

HEARTBEAT_SECS = 3


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each case came to, by case and process."""
    folder = tmp_path_factory.mktemp("together")
    tasks = clusters.run("multi_worker.py", "together", folder)
    results = [task.result for task in tasks]
    cases = {name: [result[name] for result in results] for name in results[0]}
    return {"folder": folder, **cases}


@pytest.mark.parametrize("name", ["unequal_data", "unequal_data_of_unknown_length"])
def test_data_of_unequal_length_are_all_used(found, name):
    """32 batches of 16 make 500 examples, 29 make 460."""
    for each in found[name]:
        order = each.pop("order")
        assert each == {"step": 32, "trained": 960, "evaluated": 960}
        # Of each step the first process' examples, and then the second one's.
        _, y = fakes.classification_data()
        parts = [y[:rows][i : i + 16] for i in range(0, 500, 16) for rows in (500, 460)]
        assert order == fakes.order_of(np.concatenate(parts))


def test_one_process_hooks_and_stops_all(found):
    first, second = found["a_hook_in_one_process"]
    assert first["step"] == second["step"] == 21
    assert second["reasons"] == ["enough"]
    assert first["reasons"] == ["another process asked for it"]
    assert second["seen"] == [7, 14, 21]


def test_saves_by_the_clock_are_everybodys(found):
    folder = found["folder"] / "saves_by_the_clock"
    steps = fakes.checkpoint_steps(folder)
    assert len(steps) > 3
    expected = sorted(
        f"model.ckpt-{step}.{process}-of-2.index"
        for step in steps
        for process in (0, 1)
    )
    assert found["saves_by_the_clock"] == [expected, expected]


def test_a_nan_in_one_process_ends_all_at_the_same_step(found):
    first, second = found["nan_in_one_process"]
    assert first == second
    assert "NaN or infinite at step 6. No checkpoint was saved after it." in first


@pytest.mark.parametrize("name", ["leaves_out", "leaves_out_a_spike"])
def test_a_batch_of_one_process_is_left_out_by_all(found, name):
    for each in found[name]:
        assert each == {
            "step": 31,
            "differing": ["driver/001/input_start/.ATTRIBUTES/VARIABLE_VALUE"],
            "files": [f"step-6/batch-6/element-{n}-of-2" for n in (0, 1)],
        }


def test_dropout_differs_between_processes_and_after_a_restore(found):
    for masks in found["dropout"][0]:
        assert not np.array_equal(*masks)
    before, after = found["dropout"][0]
    assert before != after


def test_updates_in_turn_and_scalars_are_those_of_one_process(found):
    for each in found["play"]:
        assert each == pytest.approx(players.EXPECTED, rel=1e-6)


def test_rows_move_as_whole_tables_do(found):
    for each in found["rows"]:
        row_tables.check(each)


def test_a_transformer_and_dp_sgd_come_to_what_they_do_in_one_process(found):
    """Of batches whose parts have other numbers of examples and of tokens."""
    for each in found["transformer"]:
        kinds.check(each)


def test_networks_of_tables_come_to_what_they_do_in_one_process(found):
    for each in found["tables"]:
        tabled_training.check(each)


def test_statistics_become_one(found):
    first, second = found["batch_normalization"]
    assert first["moving_mean"] == second["moving_mean"]
    assert np.abs(first["moving_mean"]).max() > 0
    assert first["finite"] and second["finite"]
    assert first["loss"] == second["loss"] < 1.0


def test_an_average_is_the_same_in_both(found):
    first, second = found["batch_normalization"]
    live, average = first["moving_mean"]
    assert np.abs(np.subtract(live, average)).max() > 1e-4
    assert first["average_loss"] == second["average_loss"] != first["loss"]
    for each in (first, second):
        assert each["predicted_loss"] == pytest.approx(each["average_loss"], rel=1e-4)


def test_all_evaluate_and_the_chief_exports(found):
    first, second = found["evaluates_along"]
    for each in (first, second):
        assert (each["examples"], each["step"]) == (200, 22)
    assert second["exports"] == []
    assert len(first["exports"]) == 1
    events = list((found["folder"] / "evaluates_along" / "eval").glob("events*"))
    assert len(events) == 1


def test_summaries_are_of_all_processes_and_the_chief_writes_them(found):
    folder = found["folder"] / "evaluates_along"
    x, y = fakes.classification_data(200)
    evaluated, trained = shown.read(folder / "eval"), shown.read(folder)
    for events, step, rows in (
        (evaluated, 22, slice(None)),
        (trained, 11, slice(160, 176)),
        (trained, 22, np.arange(336, 352) % 200),
    ):
        values = {name: by_step[step] for name, by_step in events.items()}
        assert values.pop("kernel") == 6 * 8
        assert values == shown.expected(x[rows], y[rows])


def test_goes_on_where_it_stopped(found):
    assert found["goes_on"] == [[0.0, 0.002]] * 2


def test_an_input_that_starts_anywhere_is_called_for_what_is_left(found):
    """Each run calls it once for its type; the second comes to the end of a pass."""
    calls = [0, *(0, 12, 0), *(0, 5)]
    expected = {"difference": 0.0, "calls": calls, "saved": []}
    assert found["starts_anywhere"] == [expected, expected]


def test_batches_that_are_shared_hold_each_example_once(found):
    """Whatever shuffles them without a seed, and where the pass is broken off."""
    for each in found["each_once"]:
        assert each == dict.fromkeys(each, shuffled.EXPECTED)


def test_all_take_a_checkpoint_that_each_can_read(found):
    """Step 10 is damaged, and step 5 cannot be read by one of them."""
    for each in found["damaged_checkpoint"]:
        assert each == {"steps": [3], "saved": [0, 3]}


def test_processes_that_do_not_share_model_dir_are_told(found):
    first, second = found["another_model_dir"]
    assert "the processes start at different steps, [5, 0] by process" in first
    assert "on storage that all of them share?" in second


# Faults.


def command(model_dir, *flags):
    return [
        *("-m", "pipeline.main", "--gin_file=gin/digits.gin"),
        *("--execution=multi_worker", f"--model_dir={model_dir}"),
        "--gin.TRAIN_STEPS=1000000",
        f"--gin.multi_worker.heartbeat_timeout_secs={HEARTBEAT_SECS}",
        *flags,
    ]


@pytest.mark.parametrize(
    ("victim", "number"),
    [(1, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGSTOP)],
    ids=["follower", "leader", "stopped"],
)
def test_who_died_is_named_in_bounded_time(tmp_path, victim, number):
    with clusters.started(command(tmp_path / "run"), tmp_path) as tasks:
        tasks[0].wait_for("train | step 100 ")
        began = time.monotonic()
        tasks[victim].kill(number)
        survivor = tasks[1 - victim]
        clusters.wait([survivor], timeout=60)
    assert survivor.code == 75, survivor.end_of_log
    assert survivor.ended_at - began < patience.stretched(HEARTBEAT_SECS + 15)
    assert f"error: worker {victim} of the cluster is lost" in survivor.text
    assert "they go on from the last checkpoint" in survivor.text


def test_a_worker_that_never_starts_is_named(tmp_path):
    flags = command(tmp_path / "run", "--gin.multi_worker.start_timeout_secs=2")
    with clusters.started(flags, tmp_path) as (first, second):
        second.kill()
        clusters.wait([first], timeout=60)
    assert first.code == 75
    assert "error: worker 1 (127.0.0.1:" in first.text
    assert "did not start in time" in first.text


def test_an_error_in_one_process_ends_the_others(tmp_path):
    """It is no peer's fault there, and one here."""
    script = clusters.ROOT / "tests" / "scripts" / "multi_worker.py"
    command = [str(script), "fails", str(tmp_path)]
    with clusters.started(command, tmp_path) as tasks:
        clusters.wait(tasks, timeout=90)
    assert all(task.code not in (0, None) for task in tasks)
    assert "RuntimeError: the user's mistake" in tasks[1].text
    assert "PeerLostError: worker 1 of the cluster is lost" in tasks[0].text


def test_a_signal_to_one_stops_all_at_the_same_step(tmp_path):
    """They save, and ask to be started again."""
    model_dir = tmp_path / "run"
    with clusters.started(command(model_dir), tmp_path) as tasks:
        tasks[0].wait_for("train | step 100 ")
        tasks[1].kill(signal.SIGTERM)
        clusters.wait(tasks, timeout=60)
    assert [task.code for task in tasks] == [75, 75], tasks[0].end_of_log
    step = fakes.checkpoint_steps(model_dir)[-1]
    assert step > 100
    for task in tasks:
        assert f"a signal ended training, and {model_dir}/model.ckpt-{step}" in (
            task.text
        )
    assert checkpoint.is_readable(f"{model_dir}/model.ckpt-{step}")
