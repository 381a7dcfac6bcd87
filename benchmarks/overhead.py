"""Measures what Estimator.train costs: python -m benchmarks.overhead.

It runs as configured by default: metrics, a log line every 100 steps. The loop by hand does
the same arithmetic on the same input, metrics included, in one compiled call.
"""

import functools
import tempfile
import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from absl import flags, logging

import gin_estimator as ge
from benchmarks import models
from benchmarks.rounds import Run, compare, timed


class Clock(ge.Hook):
    """Notes when steps are reached."""

    def __init__(self, every_steps: int) -> None:
        self.every_steps = every_steps
        self.times: list[float] = []

    def after_step(self, run: ge.RunContext) -> None:
        """Notes the time."""
        self.times.append(time.perf_counter())


class Task:
    """A network and its data, and each way to train it."""

    def __init__(
        self, network: Callable[[], keras.Model], shape: list[int], batch_size: int
    ) -> None:
        self.network = network
        self.batch_size = batch_size
        self.dataset = functools.partial(models.dataset, shape)

    def estimator(
        self, warm_up_steps: int = 1100, *, model_dir: str | None = None, **config: Any
    ) -> Run:
        """Returns Estimator.train.

        Args:
          warm_up_steps: least number of steps before those that count; a compiled call has
            its full length after 1,023.
          model_dir: directory of the run; None for a temporary one.
          **config: fields of the RunConfig.
        """

        def input_fn(input_context: tf.distribute.InputContext) -> tf.data.Dataset:
            return self.dataset(input_context.get_per_replica_batch_size(self.batch_size))

        estimator = ge.Estimator(
            models.model_fn,
            modules={"network": self.network, "optimizer": keras.optimizers.Adam},
            config=ge.RunConfig(model_dir or tempfile.mkdtemp(), **config),
        )

        def run(num_steps: int) -> float:
            whole_slices = -(-warm_up_steps // num_steps)
            step = estimator.state.step
            clock = Clock(num_steps)
            estimator.train(
                input_fn, max_steps=step + (whole_slices + 1) * num_steps, hooks=[clock]
            )
            before, after = clock.times[-2:]
            return after - before

        return run

    def loop_by_hand(self) -> Run:
        """Returns a tf.function around `for _ in tf.range(n)`."""
        network, optimizer = self.network(), keras.optimizers.Adam()
        optimizer.build(network.trainable_variables)
        mean, accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()
        iterator = iter(self.dataset(self.batch_size))

        @tf.function
        def loop(iterator: Any, num_steps: tf.Tensor) -> None:
            for _ in tf.range(num_steps):
                features, labels = next(iterator)
                with tf.GradientTape() as tape:
                    logits = network(features, training=True)
                    loss = tf.reduce_mean(models.losses(labels, logits))
                variables = network.trainable_variables
                optimizer.apply(tape.gradient(loss, variables), variables)
                mean.update_state(loss)
                accuracy.update_state(labels, logits)

        return timed(lambda num_steps: loop(iterator, tf.constant(num_steps)))

    def fit(self) -> Run:
        """Returns Keras' loop."""
        network = self.network()
        network.compile(
            optimizer=keras.optimizers.Adam(),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            steps_per_execution=100,
        )
        data = self.dataset(self.batch_size)
        return timed(lambda number: network.fit(data, steps_per_epoch=number, verbose=0))

    def loop_of_tutorial(self, strategy: tf.distribute.Strategy) -> Run:
        """Returns the loop of TensorFlow's tutorial "Custom training with tf.distribute"."""
        with strategy.scope():
            network, optimizer = self.network(), keras.optimizers.Adam()
            optimizer.build(network.trainable_variables)
            accuracy = keras.metrics.SparseCategoricalAccuracy()

        def step(inputs: Any) -> tf.Tensor:
            features, labels = inputs
            with tf.GradientTape() as tape:
                logits = network(features, training=True)
                losses = models.losses(labels, logits)
                loss = tf.nn.compute_average_loss(losses, global_batch_size=self.batch_size)
            gradients = tape.gradient(loss, network.trainable_variables)
            optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))
            accuracy.update_state(labels, logits)
            return loss

        @tf.function
        def distributed(inputs: Any) -> tf.Tensor:
            return strategy.reduce("SUM", strategy.run(step, args=(inputs,)), axis=None)

        def run(num_steps: int) -> None:
            total = 0.0
            data = self.dataset(self.batch_size).take(num_steps)
            for inputs in strategy.experimental_distribute_dataset(data):
                total += distributed(inputs)
            float(total)

        return timed(run)


def main() -> None:
    """Prints the ratios."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)
    flags.FLAGS.mark_as_parsed()
    logging.set_verbosity(logging.WARNING)
    small, tutorial = Task(models.mlp, [16], 32), Task(models.cnn, [28, 28, 1], 64)
    for name, task, bar, num_steps, num_rounds, warm_up in (
        ("MLP", small, 0.85, 1100, 9, 1100),
        ("CNN", tutorial, 0.97, 60, 9, 100),
    ):
        others = {
            f"{name} over a loop by hand (bar {bar})": task.loop_by_hand(),
            f"{name} over fit(steps_per_execution=100) (bar 1.0)": task.fit(),
        }
        compare(task.estimator(warm_up), others, num_steps, num_rounds)
    mirrored = functools.partial(
        tf.distribute.MirroredStrategy, cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    two = mirrored(["CPU:0", "CPU:1"])
    others = {"Mirrored x2 over the tutorial's loop (bar 2.0)": small.loop_of_tutorial(two)}
    compare(small.estimator(train_distribute=two), others, 500, 5)
    default = small.estimator()
    for name, strategy in {
        "OneDevice over the default (bar 0.97)": tf.distribute.OneDeviceStrategy("CPU:0"),
        "Mirrored x1 over the default (bar 0.97)": mirrored(["CPU:0"]),
    }.items():
        compare(small.estimator(train_distribute=strategy), {name: default}, 2000, 7)


if __name__ == "__main__":
    main()
