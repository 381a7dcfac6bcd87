"""The evaluator job: which checkpoints it takes, and its record for the training."""

import pytest

import pipeline as ge
from pipeline.checkpoints import checkpoint, lease
from pipeline.model_dir import evaluation_record
from tests.evaluator_world import EVAL, Exporter, World


def steps_on_record(world, folder="eval"):
    return [e.step for e in evaluation_record.read(f"{world.model_dir}/{folder}")]


def test_each_evaluation_is_on_record_before_its_export_and_under_the_lease(tmp_path):
    world = World(tmp_path)
    seen = []

    class Looks(Exporter):
        def export(self, estimator, export_path, checkpoint_path, *args):
            held = [p.name for p in (tmp_path / "readers").iterdir()]
            seen.append((steps_on_record(world)[-1], len(held)))

    world.save_at((0, 0), (10, 5))
    world.end(5)
    world.run(exporters=[Looks()])
    # The last one was exported as the last, too, and evaluated once.
    assert seen == [(0, 1), (5, 1), (5, 1)]
    assert steps_on_record(world) == [0, 5]
    found = evaluation_record.read(f"{world.model_dir}/eval")
    assert [e.checkpoint for e in found] == ["model.ckpt-0", "model.ckpt-5"]


def test_every_so_many_steps_it_takes_the_first_checkpoint_from_each_on(tmp_path):
    world = World(tmp_path)
    world.save_at(*((step, step) for step in (0, 40, 90, 110, 160, 320, 390, 400)))
    world.end(400)
    world.run(every_steps=100)
    assert world.evaluated == [0, 110, 320, 400]


def test_ten_minutes_lie_between_evaluations_unless_said_otherwise(tmp_path):
    world = World(tmp_path)
    world.save_at((0, 1), (599, 2), (600, 3), (1000, 4))
    world.end(4)
    world.run(throttle_secs=None)
    assert world.evaluated == [1, 3, 4]


class Fails(ge.Exporter):
    """Fails at a step."""

    def __init__(self, at):
        super().__init__("fails")
        self._at = at

    def export(self, estimator, export_path, checkpoint_path, *args):
        if checkpoint.step_of(checkpoint_path) == self._at:
            raise OSError("no such file")


def test_one_that_fails_does_not_lose_the_others(tmp_path):
    world = World(tmp_path)
    world.save_at((0, 0), (10, 5))
    world.end(5)
    fields = {"start_delay_secs": 0, "throttle_secs": 0}
    bad = ge.EvalSpec(EVAL, name="bad", exporters=[Fails(0)], **fields)
    good = ge.EvalSpec(EVAL, name="good", **fields)
    with pytest.raises(OSError, match="no such file") as error:
        world.run(bad, good)
    assert "This was the evaluation 'bad'." in error.value.__notes__
    assert world.evaluated == [("bad", 0), ("good", 0)]
    assert steps_on_record(world, "eval_good") == [0]
    # Started again, only the one that failed is made again.
    world.evaluated.clear()
    world.run(ge.EvalSpec(EVAL, name="bad", **fields), good)
    assert world.evaluated == [("bad", 0), ("bad", 5), ("good", 5)]


def test_a_lease_is_left_by_nobody(tmp_path):
    world = World(tmp_path)
    world.save_at((0, 0))
    world.end(0)
    world.run()
    with lease.deleting(checkpoint.path_of(world.model_dir, 0)) as may:
        assert may
