"""What a training does about a loss that is NaN or infinite."""

from absl import logging

from ..contract.hooks import SkippedStep
from ..errors import NanLossDuringTrainingError
from ..train.loop import Steps
from .skipped_steps import SkippedSteps


class NanPolicy:
    """Applies `RunConfig.on_nan` to the steps of each call."""

    def __init__(self, on_nan: str, skipped: SkippedSteps) -> None:
        """Takes the option, and the steps that it may skip.

        Raises:
          UserValueError: the option needs checkpoints to return to, and there are none.
        """
        self._on_nan, self._skipped = on_nan, skipped
        self._skips = on_nan in ("restore", "record")
        if self._skips:
            skipped.check_supported(f"RunConfig.on_nan is {on_nan!r}", "Set on_nan='stop'.")

    def check(self, steps: Steps) -> None:
        """Logs a warning or asks to skip the step, if the loss or a gradient was not finite.

        Raises:
          NanLossDuringTrainingError: `on_nan` is 'stop'.
        """
        step = steps.nonfinite_step
        if step is None:
            return
        if self._skips:
            reason = f"the loss or a gradient is NaN or infinite in step {step}"
            self._skipped.request(SkippedStep(step, reason, ends=self._on_nan == "record"))
            return
        message = f"the loss is NaN or infinite in step {step}"
        if self._on_nan == "stop":
            raise NanLossDuringTrainingError(
                f"{message}: lower the learning rate, or set on_nan='warn' or 'restore'."
            )
        logging.warning("%s.", message)
