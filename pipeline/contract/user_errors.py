"""What went wrong in the user's functions: where, on what, in few lines.

What is raised while a function of the user's is called keeps its type and traceback
and gets a note: the function, what it was given, and the user's own lines. The same
holds for the methods of hooks, listeners and metrics, see `call_method`. What
TensorFlow raises while compiled steps run, with a page about where each operation was
made, becomes a `StepError` of that page's essence.
"""

import contextlib
import linecache
import os
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from pipeline.process import package
from pipeline.process.refusals import Refusal

_DRIVER = os.path.join(package.PACKAGE_ROOT, "")
_MODELS_AND_INPUTS = tuple(
    os.path.join(package.HOME, name, "") for name in package.LIBRARIES
)
# Where a function of the user's is called: what follows in a stack is its doing.
_CALLER = os.path.abspath(__file__)
_LIBRARIES = (
    *{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")},
    "<",
)
_NOTE = "This happened in "
_FRAME = re.compile(r'  File "(.+)", line (\d+), in (.+)')
_STYLE = re.compile(r"\x1b\[\d*m")
# Lines of an operation's error that say nothing of what is wrong.
_NOISE = re.compile(
    r"Graph execution error:|Detected at node .*|<stack traces unavailable>|"
    r"Traceback \(most recent call last\):|\d+ root error\(s\) found\.|\s.*|"
    r"\d+ successful operations\.|\d+ derived errors ignored\.|"
)
# Whose callers know better: those that the others of a cluster see where a task died,
# see `peers`, and the end of padded data.
_KNOWN = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.CancelledError,
    tf.errors.OutOfRangeError,
)
_MOST_CHARACTERS = 1000

Frame = tuple[str, int, str]


class StepError(Refusal, RuntimeError):
    """A step, or the input that it takes, failed while it ran."""


@contextlib.contextmanager
def noted(where: Callable[[], str]) -> Iterator[None]:
    """Adds a note to what is raised inside, unless this project raised it.

    Args:
      where: what was called and on what, for the note.
    """
    try:
        yield
    except Exception as error:
        if not is_ours(error) and not is_noted(error):
            lines = [f"{_NOTE}{where()}", *lines_of(error)]
            error.add_note("\n".join(lines))
        raise


def call(where: Callable[[], str], fn: Callable[..., Any], *args: Any) -> Any:
    """Calls a function of the user's; what it raises gets a note, see `noted`.

    Args:
      where: what is called, for the note.
      fn: the function.
      *args: its arguments.

    Returns:
      What it returned.
    """
    with noted(where):
        return fn(*args)


def invoke(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a function of the user's, where stacks show that its doing begins.

    Args:
      fn: the function.
      *args: its arguments.
      **kwargs: its arguments by name.

    Returns:
      What it returned.
    """
    return fn(*args, **kwargs)


def call_method(kind: str, owner: Any, name: str, *args: Any) -> Any:
    """Calls a method of the user's hook, listener or exporter, as `call` does.

    An object of this project's own classes gets no note: what it raises unasked is a
    fault of the project, and keeps its traceback.

    Args:
      kind: what `owner` is, such as "hook".
      owner: has the method.
      name: of the method.
      *args: its arguments; a `Run` that comes first tells the step.

    Returns:
      What it returned.
    """
    method = getattr(owner, name)
    if package.defines(type(owner)):
        return method(*args)
    step = getattr(args[0], "step", None) if args else None
    at = "" if step is None else f" at step {step}"
    return call(lambda: f"{kind} {type(owner).__name__}.{name}{at}", method, *args)


@contextlib.contextmanager
def running(where: Callable[[], str], *, hint: str = "") -> Iterator[None]:
    """Turns what an operation raises inside into a `StepError`.

    Args:
      where: what ran, such as "mode 'train', step 3".
      hint: what to write to find out more of a model_fn.

    Raises:
      StepError: the operation's own words, and the user's line that made it.
    """
    try:
        yield
    except tf.errors.OpError as error:
        # A noted one was raised in Python, where steps are run eagerly.
        if isinstance(error, _KNOWN) or is_noted(error):
            raise
        is_input = "IteratorGetNext" in str(error.message)
        source = "the input" if is_input else "model_fn"
        lines = [
            f"{source} failed in {where()}: {type(error).__name__}: {words_of(error)}",
            *_shown(_frames_in(str(error.message))),
            *([hint] if hint and not is_input else []),
        ]
        raise StepError("\n".join(lines)) from error


def is_ours(error: BaseException) -> bool:
    """Whether this project raised it on purpose, and so wrote its words for the user.

    Not so where Python, TensorFlow or Keras raised it inside of a line of ours.
    """
    return isinstance(error, Refusal)


def is_noted(error: BaseException) -> bool:
    """Whether `noted` has said where it happened."""
    return any(note.startswith(_NOTE) for note in getattr(error, "__notes__", ()))


def words_of(error: tf.errors.OpError) -> str:
    """What an operation says is wrong, without the stack that made it."""
    text = re.sub(r"\{\{function_node [^}]*\}\}\s*", "", str(error.message))
    text = re.sub(r"\s*\[Op:\w+\].*", "", text)
    # Of several roots of one failure: "  (0) INVALID_ARGUMENT:  ...".
    text = re.sub(r"(?m)^\s+\(\d+\) [A-Z_]+:\s*", "", text)
    lines = [line for line in text.split("\n") if not _NOISE.fullmatch(line)]
    return "\n".join(dict.fromkeys(line.strip() for line in lines))[:_MOST_CHARACTERS]


def text_of(error: BaseException) -> str:
    """What to print of an error: its own words, without what gin adds of the call.

    With its notes; and its type where it is not this project's.
    """
    # That of a KeyError is quoted.
    one = isinstance(error, KeyError) and len(error.args) == 1
    text = str(error.args[0]) if one and is_ours(error) else str(error)
    text = _STYLE.sub("", text.partition("\n  In call to configurable")[0])
    if not is_ours(error):
        text = f"{type(error).__name__}: {text}"
    return "\n".join([text, *getattr(error, "__notes__", ())])


def place_of(error: BaseException) -> str:
    """Returns the user's line that led to an error, empty where there is none."""
    found = traceback.extract_tb(error.__traceback__)
    frames = [(f.filename, f.lineno or 0, f.name) for f in found]
    own = [f for f in frames if _is_users(f[0])]
    own = [f for f in own if not f[0].startswith(_MODELS_AND_INPUTS)]
    return "".join(f"\n{line}" for line in _shown(own[-1:]))


def lines_of(error: BaseException) -> list[str]:
    """The user's lines that led to it, as a traceback shows them."""
    frames = traceback.extract_tb(error.__traceback__)
    return list(_shown(_users([(f.filename, f.lineno or 0, f.name) for f in frames])))


def _frames_in(text: str) -> list[Frame]:
    """The user's lines that an operation's error tells of."""
    _, python, inner = text.partition("Traceback (most recent call last):")
    found = _FRAME.findall(inner if python else text)
    frames = [(file, int(line), name) for file, line, name in found]
    called = any(file == _CALLER for file, _, _ in frames)
    return list(dict.fromkeys(_users(frames))) if python or called else []


def _users(frames: Sequence[Frame]) -> list[Frame]:
    """Of a stack, what the user's function did: neither libraries nor who called it."""
    calls = [i for i, (file, _, _) in enumerate(frames) if file == _CALLER]
    after = frames[calls[-1] + 1 :] if calls else frames
    return [frame for frame in after if _is_users(frame[0])]


def _is_users(file: str) -> bool:
    if file.startswith(_MODELS_AND_INPUTS):
        return True  # Wherever it is installed: a model_fn is one of the user's.
    return not (
        file.startswith((*_LIBRARIES, _DRIVER))
        or "site-packages" in file
        or "__autograph_generated" in file
    )


def _shown(frames: Iterable[Frame]) -> Iterator[str]:
    for file, line, name in frames:
        yield f'  File "{file}", line {line}, in {name}'
        source = linecache.getline(file, line).strip()
        if source:
            yield f"    {source}"
