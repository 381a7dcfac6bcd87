"""Starts Python programs by forking a process that has imported TensorFlow: 1 s instead of 5.

Reads requests as JSON lines, {"argv", "env", "cwd", "stdout", "stderr"}. Writes {"pid"} after each
start and {"pid", "code"} after each end; a negative code is the number of a signal.
"""

import json
import os
import runpy
import select
import signal
import sys

import numpy as np
import tensorflow  # noqa: F401

import gin_estimator as ge

for name in ge.__all__:
    getattr(ge, name)  # Imports the module.


def serve():
    """Returns a request, in the child that is to run it; ends at the end of stdin."""
    children = set()
    buffer = b""
    while True:
        readable, _, _ = select.select([0], [], [], 0.02)
        if readable:
            data = os.read(0, 65536)
            if not data:
                for pid in children:
                    os.kill(pid, signal.SIGKILL)
                os._exit(0)
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                pid = os.fork()
                if not pid:
                    return json.loads(line)
                children.add(pid)
                write(pid=pid)
        for pid in list(children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                children.remove(pid)
                write(pid=pid, code=os.waitstatus_to_exitcode(status))


def write(**reply):
    os.write(1, f"{json.dumps(reply)}\n".encode())


def become(request):
    """Runs a program in this process as `python ARGV...` would."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for number, path in ((1, request["stdout"]), (2, request["stderr"])):
        descriptor = os.open(path, flags)
        os.dup2(descriptor, number)
        os.close(descriptor)
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.dup2(descriptor, 0)
    os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    np.random.seed()
    # The tests may run under nohup, which ignores SIGHUP, or in the background of a shell.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    first, *rest = request["argv"]
    if first == "-m":
        sys.path[0] = os.getcwd()
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        # Programs may import helpers of the tests, from the folder of this file.
        sys.path.insert(0, os.path.dirname(os.path.abspath(first)))
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    become(serve())
