"""Tells optimizers' variables from weights, by their names in a checkpoint.

Of the variable `R` they are:

    R/Adam, R/Adam_1            tf.compat.v1.train, maybe below a scope's name;
                                R/adam_m, R/adam_v in BERT's own
    Adam/R/m, Adam/R/v          tf.keras.optimizers.legacy, maybe below `training/`
    Adam/m/R, Adam/v/R          tf.keras.optimizers of 2.11 to 2.15
    adam/R_momentum             Keras 3, where R has _ in the place of /
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

# The names that optimizers have given to slots, but tf.compat.v1's, which numbers them.
WORDS = frozenset(
    [
        "m",
        "v",
        "vhat",
        "momentum",
        "velocity",
        "velocity_hat",
        "accumulator",
        "linear",
        "rms",
        "mg",
        "average_gradient",
        "accum_grad",
        "accum_var",
        "accumulated_grad",
        "accumulated_delta_var",
    ]
)
# What tf.compat.v1's optimizers call themselves, and number.
_V1 = re.compile(
    r"(Adam|Momentum|Adagrad|Ftrl|RMSProp|Adadelta|ExponentialMovingAverage)(_\d+)?"
)
_COUNTS = ("global_step", "iter", "iteration", "learning_rate")
_FLAT = re.compile(rf"^(.+?)_({'|'.join(sorted(WORDS, key=len, reverse=True))})$")


class SlotNames:
    """The names in one checkpoint, read as optimizers give them.

    Attributes:
      numbered: by a variable, and the name of tf.compat.v1's optimizer, with its scope
        where it has one, the names of its slots by their numbers.
    """

    def __init__(self, names: Collection[str]) -> None:
        """Reads the names once: there may be thousands.

        Args:
          names: names in the checkpoint.
        """
        self._names = names if isinstance(names, (set, dict)) else set(names)
        self._slots: dict[tuple[str, str], list[str]] = {}
        self.numbered: dict[str, dict[str, dict[int, str]]] = {}
        self._taken: set[str] = set()
        flat = {name.replace("/", "_"): name for name in self._names}
        for name in self._names:
            above, _, leaf = name.rpartition("/")
            if above in self._names:
                self._below(name, above, leaf)
            elif _V1.fullmatch(leaf):
                # Slots of a partition below a scope, `a/art_0/Adam`, are of none.
                self._taken.add(name)
                if reference := self._reference(above):
                    self._below(name, reference, leaf, above.removesuffix(reference))
            elif leaf in WORDS:
                self._add(name, self._reference(above), leaf)
            elif f"{above}/iteration" in self._names:
                reference, _, word = _FLAT.sub(r"\1/\2", leaf).rpartition("/")
                self._add(name, flat.get(reference), word)
            self._behind(name)

    def slots(self, reference: str, words: Collection[str]) -> list[str]:
        """Returns the names of a variable's slots that have a name of their own.

        Args:
          reference: name of the variable.
          words: names that the slot may have.
        """
        return [n for word in words for n in self._slots.get((reference, word), ())]

    def weights(self, shapes: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the shapes of what may be a weight, in order of the names.

        Args:
          shapes: shapes in the checkpoint, by name.
        """
        return {
            name: shapes[name]
            for name in sorted(shapes)
            if name not in self._taken and not self._is_setting(name)
        }

    def _is_setting(self, name: str) -> bool:
        """Whether a name is a count, or stands beside an optimizer's: `Adam/beta_1`."""
        above, _, leaf = name.rpartition("/")
        beside = (f"{above}/{count}" in self._names for count in _COUNTS)
        if leaf in _COUNTS or name.startswith("optimizer/"):
            return True
        return bool(above) and any(beside)

    def _add(self, name: str, reference: str | None, word: str) -> None:
        if reference is not None:
            self._taken.add(name)
            self._slots.setdefault((reference, word), []).append(name)

    def _below(self, name: str, above: str, leaf: str, scope: str = "") -> None:
        self._taken.add(name)
        if (word := leaf.removeprefix("adam_")) in WORDS:
            self._add(name, above, word)
            return
        match = re.fullmatch(r"(.+?)(?:_(\d+))?", leaf)
        bases = self.numbered.setdefault(above, {})
        bases.setdefault(scope + match[1], {})[int(match[2] or 0)] = name

    def _reference(self, above: str) -> str | None:
        """Returns the variable whose name is the longest end of `Adam/dense/kernel`."""
        while above and above not in self._names:
            above = above.partition("/")[2]
        return above or None

    def _behind(self, name: str) -> None:
        """Adds `Adam/m/R`, where R is a variable."""
        parts = name.split("/")
        for i, word in enumerate(parts[1:-1], start=1):
            reference = "/".join(parts[i + 1 :])
            if word in WORDS and reference in self._names:
                self._add(name, reference, word)
