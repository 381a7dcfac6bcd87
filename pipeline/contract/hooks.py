"""Hooks watch the training loop from outside, listeners the checkpoints.

The driver runs one compiled loop up to the next step that any hook asks to see, and
calls the hooks there. A hook costs nothing between its steps.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from pipeline.contract.checks import check_every
from pipeline.process.refusals import RefusedValueError


@dataclasses.dataclass(frozen=True)
class Report:
    """What happened in a hook's window: since its last call, or the beginning.

    Attributes:
      step: the global step at its end.
      num_steps: steps in it.
      seconds: wall time of it, evaluations and checkpoints left out.
      loss: mean over its examples, with the regularization.
      metrics: value by name, over its examples.
      scalars: the last step's value by name; the learning rate is among them.
    """

    step: int
    num_steps: int
    seconds: float
    loss: float
    metrics: Mapping[str, Any]
    scalars: Mapping[str, float]

    @property
    def steps_per_sec(self) -> float:
        """Rate over the window; 0 where it is empty."""
        return self.num_steps / self.seconds if self.seconds > 0 else 0.0

    def values(self) -> dict[str, Any]:
        """Loss, metrics and scalars together, as they are logged."""
        return {"loss": self.loss, **self.metrics, **self.scalars}


class Run:
    """What a hook sees of the run, and the one thing that it may ask for.

    Attributes:
      model_dir: of the Estimator.
      first_step: global step at the beginning of this run.
      step: global step now.
      max_step: where the run ends by itself; None where the input decides.
      nonfinite_step: first step whose loss was NaN or infinite in the last call of
        the compiled loop; None where all were finite.
      finished: whether the last step was run, and only `end` is still called.
      stop_reasons: what stops were asked for; they accumulate.
      leads: whether this process logs and writes for all that train in step; hooks are
        called in each.
      agree: whether any process gives True; each has to call it. For what a hook
        decides by its own lights, such as a clock.
      shows_progress: whether to show a line that moves where somebody looks.
    """

    def __init__(
        self,
        model_dir: str,
        step: int,
        max_step: int | None,
        *,
        leads: bool = True,
        agree: Callable[[bool], bool] = bool,
        progress: bool = True,
    ) -> None:
        self.model_dir = model_dir
        self.leads = leads
        self.agree = agree
        self.shows_progress = progress and leads
        self.first_step = step
        self.step = step
        self.finished = False
        self.max_step = max_step
        self.nonfinite_step: int | None = None
        self.stop_reasons: list[str] = []
        self.read_report: Callable[[], Report] | None = None

    @property
    def report(self) -> Report:
        """The calling hook's window; reading it waits for the device."""
        return self.read_report()

    def request_stop(self, reason: str) -> None:
        """Ends the run after this step; what was done is saved."""
        self.stop_reasons.append(str(reason))


class Hook:
    """Called at the steps that it asks for. Override what you need.

    begin, and restore where the run goes on from a checkpoint
    after_loop   whenever the compiled loop returns, for clocks and guards
    after_step   at step 100, 200, ... with every_steps = 100
    after_hooks  when all hooks had their turn
    end          after a run that ended cleanly

    What it has to know from one step to the next is its `state`, which is saved with
    each checkpoint. So are the windows of all hooks: a run that is broken off and goes
    on reports what it would have.
    """

    every_steps: int | None = None
    # Whether `after_step` only reads its report, and so may be called up to half a
    # second late, when the loop has gone on; the report is that of the step itself.
    only_watches: bool = False

    def next_step(self, step: int) -> int | None:
        """The first step after `step` that this hook wants to see; None for none.

        Raises:
          ValueError: `every_steps` is no such number, or is not set where the hook has
            an `after_step`; None means never.
        """
        own = type(self)
        check_every(f"{own.__name__}.every_steps", self.every_steps)
        if not self.every_steps:
            places = (vars(self), *map(vars, own.__mro__[: own.__mro__.index(Hook)]))
            is_set = any("every_steps" in place for place in places)
            if not is_set and own.after_step is not Hook.after_step:
                raise RefusedValueError(
                    f"{own.__name__}.every_steps is not set, and after_step would "
                    "never be called: write every_steps = 100 in the class."
                )
            return None
        return (step // self.every_steps + 1) * self.every_steps

    def begin(self, run: Run) -> None:
        """Before the first step."""

    def after_step(self, run: Run) -> None:
        """At each step that `next_step` gave; `run.report` is the window since."""

    def after_loop(self, run: Run) -> None:
        """Whenever the compiled loop returned, before any `after_step`."""

    def after_hooks(self, run: Run) -> None:
        """Whenever the compiled loop returned, after every `after_step`."""

    def end(self, run: Run) -> None:
        """After the last step; `run.report` is the window since the last call."""

    def state(self) -> Any:
        """What `restore` needs in another process, as JSON; None for nothing."""
        return None

    def restore(self, run: Run, state: Any) -> None:
        """Called after `begin` where the run goes on from a checkpoint of this hook.

        Args:
          run: at the checkpoint's step. A stop that was asked for there is to be asked
            for again, as the process may have been killed before it ended.
          state: what `state` returned when the checkpoint was saved.
        """


class SavingListener:
    """Told before and after each checkpoint. Override what you need."""

    def before_save(self, run: Run) -> None:
        """The checkpoint of `run.step` is about to be written."""

    def after_save(self, run: Run) -> None:
        """It was written; True, or `run.request_stop(reason)`, asks for a stop.

        Where saving is asynchronous its files come later: what reads them wants
        RunConfig(async_checkpoint=False).
        """

    def end(self, run: Run) -> None:
        """After the last checkpoint of a run that ended cleanly."""
