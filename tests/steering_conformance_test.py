"""Each stop, keep and average on each strategy: killed and resumed = not killed.

What a case comes to is known by itself; so a matrix that agrees on nothing happening is
found out, too.
"""

import pytest

from pipeline.roles import evaluation_along
from tests import steered

# Nothing to compile for a few steps, where that is not slower yet.
PLACES = {
    "default": {"run_eagerly": True},
    "mirrored_2": {"devices": ("CPU:0", "CPU:1")},
    "beside_an_evaluator": {"run_eagerly": True, "beside": True},
}
# On two replicas one case of a kind: there each run compiles.
ON_MIRRORED = ("restore_best", "examples", "plateau", "keep_best", "exponential")
# The step at which each ends, and the checkpoints that it leaves.
LEAVES = {
    "higher": (6, [4, 6]),
    "lower": (8, [6, 8]),
    "no_increase": (10, [8, 10]),
    "no_decrease": (10, [8, 10]),
    "restore_best": (8, [8]),
    "asked": (6, [4, 6]),
    "examples": (8, [6, 8]),
    "epochs": (12, [10, 12]),
    "plateau": (12, [10, 12]),
    "keep_best": (12, [6, 8, 10, 12]),
    "keep_steps": (12, [3, 7, 10, 12]),
    "exponential": (12, [10, 12]),
    "plain": (12, [10, 12]),
    "every_steps": (12, [10, 12]),
}


@pytest.mark.parametrize(
    ("place", "case"),
    [
        (place, case)
        for place in PLACES
        for case in (ON_MIRRORED if place == "mirrored_2" else steered.CASES)
    ],
)
def test_killed_and_resumed_is_not_killed(place, case, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation_along, "_LOOK_SECS", 0.0)
    whole, killed = steered.compared(tmp_path, case, **PLACES[place])
    assert killed == whole
    assert (whole["end"][0], whole["saved"]) == LEAVES[case]
