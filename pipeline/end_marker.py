"""How a training ended, as a file in model_dir for those who wait for its end."""

import dataclasses
import json
import os
from typing import Any

from pipeline import atomic_file

FILE = "training_ended.json"

FINISHED = "finished"
STOPPED = "stopped"
FAILED = "failed"

_WORDS = {
    FINISHED: "training has finished at step {}",
    STOPPED: "training was stopped at step {}",
    FAILED: "training has failed at step {}",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EndMarker:
    """The end of one training.

    Attributes:
      step: global step that was reached.
      reason: 'finished': max_steps or the end of the input; 'stopped': asked for by a
        hook, such as early stopping; 'failed': by an error or an interrupt.
      details: what the hooks gave as their reasons, or the error.
      checkpoint_step: of the last checkpoint; None where there is none. An
        asynchronous one of a training that failed may come later than this marker.
      time: when, in seconds since 1970.
    """

    step: int
    reason: str
    details: tuple[str, ...] = ()
    checkpoint_step: int | None = None
    time: float

    def __str__(self) -> str:
        """'training was stopped at step 40: no progress for 10 evaluations'."""
        words = _WORDS[self.reason].format(self.step)
        return ": ".join([words, *filter(None, ["; ".join(self.details)])])


def write(model_dir: str, marker: EndMarker) -> None:
    """Says that training has ended; after its last checkpoint was committed.

    Args:
      model_dir: where it is looked for.
      marker: replaces an earlier one.
    """
    text = json.dumps(dataclasses.asdict(marker), indent=2)
    atomic_file.write(os.path.join(model_dir, FILE), f"{text}\n")


def read(model_dir: str) -> EndMarker | None:
    """How the training in `model_dir` ended; None while it goes on."""
    return atomic_file.read_json(
        os.path.join(model_dir, FILE),
        _parsed,
        instead="whether training has ended is not known",
    )


def _parsed(fields: Any) -> EndMarker:
    marker = EndMarker(**{**fields, "details": tuple(fields["details"])})
    steps = marker.step, marker.checkpoint_step or 0
    words = *marker.details, marker.reason
    if not all(isinstance(step, int) for step in steps):
        raise TypeError(f"steps {steps}")
    if not all(isinstance(word, str) for word in words) or marker.reason not in _WORDS:
        raise ValueError(f"words {words}")
    return marker


def remove(model_dir: str) -> None:
    """Says that training begins, or begins again."""
    atomic_file.remove(os.path.join(model_dir, FILE))
