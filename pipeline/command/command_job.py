"""Runs a job of the command: configures it by gin, builds it, and prints its result.

`main` hands in the flags, and imports no TensorFlow until they are in order. Results go
to stdout line by line, from one process of a cluster.
"""

import contextlib
import dataclasses
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from absl import flags, logging

from pipeline.cluster.tf_config import EVALUATOR
from pipeline.command import dry_run, gin_config, jobs, report
from pipeline.command import flags as flags_lib
from pipeline.contract.run_config import RunConfig
from pipeline.driver.estimator import Estimator
from pipeline.inspection import inspection
from pipeline.mistakes import exits
from pipeline.model_dir import paths
from pipeline.rescue import bad_batches
from pipeline.roles import first_look, learning_rates, replay, train_and_evaluate
from pipeline.roles.specs import TrainSpec
from pipeline.strategy import strategies

_OF_ONE_PROCESS = ("predict", "export", "replay")


def run(options: flags.FlagValues, argv: Sequence[str]) -> int:
    """Runs the job that the flags ask for.

    Args:
      options: flags of the command.
      argv: command as it was typed; training writes it down with the configuration.

    Returns:
      The exit code, see `exit_codes`.
    """
    return exits.code_of(
        lambda: _run(options, argv),
        debug=options.debug,
        more="--debug shows the whole traceback.",
    )


def _run(options: flags.FlagValues, argv: Sequence[str]) -> None:
    """Parses gin, checks that flags go together, and runs the job."""
    if options.list:
        for line in gin_config.listed(options.gin_file, options.gin_param):
            flags_lib.say(line)
        return
    which_tpu = flags_lib.tpu_bindings(options)
    gin_config.parse(options.gin_file, [*options.gin_param, *which_tpu])
    gin_config.require(options.job)
    config = _run_config(options)
    if options.job in flags_lib.OF_ONE_CHECKPOINT and not config.model_dir:
        raise gin_config.ConfigError(
            f"--job={options.job} needs --model_dir: where the checkpoints lie."
        )
    if options.job in _OF_ONE_PROCESS and len(config.cluster.training_tasks) > 1:
        raise gin_config.ConfigError(
            f"--job={options.job} is for one process, and TF_CONFIG names "
            f"{len(config.cluster.training_tasks)} tasks: unset it, and leave out "
            "--execution."
        )
    if which_tpu and config.execution != "tpu":
        raise gin_config.ConfigError(
            f"--tpu, --tpu_zone and --tpu_project say which TPU, and execution is "
            f"{config.execution!r}: add --execution=tpu, or leave them out."
        )
    if options.dry_run:
        for line in dry_run.lines(
            options.job,
            config,
            checkpoint=options.checkpoint_path,
            bad_batch=options.bad_batch,
        ):
            flags_lib.say(line)
        for name in ("fast_dev_run", "overfit_batches"):
            if options[name].value:
                flags_lib.say(f"{name} {options[name].value}")
        return
    if options.job == "replay" and not config.model_dir:
        folder = bad_batches.found(options.bad_batch)
        config = config.replace(model_dir=bad_batches.model_dir_of(folder))
    if options.job == "inspect" and not config.model_dir:
        # Nothing is written; but user's functions may ask where it would be.
        with tempfile.TemporaryDirectory() as folder:
            return _done(options, argv, config.replace(model_dir=folder))
    _done(options, argv, config)


def _done(options: flags.FlagValues, argv: Sequence[str], config: RunConfig) -> None:
    """Makes the Estimator, and runs the job with it."""
    logging.info("job %s | %s", options.job, report.words(config.describe()))
    if config.hparams is None:
        config = config.replace(hparams=gin_config.hparams())
    estimator = gin_config.build(Estimator, config=config)
    if options.job in flags_lib.OF_ONE_CHECKPOINT:
        _check_checkpoint(options, estimator)
    # All processes run the job, which is a generator, to its end; one prints the lines.
    speaks = config.is_chief or config.task_type == EVALUATOR
    speaks = speaks or options.job == "inspect"  # Any task may be asked.
    job = "fast_dev_run" if options.fast_dev_run else options.job
    for line in _JOBS[job](estimator, options, argv):
        if speaks:
            flags_lib.say(line)


def _check_checkpoint(options: flags.FlagValues, estimator: Estimator) -> None:
    """Checks that there are values to use: a mistyped --model_dir would have none."""
    starts_warm = gin_config.bound(Estimator).get("warm_start_from")
    if options.checkpoint_path or starts_warm or estimator.latest_checkpoint():
        return
    raise gin_config.ConfigError(
        f"{estimator.model_dir} has no checkpoint, which --job={options.job} needs: "
        "train first, or give the --model_dir of a training or a --checkpoint_path."
    )


def _run_config(options: flags.FlagValues) -> RunConfig:
    """Returns the RunConfig of the flags and of gin; flags win."""
    given = {
        name: getattr(options, name)
        for name in ("model_dir", "execution", "devices")
        if getattr(options, name)
    }
    bound = gin_config.bound(RunConfig)
    for name, value in given.items():
        if name in bound and bound[name] != value:
            logging.info("--%s=%s wins over gin's %r", name, value, bound[name])
    config = gin_config.build(RunConfig, **given)
    # Bindings of the execution's strategy, such as tpu.name, reach it by gin alone.
    row = strategies.BY_EXECUTION.get(config.execution)
    if config.train_distribute is None and row and gin_config.bound(row):
        return config.replace(train_distribute=gin_config.configured(row))
    return config


def _train_and_evaluate(
    estimator: Any, options: flags.FlagValues, argv: Sequence[str]
) -> Iterator[str]:
    """Trains and evaluates; yields the last metrics and what to type next."""
    train_spec, eval_specs = _train_spec(estimator, argv), gin_config.eval_specs()
    if options.overfit_batches:
        train_spec, eval_specs = first_look.on_fixed_batches(
            estimator, train_spec, eval_specs, options.overfit_batches
        )
    found = train_and_evaluate.train_and_evaluate(estimator, train_spec, eval_specs)
    if estimator.config.cluster.serves:
        return  # The chief, which this process served, prints the result.
    if found:
        yield from report.metric_lines(found[0])
    yield from report.places(estimator.model_dir)
    # What is trained on a few batches is nothing to go on from.
    if estimator.config.is_chief and not options.overfit_batches:
        steps = gin_config.macro_value("TRAIN_STEPS")
        yield from report.next_commands(estimator.model_dir, steps)


def _train(
    estimator: Any, options: flags.FlagValues, argv: Sequence[str]
) -> Iterator[str]:
    """Trains; yields where things lie."""
    del options
    train_and_evaluate.train(estimator, _train_spec(estimator, argv))
    if estimator.config.cluster.serves:
        return
    yield from report.places(estimator.model_dir)


def _evaluate(
    estimator: Any, options: flags.FlagValues, argv: Sequence[str]
) -> Iterator[str]:
    """Evaluates; yields the metrics of each evaluation."""
    del argv
    specs = gin_config.eval_specs()
    if options.all_checkpoints:
        for spec in specs:
            yield from jobs.evaluate_all(estimator, spec)
        return
    yield from report.metric_lines(
        jobs.evaluate(estimator, specs, checkpoint_path=options.checkpoint_path)
    )
    yield from report.places(estimator.model_dir)


def _predict(
    estimator: Any, options: flags.FlagValues, argv: Sequence[str]
) -> Iterator[str]:
    """Writes predictions to a file or stdout; yields nothing."""
    del argv
    spec = gin_config.predict_spec()
    with _output(options.output) as write:
        count = jobs.predict(
            estimator, spec, write, checkpoint_path=options.checkpoint_path
        )
    # In the log: stdout may have the predictions, for another program to read.
    logging.info("%d predictions to %s", count, options.output or "stdout")
    return iter(())


def _export(
    estimator: Any, options: flags.FlagValues, argv: Sequence[str]
) -> Iterator[str]:
    """Exports; yields the SavedModel's directory."""
    del argv
    spec = gin_config.build(jobs.ExportSpec)
    input_fn = None
    if spec.serving_input_receiver_fn is None:
        input_fn = gin_config.predict_spec().input_fn
    path = jobs.export(
        estimator, spec, input_fn, checkpoint_path=options.checkpoint_path
    )
    yield f"SavedModel {path}"


def _find_learning_rate(
    estimator: Any, options: flags.FlagValues, argv: Sequence[str]
) -> Iterator[str]:
    """Trains at growing learning rates; yields the curve and where it lies."""
    del options, argv
    find = gin_config.configured(learning_rates.find_learning_rate)
    found = find(estimator, gin_config.build(TrainSpec).input_fn)
    yield from found.lines()
    yield f"curve {paths.shown(os.path.join(estimator.model_dir, learning_rates.FILE))}"


def _replay(
    estimator: Any, options: flags.FlagValues, argv: Sequence[str]
) -> Iterator[str]:
    """Makes a bad step again; yields what went wrong in it."""
    del argv
    yield from replay.replay(estimator, options.bad_batch).lines()


def _inspect(
    estimator: Any, options: flags.FlagValues, argv: Sequence[str]
) -> Iterator[str]:
    """Yields what a training would do, and what is wrong with it; refuses mistakes."""
    del argv
    found = inspection.inspect(
        estimator,
        gin_config.build(TrainSpec),
        gin_config.eval_specs() if gin_config.has_evaluations() else (),
        num_workers=options.simulate_workers,
        num_replicas=options.simulate_replicas,
        num_ps=options.simulate_ps,
        secs=options.inspect_secs or inspection.SECS,
    )
    yield from found.lines()
    found.check()


def _fast_dev_run(
    estimator: Any, options: flags.FlagValues, argv: Sequence[str]
) -> Iterator[str]:
    """Does everything once; yields the metrics, and that all was well."""
    del options
    metrics = first_look.fast_dev_run(
        estimator,
        _train_spec(estimator, argv),
        gin_config.eval_specs(),
        predict_input_fn=gin_config.predict_spec().input_fn,
    )
    if metrics is not None:
        yield from report.metric_lines(metrics)
        yield "fast_dev_run: all well"


_JOBS: dict[str, Callable[..., Iterator[str]]] = {
    "train_and_evaluate": _train_and_evaluate,
    "train": _train,
    "evaluate": _evaluate,
    "predict": _predict,
    "export": _export,
    "find_learning_rate": _find_learning_rate,
    "replay": _replay,
    "inspect": _inspect,
    "fast_dev_run": _fast_dev_run,
}


def _train_spec(estimator: Any, argv: Sequence[str]) -> Any:
    """Returns the TrainSpec; the chief's has a hook that writes the configuration."""
    spec = gin_config.build(TrainSpec)
    if not estimator.config.is_chief:
        return spec
    command = shlex.join(["python", "-m", "pipeline.main", *argv[1:]])
    text = f"# Written by: {command}\n\n{gin_config.config_text()}"
    return dataclasses.replace(spec, hooks=(*spec.hooks, jobs.ConfigHook(text)))


@contextlib.contextmanager
def _output(path: str | None) -> Iterator[Callable[[str], None]]:
    """Opens a file, or stdout where the path is None.

    Yields:
      A function that writes a line to it.
    """
    name = "stdout" if path is None else f"--output={path}"
    path = paths.normal(path) if path else None
    try:
        stream = open(path, "w", encoding="utf-8") if path else sys.stdout  # noqa: SIM115
    except OSError as error:
        raise gin_config.ConfigError(
            f"cannot write to {name} ({error.strerror}): choose another file."
        ) from error

    def write(line: str) -> None:
        with flags_lib.writing(stream, name) as checked:
            checked.write(f"{line}\n")

    try:
        yield write
        with flags_lib.writing(stream, name) as checked:
            checked.flush()
    finally:
        if path is not None:
            # Closing flushes, and fails as the last write did: that was said already.
            with contextlib.suppress(OSError):
                stream.close()
