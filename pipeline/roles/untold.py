"""The evaluations that came after a training's end, handed to its tools.

While a training goes on, it hands its tools what an evaluator job has evaluated. It
does not wait for the last evaluations: the evaluator hands on those, at its own end.
"""

import time
from collections.abc import Callable, Sequence

from absl import logging

from pipeline.checkpoints import checkpoint, hook_states
from pipeline.contract.hooks import Run
from pipeline.driver import along
from pipeline.driver.estimator import Estimator
from pipeline.model_dir import end_marker
from pipeline.roles.evaluation_along import EvaluationsBeside
from pipeline.roles.specs import EvalSpec
from pipeline.tools import tools_hook

_POLL_SECS = 0.5
# Longest wait for the end of a training whose last checkpoint was evaluated.
_WAIT_SECS = 60.0


def tell_tools(
    estimator: Estimator,
    eval_specs: Sequence[EvalSpec],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Hands the tools each evaluation that training had not heard of at its end.

    The last checkpoint says how far it had read the record of evaluations. Where the
    training goes on later, it reads on from there, and tells them again.

    Args:
      estimator: Estimator of the evaluator job.
      eval_specs: EvalSpecs of its evaluations.
      clock: function that returns seconds.
      sleep: function that waits for a number of seconds.
    """
    config = estimator.config
    if not config.tools:
        return
    began = clock()
    # A checkpoint of max_steps is there before the training has ended with its tools.
    while end_marker.read(estimator.model_dir) is None:
        if clock() - began >= _WAIT_SECS:
            logging.warning(
                "eval | training has left no %s: the tools are told of no evaluation.",
                end_marker.FILE,
            )
            return
        sleep(_POLL_SECS)
    path = estimator.latest_checkpoint()
    if path is None:
        return
    run = Run(estimator.model_dir, checkpoint.step_of(path), None)
    states = hook_states.read(path)["hooks"]
    beside = EvaluationsBeside(estimator, eval_specs)
    beside.restore(run, states.get(along.STATE, {}).get("state", {}))
    known = beside.at_stop(run)
    if known:
        tools_hook.hand_over(config.tools, estimator.recipe.hparams, run, known)
