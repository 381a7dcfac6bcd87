"""Limits of time in tests, which are longer where the machine is busy.

A limit is there to find what hangs. Slow is not wrong, so each limit is given for an
idle machine and stretched by the load.
"""

import os
import time


def stretched(seconds):
    """Returns a limit for this machine, as busy as it is, from that of an idle one."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    # Twice the load, for its mean over a minute lags behind a load that has come.
    return seconds * max(1.0, 2 * load)


def deadline(seconds):
    """Returns a function that tells whether so many seconds, `stretched`, are over."""
    began = time.monotonic()
    return lambda: time.monotonic() - began > stretched(seconds)
