# SPDX-License-Identifier: Apache-2.0
"""Trains on a TPU of Google Cloud by `gcloud`, and deletes the machine."""

import argparse
import collections
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence

from ..errors import EXIT_REFUSED, EXIT_RESTART
from .flags import COMMAND, TPU_IMAGES
from .processes import caught_signals, log

# It requires the libtpu that it was built with; later releases take the newest.
_VERSION = "2.19.1"
_REMOTE = 100  # Added to exit codes of the machine: lower ones, and 255, are those of gcloud.
_POLL_SECS = 10.0
_ATTEMPTS = 30  # To reach the machine, and to delete it.


def commands(
    options: argparse.Namespace, arguments: Sequence[str], archive: str = "code.tar.gz"
) -> dict[str, list[str]]:
    """Returns the commands by name, in order.

    Args:
      options: the launcher's flags.
      arguments: flags of the training.
      archive: local path for the copied files.
    """
    name, tpu = options.name, options.tpu
    where = [f"--{n}={value}" for n in ("zone", "project") if (value := getattr(options, n))]

    def gcloud(*words: str) -> list[str]:
        return ["gcloud", "compute", "tpus", *words, *where, "--quiet"]

    def ssh(command: str) -> list[str]:
        wrapped = f"(set -e; {command}); exit $(({_REMOTE} + $?))"
        return gcloud("tpu-vm", "ssh", name, f"--command={wrapped}")

    node = [f"--node-id={name}", f"--accelerator-type={tpu}", *(["--spot"] if options.spot else [])]
    image = f"--runtime-version={TPU_IMAGES[tpu.partition('-')[0]]}"
    pip, package = "../env/bin/pip install --quiet", f"tensorflow-tpu=={_VERSION}"
    training = (
        "export PYTHONUNBUFFERED=1 NEXT_PLUGGABLE_DEVICE_USE_C_API=true "
        "TF_PLUGGABLE_DEVICE_LIBRARY_PATH=$(../env/bin/python -c "
        '"import libtpu; print(libtpu.get_library_path())"); '
        f"../env/bin/{COMMAND} {shlex.join(arguments)} & echo $! > ../pid; "
        "wait $!; echo $? > ../exit_code"
    )
    return {
        "create": gcloud("queued-resources", "create", name, *node, image),
        "state": gcloud("queued-resources", "describe", name, "--format=value(state.state)"),
        "pack": ["bash", "-c", f"git ls-files -z | tar --null -T - -czf {shlex.quote(archive)}"],
        "copy": gcloud("tpu-vm", "scp", archive, f"{name}:code.tar.gz"),
        "install": ssh(
            "rm -rf code env; mkdir code; tar -xzf code.tar.gz -C code; "
            "python3 -m pip install --quiet --user uv; "
            "~/.local/bin/uv venv --quiet --seed --python 3.11 env; cd code; "
            # Both packages have the folder tensorflow/: the last one that is written is used.
            f"{pip} tensorflow=={_VERSION} {options.install}; {pip} {package}; "
            f"{pip} --force-reinstall --no-deps {package}"
        ),
        "train": ssh(  # Detached, it continues when the connection is lost.
            "rm -f exit_code pid log; cd code; "
            f"setsid bash -c {shlex.quote(training)} > ../log 2>&1 < /dev/null &"
        ),
        "follow": ssh(
            "until [ -s pid ]; do sleep 0.5; done; tail -n 100 -s 0.2 -F --pid=$(cat pid) log; "
            # There is no code if the machine was started again.
            f"[ -s exit_code ] || sleep 5; exit $(cat exit_code || echo {EXIT_RESTART})"
        ),
        "save": ssh("kill -TERM $(cat pid)"),
        "delete": gcloud("queued-resources", "delete", name, "--force"),
    }


def run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Creates the machine, trains, and deletes the machine in any case.

    Args:
      options: the launcher's flags.
      arguments: flags of the training.

    Returns:
      The exit code of the training; 1 if the machine failed, or was not deleted; 2 if the name is
      in use; 128 + n for signal n when nothing was saved.
    """
    with caught_signals() as received, tempfile.TemporaryDirectory() as folder:
        archive = os.path.join(folder, "code.tar.gz")
        machine = _Machine(commands(options, arguments, archive), received, options.max_restarts)
        if machine.state():
            log(f"--name is {options.name}, which exists: expected a new one. Set another name")
            return EXIT_REFUSED
        code, deleted = EXIT_RESTART, True
        while code == EXIT_RESTART and machine.restarts_left >= 0 and deleted and not received:
            try:
                machine.prepare()
                code = machine.train()
            except _EndError as end:
                code = end.code
            finally:
                deleted = machine.delete()
        return code if deleted else code or 1


class _EndError(Exception):
    """The machine cannot be used; 75 if another one continues the training."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class _Machine:
    """Calls the commands of a machine."""

    def __init__(
        self,
        lines: dict[str, list[str]],
        received: collections.deque[int],
        max_restarts: int | None,
    ) -> None:
        self._commands, self._received = lines, received
        self.restarts_left = 100 if max_restarts is None else max_restarts

    def state(self) -> str:
        """Returns the state of the queued resource; empty if there is none, or it is unknown."""
        done = subprocess.run(
            self._commands["state"], capture_output=True, text=True, start_new_session=True
        )
        return done.stdout.strip()

    def prepare(self) -> None:
        """Creates the machine, waits until it is active, and installs the files."""
        if self._call("create"):
            raise _EndError(1)
        seen = None
        while (state := self.state()) != "ACTIVE":
            if state != seen:
                log(f"the TPU is {state or 'in an unknown state'}")
            seen = state
            self._wait(state)
        for name in ("pack", "copy", "install"):
            if self._on_machine(name):
                raise _EndError(1)

    def train(self) -> int:
        """Trains until the exit code is not 75; returns it."""
        while True:
            code = self._on_machine("train") or self._on_machine("follow")
            log(f"the training exited with {code}")
            self.restarts_left -= 1
            if code != EXIT_RESTART or self.restarts_left < 0 or self._received:
                return code

    def delete(self) -> bool:
        """Deletes the machine, whatever signals arrive; returns whether it was deleted."""
        for _ in range(_ATTEMPTS):
            if not subprocess.run(self._commands["delete"], start_new_session=True).returncode:
                return True
            if not self.state():
                break
            time.sleep(_POLL_SECS)
        log(f"not deleted, it may cost money. Run {shlex.join(self._commands['delete'])}")
        return False

    def _on_machine(self, name: str) -> int:
        """Returns the exit code of a command; repeats it if gcloud did not reach the machine."""
        for _ in range(_ATTEMPTS):
            code = self._call(name)
            if code == 0 or _REMOTE <= code < 255:
                return max(0, code - _REMOTE)
            self._wait(self.state())
        raise _EndError(1)

    def _wait(self, state: str) -> None:
        """Waits before the next attempt; raises if the machine has failed or was preempted."""
        if state == "FAILED":
            raise _EndError(1)
        if state in ("SUSPENDING", "SUSPENDED", "DELETING"):
            log(f"the TPU was preempted, it is {state}")
            self.restarts_left -= 1
            raise _EndError(EXIT_RESTART)
        self._call("wait", ["sleep", str(_POLL_SECS)])

    def _call(self, name: str, command: Sequence[str] = ()) -> int:
        """Runs a command. A signal ends it; of a training the second one, after the first saves."""
        # In a session of its own, it does not get Ctrl-C from the terminal.
        process = subprocess.Popen(
            command or self._commands[name], stdin=subprocess.DEVNULL, start_new_session=True
        )
        asked = name != "follow"
        while True:
            if self._received and not asked:
                asked = True
                log("the training is asked to save; a second signal ends it at once")
                subprocess.run(self._commands["save"], start_new_session=True)
            elif len(self._received) > (name == "follow"):
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()
                raise _EndError(128 + self._received[0])
            try:
                return process.wait(0.1)
            except subprocess.TimeoutExpired:
                pass
