"""The start of a training: claims model_dir, loads a checkpoint, finds the input.

`Trainer` calls `claimed`, `load` and `reading`, in this order; where the training goes
back to a checkpoint, `go_back` and `reading` again. All processes that train in step
call each of them, and one writes what is to be written.
"""

import contextlib
from collections.abc import Callable, Iterator

from absl import logging

from pipeline.checkpoints import checkpoint
from pipeline.checkpoints.checkpoint_reader import Reader
from pipeline.contract.hooks import Run
from pipeline.driver.runtime import Runtime
from pipeline.feed import by_strategy
from pipeline.feed.by_strategy import TrainingData
from pipeline.feed.feed import AnyFeed
from pipeline.model_dir import claim, end_marker, storage
from pipeline.process import progress
from pipeline.process.refusals import RefusedValueError
from pipeline.strategy import averages


@contextlib.contextmanager
def claimed(runtime: Runtime) -> Iterator[Callable[[], None]]:
    """Claims model_dir while the block trains, for all processes.

    Args:
      runtime: runtime that is trained.

    Yields:
      A function that raises ClaimedError if the claim was taken over.

    Raises:
      ClaimedError: another training goes on in model_dir.
      StorageError: model_dir cannot be written.
    """
    peers, model_dir = runtime.peers, runtime.config.model_dir
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            storage.writing(
                model_dir,
                "a file in model_dir",
                last_good=lambda: checkpoint.latest(model_dir),
                only_named=True,  # Reading the data can fail, too.
            )
        )
        check: Callable[[], None] = _nothing
        if peers.leads:
            check = stack.enter_context(claim.held(model_dir))
            end_marker.remove(model_dir)
        # The last training has written all it will: all processes now see the same.
        peers.wait()
        try:
            yield check
        except BaseException:
            # A save may be under way in the background: it ends before the claim does.
            runtime.saver().settle()
            raise
        finally:
            runtime.holding.after_writing()


def load(runtime: Runtime, feed: AnyFeed) -> str | None:
    """Sets the modules to the values to go on from, and logs who takes part.

    Args:
      runtime: runtime that is trained; model_dir is claimed.
      feed: training input, for the log.

    Returns:
      Path prefix of the checkpoint; None where the modules hold initial values, or
      values that were trained without saving.

    Raises:
      ValueError: the processes see different checkpoints.
    """
    runtime.settle()
    config, leads = runtime.config, runtime.peers.leads
    newest = checkpoint.latest(config.model_dir)
    unsaved = runtime.holding.is_unsaved(newest)
    if unsaved:
        runtime.holding.bring_back()
    by_modules = unsaved or newest is None
    step = runtime.modules.step if by_modules else checkpoint.step_of(newest)
    _check_alike(runtime, step)
    _say_who(runtime, feed)
    path, unreadable = None, []
    if unsaved:
        runtime.configured.forget()
    elif newest is None:
        runtime.start()
        runtime.check_started()
    else:
        path, unreadable = runtime.load_newest(newest, together=True)
        runtime.configured.apply(tells=leads)
        _say_averages(runtime, path)
    if leads:
        runtime.saver().resume(path, unreadable=unreadable)
    if unreadable:
        # Until the damaged ones are set aside: all then see the same newest one.
        runtime.peers.wait()
    if config.save_checkpoints_steps == 0 and not unsaved:
        runtime.holding.begin_unsaved(path)
    return path


@contextlib.contextmanager
def reading(
    runtime: Runtime, feed: AnyFeed, path: str | None
) -> Iterator[TrainingData]:
    """Finds the input where it stood; the modules' values are live in the block.

    Args:
      runtime: runtime that is trained.
      feed: training input.
      path: path prefix of the checkpoint that was loaded, or None.

    Yields:
      The training data, after the last example that the checkpoint was trained on.

    Raises:
      ValueError: the checkpoint is of another input, and `changed_input` refuses that.
    """
    data = by_strategy.training_input(
        feed,
        runtime.modules,
        peers=runtime.peers,
        path=path,
        changed_input=runtime.config.changed_input,
    )
    if path is not None and runtime.peers.leads:
        text = "train | resumed from step %d of %s | input at %s"
        logging.info(text, runtime.modules.step, path, data.place)
    try:
        with runtime.holding.live():
            yield data
    finally:
        progress.close_all()
        data.close()


def go_back(runtime: Runtime, feed: AnyFeed, run: Run) -> tuple[str, AnyFeed]:
    """Sets the modules to the checkpoint to which a hook wants to go back.

    Newer checkpoints are deleted: the training goes another way than they did.

    Args:
      runtime: runtime that is trained; no values are live.
      feed: training input, which was read.
      run: run that was left, with its `going_back`.

    Returns:
      The path prefix of the checkpoint, and the input, of which nothing was read.

    Raises:
      ValueError: the processes see different checkpoints.
      UnreadableCheckpointError: neither the checkpoint nor one before it can be read.
    """
    model_dir, peers, saver = runtime.config.model_dir, runtime.peers, runtime.saver()
    saver.wait()
    runtime.holding.after_writing()
    peers.wait()  # For the one that saves: all see the same checkpoints now.
    choose = run.going_back.choose or (lambda: checkpoint.latest(model_dir))
    path = choose()
    _check_alike(runtime, checkpoint.step_of(path))
    path, unreadable = runtime.load_newest(path, together=True)
    runtime.configured.apply(tells=False)
    if peers.leads:
        text = "train | step %d is given up (%s): going back to step %d, of %s."
        step = checkpoint.step_of(path)
        logging.warning(text, run.step, run.going_back.reason, step, path)
        saver.go_back(path, unreadable=unreadable)
    peers.wait()
    return path, feed.again()


def _nothing() -> None:
    """Checks nothing: another process holds the claim."""


def _check_alike(runtime: Runtime, step: int) -> None:
    """Checks that all processes go on from the same step."""
    steps = [given for (given,) in runtime.peers.gather([step])]
    if len(set(steps)) > 1:
        raise RefusedValueError(
            f"the processes start at different steps, {steps} by process: is "
            f"model_dir {runtime.config.model_dir!r} on storage that all of them share?"
        )


def _say_averages(runtime: Runtime, path: str) -> None:
    """Says which averages only the run has, or only its checkpoint."""
    if not runtime.peers.leads:
        return
    reader, kept = Reader(path), runtime.modules.averages
    reader.take_names(list(runtime.modules.named_variables()))
    saved = reader.shapes
    own = kept.names() if kept is not None else set()
    lost = {n: kind for n, kind in averages.held(saved).items() if n not in own}
    if lost:
        kinds = sorted(set(lost.values()))
        logging.warning(
            "train | the checkpoint holds averages (%s) of %d variables that this run "
            "keeps none of: its own checkpoints will lack them. To keep them, write "
            "RunConfig(average=%s(...)) as before.",
            ", ".join(kinds),
            len(lost),
            kinds[0],
        )
    lacking = [name for name in own if name not in saved]
    if lacking:
        logging.warning(
            "train | the checkpoint lacks %d of the %d values of this run's averages: "
            "all averages begin anew from here.",
            len(lacking),
            len(own),
        )


def _say_who(runtime: Runtime, feed: AnyFeed) -> None:
    replicas, cluster = runtime.peers.replicas, runtime.config.cluster
    logging.info(
        "train | %s | replicas %d of %d | %s",
        cluster if cluster.jobs else "one process",
        replicas.local,
        replicas.total,
        feed,
    )
