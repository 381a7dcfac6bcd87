"""What a program of this project exits with, apart from 0, and its last words."""

import contextlib
import sys

# What failed is the user's to mend: another start may help, or may not.
FAILED = 1
# Refused, with the line to write instead: another start would be refused as well.
REFUSED = 2
# EX_TEMPFAIL of sysexits.h: the same command goes on from the last checkpoint.
AGAIN = 75
# 128 + SIGINT, as a shell has it.
INTERRUPTED = 130


def failed(message: str, code: int = REFUSED) -> int:
    """Says what is wrong, on stderr.

    Args:
      message: what is wrong, and what to write instead.
      code: to exit with.

    Returns:
      The code.
    """
    return said(f"error: {message}", code)


def said(message: str, code: int) -> int:
    """Writes a program's last words to stderr, where somebody reads it.

    Args:
      message: the words.
      code: to exit with.

    Returns:
      The code.
    """
    # It is None where the program was started with a closed one.
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            # As it was typed: a path may hold what is no text.
            text = message.encode(errors="backslashreplace").decode()
            sys.stderr.write(f"{text}\n")
    return code
