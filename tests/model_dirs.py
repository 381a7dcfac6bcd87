"""A model_dir of empty checkpoints, for tests of what stays of it."""

import tensorflow as tf

from pipeline.checkpoints import checkpoint
from pipeline.checkpoints.retention import Retention
from tests import fakes


class ModelDir:
    """A directory of empty checkpoints, and a clock."""

    def __init__(self, path, **options):
        self.path = path
        self.seconds = 0.0
        options = {"keep_max": 2, **options}
        self.retention = Retention(
            directory=str(path), clock=lambda: 1e9 + self.seconds, **options
        )

    def write(self, step, *, shards=2, suffixes=None):
        self.path.mkdir(exist_ok=True)
        data = [f".data-{shard:05d}-of-{shards:05d}" for shard in range(shards)]
        for suffix in suffixes or [*data, ".index"]:
            (self.path / f"model.ckpt-{step}{suffix}").touch()
        return checkpoint.path_of(str(self.path), step)

    def commit(self, *steps):
        for step in steps:
            self.retention.commit(self.write(step))

    @property
    def saved(self):
        return fakes.checkpoint_steps(self.path)

    @property
    def files(self):
        return sorted(p.name for p in self.path.iterdir() if p.is_file())

    @property
    def listed(self):
        state = tf.train.get_checkpoint_state(str(self.path))
        return [checkpoint.step_of(p) for p in state.all_model_checkpoint_paths]
