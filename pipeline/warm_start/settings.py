# SPDX-License-Identifier: Apache-2.0
"""WarmStartSettings: the values that a new run takes, and the names that its patterns match."""

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ..contract.checks import boolean, check_fields, choice, function, repr_short
from ..contract.old_names import hint
from ..contract.weight_averages import AVERAGE, LIVE
from ..errors import UserTypeError, UserValueError
from .vocabulary import VocabInfo

ALL = ".*"
_CHECKS = {
    "learning_rates_and_iterations": boolean(),
    "weights": choice(LIVE, AVERAGE),
    "init_fn": function("a function of the modules", "my_init_fn", optional=True),
}
_EXAMPLES = {
    "var_name_to_vocab_info": (VocabInfo, "{'network/words/embeddings': VocabInfo(...)}"),
    "var_name_to_prev_var_name": (str, "{'network/dense/kernel': 'dense/kernel'}"),
}


@dataclasses.dataclass(frozen=True)
class WarmStartSettings:
    r"""Initial values from a checkpoint, as in tf.estimator.

    They are used once, where model_dir has no checkpoint. The global step, the input position and
    the states of hooks are never taken.

    Everything that is chosen must be in the checkpoint, in the model's shape; otherwise nothing is
    set. In a checkpoint of another program `network/dense/kernel` is looked for under this name,
    as `dense/kernel`, and as `SCOPE/dense/kernel` if all variables there are in one scope. Values
    of another float type are cast. Layers that are built later get their values then.

    Attributes:
      ckpt_to_initialize_from: path prefix of a checkpoint, a model_dir, or `runs/a/best`; also a
        checkpoint of tf.estimator or tf.train.Checkpoint, the folder of a SavedModel, or
        the weights of one Keras model: `.keras`, `.weights.h5`, `.h5`. None if `init_fn` alone
        sets values.
      vars_to_warm_start: regular expression, or a list of them, that must match full names such
        as `network/dense/kernel`. ".*" is the whole model, without optimizers: add
        "optimizer/.*" for its slots. Random streams only by their full name. None: only variables
        with a VocabInfo.
      var_name_to_vocab_info: VocabInfo by name of a variable whose vocabulary differs.
      var_name_to_prev_var_name: names in the checkpoint by names in this model, if they differ. A
        name may be a regular expression with groups: {"network/(.*)": r"bert/\1"}. Slots follow
        their variables, as this project, TensorFlow 1 and Keras 2 name them; give others.
      learning_rates_and_iterations: whether optimizers continue with the checkpoint's number of
        updates, which schedules depend on. Otherwise they begin at 0, unless
        "optimizer/iteration" is in `vars_to_warm_start`. Learning rates are always the configured
        ones.
      weights: "live", or "average" for the averages that a run of this project kept. Averages of
        TensorFlow 1 are variables: {"network/(.*)": r"\1/ExponentialMovingAverage"}.
      init_fn: function of the modules (a dict by name) that sets other values, after those of the
        checkpoint: `modules["network"].head.bias.assign(...)`. Each process calls it and must set
        the same values. It may be called several times before the first step.

    Raises:
      UserError: a field has a wrong value.
    """

    ckpt_to_initialize_from: str | None = None
    vars_to_warm_start: str | Sequence[str] | None = ALL
    var_name_to_vocab_info: Mapping[str, VocabInfo] | None = None
    var_name_to_prev_var_name: Mapping[str, str] | None = None
    learning_rates_and_iterations: bool = False
    weights: str = LIVE
    init_fn: Callable[[dict[str, Any]], None] | None = None

    def __post_init__(self) -> None:
        check_fields(self, _CHECKS)
        path = self.ckpt_to_initialize_from
        if not (isinstance(path, str) and path) and not (path is None and self.init_fn):
            raise UserValueError(
                f"WarmStartSettings.ckpt_to_initialize_from is {path!r}: expected the path of a "
                "checkpoint, or None with init_fn. Set ckpt_to_initialize_from='runs/1'."
            )
        for field, (kind, example) in _EXAMPLES.items():
            given = getattr(self, field)
            given = {} if given is None else given
            if not isinstance(given, Mapping) or not all(
                isinstance(item, kind) for item in given.values()
            ):
                raise UserTypeError(
                    f"WarmStartSettings.{field} is {repr_short(given)}: expected a dict to "
                    f"{kind.__name__}. Set {field}={example}."
                )
            object.__setattr__(self, field, given)
        for pattern in self.patterns if self.vars_to_warm_start else ():
            try:
                re.compile(pattern)
            except (re.error, TypeError) as error:
                raise UserValueError(
                    f"WarmStartSettings.vars_to_warm_start has {pattern!r}: expected a regular "
                    f"expression ({error}). Set vars_to_warm_start='network/.*'."
                ) from error

    @property
    def patterns(self) -> Sequence[str]:
        """Regular expressions of `vars_to_warm_start`; for None the names with a VocabInfo."""
        chosen = self.vars_to_warm_start or list(self.var_name_to_vocab_info)
        return [chosen] if isinstance(chosen, str) else chosen

    def names(self, name: str) -> bool:
        """Returns whether `vars_to_warm_start` has this name written in full."""
        return name in self.patterns

    def matches(self, name: str) -> bool:
        """Returns whether an expression other than ".*" matches."""
        return any(p != ALL and (p == name or _fullmatch(p, name)) for p in self.patterns)

    def previous_name(self, name: str) -> str | None:
        """Returns the name in the checkpoint that the user gave, or None.

        Raises:
          UserValueError: it refers to a group that the expression does not have.
        """
        mapping = self.var_name_to_prev_var_name
        if name in mapping:
            return mapping[name]
        for pattern, previous in mapping.items():
            if match := _fullmatch(pattern, name):
                try:
                    return match.expand(previous)
                except (re.error, IndexError) as error:
                    raise UserValueError(
                        f"var_name_to_prev_var_name has {pattern!r}: {previous!r} ({error}): "
                        r"expected groups of the expression. Set {'network/(.*)': r'bert/\1'}."
                    ) from error
        return None

    def check_used(self, names: Collection[str], chosen: Collection[str]) -> None:
        """Checks that each part of the settings has an effect.

        Args:
          names: names of all variables of the model.
          chosen: names of those to set.

        Raises:
          UserValueError: an expression or a name matches nothing, or one that is not chosen.
        """
        fields = {field: getattr(self, field) for field in _EXAMPLES}
        for field, keys in {"vars_to_warm_start": self.patterns, **fields}.items():
            for key in keys:
                fitting = [name for name in names if key == name or _fullmatch(key, name)]
                if not fitting:
                    raise UserValueError(
                        f"WarmStartSettings.{field} has {key!r}: expected a full name, or an "
                        f"expression that matches one.{hint(key, names, {})} The model has "
                        f"{sorted(names)}."
                    )
                if field != "vars_to_warm_start" and not {*fitting} & {*chosen}:
                    raise UserValueError(
                        f"WarmStartSettings.{field} has {key!r}, which vars_to_warm_start does "
                        f"not choose: expected one of {sorted(chosen)}."
                    )
        if not chosen and self.init_fn is None:
            raise UserValueError(
                f"WarmStartSettings.vars_to_warm_start is {self.vars_to_warm_start!r}: expected an "
                f"expression that chooses some of {sorted(names)}."
            )


def _fullmatch(pattern: str, name: str) -> re.Match[str] | None:
    try:
        return re.fullmatch(pattern, name)
    except re.error:
        return None  # A name that is not an expression, such as one with a bracket.
