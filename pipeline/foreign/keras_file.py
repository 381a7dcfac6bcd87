"""Reads what Keras saves of a model: `.keras`, `.weights.h5`, and `.h5` of Keras 2.

Keras says itself where it would save each variable of a module: it is asked to save the
module, with numbers in the place of values.
"""

import io
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import h5py
import keras
import numpy as np
import tensorflow as tf

from pipeline.checkpoints.checkpoint_reader import UnreadableCheckpointError
from pipeline.strategy import sharding, variables

ENDS = (".keras", ".h5", ".hdf5")
_WEIGHTS = "model.weights.h5"
_OPTIMIZER = "optimizer/vars/"
# Tells the numbers that stand for values from values.
_MARK = 0x67696E2D65737469


class KerasFile:
    """The content of one file, as a checkpoint's `Reader` shows it.

    Attributes:
      path: its path.
      shapes: shape of each variable by its place in the file, `layers/dense/vars/0`; in
        a file of Keras 2 by the name that it has there, `dense/kernel`.
      tables: empty: Keras' files have lookup tables as assets.
    """

    def __init__(self, path: str) -> None:
        """Reads the names and shapes.

        Args:
          path: path of the file.

        Raises:
          UnreadableCheckpointError: it is damaged.
        """
        self.path = path
        self.tables: Mapping[str, str] = {}
        self._places: dict[str, str] = {}
        self.shapes: dict[str, list[int]] = {}
        self._dtypes: dict[str, tf.DType] = {}
        with self._opened() as file:
            file.visititems(self._note)

    def dtype(self, name: str) -> tf.DType:
        """Returns the dtype of a variable that is there."""
        return self._dtypes[name]

    def value(self, name: str) -> np.ndarray:
        """Returns the value of a variable that is there, as an array.

        Raises:
          UnreadableCheckpointError: the file is damaged.
        """
        with self._opened() as file:
            return self._read(file, name)

    def assign(self, pairs: Sequence[tuple[Any, str]]) -> None:
        """Sets variables, all of them or none.

        Args:
          pairs: variables, each with the name of its value in the file.

        Raises:
          UnreadableCheckpointError: the file is damaged; nothing was set.
        """
        with self._opened() as file:
            values = [self._read(file, name) for _, name in pairs]
        for (variable, _), value in zip(pairs, values, strict=True):
            sharding.assign(variable, value)

    def name_of(self, given: str) -> str:
        """Returns a variable's name; a user gives it as it is."""
        return given

    def places(self, modules: Mapping[str, Any], own: Sequence[str]) -> dict[str, str]:
        """Returns the name in the file by each variable's name in the modules.

        A file is of one model: two modules have the same names there.

        Args:
          modules: modules by name.
          own: all names in this model, in order.
        """
        found, trained = {}, []
        for name, module in modules.items():
            if isinstance(module, keras.Model) and module.built:
                named = variables.named_state(module)
                by_id = {id(variables.raw(v)): n for n, v in named.items()}
                for place, variable in _saved(module):
                    if (known := by_id.get(id(variables.raw(variable)))) is not None:
                        found[f"{name}/{known}"] = place
                trained.append(
                    [
                        f"{name}/{by_id.get(id(variables.raw(variable)))}"
                        for variable in module.trainable_variables
                    ]
                )
        for name, module in modules.items():
            if isinstance(module, keras.optimizers.Optimizer):
                names = [n for n in own if n.startswith(f"{name}/")]
                found |= self._of_optimizer(f"{name}/", module, names, trained)
        return found

    def _of_optimizer(
        self, prefix: str, optimizer: Any, own: list[str], trained: list[list[str]]
    ) -> dict[str, str]:
        """Returns names by names of an optimizer that moves all of one model.

        Keras numbers its variables in the order of the model's.
        """
        slots = [n for n in own if "/" in n.removeprefix(prefix)]
        moved = [n.removeprefix(prefix).partition("/")[2] for n in slots]
        first = sum(name.startswith(_OPTIMIZER) for name in self.shapes) - len(slots)
        # Keras 2 has no rate there, and had another order of some optimizers.
        same = first == 2 or (first == 1 and _is_of_known_order(optimizer, slots))
        if not slots or list(dict.fromkeys(moved)) not in trained or not same:
            return {}
        counts = ("iteration", "learning_rate")[:first]
        names = [f"{prefix}{count}" for count in counts] + slots
        return {name: f"{_OPTIMIZER}{i}" for i, name in enumerate(names)}

    def _note(self, place: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            name = place
            if place.endswith(":0"):  # Keras 2: layer, then the variable's own name.
                name = place.removesuffix(":0").removeprefix("model_weights/")
                name = name.partition("/")[2]
            name = place if name in self.shapes else name
            self._places[name] = place
            self.shapes[name] = list(item.shape)
            # HDF5 has no such numbers: Keras says beside them what the bytes are.
            kind = item.attrs.get("dtype", item.dtype)
            self._dtypes[name] = tf.as_dtype(kind)

    def _read(self, file: h5py.File, name: str) -> np.ndarray:
        kind = self._dtypes[name].as_numpy_dtype
        value = np.asarray(file[self._places[name]])
        return value.view(kind) if value.dtype.kind == "V" else value

    def _opened(self) -> "_Opened":
        return _Opened(self.path)


class _Opened:
    """An open HDF5 file; errors of reading become UnreadableCheckpointError."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> h5py.File:
        try:
            with tf.io.gfile.GFile(self._path, "rb") as file:
                content = io.BytesIO(file.read())
            if zipfile.is_zipfile(content):
                with zipfile.ZipFile(content) as archive:
                    content = io.BytesIO(archive.read(_WEIGHTS))
            self._file = h5py.File(content, "r")
        except (OSError, KeyError, zipfile.BadZipFile, tf.errors.OpError) as error:
            raise self._unreadable(error) from error
        return self._file

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._file.close()
        if isinstance(error, (OSError, RuntimeError)):
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> UnreadableCheckpointError:
        line = str(error).partition("\n")[0]
        return UnreadableCheckpointError(
            f"{self._path} cannot be read: {line}. Give another file, or restore it "
            "from a copy."
        )


def _is_of_known_order(optimizer: Any, slots: Sequence[str]) -> bool:
    kinds = {slot.split("/")[1] for slot in slots}
    return len(kinds) == 1 or isinstance(optimizer, keras.optimizers.Adam)


def _saved(model: keras.Model) -> Iterator[tuple[str, Any]]:
    """Yields place and variable of all that Keras saves of a model."""
    kept: list[Any] = []
    parts = [layer for _, layer in variables.layers(model)]
    for part in parts:
        # In the place of its method: Keras calls what it finds there.
        vars(part)["save_own_variables"] = _numbered(part.save_own_variables, kept)
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.weights.h5")
            model.save_weights(path)
            with h5py.File(path, "r") as file:
                found: list[tuple[str, int]] = []

                def note(place: str, item: Any) -> None:
                    # Others are what Keras saves besides layers: an optimizer's.
                    if isinstance(item, h5py.Dataset) and item.shape == (2,):
                        mark, number = item[()]
                        if mark == _MARK:
                            found.append((place, int(number)))

                file.visititems(note)
    finally:
        for part in parts:
            del vars(part)["save_own_variables"]
    for place, number in found:
        yield place, kept[number]


def _numbered(save: Callable[[Any], None], kept: list[Any]) -> Callable[[Any], None]:
    """Returns `save` with the number of each value in `kept` in the value's place."""

    def numbered(store: Any) -> None:
        own: dict[str, Any] = {}
        save(own)
        for key, value in own.items():
            store[key] = np.array([_MARK, len(kept)], np.int64)
            kept.append(value)

    return numbered
