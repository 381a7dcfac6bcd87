"""The command line: flags -> gin -> RunConfig -> Estimator -> one job.

    python -m pipeline.main --gin_file=gin/digits.gin --gin.TRAIN_STEPS=500 \
        --model_dir=runs/digits

Exit codes: 0; 2 for what this project refuses, with a message that says what to do; 1
for what fails in a model_fn or an input_fn, with the lines of theirs that led to it
(--debug adds the traceback to both); 75 where the same command is to be started again,
to go on from the last checkpoint: after SIGTERM or Ctrl-C, once it is saved, and where
another task of the cluster was lost; 130 for Ctrl-C at another time, or twice. Any
other error keeps its traceback.
"""

import os
import sys

# TensorFlow reads it once, while it is imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
    # Keras would look for that backend's package before anybody can object.
    sys.exit(
        f"KERAS_BACKEND is {os.environ['KERAS_BACKEND']!r}, and this project runs on "
        "TensorFlow: unset it, or KERAS_BACKEND=tensorflow."
    )

import contextlib
import dataclasses
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

from absl import flags, logging

from pipeline import (
    command_line,
    dry_run,
    gin_config,
    jobs,
    report,
    run_log,
    strategy,
    training,
    user_errors,
)
from pipeline.cluster import EVALUATOR
from pipeline.estimator import Estimator
from pipeline.preemption import PreemptedError, PreemptionHook
from pipeline.rendezvous import PeerLostError
from pipeline.run_config import RunConfig
from pipeline.specs import TrainSpec

# EX_TEMPFAIL of sysexits.h: another try may succeed.
EXIT_AGAIN = 75


def console() -> None:
    """The command `gin-estimator`."""
    # As `python -m` does, so that a gin file can import the user's own modules, and
    # means the same ones by either command.
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())
    sys.exit(main())


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one job.

    Args:
      argv: the program's name, then flags; None for this process's.

    Returns:
      The exit code.
    """
    argv = list(sys.argv if argv is None else argv)
    try:
        options = command_line.parse(argv)
    except (flags.Error, gin_config.ConfigError) as error:
        return _fail(str(error))
    if options.help:
        _say(f"{__doc__}\n{options.get_help()}")
        return 0
    run_log.set_up(debug=options.debug)
    try:
        return _run(options, argv)
    except PreemptedError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_AGAIN
    except PeerLostError as error:
        _fail(str(error))
        # At once: TensorFlow would wait for the task that is lost.
        _exit_now(EXIT_AGAIN)
    except Exception as error:
        ours = user_errors.is_ours(error)
        if options.debug or not (ours or user_errors.is_noted(error)):
            raise
        text = user_errors.text_of(error)
        if ours and not isinstance(error, user_errors.StepError):
            return _fail(text)
        # Not 2: a file that could not be read may be there at another start.
        return _fail(f"{text}\n--debug shows the whole traceback.", code=1)
    except KeyboardInterrupt:
        sys.stderr.write(
            "\ninterrupted; the same command goes on from the last save.\n"
        )
        return 130


def _run(options: flags.FlagValues, argv: Sequence[str]) -> int:
    which_tpu = command_line.tpu_bindings(options)
    gin_config.parse(options.gin_file, [*options.gin_param, *which_tpu])
    gin_config.require(options.job)
    config = _run_config(options)
    if options.job in command_line.OF_ONE_CHECKPOINT and not config.model_dir:
        raise gin_config.ConfigError(
            f"--job={options.job} needs --model_dir: where the checkpoints lie."
        )
    if options.job in ("predict", "export") and len(config.cluster.training_tasks) > 1:
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
        for line in dry_run.lines(options.job, config):
            _say(line)
        return 0
    logging.info("job %s | %s", options.job, report.words(config.describe()))
    estimator = gin_config.build(Estimator, config=config)
    if options.job in command_line.OF_ONE_CHECKPOINT:
        _check_checkpoint(options, estimator)
    speaks = config.is_chief or config.task_type == EVALUATOR
    for line in _JOBS[options.job](estimator, options, argv):
        if speaks:
            _say(line)
    return 0


def _check_checkpoint(options: flags.FlagValues, estimator: Estimator) -> None:
    """Of a mistyped --model_dir, initial values are nobody's wish."""
    starts_warm = gin_config.bound(Estimator).get("warm_start_from")
    if options.checkpoint_path or starts_warm or estimator.latest_checkpoint():
        return
    raise gin_config.ConfigError(
        f"{estimator.model_dir} has no checkpoint, which --job={options.job} needs: "
        "train first, or give the --model_dir of a training or a --checkpoint_path."
    )


def _run_config(options: flags.FlagValues) -> RunConfig:
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
    row = strategy.BY_EXECUTION.get(config.execution)
    if config.train_distribute is None and row and gin_config.bound(row):
        return config.replace(train_distribute=gin_config.configured(row))
    return config


def _train_and_evaluate(
    estimator: Any, options: flags.FlagValues, argv: Sequence[str]
) -> Iterator[str]:
    found = training.train_and_evaluate(
        estimator, _train_spec(estimator, argv), gin_config.eval_specs()
    )
    if estimator.config.cluster.serves:
        return  # It is the chief's to say.
    if found:
        yield from report.metric_lines(found[0])
    yield from report.places(estimator.model_dir)
    if estimator.config.is_chief:
        steps = gin_config.macro_value("TRAIN_STEPS")
        yield from report.next_commands(estimator.model_dir, steps)


def _train(
    estimator: Any, options: flags.FlagValues, argv: Sequence[str]
) -> Iterator[str]:
    del options
    training.train(estimator, _train_spec(estimator, argv))
    if estimator.config.cluster.serves:
        return
    yield from report.places(estimator.model_dir)


def _evaluate(
    estimator: Any, options: flags.FlagValues, argv: Sequence[str]
) -> Iterator[str]:
    del argv
    specs = gin_config.eval_specs()
    yield from report.metric_lines(
        jobs.evaluate(estimator, specs, checkpoint_path=options.checkpoint_path)
    )
    yield from report.places(estimator.model_dir)


def _predict(
    estimator: Any, options: flags.FlagValues, argv: Sequence[str]
) -> Iterator[str]:
    del argv
    spec = gin_config.predict_spec()
    with _output(options.output) as stream:
        count = jobs.predict(
            estimator,
            spec,
            lambda line: stream.write(f"{line}\n"),
            checkpoint_path=options.checkpoint_path,
        )
    # Not a line of stdout, where the predictions are.
    logging.info("%d predictions to %s", count, options.output or "stdout")
    return iter(())


def _export(
    estimator: Any, options: flags.FlagValues, argv: Sequence[str]
) -> Iterator[str]:
    del argv
    spec = gin_config.build(jobs.ExportSpec)
    input_fn = None
    if spec.serving_input_receiver_fn is None:
        input_fn = gin_config.predict_spec().input_fn
    path = jobs.export(
        estimator, spec, input_fn, checkpoint_path=options.checkpoint_path
    )
    yield f"SavedModel {path}"


_JOBS: dict[str, Callable[..., Iterator[str]]] = {
    "train_and_evaluate": _train_and_evaluate,
    "train": _train,
    "evaluate": _evaluate,
    "predict": _predict,
    "export": _export,
}


def _train_spec(estimator: Any, argv: Sequence[str]) -> Any:
    """TrainSpec as gin binds it; on the chief it also keeps the configuration."""
    spec = gin_config.build(TrainSpec)
    spec = dataclasses.replace(spec, hooks=(*spec.hooks, PreemptionHook()))
    if not estimator.config.is_chief:
        return spec
    command = shlex.join(["python", "-m", "pipeline.main", *argv[1:]])
    text = f"# Written by: {command}\n\n{gin_config.config_text()}"
    return dataclasses.replace(spec, hooks=(*spec.hooks, jobs.ConfigHook(text)))


@contextlib.contextmanager
def _output(path: str | None) -> Iterator[TextIO]:
    if path is None:
        yield sys.stdout
        return
    try:
        stream = open(path, "w", encoding="utf-8")  # noqa: SIM115, closed below.
    except OSError as error:
        raise gin_config.ConfigError(
            f"cannot write to --output={path} ({error.strerror}): choose another file."
        ) from error
    with stream:
        yield stream


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _exit_now(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _fail(message: str, code: int = 2) -> int:
    sys.stderr.write(f"error: {message}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
