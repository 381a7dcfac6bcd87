"""Who trains in a model_dir: one at a time, as two would overwrite each other's files.
And who evaluates for one folder of events.

The claim is a small file that names its holder, who writes it again every ten seconds
and deletes it in the end. Where the holder was killed it is stale: on this machine as
soon as that process is gone, on another one when it was not renewed for a minute.

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

from pipeline import atomic_file, heartbeat


@dataclasses.dataclass(frozen=True)
class Role:
    """What only one process at a time does in a folder.

    Attributes:
      file: name of the claim.
      phase: as the log calls it.
      does: in words.
      risk: what two would do.
      instead: what else to choose.
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

# Tokens of what this process holds. A claim of its own that is not among them could not
# be removed, as where the disk became read-only.
_HELD: set[str] = set()
_POLL_SECS = 1.0
# How long after its write a claim is read again where nothing keeps two from writing
# at once: longer than from one's look at the file to its write.
_SETTLE_SECS = 2.0


class ClaimedError(RuntimeError):
    """Another training goes on in this model_dir."""


@dataclasses.dataclass(frozen=True)
class Claim:
    """What the file says.

    Attributes:
      token: of this claim, and no other.
      host: name of the holder's.
      machine: its boot and the process' namespace, as a host's name may be another
        container's too; empty where the system does not tell.
      pid: of the holder.
      started: when that process was, as its system counts, since a pid comes again.
      since: seconds since 1970, by the holder's clock, when it began.
      renewed_at: when it was written the last time, by the same clock.
    """

    token: str
    host: str
    machine: str
    pid: int
    started: str
    since: float
    renewed_at: float

    def __str__(self) -> str:
        """'process 7 on a (since 2026-01-31 12:00:00)'."""
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
    """Makes this the only one of a role in a model_dir while the block runs.

    A claim from another machine is watched until it is renewed, or expires.

    Args:
      model_dir: is made where it is not there; or another folder.
      role: what this one does.
      renew_secs: seconds between writes of the claim.
      expire_secs: seconds without one after which a claim of another machine is stale.

    Yields:
      A function that raises ClaimedError if the claim was taken over, which may happen
      to a process that stood still.

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
    """The claim of a training on a model_dir, None where there is none."""
    return _read(os.path.join(model_dir, FILE))


def _read(path: str) -> Claim | None:
    try:
        text = atomic_file.read(path)
        return Claim(**json.loads(text)) if text else None
    except (ValueError, TypeError):
        logging.warning("%s is damaged, and does not count.", path)
        return None


def _take(path: str, own: Claim, role: Role, expire_secs: float) -> None:
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
    # By way of a file of its own: two may write at once where nothing hinders them.
    part = f"{path}.{claim.token}"
    with tf.io.gfile.GFile(part, "w") as file:
        file.write(json.dumps(dataclasses.asdict(claim), indent=2) + "\n")
    tf.io.gfile.rename(part, path, overwrite=True)


@contextlib.contextmanager
def _alone(directory: str) -> Iterator[bool]:
    """Keeps others that take the claim out of the block, where the disk can do that."""
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
    if _is_of(found, own):
        return not _lives(found)
    probe = f"{path}.{own.token}"
    try:
        with tf.io.gfile.GFile(probe, "w") as file:
            file.write("now\n")
        age = heartbeat.age(path, now=probe)
    finally:
        atomic_file.remove(probe)
    return age is None or age >= expire_secs


def _is_of(found: Claim, own: Claim) -> bool:
    """Whether a claim's process can be looked up here."""
    return (found.host, found.machine) == (own.host, own.machine)


def _lives(found: Claim) -> bool:
    started = _started(found.pid)
    if started is None or (found.pid == os.getpid() and found.token not in _HELD):
        return False
    return started == found.started or "" in (started, found.started)


def _started(pid: int) -> str | None:
    """When a process was started; empty: not known; None: it does not run."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The name before, in brackets, may hold anything.
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    # A zombie waits for its parent to learn of its end.
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
