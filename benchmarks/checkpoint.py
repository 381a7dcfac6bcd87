"""Measures what saving costs a training, and what it costs to go on where it was.

    python -m benchmarks.checkpoint [--data_dir=DIR] [--json]

The stall is the time for which the loop stands still for a checkpoint of 200 MB, saved
asynchronously against synchronously; and what the steps after it lose besides. Two runs
take turns. The save in the middle of each run is timed, so that the start and the end
of `train` are left out.

The resume is the time that the input of a run that was broken off at step 10,000 takes
to give its next batch, in steps of the tutorial's CNN. The data are MNIST from
--data_dir. Without the flag they are random images of the same kind, written as a TFDS
data set first.
"""

import argparse
import dataclasses
import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from absl import logging

import inputs
from benchmarks import classifier, pairs
from benchmarks.overhead import cnn
from benchmarks.pairs import Contender
from pipeline import Estimator, Hook, ModeKeys, Run, RunConfig, SavingListener
from pipeline.feed import feed as input_lib
from pipeline.feed import position
from pipeline.feed.dataset import Source
from pipeline.strategy.peers import Peers

_WIDTH = 16
_BATCH_SIZE = 64
_ORDER = ("asynchronous", "synchronous")


@dataclasses.dataclass(frozen=True)
class Size:
    """The sizes of what is measured.

    Attributes:
      units: width of two dense layers; with Adam's slots 12 bytes a weight.
      steps_between: steps before the save and after it.
      save_secs: seconds for all rounds of saves; there are three rounds at least.
      step: step at which the run was broken off.
      examples: number of the random images, where there is no data_dir.
      slice_steps: steps that are timed in each round.
      resume_secs: seconds for all rounds of resuming.
    """

    units: int = 4_096
    steps_between: int = 15
    save_secs: float = 75
    step: int = 10_000
    examples: int = 20_000
    slice_steps: int = 100
    resume_secs: float = 45


class RandomImages(tfds.core.GeneratorBasedBuilder):
    """Images of MNIST's kind, without a download."""

    VERSION = tfds.core.Version("1.0.0")
    num_examples = 0

    def _info(self) -> tfds.core.DatasetInfo:
        features = tfds.features.FeaturesDict(
            {
                "image": tfds.features.Image(shape=(28, 28, 1)),
                "label": tfds.features.ClassLabel(num_classes=10),
            }
        )
        return tfds.core.DatasetInfo(
            builder=self, features=features, supervised_keys=("image", "label")
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Any:
        rng = np.random.default_rng(0)
        for index in range(self.num_examples):
            image = rng.integers(256, size=[28, 28, 1], dtype=np.uint8)
            yield index, {"image": image, "label": int(rng.integers(10))}


def main() -> None:
    """Prints the tables, and with --json the median ratios as the last line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="ratios as the last line")
    parser.add_argument("--data_dir", help="has mnist, as TFDS prepared it")
    flags = parser.parse_args()
    if flags.data_dir and not os.path.isdir(os.path.join(flags.data_dir, "mnist")):
        parser.error(
            f"--data_dir={flags.data_dir} has no folder mnist: give the folder that "
            "TFDS prepared it in, or leave the flag out for random images."
        )
    logging.set_verbosity(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        results = measure(Size(), folder, data_dir=flags.data_dir)
    pairs.say([], results if flags.json else None)


def measure(
    size: Size, folder: str, *, data_dir: str | None = None
) -> dict[str, dict[str, float]]:
    """Measures both, prints the tables, and returns the median ratios.

    Args:
      size: sizes of what is measured.
      folder: folder for all that is written.
      data_dir: folder that has MNIST; None makes data of its kind.

    Returns:
      Ratios by name, by part.
    """
    return {
        "stall": {"async_over_sync": _stall(size, folder)},
        "resume": {"over_step": _resume(size, folder, data_dir)},
    }


class _Timed(Hook, SavingListener):
    """The times at which a run began, and at which each save began and ended."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def begin(self, run: Run) -> None:
        self._now()

    def before_save(self, run: Run) -> None:
        self._now()

    def after_save(self, run: Run) -> None:
        self._now()

    def end(self, run: Run) -> None:
        """Does nothing; a hook and a listener both have this method."""

    def stall(self) -> tuple[float, float]:
        """Returns the seconds of the save in the middle.

        Returns:
          The seconds, and the seconds with what the steps after the save lost.
        """
        began, saving, saved, next_saving, _ = self._times
        stall = saved - saving
        return stall, stall + (next_saving - saved) - (saving - began)

    def _now(self) -> None:
        self._times.append(time.perf_counter())


def _stall(size: Size, folder: str) -> float:
    """Prints the stalls; returns the median ratio, asynchronous over synchronous."""

    def network() -> keras.Model:
        dense = [keras.layers.Dense(size.units, "relu") for _ in range(2)]
        return keras.Sequential([keras.Input([_WIDTH]), *dense, keras.layers.Dense(10)])

    def input_fn() -> tf.data.Dataset:
        x, y = np.ones([8, _WIDTH], np.float32), np.zeros([8], np.int64)
        return tf.data.Dataset.from_tensors((x, y)).repeat()

    trains = {}
    for name in _ORDER:
        estimator = Estimator(
            classifier.model_fn,
            modules={"network": network, "optimizer": keras.optimizers.Adam},
            config=RunConfig(
                model_dir=f"{folder}/{name}",
                save_checkpoints_steps=size.steps_between,
                async_checkpoint=name == "asynchronous",
                keep_checkpoint_max=1,
                save_summary_steps=None,
                log_step_count_steps=None,
            ),
        )
        trains[name] = functools.partial(
            estimator.train, input_fn, steps=2 * size.steps_between
        )
        trains[name]()
    stalls: dict[str, list[float]] = {name: [] for name in _ORDER}
    totals: dict[str, list[float]] = {name: [] for name in _ORDER}
    deadline = time.perf_counter() + size.save_secs
    while time.perf_counter() < deadline or len(stalls["synchronous"]) < 3:
        # Every second round runs backwards, so that no way always follows the same one.
        number = len(stalls["synchronous"])
        for name in _ORDER if number % 2 == 0 else reversed(_ORDER):
            timed = _Timed()
            trains[name](hooks=[timed], saving_listeners=[timed])
            stall, total = timed.stall()
            stalls[name].append(stall)
            totals[name].append(total)
    path = estimator.latest_checkpoint()
    megabytes = tf.io.gfile.stat(f"{path}.data-00000-of-00001").length / 1e6
    row = _row("stall of the loop", stalls["asynchronous"], stalls["synchronous"])
    title = f"A save of {megabytes:,.0f} MB: asynchronous against synchronous"
    pairs.say(_table(title, ("asynchronous, ms", "synchronous, ms"), [row]), None)
    # These are differences of long times: their ratios would be noise.
    lost = [f"{name} {_spread(secs)}" for name, secs in totals.items()]
    after = f"With what the {size.steps_between} steps after it lose, in ms"
    pairs.say(["", f"{after}: {', '.join(lost)}."], None)
    return statistics.median(
        pairs.ratios(stalls["asynchronous"], stalls["synchronous"])
    )


def _resume(size: Size, folder: str, data_dir: str | None) -> float:
    """Prints the times of resuming; returns the median ratio to a step's time."""
    name = "mnist"
    if data_dir is None:
        name, data_dir = "random_images", f"{folder}/tfds"
        RandomImages.num_examples = size.examples
        tfds.display_progress_bar(False)
        tfds.builder(name, data_dir=data_dir).download_and_prepare()
    cached = functools.partial(
        inputs.tfds_input_fn,
        name=name,
        data_dir=data_dir,
        preprocess=inputs.scale_image,
        batch_size=_BATCH_SIZE,
    )
    images = np.zeros([size.examples, 28, 28, 1], np.float32)
    arrays = functools.partial(inputs.numpy_input_fn, x=images, batch_size=_BATCH_SIZE)
    contenders, once = [], []
    for title, input_fn in (
        ("TFDS in memory", cached),
        ("TFDS from its files", functools.partial(cached, cache=False)),
    ):
        feed = _feed(input_fn)
        prefix = f"{folder}/{title.replace(' ', '_')}"
        began = time.perf_counter()
        iterator = position.open_at(feed, prefix=None, num_steps=size.step)
        next(iterator)
        secs = time.perf_counter() - began
        saves = [_secs_of_saving(iterator, prefix) for _ in range(9)]
        once.append(
            f"{title}: skipping takes {secs:.2f} s; in ms, its position is saved in "
            f"{_spread(saves)}."
        )
        contenders.append(_opening(f"{title}, position saved", feed, size, prefix))
    feed = _feed(arrays)
    contenders.append(_opening("arrays, by first_batch", feed, size, None))
    train = Estimator(
        classifier.model_fn,
        modules={"network": cnn, "optimizer": keras.optimizers.Adam},
        config=RunConfig(model_dir=f"{folder}/cnn"),
    ).train
    turns = pairs.TurnsHook(size.slice_steps, contenders, size.resume_secs)
    train(cached, hooks=[turns])
    steps = turns.rates.pop("ours")
    rows = [
        _row(name, [1 / r for r in rates], [1 / r for r in steps])
        for name, rates in turns.rates.items()
    ]
    title = f"The next batch after step {size.step:,}, against a step"
    pairs.say(_table(title, ("resuming, ms", "a step, ms"), rows), None)
    pairs.say(["", *once], None)
    return statistics.median(pairs.ratios(steps, turns.rates[contenders[0].name]))


def _feed(input_fn: Callable[..., Any]) -> input_lib.Feed:
    alone = Peers(tf.distribute.get_strategy())
    return input_lib.make_feed(Source(input_fn, ModeKeys.TRAIN), peers=alone)


def _secs_of_saving(iterator: Any, prefix: str) -> float:
    began = time.perf_counter()
    position.save_position(iterator, prefix)
    return time.perf_counter() - began


def _opening(
    name: str, feed: input_lib.Feed, size: Size, prefix: str | None
) -> Contender:
    """Returns a contender that opens an input where it stood, and takes a batch."""

    def run(_: int) -> None:
        next(position.open_at(feed, prefix=prefix, num_steps=size.step))

    return Contender(name, run, 1)


def _row(title: str, ours: Sequence[float], theirs: Sequence[float]) -> str:
    each = pairs.ratios(ours, theirs)
    low, median, high = statistics.quantiles(each, n=4)
    both = " | ".join(f"{1000 * statistics.median(x):,.1f}" for x in (ours, theirs))
    return f"| {title} | {both} | {median:.2f} | {low:.2f}-{high:.2f} | {len(each)} |"


def _spread(secs: Sequence[float]) -> str:
    low, median, high = (1000 * x for x in statistics.quantiles(secs, n=4))
    return f"{median:.0f} (quartiles {low:.0f} to {high:.0f})"


def _table(title: str, columns: Sequence[str], rows: Sequence[str]) -> list[str]:
    names = ["", *columns, "ratio", "quartiles", "rounds"]
    return [
        "",
        title,
        "",
        f"| {' | '.join(names)} |",
        f"|{' --- |' * len(names)}",
        *rows,
    ]


if __name__ == "__main__":
    main()
