"""An evaluator job at work, in a time of its own, without training or processes."""

import os
import pathlib

import pipeline as ge
from pipeline.checkpoints import checkpoint, checkpoint_files
from pipeline.checkpoints.retention import Retention
from pipeline.model_dir import end_marker
from pipeline.model_dir.end_marker import EndMarker
from pipeline.roles.evaluator import Evaluator
from tests import fakes

X, Y = fakes.classification_data(rows=40)
EVAL = fakes.make_input_fn(X, Y, batch_size=20)
TRAIN = fakes.make_input_fn(X, Y, batch_size=8, change=lambda d: d.repeat())


class Exporter(ge.Exporter):
    """Keeps what it was called with."""

    def __init__(self):
        super().__init__("mine")
        self.calls = []

    def export(
        self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export
    ):
        step = checkpoint.step_of(checkpoint_path)
        assert checkpoint_files.is_complete(checkpoint_path)
        assert step == eval_result["global_step"]
        self.calls.append((step, is_the_final_export))
        return f"{export_path}/{step}"


class World:
    """A model_dir in which training goes on while the evaluator sleeps and works.

    Attributes:
      evaluated: steps; of several evaluations with their names.
    """

    def __init__(self, model_dir, *, keep_max=None, secs_per_evaluation=0):
        self.model_dir = str(model_dir)
        self.seconds = 0.0
        self.evaluated = []
        self.events = []
        self.secs_per_evaluation = secs_per_evaluation
        self.retention = Retention(
            directory=self.model_dir,
            keep_max=keep_max,
            clock=lambda: 1e9 + self.seconds,
        )

    def at(self, seconds, event):
        self.events.append((seconds, event))

    def save(self, step):
        """A checkpoint, whose files show the time here."""
        path = self.write(step)
        self.retention.commit(path)

    def save_at(self, *moments):
        """Checkpoints of `(seconds, step)`, before the evaluator begins."""
        for seconds, step in moments:
            self.seconds = seconds
            self.save(step)

    def write(self, step):
        path = checkpoint.path_of(self.model_dir, step)
        for suffix in (".data-00000-of-00001", ".index"):
            pathlib.Path(f"{path}{suffix}").touch()
        os.utime(f"{path}.index", (1e9 + self.seconds,) * 2)
        return path

    def end(self, step, reason="finished", **fields):
        marker = EndMarker(
            step=step, reason=reason, **{"time": 1e9 + self.seconds, **fields}
        )
        end_marker.write(self.model_dir, marker)

    def clock(self):
        return self.seconds

    def sleep(self, seconds):
        assert seconds > 0
        until = self.seconds + seconds
        while self.events and min(self.events, key=lambda e: e[0])[0] <= until:
            event = min(self.events, key=lambda e: e[0])
            self.events.remove(event)
            self.seconds = max(self.seconds, event[0])
            event[1]()
        self.seconds = until

    def run(self, *specs, max_steps=None, **fields):
        """An evaluator job, from its start to its end."""
        fields = {"start_delay_secs": 0, "throttle_secs": 0, **fields}
        specs = specs or [ge.EvalSpec(EVAL, **fields)]
        estimator = FakeEstimator(self)
        job = Evaluator(
            estimator, specs, max_steps=max_steps, clock=self.clock, sleep=self.sleep
        )
        return job.run()


class FakeEstimator:
    """Evaluates a checkpoint to its step, in the time that the world says."""

    def __init__(self, world):
        self.world = world
        self.model_dir = world.model_dir

    def eval_dir(self, name):
        return os.path.join(self.model_dir, f"eval_{name}" if name else "eval")

    def eval_metrics(self, input_fn):
        return {"loss": 0.0}

    def evaluate(self, input_fn, *, steps, hooks, checkpoint_path, name):
        assert checkpoint_files.is_complete(checkpoint_path)
        step = checkpoint.step_of(checkpoint_path)
        self.world.evaluated.append((name, step) if name else step)
        if self.world.secs_per_evaluation:
            self.world.sleep(self.world.secs_per_evaluation)
        # Whatever happened meanwhile.
        assert checkpoint_files.is_complete(checkpoint_path)
        return {"loss": 1.0 / (step + 1), "global_step": step}
