# SPDX-License-Identifier: Apache-2.0
"""The evaluations of a training, and their results."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..contract.hooks import SavingListener
from ..loop.specs import EvalSpec


class Results(SavingListener):
    """The evaluations of a training, and the last result of each.

    `train_and_evaluate` passes it to `Estimator.train` as one of the saving listeners, as
    tf.estimator does, so that a subclass can override `train`.

    Attributes:
      specs: the evaluations.
      metrics: metrics of the last evaluation, by name of the EvalSpec.
      exports: what each exporter returned after the last evaluation, by name of the EvalSpec.
    """

    def __init__(self, specs: Sequence[EvalSpec] = ()) -> None:
        """Takes the evaluations, without results."""
        self.specs = tuple(specs)
        self.metrics: dict[str, Mapping[str, Any]] = {}
        self.exports: dict[str, list[Any]] = {}

    @staticmethod
    def split(
        listeners: Sequence[SavingListener],
    ) -> tuple["Results", list[SavingListener]]:
        """Returns the Results among the listeners, or empty ones, and the other listeners."""
        found = [each for each in listeners if isinstance(each, Results)]
        return found[0] if found else Results(), [each for each in listeners if each not in found]

    def folder(self, spec: EvalSpec) -> str:
        """Returns the folder of an evaluation below `model_dir/export`; '' for a single one."""
        return spec.name if len(self.specs) > 1 else ""

    def last(self) -> tuple[Any, Any] | None:
        """Returns metrics and exports; by name if there are several; None without evaluations."""
        if not self.metrics:
            return None
        if len(self.specs) > 1:
            return self.metrics, self.exports
        [name] = self.metrics
        return self.metrics[name], self.exports[name]
