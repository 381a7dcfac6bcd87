"""The port of a task: its address, whether it is free, and who answers there."""

import errno
import socket

from pipeline.process.refusals import Refusal, RefusedValueError


class PeerLostError(Refusal, RuntimeError):
    """Another task of the cluster is not there, or not any more."""


def check_port(name: str, address: str) -> None:
    """Sees to it that TensorFlow can listen where it will.

    Args:
      name: of this process' task.
      address: its own.

    Raises:
      ValueError: the port is in use here.
    """
    bound(name, address).close()


def bound(name: str, address: str, *, listens: bool = False) -> socket.socket:
    """Returns a socket on a task's port, on all of this host's interfaces.

    Args:
      name: of this process' task.
      address: its own.
      listens: whether others may connect from now on.

    Raises:
      ValueError: the port is in use here.
    """
    _, port = split(address)
    taken = socket.socket()
    # A port of a process that has just ended is free.
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind(("", port))
        if listens:
            taken.listen()
    except OSError as error:
        taken.close()
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        raise RefusedValueError(
            f"TF_CONFIG gives {name} (this process) the address {address}, and port "
            f"{port} is in use here ({error.strerror}): end what runs there, or "
            'choose another port in "cluster".'
        ) from error
    return taken


def split(
    address: str, *, source: str = "TF_CONFIG", example: str = "host:2222"
) -> tuple[str, int]:
    """Returns `("host", 2222)` of an address.

    Args:
      address: "host:2222", or "grpc://host:2222".
      source: who gave it, for errors.
      example: what to write instead.

    Raises:
      ValueError: it has no port, or one that no host has.
    """
    host, _, port = address.removeprefix("grpc://").rpartition(":")
    if not host or not (port.isascii() and port.isdigit()):
        raise RefusedValueError(
            f"{source}: the address {address!r} has no port: write {example}."
        )
    if len(port) > 5 or not 0 < int(port) < 1 << 16:
        raise RefusedValueError(
            f"{source}: the address {address!r} has the port {port}: write one from 1 "
            "to 65535."
        )
    return host.strip("[]"), int(port)


def answers(address: str) -> bool:
    """Whether something listens at `host:port`."""
    try:
        reach(address, timeout_secs=1)
    except OSError:
        return False
    return True


def reach(address: str, *, timeout_secs: float) -> None:
    """Connects to `host:port`, and closes the connection at once.

    Args:
      address: of a task.
      timeout_secs: how long to wait for a reply.

    Raises:
      OSError: nothing listens there, or nothing that this host reaches.
    """
    socket.create_connection(split(address), timeout=timeout_secs).close()


def absent_error(tasks: str, *, setting: str) -> PeerLostError:
    """What to raise for tasks that did not start in time.

    Args:
      tasks: their names and addresses.
      setting: what says how long to wait, as "multi_worker.start_timeout_secs".
    """
    return PeerLostError(
        f"{tasks} did not start in time. Look at its log; is its address right in "
        f"TF_CONFIG, can this host reach it? {setting} says how long to wait."
    )
