"""Logs tensors of model_fn."""

from collections.abc import Sequence

from ..contract.hooks import Hook


class TensorHook(Hook):
    """Logs arrays of `EstimatorSpec.tensors`."""

    def __init__(self, every_steps: int, tensors: Sequence[str] | None = None) -> None:
        """Sets what to log.

        Args:
          every_steps: steps between two log lines.
          tensors: names of the tensors; None for all.
        """
        raise NotImplementedError
