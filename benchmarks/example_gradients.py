"""What gradients by example cost: a step of a CNN with them, against a plain one.

    python -m benchmarks.example_gradients [--json]

Both are compiled, and run in turns in one process on the same batch; a row is the
median over rounds of time against the plain step's.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from models import clipped_mean_gradients, cnn, per_example_gradients

ROUNDS = 25
BATCH = 64

Step = Callable[[], tf.Tensor]


def steps(batch_size: int = BATCH) -> dict[str, Step]:
    """Returns compiled steps of a CNN with Adam on one batch, by name."""
    network = cnn()
    images = tf.random.normal([batch_size, 28, 28, 1])
    labels = tf.random.uniform([batch_size], 0, 10, tf.int64)
    network(images)
    variables = network.trainable_variables

    def losses(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        logits = network(images, training=True)
        return keras.losses.sparse_categorical_crossentropy(labels, logits, True)

    def plain() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(losses(images, labels))
        return tape.gradient(loss, [v.value for v in variables])

    def by_example() -> list[tf.Tensor]:
        each = per_example_gradients(losses, variables, images, labels)
        return [tf.reduce_mean(gradient, 0) for gradient in each]

    def clipped() -> list[tf.Tensor]:
        given = losses, variables, images, labels
        return clipped_mean_gradients(*given, clip_norm=1.0)

    optimizer = keras.optimizers.Adam()
    optimizer.build(variables)

    def step(gradients: Callable[[], list[tf.Tensor]]) -> Step:
        def compute() -> tf.Tensor:
            optimizer.apply(gradients(), variables)
            return tf.identity(optimizer.iterations)

        return tf.function(compute, autograph=False)

    found = {"plain": plain, "per_example": by_example, "clipped": clipped}
    return {name: step(gradients) for name, gradients in found.items()}


def ratios(compiled: dict[str, Step], rounds: int = ROUNDS) -> dict[str, float]:
    """Returns each step's time against the plain one's, the median over rounds."""
    for step in compiled.values():
        step()
    each = [{name: _secs(s) for name, s in compiled.items()} for _ in range(rounds)]
    return {
        name: statistics.median(secs[name] / secs["plain"] for secs in each)
        for name in compiled
        if name != "plain"
    }


def _secs(step: Step) -> float:
    begun = time.perf_counter()
    step().numpy()
    return time.perf_counter() - begun


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the table, and with --json the ratios as the last line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="ratios as the last line")
    options = parser.parse_args(argv)
    found = ratios(steps())
    for name, ratio in found.items():
        print(f"{name:<12} {ratio:5.2f} times a plain step")
    if options.json:
        print(json.dumps({name: round(ratio, 3) for name, ratio in found.items()}))


if __name__ == "__main__":
    main()
