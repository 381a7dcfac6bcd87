"""Lets all tasks of a cluster meet before TensorFlow connects them.

TensorFlow waits for an absent task in silence, without end, and lets no Python run
meanwhile. So the tasks meet first, on the leader's own port, which is free until then.
A task that is missing is named here, and so is a port that another program uses.
"""

import contextlib
import socket
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence

from absl import logging

from pipeline.cluster.ports import PeerLostError, absent_error, bound, check_port, split
from pipeline.process.refusals import RefusedValueError

_HELLO = "gin-estimator"
_GO, _OTHER = "go\n", "other\n"
_REPORT_SECS = 10
_RETRY_SECS = 0.2


def meet(
    tasks: Mapping[str, str], index: int, *, timeout_secs: float
) -> dict[str, socket.socket]:
    """Waits until all tasks have called this.

    Args:
      tasks: addresses by name, such as `{"worker 0": "host0:2222"}`; the first leads.
      index: place of this process among the tasks.
      timeout_secs: seconds to wait for the others.

    Returns:
      Open connections, which the caller closes, by "worker 1 (host1:2222)": in the
      leader to all others, in each of the others to the leader.

    Raises:
      PeerLostError: a task did not come in time; names it.
      ValueError: this task's port is in use, or another task was started with another
        cluster.
    """
    if len(tasks) == 1:
        return {}
    deadline = time.monotonic() + timeout_secs
    name = list(tasks)[index]
    if index == 0:
        arrived = _lead(bound(name, tasks[name], listens=True), tasks, deadline)
    else:
        check_port(name, tasks[name])
        arrived = {0: _follow(tasks, index, deadline)}
    called = [f"{name} ({address})" for name, address in tasks.items()]
    return {called[number]: peer for number, peer in arrived.items()}


def _lead(
    listening: socket.socket, tasks: Mapping[str, str], deadline: float
) -> dict[int, socket.socket]:
    """Waits for a hello of each follower, then tells all of them to go."""
    names = list(tasks)
    arrived: dict[int, socket.socket] = {}
    reported_at = time.monotonic()
    with contextlib.ExitStack() as stack:
        stack.enter_context(listening)
        listening.settimeout(_RETRY_SECS)
        while len(arrived) < len(tasks) - 1:
            missing = [n for i, n in enumerate(names) if i and i not in arrived]
            try:
                reported_at = _report(tasks, missing, reported_at, deadline)
            except PeerLostError as error:
                _tell(arrived.values(), f"late {error}\n")
                raise
            with contextlib.suppress(TimeoutError):
                peer = stack.enter_context(listening.accept()[0])
                # A stranger that connects and says nothing holds up the others so long.
                peer.settimeout(_RETRY_SECS * 10)
                index = _greeted(peer, tasks)
                if index is not None:
                    arrived[index] = peer
        # Before the others go on: TensorFlow's server listens at this port next, and
        # they connect to it at once.
        listening.close()
        _tell(arrived.values(), _GO)
        stack.pop_all()
    return arrived


def _tell(peers: Iterable[socket.socket], line: str) -> None:
    for peer in peers:
        with contextlib.suppress(OSError):
            peer.sendall(line.encode())


def _greeted(peer: socket.socket, tasks: Mapping[str, str]) -> int | None:
    """Returns the index of the task that says hello; None for a stranger.

    Raises:
      ValueError: the task was started with another cluster.
    """
    try:
        words = peer.makefile().readline().split()
    except (OSError, UnicodeDecodeError):
        return None
    if len(words) != 3 or words[0] != _HELLO or not words[1].isdigit():
        return None
    index, cluster = int(words[1]), words[2]
    if cluster != _fingerprint(tasks):
        _tell([peer], _OTHER)
        raise RefusedValueError(
            f"a task that calls itself number {index} was started with another "
            f"cluster than this one's {dict(tasks)}: TF_CONFIG's \"cluster\" must be "
            "the same in each process."
        )
    return index


def _follow(tasks: Mapping[str, str], index: int, deadline: float) -> socket.socket:
    """Says hello to the leader until it answers that all may go on.

    Each try is a new connection, as the leader may start later than this task.
    """
    leader = next(iter(tasks))
    hello = f"{_HELLO} {index} {_fingerprint(tasks)}\n"
    reported_at = time.monotonic()
    while True:
        reported_at = _report(tasks, [leader], reported_at, deadline)
        answer, link = _asked(tasks[leader], hello, deadline)
        if answer == _GO:
            logging.info("cluster | all %d tasks are there", len(tasks))
            return link
        if answer.startswith("late "):
            raise PeerLostError(answer.removeprefix("late ").strip())
        if answer == _OTHER:
            raise RefusedValueError(
                f"{leader} at {tasks[leader]} was started with another cluster than "
                f"this task's {dict(tasks)}: TF_CONFIG's \"cluster\" must be the same "
                "in each process."
            )
        time.sleep(_RETRY_SECS)


def _asked(
    address: str, hello: str, deadline: float
) -> tuple[str, socket.socket | None]:
    """Says hello to the leader once.

    Returns:
      The leader's answer; empty where nothing listens there, or another program. And
      the connection, where the answer is that all may go on; else it is closed.
    """
    host, port = split(address)
    with contextlib.ExitStack() as stack:
        try:
            leader = stack.enter_context(socket.create_connection((host, port), 1))
            leader.settimeout(max(0.1, deadline - time.monotonic()))
            leader.sendall(hello.encode())
            answer = _line(leader)
        except (OSError, UnicodeDecodeError):
            return "", None
        if answer == _GO:
            stack.pop_all()
            return answer, leader
        return answer, None


def _line(peer: socket.socket) -> str:
    """Reads one line, and nothing of what follows it.

    Byte by byte: bytes that a buffer has read would be missing from the connection,
    which others go on to use.
    """
    line = b""
    while not line.endswith(b"\n") and len(line) < 4096:
        byte = peer.recv(1)
        if not byte:
            break
        line += byte
    return line.decode()


def _report(
    tasks: Mapping[str, str],
    missing: Sequence[str],
    reported_at: float,
    deadline: float,
) -> float:
    """Logs every ten seconds which tasks are missing.

    Returns:
      The time of the last report, in seconds.

    Raises:
      PeerLostError: the time is over.
    """
    now = time.monotonic()
    text = ", ".join(f"{name} ({tasks[name]})" for name in missing)
    if now > deadline:
        raise absent_error(text, setting="multi_worker.start_timeout_secs")
    if now - reported_at < _REPORT_SECS:
        return reported_at
    logging.info("cluster | waiting for %s, %.0f s more", text, deadline - now)
    return now


def _fingerprint(tasks: Mapping[str, str]) -> str:
    """Returns a short text by which tasks tell that they have the same cluster."""
    return f"{zlib.crc32(repr(sorted(tasks.items())).encode()):08x}"
