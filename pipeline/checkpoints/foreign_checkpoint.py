"""Says what lies where a checkpoint of this project was looked for.

A user who moves over has checkpoints of tf.estimator, of Keras or of another program. A
run begins with their values by `Estimator(warm_start_from=...)`, in a model_dir of its
own.
"""

import os
from collections.abc import Iterable

import tensorflow as tf

from pipeline.checkpoints.checkpoint_reader import Reader

_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_MOST = 5


def is_foreign(reader: Reader) -> bool:
    """Whether another program wrote a checkpoint: each of this project has a step."""
    return "driver/global_step" not in reader.shapes


def described(path: str) -> str:
    """Describes what is at `path`, for the end of an error.

    Args:
      path: a file, a folder or a path prefix that holds none of our checkpoints.
    """
    if tf.io.gfile.isdir(path):
        return _of_folder(path)
    prefix = _prefix_of(path)
    if prefix is not None:
        return _of_checkpoint(prefix)
    if tf.io.gfile.exists(path):
        return _of_file(path)
    return f"There is nothing at {path!r}."


def _of_folder(path: str) -> str:
    if tf.io.gfile.exists(os.path.join(path, "saved_model.pb")):
        variables = _prefix_of(os.path.join(path, "variables", "variables"))
        inside = (
            "It has no variables." if variables is None else _of_checkpoint(variables)
        )
        return f"{path!r} is a SavedModel. {inside}"
    names = sorted(name.rstrip("/") for name in tf.io.gfile.listdir(path))
    # A folder that was copied in part may lack the file `checkpoint`.
    indices = [name for name in names if name.endswith(".index")]
    latest = tf.train.latest_checkpoint(path) or os.path.join(path, *indices[-1:])
    prefix = _prefix_of(latest)
    if prefix is not None:
        return _of_checkpoint(prefix)
    return f"{path!r} is a folder that holds {_some(names) or 'nothing'}."


def _prefix_of(path: str) -> str | None:
    """Returns the prefix of the checkpoint that `path` is a file of, or None."""
    for end in (".index", ".data-", ".meta"):
        path = path.rpartition(end)[0] or path
    return path if tf.io.gfile.exists(f"{path}.index") else None


def _of_checkpoint(prefix: str) -> str:
    shapes = tf.train.load_checkpoint(prefix).get_variable_to_shape_map()
    if _OBJECTS in shapes:
        format_ = "objects, as tf.train.Checkpoint and Keras write them"
        shapes = {k: v for k, v in shapes.items() if k.endswith(_VALUE)}
    else:
        format_ = "names, as tf.estimator and tf.compat.v1.train.Saver write them"
    return (
        f"{prefix!r} is a checkpoint by {format_}. It holds {len(shapes)} variables: "
        f"{_some(f'{k.removesuffix(_VALUE)} {shapes[k]}' for k in sorted(shapes))}."
    )


def _of_file(path: str) -> str:
    if path.endswith(".keras"):
        return f"{path!r} is a model that Keras saved."
    if path.endswith((".h5", ".hdf5")):
        return f"{path!r} holds weights that Keras saved."
    return f"{path!r} is a file of another kind."


def _some(items: Iterable[str]) -> str:
    items = list(items)
    more = len(items) - _MOST
    return ", ".join(items[:_MOST]) + (f" and {more} more" if more > 0 else "")
