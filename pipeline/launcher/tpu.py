# SPDX-License-Identifier: Apache-2.0
"""Trains on a TPU of Google Cloud by `gcloud`, and deletes the machine."""

import argparse
import collections
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence

from ..errors import EXIT_REFUSED, EXIT_RESTART
from .flags import COMMAND, TPU_IMAGES
from .processes import caught_signals, log

# It requires the libtpu that it was built with; later releases take the newest.
_VERSION = "2.19.1"
_LOST = 255  # Exit code of ssh without a connection.
_FAILED = ("FAILED", "SUSPENDED")  # States of a machine that never becomes active.
_POLL_SECS = 10.0
_ATTEMPTS = 30  # To reach a new machine, and to delete it.


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
        return gcloud("tpu-vm", "ssh", name, f"--command=set -e; {command}")

    node = [f"--node-id={name}", f"--accelerator-type={tpu}", *(["--spot"] if options.spot else [])]
    image = f"--runtime-version={TPU_IMAGES[tpu.partition('-')[0]]}"
    pip, package = "../env/bin/pip install --quiet", f"tensorflow-tpu=={_VERSION}"
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
        "train": ssh(
            "cd code; echo $$ > ../pid; "
            "export PYTHONUNBUFFERED=1 NEXT_PLUGGABLE_DEVICE_USE_C_API=true "
            "TF_PLUGGABLE_DEVICE_LIBRARY_PATH=$(../env/bin/python -c "
            '"import libtpu; print(libtpu.get_library_path())"); '
            f"exec ../env/bin/{COMMAND} {shlex.join(arguments)}"
        ),
        "save": ssh("kill -TERM $(cat pid)"),
        "delete": gcloud("queued-resources", "delete", name, "--force"),
    }


def run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Creates the machine, trains, and deletes the machine.

    Args:
      options: the launcher's flags.
      arguments: flags of the training.

    Returns:
      The exit code of the training, 75 also after a lost connection; 1 if the machine failed, or
      was not deleted; 2 if the name is in use; 128 + n for signal n before the training.
    """
    with caught_signals() as received, tempfile.TemporaryDirectory() as folder:
        lines = commands(options, arguments, os.path.join(folder, "code.tar.gz"))
        delete = shlex.join(lines["delete"])
        if _call(lines["create"]):
            if not _state(lines):
                return 1  # gcloud has written why; nothing was created.
            log(
                f"--name is {options.name}, which exists: expected a new one. Set another name, or "
                f"run {delete}"
            )
            return EXIT_REFUSED
        code = 1
        try:
            code = _prepare(lines, received)
            restarts = 100 if options.max_restarts is None else options.max_restarts
            if not code:
                code = _train(lines, received, restarts)
        finally:
            if _repeat(lines["delete"]):
                log(f"not deleted, it may cost money. Run {delete}")
                code = code or 1
        return code


def _prepare(lines: Mapping[str, Sequence[str]], received: collections.deque[int]) -> int:
    """Waits until the machine is active, and installs the files; returns an exit code."""
    seen = None
    while (state := _state(lines)) != "ACTIVE":
        if state != seen:
            log(f"the TPU is {state or 'in an unknown state'}")
        if state in _FAILED:
            return 1
        if received:
            return 128 + received[0]
        seen = state
        time.sleep(_POLL_SECS)
    failed = _call(lines["pack"]) or _repeat(lines["copy"], received) or _call(lines["install"])
    return 128 + received[0] if received else min(failed, 1)


def _train(
    lines: Mapping[str, Sequence[str]], received: collections.deque[int], restarts: int
) -> int:
    """Trains until the exit code is not 75; each signal asks the training to save and end."""
    while True:
        training, asked = _start(lines["train"]), 0
        while training.poll() is None:
            if asked < len(received):
                asked += 1
                log("the training is asked to save")
                _call(lines["save"])
            time.sleep(0.1)
        code = training.returncode
        log(f"the training exited with {code}")
        restarts -= 1
        if code == _LOST:
            log("the connection was lost. The same command continues from the last checkpoint")
            return EXIT_RESTART
        if code != EXIT_RESTART or restarts < 0 or received:
            return code


def _state(lines: Mapping[str, Sequence[str]]) -> str:
    """Returns the state of the queued resource; empty if there is none, or it is unknown."""
    return subprocess.run(
        lines["state"], capture_output=True, text=True, start_new_session=True
    ).stdout.strip()


def _repeat(command: Sequence[str], received: Sequence[int] = ()) -> int:
    """Runs a command until it succeeds, or a signal is received; returns its exit code."""
    for _ in range(_ATTEMPTS):
        if not (code := _call(command)) or received:
            break
        time.sleep(_POLL_SECS)
    return code


def _call(command: Sequence[str]) -> int:
    return _start(command).wait()


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    # In a session of its own, it does not get Ctrl-C from the terminal.
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
