"""An evaluator, or the training that it watches, was started again."""

import pytest

import pipeline as ge
from pipeline import ClaimedError
from pipeline.model_dir import end_marker
from tests.evaluator_world import EVAL, Exporter, World

# Restarts.


def test_a_restarted_evaluator_goes_on_after_what_it_evaluated(tmp_path):
    world = World(tmp_path)
    for step in (0, 10):
        world.save(step)

    def killed():
        raise KeyboardInterrupt

    world.at(5, killed)
    with pytest.raises(KeyboardInterrupt):
        world.run()
    assert world.evaluated == [0, 10]
    world.save(20)
    world.end(20)
    world.run(max_steps=20)
    assert world.evaluated == [0, 10, 20]


def test_where_nothing_is_new_the_last_one_is_evaluated_again(tmp_path):
    world = World(tmp_path)
    for step in (0, 10):
        world.save(step)
    world.end(10)
    world.run(max_steps=10)
    exporter = Exporter()
    metrics, _ = world.run(max_steps=10, exporters=[exporter])
    assert world.evaluated == [0, 10, 10]
    assert exporter.calls == [(10, True)]
    assert metrics["global_step"] == 10


def test_a_throttle_holds_over_a_restart(tmp_path):
    world = World(tmp_path)
    world.save(0)
    world.end(0)
    world.run(max_steps=0, throttle_secs=100)
    world.save_at((60, 6), (101, 10), (102, 11))
    world.end(11)
    world.run(max_steps=11, throttle_secs=100)
    assert world.evaluated == [0, 10, 11]


def test_a_second_evaluator_is_refused(tmp_path):
    world = World(tmp_path)
    world.save(0)
    refused = []

    def another():
        with pytest.raises(ClaimedError) as error:
            world.run()
        refused.append(str(error.value))
        # One of another evaluation goes its own way.
        world.end(0)
        world.run(ge.EvalSpec(EVAL, name="other", start_delay_secs=0))

    world.at(10, another)
    world.run()
    assert len(refused) == 1
    assert refused[0].startswith(f"{tmp_path}/eval is in use: process ")
    assert (
        "evaluates for it, and two would export and record past each other. Wait for "
        "its end, end it, or give this evaluation a name of its own, EvalSpec(name="
        "'test'). If you know that it does not run, delete " in refused[0]
    )
    assert not list(tmp_path.glob("eval*/*.claim"))


def test_another_training_in_the_same_place_is_evaluated_anew(tmp_path, log):
    world = World(tmp_path)
    for step in (0, 50):
        world.save(step)
    world.end(50)
    world.run(max_steps=50)
    for file in tmp_path.glob("model.ckpt*"):
        file.unlink()
    (tmp_path / "checkpoint").unlink()
    world.save(0)
    world.save(10)
    world.end(10)
    world.run(max_steps=10)
    assert world.evaluated == [0, 50, 0, 10]
    assert "eval | step 50 was evaluated, and training is at 10: beginning anew." in (
        log()
    )


# Markers that an earlier training left.


def test_training_that_was_started_again_removes_the_old_marker(tmp_path):
    """With more steps: the evaluator does not end on the marker of the first."""
    world = World(tmp_path)
    world.save(10)
    world.end(10)
    world.at(30, lambda: end_marker.remove(world.model_dir))
    world.at(100, lambda: world.save(20))
    world.at(100, lambda: world.end(20))
    world.run(max_steps=20)
    assert world.evaluated == [10, 20]


@pytest.mark.parametrize(
    ("reason", "max_steps"), [("finished", 20), ("failed", 10), ("finished", None)]
)
@pytest.mark.parametrize(("delay", "until"), [(0, 60), (120, 120)])
def test_an_old_marker_is_believed_after_a_while(
    reason, max_steps, delay, until, tmp_path, log
):
    world = World(tmp_path)
    world.save(10)
    world.end(10, reason)
    metrics, _ = world.run(max_steps=max_steps, start_delay_secs=delay)
    assert metrics["global_step"] == 10
    assert until <= world.seconds < until + 5
    assert log()[1].endswith(
        f"at step 10; unless it begins again within {until} s, this counts."
    )


def test_a_new_marker_is_believed_at_once(tmp_path):
    world = World(tmp_path)
    world.save(10)
    world.end(10, "failed")
    world.at(5, lambda: end_marker.remove(world.model_dir))
    world.at(15, lambda: world.end(10, "failed"))
    world.run(max_steps=100)
    assert world.seconds < 20
