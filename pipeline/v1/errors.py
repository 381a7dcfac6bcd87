# SPDX-License-Identifier: Apache-2.0
"""Errors that name the line of the program."""

import linecache
import sys

from ..errors import SpecError, UserError
from ..run import tracebacks


class MissingNameError(UserError, AttributeError):
    """A name of TensorFlow 1 has no meaning here, or no TensorFlow has it."""


class MissingImportError(UserError, ImportError):
    """A `MissingNameError` of an import, which a program may catch as an ImportError."""


def place() -> str:
    """Returns `FILE, line N, LINE: `, the innermost line of the program that is running."""
    frame = sys._getframe(1)
    while frame is not None and not tracebacks.is_users(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return ""
    file, number = frame.f_code.co_filename, frame.f_lineno
    source = linecache.getline(file, number).strip()
    return f"{file}, line {number}, {source!r}: " if source else f"{file}, line {number}: "


def refusal(text: str) -> SpecError:
    """Returns an error whose message begins with the line of the program."""
    return SpecError(place() + text)
