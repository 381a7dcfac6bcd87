"""Says which input a checkpoint had read, and how far.

Each process writes a small file of JSON beside its iterator's position,
`input/model.ckpt-100.0-of-1.json` in model_dir. A run that goes on reads it, compares
it with its own input, and all processes together decide what becomes of the position.
"""

import dataclasses
import enum
import json
import os

import tensorflow as tf
from absl import logging

from pipeline.feed import fingerprint
from pipeline.feed.fingerprint import Change, Fingerprint
from pipeline.model_dir import atomic_file
from pipeline.process.refusals import RefusedValueError
from pipeline.strategy.peers import Peers

_END = ".json"


class Verdict(enum.IntEnum):
    """The fate of a position; of several processes' verdicts the highest counts."""

    SAME = 0
    SKIP = 1
    ANEW = 2
    ERROR = 3


@dataclasses.dataclass(frozen=True)
class InputRecord:
    """The input that a process had read, and how far.

    Attributes:
      read: elements that the current pass over the data had taken.
      rows: examples in an element; None where nothing tells.
      pipelines: processes that share the data, each with a pipeline of its own.
      nexts_per_step: elements that a step takes.
      fingerprint: what the input is made of.
    """

    read: int
    rows: int | None
    pipelines: int
    nexts_per_step: int
    fingerprint: Fingerprint

    def compared(self, now: "InputRecord") -> Change | None:
        """Returns how `now` differs; None if not, or if it is divided otherwise."""
        # A process' part of the data is then another one, though the data are the same.
        if self.pipelines != now.pipelines:
            return None
        return fingerprint.compare(self.fingerprint, now.fingerprint)

    def read_by(self, now: "InputRecord") -> int:
        """Returns how many elements of `now` hold the examples that were read.

        It is rounded up: no example comes twice in a pass, and a pass that was read to
        its end stays so.
        """
        read, size = self.read * self.pipelines, now.pipelines
        if self.rows and now.rows:
            read, size = read * self.rows, size * now.rows
        return -(-read // size)


def write(prefix: str, record: InputRecord) -> None:
    """Writes this process' record beside its position, whose path prefix is given."""
    tree = {**vars(record), "fingerprint": record.fingerprint.as_json()}
    atomic_file.write(f"{prefix}{_END}", f"{json.dumps(tree)}\n")


def read(prefix: str) -> InputRecord | None:
    """Reads a process' record.

    Args:
      prefix: path prefix of the position.

    Returns:
      The record; the first process' record where another number of processes wrote the
      positions; None where there is none, as beside positions of earlier versions.
    """
    text = atomic_file.read(f"{prefix}{_END}")
    if text is None:
        folder, name = os.path.split(prefix)
        first = f"{name.rpartition('.')[0]}.0-of-"
        # Any process tells what the input was; all had read alike. Not by `glob`, to
        # which brackets in a path mean something else.
        files = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
        others = [f for f in files if f.startswith(first) and f.endswith(_END)]
        text = atomic_file.read(os.path.join(folder, others[0])) if others else None
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
    """Decides with all processes what becomes of a position, and logs it.

    Args:
      record: the position's record; None for a position of an earlier version.
      now: the record of this process' input.
      path: path prefix of the checkpoint that the position belongs to.
      read: elements to leave out to go on after the position.
      changed_input: `RunConfig.changed_input`.
      peers: the processes that train in step; None for this process alone.

    Raises:
      ValueError: the position is another input's, and `changed_input` is "error".
    """
    change = record.compared(now) if record is not None else None
    mine = Verdict.SAME
    if change is not None and changed_input == "auto":
        mine = Verdict.ANEW if change.in_data else Verdict.SKIP
    elif change is not None:
        mine = Verdict[changed_input.upper()]
    # All processes take part, also where nothing differs: an exchange that one leaves
    # out hangs.
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
        raise RefusedValueError(
            f"{said} Write RunConfig(changed_input='anew') to read it from its "
            "beginning, or 'skip' to leave out as much as was read."
        )
    if verdict == Verdict.ANEW:
        logging.warning(
            "train | %s It begins anew%s",
            said,
            f". RunConfig(changed_input='skip') would leave out the {read} batches "
            "that were read, 'error' would stop here."
            if changed_input == "auto"
            else f", as changed_input={changed_input!r} has it.",
        )
    else:
        logging.warning(
            "train | %s It goes on after the %d batches that were read, by reading "
            "over them; they are the ones that were trained on if the order is the "
            "same in each run%s",
            said,
            read,
            ". RunConfig(changed_input='anew') would begin anew."
            if changed_input == "auto"
            else f", as changed_input={changed_input!r} has it.",
        )
    return verdict
