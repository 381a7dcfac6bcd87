"""What comes before the first step: model_dir is claimed, its checkpoint loaded."""

import contextlib
from collections.abc import Callable, Iterator

from absl import logging

from pipeline.checkpoints import checkpoint
from pipeline.driver.runtime import Runtime
from pipeline.feed import by_strategy, position
from pipeline.feed.by_strategy import TrainingData
from pipeline.feed.feed import AnyFeed
from pipeline.model_dir import claim, end_marker, storage
from pipeline.process import progress
from pipeline.process.refusals import RefusedValueError


@contextlib.contextmanager
def claimed(runtime: Runtime) -> Iterator[Callable[[], None]]:
    """Claims model_dir while the block trains, for all processes.

    Args:
      runtime: what is trained.

    Yields:
      A function that raises ClaimedError if the claim was taken over.

    Raises:
      ClaimedError: another training goes on there.
      StorageError: it cannot be written.
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
        # What the one before wrote is there for all to see.
        peers.wait()
        try:
            yield check
        except BaseException:
            # Nothing is written any more when the claim ends.
            runtime.saver().settle()
            raise
        finally:
            runtime.holding.after_writing()


def load(runtime: Runtime, feed: AnyFeed) -> str | None:
    """Loads what there is to go on from, and says who takes part.

    Args:
      runtime: what is trained; holds the claim.
      feed: the input.

    Returns:
      Path prefix of the checkpoint; None where the modules hold initial values, or what
      was trained without saving.

    Raises:
      ValueError: the processes see different checkpoints.
    """
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
    else:
        path, unreadable = runtime.load_newest(newest, together=True)
        runtime.configured.apply(tells=leads)
    if leads:
        runtime.saver().resume(path, unreadable=unreadable)
        position.remove_unfinished(config.model_dir)
        # Of checkpoints that were never committed, or were set aside: what is saved
        # under their names from now on is of another run.
        position.remove_old_positions(config.model_dir, keep=path)
    if unreadable:
        runtime.peers.wait()  # All are to see which one is the latest now.
    if config.save_checkpoints_steps == 0 and not unsaved:
        runtime.holding.begin_unsaved(path)
    return path


@contextlib.contextmanager
def reading(
    runtime: Runtime, feed: AnyFeed, path: str | None
) -> Iterator[TrainingData]:
    """Finds the input where it stood; what the modules hold is live in the block.

    Args:
      runtime: what is trained.
      feed: the input.
      path: path prefix of the checkpoint that was loaded, or None.

    Raises:
      ValueError: the checkpoint is of another input, where that is refused.
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


def _nothing() -> None:
    """Where another process holds the claim, there is nothing to check."""


def _check_alike(runtime: Runtime, step: int) -> None:
    """All have to go on from the same checkpoint."""
    steps = [given for (given,) in runtime.peers.gather([step])]
    if len(set(steps)) > 1:
        raise RefusedValueError(
            f"the processes start at different steps, {steps} by process: is "
            f"model_dir {runtime.config.model_dir!r} on storage that all of them share?"
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
