"""The port of a task: its address, whether it is free, and whether a task answers."""

import errno
import socket

from pipeline.process.refusals import Refusal, RefusedValueError


class PeerLostError(Refusal, RuntimeError):
    """Another task of the cluster is not there, or not there any more."""


def check_port(name: str, address: str) -> None:
    """Checks that TensorFlow can listen on the port of this process' task, by name."""
    bound(name, address).close()


def bound(name: str, address: str, *, listens: bool = False) -> socket.socket:
    """Returns a socket on a task's port, on all of this host's interfaces.

    Args:
      name: name of this process' task, 'worker 0'.
      address: address of this task, 'host:2222'.
      listens: whether others may connect from now on.

    Raises:
      ValueError: the port is in use on this host.
    """
    _, port = split(address)
    taken = socket.socket()
    # Without this, the port of a process that has just ended would count as in use.
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
      source: where the address was given, for errors.
      example: address to write instead, for errors.

    Raises:
      ValueError: the address has no port, or one that no host can have.
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
    """Connects to `host:port`, and closes the connection; else an OSError."""
    socket.create_connection(split(address), timeout=timeout_secs).close()


def absent_error(tasks: str, *, setting: str) -> PeerLostError:
    """Returns the error to raise for tasks that did not start in time.

    Args:
      tasks: names and addresses of the tasks, as the message shows them.
      setting: name of the argument that says how long to wait,
        "multi_worker.start_timeout_secs".
    """
    return PeerLostError(
        f"{tasks} did not start in time. Look at its log; is its address right in "
        f"TF_CONFIG, can this host reach it? {setting} says how long to wait."
    )
