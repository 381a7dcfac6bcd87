"""What is known of an input at a checkpoint besides its iterator: which one, how far.

A small file of JSON a process, `input/model.ckpt-100.0-of-1.json` in model_dir.
"""

import dataclasses
import enum
import json
import os

import tensorflow as tf
from absl import logging

from pipeline import atomic_file, fingerprint
from pipeline.fingerprint import Change, Fingerprint
from pipeline.peers import Peers

_END = ".json"


class Verdict(enum.IntEnum):
    """What becomes of a position; of several processes' verdicts the last counts."""

    SAME = 0
    SKIP = 1
    ANEW = 2
    ERROR = 3


@dataclasses.dataclass(frozen=True)
class InputRecord:
    """How far a process had read which input.

    Attributes:
      read: elements that the pass under way has taken.
      rows: examples in an element, None where nothing tells.
      pipelines: processes that share the data, each by a pipeline of its own.
      nexts_per_step: elements that a step takes.
      fingerprint: of the input.
    """

    read: int
    rows: int | None
    pipelines: int
    nexts_per_step: int
    fingerprint: Fingerprint

    def compared(self, now: "InputRecord") -> Change | None:
        """How the input `now` differs; None, too, where each has a part of its own."""
        if self.pipelines != now.pipelines:
            return None
        return fingerprint.compare(self.fingerprint, now.fingerprint)

    def read_by(self, now: "InputRecord") -> int:
        """Elements of `now` that hold as many examples as were read, rounded up.

        So no example comes twice in a pass, and one that has ended has ended.
        """
        read, size = self.read * self.pipelines, now.pipelines
        if self.rows and now.rows:
            read, size = read * self.rows, size * now.rows
        return -(-read // size)


def write(prefix: str, record: InputRecord) -> None:
    """Writes the record of a process' position.

    Args:
      prefix: path prefix of the position.
      record: of this process.
    """
    tree = {**vars(record), "fingerprint": record.fingerprint.as_json()}
    atomic_file.write(f"{prefix}{_END}", f"{json.dumps(tree)}\n")


def read(prefix: str) -> InputRecord | None:
    """Reads a process' record, or the first process' where there were others.

    Returns None where there is none: positions of earlier versions have none.

    Args:
      prefix: path prefix of the position.
    """
    text = atomic_file.read(f"{prefix}{_END}")
    if text is None:
        folder, name = os.path.split(prefix)
        first = f"{name.rpartition('.')[0]}.0-of-*{_END}"
        others = tf.io.gfile.glob(os.path.join(folder, first))
        text = atomic_file.read(others[0]) if others else None
    try:
        if text is None:
            return None
        tree = json.loads(text)
        described = Fingerprint.from_json(tree["fingerprint"])
        return InputRecord(**{**tree, "fingerprint": described})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        logging.warning(
            "%s%s, which says which input was read, is damaged (%s): taking the input "
            "for the same.",
            prefix,
            _END,
            error,
        )
        return None


def judged(
    record: InputRecord | None,
    now: InputRecord,
    *,
    path: str,
    read: int,
    changed_input: str,
    peers: Peers | None = None,
) -> Verdict:
    """Decides with all processes what to do with a position; says so.

    Args:
      record: of the position; None for one of an earlier version.
      now: the record of this process' input.
      path: the checkpoint that the position belongs to.
      read: elements to leave out to go on after it.
      changed_input: the `RunConfig`'s.
      peers: the processes that train in step; None for this one alone.

    Raises:
      ValueError: the position is another input's, and that is to be an error.
    """
    change = record.compared(now) if record is not None else None
    mine = Verdict.SAME
    if change is not None and changed_input == "auto":
        mine = Verdict.ANEW if change.in_data else Verdict.SKIP
    elif change is not None:
        mine = Verdict[changed_input.upper()]
    given = [[mine]] if peers is None else peers.gather([mine])
    verdict = max(Verdict(number) for (number,) in given)
    if record is None:
        logging.info(
            "train | nothing says which input checkpoint %s had read: taking it for "
            "this one.",
            path,
        )
    if verdict == Verdict.SAME:
        return verdict
    words = change.words if change is not None else "that of another process"
    said = f"the input is not the one that checkpoint {path} had read: {words}."
    if verdict == Verdict.ERROR:
        raise ValueError(
            f"{said} Write RunConfig(changed_input='anew') to read it from its "
            "beginning, or 'skip' to leave out as much as was read."
        )
    if verdict == Verdict.ANEW:
        logging.warning(
            "train | %s It begins anew. RunConfig(changed_input='skip') would leave "
            "out the %d batches that were read, 'error' would stop here.",
            said,
            read,
        )
    else:
        logging.warning(
            "train | %s It goes on after the %d batches that were read, by reading "
            "over them; they are the ones that were trained on if the order is the "
            "same in each run. RunConfig(changed_input='anew') would begin anew.",
            said,
            read,
        )
    return verdict
