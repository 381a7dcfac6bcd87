"""Exporters: which evaluations leave a SavedModel, and what a server sends it."""

import json
import math
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from absl import logging

from pipeline import atomic_file, saved_model, storage, user_errors
from pipeline.checks import kind_of
from pipeline.saved_model import (
    ServingFn,
    ServingInputReceiver,
    build_parsing_serving_input_receiver_fn,
    build_raw_serving_input_receiver_fn,
)

__all__ = [
    "BestExporter",
    "Exporter",
    "FinalExporter",
    "LatestExporter",
    "ServingFn",
    "ServingInputReceiver",
    "build_parsing_serving_input_receiver_fn",
    "build_raw_serving_input_receiver_fn",
]

_RECORD = "best.json"


class Exportable(Protocol):
    """What an exporter needs of an Estimator."""

    def export_saved_model(
        self,
        export_dir_base: str,
        serving_input_receiver_fn: ServingFn | None = None,
        *,
        checkpoint_path: str | None = None,
    ) -> str:
        """Writes a SavedModel and returns its directory."""


class Exporter:
    """Called after each evaluation of train_and_evaluate.

    One of your own defines `export`.
    """

    default_name: str | None = None

    def __init__(
        self,
        name: str | None = None,
        serving_input_receiver_fn: ServingFn | None = None,
        *,
        exports_to_keep: int | None = 5,
    ) -> None:
        """
        Args:
          name: the directory below `model_dir/export`; None for the class's default.
          serving_input_receiver_fn: what a server is sent; None for the raw features
            of the training or evaluation input.
          exports_to_keep: the newest that stay; None for all.

        Raises:
          TypeError: the name is no string.
          ValueError: no name, one that leads elsewhere, or `exports_to_keep` is not
            positive.
        """
        name = name or self.default_name
        if not name:
            raise ValueError(
                f"{type(self).__name__} has no name, and so no directory: write "
                f"{type(self).__name__}(name='mine')."
            )
        if not isinstance(name, str):
            raise TypeError(
                f"the name of {type(self).__name__} is {kind_of(name)}: write "
                f"{type(self).__name__}(name='mine', serving_input_receiver_fn=...)."
            )
        if os.path.isabs(name) or ".." in name.split("/"):
            raise ValueError(
                f"the name of {type(self).__name__} is {name!r}, which leads out of "
                "model_dir/export: write a name such as 'mine'."
            )
        if exports_to_keep is not None and exports_to_keep <= 0:
            raise ValueError(
                f"exports_to_keep is {exports_to_keep}; it must be positive, or None "
                "to keep all."
            )
        self.name = name
        self.serving_input_receiver_fn = serving_input_receiver_fn
        self._exports_to_keep = exports_to_keep

    @property
    def is_stock(self) -> bool:
        """Whether `export` is this class' own, which writes SavedModels alone."""
        return type(self).export is Exporter.export

    def export(
        self,
        estimator: Exportable,
        export_path: str,
        checkpoint_path: str | None,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> str | None:
        """Exports, if this evaluation is one to export.

        Args:
          estimator: whose model it is.
          export_path: the directory of this exporter.
          checkpoint_path: checkpoint that was evaluated; None for what is live. Its
            files are there for a class that overrides this method.
          eval_result: what `evaluate` returned.
          is_the_final_export: whether training has ended.

        Returns:
          The SavedModel's directory, or None where nothing was exported.
        """
        due = user_errors.call_method(
            "exporter", self, "_is_due", export_path, eval_result, is_the_final_export
        )
        if not due:
            return None
        path = self._export(estimator, export_path, checkpoint_path)
        with storage.writing(export_path, "the record of the export", only_named=True):
            self._after_export(export_path, eval_result)
        return path

    def _is_due(
        self, export_path: str, eval_result: Mapping[str, Any], is_final: bool
    ) -> bool:
        raise NotImplementedError

    def _after_export(self, export_path: str, eval_result: Mapping[str, Any]) -> None:
        """Once the SavedModel is there."""

    def _export(
        self, estimator: Exportable, export_path: str, checkpoint_path: str | None
    ) -> str:
        path = estimator.export_saved_model(
            export_path,
            self.serving_input_receiver_fn,
            checkpoint_path=checkpoint_path,
        )
        logging.info("export | %s | %s", self.name, path)
        if self._exports_to_keep is not None:
            for old in saved_model.existing_exports(export_path)[
                : -self._exports_to_keep
            ]:
                tf.io.gfile.rmtree(old)
        return path


class LatestExporter(Exporter):
    """Exports after every evaluation."""

    default_name = "latest"

    def _is_due(
        self, export_path: str, eval_result: Mapping[str, Any], is_final: bool
    ) -> bool:
        return True


class FinalExporter(Exporter):
    """Exports once, after the last evaluation."""

    default_name = "final"

    def _is_due(
        self, export_path: str, eval_result: Mapping[str, Any], is_final: bool
    ) -> bool:
        return is_final


class BestExporter(Exporter):
    """Exports where the evaluation is better than all before, restarts included.

    The best evaluation so far is kept beside the exports, as `best.json`. One without
    the metric is a KeyError that lists those that there are.
    """

    default_name = "best"

    def __init__(
        self,
        name: str | None = None,
        serving_input_receiver_fn: ServingFn | None = None,
        *,
        metric: str = "loss",
        higher_is_better: bool = False,
        compare_fn: Callable[[Mapping[str, Any], Mapping[str, Any]], bool]
        | None = None,
        exports_to_keep: int | None = 5,
    ) -> None:
        """
        Args:
          name: as `Exporter`.
          serving_input_receiver_fn: as `Exporter`.
          metric: what is compared.
          higher_is_better: for an accuracy, not for a loss.
          compare_fn: of the best and the current evaluation, whether the current is
            better; in place of `metric`.
          exports_to_keep: as `Exporter`.
        """
        super().__init__(
            name, serving_input_receiver_fn, exports_to_keep=exports_to_keep
        )
        self._metric = metric
        self._higher_is_better = higher_is_better
        self._compare_fn = compare_fn

    def _is_due(
        self, export_path: str, eval_result: Mapping[str, Any], is_final: bool
    ) -> bool:
        best = atomic_file.read_json(
            os.path.join(export_path, _RECORD),
            self._parsed,
            instead="the next evaluation is the best so far",
        )
        return self._is_better(best, eval_result)

    def _parsed(self, record: Any) -> dict[str, Any]:
        best = dict(record.items())
        value = best.get(self._metric, 0.0)
        if self._compare_fn is None and not isinstance(value, (int, float)):
            raise TypeError(f"{self._metric} {value!r}")
        return best

    def _after_export(self, export_path: str, eval_result: Mapping[str, Any]) -> None:
        _write(export_path, eval_result)

    def _is_better(
        self, best: Mapping[str, Any] | None, current: Mapping[str, Any]
    ) -> bool:
        if self._compare_fn is not None:
            where = f"the compare_fn of {type(self).__name__} {self.name!r}"
            return best is None or bool(
                user_errors.call(lambda: where, self._compare_fn, best, current)
            )
        if self._metric not in current:
            raise KeyError(
                f"BestExporter {self.name!r} compares {self._metric!r}, which the "
                f"evaluation does not have: it has {sorted(current)}."
            )
        value = current[self._metric]
        if np.ndim(value) > 0:
            raise ValueError(
                f"{type(self).__name__} {self.name!r} compares {self._metric!r}, which "
                f"is an array of shape {np.shape(value)}: write compare_fn=better, of "
                "the best and the current evaluation."
            )
        if math.isnan(value):
            return False
        if best is None or math.isnan(before := best.get(self._metric, math.nan)):
            return True
        return value > before if self._higher_is_better else value < before


def keep_record(old: str, new: str, *, is_shared: bool) -> None:
    """Copies the best evaluation so far to where its exports go from now on.

    Args:
      old: directory that has the record, or none.
      new: directory to export to.
      is_shared: several evaluations wrote the old one, and it is nobody's.
    """
    record, kept = os.path.join(old, _RECORD), os.path.join(new, _RECORD)
    if tf.io.gfile.exists(kept):
        return
    best = atomic_file.read_json(record, dict, instead=f"{new} begins anew")
    if best is None:
        return
    if is_shared:
        logging.warning(
            "export | %s does not say of which evaluation it is: %s begins anew.",
            record,
            new,
        )
        return
    atomic_file.write(kept, json.dumps(best))
    logging.info("export | %s goes on from %s", kept, record)


def _write(export_path: str, values: Mapping[str, Any]) -> None:
    plain = {key: getattr(v, "tolist", lambda v=v: v)() for key, v in values.items()}
    atomic_file.write(os.path.join(export_path, _RECORD), json.dumps(plain))
