"""Measures the driver's cost: Estimator.train against loops by hand and Keras' fit.

    python -m benchmarks.overhead [--json]

Estimator.train runs with all that it does by default: metrics, a log line and a summary
every 100 steps, checkpoints. A hook cuts its run into slices, and times the other ways
in between. The loop by hand does the same arithmetic on the same input, metrics
included, in one `for _ in tf.range(n)` a slice, and nothing else.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from absl import flags, logging

from benchmarks import classifier, pairs
from benchmarks.pairs import Contender
from pipeline import Estimator, ExponentialAverage, Hook, RunConfig


def mlp() -> keras.Model:
    """Returns a network 16 -> 32 -> 10, whose steps cost little arithmetic."""
    return keras.Sequential(
        [
            keras.Input([16]),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def cnn() -> keras.Model:
    """Returns the network of TensorFlow's tutorial on MNIST with Keras."""
    return keras.Sequential(
        [
            keras.Input([28, 28, 1]),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


class Task:
    """A network and its data, and each way of training it."""

    def __init__(
        self, network: Callable[[], keras.Model], shape: list[int], batch_size: int
    ) -> None:
        """Makes random data.

        Args:
          network: makes the network.
          shape: shape of one example.
          batch_size: examples in a batch of all replicas.
        """
        rng = np.random.default_rng(0)
        self.network = network
        self.batch_size = batch_size
        self._x = rng.normal(size=[4096, *shape]).astype(np.float32)
        self._y = rng.integers(10, size=4096)

    def dataset(self, batch_size: int) -> tf.data.Dataset:
        """Returns endless data, whose static shape does not tell the batch size."""
        data = tf.data.Dataset.from_tensor_slices((self._x, self._y))
        return data.repeat().batch(batch_size).prefetch(tf.data.AUTOTUNE)

    def estimator(self, **config: Any) -> Callable[..., None]:
        """Returns Estimator.train as a function of steps and hooks.

        Args:
          **config: fields of the RunConfig.
        """

        def input_fn(input_context: tf.distribute.InputContext) -> tf.data.Dataset:
            size = input_context.get_per_replica_batch_size(self.batch_size)
            return self.dataset(size)

        config = RunConfig(model_dir=tempfile.mkdtemp(), **config)
        modules = {"network": self.network, "optimizer": keras.optimizers.Adam}
        estimator = Estimator(classifier.model_fn, modules=modules, config=config)

        def run(steps: int | None = None, hooks: Sequence[Hook] = ()) -> None:
            estimator.train(input_fn, steps=steps, hooks=hooks)

        return run

    def hand_loop(self) -> Callable[[int], None]:
        """Returns a loop by hand, a tf.function around `for _ in tf.range(n)`."""
        network, optimizer = self.network(), keras.optimizers.Adam()
        optimizer.build(network.trainable_variables)
        mean, accuracy = _metrics()
        iterator = iter(self.dataset(self.batch_size))

        @tf.function
        def loop(iterator: Any, num_steps: tf.Tensor) -> None:
            for _ in tf.range(num_steps):
                x, y = next(iterator)
                with tf.GradientTape() as tape:
                    logits = network(x, training=True)
                    loss = tf.reduce_mean(classifier.losses(y, logits))
                gradients = tape.gradient(loss, network.trainable_variables)
                optimizer.apply(gradients, network.trainable_variables)
                mean.update_state(loss)
                accuracy.update_state(y, logits)

        return lambda num_steps: loop(iterator, tf.constant(num_steps))

    def keras_fit(self, steps_per_execution: int) -> Callable[[int], None]:
        """Returns Keras' own loop."""
        network = self.network()
        network.compile(
            optimizer=keras.optimizers.Adam(),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            steps_per_execution=steps_per_execution,
        )
        dataset = self.dataset(self.batch_size)

        def run(num_steps: int) -> None:
            network.fit(dataset, steps_per_epoch=num_steps, verbose=0)

        return run

    def tutorial_loop(self, strategy: tf.distribute.Strategy) -> Callable[[int], None]:
        """Returns the loop of TensorFlow's tutorial, see `classifier.tutorial_loop`."""
        with strategy.scope():
            network, optimizer = self.network(), keras.optimizers.Adam()
        epoch = classifier.tutorial_loop(strategy, network, optimizer, self.batch_size)

        def run(num_steps: int) -> None:
            dataset = self.dataset(self.batch_size).take(num_steps)
            epoch(strategy.experimental_distribute_dataset(dataset))

        return run


def main() -> None:
    """Prints the tables, and with --json the median ratios as the last line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="ratios as the last line")
    as_json = parser.parse_args().json
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * 2
    )
    # The log is part of what is measured, but not of what is printed. Until flags are
    # parsed, absl writes each line to stderr, wherever its handler writes.
    flags.FLAGS.mark_as_parsed()
    logging.set_verbosity(logging.INFO)
    logging.use_absl_handler()
    with open(os.devnull, "w") as nowhere:
        logging.get_absl_handler().python_handler.stream = nowhere
        results = _measure()
    pairs.say([], results if as_json else None)


def _measure() -> dict[str, dict[str, float]]:
    small, tutorial = Task(mlp, [16], 32), Task(cnn, [28, 28, 1], 64)
    strategy = tf.distribute.MirroredStrategy(
        ["/CPU:0", "/CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    loop = {
        "tutorial_loop": Contender(
            "tutorial's loop", small.tutorial_loop(strategy), 800
        )
    }
    return {
        "mlp": _against(
            "tiny MLP, batch 32", small, 3_000, _by_one(small, 3_000, (300, 1_000)), 70
        ),
        "cnn": _against(
            "tutorial CNN, batch 64",
            tutorial,
            100,
            _by_one(tutorial, 100, (50, 100)),
            55,
        ),
        "mirrored_2": _against(
            "Mirrored, 2 logical CPUs, tiny MLP",
            small,
            2_000,
            loop,
            25,
            devices=("CPU:0", "CPU:1"),
        ),
        "one_replica": _one_replica(small, 35),
        "average": {
            "mlp": _averaged("tiny MLP, batch 32", small, 30_000, 45),
            "cnn": _averaged("tutorial CNN, batch 64", tutorial, 600, 60),
        },
    }


def _by_one(
    task: Task, num_steps: int, fit_steps: tuple[int, int]
) -> dict[str, Contender]:
    return {
        "hand_loop": Contender("loop by hand", task.hand_loop(), num_steps),
        "keras_fit": Contender("Keras fit", task.keras_fit(1), fit_steps[0]),
        "keras_fit_100": Contender(
            "Keras fit, steps_per_execution=100", task.keras_fit(100), fit_steps[1]
        ),
    }


def _against(
    title: str,
    task: Task,
    slice_steps: int,
    theirs: dict[str, Contender],
    max_secs: float,
    **config: Any,
) -> dict[str, float]:
    """Measures, prints a table, and returns the median ratio by key.

    Every tenth slice of Estimator.train writes a checkpoint.
    """
    turns = pairs.TurnsHook(slice_steps, list(theirs.values()), max_secs)
    train = task.estimator(save_checkpoints_steps=10 * slice_steps, **config)
    train(hooks=[turns])
    rates = turns.rates
    rows = [pairs.row(c.name, rates["ours"], rates[c.name]) for c in theirs.values()]
    pairs.say(pairs.table(title, rows), None)
    return {
        key: statistics.median(pairs.ratios(rates["ours"], rates[c.name]))
        for key, c in theirs.items()
    }


def _one_replica(task: Task, max_secs: float) -> dict[str, float]:
    """Measures one replica under a strategy against one without.

    Whole calls of train are timed, with the same steps each. Prints a table, and
    returns the median ratio by key.
    """
    strategy = tf.distribute.MirroredStrategy(["/CPU:0"])
    trains = {
        "default": task.estimator(),
        "one_device": task.estimator(devices=("CPU:0",)),
        "mirrored_1": task.estimator(train_distribute=strategy),
    }
    contenders = [Contender(name, train, 3_000) for name, train in trains.items()]
    rates = pairs.take_turns(contenders, max_secs)
    names = {"one_device": "OneDevice", "mirrored_1": "Mirrored, 1 device"}
    rows = [
        pairs.row(f"{title} against the default strategy", rates[key], rates["default"])
        for key, title in names.items()
    ]
    pairs.say(pairs.table("One replica, tiny MLP", rows), None)
    return {
        key: statistics.median(pairs.ratios(rates[key], rates["default"]))
        for key in names
    }


def _averaged(title: str, task: Task, num_steps: int, max_secs: float) -> float:
    """Measures a training that keeps an exponential average against one that does not.

    Whole calls of train are timed, long enough that what comes once in each does not
    count. Prints a table, and returns the median ratio.
    """
    trains = {
        "average": task.estimator(average=ExponentialAverage(0.999)),
        "without": task.estimator(),
    }
    contenders = [Contender(name, run, num_steps) for name, run in trains.items()]
    rates = pairs.take_turns(contenders, max_secs)
    own, plain = rates["average"], rates["without"]
    rows = [pairs.row("an average of the weights, against none", own, plain)]
    pairs.say(pairs.table(title, rows), None)
    return statistics.median(pairs.ratios(own, plain))


def _metrics() -> tuple[keras.metrics.Metric, keras.metrics.Metric]:
    return keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()


if __name__ == "__main__":
    main()
