"""The evaluator job: every checkpoint in order, until training says that it ended."""

import pytest

import pipeline as ge
from pipeline.roles.evaluator import Evaluator
from tests import fakes
from tests.evaluator_world import EVAL, Exporter, FakeEstimator, World


def test_every_checkpoint_in_order_and_the_last_one_as_the_last(tmp_path, log):
    world = World(tmp_path)
    # Not as a directory lists them.
    for step in (0, 9, 10, 100):
        world.save(step)
    for seconds, step in ((10, 110), (20, 200), (21, 210)):
        world.at(seconds, lambda step=step: world.save(step))
    world.at(22, lambda: world.end(210))
    exporter = Exporter()
    metrics, exports = world.run(exporters=[exporter])
    assert world.evaluated == [0, 9, 10, 100, 110, 200, 210]
    # At second 22 it sees the last one and the end at once.
    assert exporter.calls == [(step, step == 210) for step in world.evaluated]
    assert metrics["global_step"] == 210
    assert exports == [f"{tmp_path}/export/mine/210"]
    assert log()[-1] == (
        "eval | training has finished at step 210. The last checkpoint, of step 210, "
        "was evaluated."
    )


def test_the_last_one_is_exported_as_such_where_it_was_evaluated_before(tmp_path):
    world = World(tmp_path)
    world.save(10)
    world.at(60, lambda: world.end(10))
    exporter = Exporter()
    metrics, _ = world.run(exporters=[exporter])
    assert world.evaluated == [10]
    assert exporter.calls == [(10, False), (10, True)]
    assert metrics["global_step"] == 10


@pytest.mark.parametrize(
    ("reason", "details", "text"),
    [
        ("finished", (), "training has finished at step 30."),
        (
            "stopped",
            ("no progress",),
            "training was stopped at step 30: no progress.",
        ),
        ("failed", ("OSError: no",), "training has failed at step 30: OSError: no."),
    ],
)
def test_the_end_is_said_in_words(reason, details, text, tmp_path, log):
    world = World(tmp_path)
    world.save(20)
    world.at(5, lambda: world.end(30, reason, details=details))
    metrics, _ = world.run(max_steps=1000)
    assert metrics["global_step"] == 20
    assert log()[-1] == f"eval | {text} The last checkpoint, of step 20, was evaluated."
    assert world.seconds < 10


def test_an_evaluator_that_starts_after_the_end(tmp_path):
    world = World(tmp_path)
    for step in (0, 10, 20):
        world.save(step)
    world.end(20, checkpoint_step=20)
    metrics, _ = world.run(max_steps=20, start_delay_secs=120)
    assert world.evaluated == [0, 10, 20]
    assert metrics["global_step"] == 20
    assert world.seconds == 0


def test_checkpoints_that_come_too_soon_are_passed_over(tmp_path, log):
    world = World(tmp_path)
    for minute in range(0, 60, 4):
        world.seconds = minute * 60
        world.save(minute)
    world.end(56)
    world.run(max_steps=56, throttle_secs=600)
    # As they would have been chosen while training went on; and the last one.
    assert world.evaluated == [0, 12, 24, 36, 48, 56]
    assert log()[1] == (
        "eval | step 4 is passed over; the next evaluation is that of the first "
        "checkpoint written 360 s or more after it (throttle_secs=600)"
    )


def test_a_clock_that_was_set_back_passes_nothing_over(tmp_path):
    world = World(tmp_path)
    world.save_at((1000, 1), (0, 2), (1001, 3))
    world.end(3)
    world.run(max_steps=3)
    assert world.evaluated == [1, 2, 3]


def test_the_start_is_delayed(tmp_path):
    world = World(tmp_path)
    world.save(0)
    starts = []
    world.at(300, lambda: world.end(0))
    world.secs_per_evaluation = 1

    class Starts(FakeEstimator):
        def evaluate(self, *args, **kwargs):
            starts.append(world.seconds)
            return super().evaluate(*args, **kwargs)

    specs = [ge.EvalSpec(EVAL, start_delay_secs=121)]
    estimator = Starts(world)
    Evaluator(estimator, specs, clock=world.clock, sleep=world.sleep).run()
    assert starts == [121]


def test_the_end_cuts_the_delay_short(tmp_path):
    world = World(tmp_path)
    world.at(30, lambda: world.save(10))
    world.at(31, lambda: world.end(10))
    world.run(start_delay_secs=10_000)
    assert world.evaluated == [10]
    assert world.seconds < 40


def test_what_retention_deleted_first_is_skipped_and_said(tmp_path, log):
    world = World(tmp_path, keep_max=2, secs_per_evaluation=25)
    for step in range(10, 110, 10):
        world.at(step - 10, lambda step=step: world.save(step))
    world.at(91, lambda: world.end(100, checkpoint_step=100))
    exporter = Exporter()
    world.run(exporters=[exporter])
    assert world.evaluated == sorted(world.evaluated)
    assert world.evaluated[-2:] == [90, 100]
    assert [step for step, _ in exporter.calls] == world.evaluated
    # Whatever it saw was evaluated or is named.
    gone = [int(m.split()[3]) for m in log() if "is skipped" in m]
    assert gone
    assert not set(gone) & set(world.evaluated)
    assert (
        f"eval | step {gone[0]} is skipped: its checkpoint was deleted before it could "
        "be evaluated. Keep more by RunConfig(keep_checkpoint_max=...), or save less "
        "often."
    ) in log()
    assert fakes.checkpoint_steps(tmp_path)[-2:] == [90, 100]


def test_what_is_about_to_be_deleted_is_skipped(tmp_path, log):
    world = World(tmp_path)
    world.save(10)
    world.save(20)
    (tmp_path / "readers").mkdir()
    (tmp_path / "readers/model.ckpt-10.deleting").touch()
    world.end(20)
    world.run(max_steps=20)
    assert world.evaluated == [20]
    assert sum("step 10 is skipped" in message for message in log()) == 1


def test_what_is_still_being_written_is_waited_for(tmp_path):
    world = World(tmp_path)
    world.save(10)
    world.write(20)
    world.at(50, lambda: world.save(20))
    world.at(51, lambda: world.end(20))
    world.secs_per_evaluation = 1
    world.run()
    assert world.evaluated == [10, 20]
    assert world.seconds > 50


def test_a_failed_trainings_last_checkpoint_may_come_after_the_marker(tmp_path):
    world = World(tmp_path)
    world.save(10)
    world.at(10, lambda: world.end(25, "failed", checkpoint_step=20))
    world.at(40, lambda: world.save(20))
    metrics, _ = world.run()
    assert metrics["global_step"] == 20


def test_a_last_checkpoint_that_never_comes_is_not_waited_for_long(tmp_path):
    world = World(tmp_path)
    world.save(10)
    world.at(10, lambda: world.end(25, "failed", checkpoint_step=20))
    metrics, _ = world.run()
    assert metrics["global_step"] == 10
    assert 70 <= world.seconds < 80


def test_it_says_every_minute_what_it_waits_for(tmp_path, log):
    world = World(tmp_path)

    def interrupt():
        raise KeyboardInterrupt

    world.at(200, lambda: world.save(5))
    world.at(330, interrupt)
    with pytest.raises(KeyboardInterrupt):
        world.run(start_delay_secs=90, max_steps=30)
    end = f"or the end of training (step 30 or training_ended.json), in {tmp_path}"
    assert log() == [
        f"eval | watching {tmp_path}",
        # At once, and a minute later.
        *[f"eval | waiting for start_delay_secs=90, then for checkpoints in {tmp_path}"]
        * 2,
        *[f"eval | waiting for a checkpoint to begin with, {end}"] * 2,
        *[f"eval | waiting for a checkpoint after step 5, {end}"] * 2,
    ]


def test_a_training_without_a_marker_ends_at_max_steps(tmp_path):
    """As a plain `Estimator.train`, which may go on at any time, leaves none."""
    world = World(tmp_path)
    world.save(0)
    world.at(30, lambda: world.save(10))
    world.at(60, lambda: world.save(20))
    exporter = Exporter()
    metrics, _ = world.run(max_steps=20, exporters=[exporter])
    assert metrics["global_step"] == 20
    assert world.evaluated == [0, 10, 20]
    assert exporter.calls == [(0, False), (10, False), (20, True)]
    assert world.seconds < 65


def test_training_that_saved_nothing(tmp_path, log):
    world = World(tmp_path)
    world.at(5, lambda: world.end(100))
    assert world.run() is None
    assert log()[-1] == (
        "eval | training has finished at step 100, and there is no checkpoint."
    )


def test_several_evaluations_by_name(tmp_path):
    world = World(tmp_path)
    world.save_at((0, 0), (60, 10), (120, 20))
    world.end(20)
    often = ge.EvalSpec(EVAL, name="often", throttle_secs=0)
    rarely = ge.EvalSpec(EVAL, name="rarely", throttle_secs=100)
    metrics, exports = world.run(often, rarely, max_steps=20)
    assert world.evaluated == [
        ("often", 0),
        ("rarely", 0),
        ("often", 10),
        ("often", 20),
        ("rarely", 20),
    ]
    assert list(metrics) == ["often", "rarely"]
    assert metrics["rarely"]["global_step"] == 20
    assert exports == []
    # One that is added later has all before it.
    world.evaluated.clear()
    added = ge.EvalSpec(EVAL, name="added", throttle_secs=0)
    world.run(often, added, max_steps=20)
    assert world.evaluated == [
        ("added", 0),
        ("added", 10),
        ("often", 20),
        ("added", 20),
    ]
