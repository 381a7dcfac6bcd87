"""What a training does next, without a training: decisions of `Schedule.agree` as data."""

import dataclasses
import math

import pytest

from gin_estimator.contract.hooks import RunContext
from gin_estimator.loop.parts import Evaluations, Part
from gin_estimator.loop.schedule import Schedule
from gin_estimator.run import signals


@dataclasses.dataclass
class Replicas:
    """Replicas of a process, and the numbers that other processes send."""

    others: list = dataclasses.field(default_factory=list)

    def gather(self, numbers):
        self.own = list(numbers)
        return [self.own, *self.others]


@dataclasses.dataclass
class Engine(Part):
    has_ended: bool = False
    skipped: int | None = None

    def next_step(self, step):
        return step + 8

    def skips(self, step):
        return step == self.skipped


@dataclasses.dataclass
class Hooks(Part):
    every: int = 5
    with_tensors: float = math.inf

    def next_step(self, step):
        return step - step % self.every + self.every

    def next_steps_with_tensors(self):
        return self.with_tensors, math.inf


@dataclasses.dataclass
class Checkpoints(Part):
    saved_step: int | None = 0
    every: int = 10

    def is_late(self):
        return False

    def is_due(self, step):
        return step % self.every == 0

    def is_saved(self, step):
        return self.saved_step == step


@dataclasses.dataclass
class AtCheckpoints(Evaluations):
    made_at: int | None = None
    needs: bool = False

    def due(self, step, flags, *, at_checkpoint, is_final):
        is_due = at_checkpoint or is_final or self.needs
        return ("eval",) if is_due and self.made_at != step else ()

    def need_checkpoint(self, folders):
        return self.needs and bool(folders)


@pytest.fixture
def agree():
    """Returns the next boundary of a run at a step."""

    def agree(step, max_step=30, reasons=(), others=(), **parts):
        run = RunContext("runs/1", step, max_step)
        for reason in reasons:
            run.request_stop(reason)
        schedule = Schedule(
            Replicas(list(others)),
            parts.get("engine", Engine()),
            parts.get("hooks", Hooks()),
            parts.get("checkpoints", Checkpoints()),
            parts.get("evaluations", Evaluations()),
        )
        now = schedule.agree(run)
        assert (run.step, run.stop_reasons) == (step, list(reasons))  # Nothing has changed.
        return now

    return agree


def test_a_call_ends_where_any_part_has_work(agree):
    now = agree(3)
    assert (now.next_step, now.detail, now.saves, now.stops) == (5, 0, False, False)
    assert agree(3, hooks=Hooks(every=100)).next_step == 11  # By the engine.
    assert agree(28, hooks=Hooks(every=100)).next_step == 30  # By max_step.
    assert agree(3, hooks=Hooks(with_tensors=5)).detail == 1
    assert agree(3, hooks=Hooks(with_tensors=10)).detail == 0


def test_the_first_step_is_saved_once(agree):
    new = Checkpoints(saved_step=None, every=7)
    assert agree(3, checkpoints=new).saves
    assert not agree(3, checkpoints=Checkpoints(saved_step=3)).saves


def test_a_checkpoint_is_evaluated_at_the_same_step(agree):
    now = agree(20, evaluations=AtCheckpoints())
    assert now.saves and now.evaluates == ("eval",) and not now.is_end
    after = agree(20, checkpoints=Checkpoints(20), evaluations=AtCheckpoints(made_at=20))
    assert not after.saves and not after.evaluates and not after.stops
    assert agree(13, evaluations=AtCheckpoints(needs=True)).saves  # Such as for an exporter.


def test_the_last_step_is_saved_and_evaluated_before_the_end(agree):
    now = agree(30, evaluations=AtCheckpoints())
    assert now.stops and now.saves and now.evaluates and now.is_final and not now.is_end
    done = {"checkpoints": Checkpoints(30), "evaluations": AtCheckpoints(made_at=30)}
    assert agree(30, **done).is_end
    assert agree(13, reasons=["enough"]).saves
    ended = agree(13, engine=Engine(has_ended=True))
    assert ended.stops and ended.stop_reasons == ("the input ended",)


def test_a_signal_saves_and_evaluates_nothing(agree, monkeypatch):
    monkeypatch.setattr(signals, "is_pending", lambda: True)
    now = agree(13, evaluations=AtCheckpoints())
    assert now.saves and not now.evaluates and now.is_preempted and not now.is_final
    assert agree(13, checkpoints=Checkpoints(13), evaluations=AtCheckpoints()).is_end


def test_processes_end_for_a_reason_of_one(agree):
    #         next_step, tensors, summaries, asks to stop, signal, late
    asks = [5, math.inf, math.inf, True, False, False]
    assert agree(3, others=[asks]).stop_reasons == ("another process asked to stop",)
    late = [5, math.inf, math.inf, False, False, True]
    assert agree(3, others=[late]).saves
    earlier = [4, 4, math.inf, False, False, False]
    now = agree(3, others=[earlier])
    assert (now.next_step, now.detail) == (4, 1)


def test_a_skipped_step_is_due_after_the_save(agree):
    now = agree(20, engine=Engine(skipped=20))
    assert now.saves and now.skips
