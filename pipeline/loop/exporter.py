# SPDX-License-Identifier: Apache-2.0
"""The base class of exporters, which write a SavedModel after an evaluation."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import tensorflow as tf
from absl import logging

from ..contract.checks import check, choice, function, integer
from ..contract.run_config import RunConfig
from ..contract.weight_averages import AVERAGE, LIVE
from ..errors import UserValueError
from ..model_dir import storage_watchdog
from ..model_dir.files import delete_folder

SERVING_FN = function(
    "a function that returns a ServingInputReceiver",
    "build_raw_serving_input_receiver_fn(tf.TensorSpec([None, 28, 28]))",
    optional=True,
)


class Exportable(Protocol):
    """An Estimator, as exporters use it."""

    config: RunConfig

    def export_saved_model(
        self,
        export_dir_base: str,
        serving_input_receiver_fn: Callable[[], Any] | None = None,
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
    serving_input_receiver_fn: Callable[[], Any] | None = None
    assets_extra: Mapping[str, str] | None = None
    weights: str | None = None

    def __init__(
        self,
        name: str | None = None,
        serving_input_receiver_fn: Callable[[], Any] | None = None,
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
        storage_watchdog.call(export_path, self._delete_old, export_path)
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


def exports_in(base: str) -> list[str]:
    """Returns the directories of the complete exports below `base`, oldest first."""
    if not tf.io.gfile.isdir(base):
        return []
    names = [name.rstrip("/") for name in tf.io.gfile.listdir(base)]
    return [os.path.join(base, name) for name in sorted(filter(str.isdigit, names), key=int)]


def check_directory(name: Any, label: str) -> None:
    """Raises a UserValueError unless `name` is a directory below model_dir/export."""
    path = os.path.normpath(name) if isinstance(name, str) else "."
    if os.path.isabs(path) or path.split("/")[0] in (".", ".."):
        raise UserValueError(
            f"{label} is {name!r}: expected a directory below model_dir/export. Set a name such "
            "as 'best'."
        )
