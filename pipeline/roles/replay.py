"""replay: makes a step that went wrong again, to see which operation it was."""

import contextlib
import os

import tensorflow as tf

from pipeline.checkpoints.checkpoint import CheckpointMismatchError
from pipeline.contract.spec import ModeKeys
from pipeline.driver.estimator import Estimator
from pipeline.driver.runtime import Runtime
from pipeline.process.refusals import RefusedRuntimeError
from pipeline.rescue.bad_batches import BadStepFiles
from pipeline.rescue.findings import Replay
from pipeline.rescue.replaying import Replayer
from pipeline.rescue.traced_step import specs_of


def replay(estimator: Estimator, bad_batch: str | os.PathLike[str]) -> Replay:
    """Makes a step that went wrong again, on the weights before it, on one replica.

    It reads `model_dir/bad_batches/step-N`, which a training with `on_nan='restore'` or
    'record' writes, and writes nothing: a training may go on meanwhile. The Estimator
    is left as it is.

    Args:
      estimator: Estimator of the model that was trained.
      bad_batch: the folder of the step.

    Returns:
      Of each element of the batch where NaN or Inf come from: the batch itself, the
      weights, or an operation with its layer, the line and what went in; and which
      examples do it alone. Of finite ones their losses and gradients' norms. `lines()`
      tells it in words.

    Raises:
      ValueError: there is no such folder; names those that are there.
      CheckpointMismatchError: the weights are of another model.
      RuntimeError: TF_CONFIG names several tasks.
    """
    config = estimator.config
    if (tasks := len(config.cluster.training_tasks)) > 1:
        raise RefusedRuntimeError(
            f"replay is for one process, and TF_CONFIG names {tasks} tasks: unset it."
        )
    files = BadStepFiles.read(bad_batch)
    device = config.devices[0] if config.devices else None
    with tf.device(device) if device else contextlib.nullcontext():
        runtime = Runtime(estimator.recipe, tf.distribute.get_strategy())
        model_fn = runtime.bound(ModeKeys.TRAIN)
        first = next(element for read in files.batches.values() for element in read)
        outline = runtime.build(ModeKeys.TRAIN, model_fn, specs_of(first))
        try:
            runtime.load(files.weights)
        except CheckpointMismatchError as error:
            error.add_note(
                "A replay needs the model_fn and the modules of the training."
            )
            raise
        return Replayer(model_fn, runtime.modules, outline)(files)
