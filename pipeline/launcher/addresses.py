# SPDX-License-Identifier: Apache-2.0
"""Addresses of a cluster on this machine, and the TF_CONFIG of each task."""

import contextlib
import json
import socket
from collections.abc import Mapping, Sequence


def free_addresses(*, workers: int, ps: int = 0, evaluator: bool = False) -> dict[str, list[str]]:
    """Returns free addresses by job.

    Args:
      workers: number of workers.
      ps: number of parameter servers; with any there is a chief as well.
      evaluator: whether there is an evaluator. No task connects to it; from its address the
        others know that they need not evaluate.
    """
    sizes = {"chief": int(ps > 0), "worker": workers, "ps": ps, "evaluator": int(evaluator)}
    with contextlib.ExitStack() as stack:
        return {
            job: [f"127.0.0.1:{_free_port(stack)}" for _ in range(size)]
            for job, size in sizes.items()
            if size
        }


def tf_config(jobs: Mapping[str, Sequence[str]], job: str, index: int) -> str:
    """Returns the TF_CONFIG of one task, as JSON."""
    return json.dumps({"cluster": jobs, "task": {"type": job, "index": index}})


def _free_port(stack: contextlib.ExitStack) -> int:
    """Returns a port that the system gives to no other program for about a minute.

    The task listens on it seconds later. A connection that its server has closed (TIME_WAIT)
    keeps the system from choosing the port, but not a server from asking for its number.

    Args:
      stack: keeps the port open until all are chosen, so that they differ.
    """
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    port = server.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)):
        server.accept()[0].close()
    return port
