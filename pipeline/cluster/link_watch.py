"""Watches the other tasks while TensorFlow connects them and lets no Python run.

TensorFlow holds Python's lock until all tasks are connected. If one of them dies in
that time, the others wait for it, and nothing in them can end that. So each task starts
a process, see `watcher`, which keeps connections to its peers' processes, and ends the
task with 75 where a peer is lost.

    with link_watch.watched(sockets, silence_secs=10, deadline_secs=600):
        connect()
"""

import contextlib
import os
import selectors
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from typing import NoReturn

from pipeline.cluster import watcher
from pipeline.process import exit_codes

# Pause between two words to each peer.
_BEAT_SECS = 0.5
# Time until a peer's process has begun to watch, on a busy machine: its silence does
# not count before.
_START_SECS = 20.0
# The words: a task is there; is done; knows of a lost peer. The last one is said by a
# task to the process that watches it: it is connected.
_HERE, _BYE, _LOST, _DONE = b"here\n", b"bye\n", b"lost ", b"done\n"


@contextlib.contextmanager
def watched(
    links: Mapping[str, socket.socket], *, silence_secs: float, deadline_secs: float
) -> Iterator[None]:
    """Ends this process with 75 where a peer is lost while the block runs.

    Args:
      links: connections to the peers by name. Each peer calls this, too. The
        connections are closed here, and go on in the process that watches.
      silence_secs: seconds after which a peer that is stopped counts as lost.
      deadline_secs: seconds after which this process is ended in any case.
    """
    numbers = {name: link.fileno() for name, link in links.items()}
    settings = {
        "links": numbers,
        "silence_secs": silence_secs,
        "start_secs": _START_SECS,
        "deadline_secs": deadline_secs,
    }
    with watcher.start(
        __name__, settings, code=exit_codes.AGAIN, links=list(numbers.values())
    ) as watching:
        for link in links.values():
            link.close()
        yield
        # After an error this word is not said: the peers learn that this task failed.
        with contextlib.suppress(OSError):
            watching.stdin.write(_DONE)


def main() -> None:
    """Watches; called in a process of its own."""
    _Watch(watcher.settings()).run()


class _Watch:
    """The process that watches.

    twice a second:
        say to each peer that the task is there, unless it is stopped
        where a peer has gone without a word, or is silent:
            tell the other peers; end the task
    until the task is done, which each peer is told, or has ended
    """

    def __init__(self, settings: Mapping) -> None:
        """Takes the connections over.

        Args:
          settings: see `watched`.
        """
        self._task = watcher.Parent(settings)
        self._silence_secs = settings["silence_secs"]
        self._deadline = time.monotonic() + settings["deadline_secs"]
        self._deadline_secs = settings["deadline_secs"]
        self._links = {
            name: socket.socket(fileno=number)
            for name, number in settings["links"].items()
        }
        self._received = dict.fromkeys(self._links, b"")
        first = time.monotonic() + settings["start_secs"]
        self._heard = dict.fromkeys(self._links, first)
        self._selector = selectors.DefaultSelector()
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ, None)
        for name, link in self._links.items():
            link.settimeout(_BEAT_SECS)
            self._selector.register(link, selectors.EVENT_READ, name)

    def run(self) -> None:
        """Watches until the task is connected, or has ended."""
        spoke = -_BEAT_SECS
        while True:
            if time.monotonic() - spoke >= _BEAT_SECS and not self._task.is_stopped:
                spoke = time.monotonic()
                self._tell(_HERE)
            for key, _ in self._selector.select(_BEAT_SECS):
                if key.data is None:
                    # The task's own pipe: a word from it, or its end.
                    if os.read(key.fd, len(_DONE)) == _DONE:
                        self._tell(_BYE)
                    return
                self._hear(key.data)
            self._check()

    def _tell(self, line: bytes) -> None:
        for link in self._links.values():
            # A peer that is gone is noticed where its connection is read.
            with contextlib.suppress(OSError):
                link.sendall(line)

    def _hear(self, name: str) -> None:
        """Reads what a peer says, which may be its end."""
        try:
            data = self._links[name].recv(4096)
        except OSError:
            data = b""
        self._heard[name] = time.monotonic()
        *lines, self._received[name] = (self._received[name] + data).split(b"\n")
        for line in lines:
            if line.startswith(_LOST):
                self._task.end(line.removeprefix(_LOST).decode())
        if _BYE.strip() in lines:
            self._leave(name)
        elif not data:
            self._lose(name, "it ended")

    def _leave(self, name: str) -> None:
        """Watches a peer no more, for it is connected."""
        self._selector.unregister(self._links[name])
        self._links.pop(name).close()

    def _check(self) -> None:
        """Ends the task where its time is over, or a peer is silent."""
        now = time.monotonic()
        if now > self._deadline:
            self._task.end(
                f"TensorFlow did not connect the tasks in {self._deadline_secs:g} s: "
                "one of them is stuck, or a host does not reach another one's port."
            )
        for name in self._links:
            if now - self._heard[name] > self._silence_secs:
                self._lose(name, f"it did not answer for {self._silence_secs:g} s")

    def _lose(self, name: str, why: str) -> NoReturn:
        """Ends the task, and tells its peers which one was lost first."""
        text = (
            f"{name} of the cluster is lost: {why}, while TensorFlow connected the "
            "tasks. Its own log says why. Start all tasks again: they go on from the "
            "last checkpoint."
        )
        self._tell(_LOST + text.encode() + b"\n")
        self._task.end(text)
