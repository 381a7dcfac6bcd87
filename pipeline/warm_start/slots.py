"""Recognizes optimizer slots and update counts by their names in other programs' checkpoints.

The slots of a variable R are named:

    R/Adam, R/Adam_1        tf.compat.v1.train; a scope may come before R
    R/adam_m, R/adam_v      BERT
    Adam/R/m, Adam/R/v      Keras 2.10 and before; a scope may come before Adam
    Adam/m/R, Adam/v/R      Keras 2.11 to 2.15
    adam/R_momentum         Keras 3, with _ instead of / in R
"""

import collections
import math
import re
from collections.abc import Collection
from typing import Any

import keras

from ..errors import UserValueError

AVERAGE = "ExponentialMovingAverage"
# The name of each kind of optimizer in tf.compat.v1; its slots in the order in which
# tf.compat.v1 numbers them, with their names in Keras 2.
_KINDS = {
    keras.optimizers.Adam: ("Adam", {"momentum": "m", "velocity": "v"}),
    keras.optimizers.SGD: ("Momentum", {"momentum": "m"}),
    keras.optimizers.Adagrad: ("Adagrad", {"accumulator": "accumulator"}),
    keras.optimizers.Ftrl: ("Ftrl", {"accumulator": "accumulator", "linear": "linear"}),
    keras.optimizers.RMSprop: (
        "RMSProp",
        {"velocity": "rms", "average_gradient": "mg", "momentum": "momentum"},
    ),
    keras.optimizers.Adadelta: (
        "Adadelta",
        {"accumulated_grad": "accum_grad", "accumulated_delta_var": "accum_var"},
    ),
}
_WORDS = {word for _, slots in _KINDS.values() for pair in slots.items() for word in pair}
_WORDS |= {"vhat", "velocity_hat"}
_V1 = re.compile(rf"({'|'.join(name for name, _ in _KINDS.values())}|{AVERAGE})(_\d+)?")
_FLAT = re.compile(rf"(.+?)_({'|'.join(sorted(_WORDS, key=len, reverse=True))})")
_COUNTS = ("global_step", "iter", "iteration", "learning_rate")
_POWER = re.compile(r"(.*/)?beta([12])_power(_\d+)?")


class Slots:
    """The optimizer state in one checkpoint.

    Attributes:
      weights: names that are neither slots nor other variables of optimizers.
      powers: names of Adam's powers of beta_1 and beta_2.
    """

    def __init__(self, names: Collection[str]) -> None:
        """Reads each name once: there may be thousands."""
        self._names = set(names)
        self._flat = {name.replace("/", "_"): name for name in names}
        # By variable and last word: `dense/kernel` and `Adam_1`, or `m`.
        self._found: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
        self.weights: list[str] = []
        self.powers = sorted(filter(_POWER.fullmatch, names))
        for name in sorted(names):
            if (slot := self._parsed(name)) is not None:
                self._found[slot].append(name)
            elif not self._is_count(name):
                self.weights.append(name)

    def slot(self, optimizer: Any, slot: str, variable: str) -> tuple[str, bool] | None:
        """Finds a slot.

        Args:
          optimizer: the Keras optimizer.
          slot: Keras' name of the slot.
          variable: name of the variable in the checkpoint.

        Returns:
          The slot's name and whether tf.compat.v1 wrote it. None if the checkpoint has none or
          several, or if it belongs to another kind of optimizer.
        """
        kind = next((kind for kind in _KINDS if isinstance(optimizer, kind)), None)
        v1, words = _KINDS.get(kind, ("", {}))
        order = [each for each in words if each != "average_gradient" or optimizer.centered]
        if slot not in order:
            return None
        numbered = [v1, *(f"{v1}_{i + 1}" for i in range(len(order)))]
        numbers = [len(self._found.get((variable, leaf), ())) for leaf in numbered]
        found = []
        # More or fewer are those of other optimizers.
        if numbers == [1] * len(order) + [0]:
            found += [(self._found[variable, numbered[order.index(slot)]][0], True)]
        for word in {slot, words[slot]}:
            found += [(name, False) for name in self._found.get((variable, word), ())]
        return found[0] if len(found) == 1 else None

    def count(self) -> str | None:
        """Returns the name of the number of updates, or None if there are none or several."""
        counts = [n for n in self._names if n.rpartition("/")[2] in ("iter", "iteration")]
        if not counts and len(self.powers) <= 2:
            counts = ["global_step"]
        return counts[0] if len(counts) == 1 else None

    def _parsed(self, name: str) -> tuple[str, str] | None:
        """Returns the variable, "" if it is not here, and the last word of a slot, or None."""
        above, _, leaf = name.rpartition("/")
        if above in self._names or (above and _V1.fullmatch(leaf)):
            return self._variable(above), leaf.removeprefix("adam_")
        if leaf in _WORDS and (variable := self._variable(above)):
            return variable, leaf
        if f"{above}/iteration" in self._names and (match := _FLAT.fullmatch(leaf)):
            return self._flat.get(match[1], ""), match[2]
        parts = name.split("/")
        for i, word in enumerate(parts[1:-1], 1):
            if word in _WORDS and (variable := "/".join(parts[i + 1 :])) in self._names:
                return variable, word
        return None

    def _variable(self, above: str) -> str:
        """Returns the variable whose name is the longest end of `Adam/dense/kernel`, or ""."""
        while above and above not in self._names:
            above = above.partition("/")[2]
        return above

    def _is_count(self, name: str) -> bool:
        """Returns whether `name` is a count, or next to one as `Adam/beta_1`."""
        above, _, leaf = name.rpartition("/")
        if leaf in _COUNTS or _POWER.fullmatch(name):
            return True
        return bool(above) and any(f"{above}/{count}" in self._names for count in _COUNTS)


def updates_of_power(name: str, power: float, optimizer: Any) -> int:
    """Returns the number of updates after which Adam's power of beta has a value.

    Args:
      name: name of the power: `beta1_power`, `beta2_power_1`.
      power: its value.
      optimizer: the Keras Adam.

    Raises:
      UserValueError: it is not a power of this optimizer's beta.
    """
    beta = _beta(name, optimizer)
    count = round(math.log(power) / math.log(beta)) - 1 if power > 0 else -1
    if not is_power(name, power, optimizer, count):
        raise UserValueError(
            f"{name} is {power:g}: expected a power of the optimizer's beta, {beta:g}, which is "
            "not 0. Set keras.optimizers.Adam(beta_1=..., beta_2=...) as in that training."
        )
    return count


def is_power(name: str, power: float, optimizer: Any, count: int) -> bool:
    """Returns whether a power of beta has the value that it has after `count` updates."""
    expected = _beta(name, optimizer) ** (count + 1)
    # One float32 rounding for each update; in the end it is 0.
    return count >= 0 and abs(power - expected) <= max((count + 2) * 2**-22 * expected, 1e-30)


def is_named_power(name: str) -> bool:
    """Returns whether a name is that of a power of beta."""
    return _POWER.fullmatch(name) is not None


def _beta(name: str, optimizer: Any) -> float:
    return float(optimizer.beta_1 if _POWER.fullmatch(name)[2] == "1" else optimizer.beta_2)
