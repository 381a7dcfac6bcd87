"""Recognizes optimizer slots and update counts by their names in other programs' checkpoints.

The slots of a variable R are named:

    R/Adam, R/Adam_1        tf.compat.v1.train; a scope may come before R
    R/adam_m, R/adam_v      BERT
    Adam/R/m, Adam/R/v      Keras 2.10 and before; a scope may come before Adam
    Adam/m/R, Adam/v/R      Keras 2.11 to 2.15
    adam/R_momentum         Keras 3, with _ instead of / in R
"""

import math
import re
from collections.abc import Collection
from typing import Any

import keras
import numpy as np

from ..errors import UserValueError

# Slots of each kind of optimizer, in the order in which tf.compat.v1 numbers them, with the
# names that other programs use.
_KINDS = {
    keras.optimizers.Adam: {"momentum": ("m",), "velocity": ("v",)},
    keras.optimizers.SGD: {"momentum": ("m",)},
    keras.optimizers.Adagrad: {"accumulator": ()},
    keras.optimizers.Ftrl: {"accumulator": (), "linear": ()},
    keras.optimizers.RMSprop: {"velocity": ("rms",), "average_gradient": ("mg",), "momentum": ()},
    keras.optimizers.Adadelta: {
        "accumulated_grad": ("accum_grad",),
        "accumulated_delta_var": ("accum_var",),
    },
}
_WORDS = {
    *(word for kind in _KINDS.values() for slot, words in kind.items() for word in (slot, *words)),
    "vhat",
    "velocity_hat",
}
_V1_KINDS = {
    "Adam": keras.optimizers.Adam,
    "Momentum": keras.optimizers.SGD,
    "Adagrad": keras.optimizers.Adagrad,
    "Ftrl": keras.optimizers.Ftrl,
    "RMSProp": keras.optimizers.RMSprop,
    "Adadelta": keras.optimizers.Adadelta,
}
AVERAGE = "ExponentialMovingAverage"
_V1 = re.compile(rf"({'|'.join([*_V1_KINDS, AVERAGE])})(?:_(\d+))?")
_FLAT = re.compile(rf"(.+?)_({'|'.join(sorted(_WORDS, key=len, reverse=True))})")
_COUNTS = ("global_step", "iter", "iteration", "learning_rate")
_POWER = re.compile(r"(.*/)?beta([12])_power(_\d+)?")


class Slots:
    """The optimizer state in one checkpoint.

    Attributes:
      weights: names that are neither slots nor other variables of optimizers.
    """

    def __init__(self, names: Collection[str]) -> None:
        """Reads each name once: there may be thousands."""
        self._names = set(names)
        self._slots: set[str] = set()
        # Slot names by variable and word; of tf.compat.v1 by variable and optimizer name, then
        # by scope and number.
        self._by_word: dict[tuple[str, str], list[str]] = {}
        self._numbered: dict[tuple[str, str], dict[str, dict[int, str]]] = {}
        self._flat = {name.replace("/", "_"): name for name in self._names}
        for name in self._names:
            self._read(name)
        self.weights = [
            name for name in sorted(names) if name not in self._slots and not self._is_count(name)
        ]

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
        if kind is None or slot not in _KINDS[kind]:
            return None
        order = list(_KINDS[kind])
        if kind is keras.optimizers.RMSprop and not optimizer.centered:
            order.remove("average_gradient")
        found = []
        for base in [base for base, of in _V1_KINDS.items() if of is kind and slot in order]:
            for numbers in self._numbered.get((variable, base), {}).values():
                if sorted(numbers) == list(range(len(order))):
                    found.append((numbers[order.index(slot)], True))
        for word in (slot, *_KINDS[kind][slot]):
            found += [(name, False) for name in self._by_word.get((variable, word), ())]
        return found[0] if len(found) == 1 else None

    def count(self) -> str | None:
        """Returns the name of the number of updates, or None if there are none or several."""
        counts = [n for n in self._names if n.rpartition("/")[2] in ("iter", "iteration")]
        if not counts and "global_step" in self._names and len(self.powers()) <= 2:
            return "global_step"
        return counts[0] if len(counts) == 1 else None

    def powers(self) -> list[str]:
        """Returns the names of Adam's powers of beta_1 and beta_2."""
        return sorted(name for name in self._names if _POWER.fullmatch(name))

    def _read(self, name: str) -> None:
        above, _, leaf = name.rpartition("/")
        variable = self._longest_end(above)
        if above and (match := _V1.fullmatch(leaf)):
            self._slots.add(name)
            if variable:
                scopes = self._numbered.setdefault((variable, match[1]), {})
                scope = above.removesuffix(variable)
                scopes.setdefault(scope, {})[int(match[2] or 0)] = name
        elif above in self._names:
            self._slots.add(name)
            self._add(name, above, leaf.removeprefix("adam_"))
        elif leaf in _WORDS and variable:
            self._add(name, variable, leaf)
        elif f"{above}/iteration" in self._names and (match := _FLAT.fullmatch(leaf)):
            self._add(name, self._flat.get(match[1]), match[2])
        else:
            parts = name.split("/")
            for i, word in enumerate(parts[1:-1], 1):
                if word in _WORDS and (rest := "/".join(parts[i + 1 :])) in self._names:
                    self._add(name, rest, word)

    def _add(self, name: str, variable: str | None, word: str) -> None:
        if variable and word in _WORDS:
            self._slots.add(name)
            self._by_word.setdefault((variable, word), []).append(name)

    def _longest_end(self, above: str) -> str:
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
    logarithm = (count + 1) * math.log(_beta(name, optimizer))
    if power <= 0 or logarithm < math.log(np.finfo(np.float32).tiny):
        return power < 1e-30 and logarithm < -69
    # One float32 rounding for each update.
    return count >= 0 and abs(math.log(power) - logarithm) < (count + 2) * 2**-22


def is_named_power(name: str) -> bool:
    """Returns whether a name is that of a power of beta."""
    return _POWER.fullmatch(name) is not None


def _beta(name: str, optimizer: Any) -> float:
    return float(optimizer.beta_1 if _POWER.fullmatch(name)[2] == "1" else optimizer.beta_2)
