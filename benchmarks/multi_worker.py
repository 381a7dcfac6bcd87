"""Measures two workers that train in step: Estimator.train and the tutorial's loop.

    python -m benchmarks.multi_worker out_dir

runs as each worker, told by TF_CONFIG which one it is; `benchmarks.scaling` starts it.
Both ways run in the same processes, in alternation, on the same batches. They have to
end at the same weights.
"""

import argparse
import dataclasses
import functools
import json
import os
import pathlib
import statistics
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

from benchmarks import classifier, pairs
from benchmarks.pairs import Contender
from pipeline import Estimator, RunConfig
from pipeline.strategy import strategies as strategy_lib

_SIZE = 16
# Batches until the data repeat. A round's steps are a multiple of it, so that both ways
# have seen the same batches after each round.
_PERIOD = 32


@dataclasses.dataclass(frozen=True)
class Task:
    """A network that both ways train, and how long.

    Attributes:
      title: title of the table.
      hidden: widths of the hidden layers.
      optimizer: makes an optimizer.
      batch_size: examples in a batch of one worker.
      num_steps: steps in a round.
      max_secs: seconds for all rounds.
    """

    title: str
    hidden: tuple[int, ...]
    optimizer: Callable[[], keras.optimizers.Optimizer]
    batch_size: int
    num_steps: int
    max_secs: float

    def network(self) -> keras.Model:
        """Returns a network with the same initial weights each time."""
        keras.utils.set_random_seed(0)
        hidden = [keras.layers.Dense(width, "relu") for width in self.hidden]
        layers = [keras.Input([_SIZE]), *hidden, keras.layers.Dense(10)]
        return keras.Sequential(layers)

    def dataset(
        self, num_steps: int, input_context: tf.distribute.InputContext
    ) -> tf.data.Dataset:
        """Returns a worker's own examples.

        They are finite, so that both ways have to find the end.
        """
        rng = np.random.default_rng(input_context.input_pipeline_id)
        rows = _PERIOD * self.batch_size
        x = rng.normal(size=[rows, _SIZE]).astype(np.float32)
        y = rng.integers(10, size=rows)
        data = tf.data.Dataset.from_tensor_slices((x, y)).repeat()
        data = data.batch(self.batch_size).take(num_steps)
        return data.prefetch(tf.data.AUTOTUNE)


# 900 weights, where a step is mostly dispatch; and 4.2 million weights, 17 MB, with
# little to compute, where it is mostly the all-reduce.
TASKS = {
    "tutorial_loop": Task(
        title="2 workers, tiny MLP, batch 32 each",
        hidden=(32,),
        optimizer=keras.optimizers.Adam,
        batch_size=32,
        num_steps=1_024,
        max_secs=75,
    ),
    "tutorial_loop_all_reduce": Task(
        title="2 workers, MLP of 17 MB, batch 8 each",
        hidden=(2_048, 2_048),
        optimizer=functools.partial(keras.optimizers.SGD, 0.01),
        batch_size=8,
        num_steps=32,
        max_secs=90,
    ),
}


def main() -> None:
    """Measures each task; the chief writes out_dir/results.json."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out_dir", type=pathlib.Path, help="folder of results.json")
    out_dir = parser.parse_args().out_dir
    config = RunConfig()
    # TensorFlow refuses to connect the workers after it has run anything.
    strategy = strategy_lib.multi_worker(config)
    tables, ratios = [], {}
    for name, task in TASKS.items():
        ours, theirs = rates(task, strategy, out_dir / name)
        tables += pairs.table(task.title, [pairs.row("tutorial's loop", ours, theirs)])
        ratios[name] = statistics.median(pairs.ratios(ours, theirs))
    if config.is_chief:
        results = {"tables": tables, "ratios": ratios}
        (out_dir / "results.json").write_text(json.dumps(results))


def rates(
    task: Task, strategy: tf.distribute.Strategy, model_dir: pathlib.Path
) -> tuple[list[float], list[float]]:
    """Returns steps per second by round, ours and the tutorial's.

    Args:
      task: network that both ways train.
      strategy: strategy of both ways, with one replica in each process.
      model_dir: model_dir of Estimator.train.

    Raises:
      AssertionError: the two ways did not end at the same weights.
      FloatingPointError: a weight is not finite.
    """
    theirs, run = _tutorial(task, strategy)
    turns = pairs.TurnsHook(
        task.num_steps, [Contender("theirs", run, task.num_steps)], task.max_secs
    )
    ours: list[keras.Model] = []

    def network() -> keras.Model:
        ours.append(task.network())
        return ours[0]

    def input_fn(input_context: tf.distribute.InputContext) -> tf.data.Dataset:
        return task.dataset(10**9, input_context)

    estimator = Estimator(
        classifier.model_fn,
        modules={"network": network, "optimizer": task.optimizer},
        config=RunConfig(
            model_dir=str(model_dir),
            train_distribute=strategy,
            save_checkpoints_steps=10 * task.num_steps,
        ),
    )
    estimator.train(input_fn, hooks=[turns])
    _check_same(ours[0], theirs)
    return turns.rates["ours"], turns.rates["theirs"]


def _tutorial(
    task: Task, strategy: tf.distribute.Strategy
) -> tuple[keras.Model, Callable[[int], None]]:
    """Returns the network that the tutorial's loop trains, and the loop."""
    with strategy.scope():
        network, optimizer = task.network(), task.optimizer()
    global_batch_size = task.batch_size * strategy.num_replicas_in_sync
    epoch = classifier.tutorial_loop(strategy, network, optimizer, global_batch_size)
    dataset = strategy.distribute_datasets_from_function(
        functools.partial(task.dataset, task.num_steps)
    )
    return network, lambda _: epoch(dataset)


def _check_same(ours: keras.Model, theirs: keras.Model) -> None:
    """Raises where the two ways did not do the same work."""
    pairs_of = zip(ours.trainable_variables, theirs.trainable_variables, strict=True)
    for a, b in pairs_of:
        np.testing.assert_allclose(a.numpy(), b.numpy(), 1e-3, 1e-4, err_msg=a.path)
        if not np.isfinite(a.numpy()).all():
            raise FloatingPointError(f"{a.path} is not finite")


if __name__ == "__main__":
    main()
