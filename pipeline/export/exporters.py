"""Exporters write a SavedModel after an evaluation, if it is the last or the best."""

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np
from absl import logging

from ..contract.averages import AVERAGE, LIVE, measured_on
from ..contract.checks import check, choice, integer
from ..contract.run_config import RunConfig
from ..errors import UserValueError
from ..model_dir import reachable
from ..model_dir.evaluated import check_metric, value_of
from ..model_dir.evaluated import higher_is_better as direction_of
from ..model_dir.files import delete_folder, read_json, write_atomic, writing
from .receivers import SERVING_FN, ServingFn
from .saved_model import exports_in

_RECORD = "best.json"


class Exportable(Protocol):
    """An Estimator, as exporters use it."""

    config: RunConfig

    def export_saved_model(
        self,
        export_dir_base: str,
        serving_input_receiver_fn: ServingFn | None = None,
        *,
        checkpoint_path: str | None = None,
        assets_extra: Mapping[str, str] | None = None,
        weights: str | None = None,
    ) -> str:
        """Writes a SavedModel; returns its directory."""
        ...


class Exporter:
    """Base class of exporters; a subclass decides when to export.

    A subclass that overrides `export` can do anything there; it is called when the files of the
    evaluated checkpoint exist.

    Attributes:
      name: directory below `model_dir/export`.
      serving_input_receiver_fn: see `__init__`.
      assets_extra: see `__init__`.
      weights: see `__init__`.
    """

    default_name = ""
    name = ""
    serving_input_receiver_fn: ServingFn | None = None
    assets_extra: Mapping[str, str] | None = None
    weights: str | None = None

    def __init__(
        self,
        name: str | None = None,
        serving_input_receiver_fn: ServingFn | None = None,
        *,
        exports_to_keep: int | None = 5,
        assets_extra: Mapping[str, str] | None = None,
        weights: str | None = None,
    ) -> None:
        """Checks the arguments.

        Args:
          name: directory below `model_dir/export`; None for the default of the class.
          serving_input_receiver_fn: describes the tensors that a server sends; None for the
            features of the input as they are.
          exports_to_keep: number of exports to keep, the newest ones; None keeps all.
          assets_extra: files to copy to `assets.extra/`: paths by relative name there.
          weights: 'live' or 'average' of `RunConfig.average`; None for the weights that the metric
            of a BestExporter was measured on, else for `RunConfig.average.serve`.

        Raises:
          UserValueError: an argument is out of range.
          UserTypeError: serving_input_receiver_fn is not a function.
        """
        self.name = self.default_name if name is None else name
        kind = type(self).__name__
        check_directory(self.name, f"{kind}.name")
        keep = integer(1, example=5, optional=True)
        check(f"{kind}.exports_to_keep", exports_to_keep, keep)
        check(f"{kind}.serving_input_receiver_fn", serving_input_receiver_fn, SERVING_FN)
        rule = choice(LIVE, AVERAGE)._replace(optional=True)
        check(f"{kind}.weights", weights, rule)
        self.weights = weights
        self.serving_input_receiver_fn = serving_input_receiver_fn
        self.assets_extra = assets_extra
        self._exports_to_keep = exports_to_keep

    @property
    def is_stock(self) -> bool:
        """Whether `export` is the method of this class, which writes a SavedModel."""
        return type(self).export is Exporter.export

    def check(self, metrics: Iterable[str]) -> None:
        """Raises an error if no evaluation with these metrics could be exported.

        Args:
          metrics: names of the metrics of the evaluation.
        """

    def export(
        self,
        estimator: Exportable,
        export_path: str,
        checkpoint_path: str | None,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> str | None:
        """Exports the model if this evaluation calls for it.

        Args:
          estimator: Estimator of the model.
          export_path: directory of this exporter.
          checkpoint_path: path prefix of the checkpoint that was evaluated, whose files are on
            disk; None if nothing is saved.
          eval_result: metrics by name.
          is_the_final_export: whether training has ended.

        Returns:
          Directory of the SavedModel, or None.
        """
        if not self.is_due(export_path, eval_result, is_the_final_export):
            return None
        path = estimator.export_saved_model(
            export_path,
            self.serving_input_receiver_fn,
            checkpoint_path=checkpoint_path,
            assets_extra=self.assets_extra,
            weights=self.weights_of(estimator),
        )
        logging.info("export %s | %s", self.name, path)
        reachable.call(export_path, self._delete_old, export_path)
        self.exported(export_path, eval_result)
        return path

    def _delete_old(self, export_path: str) -> None:
        if self._exports_to_keep is not None:
            for old in exports_in(export_path)[: -self._exports_to_keep]:
                delete_folder(old)

    def weights_of(self, estimator: Exportable) -> str | None:
        """Returns which weights to export: 'live' or 'average'; None for the default."""
        return self.weights

    def is_due(self, export_path: str, eval_result: Mapping[str, Any], is_final: bool) -> bool:
        """Returns whether to export after this evaluation."""
        raise NotImplementedError

    def exported(self, export_path: str, eval_result: Mapping[str, Any]) -> None:
        """Called after an export."""


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
        serving_input_receiver_fn: ServingFn | None = None,
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
        if recorded is None or not reachable.is_watched(export_path):
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
            reachable.call(path, write_atomic, path, json.dumps(record))


def check_directory(name: Any, label: str) -> None:
    """Raises a UserValueError unless `name` is a directory below model_dir/export."""
    path = os.path.normpath(name) if isinstance(name, str) else "."
    if os.path.isabs(path) or path.split("/")[0] in (".", ".."):
        raise UserValueError(
            f"{label} is {name!r}: expected a directory below model_dir/export. Set a name such "
            "as 'best'."
        )
