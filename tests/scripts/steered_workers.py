"""Steered trainings of two workers, for steering_conformance_test, by `clusters`.

A first pair of processes breaks off one training after the other, and is killed in the
last; a second pair goes on with all of them.
"""

from pipeline.roles import evaluation_along
from tests import clusters, steered


def killed(folder):
    *others, last = cells()
    for case, beside in others:
        train(folder, case, beside, kill=steered.break_off)
    train(folder, *last, kill=steered.for_good)


def resumed(folder):
    for case, beside in cells():
        train(folder, case, beside)


def cells():
    """Returns each case, and whether an evaluator job is beside it."""
    inline = [(case, False) for case in steered.TOGETHER]
    return [*((case, True) for case in steered.TOGETHER_BESIDE), *inline]


def train(folder, case, beside, **options):
    # Without a seed, the processes would agree on one by chance.
    where = {"execution": "multi_worker", "tf_random_seed": steered.SEED}
    steered.train(folder / case, case, beside=beside, **where, **options)


if __name__ == "__main__":
    evaluation_along._LOOK_SECS = 0.0
    clusters.main({"killed": killed, "resumed": resumed})
