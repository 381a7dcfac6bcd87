"""Starts Python programs fast: forks them from a server that has imported TensorFlow.

    program = forked.Program(["-m", "pipeline.main", "--list"], environ, log)
    program.wait(60)
    assert program.returncode == 0

The server has imported TensorFlow and run nothing of it, so that a forked program is a
process like any other, and may be killed. The import of four seconds is made once.
"""

import gc
import multiprocessing
import os
import pathlib
import runpy
import signal
import sys
import traceback

import tensorflow as tf

ROOT = pathlib.Path(__file__).parent.parent

# One server a process: it keeps the modules that the first caller has it import.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        *("tensorflow", "pipeline.command.command_job", "inputs", "models"),
        "sklearn.datasets",
        *("tests.faults", "tests.shown", "tests.steered", "tests.tabled_training"),
    ]
)


class Program:
    """A script or a module that runs, with the methods of a `subprocess.Popen`.

    Args:
      command: path of a script, or "-m" and the name of a module, then arguments.
      environ: environment variables of the program.
      log: file that gets stdout and stderr.
      leads_group: whether the program and the processes that it starts have a process
        group of their own.
    """

    def __init__(self, command, environ, log, *, leads_group=False):
        # Who reads it need not wait for the process to open it.
        pathlib.Path(log).touch()
        self._process = SERVER.Process(
            target=_run, args=(command, environ, str(log), leads_group)
        )
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self.returncode

    def wait(self, timeout=None):
        self._process.join(timeout)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def finished(command, folder, timeout=120):
    """Runs a program to its end; returns its exit code and what it wrote.

    Args:
      command: as for `Program`.
      folder: folder for its log.
      timeout: seconds after which it is killed.
    """
    log = folder / "log"
    program = Program(command, dict(os.environ), log)
    try:
        program.wait(timeout)
    finally:
        program.kill()
    return program.wait(), log.read_text(encoding="utf-8")


def fork(work):
    """Forks this process, which has imported TensorFlow and run nothing of it.

    Args:
      work: function without arguments that the child calls; it ends with the code of
        the SystemExit that this raises, or with 0, or 1 for another exception.

    Returns:
      The child's pid.
    """
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        settle()
        work()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Without the parent's atexit functions.
        os._exit(code)


def settle():
    """Has this process search for garbage seldom, and not in what was imported.

    A search looks at each object of TensorFlow's modules, and so takes a copy of the
    memory that a forked process shares with its parent.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def compile_fast():
    """Has TensorFlow not optimize the graphs of this process: they run for few steps.

    That would take a fifth of a short training's processor time. Whole programs, as in
    `launch_training_test`, run as those of users do.
    """
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def run(command, environ):
    """Runs a command, see `Program`, in this process, with another environment."""
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(ROOT)
    if command[0] == "-m":
        sys.argv = command[1:]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(command)
        runpy.run_path(command[0], run_name="__main__")


def _run(command, environ, log, leads_group):
    settle()
    if leads_group:
        os.setsid()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(file, stream.fileno())
        stream.reconfigure(line_buffering=True)
    run(command, environ)
