"""Calls input_fn for one pipeline, and checks and pads the dataset that it returns.

The user's function comes in as a `Source`; a `tf.data.Dataset` of `features` or
`(features, labels)` comes out. How its elements become replicas' batches is decided by
the three ways of feeding, which all begin here.
"""

import dataclasses
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from pipeline.contract import calling
from pipeline.contract import params as params_lib
from pipeline.contract.spec import ModeKeys
from pipeline.feed import fingerprint
from pipeline.feed.batch import is_none, pair_of
from pipeline.mistakes import user_errors
from pipeline.mistakes.checks import components, kind_of
from pipeline.process.refusals import RefusedTypeError, RefusedValueError
from pipeline.strategy.peers import Peers
from pipeline.tracing import seeds

# Fields of RunConfig by mode.
_BATCH_SIZES = {
    ModeKeys.TRAIN: "train_batch_size",
    ModeKeys.EVAL: "eval_batch_size",
    ModeKeys.PREDICT: "predict_batch_size",
}


class InputContext(tf.distribute.InputContext):
    """TensorFlow's InputContext, which also remembers the global batch for logs."""

    global_batch: int | None = None

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Returns how many examples of a global batch one replica gets.

        Args:
          global_batch_size: examples in a batch of all replicas.

        Raises:
          ValueError: the replicas cannot have equal parts of it.
        """
        below, rest = divmod(global_batch_size, self.num_replicas_in_sync)
        if rest:
            sizes = [n * self.num_replicas_in_sync for n in (below, below + 1) if n]
            raise RefusedValueError(
                f"a global batch of {global_batch_size} has no equal parts for "
                f"{self.num_replicas_in_sync} replicas: write "
                f"{' or '.join(map(str, sizes))}."
            )
        self.global_batch = global_batch_size
        return global_batch_size // self.num_replicas_in_sync


@dataclasses.dataclass(frozen=True)
class Source:
    """An input_fn, and the arguments that are the same for each pipeline.

    Attributes:
      input_fn: takes any of `mode`, `input_context`, `params`, `config` and
        `first_batch`, the number of elements to leave out. If it takes no
        `input_context`, it yields global batches, which are split for it.
      mode: one of `ModeKeys`.
      context: `params` and `config`.
      seed: seed of its random numbers where the config has no `tf_random_seed`; None:
        each call draws others.
    """

    input_fn: Callable[..., Any]
    mode: str
    context: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seed: int | None = None

    def __post_init__(self) -> None:
        if not callable(self.input_fn):
            raise RefusedTypeError(
                f"input_fn is {kind_of(self.input_fn)}, not a callable: hand in the "
                "function, not its result."
            )

    @property
    def name(self) -> str:
        """The name of the input_fn, for messages."""
        return calling.name_of(self.input_fn)

    @property
    def yields_global_batches(self) -> bool:
        """Whether it takes no `input_context`, so that its batches are split."""
        names, takes_any = calling.declared(self.input_fn)
        return "input_context" not in names and not takes_any

    @property
    def starts_anywhere(self) -> bool:
        """Whether it takes `first_batch`, so that nothing has to be skipped.

        Only an argument of that name counts: an input_fn that takes `**kwargs` may hand
        them to a function without it.
        """
        return "first_batch" in calling.declared(self.input_fn)[0]

    def in_one_order(self, agree: Callable[[int], int] = int) -> "Source":
        """Returns the source with a seed, so that all processes shuffle alike.

        Processes that share each batch have to. The seed is the program's own. Where
        the program has set none, it is made of model_dir, so that a run that goes on
        shuffles as it did before.

        Args:
          agree: takes this process' seed and returns the seed of all.
        """
        if self._config_seed is not None:
            return self
        seed = seeds.of_program()
        if seed is None:
            model_dir = getattr(self.context.get("config"), "model_dir", None)
            seed = zlib.crc32(str(model_dir).encode())
        return dataclasses.replace(self, seed=agree(seed))

    @property
    def _config_seed(self) -> int | None:
        return getattr(self.context.get("config"), "tf_random_seed", None)

    def dataset(
        self, input_context: tf.distribute.InputContext, *, first_batch: int = 0
    ) -> tf.data.Dataset:
        """Calls input_fn for one pipeline; with a seed, each call draws the same.

        Args:
          input_context: which pipeline it is, and the number of all replicas.
          first_batch: elements to leave out at the beginning; 0 unless the input_fn
            takes `first_batch`.

        Raises:
          TypeError: input_fn requires an argument that nobody supplies, or returns no
            dataset of `features` or `(features, labels)`.
        """
        supplied = {"mode": self.mode, "input_context": input_context, **self.context}
        if self.starts_anywhere:
            supplied["first_batch"] = first_batch
        size = self._batch_size(input_context)
        if size is not None:
            params = supplied.get("params", {})
            supplied["params"] = params_lib.with_entry(params, "batch_size", size)
        seed, drawn = self._config_seed, seeds.all_seeded(self.seed)
        if seed is not None:
            drawn = seeds.restarted(seed)
        noted = user_errors.noted(lambda: f"input_fn {self.name}, mode {self.mode!r}")
        with noted, drawn:
            dataset = calling.call(self.input_fn, supplied, role="input_fn")
        _check_dataset(dataset, self.name)
        return dataset

    def _batch_size(self, input_context: tf.distribute.InputContext) -> int | None:
        """Returns the batch size that input_fn is to yield; None where it decides.

        Raises:
          TypeError: the config has one, and input_fn takes no `params` to find it in.
          ValueError: the replicas cannot have equal parts of it.
        """
        field = _BATCH_SIZES[self.mode]
        size = getattr(self.context.get("config"), field, None)
        if size is None:
            return None
        names, takes_any = calling.declared(self.input_fn)
        if not (takes_any or "params" in names):
            raise RefusedTypeError(
                f"RunConfig.{field} is {size}, and input_fn {self.name} takes no "
                f"params to find it in: take params and write dataset.batch(params["
                f"'batch_size']), or leave {field} out."
            )
        if self.yields_global_batches:
            return size
        return input_context.get_per_replica_batch_size(size)


def shared(
    source: Source, input_context: tf.distribute.InputContext, peers: Peers
) -> tuple[Source, tf.data.Dataset]:
    """Calls an input_fn that yields global batches, of which each process takes a part.

    Warns where processes get other data.

    Args:
      source: the input_fn, which takes no `input_context`.
      input_context: this process' pipeline.
      peers: the processes that call this.

    Returns:
      The source with the seed that all have agreed on, and its dataset.
    """
    source = source.in_one_order(lambda seed: peers.gather([seed])[0][0])
    dataset = source.dataset(input_context)
    if not peers.same(fingerprint.of(dataset).digest):
        logging.warning(
            "input_fn %s, mode %r, takes no input_context and yields other data in one "
            "process than in another. Each takes its part of each batch, so that some "
            "examples are left out and others come twice: yield the same data in all "
            "processes, or take input_context.",
            source.name,
            source.mode,
        )
    return source, dataset


def pad(
    dataset: tf.data.Dataset, whole: tf.data.Dataset | None = None
) -> tf.data.Dataset:
    """Makes a dataset endless by stand-ins, which no step counts.

    Args:
      dataset: the dataset to pad.
      whole: a dataset that begins with the stand-in, where `dataset` may be empty.

    Returns:
      A dataset of `(element, True)`, and after the last element of
      `(first element, False)` without end.
    """

    def flagged(elements: tf.data.Dataset, flag: bool) -> tf.data.Dataset:
        flags = tf.data.Dataset.from_tensors(flag).repeat()
        return tf.data.Dataset.zip((elements, flags))

    # Cached, so that repeat() does not open the pipeline again for each stand-in.
    stand_in = (dataset if whole is None else whole).take(1).cache().repeat()
    return flagged(dataset, True).concatenate(flagged(stand_in, False))


def _check_dataset(dataset: Any, name: str) -> None:
    if not isinstance(dataset, tf.data.Dataset):
        raise RefusedTypeError(
            f"input_fn {name} returned {kind_of(dataset)}, not a tf.data.Dataset: "
            "write return "
            "tf.data.Dataset.from_tensor_slices((features, labels)).batch(32)."
        )
    spec = dataset.element_spec
    if isinstance(spec, tuple) and len(spec) != 2:
        raise RefusedTypeError(
            f"input_fn {name} yields tuples of {len(spec)}: {spec}. It must yield "
            "features or (features, labels); example weights go into a dict of "
            "features, and features that are a tuple come as (features, None)."
        )
    if not tf.nest.flatten(pair_of(spec)[0]):
        raise RefusedTypeError(
            f"input_fn {name} yields no features: {spec}. It must yield at least one "
            "tensor, or a dict of them."
        )
    for place, each in components((pair_of(spec)[0], None)):
        if is_none(each):
            raise RefusedTypeError(
                f"input_fn {name} yields None for {place}: leave it out."
            )
