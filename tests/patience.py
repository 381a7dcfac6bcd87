"""How long a test waits: longer where the machine is busy with other things.

A limit in a test is there for what hangs. What is merely slow is not wrong, so each
limit is that of an idle machine, stretched by the load.
"""

import os
import time


def stretched(seconds):
    """Returns `seconds` of an idle machine in those of this one, as busy as it is."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    # The load of the last minute follows late, hence twice.
    return seconds * max(1.0, 2 * load)


def deadline(seconds):
    """Returns a function that tells whether a limit has passed, by the load of now."""
    began = time.monotonic()
    return lambda: time.monotonic() - began > stretched(seconds)
