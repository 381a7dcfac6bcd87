# SPDX-License-Identifier: Apache-2.0
"""Opens the checkpoints and files that a run can be warm-started from."""

import collections
import dataclasses
import os
import re
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from ..checkpoint import files, find, keys
from ..checkpoint.reader import STEP, Reader
from ..contract.paths import normal
from ..distribute import names
from ..errors import CheckpointMismatchError, CorruptCheckpointError, UserValueError

_UNESCAPED = {".S": "/", "..": "."}
_ESCAPED = re.compile(r"\.[.S]")
_EXPORTED = "state/"  # See export.saved_model.

_NAME = "ckpt_to_initialize_from"


@dataclasses.dataclass(frozen=True)
class Origin:
    """A variable of a checkpoint, and the conversion of its value.

    Attributes:
      name: name in the checkpoint.
      note: how the value is changed, for the log.
      convert: returns the model's value for the checkpoint's value.
    """

    name: str
    note: str = ""
    convert: Callable[[Any], Any] = lambda value: value

    def then(self, note: str, convert: Callable[[Any], Any]) -> "Origin":
        """Returns the origin with another conversion after its own."""
        notes = ", ".join(filter(None, [self.note, note]))
        return Origin(self.name, notes, lambda value: convert(self.convert(value)))

    def __str__(self) -> str:
        return f"{self.name} ({self.note})" if self.note else self.name


class ForeignReader(Reader):
    """A checkpoint of another program, by the names that its variables had there.

    tf.estimator and `Saver` save by names: `dense/kernel`. tf.train.Checkpoint and Keras save by
    paths of objects, `model/layer-1/kernel`, and keep the names of most variables. A SavedModel
    has either kind; one of this project has the paths `state/network/dense/kernel`.
    """

    def __init__(self, path: str) -> None:
        """Reads the index, and the object graph if there is one."""
        super().__init__(path)
        shapes = self._reader.get_variable_to_shape_map()
        is_by_objects = keys.OBJECTS in shapes
        self._keys = self._by_objects(shapes) if is_by_objects else {key: key for key in shapes}
        self.shapes = {name: list(shapes[key]) for name, key in self._keys.items()}
        self.tables = {}

    def value(self, name: str) -> np.ndarray:
        """Returns the value of a variable as an array."""
        return self._tensor(self._keys[name])

    def _by_objects(self, shapes: Mapping[str, Any]) -> dict[str, str]:
        """Returns keys by name; equal names of different variables are replaced by paths."""
        graph = trackable_object_graph_pb2.TrackableObjectGraph()
        graph.ParseFromString(self._tensor(keys.OBJECTS))
        names = {a.checkpoint_key: a.full_name for node in graph.nodes for a in node.attributes}
        # In a part of a path TensorFlow writes a slash as ".S" and a dot as "..".
        paths = {
            key: _ESCAPED.sub(lambda m: _UNESCAPED[m[0]], key.removesuffix(keys.VARIABLE))
            for key in shapes
            if key.endswith(keys.VARIABLE)
        }
        by_name: dict[str, list[str]] = collections.defaultdict(list)
        for key, path in sorted(paths.items()):
            if path.startswith(_EXPORTED):
                by_name[path.removeprefix(_EXPORTED)].append(key)
            elif path != "save_counter":
                by_name[names.get(key) or path].append(key)
        found = {}
        for name, same in by_name.items():
            # Keras exports each variable twice.
            is_one = all(
                np.array_equal(self._tensor(same[0]), self._tensor(key)) for key in same[1:]
            )
            found |= {name: same[0]} if is_one else {paths[key]: key for key in same}
        return found

    def _tensor(self, key: str) -> Any:
        with self._errors():
            return self._reader.get_tensor(key)


class KerasFile:
    """The weights in a file of Keras, by the names of the model that they are for.

    Keras itself loads them, into the model; then the model gets its values back. The file's
    optimizer is not read. It has the attributes of a Reader.
    """

    def __init__(self, path: str, name: str, model: keras.Model) -> None:
        """Reads the file.

        Args:
          path: path that ends with `.keras`, `.weights.h5` or `.h5`.
          name: name of the module.
          model: the module; all of its layers are built.

        Raises:
          CheckpointMismatchError: the file is of another model.
          CorruptCheckpointError: the file is damaged.
        """
        self.path, self.tables = path, {}
        variables = names.variables_of({name: model})
        before = {key: array_of(variable) for key, variable in variables.items()}
        try:
            model.load_weights(path)
            self._values = {key: array_of(variable) for key, variable in variables.items()}
        except ValueError as error:
            raise CheckpointMismatchError(
                f"{path} does not fit module {name!r}: {_first_line(error)}. Set the model that "
                "wrote it, or init_fn."
            ) from error
        except (OSError, KeyError, zipfile.BadZipFile) as error:
            raise CorruptCheckpointError(
                f"{path} cannot be read: {_first_line(error)}. Use another file."
            ) from error
        finally:
            for key, variable in variables.items():
                variable.assign(before[key])
        self.shapes = {key: list(value.shape) for key, value in self._values.items()}

    def value(self, name: str) -> np.ndarray:
        """Returns the value of a variable as an array."""
        return self._values[name]


def opened(given: str, models: Mapping[str, keras.Model]) -> Reader | KerasFile:
    """Returns the content of a checkpoint, a SavedModel or a file of Keras.

    Args:
      given: path prefix, folder, file, or a spelling of `checkpoint.find` such as `runs/a/best`.
      models: Keras models that take values; a file of Keras needs exactly one.

    Raises:
      UserValueError: the path has no checkpoint; describes its content.
      CorruptCheckpointError: the checkpoint is damaged.
    """
    if given.endswith(find.KERAS_ENDS) and tf.io.gfile.exists(given):
        if len(models) != 1:
            raise UserValueError(
                f"{_NAME} is {given!r}, which has the weights of one Keras model, and these are "
                f"to be set: {sorted(models)}. Set vars_to_warm_start='NAME/.*' with one of them."
            )
        [(name, model)] = models.items()
        return KerasFile(given, name, model)
    reader = Reader(_prefix(given))
    return reader if STEP in reader.shapes else ForeignReader(reader.path)


def _prefix(given: str) -> str:
    """Returns the path prefix of a checkpoint."""
    path = normal(given, _NAME)
    if tf.io.gfile.exists(os.path.join(path, "saved_model.pb")):
        return os.path.join(path, "variables", "variables")
    if files.latest(path) is None and (newest := tf.train.latest_checkpoint(path)) is not None:
        return newest
    return find.found(given, os.getcwd(), name=_NAME)


def array_of(variable: Any) -> np.ndarray:
    """Returns the value of a variable, also of one in shards."""
    return tf.convert_to_tensor(variable).numpy()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).partition("\n")[0].rstrip(".")
