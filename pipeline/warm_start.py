"""Warm start: values from another run, where there is no checkpoint of one's own."""

import dataclasses
import re
from collections.abc import Mapping, Sequence

import tensorflow as tf
from absl import logging

from pipeline import checkpoint, paths
from pipeline.checkpoint import CheckpointMismatchError, State
from pipeline.checkpoint_reader import Reader
from pipeline.sharding import shards_of


@dataclasses.dataclass(frozen=True)
class WarmStartSettings:
    """What to take over from another run's checkpoint, as in tf.estimator.

    Attributes:
      ckpt_to_initialize_from: a checkpoint's path prefix, or a model_dir.
      vars_to_warm_start: regular expression, or a list of them, that names such as
        `network/dense/kernel` match in full; None for all trainable variables. The
        global step is the run's own.
      var_name_to_prev_var_name: the name there by the name here, where they differ.
    """

    ckpt_to_initialize_from: str
    vars_to_warm_start: str | Sequence[str] | None = None
    var_name_to_prev_var_name: Mapping[str, str] = dataclasses.field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        if self.ckpt_to_initialize_from:
            path = paths.normal(self.ckpt_to_initialize_from)
            object.__setattr__(self, "ckpt_to_initialize_from", path)
        chosen = self.vars_to_warm_start
        for pattern in [chosen] if isinstance(chosen, str) else chosen or ():
            try:
                re.compile(pattern)
            except (re.error, TypeError) as error:
                raise ValueError(
                    f"vars_to_warm_start has {pattern!r}, which is no regular "
                    f"expression ({error}): write 'network/.*', say."
                ) from error

    def chooses(self, name: str, variable: tf.Variable) -> bool:
        """Whether `variable` is taken over."""
        chosen = self.vars_to_warm_start
        if chosen is None:
            return shards_of(variable)[0].trainable
        patterns = [chosen] if isinstance(chosen, str) else chosen
        return any(re.fullmatch(pattern, name) for pattern in patterns)


def warm_start(state: State, source: "str | WarmStartSettings") -> None:
    """Takes over values from elsewhere, and logs for each where it comes from.

    Args:
      state: variable by module and name.
      source: see `WarmStartSettings`; a path alone takes over all trainable variables.

    Raises:
      CheckpointMismatchError: a variable to take over is not there, or has another
        shape.
      UnreadableCheckpointError: something of it is missing, cut short or damaged.
      ValueError: there is no checkpoint, or nothing in the model of such a name.
    """
    if isinstance(source, str):
        source = WarmStartSettings(source)
    path = source.ckpt_to_initialize_from
    if tf.io.gfile.isdir(path):
        path = checkpoint.latest(path)
    if path is None or not tf.io.gfile.exists(f"{path}.index"):
        raise ValueError(
            f"no checkpoint to start warm from at {source.ckpt_to_initialize_from!r}: "
            "give a model_dir or a prefix such as runs/a/model.ckpt-1000."
        )
    reader = Reader(path)
    own = {
        n: v
        for n, v in checkpoint.flat(state).items()
        if not n.startswith(f"{checkpoint.DRIVER}/")
    }
    wanted = {n: v for n, v in own.items() if source.chooses(n, v)}
    unknown = sorted(set(source.var_name_to_prev_var_name) - set(own))
    if unknown or not wanted:
        raise ValueError(
            f"vars_to_warm_start={source.vars_to_warm_start!r} chooses {len(wanted)} "
            f"variables, and var_name_to_prev_var_name names {unknown}, which the "
            f"model does not have. It has {sorted(own)}."
        )
    names = {n: source.var_name_to_prev_var_name.get(n, n) for n in wanted}
    saved = reader.shapes
    absent = sorted(previous for previous in names.values() if previous not in saved)
    reshaped = [
        f"{n}: {list(v.shape)} in the model, {saved[names[n]]} saved"
        for n, v in wanted.items()
        if names[n] in saved and list(v.shape) != saved[names[n]]
    ]
    if absent or reshaped:
        raise CheckpointMismatchError(
            f"cannot start warm from {path}: it lacks {absent}; of another shape are "
            f"{reshaped}. It holds {sorted(saved)}. Choose by "
            "WarmStartSettings(vars_to_warm_start='network/.*')."
        )
    reader.assign([(variable, names[name]) for name, variable in wanted.items()])
    for name in wanted:
        logging.info("warm start | %s from %s in %s", name, names[name], path)
