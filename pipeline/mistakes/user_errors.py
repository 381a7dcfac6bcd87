"""Tells what went wrong in the user's functions: where, on what, in few lines.

An error that is raised while a function of the user's is called keeps its type and
traceback and gets a note: the function, its arguments, and the user's own lines. So do
errors of the methods of hooks, listeners and metrics, see `call_method`. TensorFlow's
errors while compiled steps run have a page about where each operation was made; they
become a `StepError` with the lines of that page that matter.
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
# User's functions are called in this file: what follows in a stack is their doing.
_CALLER = os.path.abspath(__file__)
_LIBRARIES = (
    *{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")},
    "<",  # Code that is in no file, as "<frozen runpy>" or "<string>".
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
# The operation of a dataset whose function failed, by TensorFlow's numbers.
_TRANSFORMATION = re.compile(
    r"Error in user-defined function passed to \S+ transformation with iterator: \S+: "
)
# The words of an assertion, in which TensorFlow puts a backslash before each quote.
_ASSERTION = re.compile(r"assertion failed: \[(.*)\]")
_ESCAPE = re.compile(r"\\(['\"\\])")
# Errors whose callers know what they mean: the death of a task, as the others of its
# cluster see it (`peers`), and the end of padded data.
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
    """Adds a note to an error that is raised inside, unless this project raised it.

    Args:
      where: function that returns what was called, and on what. It is called only for
        the note, as it takes time to put a batch into words.
    """
    try:
        yield
    except Exception as error:
        if not is_ours(error) and not is_noted(error):
            lines = [f"{_NOTE}{where()}", *lines_of(error)]
            error.add_note("\n".join(lines))
        raise


def call(where: Callable[[], str], fn: Callable[..., Any], *args: Any) -> Any:
    """Calls the user's `fn`; an error of it gets a note by `where`, see `noted`."""
    with noted(where):
        return fn(*args)


def invoke(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls the user's `fn`, so that a stack shows where its doing begins."""
    return fn(*args, **kwargs)


def call_method(kind: str, owner: Any, name: str, *args: Any) -> Any:
    """Calls a method of the user's hook, listener or exporter, as `call` does.

    Errors of this project's own classes get no note: they are a fault of the project,
    and keep their traceback.

    Args:
      kind: the object's role, such as "hook".
      owner: object that has the method.
      name: name of the method.
      *args: arguments of the method; a `Run` that comes first tells the step.

    Returns:
      The result of the method.
    """
    method = getattr(owner, name)
    if package.defines(type(owner)):
        return method(*args)
    step = getattr(args[0], "step", None) if args else None
    at = "" if step is None else f" at step {step}"
    return call(lambda: f"{kind} {type(owner).__name__}.{name}{at}", method, *args)


def raise_first(errors: Sequence[Exception]) -> None:
    """Raises the first of several errors, with a note of each other; none of none.

    Args:
      errors: errors of calls that were made one after the other, come what may.
    """
    for other in errors[1:]:
        errors[0].add_note(f"Then this failed, too: {text_of(other)}")
    if errors:
        raise errors[0]


@contextlib.contextmanager
def running(where: Callable[[], str], *, hint: str = "") -> Iterator[None]:
    """Turns an error that an operation raises inside into a `StepError`.

    Args:
      where: function that returns what ran, such as "mode 'train', step 3".
      hint: sentence that says how to find out more about a model_fn.

    Raises:
      StepError: an operation failed. The message has the operation's own words, and
        the user's line that made it.
    """
    try:
        yield
    except tf.errors.OpError as error:
        # An error with a note was raised in Python, where steps are run eagerly.
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
    """Returns whether this project raised an error on purpose, in words for the user.

    An error that Python, TensorFlow or Keras raised in a line of this project is not.
    """
    return isinstance(error, Refusal)


def is_noted(error: BaseException) -> bool:
    """Returns whether `noted` has said where an error happened."""
    return any(note.startswith(_NOTE) for note in getattr(error, "__notes__", ()))


def words_of(error: tf.errors.OpError) -> str:
    """Returns the words of an operation's error, without the stack that made it."""
    text = re.sub(r"\{\{function_node [^}]*\}\}\s*", "", str(error.message))
    text = re.sub(r"\s*\[Op:\w+\].*", "", text)
    text = _TRANSFORMATION.sub("", text)
    text = _ASSERTION.sub(_said, text)
    # A failure of several roots numbers them: "  (0) INVALID_ARGUMENT:  ...".
    text = re.sub(r"(?m)^\s+\(\d+\) [A-Z_]+:\s*", "", text)
    lines = [line for line in text.split("\n") if not _NOISE.fullmatch(line)]
    return "\n".join(dict.fromkeys(line.strip() for line in lines))[:_MOST_CHARACTERS]


def _said(assertion: re.Match[str]) -> str:
    """Returns what an assertion says: its words, and tensors after them."""
    return _ESCAPE.sub(r"\1", assertion[1]).replace("] [", " ")


def text_of(error: BaseException) -> str:
    """Returns the text to print of an error: its words and its notes.

    The lines that gin adds are left out. An error that is not this project's begins
    with its type.
    """
    # The str() of a KeyError is the repr of its text.
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
    """Returns the user's lines that led to an error, as a traceback shows them."""
    return lines_in(traceback.extract_tb(error.__traceback__))


def lines_in(stack: Iterable[Any]) -> list[str]:
    """Returns the user's lines of a stack, as a traceback shows them.

    Args:
      stack: frames as `traceback` has them, or as `tf.Operation.traceback`.
    """
    frames = [(f.filename, f.lineno or 0, f.name) for f in stack]
    return list(_shown(_users(frames)))


def _frames_in(text: str) -> list[Frame]:
    """Returns the user's lines that an operation's error tells of."""
    _, python, inner = text.partition("Traceback (most recent call last):")
    found = _FRAME.findall(inner if python else text)
    frames = [(file, int(line), name) for file, line, name in found]
    called = any(file == _CALLER for file, _, _ in frames)
    return list(dict.fromkeys(_users(frames))) if python or called else []


def _users(frames: Sequence[Frame]) -> list[Frame]:
    """Returns the frames of a user's function, without libraries and its callers."""
    calls = [i for i, (file, _, _) in enumerate(frames) if file == _CALLER]
    after = frames[calls[-1] + 1 :] if calls else frames
    return [frame for frame in after if _is_users(frame[0])]


def _is_users(file: str) -> bool:
    if file.startswith(_MODELS_AND_INPUTS):
        return True  # Also where they are installed: a model_fn is the user's code.
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
