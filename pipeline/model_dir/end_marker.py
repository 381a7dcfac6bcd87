"""Says in model_dir how training ended, for the evaluator that waits for its end.

Training removes the marker when it begins and writes it when it ends, for whatever
reason: the evaluator, in another process, learns by this file alone that no more
checkpoints come.
"""

import dataclasses
import json
import os
from typing import Any

from pipeline.model_dir import atomic_file
from pipeline.process.refusals import RefusedTypeError, RefusedValueError

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
      details: reasons that the hooks gave, or the error.
      checkpoint_step: global step of the last checkpoint; None where there is none.
        The asynchronous checkpoint of a training that failed may come after the marker.
      time: end of training, in seconds since 1970.
    """

    step: int
    reason: str
    details: tuple[str, ...] = ()
    checkpoint_step: int | None = None
    time: float

    def __str__(self) -> str:
        """Returns 'training was stopped at step 40: no progress for 10 evaluations'."""
        words = _WORDS[self.reason].format(self.step)
        return ": ".join([words, *filter(None, ["; ".join(self.details)])])


def write(model_dir: str, marker: EndMarker) -> None:
    """Writes how training has ended, once its last checkpoint is committed."""
    text = json.dumps(dataclasses.asdict(marker), indent=2)
    atomic_file.write(os.path.join(model_dir, FILE), f"{text}\n")


def read(model_dir: str) -> EndMarker | None:
    """Returns how the training in `model_dir` ended; None while it goes on."""
    return atomic_file.read_json(
        os.path.join(model_dir, FILE),
        _parsed,
        instead="whether training has ended is not known",
    )


def _parsed(fields: Any) -> EndMarker:
    """Returns the marker that decoded JSON holds; raises where a field is damaged."""
    marker = EndMarker(**{**fields, "details": tuple(fields["details"])})
    steps = marker.step, marker.checkpoint_step or 0
    words = *marker.details, marker.reason
    if not all(isinstance(step, int) for step in steps):
        raise RefusedTypeError(f"steps {steps}")
    if not all(isinstance(word, str) for word in words) or marker.reason not in _WORDS:
        raise RefusedValueError(f"words {words}")
    return marker


def remove(model_dir: str) -> None:
    """Removes the marker, where there is one: training begins, or begins again."""
    atomic_file.remove(os.path.join(model_dir, FILE))
