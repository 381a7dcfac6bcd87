"""One training: from where the modules stand to the end, with everything around it."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from absl import logging

from pipeline.checkpoints import checkpoint, checkpoint_files, hook_states
from pipeline.checkpoints.warm_start import WarmStartSettings
from pipeline.contract import checks
from pipeline.contract.hooks import Hook, Run, SavingListener
from pipeline.contract.spec import ModeKeys
from pipeline.driver.runtime import Program, Runtime
from pipeline.feed import by_strategy, position
from pipeline.feed import feed as input_lib
from pipeline.hooks import preemption
from pipeline.hooks.checkpoint_hook import CheckpointHook
from pipeline.hooks.stock import LoggingHook, NanHook, SummaryHook
from pipeline.loop import train_loop
from pipeline.model_dir import claim, end_marker, storage
from pipeline.process import progress
from pipeline.process.refusals import RefusedValueError


class Trainer:
    """Trains a runtime's modules on one input.

    build what TRAIN needs
    claim model_dir; load the newest checkpoint that can be read
    find the input where it stood
    run the loop, with the config's hooks and the caller's
    """

    def __init__(self, runtime: Runtime, input_fn: Callable[..., Any]) -> None:
        """Calls `input_fn` and builds what TRAIN needs.

        Args:
          runtime: what is trained.
          input_fn: see `pipeline.feed.feed`.

        Raises:
          ValueError: model_dir cannot be made.
        """
        if runtime.config.is_chief:
            checkpoint_files.make_directory(runtime.config.model_dir)
        self._runtime = runtime
        self._input_fn = input_fn
        self._feed = runtime.feed(input_fn, ModeKeys.TRAIN)
        self._program: Program = runtime.program(ModeKeys.TRAIN, self._feed)

    def __call__(
        self,
        warm_start_from: str | WarmStartSettings | None,
        *,
        steps: int | None,
        max_steps: int | None,
        hooks: Sequence[Hook],
        saving_listeners: Sequence[SavingListener],
    ) -> None:
        """Trains.

        Args:
          warm_start_from: values to take where model_dir has no checkpoint, or None.
          steps: steps from here, or None.
          max_steps: global step to train to, or None.
          hooks: called besides the ones of the config.
          saving_listeners: told of each checkpoint.

        Raises:
          TypeError: a hook or a listener that is none.
          ValueError: an empty input, or processes that see different checkpoints.
          ClaimedError: another training goes on in model_dir.
          StorageError: model_dir cannot be written.
          PreemptedError: a signal ended it, in a program that `pipeline.run` runs.
        """
        hooks = preemption.hooks_of(hooks)
        checks.check_all("saving_listeners", saving_listeners, SavingListener)
        model_dir = self._runtime.config.model_dir
        saved = functools.partial(checkpoint.latest, model_dir)
        with preemption.ending(hooks, saved), self._only_writer() as fence:
            path = self._load(warm_start_from)
            self._train(
                path,
                steps=steps,
                max_steps=max_steps,
                hooks=hooks,
                saving_listeners=[*fence, *saving_listeners],
            )

    @contextlib.contextmanager
    def _only_writer(self) -> Iterator[list[SavingListener]]:
        """Claims model_dir, for all processes; yields what is to see to each save."""
        peers, model_dir = self._runtime.peers, self._runtime.config.model_dir
        with contextlib.ExitStack() as stack:
            stack.enter_context(
                storage.writing(
                    model_dir,
                    "a file in model_dir",
                    last_good=lambda: checkpoint.latest(model_dir),
                    only_named=True,  # Reading the data can fail, too.
                )
            )
            fence = []
            if peers.leads:
                fence.append(_Fence(stack.enter_context(claim.held(model_dir))))
                end_marker.remove(model_dir)
            # What the one before wrote is there for all to see.
            peers.wait()
            try:
                yield fence
            except BaseException:
                # Nothing is written any more when the claim ends.
                self._runtime.saver().settle()
                raise
            finally:
                self._runtime.holding.after_writing()

    def _load(self, warm_start_from: str | WarmStartSettings | None) -> str | None:
        """Loads what there is to go on from, and returns its path."""
        runtime = self._runtime
        newest = checkpoint.latest(runtime.config.model_dir)
        unsaved = runtime.holding.is_unsaved(newest)
        if unsaved:
            runtime.holding.bring_back()
        goes_by_modules = unsaved or newest is None
        self._check_start(
            runtime.modules.step if goes_by_modules else checkpoint.step_of(newest)
        )
        path, unreadable = None, []
        if unsaved:
            runtime.configured.forget()
        elif newest is None:
            runtime.start(warm_start_from)
        else:
            path, unreadable = runtime.load_newest(newest, together=True)
            runtime.configured.apply(tells=runtime.peers.leads)
        if runtime.peers.leads:
            runtime.saver().resume(path, unreadable=unreadable)
            position.remove_unfinished(runtime.config.model_dir)
            # Those of checkpoints that were never committed, or were set aside: what
            # is saved under their names from now on is of another run.
            position.remove_old_positions(runtime.config.model_dir, keep=path)
        if unreadable:
            runtime.peers.wait()  # All are to see which one is the latest now.
        if runtime.config.save_checkpoints_steps == 0 and not unsaved:
            runtime.holding.begin_unsaved(path)
        return path

    def _train(
        self,
        path: str | None,
        *,
        steps: int | None,
        max_steps: int | None,
        hooks: Sequence[Hook],
        saving_listeners: Sequence[SavingListener],
    ) -> None:
        runtime, config, peers = (
            self._runtime,
            self._runtime.config,
            self._runtime.peers,
        )
        start = runtime.modules.step
        source = by_strategy.training_input(
            self._feed,
            runtime.modules,
            peers=peers,
            path=path,
            changed_input=config.changed_input,
        )
        if path is not None and peers.leads:
            text = "train | resumed from step %d of %s | input at %s"
            logging.info(text, start, path, source.place)
        run = runtime.run(max_steps if steps is None else start + steps)
        loop = train_loop.TrainLoop(
            self._steps,
            self._program.metrics,
            steps_per_loop=config.steps_per_loop,
            peers=peers,
        )
        saving = CheckpointHook(
            config,
            runtime.modules,
            runtime.saver(),
            source.save,
            states=loop.state,
            listeners=[runtime.holding, *saving_listeners],
        )

        in_old_pass = source.resumed

        def next_pass() -> Any:
            # Where so many steps were asked for, what is left of a pass is no limit.
            # And a checkpoint may be of the end of the data, which shows only here.
            nonlocal in_old_pass
            if not in_old_pass or (steps is None and run.step > start):
                return None
            in_old_pass = False
            return source.begin_anew()

        runtime.training = True
        try:
            ended = loop(
                run,
                source.iterator,
                self._hooks(hooks, saving),
                next_pass=next_pass,
                saved=hook_states.read(path) if path else None,
            )
        finally:
            runtime.training = False
            progress.close_all()
            source.close()
        if config.save_checkpoints_steps == 0:
            # What else a checkpoint sees to: each replica is to go on from the same.
            runtime.modules.synchronize()
        # The last checkpoint is there for all.
        peers.wait()
        if ended and run.step == start:
            raise input_lib.empty_input_error(self._input_fn, ModeKeys.TRAIN)

    def _steps(self, iterator: Any, start: int, boundaries: Sequence[int]) -> Any:
        """The compiled loop, which changes what predictions may be made with."""
        self._runtime.holding.before_change()
        # Now, not after the loop: one that fails has made updates all the same.
        self._runtime.holding.after_change()
        return self._program.compiled(iterator, start, boundaries)

    def _hooks(self, hooks: Sequence[Hook], saving: Hook) -> list[Hook]:
        """The config's hooks and the caller's, in the order in which they are called.

        Args:
          hooks: the caller's.
          saving: comes last, so that a checkpoint holds what the others did.
        """
        config = self._runtime.config
        stops = config.on_nan == "stop"
        result: list[Hook] = [NanHook(fail_on_nan_loss=stops)]
        if config.log_step_count_steps:
            result.append(LoggingHook(config.log_step_count_steps))
        if config.save_summary_steps:
            result.append(SummaryHook(config.save_summary_steps))
        result.extend(hooks)
        if config.save_checkpoints_steps != 0:
            result.append(saving)
        return result

    def _check_start(self, start: int) -> None:
        """All have to go on from the same checkpoint; says who takes part."""
        peers = self._runtime.peers
        replicas, config = peers.replicas, self._runtime.config
        steps = [step for (step,) in peers.gather([start])]
        if len(set(steps)) > 1:
            raise RefusedValueError(
                f"the processes start at different steps, {steps} by process: is "
                f"model_dir {config.model_dir!r} on storage that all of them share?"
            )
        logging.info(
            "train | %s | replicas %d of %d | %s",
            config.cluster if config.cluster.jobs else "one process",
            replicas.local,
            replicas.total,
            self._feed,
        )


class _Fence(SavingListener):
    """Sees to it that a training that lost model_dir does not write there."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check

    def before_save(self, run: Run) -> None:
        self._check()
