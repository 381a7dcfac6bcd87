"""Logs tensors of model_fn."""

from collections.abc import Sequence

from absl import logging

from ..contract.hooks import Hook, Run
from ..errors import UserValueError


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
        """Logs the arrays of this step, in the process that leads.

        Raises:
          UserValueError: a name is not in `EstimatorSpec.tensors`.
        """
        arrays = run.report.tensors
        names = tuple(arrays) if self.wants_tensors is True else self.wants_tensors
        missing = [name for name in names if name not in arrays]
        if missing:
            raise UserValueError(
                f"TensorHook.tensors has {missing}: expected names of EstimatorSpec.tensors, "
                f"{sorted(arrays)}."
            )
        if run.leads:
            values = "".join(f" | {name} = {arrays[name]}" for name in names)
            logging.info("train | step %d%s", run.step, values)
