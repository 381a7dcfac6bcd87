# SPDX-License-Identifier: Apache-2.0
"""Makes input_fns from what `fit` of Keras takes as data: datasets, arrays and PyDatasets."""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from .. import private
from ..contract.checks import Check, check, integer, is_number, repr_short
from ..errors import UserTypeError, UserValueError

_BATCH = integer(1, example=32, optional=True)
_SPLIT = Check(lambda v: is_number(v) and 0 <= v < 1, "a number from 0 to below 1", "0.2")
_SHUFFLE = Check(lambda v: isinstance(v, bool | np.bool_), "True or False", "True")


class Data:
    """The arguments of `fit` for data, checked.

    Attributes:
      train_fn: input_fn of the training.
      validation_fn: input_fn of the validation; None for none.
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        sample_weight: Any,
        *,
        batch_size: int | None,
        shuffle: bool,
        validation_split: float,
        validation_data: Any,
        validation_batch_size: int | None,
    ) -> None:
        """Takes the arguments of `fit`.

        Raises:
          UserError: one of them cannot be, with the line to write.
        """
        check("batch_size", batch_size, _BATCH)
        check("validation_batch_size", validation_batch_size, _BATCH)
        check("validation_split", validation_split, _SPLIT)
        check("shuffle", shuffle, _SHUFFLE)
        parts = _Parts("x", x, {"y": y, "sample_weight": sample_weight}, "batch_size", batch_size)
        self.validation_fn: Callable[..., Any] | None = None
        if validation_data is not None:
            given = validation_data if isinstance(validation_data, tuple | list) else ()
            if len(given) > 3:
                raise UserTypeError(
                    f"validation_data has {len(given)} entries: expected (x_val, y_val) or (x_val, "
                    "y_val, sample_weight). Set validation_data=(x_val, y_val)."
                )
            x_val, *others = given or (validation_data,)
            named: dict[str, Any] = dict(zip(("y", "sample_weight"), others, strict=False))
            size = validation_batch_size or batch_size
            argument = "validation_batch_size"
            size = size if _is_arrays(x_val) else validation_batch_size
            other = _Parts("validation_data", x_val, named, argument, size)
            self.validation_fn = other.input_fn(shuffle=False)
        elif validation_split:
            parts, last = parts.split(validation_split, validation_batch_size or batch_size)
            self.validation_fn = last.input_fn(shuffle=False)
        elif validation_batch_size is not None:
            raise UserValueError(
                f"validation_batch_size is {validation_batch_size}, and validation_data is None: "
                "expected arrays to validate on. Set validation_data=(x_val, y_val)."
            )
        self.train_fn = parts.input_fn(shuffle=shuffle)


class _Parts:
    """Inputs, labels and weights of examples, or a function or dataset that yields them."""

    def __init__(
        self,
        name: str,
        value: Any,
        others: Mapping[str, Any],
        size_argument: str,
        batch_size: int | None,
    ) -> None:
        self._name, self._value, self._batch_size = name, value, batch_size
        self._is_arrays = _is_arrays(value)
        others = {key: each for key, each in others.items() if each is not None}
        if not self._is_arrays:
            _check_source(name, value)
            given = [*others, *([size_argument] if batch_size is not None else [])]
            if given:
                remedy = {"y": "(x, y)", "sample_weight": "(x, y, sample_weight)"}
                raise UserTypeError(
                    f"{given[0]} is given, and {name} is {repr_short(value)}: expected arrays with "
                    f"it. Leave {given[0]} out; the elements of {name} are batches of "
                    f"{remedy.get(given[-1], '(x, y)')}."
                )
            return
        if "sample_weight" in others and "y" not in others:
            raise UserTypeError(
                "sample_weight is given, and y is None: expected labels. Set y, the labels."
            )
        parts = [_arrays(name, value)]
        parts += [_arrays(key, each) for key, each in others.items()]
        sizes = [
            (key, len_of(each))
            for key, part in zip((name, *others), parts, strict=True)
            for each in tf.nest.flatten(part)
        ]
        if different := [each for each in sizes if each[1] != sizes[0][1]]:
            (first, rows), (key, number) = sizes[0], different[0]
            raise UserValueError(
                f"{first} has {rows} rows, and {key} has {number}: expected as many. Pass arrays "
                "with one row for each example."
            )
        self._parts, self._rows = tuple(parts), sizes[0][1]

    def split(self, fraction: float, batch_size: int | None) -> tuple["_Parts", "_Parts"]:
        """Returns the first rows and, as Keras, the last ones."""
        if not self._is_arrays:
            raise UserTypeError(
                f"validation_split is {fraction}, and x is {repr_short(self._value)}: expected "
                "arrays. Set validation_data=dataset.take(10) and x=dataset.skip(10), or the like."
            )
        at = math.floor(self._rows * (1.0 - fraction))
        if at in (0, self._rows):
            raise UserValueError(
                f"validation_split is {fraction} of {self._rows} rows: expected a row for each of "
                "training and validation. Set validation_split=0.5, or validation_data."
            )
        return (
            self._of_rows(slice(at), self._batch_size),
            self._of_rows(slice(at, None), batch_size),
        )

    def _of_rows(self, rows: slice, batch_size: int | None) -> "_Parts":
        new = object.__new__(_Parts)
        new._parts = tf.nest.map_structure(lambda each: each[rows], self._parts)
        new._rows = len_of(tf.nest.flatten(new._parts)[0])
        new._name, new._value, new._is_arrays = self._name, self._value, True
        new._batch_size = batch_size
        return new

    def input_fn(self, *, shuffle: bool) -> Callable[..., Any]:
        """Returns the input_fn."""
        if self._is_arrays:
            return _of_arrays(self._parts, self._rows, self._batch_size or 32, shuffle)
        if isinstance(self._value, keras.utils.PyDataset):
            return _of_py_dataset(self._name, self._value, shuffle)
        if isinstance(self._value, tf.data.Dataset):
            return _of_dataset(self._value)
        return self._value


def _of_dataset(dataset: tf.data.Dataset) -> Callable[..., Any]:
    def given() -> tf.data.Dataset:
        return dataset

    return given


def warn_of_order(name: str, dataset: Any, *, num_processes: int) -> None:
    """Warns of a dataset with `shuffle`, whose order belongs to this process.

    Raises:
      UserValueError: several processes would read it in different orders.
    """
    if not isinstance(dataset, tf.data.Dataset) or not _shuffles(dataset):
        return
    remedy = f"Set {name}=input_fn, a function that makes and returns the dataset."
    if num_processes > 1:
        raise UserValueError(
            f"{name} is a dataset with shuffle(), which the {num_processes} processes would read "
            f"in different orders: expected the function that makes it. {remedy}"
        )
    logging.warning(
        "fit | %s is a dataset with shuffle(): after a restart its next passes have other orders. "
        "%s",
        name,
        remedy,
    )


def _shuffles(dataset: tf.data.Dataset) -> bool:
    is_shuffle = "Shuffle" in type(dataset).__name__
    return is_shuffle or any(map(_shuffles, private.parts_of(dataset).inputs))


def _is_arrays(value: Any) -> bool:
    if isinstance(value, tf.data.Dataset | keras.utils.PyDataset) or callable(value):
        return False
    leaves = tf.nest.flatten(value)
    return any(map(_is_array, leaves)) or isinstance(value, list | tuple | Mapping)


def _is_array(value: Any) -> bool:
    is_tensor = isinstance(value, tf.RaggedTensor | tf.SparseTensor)
    return is_tensor or hasattr(value, "__array__") or hasattr(value, "tocsr")


def _check_source(name: str, value: Any) -> None:
    """Refuses data that cannot be read again, or not by several processes."""
    if value is None:
        raise UserTypeError(
            f"{name} is None: expected arrays, a dataset, or a function that returns a dataset. "
            f"Set {name}=dataset."
        )
    if isinstance(value, tf.data.Dataset | keras.utils.PyDataset):
        return
    if isinstance(value, tf.distribute.DistributedDataset):
        raise UserTypeError(
            f"{name} is a distributed dataset: expected the dataset of global batches. Leave out "
            "experimental_distribute_dataset()."
        )
    if inspect.isgeneratorfunction(value):
        raise UserTypeError(
            f"{name} is the generator function {value.__name__}: expected a function that returns "
            f"a dataset. Set {name}=lambda: tf.data.Dataset.from_generator({value.__name__}, "
            "output_signature=(tf.TensorSpec([None, 4]), tf.TensorSpec([None]))), with the shapes "
            "of its batches."
        )
    if callable(value):
        return
    if type(value).__module__.startswith("torch.utils.data"):
        raise UserTypeError(
            f"{name} is a {type(value).__name__} of torch: expected arrays or a dataset. Set "
            f"{name}=lambda: tf.data.Dataset.from_generator(lambda: ((x.numpy(), y.numpy()) for "
            "x, y in loader), output_signature=(tf.TensorSpec([None, 4]), tf.TensorSpec([None]))), "
            "with the shapes of its batches and DataLoader(shuffle=False)."
        )
    if hasattr(value, "__next__"):
        raise UserTypeError(
            f"{name} is {repr_short(value)}: expected data that can be read again from the "
            f"beginning, as workers and restarts have to. Set {name}=lambda: "
            f"tf.data.Dataset.from_generator({getattr(value, '__name__', 'make_generator')}, "
            f"output_signature={_signature(value)}), with the function that makes the generator."
        )
    raise UserTypeError(
        f"{name} is {repr_short(value)}: expected arrays, a tf.data.Dataset, a "
        f"keras.utils.PyDataset, or a function that returns a dataset. Set {name}=dataset."
    )


def _signature(batches: Any) -> str:
    """Returns the source text of the signature of a generator's batches."""
    try:
        element = next(batches)
        spec = tf.nest.map_structure(lambda each: _spec([np.asarray(each)]), element)
    except Exception:  # Code of the user.
        return "(tf.TensorSpec([None, 4]), tf.TensorSpec([None]))"
    text = tf.nest.map_structure(
        lambda each: f"tf.TensorSpec({each.shape.as_list()}, {each.dtype!r})", spec
    )
    return str(text).replace("'", "")


def _arrays(name: str, value: Any) -> Any:
    """Returns arrays as Keras takes them: lists as tuples, floats in its default precision."""
    if isinstance(value, Mapping):
        return {key: _arrays(f"{name}[{key!r}]", each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        if not value:
            raise UserTypeError(f"{name} is empty: expected arrays. Set {name}=np.array(...).")
        return tuple(_arrays(f"{name}[{i}]", each) for i, each in enumerate(value))
    if isinstance(value, tf.SparseTensor) or hasattr(value, "tocsr"):
        raise UserTypeError(
            f"{name} is a sparse {type(value).__name__}: expected a dense array. Set it to "
            "x.toarray(), or tf.sparse.to_dense(x)."
        )
    if not _is_array(value):
        raise UserTypeError(
            f"{name} is {repr_short(value)}: expected an array, or a nest of arrays. Write "
            "np.array([...]) for a list of numbers."
        )
    if not isinstance(value, tf.RaggedTensor) and not tf.is_tensor(value):
        is_series = hasattr(value, "iloc") and value.ndim == 1
        if hasattr(value, "detach"):
            value = value.detach().cpu()
        value = np.asarray(value)
        value = value[:, np.newaxis] if is_series else value
        if value.dtype == object:
            value = np.asarray(tf.constant(value.tolist()))
    if value.shape.ndims == 0 if tf.is_tensor(value) else value.ndim == 0:
        raise UserTypeError(f"{name} is {repr_short(value)}: expected one row for each example.")
    dtype, floatx = tf.as_dtype(value.dtype), keras.config.floatx()
    if dtype.is_floating and dtype.name != floatx:
        is_numpy = isinstance(value, np.ndarray)
        value = value.astype(floatx) if is_numpy else tf.cast(value, floatx)
    return value


def len_of(array: Any) -> int:
    """Returns the number of rows."""
    return int(array.nrows()) if isinstance(array, tf.RaggedTensor) else int(array.shape[0])


def _of_arrays(
    parts: tuple[Any, ...], rows: int, batch_size: int, shuffle: bool
) -> Callable[..., tf.data.Dataset]:
    """Returns the input_fn of arrays; it is called for each pass, under the seed of the pass."""
    tensors: list[Any] = []

    def arrays(first_batch: int = 0) -> tf.data.Dataset:
        whole: Any = parts
        if tf.executing_eagerly():  # One copy for all passes; parameter servers trace this.
            if not tensors:
                with tf.device("CPU:0"):
                    tensors.append(tf.nest.map_structure(_as_tensor, parts))
            [whole] = tensors
        order = tf.data.Dataset.range(rows)
        if shuffle:
            order = order.shuffle(rows, reshuffle_each_iteration=False)
        order = order.batch(batch_size).skip(first_batch)
        # In the graph of the dataset, which tells other data from these.
        dataset = tf.data.Dataset.zip((order, tf.data.Dataset.from_tensors(whole).repeat()))
        return dataset.map(_rows_of, num_parallel_calls=tf.data.AUTOTUNE)

    return arrays


def _as_tensor(array: Any) -> Any:
    return array if isinstance(array, tf.RaggedTensor) else tf.convert_to_tensor(array)


def _rows_of(order: tf.Tensor, parts: tuple[Any, ...]) -> tuple[Any, ...]:
    return tf.nest.map_structure(lambda each: tf.gather(each, order), parts)


def _of_py_dataset(
    name: str, data: keras.utils.PyDataset, shuffle: bool
) -> Callable[..., tf.data.Dataset]:
    """Returns the input_fn of a PyDataset: batches by their numbers, in an order of the seed."""
    number = data.num_batches
    if number == 0:
        raise UserValueError(f"{name} has no batches: expected at least one. Check its __len__.")
    own_end = type(data).on_epoch_end is not keras.utils.PyDataset.on_epoch_end
    if own_end:
        logging.warning(
            "fit | %s.on_epoch_end may change the order of the batches: a run that was killed does "
            "not repeat that. Leave it out, and set shuffle=True.",
            type(data).__name__,
        )
    examples = [_batch(name, data[i]) for i in dict.fromkeys([0, (number or 2) - 1])]
    leaves = [tf.nest.flatten(each) for each in examples]
    specs = [_spec(each) for each in zip(*leaves, strict=True)]

    def load(place: np.ndarray, index: np.ndarray) -> list[np.ndarray]:
        found = tf.nest.flatten(_batch(name, data[int(index)]))
        if own_end and int(place) + 1 == number:
            data.on_epoch_end()
        return found

    def batch(place: tf.Tensor, index: tf.Tensor) -> Any:
        tensors = tf.numpy_function(load, [place, index], [each.dtype for each in specs])
        for tensor, spec in zip(tensors, specs, strict=True):
            tensor.set_shape(spec.shape)
        return tf.nest.pack_sequence_as(examples[0], tensors)

    def batches(first_batch: int = 0) -> tf.data.Dataset:
        if number is None:
            order = tf.data.Dataset.counter()
        else:
            order = tf.data.Dataset.range(number)
            order = order.shuffle(number, reshuffle_each_iteration=False) if shuffle else order
        # on_epoch_end comes after the last batch.
        parallel = None if own_end else max(data.workers, 1)
        return order.enumerate().skip(first_batch).map(batch, num_parallel_calls=parallel)

    return batches


def _batch(name: str, batch: Any) -> tuple[Any, ...]:
    if isinstance(batch, Mapping) or _is_array(batch):  # Inputs alone, as Keras takes them.
        batch = (batch,)
    if not isinstance(batch, tuple | list) or not 1 <= len(batch) <= 3:
        raise UserTypeError(
            f"{name} yields {repr_short(batch)}: expected batches of (x, y) or (x, y, "
            "sample_weight). Return a tuple in __getitem__."
        )
    parts = zip(("x", "y", "sample_weight"), batch, strict=False)
    return tuple(
        tf.nest.map_structure(np.asarray, _arrays(f"{name}'s {key}", each))
        for key, each in parts
        if each is not None
    )


def _spec(arrays: Any) -> tf.TensorSpec:
    """Returns the spec of some batches, whose axes of different sizes are None."""
    shapes = [each.shape[1:] for each in arrays]
    axes = [sizes[0] if len({*sizes}) == 1 else None for sizes in zip(*shapes, strict=False)]
    return tf.TensorSpec([None, *axes], tf.as_dtype(arrays[0].dtype))
