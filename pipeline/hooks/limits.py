"""Hooks that end a training at a limit: a step, seconds, examples, passes.

`TrainSpec(max_secs="3h", max_examples=10**6, max_epochs=10)` adds them. Limits count
over restarts: what was used up is in each checkpoint.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from absl import logging

from pipeline.contract import calling
from pipeline.contract.hooks import Hook, Run
from pipeline.hooks import preemption
from pipeline.mistakes.checks import check_count, checked_secs
from pipeline.process.refusals import RefusedRuntimeError, RefusedValueError


class StopAtStepHook(Hook):
    """Stops the run at a step: after `num_steps` of this run, or at `last_step`."""

    def __init__(
        self, num_steps: int | None = None, last_step: int | None = None
    ) -> None:
        """Takes the step, or the number of steps.

        Args:
          num_steps: steps from the beginning of the run to the stop.
          last_step: global step to stop at.

        Raises:
          ValueError: both or neither is given, or one of them is no int above 0.
        """
        if (num_steps is None) == (last_step is None):
            raise RefusedValueError(
                f"StopAtStepHook takes one of num_steps ({num_steps}) and last_step "
                f"({last_step}): write StopAtStepHook(last_step=1000)."
            )
        if num_steps is not None:
            check_count("StopAtStepHook.num_steps", num_steps, least=1)
        else:
            check_count("StopAtStepHook.last_step", last_step, least=1)
        self._num_steps = num_steps
        self._last_step = last_step

    def begin(self, run: Run) -> None:
        if self._num_steps is not None:
            self._last_step = run.step + self._num_steps

    def next_step(self, step: int) -> int | None:
        # A run that begins beyond the last step ends after one step more.
        return max(self._last_step, step + 1)

    def after_step(self, run: Run) -> None:
        if run.step >= self._last_step:
            run.request_stop(f"step {self._last_step} was reached")

    def state(self) -> Any:
        """Returns the count of steps and its end, until the run has ended there."""
        if self._num_steps is None or self._last_step is None:
            return None
        return {"num_steps": self._num_steps, "last_step": self._last_step}

    def restore(self, run: Run, state: Any) -> None:
        if state["num_steps"] == self._num_steps:
            self._last_step = state["last_step"]
            # The stop may have been asked for at this step, and then lost by a kill.
            self.after_step(run)

    def end(self, run: Run) -> None:
        if self._num_steps is not None and run.step >= self._last_step:
            self._last_step = None  # The next run counts from its own beginning.


class TrainingTime:
    """A clock that goes while a training runs, and stands still between two runs.

    It counts all that a run does: steps, checkpoints, evaluations along it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begins at 0.

        Args:
          clock: function that returns seconds.
        """
        self._clock = clock
        self.go_on_from(0.0)

    def go_on_from(self, secs: float) -> None:
        """Sets the seconds that have been taken until now.

        Args:
          secs: `secs` of the run that this one goes on with; 0 to begin anew.
        """
        self._began_at = self._clock() - secs

    @property
    def secs(self) -> float:
        """The seconds until now."""
        return self._clock() - self._began_at


class _Limit(Hook):
    """A hook that counts, from where it was added on: says where that is."""

    limit: ClassVar[str]

    def __init__(self) -> None:
        self._knows_all = False

    def begin(self, run: Run) -> None:
        self._knows_all = run.step == 0

    def restore(self, run: Run, state: Any) -> None:
        self._knows_all = True

    def after_loop(self, run: Run) -> None:
        if not self._knows_all and run.leads:
            logging.warning(
                "train | %s counts from step %d on: no checkpoint before it says how "
                "much that was.",
                self.limit,
                run.first_step,
            )
        self._knows_all = True


class StopAfterSecsHook(_Limit):
    """Stops a run once training has taken so long, over all its restarts.

    It looks whenever the compiled loop returns, which is every few seconds. What a
    killed run did after its last checkpoint does not count: it is done again. In one
    process all time counts, also where the run goes back to a checkpoint.
    """

    limit = "max_secs"

    def __init__(self, secs: float | str) -> None:
        """Takes the limit.

        Args:
          secs: seconds of training, checkpoints and evaluations along it included; a
            number, or a text such as "3h", "90m", "1h30m".

        Raises:
          ValueError: it is no such number or text, or not above 0.
        """
        super().__init__()
        self._secs = checked_secs("StopAfterSecsHook.secs", secs)
        self._time = TrainingTime()
        self._is_over = False
        # Whether a run is under way, which `begin` finds where it goes back.
        self._runs = self._goes_back = False

    def begin(self, run: Run) -> None:
        super().begin(run)
        self._goes_back, self._runs = self._runs, True
        self._is_over = False
        if not self._goes_back:
            self._time.go_on_from(0.0)

    def after_loop(self, run: Run) -> None:
        super().after_loop(run)
        # Clocks of processes differ: the first that is over ends all at this step.
        if not self._is_over and run.agree(self._time.secs >= self._secs):
            self._stop(run)

    def state(self) -> Any:
        """Returns the seconds so far; the limit itself where it was reached."""
        return {"secs": max(self._time.secs, self._secs * self._is_over)}

    def restore(self, run: Run, state: Any) -> None:
        """Goes on counting; ends the run at once where the limit was reached."""
        super().restore(run, state)
        if not self._goes_back:
            self._time.go_on_from(state["secs"])
        if state["secs"] >= self._secs:
            self._stop(run)

    def end(self, run: Run) -> None:
        self._runs = False

    def _stop(self, run: Run) -> None:
        self._is_over = True
        run.request_stop(f"training took {self._secs:g} s, as max_secs has it")


class StopAfterExamplesHook(_Limit):
    """Stops a run at the first step that makes so many examples, over all its restarts.

    Examples count once each time that they are trained on, on all replicas. The loop
    returns no later than the largest batches would take it there, and from there on
    until it is there: with batches of one size, once. Where nothing tells the size of a
    batch, it returns after each step.
    """

    limit = "max_examples"

    def __init__(self, num_examples: int) -> None:
        """Takes the limit.

        Args:
          num_examples: examples to train on.

        Raises:
          ValueError: it is no int above 0.
        """
        super().__init__()
        check_count("StopAfterExamplesHook.num_examples", num_examples, least=1)
        self._num_examples = num_examples
        self._most: int | None = None
        # Examples up to a step: what came after is in the window, which is saved.
        self._seen = self._step = 0

    def begin(self, run: Run) -> None:
        super().begin(run)
        self._most = run.most_examples
        self._seen, self._step = 0, run.step
        if self._most is None and run.leads:
            logging.warning(
                "train | nothing tells how many examples a batch has at most: to stop "
                "at %d of them, the loop returns after each step, which is slower. "
                "dataset.batch(64) as the last call tells it.",
                self._num_examples,
            )

    def next_step(self, step: int) -> int | None:
        """Returns the first step at which the limit may be reached."""
        left = self._num_examples - self._seen
        if self._most is None or left <= 0:
            return step + 1
        return max(step + 1, self._step + -(-left // self._most))

    def after_step(self, run: Run) -> None:
        self._count(run)
        if self._seen >= self._num_examples:
            self._stop(run)

    def end(self, run: Run) -> None:
        # What a signal broke off goes on with its window, and counts it then.
        if not preemption.is_stopped(run):
            self._count(run)

    def state(self) -> Any:
        """Returns the examples up to the step of the last look."""
        return {"seen": self._seen, "step": self._step}

    def restore(self, run: Run, state: Any) -> None:
        """Goes on counting; ends the run at once where the limit was reached."""
        super().restore(run, state)
        self._seen, self._step = state["seen"], state["step"]
        if self._seen >= self._num_examples:
            self._stop(run)

    def _count(self, run: Run) -> None:
        """Adds the examples of the window.

        Raises:
          RuntimeError: the window does not go back to the last look: model_fn has other
            metrics than in the run that this one goes on from.
        """
        report = run.report
        if report.num_steps != run.step - self._step or report.num_examples is None:
            raise RefusedRuntimeError(
                f"the examples of steps {self._step + 1} to {run.step} are not known, "
                "as model_fn had other metrics in a part of them: write max_steps in "
                "place of max_examples, or go on with the metrics of before."
            )
        self._seen += report.num_examples
        self._step = run.step
        if self._most and report.num_examples > self._most * report.num_steps:
            self._most = None  # Batches that are made of batches: each step tells.

    def _stop(self, run: Run) -> None:
        run.request_stop(f"{self._seen} examples, as max_examples has it")


class StopAfterEpochsHook(_Limit):
    """Has a run pass over its input so many times, over all its restarts.

    The loop asks `goes_on` where the input has ended. An input that input_fn repeats
    itself counts as one pass; an endless one is refused.
    """

    limit = "max_epochs"

    def __init__(self, num_epochs: int) -> None:
        """Takes the number of passes.

        Args:
          num_epochs: passes over the input.

        Raises:
          ValueError: it is no int above 0.
        """
        super().__init__()
        check_count("StopAfterEpochsHook.num_epochs", num_epochs, least=1)
        self._num_epochs = num_epochs
        # Passes that are done; the step at which this one began; whether it is done,
        # too, and none has begun after it.
        self._done = self._began_at = 0
        self._ended = False

    def begin(self, run: Run) -> None:
        super().begin(run)
        self._done, self._began_at = 0, run.step
        self._ended = False

    def goes_on(self, run: Run) -> bool:
        """Counts a pass that has ended; returns whether another one is to begin.

        Args:
          run: the run, at the end of its input.
        """
        if not self._ended:  # Else an earlier run has counted it, at its own end.
            self._done += 1
            self._began_at = run.step
        self._ended = self._done >= self._num_epochs
        if self._ended:
            self._stop(run)
        else:
            logging.info(
                "train | epoch %d of %d ended at step %d",
                self._done,
                self._num_epochs,
                run.step,
            )
        return not self._ended

    def found(self, run: Run, *, resumed: bool) -> None:
        """Counts a pass whose end was the checkpoint that the run goes on from.

        Args:
          run: the run, before its first step.
          resumed: whether the input goes on in the pass of the checkpoint.
        """
        if resumed:
            return
        if run.step > self._began_at:
            self.goes_on(run)
        elif self._done < self._num_epochs:
            self._ended = False  # The pass after it has begun.

    def state(self) -> Any:
        """Returns the passes that are done, and the step at which this one began."""
        return {
            "done": self._done,
            "began_at": self._began_at,
            "ended": self._ended,
        }

    def restore(self, run: Run, state: Any) -> None:
        """Goes on counting; ends the run at once where all passes are done."""
        super().restore(run, state)
        self._done, self._began_at = state["done"], state["began_at"]
        self._ended = state["ended"]
        if self._done >= self._num_epochs:
            self._stop(run)

    def _stop(self, run: Run) -> None:
        run.request_stop(f"{self._done} passes over the input, as max_epochs has it")


def check_ends(hooks: Sequence[Hook], input_fn: Callable[..., Any]) -> None:
    """Checks that nobody counts the passes over an input that never ends.

    Args:
      hooks: hooks of the training.
      input_fn: function of the endless input.

    Raises:
      ValueError: a hook counts its passes.
    """
    if any(isinstance(hook, StopAfterEpochsHook) for hook in hooks):
        raise RefusedValueError(
            f"input_fn {calling.name_of(input_fn)} never ends in mode TRAIN, so that "
            "no pass over it can be counted: drop its repeat(), for max_epochs=10 "
            "repeats it, or write max_steps=1000."
        )
