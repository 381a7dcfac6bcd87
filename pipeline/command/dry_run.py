"""Tells what a command would do: its configuration, its place, and XLA's refusals."""

from collections.abc import Iterator

from pipeline.checkpoints import checkpoint_path
from pipeline.command import gin_config, report
from pipeline.contract.run_config import RunConfig
from pipeline.contract.spec import ModeKeys
from pipeline.driver import xla_check
from pipeline.driver.estimator import Estimator
from pipeline.model_dir import paths
from pipeline.process.refusals import RefusedValueError
from pipeline.rescue import bad_batches
from pipeline.roles import learning_rates
from pipeline.roles.specs import TrainSpec
from pipeline.strategy import strategies, tpu


def lines(
    job: str,
    config: RunConfig,
    *,
    checkpoint: str | None = None,
    bad_batch: str | None = None,
) -> Iterator[str]:
    """Yields lines for the user; trains nothing and writes nothing.

    Modules are made, and input_fn called, only for a TPU: XLA then compiles the steps
    for this machine's CPU.

    Args:
      job: one of `flags.JOBS`, for which gin is configured.
      config: RunConfig of the command.
      checkpoint: the flag --checkpoint_path, or None.
      bad_batch: the flag --bad_batch, or None.

    Raises:
      ValueError: no TPU can run a step or take its input, see
        `xla_check.compile_steps`.
    """
    if job == "find_learning_rate":
        bound = gin_config.bound(learning_rates.find_learning_rate)
        learning_rates.check_range(
            **{k: v for k, v in bound.items() if k != "optimizers"}
        )
    yield gin_config.config_text()
    yield from report.topology(job, config)
    if checkpoint:
        try:
            path = checkpoint_path.found(checkpoint, paths.normal(config.model_dir))
            yield f"checkpoint {path}"
        except RefusedValueError as error:
            yield f"warning: {error} Here this command would be refused."
    if bad_batch:
        try:
            yield f"bad batch {bad_batches.found(bad_batch)}"
        except RefusedValueError as error:
            yield f"warning: {error} Here this command would be refused."
    if missing := strategies.absent(config):
        # No error: a command may be checked on another machine than it will run on.
        yield (
            f"warning: devices {missing} are not among this machine's "
            f"{strategies.present()}: here this command would be refused."
        )
    if config.execution != "tpu":
        return
    input_fns = []
    if job in ("train_and_evaluate", "train", "find_learning_rate"):
        spec = gin_config.build(TrainSpec)
        input_fns.append((ModeKeys.TRAIN, spec.input_fn))
    if job in ("train_and_evaluate", "evaluate"):
        specs = gin_config.eval_specs()
        input_fns += [(ModeKeys.EVAL, spec.input_fn) for spec in specs]
    bound = gin_config.bound(Estimator)
    yield from xla_check.compile_steps(
        bound["model_fn"],
        bound.get("modules") or {},
        input_fns,
        config=config,
        params=bound.get("params"),
        num_replicas=gin_config.bound(tpu.tpu).get("num_replicas") or 1,
    )
