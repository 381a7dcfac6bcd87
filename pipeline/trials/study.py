"""The trials of a sweep on disk, and who suggests the next one; by Optuna.

The one file that knows Optuna. Its storage is SQLite, whose writes are there as a whole
or not at all. What is suggested for a trial depends on the seed, the trial's number and
the results that are there: a sweep that was killed goes on as it would have.
"""

import contextlib
import dataclasses
import enum
import itertools
import math
import pathlib
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence

import optuna
import sqlalchemy

from pipeline.process.refusals import RefusedValueError
from pipeline.trials.folder import FolderError
from pipeline.trials.goal import Goal
from pipeline.trials.search import Dimension, Value

_NAME = "sweep"
# Attributes of a trial in the storage.
_REASON, _STEP, _SECS = "reason", "step", "secs"
# Attribute of the study.
_GOAL = "goal"


class State(enum.Enum):
    """What became of a trial."""

    OPEN = "open"
    DONE = "done"
    PRUNED = "pruned"
    FAILED = "failed"


_STATES = {
    optuna.trial.TrialState.WAITING: State.OPEN,
    optuna.trial.TrialState.RUNNING: State.OPEN,
    optuna.trial.TrialState.COMPLETE: State.DONE,
    optuna.trial.TrialState.PRUNED: State.PRUNED,
    optuna.trial.TrialState.FAIL: State.FAILED,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """What is known of a trial.

    Attributes:
      number: its number, from 0.
      state: what became of it.
      values: value of each name that is searched.
      result: value of the metric; None where it has none.
      step: step of that evaluation; None without one.
      reason: why it failed; "" where it did not.
    """

    number: int
    state: State
    values: Mapping[str, Value]
    result: float | None
    step: int | None
    reason: str


class Study:
    """The trials of one sweep."""

    def __init__(
        self,
        path: pathlib.Path,
        dimensions: Sequence[Dimension],
        *,
        goal: Goal,
        sampler: str = "tpe",
        pruner: str = "median",
        seed: int = 0,
    ) -> None:
        """Opens the trials that lie in a file, or begins with none.

        Args:
          path: file of the trials.
          dimensions: what is searched.
          goal: what trials are judged by. Another one than before makes a study of its
            own of those that run, as long as none has ended.
          sampler: one of `sweep_flags.SAMPLERS`.
          pruner: one of `sweep_flags.PRUNERS`.
          seed: seed of what is suggested.

        Raises:
          FolderError: the file cannot be read or written.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._path = path
        self._dimensions = {
            each.name: (each, _distribution(each)) for each in dimensions
        }
        self._sampler = sampler
        self._seed = seed
        self.grid = _grid(dimensions) if sampler == "grid" else None
        url = sqlalchemy.URL.create("sqlite", database=str(path))
        with self._storing():
            self._storage = optuna.storages.RDBStorage(url.render_as_string())
            self._study = self._opened(goal, _pruner(pruner))
            self._id = self._storage.get_study_id_from_name(_NAME)

    def _opened(self, goal: Goal, pruner: optuna.pruners.BasePruner) -> optuna.Study:
        """Returns the study that lies there, or a new one."""

        def make() -> optuna.Study:
            study = optuna.create_study(
                storage=self._storage,
                study_name=_NAME,
                direction=goal.direction,
                pruner=pruner,
                load_if_exists=True,
            )
            if _GOAL not in study.user_attrs:
                study.set_user_attr(_GOAL, repr(goal))
            return study

        study = make()
        trials = study.get_trials()
        if study.user_attrs[_GOAL] == repr(goal) or any(map(_has_ended, trials)):
            return study
        # A mistyped metric is found at the first evaluation: what was trained until
        # then is as good for another metric.
        optuna.delete_study(study_name=_NAME, storage=self._storage)
        study = make()
        for trial in trials:
            study.add_trial(
                optuna.trial.create_trial(
                    state=trial.state,
                    params=trial.params,
                    distributions=trial.distributions,
                    system_attrs=trial.system_attrs,
                )
            )
        return study

    @property
    def is_open(self) -> bool:
        """Whether no trial has ended yet, so that the goal may still be another."""
        return all(row.state is State.OPEN for row in self.rows())

    def rows(self) -> list[Row]:
        """Returns all trials, by number."""
        with self._storing():
            return [_row(found) for found in self._study.get_trials(deepcopy=False)]

    def ask(self) -> "Trial":
        """Returns a new trial, with values that are fixed from now on."""
        number = len(self.rows())
        with self._storing():
            if self.grid is not None:
                # Each as often as the others, where more trials are asked for.
                self._study.enqueue_trial(self.grid[number % len(self.grid)])
            self._use_sampler(number)
            return self._filled(self._study.ask())

    def trial(self, number: int) -> "Trial":
        """Returns a trial that has begun and not ended, by its number.

        Where its begin was cut short by a kill, it gets its missing values now.
        """
        with self._storing():
            found = self._study.get_trials(deepcopy=False)
            running = [t.number for t in found if not _has_ended(t)]
            if number not in running:
                listed = ", ".join(map(str, running)) or "none"
                raise RefusedValueError(
                    f"trial {number} does not run: choose one that does ({listed})."
                )
            self._use_sampler(number)
            if found[number].state == optuna.trial.TrialState.WAITING:
                # A grid put it into the queue, and was killed before it took it out.
                return self._filled(self._study.ask())
            return self._filled(optuna.trial.Trial(self._study, self._trial_id(number)))

    def report(self, number: int, curve: Sequence[tuple[int, float]]) -> bool:
        """Stores what a trial has reached, see `Trial.report`.

        Args:
          number: number of the trial.
          curve: values by step.
        """
        with self._storing():
            trial_id = self._trial_id(number)
            known = self._storage.get_trial(trial_id).intermediate_values
            # Before the first step nobody has learned, and nobody falls behind.
            curve = [point for point in curve if point[0]]
            for step, value in curve:
                # Where training went back, a step is evaluated again. Optuna's own
                # `Trial.report` would keep the value of before.
                if repr(known.get(step)) != repr(value):
                    self._storage.set_trial_intermediate_value(trial_id, step, value)
            if not curve:
                return False
            with warnings.catch_warnings():
                # NumPy warns of trials that have reached nothing but NaN.
                warnings.simplefilter("ignore", RuntimeWarning)
                return optuna.trial.Trial(self._study, trial_id).should_prune()

    def secs(self, number: int) -> float:
        """Returns for how long a trial has run, see `Trial.took`."""
        with self._storing():
            trial = self._storage.get_trial(self._trial_id(number))
            return trial.user_attrs.get(_SECS, 0.0)

    def _trial_id(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._id, number)

    def best(self, *, maximize: bool) -> Row | None:
        """Returns the best trial of those that were done; None without any."""
        done = [row for row in self.rows() if row.state is State.DONE]
        sign = 1 if maximize else -1
        return max(done, key=lambda row: sign * row.result, default=None)

    def _use_sampler(self, number: int) -> None:
        # A sampler that went on from trial to trial would begin anew at each start,
        # and suggest what it has suggested before.
        seed = random.Random(f"{self._seed}/{number}").getrandbits(32)
        is_tpe = self._sampler == "tpe"
        kind = optuna.samplers.TPESampler if is_tpe else optuna.samplers.RandomSampler
        self._study.sampler = kind(seed=seed)

    def _filled(self, trial: optuna.Trial) -> "Trial":
        """Suggests the values that a trial lacks; those that it has stay."""
        with warnings.catch_warnings():
            # Of what was put into the queue by `grid`, and of bounds that are rounded.
            warnings.simplefilter("ignore")
            values = {
                name: _suggested(trial, each, distribution)
                for name, (each, distribution) in self._dimensions.items()
            }
        return Trial(self, self._study, trial, values)

    @contextlib.contextmanager
    def _storing(self) -> Iterator[None]:
        """Turns what the storage refuses in the block into an error in words."""
        try:
            yield
        except (optuna.exceptions.StorageInternalError, sqlalchemy.exc.DBAPIError) as e:
            cause = e.__cause__ or e
            raise FolderError(
                f"{self._path} could not be read or written: "
                f"{str(cause).partition(chr(10))[0]}. See to {self._path.parent}, or "
                "write another --sweep_dir, and start the same command again."
            ) from e


class Trial:
    """A trial that has begun and not ended.

    Attributes:
      number: its number, from 0.
      values: value of each name that is searched.
    """

    def __init__(
        self,
        owner: Study,
        study: optuna.Study,
        trial: optuna.Trial,
        values: Mapping[str, Value],
    ) -> None:
        """Wraps one of Optuna's; made by `Study.ask` and `Study.trial`."""
        self._owner = owner
        self._study = study
        self._trial = trial
        self.number = trial.number
        self.values = values

    def report(self, curve: Sequence[tuple[int, float]]) -> bool:
        """Stores values that are new, and returns whether the trial is to be pruned.

        Args:
          curve: values by step, in the order of steps; of a trial from its beginning.
        """
        return self._owner.report(self.number, curve)

    @property
    def secs(self) -> float:
        """Seconds for which it has run, over all starts."""
        return self._owner.secs(self.number)

    def took(self, secs: float) -> None:
        """Stores for how many seconds it has run, over all starts."""
        with self._owner._storing():
            self._trial.set_user_attr(_SECS, secs)

    def done(self, step: int, value: float) -> None:
        """Ends the trial with its result."""
        with self._owner._storing():
            self._trial.set_user_attr(_STEP, step)
            self._study.tell(self.number, value)

    def prune(self) -> None:
        """Ends the trial with the last value that was reported."""
        with self._owner._storing():
            self._study.tell(self.number, state=optuna.trial.TrialState.PRUNED)

    def fail(self, reason: str) -> None:
        """Ends the trial without a result."""
        with self._owner._storing():
            self._trial.set_user_attr(_REASON, reason)
            self._study.tell(self.number, state=optuna.trial.TrialState.FAIL)


def _has_ended(trial: optuna.trial.FrozenTrial) -> bool:
    return trial.state.is_finished()


def _row(found: optuna.trial.FrozenTrial) -> Row:
    state = _STATES[found.state]
    ended = state in (State.DONE, State.PRUNED)
    result = found.value if ended else None
    return Row(
        number=found.number,
        state=state,
        values=found.params,
        result=result,
        step=found.user_attrs.get(_STEP, found.last_step) if ended else found.last_step,
        reason=found.user_attrs.get(_REASON, ""),
    )


def _pruner(name: str) -> optuna.pruners.BasePruner:
    kinds = {
        "median": optuna.pruners.MedianPruner,
        "halving": optuna.pruners.SuccessiveHalvingPruner,
        "none": optuna.pruners.NopPruner,
    }
    return kinds[name]()


def _distribution(each: Dimension) -> optuna.distributions.BaseDistribution:
    if each.kind == "choice":
        return optuna.distributions.CategoricalDistribution(each.choices)
    low, high = each.bounds[:2]
    log = each.kind.startswith("log")
    with warnings.catch_warnings():
        # The higher bound need not be a whole number of steps away.
        warnings.simplefilter("ignore")
        if each.kind in ("int", "log_int"):
            return optuna.distributions.IntDistribution(
                low, high, log=log, step=each.step or 1
            )
        return optuna.distributions.FloatDistribution(
            low, high, log=log, step=each.step
        )


def _suggested(
    trial: optuna.Trial,
    each: Dimension,
    distribution: optuna.distributions.BaseDistribution,
) -> Value:
    """Returns a trial's value of a name; one that it has, if it has one."""
    if isinstance(distribution, optuna.distributions.CategoricalDistribution):
        return trial.suggest_categorical(each.name, distribution.choices)
    bounds = distribution.low, distribution.high
    if isinstance(distribution, optuna.distributions.IntDistribution):
        return trial.suggest_int(
            each.name, *bounds, log=distribution.log, step=distribution.step
        )
    return trial.suggest_float(
        each.name, *bounds, log=distribution.log, step=distribution.step
    )


def _grid(dimensions: Sequence[Dimension]) -> list[dict[str, Value]]:
    """Returns all combinations of values; the last name changes fastest.

    Raises:
      ValueError: a name has too many values.
    """
    names = [each.name for each in dimensions]
    values = [each.all() for each in dimensions]
    count = math.prod(map(len, values))
    if count > 100_000:
        raise RefusedValueError(
            f"--sampler=grid has {count:,} combinations: write fewer values, or "
            "another sampler."
        )
    return [dict(zip(names, row, strict=True)) for row in itertools.product(*values)]
