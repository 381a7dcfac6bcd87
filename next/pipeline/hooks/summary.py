"""Writes scalars for TensorBoard."""

from ..contract.hooks import Hook


class SummaryHook(Hook):
    """Writes loss, metrics, scalars, learning rates and speed to `model_dir`.

    Evaluations are written to their folders, with the same tags.
    """

    def __init__(self, every_steps: int = 100) -> None:
        """Sets the steps between two points."""
        raise NotImplementedError


class StepCounterHook(Hook):
    """Writes the speed only, as `global_step/sec`."""

    def __init__(self, every_steps: int = 100) -> None:
        """Sets the steps between two points."""
        raise NotImplementedError
