# SPDX-License-Identifier: Apache-2.0
"""The trials of a sweep in an Optuna study, whose storage is SQLite in the sweep's folder."""

import contextlib
import math
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import optuna
import sqlalchemy

from ..errors import UserRuntimeError
from .search import grid

_PRUNERS: dict[str, Any] = {
    "median": optuna.pruners.MedianPruner,
    "halving": optuna.pruners.SuccessiveHalvingPruner,
    "none": optuna.pruners.NopPruner,
}
_State = optuna.trial.TrialState


@contextlib.contextmanager
def storage_errors(folder: pathlib.Path) -> Iterator[None]:
    """Raises a UserRuntimeError for an error of the study's storage in the block."""
    try:
        yield
    except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        cause = str(getattr(error.__cause__, "orig", None) or error).splitlines()[0]
        raise UserRuntimeError(
            f"{folder / 'study.db'} cannot be used: {cause}. Set another --sweep_dir, or free "
            "space."
        ) from error


class Study:
    """Suggests values for trials and records their results.

    A suggestion depends on the seed, the number of the trial and the results so far. A trial
    whose process was killed is still running here: the sweep starts it again.

    Attributes:
      size: number of combinations of a grid, else infinite.
    """

    def __init__(
        self, folder: pathlib.Path, search: Mapping[str, Any], *, maximize: bool, options: Any
    ) -> None:
        """Opens the study in a folder, or creates it.

        Args:
          folder: folder of the sweep.
          search: Optuna distributions by name.
          maximize: whether larger values are better.
          options: flags of the sweep: sampler, pruner and seed.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._search, self._options = search, options
        url = sqlalchemy.URL.create("sqlite", database=str(folder / "study.db"))
        self._study = optuna.create_study(
            storage=optuna.storages.RDBStorage(url.render_as_string()),
            study_name="sweep",
            direction="maximize" if maximize else "minimize",
            # A scheduler that runs printed commands cannot prune.
            pruner=_PRUNERS["none" if options.print_commands else options.pruner](),
            load_if_exists=True,
        )
        self.size = math.inf
        if options.sampler == "grid":
            combinations = grid(search)
            self.size = len(combinations)
            for values in combinations[len(self._study.get_trials(deepcopy=False)) :]:
                self._study.enqueue_trial(values)

    def begun(self) -> list[optuna.trial.FrozenTrial]:
        """Returns all trials that have values, by number."""
        return [each for each in self._study.get_trials() if each.state != _State.WAITING]

    def running(self) -> list[optuna.trial.Trial]:
        """Returns the trials without a result, of this process or of one that was killed."""
        frozen = self._study.get_trials(states=[_State.RUNNING])
        # The public class has no other way to an existing trial.
        return [optuna.trial.Trial(self._study, each._trial_id) for each in frozen]

    def ask(self) -> optuna.trial.Trial:
        """Begins the next trial."""
        is_tpe = self._options.sampler == "tpe"
        kind = optuna.samplers.TPESampler if is_tpe else optuna.samplers.RandomSampler
        seed = (self._options.seed * 1_000_003 + len(self.begun())) % 2**31
        self._study.sampler = kind(seed=seed)
        return self._study.ask(self._search)

    def end(
        self, trial: optuna.trial.Trial, value: float | None, *, pruned: bool = False, why: str = ""
    ) -> None:
        """Records the end of a trial.

        Args:
          trial: the trial.
          value: its result; None or NaN if it failed.
          pruned: whether the sweep ended it.
          why: the reason of a failure.
        """
        if value is None or math.isnan(value):
            trial.set_user_attr("why", why or f"the value is {value}")
            self._study.tell(trial.number, state=_State.FAIL)
            return
        trial.set_user_attr("value", value)
        if pruned:
            self._study.tell(trial.number, state=_State.PRUNED)
        else:
            self._study.tell(trial.number, value)
