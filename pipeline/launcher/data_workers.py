# SPDX-License-Identifier: Apache-2.0
"""Processes that make the training batches: a dispatcher and workers of TensorFlow's tf.data."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

from .addresses import free_addresses
from .group import ProcessGroup
from .processes import log

_POLL_SECS = 0.2
_DISPATCHER = "the dispatcher of the data workers"
# A server ignores the signals of a terminal or scheduler: the training still reads and saves.
_SERVER = """
import signal, sys, tensorflow as tf
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, signal.SIG_IGN)
service, dispatcher, own = tf.data.experimental.service, *sys.argv[1:3]
port = int(own.rpartition(":")[2])
if own == dispatcher:
    server = service.DispatchServer(service.DispatcherConfig(port=port))
else:
    server = service.WorkerServer(service.WorkerConfig(dispatcher, own, port))
server.join()
"""


@contextlib.contextmanager
def running(number: int) -> Iterator[dict[str, str]]:
    """Yields the environment variable that makes a training read from `number` data workers.

    A data worker that ends is started again. They all end with the block.
    """
    if not number:
        yield {}
        return
    dispatcher, *workers = free_addresses(workers=number + 1)["worker"]
    names = {dispatcher: _DISPATCHER}
    names |= {each: f"data worker {index}" for index, each in enumerate(workers)}
    ended = threading.Event()
    with ProcessGroup() as group:

        def start(own: str) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-c", _SERVER, dispatcher, own]
            quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
            return group.start(command, {**os.environ, **quiet}, output=sys.stderr.buffer)

        def watch() -> None:
            while not ended.wait(_POLL_SECS):
                for own, process in servers.items():
                    if process.poll() is None:
                        continue
                    text = f"{names[own]} ended with {process.returncode}"
                    if own == dispatcher:
                        log(f"{text}: the training is asked to end")
                        os.kill(os.getpid(), signal.SIGTERM)
                        return
                    log(
                        f"{text}: starting it again; examples that it had taken are not trained on "
                        "in this pass"
                    )
                    servers[own] = start(own)

        servers = {own: start(own) for own in names}
        thread = threading.Thread(target=watch, name="data-workers", daemon=True)
        thread.start()
        try:
            yield {"GIN_ESTIMATOR_DATA_SERVICE": f"grpc://{dispatcher}"}
        finally:
            ended.set()
            thread.join()
