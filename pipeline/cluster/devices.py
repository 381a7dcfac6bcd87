"""Checks of the names of local devices, before TensorFlow makes any."""

import os
import re
from typing import Any

from pipeline.process.refusals import RefusedValueError

# A device of this machine: without job and task.
_DEVICE = re.compile(r"/?(device:)?[a-z_]+:[0-9]{1,18}", re.IGNORECASE | re.ASCII)
# TensorFlow makes threads for each logical CPU, and takes hours for many.
_MOST_CPUS = 64


def checked(value: Any) -> tuple[str, ...] | None:
    """Returns `RunConfig.devices` as a tuple.

    Args:
      value: names such as 'GPU:0', each once; None for all local devices.

    Raises:
      ValueError: a name is no device of this machine, or is there twice.
    """
    if value is None:
        return None
    names = tuple(value) if isinstance(value, (list, tuple)) else ()
    if not names or not all(isinstance(name, str) and name for name in names):
        raise RefusedValueError(
            f"RunConfig.devices is {value!r}, not names of devices: write "
            "devices=('GPU:0',), or leave it out for all local devices."
        )
    wrong = [name for name in names if not _DEVICE.fullmatch(name)]
    if wrong:
        raise RefusedValueError(
            f"RunConfig.devices has {wrong[0]!r}, which is no device of this machine: "
            "write 'GPU:0' or 'CPU:1', a kind and a number."
        )
    kinds = {name.upper().rpartition("/")[2].removeprefix("DEVICE:") for name in names}
    most = max(_MOST_CPUS, os.cpu_count() or 1)
    for kind, _, number in (name.partition(":") for name in kinds):
        if kind == "CPU" and int(number) >= most:
            raise RefusedValueError(
                f"RunConfig.devices has 'CPU:{number}', and this machine is divided "
                f"into {most} logical CPUs at the most: write 'CPU:0' to "
                f"'CPU:{most - 1}'."
            )
    if len(kinds) < len(names):
        raise RefusedValueError(
            f"RunConfig.devices has a device twice: {names}. List each one once."
        )
    return names
