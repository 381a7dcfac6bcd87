"""Exporters, which decide after an evaluation whether to write a SavedModel.

`train_and_evaluate` calls each with what was evaluated and the metrics. The SavedModel
itself is written by the Estimator.
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from absl import logging

from pipeline.contract import averages
from pipeline.export import saved_model
from pipeline.export.receivers import ServingFn
from pipeline.mistakes import checks, user_errors
from pipeline.mistakes.checks import kind_of
from pipeline.model_dir import atomic_file, paths, storage
from pipeline.process import metric_names
from pipeline.process.refusals import (
    RefusedKeyError,
    RefusedTypeError,
    RefusedValueError,
    near,
)

_RECORD = "best.json"


class Exportable(Protocol):
    """The part of an Estimator that an exporter uses."""

    def export_saved_model(
        self,
        export_dir_base: str,
        serving_input_receiver_fn: ServingFn | None = None,
        *,
        checkpoint_path: str | None = None,
        **weights: str,
    ) -> str:
        """Writes a SavedModel and returns its directory.

        Args:
          export_dir_base: directory below which the SavedModel gets its own.
          serving_input_receiver_fn: describes the tensors that a server is sent.
          checkpoint_path: path prefix of the checkpoint to export; None for what is
            live.
          **weights: `weights`, 'live' or 'average', where the exporter chooses.
        """


class Exporter:
    """Decides after each evaluation of `train_and_evaluate` whether to export.

    A subclass of your own defines `export`.
    """

    default_name: str | None = None

    def __init__(
        self,
        name: str | None = None,
        serving_input_receiver_fn: ServingFn | None = None,
        *,
        weights: str | None = None,
        exports_to_keep: int | None = 5,
    ) -> None:
        """Checks where and how many exports are kept.

        Args:
          name: name of the directory below `model_dir/export`; None for the class's
            default.
          serving_input_receiver_fn: describes the tensors that a server is sent; None
            for that of the module that has one, else for the features of the training
            or evaluation input as they are.
          weights: weights to export, 'live' or 'average'; None for the choice of
            `RunConfig.average`, or the weights that the metric of a best is measured
            on.
          exports_to_keep: number of the newest exports that stay; None keeps all.

        Raises:
          TypeError: the name is not a string, or serving_input_receiver_fn no
            function.
          ValueError: there is no name, it leads out of `model_dir/export`, no folder
            can have it, or `exports_to_keep` is no positive integer.
        """
        name = self.default_name if name in (None, "") else name
        if not name:
            raise RefusedValueError(
                f"{type(self).__name__} has no name, and so no directory: write "
                f"{type(self).__name__}(name='mine')."
            )
        if not isinstance(name, str):
            raise RefusedTypeError(
                f"the name of {type(self).__name__} is {kind_of(name)}: write "
                f"{type(self).__name__}(name='mine', serving_input_receiver_fn=...)."
            )
        if os.path.isabs(name) or ".." in name.split("/"):
            raise RefusedValueError(
                f"the name of {type(self).__name__} is {name!r}, which leads out of "
                "model_dir/export: write a name such as 'mine'."
            )
        paths.check_folders(f"the name of {type(self).__name__}", name)
        checks.check_kind(
            f"{type(self).__name__}.serving_input_receiver_fn",
            serving_input_receiver_fn,
            Callable,
            "ge.build_raw_serving_input_receiver_fn(features)",
        )
        keep = exports_to_keep
        if keep is not None and not (checks.is_int(keep) and keep > 0):
            raise RefusedValueError(
                f"exports_to_keep is {keep!r}: write a positive number, or "
                "None to keep all."
            )
        self.name = name
        if weights not in (None, averages.LIVE, averages.AVERAGE):
            raise RefusedValueError(
                f"weights of {type(self).__name__} is {weights!r}: write 'live' or "
                "'average'."
            )
        self.serving_input_receiver_fn = serving_input_receiver_fn
        self._weights = weights
        self._exports_to_keep = exports_to_keep

    @property
    def goes_by(self) -> str | None:
        """The metric that decides what is exported; None where none does."""
        return None

    def check_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Checks that an evaluation has the metric that this one goes by.

        Args:
          metrics: metrics of an evaluation, by name.
        """

    @property
    def is_stock(self) -> bool:
        """Whether `export` is not overridden, and so writes SavedModels alone."""
        return type(self).export is Exporter.export

    def export(
        self,
        estimator: Exportable,
        export_path: str,
        checkpoint_path: str | None,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> str | None:
        """Exports the model, if this evaluation calls for it.

        Args:
          estimator: the Estimator of the model.
          export_path: the directory of this exporter.
          checkpoint_path: path prefix of the checkpoint that was evaluated; None for
            what is live. Its files are there if a class overrides this method.
          eval_result: the metrics that `evaluate` returned, by name.
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
        # The record comes last: it must never name a best that was not exported.
        with storage.writing(export_path, "the record of the export", only_named=True):
            self._after_export(export_path, eval_result)
        return path

    def _is_due(
        self, export_path: str, eval_result: Mapping[str, Any], is_final: bool
    ) -> bool:
        """Returns whether this evaluation is to be exported."""
        raise NotImplementedError

    def _after_export(self, export_path: str, eval_result: Mapping[str, Any]) -> None:
        """Records the export, when the SavedModel is there."""

    def _weights_of(self, estimator: Exportable) -> str | None:
        """Returns which weights to export; None for the Estimator's choice."""
        return self._weights

    def _export(
        self, estimator: Exportable, export_path: str, checkpoint_path: str | None
    ) -> str:
        weights = self._weights_of(estimator)
        path = estimator.export_saved_model(
            export_path,
            self.serving_input_receiver_fn,
            checkpoint_path=checkpoint_path,
            **({} if weights is None else {"weights": weights}),
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
    """Exports where the evaluation is better than all before, also before a restart.

    The best evaluation so far is kept beside the exports, as `best.json`. An evaluation
    without the metric is a KeyError that lists the metrics that it has.
    """

    default_name = "best"

    def __init__(
        self,
        name: str | None = None,
        serving_input_receiver_fn: ServingFn | None = None,
        *,
        metric: str = "loss",
        higher_is_better: bool | None = None,
        compare_fn: Callable[[Mapping[str, Any], Mapping[str, Any]], bool]
        | None = None,
        weights: str | None = None,
        exports_to_keep: int | None = 5,
    ) -> None:
        """Sets how evaluations are compared.

        Args:
          name: see `Exporter`.
          serving_input_receiver_fn: see `Exporter`.
          metric: name of the metric that is compared.
          higher_is_better: whether more is better. None: by the metric's name, as of
            "accuracy" or "loss"; a name that does not tell is refused.
          compare_fn: function of the best and of the current evaluation that returns
            whether the current is better, in place of `metric`.
          weights: see `Exporter`.
          exports_to_keep: see `Exporter`.

        Raises:
          TypeError: an argument is of another kind.
        """
        super().__init__(
            name,
            serving_input_receiver_fn,
            weights=weights,
            exports_to_keep=exports_to_keep,
        )
        if compare_fn is None and not isinstance(metric, str):
            raise RefusedTypeError(
                f"BestExporter.metric is {kind_of(metric)}: write metric='loss'."
            )
        for field, value, kind, example in (
            ("higher_is_better", higher_is_better, bool, "True"),
            ("compare_fn", compare_fn, Callable, "is_better, a function"),
        ):
            checks.check_kind(f"BestExporter.{field}", value, kind, example)
        if higher_is_better is None and compare_fn is None:
            higher_is_better = metric_names.higher_is_better(metric)
        self._metric = metric
        self._higher_is_better = higher_is_better
        self._compare_fn = compare_fn

    @property
    def goes_by(self) -> str | None:
        """The metric that is compared; None with a function that compares."""
        return self._metric if self._compare_fn is None else None

    def check_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Checks that an evaluation has the metric, and that it can be compared.

        Args:
          metrics: metrics of an evaluation, by name.

        Raises:
          KeyError: it has no such metric; lists those that it has.
          ValueError: it is an array, or nothing says whether more of it is better.
        """
        if self._metric not in metrics:
            names = sorted(metrics)
            raise RefusedKeyError(
                f"BestExporter {self.name!r} compares {self._metric!r}, which the "
                f"evaluation does not have: it has {names}; write one of these."
                f"{near(self._metric, names)}"
            )
        if self._higher_is_better is None:
            raise RefusedValueError(
                f"BestExporter(metric={self._metric!r}) does not say whether more is "
                "better: write higher_is_better=True, or False."
            )
        if shape := np.shape(metrics[self._metric]):
            raise RefusedValueError(
                f"{type(self).__name__} {self.name!r} compares {self._metric!r}, which "
                f"is an array of shape {shape}: write compare_fn=better, of the best "
                "and the current evaluation."
            )

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
        # A value that cannot be compared is taken for damage, which is told once.
        best = dict(record.items())
        value = best.get(self._metric, 0.0)
        if self._compare_fn is None and not isinstance(value, (int, float)):
            raise RefusedTypeError(f"{self._metric} {value!r}")
        return best

    def _after_export(self, export_path: str, eval_result: Mapping[str, Any]) -> None:
        _write(export_path, eval_result)

    def _weights_of(self, estimator: Exportable) -> str | None:
        if self._weights is not None or self._compare_fn is not None:
            return self._weights
        config = getattr(estimator, "config", None)
        return averages.measured(self._metric, getattr(config, "average", None))

    def _is_better(
        self, best: Mapping[str, Any] | None, current: Mapping[str, Any]
    ) -> bool:
        if self._compare_fn is not None:
            where = f"the compare_fn of {type(self).__name__} {self.name!r}"
            return best is None or bool(
                user_errors.call(lambda: where, self._compare_fn, best, current)
            )
        self.check_metrics(current)
        value = current[self._metric]
        # NaN is never the best, and any number is better than NaN.
        if math.isnan(value):
            return False
        if best is None or math.isnan(before := best.get(self._metric, math.nan)):
            return True
        return value > before if self._higher_is_better else value < before


def keep_record(old: str, new: str, *, is_shared: bool) -> None:
    """Copies the best evaluation so far into the directory of the exports to come.

    Args:
      old: directory that may hold the record.
      new: directory to export to.
      is_shared: whether several evaluations wrote the old record, so that nobody knows
        whose it is; then it is not copied.
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
    # JSON knows no arrays and no NumPy numbers.
    plain = {key: getattr(v, "tolist", lambda v=v: v)() for key, v in values.items()}
    atomic_file.write(os.path.join(export_path, _RECORD), json.dumps(plain))
