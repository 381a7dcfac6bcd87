# SPDX-License-Identifier: Apache-2.0
"""The exporters of a training: after each evaluation, the last one, or the best."""

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ..contract.weight_averages import measured_on
from ..loop.exporter import Exportable, Exporter
from ..model_dir import storage_watchdog
from ..model_dir.evaluation_results import check_metric, value_of
from ..model_dir.evaluation_results import higher_is_better as direction_of
from ..model_dir.files import read_json, write_atomic, writing

_RECORD = "best.json"


class LatestExporter(Exporter):
    """Exports after each evaluation."""

    default_name = "latest"

    def is_due(self, export_path: str, eval_result: Mapping[str, Any], is_final: bool) -> bool:
        """Returns True."""
        return True


class FinalExporter(Exporter):
    """Exports once, after the last evaluation."""

    default_name = "final"

    def is_due(self, export_path: str, eval_result: Mapping[str, Any], is_final: bool) -> bool:
        """Returns whether training has ended."""
        return is_final


class BestExporter(Exporter):
    """Exports a model that is better than all before it, also across restarts.

    The best evaluation is recorded in `best.json` after its export.
    """

    default_name = "best"

    def __init__(
        self,
        name: str | None = None,
        serving_input_receiver_fn: Callable[[], Any] | None = None,
        *,
        metric: str = "loss",
        higher_is_better: bool | None = None,
        compare_fn: Callable[[Mapping[str, Any], Mapping[str, Any]], bool] | None = None,
        exports_to_keep: int | None = 5,
        assets_extra: Mapping[str, str] | None = None,
        weights: str | None = None,
    ) -> None:
        """Sets how two evaluations compare.

        Args:
          name: see `Exporter`.
          serving_input_receiver_fn: see `Exporter`.
          metric: name of the metric that decides.
          higher_is_better: direction of the metric; None if its name shows it.
          compare_fn: function of the best and the current metrics that returns whether the
            current ones are better; it is used instead of `metric`.
          exports_to_keep: see `Exporter`.
          assets_extra: see `Exporter`.
          weights: see `Exporter`.

        Raises:
          UserValueError: the direction is not known.
        """
        super().__init__(
            name,
            serving_input_receiver_fn,
            exports_to_keep=exports_to_keep,
            assets_extra=assets_extra,
            weights=weights,
        )
        if compare_fn is None:
            higher_is_better = direction_of(metric, higher_is_better, "BestExporter")
        self._metric, self._higher, self._compare_fn = metric, higher_is_better, compare_fn
        self._recorded: dict[str, dict[str, float]] = {}

    def check(self, metrics: Iterable[str]) -> None:
        """Raises a UserValueError if the metric is not among those of the evaluation.

        Args:
          metrics: names of the metrics; a metric of several results has `NAME/RESULT`.
        """
        self._recorded = {}  # Of an earlier training.
        if self._compare_fn is None:
            check_metric("BestExporter.metric", self._metric, metrics)

    def is_due(self, export_path: str, eval_result: Mapping[str, Any], is_final: bool) -> bool:
        """Returns whether these metrics are better than the recorded best.

        Raises:
          UserValueError: the metric is missing or is not a number.
        """
        recorded = self._recorded.get(export_path)
        if recorded is None or not storage_watchdog.is_watched(export_path):
            recorded = read_json(os.path.join(export_path, _RECORD), dict)
        if self._compare_fn is not None:
            return recorded is None or bool(self._compare_fn(recorded, eval_result))
        value = value_of("BestExporter.metric", self._metric, eval_result)
        if math.isnan(value):
            return False
        # The record is of another metric if the configuration has changed since.
        before = recorded.get(self._metric) if recorded else None
        if not isinstance(before, float):
            return True
        return value > before if self._higher else value < before

    def weights_of(self, estimator: Exportable) -> str | None:
        """Returns the weights that the metric was measured on, unless `weights` is set."""
        if self.weights is not None or self._compare_fn is not None:
            return self.weights
        return measured_on(self._metric, estimator.config.average)

    def exported(self, export_path: str, eval_result: Mapping[str, Any]) -> None:
        """Records the evaluation."""
        record = {name: float(v) for name, v in eval_result.items() if np.ndim(v) == 0}
        path, self._recorded[export_path] = os.path.join(export_path, _RECORD), record
        with writing(export_path, path):
            storage_watchdog.call(path, write_atomic, path, json.dumps(record))
