# SPDX-License-Identifier: Apache-2.0
"""Calls an input_fn with the arguments that it declares, and checks its dataset."""

import dataclasses
import zlib
from collections.abc import Callable, MutableMapping
from typing import Any

import tensorflow as tf

from ..contract import current_config, seeds, signatures
from ..contract.run_config import RunConfig
from ..contract.spec import ModeKeys
from ..contract.user_errors import annotate_errors
from ..errors import UserTypeError, UserValueError
from .batch import check_rows, components

_BATCH_SIZES = {
    ModeKeys.TRAIN: "train_batch_size",
    ModeKeys.EVAL: "eval_batch_size",
    ModeKeys.PREDICT: "predict_batch_size",
}


class InputContext(tf.distribute.InputContext):
    """TensorFlow's InputContext, whose error has the batch sizes that are possible."""

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Returns the number of examples that one replica gets of a global batch.

        Args:
          global_batch_size: number of examples of all replicas.

        Raises:
          UserValueError: the replicas cannot have equal parts of it.
        """
        number = self.num_replicas_in_sync
        size, rest = divmod(global_batch_size, number)
        if rest:
            possible = " or ".join(str(each * number) for each in (size, size + 1) if each)
            raise UserValueError(
                f"the global batch size is {global_batch_size}: expected a multiple of the "
                f"{number} replicas. Set {possible}."
            )
        return size


@dataclasses.dataclass(frozen=True)
class Source:
    """An input_fn and its arguments.

    Attributes:
      input_fn: function that returns a dataset of `features` or `(features, labels)`. It may take
        `mode`, `params`, `config`, `input_context` and `first_batch`, the number of elements to
        leave out at the beginning of a pass.
      mode: one of `ModeKeys`.
      config: how to run.
      params: hyperparameters.
      program_seed: TensorFlow's seed in the program when this was created; None if it set none.
    """

    input_fn: Callable[..., Any]
    mode: str
    config: RunConfig
    params: Any = None
    program_seed: int | None = dataclasses.field(default_factory=seeds.of_program)

    def __post_init__(self) -> None:
        if not callable(self.input_fn):
            raise UserTypeError(
                f"input_fn is {self.input_fn!r}: expected a function. Set the function that "
                "returns the dataset, not its result."
            )

    @property
    def name(self) -> str:
        """Name of the input_fn and mode, for messages."""
        return f"input_fn {signatures.name_of(self.input_fn)}, mode {self.mode!r},"

    @property
    def yields_global_batches(self) -> bool:
        """Whether it takes no `input_context`: its batches are split between replicas."""
        return not signatures.accepts(self.input_fn, "input_context")

    @property
    def starts_anywhere(self) -> bool:
        """Whether it takes `first_batch`, so that nothing has to be skipped."""
        return signatures.accepts(self.input_fn, "first_batch")

    @property
    def seed(self) -> int:
        """Seed of the input: that of the run or of the program, else one for each model_dir."""
        given = [self.config.tf_random_seed, self.program_seed]
        seed = next((each for each in given if each is not None), None)
        return zlib.crc32(self.config.model_dir.encode()) if seed is None else seed

    @property
    def base(self) -> int:
        """Seed that TensorFlow combines with `shuffle(seed=1)`, as it would without this driver."""
        is_set = self.config.tf_random_seed is not None or self.program_seed is not None
        return self.seed if is_set else seeds.NO_SEED

    def dataset(
        self,
        context: InputContext,
        *,
        seed: int | None = None,
        base: int | None = None,
        first_batch: int = 0,
    ) -> tf.data.Dataset:
        """Returns the dataset of one input pipeline; equal seeds give equal orders.

        Args:
          context: which pipeline it is, and the number of replicas.
          seed: seed of all random numbers during the call; None for `Source.seed`.
          base: seed that operations combine with a seed of their own; None for `seed`, or for
            `Source.base` if `seed` is None, too.
          first_batch: value of the argument of this name.

        Raises:
          UserTypeError: input_fn requires another argument, returns something else, or batches
            whose components have other numbers of rows.
          UserValueError: the batch size is given twice, or replicas cannot share it.
        """
        arguments = {
            "mode": self.mode,
            "config": self.config,
            "params": signatures.own(self._params(context)),
        }
        if not self.yields_global_batches:
            arguments["input_context"] = context
        if self.starts_anywhere:
            arguments["first_batch"] = first_batch
        name = f"input_fn {signatures.name_of(self.input_fn)}"
        if seed is None:
            seed, base = self.seed, self.base if base is None else base
        seeded = seeds.seeded(seed, base=base)
        with annotate_errors(name, mode=self.mode), seeded, current_config.running(self.config):
            dataset = self.input_fn(
                **signatures.arguments(self.input_fn, arguments, role="input_fn")
            )
        self._check(dataset)
        spec = dataset.element_spec
        if type(spec) is tuple and _is_none(spec[1]):
            return dataset.map(lambda features, _: (features,))
        return dataset

    def empty_error(self) -> UserValueError:
        """Returns the error to raise if the data are empty."""
        return UserValueError(
            f"{self.name} returned an empty dataset: expected at least one batch. Check the names "
            "of the files, filter(), the split, and drop_remainder=True with fewer examples than "
            "a batch."
        )

    def _params(self, context: InputContext) -> Any:
        field = _BATCH_SIZES[self.mode]
        size = getattr(self.config, field)
        if size is None:
            return self.params
        if not signatures.accepts(self.input_fn, "params"):
            raise UserTypeError(
                f"RunConfig.{field} is {size}, and {self.name} takes no params: expected "
                "dataset.batch(params['batch_size']). Add the argument, or do not set the field."
            )
        params = {} if self.params is None else signatures.own(self.params)
        is_dict = isinstance(params, MutableMapping)
        given = params.get("batch_size") if is_dict else getattr(params, "batch_size", None)
        if given is not None:
            raise UserValueError(
                f"params['batch_size'] is {given}, and RunConfig.{field} is {size}: set one of "
                "them."
            )
        if not self.yields_global_batches:
            size = context.get_per_replica_batch_size(size)
        try:
            (params.__setitem__ if is_dict else params.__setattr__)("batch_size", size)
        except AttributeError:
            raise UserTypeError(
                f"RunConfig.{field} is {size}, and params is {params!r}: expected a dict, or an "
                "object that takes the attribute batch_size. Do not set the field."
            ) from None
        return params

    def _check(self, dataset: Any) -> None:
        if not isinstance(dataset, tf.data.Dataset):
            raise UserTypeError(
                f"{self.name} returned {dataset!r:.200}: expected a tf.data.Dataset. Write return "
                "tf.data.Dataset.from_tensor_slices((features, labels)).batch(32)."
            )
        spec = dataset.element_spec
        if type(spec) is tuple and len(spec) != 2:
            raise UserTypeError(
                f"{self.name} yields tuples of {len(spec)}: expected features or (features, "
                "labels). Weights of examples belong to a dict of features; a tuple of features "
                "is ((a, b), None)."
            )
        features = spec[0] if type(spec) is tuple else spec
        if not tf.nest.flatten(features):
            raise UserTypeError(
                f"{self.name} yields no features: expected a tensor or a nest of tensors."
            )
        for name, each in components(features, "features"):
            if _is_none(each):
                raise UserTypeError(f"{self.name} yields None as {name}: expected a tensor.")
        if self.mode != ModeKeys.PREDICT:
            check_rows(spec, self.name)


def _is_none(spec: Any) -> bool:
    """Returns whether a type spec is that of None; TensorFlow 2.16 has no public name for it."""
    return type(spec).__name__ == "NoneTensorSpec"
