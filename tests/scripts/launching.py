"""The launcher, which forks its tasks where `pipeline.launch` starts a Python for each.

    python -m tests.scripts.launching --workers=2 -- --gin_file=gin/digits.gin ...

The first line of each task has its process and its TF_CONFIG, which nobody else would
see of a process that was forked.
"""

import os
import signal
import sys

from pipeline import launch
from pipeline.launcher import process_group
from tests import forked

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Task:
    """A task, with those parts of a `subprocess.Popen` that the launcher uses."""

    def __init__(self, command, environ, group):
        self._work = command[1:], environ
        self._group = group
        self.returncode = None
        pipes = os.pipe(), os.pipe()
        self.stdout, self.stderr = (os.fdopen(end, "rb", 0) for end, _ in pipes)
        self._ends = [end for _, end in pipes]
        self.pid = forked.fork(self._run)
        os.setpgid(self.pid, group)
        for end in self._ends:
            os.close(end)

    def poll(self):
        self._wait(os.WNOHANG)
        return self.returncode

    def wait(self):
        self._wait(0)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def _wait(self, how):
        if self.returncode is None and (found := os.waitpid(self.pid, how))[0]:
            self.returncode = os.waitstatus_to_exitcode(found[1])

    def _run(self):
        """Makes the child what a Python would be that was just started."""
        os.setpgid(0, self._group)
        for number in _SIGNALS:
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, end in enumerate((os.open(os.devnull, os.O_RDONLY), *self._ends)):
            os.dup2(end, number)
        # The guard's pipe too, at whose end it kills all.
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        command, environ = self._work
        sys.stderr.write(f"process {os.getpid()} has {environ['TF_CONFIG']}\n")
        forked.run(command, environ)


def start(self, command, *, environ):
    """Stands for `ProcessGroup.start`."""
    process = Task(command, environ, self._guard.pid)
    self._processes.append(process)
    return process


if __name__ == "__main__":
    process_group.ProcessGroup.start = start
    sys.exit(launch.main(["launch", *sys.argv[1:]]))
