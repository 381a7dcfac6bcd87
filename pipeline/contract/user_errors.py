# SPDX-License-Identifier: Apache-2.0
"""Adds to an error in a function of the user where it happened, in a few lines.

An error keeps its type and its traceback, and gets a note:

    KeyError: 'imgae'
    This happened in model_fn my_model, mode 'train', features {image: float32 [None, 6]}:
      File "model.py", line 12, in my_model
        x = features["imgae"]

All are context managers around the call, which add no frame to its stack.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from ..errors import StepError, UserError
from ..run import tracebacks

# Errors that other code understands: the loss of another task, and the end of an input.
_KNOWN = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.CancelledError,
    tf.errors.OutOfRangeError,
)


@contextlib.contextmanager
def annotate_errors(what: str, **details: Any) -> Iterator[None]:
    """Adds a note to an error that a function of the user raises in the block.

    A refusal of this project gets the first line only, since it has the remedy.

    Args:
      what: kind and name of the function: 'model_fn my_model'.
      **details: its arguments by name; tensors are shown by dtype and shape.
    """
    try:
        yield
    except Exception as error:
        if not tracebacks.is_noted(error):
            shown = [f"{name} {describe(value)}" for name, value in details.items()]
            note = tracebacks.NOTE + ", ".join([what, *shown])
            if isinstance(error, UserError):
                error.add_note(f"{note}.")
            else:
                hint = _cause(error, details)
                lines = tracebacks.lines(tracebacks.of_error(error))
                error.add_note("\n".join([f"{note}:", *lines, *([hint] if hint else [])]))
        raise


def annotate_method_errors(kind: str, owner: Any, name: str, **details: Any) -> Any:
    """Returns `annotate_errors` for a method of an object, and nothing for a class of this project.

    An error in a class of this project is its fault: its traceback is needed.

    Args:
      kind: role of the object: 'hook'.
      owner: the object.
      name: name of the method.
      **details: see `annotate_errors`.
    """
    if type(owner).__module__.split(".")[0] == __name__.split(".")[0]:
        return contextlib.nullcontext()
    return annotate_errors(f"{kind} {type(owner).__name__}.{name}", **details)


@contextlib.contextmanager
def step_errors(
    mode: str, start: int, stop: int | None = None, input_fn: Callable[..., Any] | None = None
) -> Iterator[None]:
    """Raises a StepError for an operation that fails while compiled steps run in the block.

    Args:
      mode: mode of the steps.
      start: step before the first one.
      stop: last step, if it is known.
      input_fn: function that returned the data.

    Raises:
      StepError: the message has the mode, the steps, the operation's message, and the user's
        line that created it.
    """
    try:
        yield
    except tf.errors.OpError as error:
        # An error with a note was raised in Python, where steps run eagerly.
        if isinstance(error, _KNOWN) or tracebacks.is_noted(error):
            raise
        message = str(error.message)
        from_input = "IteratorGetNext" in message
        steps = f"step {start + 1}" if stop == start + 1 else f"one of the steps {start + 1} to "
        steps += "" if stop == start + 1 else f"{stop}" if stop and stop < 2**62 else "the end"
        lines = [
            f"{'the input' if from_input else 'model_fn'} failed in mode {mode!r}, {steps}: "
            f"{type(error).__name__}: {tracebacks.words_of(message)}"
        ]
        own = tracebacks.in_message(message)
        if from_input and not own and input_fn is not None:
            own = _definition(input_fn)
        lines += tracebacks.lines(own)
        if not from_input and stop != start + 1:
            lines.append("RunConfig(steps_per_loop=1) gives the step.")
        raise StepError("\n".join(lines)) from None


@contextlib.contextmanager
def collected(*, at_once: bool = False) -> Iterator[Callable[..., Any]]:
    """Makes calls that do not depend on each other; raises the first error at the end.

        with collected() as attempt:
            for hook in hooks:
                with attempt(f"{hook} failed."):
                    hook.end()

    Args:
      at_once: whether an error is raised right away instead.

    Yields:
      A context manager around one call. Its argument is a note for an error, unless
      `annotate_errors` has named the function. Later errors become notes of the first one.
    """
    errors: list[Exception] = []

    @contextlib.contextmanager
    def attempt(note: str | None = None) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if note and not tracebacks.is_noted(error):
                error.add_note(note)
            if at_once:
                raise
            errors.append(error)

    yield attempt
    for other in errors[1:]:
        errors[0].add_note(f"After it, this failed as well: {tracebacks.text_of(other)}")
    if errors:
        raise errors[0]


def describe(value: Any) -> str:
    """Returns dtypes and shapes of a nest of tensors, and other values as they are."""

    def leaf(item: Any) -> str:
        if not hasattr(item, "shape") or not hasattr(item, "dtype"):
            return f"{item!r:.60}"
        shape = tf.TensorShape(item.shape)
        sizes = "of unknown shape" if shape.rank is None else shape.as_list()
        return f"{tf.as_dtype(item.dtype).name} {sizes}"

    if value is None or isinstance(value, str | int):
        return repr(value)
    return str(tf.nest.map_structure(leaf, value)).replace("'", "").replace('"', "")


def _cause(error: Exception, details: dict[str, Any]) -> str | None:
    """Returns the likely cause of an error in a model_fn."""
    if isinstance(error, AttributeError) and error.name in ("minimize", "compute_gradients"):
        return (
            "The driver computes and applies gradients: return EstimatorSpec(mode, loss=loss, "
            "train_op=TrainOp(optimizer, network.trainable_variables))."
        )
    if "features" not in details:
        return None
    if details.get("labels") is None and "None" in str(error):
        if details.get("mode") == "infer":
            return "PREDICT has no labels: return EstimatorSpec(mode, predictions=...) before."
        return "input_fn yields no labels: return a dataset of (features, labels)."
    leaves = tf.nest.flatten([details["features"], details["labels"]])
    if any(getattr(leaf, "shape", None) == tf.TensorShape([]) for leaf in leaves):
        return "The data have no batch dimension: return dataset.batch(32)."
    return None


def _definition(fn: Callable[..., Any]) -> list[tracebacks.Frame]:
    code = getattr(inspect.unwrap(getattr(fn, "func", fn)), "__code__", None)
    if code is None or not tracebacks.is_users(code.co_filename):
        return []
    return [(code.co_filename, code.co_firstlineno, code.co_name)]
