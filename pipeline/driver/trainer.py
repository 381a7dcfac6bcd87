"""The loop: one training, from where the modules stand to the end.

`Estimator.train` and `train_and_evaluate` both run it:

    claim model_dir
    load the newest checkpoint that can be read
    check the evaluations: a mistake in them is to end no training later
    find the input where it stood
    begin with hooks and evaluations, and what was saved of them; save the first step
    until it is decided that this is the end:
        train to the next stop
        call the hooks; save if it is time; evaluate and export if it is time
    save the last step; evaluate and export it; end with the hooks

`Trainer` does what comes once in a training, `TrainLoop` what comes at each stop. Only
`TrainLoop._decide` says whether and how far to go on. Where a hook asks to go back to a
checkpoint, `Trainer` loads it, and begins a new `TrainLoop` from there.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from pipeline.checkpoints import checkpoint_files, hook_states
from pipeline.contract.hooks import Hook, Run, SavingListener
from pipeline.contract.spec import ModeKeys
from pipeline.contract.train_op import Rate
from pipeline.driver import along, start
from pipeline.driver.along import Evaluation, Evaluations
from pipeline.driver.programs import Program
from pipeline.driver.runtime import Runtime
from pipeline.feed import feed as input_lib
from pipeline.feed import position
from pipeline.feed.by_strategy import TrainingData
from pipeline.hooks import limits, loss_guard, metric_hook, preemption, stock
from pipeline.hooks.limits import StopAfterEpochsHook, StopAfterExamplesHook
from pipeline.hooks.preemption import PreemptionHook
from pipeline.hooks.saving import Saving
from pipeline.hooks.stock import LoggingHook, NanHook, SummaryHook
from pipeline.loop.compiled_loop import StepsLoop
from pipeline.loop.stretch import Segment
from pipeline.loop.watchers import Watchers, names_of
from pipeline.mistakes import checks, user_errors
from pipeline.rescue.restoring import Restoring
from pipeline.strategy.parameter_server import ParameterServers
from pipeline.strategy.peers import Peers
from pipeline.tools.description import DescriptionHook
from pipeline.tools.tools_hook import ToolsHook


class Trainer:
    """Trains a runtime's modules on one input."""

    def __init__(
        self,
        runtime: Runtime,
        input_fn: Callable[..., Any],
        *,
        hooks: Sequence[Hook] = (),
        saving_listeners: Sequence[SavingListener] = (),
        evaluations: Sequence[Evaluation] = (),
    ) -> None:
        """Calls `input_fn`, and builds modules and the train step for its batches.

        Args:
          runtime: runtime that is trained.
          input_fn: function that returns the data, see `pipeline.feed.feed`.
          hooks: hooks that are called after the config's own.
          saving_listeners: listeners that are told of each checkpoint.
          evaluations: evaluations along the training.

        Raises:
          TypeError: an item of `hooks` or `saving_listeners` is of another kind.
          ValueError: model_dir cannot be made.
        """
        self._hooks = preemption.hooks_of(hooks)
        metric_hook.check_fed(self._hooks, has_evaluations=bool(evaluations))
        checks.check_all("saving_listeners", saving_listeners, SavingListener)
        has_servers = isinstance(runtime.modules.strategy, ParameterServers)
        wants_losses = loss_guard.wants_losses(self._hooks, has_servers=has_servers)
        self._listeners = saving_listeners
        self._evaluations = evaluations
        if runtime.config.is_chief:
            checkpoint_files.make_directory(runtime.config.model_dir)
        self._runtime = runtime
        self._input_fn = input_fn
        self._feed = runtime.feed(input_fn, ModeKeys.TRAIN)
        if self._feed.plan.endless:
            limits.check_ends(self._hooks, input_fn)
        self._rates: Mapping[str, Rate] = runtime.rates(
            wanted=any(hook.sets_rates for hook in self._hooks)
        )
        self._most_examples: int | None = None
        if any(isinstance(each, StopAfterExamplesHook) for each in self._hooks):
            self._most_examples = position.most_examples(self._feed)
        self._program: Program = runtime.program(ModeKeys.TRAIN, self._feed)
        self._compiled: StepsLoop = self._program.compiled
        if wants_losses:
            self._compiled = functools.partial(self._compiled, each_loss=True)
        if stock.wants_tensors(self._hooks, self._program.tensors):
            self._compiled = functools.partial(self._compiled, tensors=True)
        # What a run is, is told once no hook has refused to begin.
        hooks = [*_hooks_of(runtime), *self._hooks, *_describing(runtime)]
        self._restoring = Restoring(
            runtime.modules, runtime.save_weights, runtime.config, self._feed
        )
        self._all_hooks = self._restoring.added_to(hooks)

    def __call__(self, *, steps: int | None, max_steps: int | None) -> None:
        """Claims model_dir, loads, finds the input, and trains to the end.

        Args:
          steps: number of steps to take; None for no such limit.
          max_steps: global step to train to; None for no such limit.

        Raises:
          ValueError: the input is empty, or the processes see different checkpoints.
          ClaimedError: another training goes on in model_dir.
          StorageError: model_dir cannot be written.
          PreemptedError: a signal ended it, in a program that `pipeline.run` runs.
        """
        runtime = self._runtime
        ending = preemption.ending(self._hooks, runtime.config)
        with ending, start.claimed(runtime) as check:
            path = start.load(runtime, self._feed)
            if steps is not None:  # Counted from the checkpoint: known only now.
                max_steps = runtime.modules.step + steps
            first_step = runtime.modules.step
            # Not earlier: the train step comes first in making variables, and all
            # processes make them in one order.
            for evaluation in self._evaluations:
                evaluation.check()
            while True:
                run = runtime.run(max_steps)
                run.rates, run.most_examples = self._rates, self._most_examples
                reading = start.reading(runtime, self._feed, path)
                with reading as data, self._restoring.reading(data):
                    loop = self._loop(data, check, any_pass=steps is not None)
                    ended = loop(run, hook_states.read(path) if path else None)
                if run.going_back is None:
                    break
                path, self._feed = start.go_back(runtime, self._feed, run)
            if runtime.config.save_checkpoints_steps == 0:
                # A save does this, too: a later training begins with equal replicas.
                runtime.modules.synchronize()
            # After this all processes see the last checkpoint.
            runtime.peers.wait()
            if ended and run.step == first_step and not run.stop_reasons:
                raise input_lib.empty_input_error(self._input_fn, ModeKeys.TRAIN)

    def _loop(
        self, data: TrainingData, check_claim: Callable[[], None], *, any_pass: bool
    ) -> "TrainLoop":
        """Puts the loop together of its parts."""
        runtime, config = self._runtime, self._runtime.config
        saving = Saving(
            config,
            runtime.modules,
            runtime.saver(),
            data.save,
            check_claim=check_claim,
            # First: what listeners call then finds the modules at this checkpoint.
            listeners=[runtime.holding, *self._listeners],
        )
        steps = config.steps_per_loop
        return TrainLoop(
            self._steps,
            data,
            Watchers(self._all_hooks, self._program.metrics, steps_per_loop=steps),
            saving,
            evaluations=self._evaluations,
            peers=runtime.peers,
            any_pass=any_pass,
        )

    def _steps(
        self, iterator: Any, start: int, boundaries: Sequence[int]
    ) -> list[Segment]:
        """Runs the compiled loop; tells `holding` that the values change.

        Args:
          iterator: iterators of the training data.
          start: global step at which the loop begins.
          boundaries: global steps at which it reports; the last one ends it.
        """
        self._restoring.leave_out_at(start)
        self._runtime.holding.changing()
        return self._compiled(iterator, start, boundaries)


class TrainLoop:
    """Trains from stop to stop, until it is decided that this is the end."""

    def __init__(
        self,
        steps: StepsLoop,
        data: TrainingData,
        watchers: Watchers,
        saving: Saving,
        *,
        evaluations: Sequence[Evaluation] = (),
        peers: Peers | None = None,
        any_pass: bool = False,
    ) -> None:
        """Takes the parts, and names the evaluations as checkpoints name their states.

        Args:
          steps: loop over train steps.
          data: training data, where the run begins.
          watchers: hooks of the run.
          saving: writer of checkpoints when they are due.
          evaluations: evaluations along the training.
          peers: processes that train in step; None for this one alone.
          any_pass: whether a run that goes on in the middle of a pass over the data
            begins another pass at its end; else only where no data were left.
        """
        self._steps = steps
        self._data = data
        self._watchers = watchers
        self._saving = saving
        hooks, others = watchers.hooks, [along.STATE] * len(evaluations)
        names = names_of(hooks, others=others)[len(hooks) :]
        self._evaluations = Evaluations(dict(zip(names, evaluations, strict=True)))
        self._signals = [hook for hook in hooks if isinstance(hook, PreemptionHook)]
        self._epochs = [hook for hook in hooks if isinstance(hook, StopAfterEpochsHook)]
        self._peers = peers or Peers(tf.distribute.get_strategy())
        self._any_pass = any_pass
        self._ended = False
        self._told_end = False

    def __call__(self, run: Run, saved: Mapping[str, Any] | None = None) -> bool:
        """Trains from stop to stop.

        Args:
          run: run at the step to start from; its `step` moves on.
          saved: states of hooks and evaluations that the run goes on with, as `_state`
            returned them; None for none.

        Returns:
          Whether the run ended because the input did. Where a hook has asked for the
          way back, the run has not ended, and `run.going_back` says so.
        """
        self._begin(run, saved or hook_states.NONE)
        while stops := self._decide(run):
            segments = self._steps(self._data.iterator, run.step, stops)
            self._at_stop(run, segments)
            self._ended = segments[-1].ended and not self._begin_anew_if_it_may(run)
        if run.going_back is None:
            self._end(run)
        return self._ended

    def _begin(self, run: Run, saved: Mapping[str, Any]) -> None:
        """Begins with hooks and evaluations; saves the first step."""
        self._saving.begin(run)
        self._watchers.begin(run, saved)
        for hook in self._epochs:
            hook.found(run, resumed=self._data.resumed)
        held = saved["hooks"]
        states = {name: held[name]["state"] for name in held if "state" in held[name]}
        self._evaluations.begin(run, self._signals, states)
        # Hooks may have been taken out since: their states are dropped, and named.
        known = {*names_of(self._watchers.hooks), *self._evaluations.by_name}
        lost = [name for name in states if name not in known]
        if lost and run.leads:
            text = "train | the checkpoint holds the state of %s, which is no hook now."
            logging.info(text, ", ".join(lost))
        self._save_and_evaluate(run, saves=self._saving.due_at_begin(run))

    def _decide(self, run: Run) -> list[int]:
        """Returns the stops to train to next, equal in all processes; none at the end.

        The end is where max_step is reached, the input has ended, or a process was
        asked to stop; and where the hooks of all processes want to go back. Hooks,
        clocks and speed differ between processes, and so do their stops. All go to the
        earliest of their last stops, at which a hook may act, and pass through all
        stops before it, at which hooks only watch.
        """
        if self._ended or run.going_back is not None:
            return []
        if run.max_step is not None and run.step >= run.max_step:
            return []
        stops: list[int] = []
        if not run.stop_reasons:
            others = (self._saving, self._evaluations)
            stops = self._watchers.stops(run, *(o.next_step(run.step) for o in others))
        given = self._peers.gather(stops)
        if not all(given):  # A process without stops was asked to end the run.
            if not run.stop_reasons:
                run.request_stop("another process asked for it")
            return []
        last = min(theirs[-1] for theirs in given)
        return sorted({step for theirs in given for step in theirs if step <= last})

    def _at_stop(self, run: Run, segments: Sequence[Segment]) -> None:
        """Calls the hooks, saves, evaluates and exports, in this order.

        A save that is due by the clock comes last: it holds what `after_hooks` did.
        """
        self._watchers.after_steps(run, segments)
        # A step from which all processes go back is given up.
        if run.going_back is None:
            self._save_and_evaluate(run, saves=self._saving.due_at_step(run))
        if run.going_back is None:
            self._watchers.after_hooks(run)
        if run.going_back is None and self._saving.due_by_clock(run):
            self._save_and_evaluate(run, saves=True)

    def _begin_anew_if_it_may(self, run: Run) -> bool:
        """Begins another pass over data that ended, if this run may; returns whether.

        A run for a number of steps is not limited by what is left of an earlier run's
        pass. Any run may begin another where its checkpoint is of the end of the data,
        which shows only here: no step was made. Where hooks count the passes, they say.
        """
        if self._epochs:
            may = all([hook.goes_on(run) for hook in self._epochs])
        else:
            is_new = run.step > run.first_step and not self._any_pass
            may = self._data.resumed and not is_new
        if may:
            self._data.begin_anew()
        return may

    def _end(self, run: Run) -> None:
        """Saves and evaluates the last step, ends with the hooks, and says why."""
        run.finished = True
        self._save_and_evaluate(run, saves=self._saving.due_on_request(run))
        if run.going_back is not None:
            return
        self._watchers.end(run)
        self._told_end = True
        self._watchers.before_save(run)
        self._saving.finish(run, functools.partial(self._state, run))
        reasons = [*run.stop_reasons, *(["the input ended"] if self._ended else [])]
        if run.leads:
            words = ["train", f"ended at step {run.step}", *reasons]
            logging.info("%s", " | ".join(words))

    def _save_and_evaluate(self, run: Run, *, saves: bool) -> None:
        """Saves if `saves`, or for an evaluation; evaluates; tells the hooks.

        An evaluation that fails ends the training, but loses nothing: the others are
        made before, and the step is saved. The run that goes on makes it first.
        """
        # All decide before the save: a checkpoint says which of them are still to come.
        is_needed = self._evaluations.decide(run, saved=saves)
        if saves or (is_needed and self._saving.due_on_request(run)):
            self._save(run)
        tell, alone = self._watchers.after_evaluation, self._peers.alone
        failures = self._evaluations.make(run, tell, alone=alone)
        if failures and self._saving.due_on_request(run):
            self._save(run)
        user_errors.raise_first(failures)

    def _save(self, run: Run) -> None:
        self._watchers.before_save(run)
        self._saving.save(run, functools.partial(self._state, run))
        if not run.finished:  # Listeners' `end` has the last checkpoint's window.
            self._watchers.after_save()

    def _state(self, run: Run) -> dict[str, Any]:
        """Returns the states of hooks and evaluations, to be saved with a checkpoint.

        After `end` all windows were reported, and none is saved. A run that a signal
        broke off is to go on with its windows.
        """
        reported = self._told_end and not preemption.is_stopped(run)
        found = self._watchers.state(reported=reported)
        for name, state in self._evaluations.states(run).items():
            found["hooks"][name] = {"state": state}
        return found


def _hooks_of(runtime: Runtime) -> list[Hook]:
    """Returns the config's hooks that are called before the caller's."""
    config = runtime.config
    result: list[Hook] = [NanHook(on=config.on_nan)]
    if config.log_step_count_steps:
        result.append(LoggingHook(config.log_step_count_steps))
    if config.save_summary_steps:
        result.append(SummaryHook(config.save_summary_steps))
    if config.tools:
        hparams = runtime.recipe.hparams
        result.append(ToolsHook(config.tools, hparams, config.save_summary_steps))
    return result


def _describing(runtime: Runtime) -> list[Hook]:
    """Returns the hook that describes the run, if there is anything to say."""
    hparams, table = runtime.recipe.hparams, runtime.parameter_table()
    writes = bool(runtime.config.save_summary_steps)
    if table or (writes and hparams):
        return [DescriptionHook(table, hparams, writes_events=writes)]
    return []
