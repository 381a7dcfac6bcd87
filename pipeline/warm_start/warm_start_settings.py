"""WarmStartSettings: what a run takes over from elsewhere before its first step."""

import dataclasses
import re
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import Any

from pipeline.contract.averages import AVERAGE, LIVE
from pipeline.mistakes.checks import kind_of
from pipeline.model_dir import paths
from pipeline.process.refusals import RefusedTypeError, RefusedValueError
from pipeline.warm_start.vocabulary import VocabInfo

_SEED = re.compile(r".+/seed_generator_state(_\d+)?")


@dataclasses.dataclass(frozen=True)
class WarmStartSettings:
    """A choice of what to take over from another run, as in tf.estimator.

    The global step is never taken over: the run counts from 0.

    Attributes:
      ckpt_to_initialize_from: a checkpoint's path prefix, a model_dir, or its best
        checkpoint: "runs/a/best". One of tf.estimator's or tf.train.Checkpoint's, a
        SavedModel, or a file of Keras', `.keras` or `.weights.h5`, is taken as well.
        None where `init_fn` alone sets values.
      vars_to_warm_start: regular expression, or a list of them, that names such as
        `network/dense/kernel` match in full. None for all of the model: weights,
        frozen ones too, moving statistics and tables; neither optimizers nor random
        streams.
      var_name_to_prev_var_name: names in the checkpoint by the names in this model,
        where the two differ. A name may be a regular expression that names here match
        in full, with its groups in the name there: {"network/(.*)": r"bert/\\1"}.
      learning_rates_and_iterations: whether optimizers go on with the checkpoint's
        learning rates, and with its iterations, which schedules go by. False leaves
        the rates as configured and begins at iteration 0, whatever the expressions
        match; only a name that is written out, `optimizer/iteration`, is taken.
      weights: "live", or "average" for the averages of the weights, in their place.
      var_name_to_vocab_info: `VocabInfo` by the names of tables whose vocabulary is
        another one here.
      init_fn: function of the modules, a dict by name, that sets anything else by
        `modules["network"].head.kernel.assign(...)`, say. It is called before the first
        step in each process, which are to set the same values, after the checkpoint's
        values were taken; and again where another mode builds more layers before.
    """

    ckpt_to_initialize_from: str | None = None
    vars_to_warm_start: str | Sequence[str] | None = None
    var_name_to_prev_var_name: Mapping[str, str] = dataclasses.field(
        default_factory=dict
    )
    learning_rates_and_iterations: bool = False
    weights: str = LIVE
    var_name_to_vocab_info: Mapping[str, VocabInfo] = dataclasses.field(
        default_factory=dict
    )
    init_fn: Callable[[dict[str, Any]], None] | None = None

    def __post_init__(self) -> None:
        self._check_source()
        if self.weights not in (LIVE, AVERAGE):
            raise RefusedValueError(
                f"WarmStartSettings.weights is {self.weights!r}: write 'live' or "
                "'average'."
            )
        for pattern in self.patterns:
            try:
                re.compile(pattern)
            except (re.error, TypeError) as error:
                raise RefusedValueError(
                    f"vars_to_warm_start has {pattern!r}, which is no regular "
                    f"expression ({error}): write 'network/.*', say."
                ) from error
        kinds = {"var_name_to_prev_var_name": str, "var_name_to_vocab_info": VocabInfo}
        for field, kind in kinds.items():
            if getattr(self, field) is None:  # As tf.estimator's are by default.
                object.__setattr__(self, field, {})
            _check_mapping(field, getattr(self, field), kind)

    def _check_source(self) -> None:
        if self.init_fn is not None and not callable(self.init_fn):
            raise RefusedTypeError(
                f"WarmStartSettings.init_fn is {kind_of(self.init_fn)}: write a "
                "function of the modules, def init_fn(modules): ..."
            )
        if self.ckpt_to_initialize_from is not None:
            path = self.ckpt_to_initialize_from and paths.normal(
                self.ckpt_to_initialize_from
            )
            object.__setattr__(self, "ckpt_to_initialize_from", path)
        elif self.init_fn is None:
            raise RefusedValueError(
                "WarmStartSettings.ckpt_to_initialize_from is None: write the path of "
                "a checkpoint, 'runs/1', or an init_fn."
            )

    @property
    def patterns(self) -> Sequence[str]:
        """The regular expressions, in a list; empty where nothing was chosen."""
        chosen = self.vars_to_warm_start
        return [chosen] if isinstance(chosen, str) else chosen or ()

    def mapped(self, name: str, own: Container[str]) -> str | None:
        """Returns the name in the checkpoint that the user gave; None for none.

        Args:
          name: name in this model.
          own: all names in this model, which are no expressions.
        """
        names = self.var_name_to_prev_var_name
        if name in names:
            return names[name]
        for pattern, there in names.items():
            match = None if pattern in own else _match(pattern, name)
            if match is not None:
                return _expanded(match, there)
        return None

    def idle_names(self, own: Collection[str]) -> list[str]:
        """Returns the names of both mappings that stand for none of the model's.

        Args:
          own: all names in this model.
        """
        idle = [n for n in self.var_name_to_vocab_info if n not in own]
        for pattern in self.var_name_to_prev_var_name:
            if pattern not in own and not any(_match(pattern, name) for name in own):
                idle.append(pattern)
        return sorted(set(idle))

    def idle_patterns(self, own: Collection[str]) -> list[str]:
        """Returns the expressions of `vars_to_warm_start` that match no name.

        Args:
          own: all names in this model.
        """
        return [
            pattern
            for pattern in self.patterns
            if not any(re.fullmatch(pattern, name) for name in own)
        ]

    def left_out(self, name: str, value: Any, optimizer: str | None) -> str | None:
        """Returns why a variable or table is left as it is; None: it is taken over.

        Args:
          name: its full name.
          value: the variable or table.
          optimizer: the name prefix of the optimizer that it belongs to, or None.
        """
        counts = optimizer is not None and is_count(name, value, optimizer)
        if counts and self.learning_rates_and_iterations:
            return None
        if self.vars_to_warm_start is None:
            if optimizer is not None:
                return "an optimizer's; choose it by vars_to_warm_start"
            if is_seed(name):
                return "a random stream; choose it by vars_to_warm_start"
            return None
        if not any(re.fullmatch(pattern, name) for pattern in self.patterns):
            return "not in vars_to_warm_start"
        if counts and name not in self.patterns:
            return "only by learning_rates_and_iterations=True"
        return None


def is_seed(name: str) -> bool:
    """Whether a name is a random stream's.

    Args:
      name: its full name.
    """
    return _SEED.fullmatch(name) is not None


def is_count(name: str, value: Any, optimizer: str) -> bool:
    """Whether a value is an optimizer's learning rate or iterations, or goes with them.

    Such a value is a scalar of the optimizer's own; a slot stands below a variable.

    Args:
      name: its full name.
      value: the variable.
      optimizer: the optimizer's name prefix.
    """
    return "/" not in name.removeprefix(optimizer) and value.shape.rank == 0


def _check_mapping(field: str, value: Any, kind: type) -> None:
    lines = {
        "var_name_to_prev_var_name": "{'network/dense/kernel': 'dense/kernel'}",
        "var_name_to_vocab_info": "{'network/words/embeddings': VocabInfo(...)}",
    }
    if not isinstance(value, Mapping) or not all(
        isinstance(item, kind) for item in value.values()
    ):
        # tf.estimator has the vocabularies in the place that names have here.
        swapped = isinstance(value, Mapping) and any(
            isinstance(item, (str, VocabInfo)) for item in value.values()
        )
        field = next(f for f in lines if (f == field) != swapped)
        raise RefusedTypeError(
            f"WarmStartSettings is given {kind_of(value)}: write "
            f"{field}={lines[field]}."
        )


def _match(pattern: str, name: str) -> re.Match[str] | None:
    try:
        return re.fullmatch(pattern, name)
    except re.error:
        return None  # A name with brackets, say, that is no expression.


def _expanded(match: re.Match[str], there: str) -> str:
    try:
        return match.expand(there)
    except (re.error, IndexError) as error:
        raise RefusedValueError(
            f"var_name_to_prev_var_name has {match.re.pattern!r}: {there!r}, in which "
            f"a group is none ({error}): write {{'network/(.*)': r'bert/\\1'}}, say."
        ) from error
