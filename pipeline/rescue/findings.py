"""What a replay of a bad step finds, and the lines that tell it."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from pipeline.rescue.bad_batches import listed

# Most lines of one kind: losses of examples, norms of gradients, names of variables.
_MOST_LINES = 8
# Most runs of a step to find which examples of an element do it.
MOST_RUNS = 64


@dataclasses.dataclass(frozen=True)
class Values:
    """What is known of a tensor's numbers.

    Attributes:
      name: what it is of the batch or the weights, `features['x']` or
        `network/dense/kernel`; "" for what another operation computed.
      dtype: name of the type.
      shape: lengths, None where they depend on the batch.
      lowest: the least finite number; Inf where none is finite.
      highest: the greatest finite number; -Inf where none is finite.
      num_nan: number of NaN.
      num_inf: number of Inf and -Inf.
    """

    name: str
    dtype: str
    shape: str
    lowest: float
    highest: float
    num_nan: int
    num_inf: int

    def __str__(self) -> str:
        ranges = []
        if self.lowest <= self.highest:
            ranges.append(f"{self.lowest:.6g} to {self.highest:.6g}")
        if self.num_nan:
            ranges.append(f"{self.num_nan} NaN")
        if self.num_inf:
            ranges.append(f"{self.num_inf} Inf")
        what = " ".join(filter(None, [self.name, self.dtype, self.shape]))
        return f"{what}: {', '.join(ranges) or 'empty'}"


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation of a step, and what went in and out.

    Attributes:
      kind: TensorFlow's name for what it does, "Log".
      name: its own name in the graph.
      layer: the layer that made it, as checkpoints name it, `network/dense`; None for
        model_fn itself.
      lines: the user's lines that made it, as a traceback shows them.
      gradient_of: of an operation of the gradient, the kind of the one whose gradient
        it computes; `layer` and `lines` are those of that one.
      inputs: floating inputs.
      outputs: floating outputs.
    """

    kind: str
    name: str
    layer: str | None
    lines: tuple[str, ...]
    gradient_of: str | None
    inputs: tuple[Values, ...]
    outputs: tuple[Values, ...]

    def __str__(self) -> str:
        kind = self.kind
        if self.gradient_of:
            kind = f"{kind}, in the gradient of {self.gradient_of}"
        return f"{kind}, in layer {self.layer}" if self.layer else kind

    def to_lines(self) -> Iterator[str]:
        """Yields the lines that made it, and what went in and out."""
        yield from self.lines
        yield from (f"  input {values}" for values in self.inputs)
        yield from (f"  output {values}" for values in self.outputs)


@dataclasses.dataclass(frozen=True)
class Cause:
    """Where numbers that are not finite come from.

    Attributes:
      where: what they reach: "loss", "loss of train_op[1]" where that has its own; or
        where these are finite "gradient of network/dense/kernel".
      held: what held them before the step: parts of the batch with their examples,
        and variables. Where there are any, they are the answer.
      operation: first operation that computed one of finite numbers alone; None where
        the batch or the weights held them.
      nan: operation that made the first NaN, where `operation` gave Inf.
    """

    where: tuple[str, ...]
    held: tuple[str, ...]
    operation: Operation | None
    nan: Operation | None

    def lines(self) -> Iterator[str]:
        """Yields the words of an answer."""
        yield f"not finite: {_some(self.where)}"
        if self.held:
            yield f"held NaN or Inf before the step: {_some(self.held, '; ')}"
        if self.operation is not None:
            yield f"first operation to give NaN or Inf: {self.operation}"
            yield from self.operation.to_lines()
        if self.nan is not None:
            yield f"then the first to give NaN: {self.nan}"
            yield from self.nan.to_lines()


@dataclasses.dataclass(frozen=True)
class Guilty:
    """The examples of an element that alone, without the others, are not finite.

    Attributes:
      of: number of examples in the element.
      alone: their numbers in the element, from 0.
      together: groups of examples that are not finite together, and of which no half
        is.
      complete: whether all examples were tried, in as many runs as are allowed.
    """

    of: int
    alone: tuple[int, ...] = ()
    together: tuple[tuple[int, ...], ...] = ()
    complete: bool = True

    def lines(self) -> Iterator[str]:
        """Yields the words of an answer."""
        if self.of > 1 and len(self.alone) == self.of:
            yield f"not finite alone: each of {self.of} examples"
        elif self.alone:
            yield f"not finite alone: {listed(self.alone)}"
        for group in self.together:
            yield f"not finite together, and no half of them: {listed(group)}"
        if not self.complete:
            yield (
                "not all examples were tried alone: that takes more than "
                f"{MOST_RUNS} runs"
            )


@dataclasses.dataclass(frozen=True)
class ReplayedElement:
    """One element of a bad batch, computed again on the weights before the step.

    Attributes:
      batch: number of the batch among those of its pass over the data.
      element: number of the element in the batch.
      loss: mean loss of the element, with the regularization.
      gradient_norms: norm of each variable's gradient, by the variable's name; where
        several train ops train it, the greatest.
      cause: where NaN or Inf come from; None where all is finite.
      examples: examples that are not finite alone; None where none were tried, as all
        is finite, or the weights were not.
      largest_losses: number and loss of examples, the greatest first, where all is
        finite.
      overflows: loss scale that makes a gradient overflow which is finite without it;
        None for no such. A step leaves such a gradient out.
    """

    batch: int
    element: int
    loss: float
    gradient_norms: Mapping[str, float]
    cause: Cause | None
    examples: Guilty | None
    largest_losses: Sequence[tuple[int, float]]
    overflows: float | None

    def lines(self) -> Iterator[str]:
        """Yields what to print of the element."""
        yield f"batch {self.batch}, element {self.element}: loss {self.loss:.6g}"
        if self.cause is not None:
            yield from _indented(self.cause.lines())
        if self.examples is not None:
            yield from _indented(self.examples.lines())
        if self.cause is None:
            yield "  all is finite, forward and in the gradient"
            if self.overflows is not None:
                yield (
                    f"  the loss scale {self.overflows:g} alone lets the gradient "
                    "overflow: a step skips it, and halves the scale"
                )
            losses = (f"{n}: {loss:.6g}" for n, loss in self.largest_losses)
            if words := ", ".join(losses):
                yield f"  largest losses, by example: {words}"
            norms = self.gradient_norms
            for name in sorted(norms, key=norms.get, reverse=True)[:_MOST_LINES]:
                yield f"  gradient norm {norms[name]:.6g} {name}"


@dataclasses.dataclass(frozen=True)
class Replay:
    """A bad step, made again on one replica.

    Attributes:
      folder: folder of the step.
      weights: path prefix of the checkpoint before the step.
      reasons: why each batch was left out, in the words of the log.
      missing: elements that other processes read, and that are not in the folder.
      elements: what each element computes.
      broken: variables that are not finite after the step's update, where all was
        finite before it.
    """

    folder: str
    weights: str
    reasons: tuple[str, ...]
    missing: tuple[str, ...]
    elements: tuple[ReplayedElement, ...]
    broken: tuple[str, ...]

    @property
    def cause(self) -> Cause | None:
        """The first element's cause that is not finite; None where all are."""
        return next((e.cause for e in self.elements if e.cause is not None), None)

    def lines(self) -> Iterator[str]:
        """Yields what to print."""
        yield f"replay of {self.folder}"
        yield from (f"left out because: {reason}" for reason in self.reasons)
        if self.missing:
            yield f"not there, as other processes read them: {_some(self.missing)}"
        for element in self.elements:
            yield from element.lines()
        if self.broken:
            yield f"the update makes these not finite: {_some(self.broken)}"
        elif self.cause is None:
            yield "the step is finite on one replica, and so are the weights after it"
            if not any(element.overflows for element in self.elements):
                yield (
                    "so it was a hook's bound, the sum over replicas, or what only "
                    "they differ in: their parts of the batch, their random numbers"
                )


def _some(names: Sequence[str], between: str = ", ") -> str:
    more = len(names) - _MOST_LINES
    words = between.join(names[:_MOST_LINES])
    return f"{words} and {more} more" if more > 0 else words


def _indented(lines: Iterator[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)
