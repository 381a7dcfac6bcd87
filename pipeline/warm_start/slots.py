"""Finds what other programs' optimizers have kept: slots, and counts of updates."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.foreign.keras_file import KerasFile
from pipeline.foreign.slot_names import SlotNames
from pipeline.process.refusals import RefusedValueError
from pipeline.strategy import variables
from pipeline.warm_start.origins import Origin

# By the kind of optimizer, its slots in the order in which tf.compat.v1 numbers them:
# the name here, and the names elsewhere.
_KINDS = {
    keras.optimizers.Adam: {"momentum": ("m",), "velocity": ("v",)},
    keras.optimizers.SGD: {"momentum": ("momentum", "m")},
    keras.optimizers.Adagrad: {"accumulator": ("accumulator",)},
    keras.optimizers.Ftrl: {"accumulator": ("accumulator",), "linear": ("linear",)},
    keras.optimizers.RMSprop: {
        "velocity": ("rms", "velocity"),
        "average_gradient": ("mg", "average_gradient"),
        "momentum": ("momentum",),
    },
    keras.optimizers.Adadelta: {
        "accumulated_grad": ("accum_grad", "accumulated_grad"),
        "accumulated_delta_var": ("accum_var", "accumulated_delta_var"),
    },
}
# Of several optimizers the later ones' have a number behind.
_POWER = re.compile(r"(^|/)beta[12]_power(_\d+)?$")
# The names that tf.compat.v1's optimizers give to slots where the user gave none.
_V1_NAMES = {
    "Adam": keras.optimizers.Adam,
    "Momentum": keras.optimizers.SGD,
    "Adagrad": keras.optimizers.Adagrad,
    "Ftrl": keras.optimizers.Ftrl,
    "RMSProp": keras.optimizers.RMSprop,
    "Adadelta": keras.optimizers.Adadelta,
    # Their slots are of another kind, whatever their number.
    **dict.fromkeys(("AdaMax", "AdagradDA", "LARSOptimizer", "AddSign", "PowerSign")),
    "ExponentialMovingAverage": None,
}


class Slots:
    """The state of other programs' optimizers, for one optimizer of this run."""

    def __init__(
        self,
        source: Any,
        slot_names: SlotNames,
        prefix: str,
        optimizer: Any,
        weights: Mapping[str, str],
    ) -> None:
        """Looks at nothing yet.

        Args:
          source: the checkpoint or file.
          slot_names: the names in it, as optimizers give them.
          prefix: full name prefix of the optimizer, `optimizer/`.
          optimizer: the Keras optimizer.
          weights: names there of the variables here.
        """
        self._source, self._names, self._prefix = source, slot_names, prefix
        self._optimizer, self._weights = optimizer, weights
        kinds = (each for each in _KINDS if isinstance(optimizer, each))
        self._kind = next(kinds, None)

    def slot(self, name: str) -> Origin | None:
        """Returns where the value of a slot comes from; None where it is not there.

        Args:
          name: full name of the slot, `optimizer/momentum/network/dense/kernel`.
        """
        kept, _, reference = name.removeprefix(self._prefix).partition("/")
        there = self._weights.get(reference)
        if there is None or self._kind is None or kept not in _KINDS[self._kind]:
            return None
        found = [*self._places(kept, there)]
        return found[0] if len(found) == 1 else None

    def iteration(self) -> Origin | None:
        """Returns where the number of updates comes from; None where it is not there.

        Raises:
          ValueError: Adam's powers of beta are of other betas than here.
        """
        names = self._source.shapes
        counts = [n for n in names if re.search(r"(^|/)(iter|iteration)$", n)]
        counts = counts or [n for n in names if n == "optimizer/vars/0"]
        step = "global_step" if "global_step" in names else None
        if len(counts) == 1:
            return Origin(counts[0])
        if counts:
            return None  # Of several optimizers: the user says which.
        powers = [
            n for n in names if _POWER.search(n) and all(p in names for p in _pair(n))
        ]
        if not powers or not isinstance(self._optimizer, keras.optimizers.Adam):
            return Origin(step) if step else None
        return self.count(powers[0]) if len(powers) == 2 else None

    def count(self, there: str) -> Origin:
        """Returns where the number of updates comes from, by a name that is there.

        Args:
          there: a count's name, or that of one of Adam's two powers of beta.

        Raises:
          ValueError: Adam's powers of beta are of other betas than here.
        """
        names = self._source.shapes
        if not (_POWER.search(there) and all(n in names for n in _pair(there))):
            return Origin(there)
        step = "global_step" if "global_step" in names else None
        return self._of_powers(_pair(there), step)

    def rate(self) -> Origin | None:
        """Returns where the learning rate comes from; None where it is not there."""
        names = self._source.shapes
        found = [n for n in names if re.search(r"(^|/)learning_rate$", n)]
        return Origin(found[0]) if len(found) == 1 else None

    def _places(self, kept: str, there: str) -> Iterator[Origin]:
        if not isinstance(self._source, KerasFile):
            yield from self._numbered(kept, there)
            words = dict.fromkeys((*_KINDS[self._kind][kept], kept))
            yield from map(Origin, self._names.slots(there, words))

    def _numbered(self, kept: str, there: str) -> Iterator[Origin]:
        """Yields the slot of tf.compat.v1, which numbers those of one optimizer."""
        below = [
            names
            for base, names in self._names.numbered.get(there, {}).items()
            if _V1_NAMES.get(base.rpartition("/")[2], self._kind) is self._kind
        ]
        order = list(_KINDS[self._kind])
        if self._kind is keras.optimizers.RMSprop:
            # Without an average of gradients the momentum comes second.
            order = order if getattr(self._optimizer, "centered", False) else order[::2]
        for names in below:
            # Others are of another kind of optimizer, or of two of this kind.
            if sorted(names) == list(range(len(order))):
                yield self._converted(names[order.index(kept)])

    def _converted(self, name: str) -> Origin:
        if self._kind is not keras.optimizers.SGD:
            return Origin(name)
        # tf.compat.v1 adds up gradients, Keras the steps that they make. A formula of
        # one's own is that of tf.compat.v1, see docs/from_tf_optimizers.md.
        if type(self._optimizer).update_step is not keras.optimizers.SGD.update_step:
            return Origin(name, "as it stands: the optimizer's update_step is its own")
        return Origin(
            name, "by the learning rate", lambda value: -self._rate_now() * value
        )

    def _rate_now(self) -> float:
        rate = variables.given_rate(self._optimizer)
        if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            count = self.iteration()
            number = 0 if count is None else int(self._source.value(count.name))
            return float(rate(tf.constant(number)))
        return float(variables.raw(rate).numpy())

    def _of_powers(self, powers: list[str], step: str | None) -> Origin:
        values = [float(self._source.value(name)) for name in powers]
        betas = [float(self._optimizer.beta_1), float(self._optimizer.beta_2)]
        likely = [int(self._source.value(step))] if step else []
        power, beta = values[1], betas[1]
        if power > 0:
            likely.append(round(math.log(power) / math.log(beta)) - 1)
        for number in likely:
            pairs = zip(values, betas, strict=True)
            if number >= 0 and all(_is_power(p, b, number + 1) for p, b in pairs):
                made = _always(number)
                return Origin(powers[1], f"{number} updates", made, tf.int64)
        raise RefusedValueError(
            f"{self._source.path} has {powers[0]} {values[0]:.6g} and {powers[1]} "
            f"{values[1]:.6g}, which no number of updates with beta_1={betas[0]:g} and "
            f"beta_2={betas[1]:g} makes: write the betas that it was trained with, "
            "keras.optimizers.Adam(beta_1=..., beta_2=...), or leave its iterations "
            "out."
        )


def _pair(power: str) -> list[str]:
    """Returns the names of both powers of the optimizer that has one of them."""
    return [_POWER.sub(rf"\1beta{i}_power\2", power) for i in (1, 2)]


def _always(number: int) -> Callable[[Any], np.int64]:
    return lambda value: np.int64(number)


def _is_power(power: float, beta: float, exponent: int) -> bool:
    """Whether a float32 that was multiplied step by step is beta ** exponent."""
    expected = exponent * math.log(beta)
    if power <= 0 or expected < -86:  # Below what float32 holds.
        return power < 1e-30 and expected < -69
    return abs(math.log(power) - expected) < (exponent + 2) * 2**-22
