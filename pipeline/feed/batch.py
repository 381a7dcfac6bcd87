"""One replica's batch, and how the batches of a step are taken from an iterator."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from pipeline.mistakes.checks import components
from pipeline.process.refusals import RefusedTypeError
from pipeline.strategy.replicas import Replicas
from pipeline.tracing.compiling import seconds_now


def pair_of(element: Any) -> tuple[Any, Any]:
    """Returns `(features, labels)` of an element; labels are None where it has none.

    Args:
      element: element of a dataset, or its spec.
    """
    features, labels = element if isinstance(element, tuple) else (element, None)
    return features, None if is_none(labels) else labels


def is_none(spec: Any) -> bool:
    """Returns whether a type spec is that of None, whose class is not public."""
    return type(spec).__name__ == "NoneTensorSpec"


class Batch(NamedTuple):
    """The data that one replica computes on in one micro-batch.

    Attributes:
      features: nest of tensors with a leading batch dimension.
      labels: nest of tensors with a leading batch dimension, or None.
      share: float32 scalar: 1, or 0 for a stand-in, which counts for nothing; None
        where every batch counts.
    """

    features: Any
    labels: Any
    share: tf.Tensor | None = None


def rows_in(element: Any) -> int | tf.Tensor:
    """Returns the number of examples in a batch.

    An element of scalars, without a batch dimension, counts as one example.

    Args:
      element: nest of tensors; the first one tells.

    Returns:
      An int where the static shape of one of them tells, else an int32 scalar.
    """
    leaves = [leaf for leaf in tf.nest.flatten(element) if leaf is not None]
    first = leaves[0]
    if first.shape.rank == 0:
        return 1
    # Ragged tensors often hide how many rows there are, which the others know.
    known = (leaf.shape[0] for leaf in leaves if leaf.shape.rank)
    static = next((rows for rows in known if rows is not None), None)
    return _rows_of_leaf(first) if static is None else static


def _rows_of_leaf(leaf: Any) -> tf.Tensor:
    if isinstance(leaf, tf.SparseTensor):
        return tf.cast(leaf.dense_shape[0], tf.int32)
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int32)
    return tf.shape(leaf)[0]


def batch_of(element: Any, has: tf.Tensor | None) -> Batch:
    """Returns an element of a dataset as a batch that counts where `has` is true."""
    features, labels = pair_of(element)
    return Batch(features, labels, None if has is None else tf.cast(has, tf.float32))


def choose(batches: Sequence[Batch], index: tf.Tensor) -> Batch:
    """Returns `batches[index]`.

    Args:
      batches: batches of the same structure, two or more.
      index: int32 scalar, 1 or more: the first batch is not among the branches.
    """
    fields = [
        {"features": b.features, "labels": b.labels, "share": b.share}
        for b in batches[1:]
    ]
    # The branches of a switch return tensors only, and no None.
    present = [k for k, value in fields[0].items() if value is not None]
    branches = [lambda f=f: {k: f[k] for k in present} for f in fields]
    chosen = tf.switch_case(index - 1, branches)
    return Batch(**{**dict.fromkeys(fields[0]), **chosen})


def same_shapes(batches: Sequence[Sequence[Batch]]) -> bool:
    """Whether every replica's batches have the same static shapes.

    Args:
      batches: batches by replica and micro-batch; or by micro-batch, of values that
        differ by replica and have one static shape, see `replicas.run_each`.
    """
    if isinstance(batches[0], Batch):
        return True
    shapes = {
        str([getattr(leaf, "shape", None) for leaf in tf.nest.flatten(batches_of)])
        for batches_of in ([(b.features, b.labels) for b in mine] for mine in batches)
    }
    return len(shapes) == 1


def rows_of(value: Any, start: Any, stop: Any) -> Any:
    """Returns `value[start:stop]`, also of a ragged or sparse tensor.

    Args:
      value: tensor with a leading batch dimension; None stays None.
      start: number of the first row, an int or an integer scalar.
      stop: number of the row after the last one.
    """
    if value is None:
        return None
    if not isinstance(value, tf.SparseTensor):
        return value[start:stop]
    begin = tf.one_hot(0, value.shape.rank, tf.cast(start, tf.int64), 0, dtype=tf.int64)
    known, shape = value.shape.as_list(), value.dense_shape
    widths = [shape[i] if n is None else n for i, n in enumerate(known)][1:]
    size = tf.stack([tf.cast(stop - start, tf.int64), *widths])
    part = tf.sparse.slice(value, begin, size)
    # The static shape of TensorFlow's own result is unknown.
    return tf.SparseTensor(part.indices, part.values, size)


class Timed:
    """An iterator inside of one step, and the seconds for which the step waits for it.

    The step before has ended when the step begins. So what passes until the elements
    are there is time in which nothing else is done, whatever was prefetched.
    """

    def __init__(
        self,
        iterator: Any,
        begun: tf.Tensor,
        clock: Callable[[], tf.Tensor] = seconds_now,
    ) -> None:
        """Reads the clock.

        Args:
          iterator: iterator over the feed's dataset.
          begun: tensor that is there when the step begins.
          clock: returns seconds, a float64 scalar.
        """
        self._iterator = iterator
        self._clock = clock
        with tf.control_dependencies([begun]):
            self._began = self._ended = clock()

    def __next__(self) -> Any:
        # The clock was read first, or this element's time would not count.
        with tf.control_dependencies([self._ended]):
            return self._noted(next(self._iterator))

    def get_next_as_optional(self) -> Any:
        """Returns the next element, if there is one, as the iterator's own method."""
        with tf.control_dependencies([self._ended]):
            return self._noted(self._iterator.get_next_as_optional())

    def waited(self) -> tf.Tensor:
        """Returns the seconds until all that was taken was there, a float32 scalar."""
        return tf.cast(self._ended - self._began, tf.float32)

    def _noted(self, element: Any) -> Any:
        """Reads the clock when the element is there.

        What computes on the element does not wait for that: to hold it back would cost
        a short step a twentieth. The clock is read first in practice, as TensorFlow
        runs what is cheap before what is not.
        """
        with tf.control_dependencies(tf.nest.flatten(element, expand_composites=True)):
            self._ended = self._clock()
        return element


def any_batch_size(spec: Any) -> Any:
    """Returns the type spec of some rows of a batch.

    Args:
      spec: type spec of a component of the batch. A scalar's, or one of another kind,
        is returned as it is.
    """
    kinds = tf.TensorSpec, tf.SparseTensorSpec, tf.RaggedTensorSpec
    if not isinstance(spec, kinds) or not spec.shape.rank:
        return spec
    shape, ranks = tf.TensorShape([None, *spec.shape[1:]]), ()
    if isinstance(spec, tf.RaggedTensorSpec):
        ranks = spec.ragged_rank, spec.row_splits_dtype
    return type(spec)(shape, spec.dtype, *ranks)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The way to take a step's batches from an iterator, in a compiled loop.

    Attributes:
      endless: whether the data never end.
      replicas: replicas that take the batches; this process has some of them.
      num_micro_batches: batches per replica and step.
      splits: whether a batch is global, and is cut into the replicas' parts.
      padded: whether the dataset was made endless by `dataset.pad`, so that a process
        whose data end first keeps step with the others.
      alike: whether batches have the same type specs in every process.
      num_steps: steps in one pass over all processes' data, where each process knows
        the length of its own data; None where the steps have to find the end.
    """

    endless: bool
    replicas: Replicas = Replicas()
    num_micro_batches: int = 1
    splits: bool = False
    padded: bool = False
    alike: bool = True
    num_steps: int | None = None

    @property
    def asks(self) -> bool:
        """Whether each step has to find out if any data are left."""
        return not self.endless and self.num_steps is None

    @property
    def nexts_per_step(self) -> int:
        """Elements of the dataset that one step takes."""
        return self.num_micro_batches * (1 if self.splits else self.replicas.local)

    def take(self, iterator: Any) -> list[list[Batch]]:
        """Takes a step's batches, by local replica and micro-batch; some are left."""
        elements = [next(iterator) for _ in range(self.nexts_per_step)]
        if self.padded:
            return self._arrange(elements)
        return self._arrange([(element, None) for element in elements])

    def try_take(
        self, iterator: Any
    ) -> tuple[tf.Tensor, Callable[[], list[list[Batch]]]]:
        """Takes one step's batches from data that may end.

        Args:
          iterator: iterator over the feed's dataset.

        Returns:
          Whether any data are left in this process (bool scalar), and a function that
          returns what `take` returns. The function may be called where data are left;
          where the data are padded, in any case.
        """
        if self.padded:
            # Another process may have data left, so this one computes on stand-ins.
            pairs = [next(iterator) for _ in range(self.nexts_per_step)]
            return pairs[0][1], lambda: self._arrange(pairs)
        optionals = [
            iterator.get_next_as_optional() for _ in range(self.nexts_per_step)
        ]
        more = optionals[0].has_value()

        # Called inside of a branch that runs only where the first element is there.
        def taken() -> list[list[Batch]]:
            first = optionals[0].get_value()
            elements: list[Any] = [(first, None)]
            for optional in optionals[1:]:
                has = optional.has_value()
                element = tf.cond(has, optional.get_value, lambda: first)
                elements.append((element, has))
            return self._arrange(elements)

        return more, taken

    def where(self, more: tf.Tensor, step: Callable[[], Any], state: Any) -> Any:
        """Returns the state after `step` where `more` is true, else `state`."""
        return tf.cond(more, step, lambda: state)

    def to_predict(self, batches: list[list[Batch]]) -> tuple[Any, list[Any]]:
        """Returns the features of a step's batches, and the share of each batch.

        Args:
          batches: what `take` returned, of one micro-batch.
        """
        mine = [batch for (batch,) in batches]
        return [batch.features for batch in mine], [batch.share for batch in mine]

    def _arrange(self, elements: list[Any]) -> list[list[Batch]]:
        """Returns the batches by local replica and micro-batch.

        Args:
          elements: `nexts_per_step` pairs of an element and whether it counts, see
            `batch_of`. One micro-batch of all local replicas comes after the other.
        """
        if self.replicas.total == 1:
            return [[batch_of(element, has) for element, has in elements]]
        if self.splits:
            parts = [self._split(element, has) for element, has in elements]
            return [list(batches) for batches in zip(*parts, strict=True)]
        rows = range(0, len(elements), self.replicas.local)
        return [
            [batch_of(*elements[row + replica]) for row in rows]
            for replica in range(self.replicas.local)
        ]

    def _split(self, element: Any, has: tf.Tensor | None) -> list[Batch]:
        """Cuts the local replicas' parts out of a global batch.

        The parts' sizes differ by one row at most. A replica whose part is empty gets
        the first row as a stand-in.
        """
        rows, total, first = rows_in(element), self.replicas.total, self.replicas.first
        _check_rows(element, rows)
        batches = []
        for replica in range(first, first + self.replicas.local):
            start = replica * rows // total
            stop = (replica + 1) * rows // total
            if isinstance(rows, int) and rows >= total:
                some = has  # Each part has a row, so no step needs to find out.
            else:
                filled = tf.less(start, stop)
                start, stop = tf.where(filled, start, 0), tf.where(filled, stop, 1)
                some = filled if has is None else tf.logical_and(has, filled)
            part = tf.nest.map_structure(
                lambda x, a=start, b=stop: rows_of(x, a, b), element
            )
            batches.append(batch_of(part, some))
        return batches


def _check_rows(element: Any, rows: int | tf.Tensor) -> None:
    """Checks, in each step if need be, that all components have as many rows.

    Else replicas would put other examples side by side than there are in the batch.

    Args:
      element: global batch.
      rows: what `rows_in` says of it.

    Raises:
      TypeError: a component's static shape has no rows, or other rows.
    """
    fits = (None, rows) if isinstance(rows, int) else (None,)
    sizes = {}
    for place, leaf in components(pair_of(element)):
        known = leaf.shape[0] if leaf.shape.rank else None
        if leaf.shape.rank == 0 or known not in fits:
            raise RefusedTypeError(
                f"input_fn yields {place} of shape {leaf.shape}, which has no row for "
                "each example of the global batch, to be divided between replicas: "
                "write tf.data.Dataset.from_tensor_slices(arrays).batch(32), or take "
                "input_context."
            )
        sizes[place] = _rows_of_leaf(leaf) if known is None else known
    if all(isinstance(size, int) for size in sizes.values()) or len(sizes) == 1:
        return
    told = f"input_fn yields {', '.join(sizes)} of unequal numbers of rows in one "
    told += "global batch, which cannot be divided between replicas:"
    found = tf.stack(list(sizes.values()))
    alike = tf.reduce_all(tf.equal(found, rows))
    tf.debugging.Assert(alike, [told, found], summarize=len(sizes))


class LeftOut(NamedTuple):
    """A step's elements that are not trained on.

    Attributes:
      elements: elements that this process read; fewer where its data ended.
      number: number of the batch among those of its pass over the data, from 1.
      first: number of the first element among those of all processes.
      total: number of elements of all processes. Where processes share each batch,
        `first` is at least so much in all but one of them.
    """

    elements: list[Any]
    number: int
    first: int
    total: int

    @classmethod
    def of(cls, read: Sequence[Any], number: int, plan: Plan) -> "LeftOut":
        """Returns the elements that a process read as a batch, without their padding.

        Args:
          read: elements of the dataset.
          number: number of the batch among those of its pass.
          plan: way in which the elements become batches.
        """
        elements = [pair[0] for pair in read] if plan.padded else list(read)
        parts = 1 if plan.splits else plan.replicas.num_processes
        nexts = plan.nexts_per_step
        return cls(elements, number, plan.replicas.process * nexts, parts * nexts)
