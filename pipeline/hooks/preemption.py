"""Ends a training in order when a signal comes: the loop returns, and all is saved.

`PreemptionHook` notes the signal and asks for a stop. `hooks_of` adds one to each
training of a program that `pipeline.run` runs, and `ending` ends that program when the
last checkpoint is saved.
"""

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence

from pipeline.checkpoints import checkpoint
from pipeline.contract.hooks import Hook, Run
from pipeline.contract.run_config import RunConfig
from pipeline.mistakes import checks
from pipeline.process import signals as signals_lib
from pipeline.process.signals import EndedBySignal, Notes
from pipeline.process.signals import PreemptedError as PreemptedError

# Reasons of a stop: the machine is taken away, or the user pressed Ctrl-C.
_PREEMPTED = "preempted"
_BY_CTRL_C = "stopped by Ctrl-C"


def is_stopped(run: Run) -> bool:
    """Returns whether a signal is a reason for a run to stop.

    Args:
      run: run that is under way, or at its end.
    """
    return bool({_PREEMPTED, _BY_CTRL_C} & {*run.stop_reasons})


class PreemptionHook(Hook):
    """Stops a run after SIGTERM, or a first Ctrl-C, as soon as the loop returns.

    The checkpoint of the clean end holds everything. Where several processes train in
    step, a signal to one of them stops all at the same step. A second Ctrl-C interrupts
    at once. It works in a program's main thread, to which Python hands its signals. A
    program that `pipeline.run` runs has one in each training.
    """

    def __init__(
        self, signals: Sequence[int] = (signal.SIGTERM, signal.SIGINT)
    ) -> None:
        """Takes the signals that stop the run, answered from `begin` to `release`."""
        self._signals = signals
        self._notes = Notes(signals)
        self._stopped = False

    @property
    def received(self) -> int | None:
        """The signal that came during the last run, or None."""
        return self._notes.received

    @property
    def stopped(self) -> bool:
        """Whether a signal ended the last run before its time."""
        return self._stopped

    def begin(self, run: Run) -> None:
        """Begins to note signals: TensorFlow took SIGTERM for itself before."""
        self._stopped = False
        if self._notes.are_taken:
            return  # The training goes back: a signal that came before counts.
        self._notes = Notes(self._signals)
        self._notes.start()

    def after_loop(self, run: Run) -> None:
        # All processes ask here, so that they stop at the same step.
        if run.agree(self._notes.received is not None):
            self.stop(run)

    def end(self, run: Run) -> None:
        # A run that has reached its last step is done, signal or not.
        self._stopped = is_stopped(run) and run.step != run.max_step

    def stop(self, run: Run) -> None:
        """Stops a run because of the signal that came, here or in another process."""
        by_user = self._notes.received == signal.SIGINT
        run.request_stop(_BY_CTRL_C if by_user else _PREEMPTED)

    def release(self) -> None:
        """Gives the signals back. `end` does not: the last save comes after it."""
        self._notes.stop()

    def interrupts(self) -> Hook:
        """Returns a hook that ends an evaluation along the run by PreemptedError."""
        return _Interrupts(lambda: self._notes.received is not None)


def hooks_of(hooks: Sequence[Hook]) -> list[Hook]:
    """Returns the hooks of a training, with one that answers signals to the program.

    Args:
      hooks: hooks of the caller. None is added where a `PreemptionHook` is among them,
        or where the signals of this process are not answered, see `signals.answered`.

    Raises:
      TypeError: an object in `hooks` is no Hook.
    """
    checks.check_all("hooks", hooks, Hook)
    has_one = any(isinstance(hook, PreemptionHook) for hook in hooks)
    if has_one or not signals_lib.are_answered():
        return list(hooks)
    return [*hooks, PreemptionHook()]


@contextlib.contextmanager
def ending(hooks: Sequence[Hook], config: RunConfig) -> Iterator[None]:
    """Ends the program after a training that a signal ended.

    Nothing is raised in a program that `pipeline.run` does not run: it asks its hook.

    Args:
      hooks: hooks of the training in the block.
      config: configuration of that training.

    Raises:
      PreemptedError: a signal ended the training before its time.
      EndedBySignal: a signal came after the training's last step.
    """
    own = [hook for hook in hooks if isinstance(hook, PreemptionHook)]
    try:
        yield
    finally:
        for hook in own:
            hook.release()
    if not signals_lib.are_answered():
        return
    for hook in own:
        if hook.stopped:
            raise preempted_error(config)
        if hook.received is not None:
            raise EndedBySignal(hook.received)


def preempted_error(config: RunConfig) -> PreemptedError:
    """Returns the error of a training that a signal ended.

    Args:
      config: configuration of that training, which is at its end.
    """
    saves = config.save_checkpoints_steps != 0
    # One that saves nothing may have found a checkpoint of before.
    if saves and (path := checkpoint.latest(config.model_dir)):
        end = f"{path} was saved: the same command goes on from there."
    else:
        end = "nothing was saved: the same command begins where this one began."
    return PreemptedError(f"a signal ended training, and {end}")


class _Interrupts(Hook):
    """Gives up an evaluation along a training, as the checkpoint itself is saved."""

    def __init__(self, received: Callable[[], bool]) -> None:
        self._received = received

    def after_loop(self, run: Run) -> None:
        if run.agree(self._received()):
            raise PreemptedError("a signal ended the evaluation.")
