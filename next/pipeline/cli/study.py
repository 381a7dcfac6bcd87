"""The trials of a sweep in an Optuna study, whose storage is SQLite in the sweep's folder."""

import contextlib
import itertools
import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import UserRuntimeError, UserValueError
from .search import Dimension

try:
    import optuna
    import sqlalchemy
except ImportError as error:
    raise UserValueError(
        f"{error.name} is not installed: expected Optuna. Run python -m pip install optuna."
    ) from error

_NAME = "sweep"
_MAX_COMBINATIONS = 100_000
_RUNNING = optuna.trial.TrialState.RUNNING
_PRUNED = optuna.trial.TrialState.PRUNED
_FAILED = optuna.trial.TrialState.FAIL


class Study:
    """Suggests values for trials and records their results.

    A suggestion depends on the seed, the number of the trial and the results so far. A trial
    whose process was killed is still running here: the sweep starts it again.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        dimensions: Sequence[Dimension],
        *,
        maximize: bool,
        sampler: str = "tpe",
        pruner: str = "median",
        seed: int = 0,
    ) -> None:
        """Opens the study in a folder, or creates it.

        Args:
          folder: folder of the sweep.
          dimensions: names and their possible values.
          maximize: whether larger values are better.
          sampler: 'tpe', 'random' or 'grid'.
          pruner: 'median', 'halving' or 'none'.
          seed: seed of the suggestions.

        Raises:
          UserRuntimeError: the storage cannot be read or written.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._path = folder / "study.db"
        self._seed, self._sampler = seed, sampler
        self._distributions = {each.name: _distribution(each) for each in dimensions}
        url = sqlalchemy.URL.create("sqlite", database=str(self._path))
        with self._storing():
            self._study = optuna.create_study(
                storage=optuna.storages.RDBStorage(url.render_as_string()),
                study_name=_NAME,
                direction="maximize" if maximize else "minimize",
                pruner=_PRUNERS[pruner](),
                load_if_exists=True,
            )
        self.size = math.inf
        if sampler == "grid":
            self._enqueue_grid(dimensions)

    def _enqueue_grid(self, dimensions: Sequence[Dimension]) -> None:
        grids = [each.grid() for each in dimensions]
        self.size = math.prod(map(len, grids))
        if self.size > _MAX_COMBINATIONS:
            raise UserValueError(
                f"--search has {self.size} combinations: expected at most {_MAX_COMBINATIONS} for "
                "--sampler=grid. Set --sampler=random."
            )
        with self._storing():
            if not self._study.get_trials(deepcopy=False):
                for values in itertools.product(*grids):
                    self._study.enqueue_trial(dict(zip(self._distributions, values, strict=True)))

    def begun(self) -> list[optuna.trial.FrozenTrial]:
        """Returns all trials that have values, by number."""
        with self._storing():
            waiting = optuna.trial.TrialState.WAITING
            return [each for each in self._study.get_trials() if each.state != waiting]

    def running(self) -> list[optuna.trial.Trial]:
        """Returns the trials without a result, of this process or of one that was killed."""
        with self._storing():
            frozen = self._study.get_trials(states=[_RUNNING])
            # The public class has no other way to an existing trial.
            return [optuna.trial.Trial(self._study, each._trial_id) for each in frozen]

    def ask(self) -> optuna.trial.Trial:
        """Begins the next trial."""
        with self._storing():
            seed = (self._seed * 1_000_003 + len(self.begun())) % 2**31
            sampler = optuna.samplers.TPESampler if self._sampler == "tpe" else None
            self._study.sampler = (sampler or optuna.samplers.RandomSampler)(seed=seed)
            return self._study.ask(self._distributions)

    def report(self, trial: optuna.trial.Trial, step: int, value: float) -> bool:
        """Records an evaluation; returns whether the trial should be pruned."""
        with self._storing():
            trial.report(value, step)
            return step > 0 and trial.should_prune()

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
        failed = value is None or math.isnan(value)
        with self._storing():
            if failed:
                trial.set_user_attr("why", why or f"the value is {value}")
            else:
                trial.set_user_attr("value", value)
            if failed or pruned:
                self._study.tell(trial.number, state=_FAILED if failed else _PRUNED)
            else:
                self._study.tell(trial.number, value)

    @contextlib.contextmanager
    def _storing(self) -> Iterator[None]:
        """Turns errors of the storage into a refusal."""
        try:
            yield
        except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            cause = str(getattr(error.__cause__, "orig", None) or error).splitlines()[0]
            raise UserRuntimeError(
                f"{self._path} cannot be used: {cause}. Set another --sweep_dir, or free space."
            ) from error


_PRUNERS: dict[str, Any] = {
    "median": optuna.pruners.MedianPruner,
    "halving": optuna.pruners.SuccessiveHalvingPruner,
    "none": optuna.pruners.NopPruner,
}


def _distribution(dimension: Dimension) -> optuna.distributions.BaseDistribution:
    if dimension.kind == "choice":
        return optuna.distributions.CategoricalDistribution(dimension.values)
    low, high = dimension.values[:2]
    is_log = "log" in dimension.kind
    if "int" in dimension.kind:
        return optuna.distributions.IntDistribution(
            low, high, log=is_log, step=int(dimension.step or 1)
        )
    return optuna.distributions.FloatDistribution(low, high, log=is_log, step=dimension.step)
