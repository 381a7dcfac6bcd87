"""Logs tensors of model_fn."""

from collections.abc import Sequence

from absl import logging

from ..contract.hooks import Hook, Run


class TensorHook(Hook):
    """Logs arrays of `EstimatorSpec.tensors`."""

    def __init__(self, every_steps: int, tensors: Sequence[str] | None = None) -> None:
        """Sets what to log.

        Args:
          every_steps: steps between two log lines.
          tensors: names of the tensors; None for all.
        """
        self.every_steps = every_steps
        self.wants_tensors = True if tensors is None else tuple(tensors)

    def after_step(self, run: Run) -> None:
        """Logs the arrays of this step, in the process that leads."""
        if run.is_chief:
            tensors = run.report.tensors.items()
            values = "".join(f" | {name} = {array}" for name, array in tensors)
            logging.info("train | step %d%s", run.step, values)
