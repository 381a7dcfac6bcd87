# SPDX-License-Identifier: Apache-2.0
"""Recognizes optimizer state by the names of TensorFlow 1, Keras 2 and this project.

The slots of a variable R are named:

    R/Adam, R/Adam_1      tf.compat.v1.train; a scope may come before R
    Adam/R/m, Adam/R/v    tf.keras.optimizers.legacy; a scope may come before Adam
    Adam/m/R, Adam/v/R    Keras 2.11 to 2.15; here with the words of Keras 3

Users give other names by `var_name_to_prev_var_name`.
"""

import collections
import re
from collections.abc import Collection
from typing import Any

import keras
import tensorflow as tf

from ..distribute.names import variable_of
from .sources import Origin

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
_V1 = "|".join(["ExponentialMovingAverage", *(name for name, _ in _KINDS.values())])
_KERAS = "|".join(
    ["vhat", *(word for _, slots in _KINDS.values() for pair in slots.items() for word in pair)]
)
_AFTER_VARIABLE = re.compile(rf"(?P<variable>.+)/(?P<slot>({_V1})(_\d+)?|{_KERAS})")
_BEFORE_VARIABLE = re.compile(rf".+?/(?P<slot>{_KERAS})/(?P<variable>.+)")
_COUNTS = ("iter", "iteration")
_NUMBERS = (*_COUNTS, "global_step", "learning_rate")
_POWER = re.compile(r"(.*/)?beta[12]_power(_\d+)?")


class Slots:
    """The optimizer state in one checkpoint.

    Attributes:
      weights: names of all other variables.
      scope: the one scope of the weights with a slash, or "".
    """

    def __init__(self, names: Collection[str]) -> None:
        """Reads each name once: there may be thousands."""
        self._names = set(names)
        # By variable and slot: `dense/kernel` and `Adam_1`, or `m`.
        self._found: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
        self.weights: list[str] = []
        for name in sorted(names):
            if (slot := self._parsed(name)) is not None:
                self._found[slot].append(name)
            elif not self._is_state(name):
                self.weights.append(name)
        scopes = {name.partition("/")[0] for name in self.weights if "/" in name}
        self.scope = f"{scopes.pop()}/" if len(scopes) == 1 else ""

    def origin(self, optimizer: Any, slot: str, variable: str) -> Origin | None:
        """Finds a slot.

        Args:
          optimizer: the optimizer.
          slot: name of the slot in Keras 3.
          variable: name of the variable in the checkpoint.

        Returns:
          None if the checkpoint has none or several, or if it has those of another kind of
          optimizer.
        """
        kind = next((kind for kind in _KINDS if isinstance(optimizer, kind)), None)
        v1, words = _KINDS.get(kind, ("", {}))
        order = [each for each in words if each != "average_gradient" or optimizer.centered]
        if slot not in order:
            return None
        numbered = [v1, *(f"{v1}_{i + 1}" for i in range(len(order)))]
        counts = [len(self._found.get((variable, name), ())) for name in numbered]
        found = []
        # With more or fewer it is another optimizer's.
        if counts == [1] * len(order) + [0]:
            found += [_of_v1(optimizer, self._found[variable, numbered[order.index(slot)]][0])]
        for word in {slot, words[slot]}:
            found += map(Origin, self._found.get((variable, word), ()))
        return found[0] if len(found) == 1 else None

    def count(self) -> str | None:
        """Returns the name of the number of updates, or None if there are none or several."""
        counts = [n for n in self._names if n.rpartition("/")[2] in _COUNTS] or ["global_step"]
        return counts[0] if len(counts) == 1 else None

    def _parsed(self, name: str) -> tuple[str, str] | None:
        """Returns the variable and the name of a slot; None for other variables."""
        if match := _AFTER_VARIABLE.fullmatch(name):
            variable = match["variable"]
            while variable and variable not in self._names:
                variable = variable.partition("/")[2]
            if variable:
                return variable, match["slot"]
        match = _BEFORE_VARIABLE.fullmatch(name)
        if match and match["variable"] in self._names:
            return match["variable"], match["slot"]
        return None

    def _is_state(self, name: str) -> bool:
        """Returns whether `name` is below a variable, a number, or next to one: `Adam/beta_1`."""
        above, _, last = name.rpartition("/")
        if above in self._names or last in _NUMBERS or _POWER.fullmatch(name):
            return True
        return bool(above) and any(f"{above}/{number}" in self._names for number in _NUMBERS)


def _of_v1(optimizer: Any, name: str) -> Origin:
    # tf.compat.v1's momentum sums gradients, Keras' the updates that they make. A subclass
    # with its own formula is that of tf.compat.v1.
    if (
        isinstance(optimizer, keras.optimizers.SGD)
        and type(optimizer).update_step is keras.optimizers.SGD.update_step
    ):
        # Of a schedule the rate at the optimizer's iteration.
        rate = float(tf.convert_to_tensor(variable_of(optimizer.learning_rate)))
        return Origin(name, "times minus the learning rate", lambda v: -rate * v)
    return Origin(name)
