"""TrainSpec and EvalSpec: what to train on, what to evaluate on, what to export.

They are what a user hands to `train_and_evaluate`, checked where they are made. The
functions below say what several EvalSpecs mean together: where each exports to, and
what `train_and_evaluate` returns.
"""

import collections
import dataclasses
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.contract import arguments, calling
from pipeline.contract.hooks import Hook, SavingListener
from pipeline.contract.spec import ModeKeys
from pipeline.driver.estimator import Estimator
from pipeline.export import exporters as exporters_lib
from pipeline.export.exporters import Exporter
from pipeline.hooks import early_stopping, limits
from pipeline.hooks.metric_hook import StoppingRule
from pipeline.mistakes import checks, habits, user_errors
from pipeline.mistakes.checks import kind_of
from pipeline.process.refusals import RefusedTypeError, RefusedValueError
from pipeline.roles import keep_best
from pipeline.roles.keep_best import KeepBest


@habits.train_spec
@dataclasses.dataclass(frozen=True)
class TrainSpec:
    """The training of `train_and_evaluate`: its data, its end and its hooks.

    Attributes:
      input_fn: function that returns the training data, see `pipeline.feed.feed`.
      max_steps: global step to train to; None for the end of the input.
      max_secs: time that training may take, over all restarts: seconds, or a text such
        as "3h" or "1h30m"; None for any. It ends at the first of all limits.
      max_examples: examples to train on, over all restarts; None for any number. It
        ends with the step that makes them so many.
      max_epochs: passes over the input, over all restarts; None for one, or for what a
        run that was stopped had left of it. The input must end by itself.
      hooks: hooks that watch the training.
      saving_listeners: listeners that are told of each checkpoint.
    """

    input_fn: Callable[..., Any]
    max_steps: int | None = None
    _: dataclasses.KW_ONLY
    max_secs: float | str | None = None
    max_examples: int | None = None
    max_epochs: int | None = None
    hooks: Sequence[Hook] = ()
    saving_listeners: Sequence[SavingListener] = ()

    def __post_init__(self) -> None:
        _check_input_fn("TrainSpec", self.input_fn)
        checks.check_positive("TrainSpec.max_steps", self.max_steps)
        if self.max_secs is not None:
            checks.checked_secs("TrainSpec.max_secs", self.max_secs)
        checks.check_positive("TrainSpec.max_examples", self.max_examples)
        checks.check_positive("TrainSpec.max_epochs", self.max_epochs)
        checks.check_all("TrainSpec.hooks", self.hooks, Hook)
        checks.check_all(
            "TrainSpec.saving_listeners", self.saving_listeners, SavingListener
        )

    def limits(self) -> list[Hook]:
        """Returns the hooks that end the training at its limits other than a step."""
        found: list[Hook] = []
        if self.max_secs is not None:
            found.append(limits.StopAfterSecsHook(self.max_secs))
        if self.max_examples is not None:
            found.append(limits.StopAfterExamplesHook(self.max_examples))
        if self.max_epochs is not None:
            found.append(limits.StopAfterEpochsHook(self.max_epochs))
        return found


@habits.eval_spec
@dataclasses.dataclass(frozen=True)
class EvalSpec:
    """An evaluation along a training: its data, its times, its hooks and exports.

    Attributes:
      input_fn: function that returns the data, see `pipeline.feed.feed`.
      steps: most steps of one evaluation; None for every example, once.
      name: name of the evaluation where there are several; it is part of the
        directories of its events and exports, see `export_folder`.
      hooks: hooks that watch the evaluation.
      exporters: exporters that are called after each evaluation, or one exporter.
      early_stopping: rules that end the training by what this evaluation shows, such as
        `StopIfNoIncrease("accuracy", max_steps=5000)`, or one rule.
      start_delay_secs: seconds that an evaluator job waits before its first evaluation,
        unless training ends before; the shortest of several evaluations counts.
      throttle_secs: least seconds between evaluations; one that is due sooner is passed
        over. The last step is always evaluated. An evaluator job goes by the times at
        which the checkpoints were written. None is 0 where training evaluates itself,
        and 600 in an evaluator job.
      every_steps: evaluates at multiples of so many steps, on the live weights, saved
        or not; an evaluator job takes the first checkpoint from each multiple on. None
        evaluates at checkpoints. A step is saved for its evaluation where keep_best, or
        an exporter of the user's own, needs the files.
      at_start: whether training that evaluates itself begins with an evaluation of
        step 0. An evaluator job evaluates the first checkpoint in any case.
      input_mode: mode in which input_fn is called: ModeKeys.TRAIN to evaluate the
        training's data, of which `steps` says how many batches where they do not end.
        None is ModeKeys.EVAL, and model_fn is called in that mode in any case.
      keep_best: the checkpoints that stay for what this evaluation says of them: a
        KeepBest, or several, each of its own metric. A rule with `restore_best` adds
        its own.
    """

    input_fn: Callable[..., Any]
    steps: int | None = None
    _: dataclasses.KW_ONLY
    name: str | None = None
    hooks: Sequence[Hook] = ()
    exporters: Sequence[Exporter] = ()
    early_stopping: StoppingRule | Sequence[StoppingRule] = ()
    start_delay_secs: float = 120
    throttle_secs: float | None = None
    every_steps: int | None = None
    at_start: bool = False
    input_mode: str | None = None
    keep_best: KeepBest | Sequence[KeepBest] = ()

    def __post_init__(self) -> None:
        _check_input_fn("EvalSpec", self.input_fn)
        checks.check_positive("EvalSpec.steps", self.steps)
        arguments.evaluation_name("EvalSpec.name", self.name)
        arguments.evaluation_hooks("EvalSpec.hooks", self.hooks)
        if isinstance(self.exporters, Exporter):
            object.__setattr__(self, "exporters", (self.exporters,))
        checks.check_all("EvalSpec.exporters", self.exporters, Exporter)
        rules = early_stopping.checked(self.name, self.early_stopping)
        object.__setattr__(self, "early_stopping", rules)
        kept = keep_best.checked(self.keep_best)
        object.__setattr__(self, "keep_best", keep_best.with_rules(kept, rules))
        names = [exporter.name for exporter in self.exporters]
        if len({os.path.normpath(name) for name in names}) < len(names):
            raise RefusedValueError(
                f"EvalSpec.exporters share the names {names}, and so a directory: "
                "give each its own, BestExporter(name='best_loss')."
            )
        for field in ("start_delay_secs", "throttle_secs"):
            value = getattr(self, field)
            if field == "throttle_secs" and value is None:
                continue
            if not checks.is_number(value) or not value >= 0:
                raise RefusedValueError(
                    f"EvalSpec.{field} is {value!r}: write a number >= 0, {field}=60."
                )
        checks.check_positive("EvalSpec.every_steps", self.every_steps)
        checks.check_kind("EvalSpec.at_start", self.at_start, bool, "True")
        self._check_input_mode()

    @property
    def data_fn(self) -> Callable[..., Any]:
        """The input_fn, called in `input_mode`."""
        if self.input_mode is None:
            return self.input_fn
        return calling.with_value(self.input_fn, "mode", self.input_mode)

    @property
    def needs_checkpoint(self) -> bool:
        """Whether what comes after an evaluation may read the files of a checkpoint."""
        own = not all(exporter.is_stock for exporter in self.exporters)
        return own or bool(self.keep_best)

    def _check_input_mode(self) -> None:
        mode = self.input_mode
        if mode not in (None, ModeKeys.EVAL, ModeKeys.TRAIN):
            raise RefusedValueError(
                f"EvalSpec.input_mode is {mode!r}: write input_mode=ModeKeys.TRAIN, "
                "which is 'train', to evaluate the training's data, or leave it out."
            )
        names, takes_any = calling.declared(self.input_fn)
        if mode == ModeKeys.TRAIN and not (takes_any or "mode" in names):
            raise RefusedValueError(
                f"EvalSpec.input_mode is {mode!r}, and input_fn "
                f"{calling.name_of(self.input_fn)} takes no argument mode: leave "
                "input_mode out, as it returns the same data in each mode."
            )

    def evaluate(
        self,
        estimator: Estimator,
        checkpoint_path: str | None = None,
        *,
        hooks: Sequence[Hook] = (),
    ) -> dict[str, Any]:
        """Evaluates once, as `Estimator.evaluate` does.

        Args:
          estimator: Estimator whose model is evaluated.
          checkpoint_path: path prefix of the checkpoint; None as in
            `Estimator.evaluate`.
          hooks: hooks that are called after the spec's own.

        Returns:
          The metrics by name.
        """
        return estimator.evaluate(
            self.data_fn,
            steps=self.steps,
            hooks=[*self.hooks, *hooks],
            checkpoint_path=checkpoint_path,
            name=self.name,
        )

    def export(
        self,
        estimator: Estimator,
        folder: str,
        checkpoint_path: str | None,
        metrics: Mapping[str, Any],
        *,
        is_final: bool,
    ) -> list[str | None]:
        """Calls the exporters after an evaluation.

        Args:
          estimator: Estimator whose model was evaluated.
          folder: directory in which each exporter has its own, see `export_folder`.
          checkpoint_path: path prefix of the checkpoint that was evaluated; None for
            the live weights.
          metrics: metrics that the evaluation returned.
          is_final: whether it was the last evaluation.

        Returns:
          For each exporter its SavedModel's directory, or None where it wrote none.
        """
        return [
            user_errors.call_method(
                "exporter",
                exporter,
                "export",
                estimator,
                os.path.join(folder, exporter.name),
                checkpoint_path,
                metrics,
                is_final,
            )
            for exporter in self.exporters
        ]

    def check_exports(self, estimator: Estimator) -> None:
        """Traces what the exporters will write, while there is no training to lose.

        An exporter of the user's own may write anything, and is left out.

        Args:
          estimator: Estimator whose model is exported.

        Raises:
          Exception: the error that the export would raise.
        """
        stock = [exporter for exporter in self.exporters if exporter.is_stock]
        # Exporters that share a serving function write the same graph: traced once.
        for exporter in {id(e.serving_input_receiver_fn): e for e in stock}.values():
            try:
                estimator.check_export(
                    exporter.serving_input_receiver_fn, input_fn=self.input_fn
                )
            except Exception as error:
                error.add_note(
                    f"This was found before training: exporter {exporter.name!r} would "
                    "fail at each export."
                )
                raise


# The metrics of an evaluation, and what its exporters returned. Of several evaluations:
# the metrics by evaluation's name, and what all exporters returned, in one list.
Result = tuple[dict[str, Any], list[Any]]


def as_list(eval_spec: EvalSpec | Sequence[EvalSpec]) -> list[EvalSpec]:
    """Returns one or several EvalSpecs as a list.

    Args:
      eval_spec: an EvalSpec, or several, each of its own name.

    Raises:
      TypeError: an item is no EvalSpec.
      ValueError: there is none, several share a name, or two exporters a directory.
    """
    specs = [eval_spec] if isinstance(eval_spec, EvalSpec) else eval_spec
    for each in specs if isinstance(specs, (list, tuple)) else [specs]:
        if not isinstance(each, EvalSpec):
            raise RefusedTypeError(
                f"eval_spec is {kind_of(each)}, not an EvalSpec: write "
                "EvalSpec(input_fn), or several in a list, each of its own name."
            )
    specs = list(specs)
    names = [spec.name for spec in specs]
    folders = {os.path.normpath(name or "") for name in names}
    if not specs or len(folders) < len(names):
        raise RefusedValueError(
            f"eval_spec names its evaluations {names}: give at least one, and each its "
            "own EvalSpec(name=...)."
        )
    places = [
        os.path.normpath(os.path.join(export_folder("", spec, specs), each.name))
        for spec in specs
        for each in spec.exporters
    ]
    # Sorted by parts, a directory stands right before the first one inside of it; as
    # texts `best-loss` would stand between `best` and `best/x`.
    places.sort(key=lambda place: place.split("/"))
    for outer, inner in itertools.pairwise(places):
        if f"{inner}/".startswith(f"{outer}/"):
            raise RefusedValueError(
                f"exporters of eval_spec write to {outer!r} and {inner!r}, and one of "
                "them would delete the other's: give each exporter its own name, "
                "BestExporter(name='best_loss')."
            )
    return specs


def export_folder(model_dir: str, spec: EvalSpec, specs: Sequence[EvalSpec]) -> str:
    """Returns the folder in which an evaluation's exporters have their directories.

    Args:
      model_dir: model_dir of the Estimator.
      spec: EvalSpec of the evaluation.
      specs: EvalSpecs of all evaluations.

    Returns:
      `model_dir/export`, as in tf.estimator; for a named one of several evaluations
      `model_dir/export/<name>`.
    """
    name = spec.name if len(specs) > 1 else None
    return os.path.join(model_dir, "export", *([name] if name else []))


def keep_records(model_dir: str, specs: Sequence[EvalSpec]) -> None:
    """Copies exporters' records to the folders of named evaluations.

    A training that began with one evaluation kept them in `model_dir/export`.

    Args:
      model_dir: model_dir of the Estimator.
      specs: EvalSpecs of all evaluations.
    """
    users = collections.Counter(e.name for spec in specs for e in spec.exporters)
    for spec in specs:
        folder = export_folder(model_dir, spec, specs)
        for exporter in spec.exporters if spec.name and len(specs) > 1 else ():
            old = os.path.join(model_dir, "export", exporter.name)
            new = os.path.join(folder, exporter.name)
            exporters_lib.keep_record(old, new, is_shared=users[exporter.name] > 1)


def combined(specs: Sequence[EvalSpec], results: Sequence[Result]) -> Result:
    """Returns the results of all evaluations as one, see `Result`.

    Args:
      specs: EvalSpecs of the evaluations.
      results: result of each.
    """
    exported = [path for _, paths in results for path in paths]
    if len(specs) == 1:
        return results[0][0], exported
    named = zip(specs, results, strict=True)
    return {spec.name: metrics for spec, (metrics, _) in named}, exported


def _check_input_fn(owner: str, input_fn: Any) -> None:
    if not callable(input_fn):
        raise RefusedTypeError(
            f"{owner}.input_fn is {kind_of(input_fn)}, not a callable: hand in the "
            "function, not its result."
        )
