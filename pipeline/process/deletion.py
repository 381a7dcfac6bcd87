"""Deletes objects in a thread, where somebody would wait for it.

The last to let go of an object may be a search for garbage, anywhere in the program,
where a traceback kept it until then.
"""

import contextlib
import functools
import os
import queue
import sys
import threading
import time
import weakref
from typing import Any

# What objects held of which nobody knows any more.
_LET_GO: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
_PAUSE_SECS, _LONGEST_PAUSE_SECS = 0.001, 1.0


def leave_to_a_thread(owner: Any, held: list[Any]) -> None:
    """Has a thread delete what an object holds, once nobody has the object any more.

    Args:
      owner: object.
      held: what it holds, and others do not, whose deletion takes long.
    """
    _deleting_thread(os.getpid())
    weakref.finalize(owner, _LET_GO.put, held).atexit = False


@functools.cache
def _deleting_thread(process: int) -> None:
    """Starts the thread of this process, once.

    A thread that is started while a search for garbage calls finalizers may wait for
    ever for locks of the one that it has interrupted, or, while the interpreter ends,
    for its start. A `SimpleQueue` takes what it is given at any time.
    """
    del process
    threading.Thread(target=_delete, daemon=True).start()


def _delete() -> None:
    while True:
        held = _LET_GO.get()
        # Each in a thread of its own: one that takes a minute holds up no other. None
        # can be started while the interpreter ends.
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=_let_go_last, args=[held], daemon=True).start()
        del held


def _let_go_last(held: list[Any]) -> None:
    """Empties a list, of each object once nobody else has it.

    Python calls a finalizer before it takes from an object what that has: whoever lets
    go of this last waits for its deletion.
    """
    pause_secs = _PAUSE_SECS
    one = object()
    # The variable, and maybe the argument: this differs by Python's version.
    num_own = sys.getrefcount(one)
    while held:
        one = held.pop()
        while sys.getrefcount(one) > num_own:
            time.sleep(pause_secs)
            pause_secs = min(2 * pause_secs, _LONGEST_PAUSE_SECS)
