"""Lets one process at a time train in a model_dir, or evaluate into a folder.

Two trainings would overwrite each other's checkpoints, two evaluators of one name each
other's events. A claim is a small file that names its holder. The holder writes it
again every ten seconds and deletes it in the end. The claim of a holder that was killed
is stale: on the holder's machine as soon as the process is gone, on any other once the
file was not renewed for a minute.

    with claim.held("runs/a") as check:
        ...
        check()  # Before something is overwritten.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator

import tensorflow as tf
from absl import logging

from pipeline.model_dir import atomic_file, heartbeat
from pipeline.process.refusals import Refusal, RefusedTypeError, RefusedValueError


@dataclasses.dataclass(frozen=True)
class Role:
    """Something that only one process at a time does in a folder.

    Attributes:
      file: name of the claim in the folder.
      phase: word that begins the role's lines in the log.
      does: words after "process 7 on a" in an error.
      risk: words after "two would" in an error.
      instead: words after "end it, or" in an error: what else to choose.
    """

    file: str
    phase: str
    does: str
    risk: str
    instead: str


TRAINING = Role(
    "training.claim",
    "train",
    "trains there",
    "overwrite each other's checkpoints",
    "choose another model_dir",
)
EVALUATION = Role(
    "evaluator.claim",
    "eval",
    "evaluates for it",
    "export and record past each other",
    "give this evaluation a name of its own, EvalSpec(name='test')",
)
FILE = TRAINING.file
RENEW_SECS = 10.0
EXPIRE_SECS = 60.0
# Seconds since 1970 until the year 5138; beyond, systems fail to tell the date.
_LAST_SECS = 1e11

# Tokens of the claims that this process holds. A file that names this process by
# another token is left from an earlier claim, which could not be removed: the disk was
# read-only, say.
_HELD: set[str] = set()
_POLL_SECS = 1.0
# Without a lock, two processes may find no claim and write one each. Each reads the
# file again after so many seconds, which is longer than the other takes from its look
# at the file to its write: both see the same winner.
_SETTLE_SECS = 2.0


class ClaimedError(Refusal, RuntimeError):
    """A folder that another process trains in, or evaluates for, by its claim."""


@dataclasses.dataclass(frozen=True)
class Claim:
    """The content of a claim's file.

    Attributes:
      token: random name of this claim, and of no other.
      host: name of the holder's host.
      machine: identity of the host's boot and of the holder's process namespace, as
        two containers may have one host name; empty where the system does not tell.
      pid: process id of the holder.
      started: start time of that process, in its system's count, as a process id is
        used again; empty where the system does not tell.
      since: beginning of the claim, in seconds since 1970, by the holder's clock.
      renewed_at: last write of the file, by the same clock.
    """

    token: str
    host: str
    machine: str
    pid: int
    started: str
    since: float
    renewed_at: float

    def __str__(self) -> str:
        """Returns 'process 7 on a (since 2026-01-31 12:00:00)'."""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.pid} on {self.host} (since {since})"


@contextlib.contextmanager
def held(
    model_dir: str,
    *,
    role: Role = TRAINING,
    renew_secs: float = RENEW_SECS,
    expire_secs: float = EXPIRE_SECS,
) -> Iterator[Callable[[], None]]:
    """Holds the claim of a role on a folder while the block runs.

    Waits, where a process of another machine has the claim, until that process renews
    it or the claim expires.

    Args:
      model_dir: folder of the claim, which is made where it is not there.
      role: what the caller is about to do in the folder.
      renew_secs: seconds between two writes of the claim.
      expire_secs: seconds without a write after which the claim of another machine is
        stale.

    Yields:
      A function of no arguments that raises ClaimedError where another process has
      taken the claim over, as may happen to a process that stood still.

    Raises:
      ClaimedError: names the holder.
    """
    path = os.path.join(model_dir, role.file)
    own = _own()
    tf.io.gfile.makedirs(model_dir)
    _HELD.add(own.token)
    try:
        _take(path, own, role, expire_secs)
    except BaseException:
        _HELD.discard(own.token)
        raise

    def taken_over() -> Claim | None:
        found = _read(path)
        return found if found is not None and found.token != own.token else None

    def check() -> None:
        if holder := taken_over():
            raise ClaimedError(
                f"{holder} took over {model_dir}: this process seemed dead, as it did "
                f"not renew {path} for {expire_secs:g} s. It ends, and writes nothing "
                "more there."
            )

    def renew() -> None:
        if not taken_over():
            _write(path, dataclasses.replace(own, renewed_at=time.time()))

    try:
        with heartbeat.renewed(path, renew, secs=renew_secs):
            yield check
    finally:
        _HELD.discard(own.token)
        _release(path, own)


def read(model_dir: str) -> Claim | None:
    """Returns the claim of a training on a model_dir; None where there is none."""
    return _read(os.path.join(model_dir, FILE))


def _read(path: str) -> Claim | None:
    try:
        text = atomic_file.read(path)
        return _parsed(text) if text else None
    except (ValueError, TypeError, RecursionError):
        logging.warning("%s is damaged, and does not count.", path)
        return None


def _parsed(text: str) -> Claim:
    """Returns the claim that a file's text is; a TypeError or ValueError if it is none.

    Its values are checked here, as the system's calls fail on others in their own ways.
    """
    found = Claim(**json.loads(text))
    for field in dataclasses.fields(Claim):
        value = getattr(found, field.name)
        if type(value) is not field.type and (type(value), field.type) != (int, float):
            raise RefusedTypeError(f"{field.name} is {value!r}")
    if not (0 < found.pid < 2**31 and 0 <= found.since < _LAST_SECS):
        raise RefusedValueError(f"pid is {found.pid}, since is {found.since}")
    return found


def _take(path: str, own: Claim, role: Role, expire_secs: float) -> None:
    """Writes the claim once there is none, or its holder is known to be dead.

    A holder on another machine is watched: it is alive as soon as the file changes, and
    dead once the file is old.

    Raises:
      ClaimedError: the holder is alive; names it.
    """
    seen: Claim | None = None
    while True:
        with _alone(os.path.dirname(path)) as alone:
            found = _read(path)
            if found is None or _is_stale(found, path, own, expire_secs):
                if found is not None:
                    logging.warning("%s | %s died: taking over.", role.phase, found)
                _write(path, own)
                break
        renewed = seen is not None and found != seen
        if renewed or _is_of(found, own):
            raise _refusal(path, found, own, role)
        if seen is None:
            logging.info("%s | waiting to see whether %s is alive.", role.phase, found)
            seen = found
        time.sleep(_POLL_SECS)
    if not alone:
        time.sleep(_SETTLE_SECS)
        found = _read(path)
        if found is not None and found.token != own.token:
            raise _refusal(path, found, own, role)


def _release(path: str, own: Claim) -> None:
    try:
        found = _read(path)
        if found is not None and found.token == own.token:
            atomic_file.remove(path)
    except tf.errors.OpError as error:
        logging.warning("cannot remove %s: %s", path, error)


def _write(path: str, claim: Claim) -> None:
    # `atomic_file` is for one writer at a time. Without a lock two may write at once:
    # each has a temporary file of its own, named by its token.
    part = f"{path}.{claim.token}"
    with tf.io.gfile.GFile(part, "w") as file:
        file.write(json.dumps(dataclasses.asdict(claim), indent=2) + "\n")
    tf.io.gfile.rename(part, path, overwrite=True)


@contextlib.contextmanager
def _alone(directory: str) -> Iterator[bool]:
    """Locks a folder against other takers of a claim; yields whether it could."""
    try:
        handle = os.open(directory, os.O_RDONLY)
    except OSError:  # Not a local path.
        yield False
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            locked = True
        except OSError:
            locked = False
        yield locked
    finally:
        os.close(handle)


def _is_stale(found: Claim, path: str, own: Claim, expire_secs: float) -> bool:
    """Whether a claim's holder is dead: its process is gone, or the file is old."""
    if _is_of(found, own):
        return not _lives(found)
    # Written now, so that both times are the file system's.
    probe = f"{path}.{own.token}"
    try:
        with tf.io.gfile.GFile(probe, "w") as file:
            file.write("now\n")
        age = heartbeat.age(path, now=probe)
    finally:
        atomic_file.remove(probe)
    return age is None or age >= expire_secs


def _is_of(found: Claim, own: Claim) -> bool:
    """Whether the holder's process id means something on this machine."""
    return (found.host, found.machine) == (own.host, own.machine)


def _lives(found: Claim) -> bool:
    """Whether the holder, a process of this machine, still runs."""
    started = _started(found.pid)
    if started is None or (found.pid == os.getpid() and found.token not in _HELD):
        return False
    return started == found.started or "" in (started, found.started)


def _started(pid: int) -> str | None:
    """Returns a process' start time; empty where unknown; None where none runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:  # It runs, as another user.
        pass
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The second field, the name in brackets, may hold spaces and brackets.
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    # A zombie has ended, and only waits for its parent to learn of it. Field 22 of the
    # file, the 20th after the name, is the start time.
    return None if fields[0] in ("Z", "X") else fields[19]


def _own() -> Claim:
    now = time.time()
    return Claim(
        token=uuid.uuid4().hex,
        host=socket.gethostname(),
        machine=_machine(),
        pid=os.getpid(),
        started=_started(os.getpid()) or "",
        since=now,
        renewed_at=now,
    )


def _machine() -> str:
    """Returns the identity of this boot and process namespace; empty where unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _refusal(path: str, found: Claim, own: Claim, role: Role) -> ClaimedError:
    model_dir = os.path.dirname(path)
    if role == TRAINING and _is_of(found, own) and found.pid == own.pid:
        return ClaimedError(
            f"model_dir {model_dir} is in use: this {found} trains there already, in "
            "another call of Estimator.train. Wait for its end, or give each Estimator "
            "a model_dir of its own."
        )
    return ClaimedError(
        f"{'model_dir ' if role == TRAINING else ''}{model_dir} is in use: {found} "
        f"{role.does}, and two would {role.risk}. Wait for its end, end it, or "
        f"{role.instead}. If you know that it does not run, delete {path}."
    )
