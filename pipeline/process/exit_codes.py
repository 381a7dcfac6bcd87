"""The exit codes of this project's programs, and the last words that go with them.

A supervisor needs no more than the code: 75 asks for the same command again, all others
do not. Processes that watch others import this file, and have Python's own packages
alone, see `cluster.watcher`.
"""

import contextlib
import re
import sys

# Something failed that the user has to mend; another start may help, or may not.
FAILED = 1
# The project refused something, and said what to write: another start would be refused.
REFUSED = 2
# EX_TEMPFAIL of sysexits.h: the same command goes on from the last checkpoint.
AGAIN = 75
# 128 + SIGINT, as shells count.
INTERRUPTED = 130


def failed(message: str, code: int = REFUSED) -> int:
    """Writes to stderr what is wrong, and what to write instead; returns `code`."""
    return said(f"error: {message}", code)


def said(message: str, code: int) -> int:
    """Writes a program's last words to stderr, and returns the exit code.

    A stderr that is closed, or that nobody reads, changes nothing about the code.

    Args:
      message: last words.
      code: exit code.

    Returns:
      `code`.
    """
    # None where the program was started with a closed stderr.
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            # A path may hold bytes that are no UTF-8: they are shown as escapes.
            text = message.encode(errors="backslashreplace").decode()
            sys.stderr.write(f"{text}\n")
    return code


def words_of(error: Exception) -> str:
    """Returns what to say of flags that are refused, in sentences.

    Args:
      error: absl's `flags.Error`, or one of our own, which stays as it is.
    """
    # absl prints the arguments of an exception that it raised with two.
    found = re.fullmatch(
        r"flag (--([^=]*)=.*): \('Non-boolean argument.*\)", str(error), re.DOTALL
    )
    if found is None:
        return str(error)
    return f"{found[1]}: this flag takes no value: write --{found[2]}."
