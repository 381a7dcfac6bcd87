"""Hooks that end a training."""

from ..contract.hooks import Hook


class StopAtStepHook(Hook):
    """Ends a training at a step."""

    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None:
        """Sets the step; set one of both.

        Args:
          num_steps: number of steps from the beginning of the run; a restart after a kill keeps
            the step at which it ends.
          last_step: global step.
        """
        raise NotImplementedError


class PreemptionHook(Hook):
    """Does nothing: every training of the main thread saves and stops at a signal.

    It keeps programs of earlier releases running.
    """
