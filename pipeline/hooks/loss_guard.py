"""A guard that looks at the loss of each step: a bound, and spikes."""

import collections
import statistics
from collections.abc import Sequence
from typing import Any

from absl import logging

from pipeline.contract.hooks import Hook, Run
from pipeline.mistakes.checks import check_count, is_number
from pipeline.process.refusals import RefusedValueError

_ACTIONS = ("restore", "stop", "warn")


class LossGuard(Hook):
    """Acts where a step's loss is above a bound, or far above those before it.

    It looks at each step's own loss, the mean over all replicas and micro-batches,
    whenever the compiled loop returns, and so before each checkpoint. Steps that were
    left out are not among those that a step is compared with. A loss of NaN or Inf is
    left to `RunConfig.on_nan`.
    """

    wants_losses = True

    def __init__(
        self,
        max_loss: float | None = None,
        spike: float | None = None,
        window: int = 100,
        on: str = "restore",
    ) -> None:
        """Takes the bounds, and what to do beyond them.

        Args:
          max_loss: greatest loss that is allowed; None for any.
          spike: how many times the median loss of the `window` steps before it a loss
            may be; None for any. The first `window` steps are compared with nothing.
          window: number of steps of the median.
          on: 'restore' goes back to the last checkpoint, and on without the batches at
            fault, `RunConfig.max_restores` times at the most; 'stop' ends the run with
            a checkpoint; 'warn' logs a warning.

        Raises:
          ValueError: neither `max_loss` nor `spike` is given, or one of the arguments
            is no such number or word.
        """
        if max_loss is None and spike is None:
            raise RefusedValueError(
                "LossGuard.max_loss and LossGuard.spike are None, so that it would "
                "guard nothing: write LossGuard(spike=10.0)."
            )
        if max_loss is not None and not (is_number(max_loss) and abs(max_loss) < 1e300):
            raise RefusedValueError(
                f"LossGuard.max_loss is {max_loss!r}: write a number, max_loss=100.0."
            )
        if spike is not None and not (is_number(spike) and 1 < spike < 1e300):
            raise RefusedValueError(
                f"LossGuard.spike is {spike!r}: write a number > 1, spike=10.0."
            )
        check_count("LossGuard.window", window, least=1)
        if on not in _ACTIONS:
            words = ", ".join(map(repr, _ACTIONS))
            raise RefusedValueError(f"LossGuard.on is {on!r}: write one of {words}.")
        self._max_loss, self._spike, self._on = max_loss, spike, on
        self.leaves_out = on == "restore"
        self._losses: collections.deque[float] = collections.deque(maxlen=window)
        self._stopped: str | None = None
        self._told_useless = False

    def begin(self, run: Run) -> None:
        self._losses.clear()
        self._stopped = None

    def after_loop(self, run: Run) -> None:
        """Looks at the losses of the steps that the loop has made."""
        bad = 0
        first = run.step - len(run.losses) + 1
        for step, loss in enumerate(run.losses.tolist(), first):
            if not abs(loss) < float("inf"):
                continue
            reason = self._judge(run, loss)
            if reason is not None:
                bad += 1
                text = f"the loss was {loss:.4g} at step {step}, {reason}"
                if self.leaves_out:
                    run.leave_out(step, text)
                    return
                self._say(run, text, bad)
            self._losses.append(loss)

    def state(self) -> Any:
        """Returns the window, and why the run was to stop; None where it is empty."""
        if not self._losses:
            return None
        return {"losses": list(self._losses), "stopped": self._stopped}

    def restore(self, run: Run, state: Any) -> None:
        """Goes on with the window; asks again for a stop that a kill took away."""
        self._losses.extend(state["losses"])
        if state["stopped"] and self._on == "stop":
            self._stop(run, state["stopped"])

    def end(self, run: Run) -> None:
        self._stopped = None  # The next run is another one.

    def _judge(self, run: Run, loss: float) -> str | None:
        """Returns what is wrong with a loss, or None."""
        if self._max_loss is not None and loss > self._max_loss:
            return f"above max_loss={self._max_loss:g}"
        if self._spike is None or len(self._losses) < self._losses.maxlen:
            return None
        median = statistics.median(self._losses)
        if median <= 0:
            if run.leads and not self._told_useless:
                self._told_useless = True
                logging.warning(
                    "train | LossGuard.spike guards nothing while the median loss is "
                    "not above 0 (%.4g): write LossGuard(max_loss=...).",
                    median,
                )
            return None
        if loss <= self._spike * median:
            return None
        return (
            f"{loss / median:.3g} times the median {median:.4g} of the "
            f"{self._losses.maxlen} steps before (spike={self._spike:g})"
        )

    def _say(self, run: Run, text: str, number: int) -> None:
        """Warns, or asks for the stop: once each time that the loop returns."""
        if number > 1:
            return
        if self._on == "stop":
            self._stop(run, text)
        elif run.leads:
            logging.warning("train | %s; training goes on.", text)

    def _stop(self, run: Run, reason: str) -> None:
        self._stopped = reason
        run.request_stop(reason)


def wants_losses(hooks: Sequence[Hook], *, has_servers: bool) -> bool:
    """Returns whether a hook wants each step's loss.

    Args:
      hooks: hooks of a training.
      has_servers: whether it trains with parameter servers.

    Raises:
      ValueError: parameter servers do not tell it.
    """
    names = [type(hook).__name__ for hook in hooks if hook.wants_losses]
    if names and has_servers:
        raise RefusedValueError(
            f"{names[0]} looks at the loss of each step, and parameter servers tell "
            "those of several workers' steps together: take it out, and write "
            "EvalSpec(early_stopping=StopIfHigher('loss', 100.0))."
        )
    return bool(names)
