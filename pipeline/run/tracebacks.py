# SPDX-License-Identifier: Apache-2.0
"""The user's own lines of a traceback, and errors as short texts.

TensorFlow's and Keras' tracebacks are pages. Where an error left a function of the user, the
driver adds a note with the lines that matter; it begins with `NOTE`.
"""

import linecache
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable

from ..errors import StepError, UserError

NOTE = "This happened in "

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Code of the user's side of the contract, which is below the package where it is installed.
_LIKE_USERS = tuple(os.path.join(_PACKAGE, name) + os.sep for name in ("models", "inputs"))
_LIBRARIES = (
    _PACKAGE,
    "<",  # Code without a file, as "<frozen runpy>".
    *{sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")},
)
_FRAME = re.compile(r'  File "(.+)", line (\d+), in (.+)')
_STYLE = re.compile(r"\x1b\[[\d;]*m")
_GIN = re.compile(r"\n\s+In (?:call to configurable|bindings string|file)[^\n]*")
_MOST_CHARACTERS = 1000

# A file, the number of a line, and the name of the function.
Frame = tuple[str, int, str]


def is_users(file: str) -> bool:
    """Returns whether a file is not part of this project, Python or an installed package."""
    if file.startswith((*_LIKE_USERS, "<ipython-input-")):
        return True
    installed = "site-packages" in file or "__autograph_generated" in file
    return not installed and not file.startswith(_LIBRARIES)


def of_error(error: BaseException) -> list[Frame]:
    """Returns the user's frames of an error's traceback, outermost first."""
    found = traceback.extract_tb(error.__traceback__)
    return [(f.filename, f.lineno or 0, f.name) for f in found if is_users(f.filename)]


def in_message(text: str) -> list[Frame]:
    """Returns the user's frames that the message of a failed operation has, each once.

    They are those of Python code that the operation called, if it did, or else those of the
    function that the driver called, which created the operation.
    """
    _, python, inner = text.partition("Traceback (most recent call last):")
    found = [(f, int(line), name) for f, line, name in _FRAME.findall(inner if python else text)]
    own = [f.startswith(_PACKAGE) and not is_users(f) for f, _, _ in found]
    called = len(own) - own[::-1].index(True) if True in own else 0
    return list(dict.fromkeys(frame for frame in found[called:] if is_users(frame[0])))


def lines(frames: Iterable[Frame]) -> list[str]:
    """Returns two lines for each frame, as in a traceback: the place and the source."""
    result = []
    for file, number, name in frames:
        result.append(f'  File "{file}", line {number}, in {name}')
        if source := linecache.getline(file, number).strip():
            result.append(f"    {source}")
    return result


def is_noted(error: BaseException) -> bool:
    """Returns whether a note has the function of the user that an error left."""
    return any(note.startswith(NOTE) for note in getattr(error, "__notes__", ()))


def text_of(error: BaseException) -> str:
    """Returns the text to print for an error: its type, its message and its notes.

    An error of this project is printed without its type. Colors and the lines of gin are left
    out.
    """
    text = _GIN.sub("", _STYLE.sub("", str(error))).rstrip()
    if not isinstance(error, UserError | StepError):
        text = f"{type(error).__name__}: {text}"
    return "\n".join([text, *getattr(error, "__notes__", ())])


def _rendered(error: UserError | StepError) -> list[str]:
    """Returns the user's frames and the message, which IPython shows instead of its pages."""
    return [*lines(of_error(error)), f"{type(error).__name__}: {text_of(error)}"]


for _kind in (UserError, StepError):
    _kind._render_traceback_ = _rendered


# Lines of an operation's message that do not explain the failure.
_NOISE = re.compile(
    r"Graph execution error:|Detected at node .*|<stack traces unavailable>|\s.*|"
    r"Traceback \(most recent call last\):|\d+ root error\(s\) found\.|"
    r"\d+ successful operations\.|\d+ derived errors ignored\.|"
)
_TRANSFORMATION = re.compile(
    r"Error in user-defined function passed to \S+ transformation with iterator: \S+: "
)
_ASSERTION = re.compile(r"assertion failed: \[(.*)\]")


def words_of(message: str) -> str:
    """Returns the message of a failed operation without its stack."""
    text = re.sub(r"\{\{function_node [^}]*\}\}\s*|\{\{node [^}]*\}\}", "", message)
    text = _TRANSFORMATION.sub("", re.sub(r"\s*\[Op:\w+\].*", "", text))
    text = _ASSERTION.sub(lambda found: _asserted(found[1]), text)
    # Failures of several replicas are numbered: "  (0) INVALID_ARGUMENT:  ...".
    text = re.sub(r"(?m)^\s+\(\d+\) [A-Z_]+:\s*", "", text)
    found = [line.strip() for line in text.split("\n") if not _NOISE.fullmatch(line)]
    return "\n".join(dict.fromkeys(found))[:_MOST_CHARACTERS]


def _asserted(values: str) -> str:
    """Returns the values of a failed assertion as text; TensorFlow escapes quotes."""
    return re.sub(r"\\(['\"\\])", r"\1", values).replace("] [", " ")
