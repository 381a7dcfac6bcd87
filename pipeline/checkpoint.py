"""Checkpoints that hold everything: save, strict restore, retention.

A key is `module/index/name`, as `network/003/conv2d_1/bias`: the index is the place in
`module.variables`, so that sorted keys go through a Keras model of the same
architecture in order; the name comes from the structure and is what is matched here.
Plain TensorFlow reads one so:

    reader = tf.train.load_checkpoint("model_dir")
    keys = sorted(k for k in reader.get_variable_to_shape_map() if k[:8] == "network/")
    network(tf.zeros([1, 28, 28, 1]))  # A model of the same architecture, built.
    for variable, key in zip(network.variables, keys, strict=True):
        variable.assign(reader.get_tensor(key))
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

State = Mapping[str, Mapping[str, Any]]

DRIVER = "driver"
_NAME = "model.ckpt"
_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


class CheckpointMismatchError(ValueError):
    """A checkpoint and a model that do not hold the same variables."""


class Saver:
    """Writes checkpoints of one model_dir and removes old ones.

    What is to stay survives a restart: TensorFlow keeps the list in the file
    `checkpoint`, with relative paths, so that a model_dir can be moved.
    """

    def __init__(
        self,
        directory: str,
        state: State,
        *,
        keep_max: int | None = 5,
        keep_every_n_hours: float | None = None,
        asynchronous: bool = False,
    ) -> None:
        """
        Args:
          directory: the model_dir.
          state: variable or table by module and name; complete by now.
          keep_max: checkpoints that stay; None or 0 for all.
          keep_every_n_hours: besides, one in so many hours stays for good.
          asynchronous: `save` returns once the values are copied.
        """
        self._tree = _tree(state)
        self._options = tf.train.CheckpointOptions(
            experimental_enable_async_checkpoint=asynchronous
        )
        self._manager = tf.train.CheckpointManager(
            self._tree,
            directory,
            max_to_keep=keep_max or None,
            keep_checkpoint_every_n_hours=keep_every_n_hours if keep_max else None,
            checkpoint_name=_NAME,
        )

    def save(self, step: int) -> str:
        """Writes the checkpoint of `step` and returns its path prefix."""
        self._manager.save(checkpoint_number=step, options=self._options)
        return path_of(self._manager.directory, step)

    def wait(self) -> None:
        """Returns once all that was saved is on disk."""
        self._tree.sync()


def path_of(directory: str, step: int) -> str:
    """Path prefix of the checkpoint of `step`."""
    return f"{directory}/{_NAME}-{step}"


def step_of(path: str) -> int:
    """The step that a path prefix names.

    Raises:
      ValueError: it names none.
    """
    number = path.rpartition("-")[2]
    if not number.isdigit():
        raise ValueError(f"checkpoint path {path!r} ends in no step, as ...-1000.")
    return int(number)


def latest(directory: str) -> str | None:
    """Path prefix of the newest checkpoint in `directory`, or None."""
    return tf.train.latest_checkpoint(directory)


def read_names(path: str) -> dict[str, list[int]]:
    """Shape by variable name, `network/conv2d/kernel`, of a checkpoint."""
    reader = tf.train.load_checkpoint(path)
    shapes = reader.get_variable_to_shape_map()
    return {name: shapes[key] for name, key in _keys(reader).items()}


def read_value(path: str, name: str) -> Any:
    """The value of one variable as an array.

    Raises:
      KeyError: the checkpoint has none of that name; lists those that it has.
    """
    reader = tf.train.load_checkpoint(path)
    keys = _keys(reader)
    if name not in keys:
        raise KeyError(f"{path} holds no variable {name!r}; it holds {sorted(keys)}")
    return reader.get_tensor(keys[name])


def restore(state: State, path: str, *, unbuilt: Iterable[str] = ()) -> None:
    """Sets all of `state` from a checkpoint, or nothing of it.

    Args:
      state: variable or table by module and name.
      path: checkpoint path prefix.
      unbuilt: name prefixes below which the checkpoint may hold more than the model.

    Raises:
      CheckpointMismatchError: something is only in one of both, or has another shape.
    """
    reader = tf.train.load_checkpoint(path)
    keys = _keys(reader)
    wanted = {
        f"{module}/{name}".rstrip("/"): value
        for module, named in state.items()
        for name, value in named.items()
        if isinstance(value, tf.Variable)
    }
    shapes = reader.get_variable_to_shape_map()
    problems = _mismatches(wanted, keys, shapes, tuple(unbuilt))
    if problems:
        raise CheckpointMismatchError(
            f"checkpoint {path} is not of this model.\n{problems}\n"
            "Use the model that it was saved from, another model_dir, or "
            "Estimator(warm_start_from=...) to take over a part."
        )
    for name, variable in wanted.items():
        if name in keys:
            variable.assign(reader.get_tensor(keys[name]))
    tables = {
        module: {k: v if not isinstance(v, tf.Variable) else None for k, v in n.items()}
        for module, n in state.items()
    }
    if any(v is not None for named in tables.values() for v in named.values()):
        _tree(tables).read(path).expect_partial()


def _mismatches(
    wanted: Mapping[str, tf.Variable],
    keys: Mapping[str, str],
    shapes: Mapping[str, list[int]],
    unbuilt: tuple[str, ...],
) -> str:
    optional = DRIVER + "/"
    lacking = [n for n in wanted if n not in keys and not n.startswith(optional)]
    allowed = (*unbuilt, optional)
    extra = [n for n in keys if n not in wanted and not f"{n}/".startswith(allowed)]
    reshaped = [
        f"{name}: {list(variable.shape)} in the model, {shapes[keys[name]]} saved"
        for name, variable in wanted.items()
        if name in keys and list(variable.shape) != shapes[keys[name]]
    ]
    lists = {
        "in the model and not in the checkpoint": lacking,
        "in the checkpoint and not in the model": extra,
        "of another shape": reshaped,
    }
    return "\n".join(f"  {title}: {names}" for title, names in lists.items() if names)


def _keys(reader: Any) -> dict[str, str]:
    """Checkpoint key by variable name."""
    names = {}
    for key in sorted(reader.get_variable_to_shape_map()):
        match = re.fullmatch(r"([^/]+)/\d+((?:/.+)?)" + re.escape(_SUFFIX), key)
        if match:
            names[_unescape(match[1] + match[2])] = key
    return names


def _unescape(key: str) -> str:
    """Undoes TensorFlow's escape of dots in attribute names."""
    return key.replace("..", ".")


def _tree(state: State) -> tf.train.Checkpoint:
    """The object tree whose checkpoint keys are `module/index/name`."""
    root = tf.train.Checkpoint()
    for module, named in state.items():
        node = tf.train.Checkpoint()
        setattr(root, module, node)
        for index, (name, value) in enumerate(named.items()):
            if value is not None:
                _attach(node, [f"{index:03d}", *filter(None, name.split("/"))], value)
    return root


def _attach(node: Any, path: list[str], value: Any) -> None:
    head, *rest = path
    if not rest:
        setattr(node, head, value)
        return
    child = getattr(node, head, None)
    if child is None:
        child = tf.train.Checkpoint()
        setattr(node, head, child)
    _attach(child, rest, value)
