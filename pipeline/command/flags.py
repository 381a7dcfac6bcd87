"""The flags of `pipeline.main`, the commands that it names, and its output.

Nothing here imports TensorFlow, which takes seconds: a mistyped flag is answered at
once.
"""

import contextlib
import importlib.metadata
import importlib.util
import os
import pathlib
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from absl import flags

from pipeline.cluster.tf_config import EXECUTIONS
from pipeline.command import gin_reader
from pipeline.model_dir import paths

JOBS = (
    "train_and_evaluate",
    "train",
    "evaluate",
    "predict",
    "export",
    "find_learning_rate",
    "replay",
    "inspect",
)
OF_INSPECT = (
    "simulate_workers",
    "simulate_replicas",
    "simulate_ps",
    "inspect_secs",
)
OF_ONE_CHECKPOINT = ("evaluate", "predict", "export")


def define() -> flags.FlagValues:
    """Defines the flags in a set of their own, so that `main` can run repeatedly."""
    values = flags.FlagValues()
    own = {"flag_values": values, "module_name": "pipeline.main"}

    def string(name: str, text: str) -> None:
        flags.DEFINE_string(name, None, text, **own)

    def boolean(name: str, text: str, **more: Any) -> None:
        flags.DEFINE_boolean(name, False, text, **own, **more)

    flags.DEFINE_enum("job", JOBS[0], JOBS, "What to do.", **own)
    flags.DEFINE_enum(
        "execution",
        None,
        EXECUTIONS,
        "Where to run; the cluster comes from TF_CONFIG. Default: RunConfig.execution "
        "of the gin files, else single_host, on all local devices.",
        **own,
    )
    flags.DEFINE_list(
        "devices", None, "Local devices to run on: GPU:0,GPU:1. Default: all.", **own
    )
    flags.DEFINE_multi_string(
        "gin_file", [], "A gin file; searched for in gin/ too. Repeatable.", **own
    )
    flags.DEFINE_multi_string(
        "gin_param",
        [],
        "A binding that wins over the files', such as \"RunConfig.precision="
        "'mixed_bfloat16'\". --gin.NAME=VALUE is the same. Repeatable.",
        **own,
    )
    string(
        "model_dir", "Checkpoints, summaries, exports. Wins over RunConfig.model_dir."
    )
    string("tpu", "For --execution=tpu: local, a TPU's name, or its grpc:// address.")
    string("tpu_zone", "Zone of a TPU given by name. Default: this machine's.")
    string("tpu_project", "Project of a TPU given by name. Default: this machine's.")
    string(
        "checkpoint_path",
        "For evaluate, predict, export: a path, or best; default: the latest.",
    )
    string("bad_batch", "For replay: a step's folder, runs/1/bad_batches/step-70.")
    boolean("all_checkpoints", "For evaluate: each checkpoint, as a table.")
    string("output", "For predict: the file to write to instead of stdout.")
    boolean(
        "fast_dev_run",
        "Do everything once, in seconds: a step, a save, an evaluation of one batch, "
        "every export, a prediction; in a model_dir that is deleted.",
    )
    flags.DEFINE_integer(
        "overfit_batches",
        None,
        "Train and evaluate on so many batches alone, to see whether the model learns.",
        lower_bound=1,
        **own,
    )
    for name, what in (
        ("workers", "workers"),
        ("replicas", "replicas of each worker"),
        ("ps", "parameter servers"),
    ):
        flags.DEFINE_integer(
            f"simulate_{name}",
            None,
            f"For inspect: so many {what}, of a cluster that need not exist.",
            lower_bound=1,
            **own,
        )
    flags.DEFINE_float(
        "inspect_secs",
        None,
        "For inspect: seconds in which inputs are called and read. Default: 8.",
        lower_bound=0.1,
        **own,
    )
    boolean(
        "dry_run",
        "Check the configuration and print it; build nothing. For a TPU, XLA compiles "
        "the train and eval steps on this machine's CPU.",
    )
    boolean("debug", "Keep the traceback of a configuration error; log more.")
    boolean(
        "list",
        "Print all that gin can configure, with its arguments: the driver's, Keras', "
        "those of the packages models and inputs, and what gin files import.",
    )
    boolean("version", "Print the versions of this project and what it runs on.")
    boolean("help", "Show this help.", short_name="h")
    return values


def parse(argv: Sequence[str]) -> flags.FlagValues:
    """Parses the flags of a command.

    Args:
      argv: the program's name, then flags.

    Raises:
      flags.Error: a flag is unknown, has a wrong value, or contradicts another; says
        what to write.
    """
    for argument in argv:
        if not paths.is_text(argument):
            raise flags.Error(f"{argument!r} is no UTF-8: write another path or value.")
    options = define()
    rest = options(without_sugar(argv))[1:]
    if options.help or options.version:
        return options
    if rest:
        raise flags.Error(
            f"unexpected argument {rest[0]!r}: a value is written --flag=value, and "
            "one with spaces in quotes."
        )
    if options.output and options.job != "predict":
        raise flags.Error(f"--output is for --job=predict, not --job={options.job}.")
    if options.all_checkpoints and options.job != "evaluate":
        raise flags.Error(
            f"--all_checkpoints is for --job=evaluate, not --job={options.job}."
        )
    if options.all_checkpoints and options.checkpoint_path:
        raise flags.Error(
            "--all_checkpoints and --checkpoint_path exclude each other: leave one out."
        )
    if options.checkpoint_path and options.job not in OF_ONE_CHECKPOINT:
        raise flags.Error(
            f"--checkpoint_path is for --job={', '.join(OF_ONE_CHECKPOINT)}; training "
            "goes on from the latest in model_dir. To start from other weights: "
            "Estimator.warm_start_from = 'path' in gin."
        )
    if options.bad_batch and options.job != "replay":
        raise flags.Error(f"--bad_batch is for --job=replay, not --job={options.job}.")
    if options.job == "replay" and not options.bad_batch:
        raise flags.Error(
            "--job=replay makes a step that went wrong again: say which one, "
            "--bad_batch=runs/1/bad_batches/step-70."
        )
    for name in OF_INSPECT:
        if options[name].value is not None and options.job != "inspect":
            raise flags.Error(f"--{name} is for --job=inspect, not {options.job}.")
    looks = [n for n in ("fast_dev_run", "overfit_batches") if options[n].value]
    if looks and options.job != JOBS[0]:
        raise flags.Error(f"--{looks[0]} is for --job={JOBS[0]}, not {options.job}.")
    if len(looks) > 1:
        raise flags.Error("--fast_dev_run and --overfit_batches: give one of them.")
    if not (options.gin_file or options.list):
        raise flags.Error(usage(gin_reader.available()))
    return options


def without_sugar(argv: Sequence[str]) -> list[str]:
    """Writes `--gin.NAME=VALUE` and `--gin.NAME VALUE` as `--gin_param=NAME=VALUE`."""
    found, waiting = [], list(argv)
    while waiting:
        argument = waiting.pop(0)
        if argument == "--":
            return [*found, argument, *waiting]
        dashes = argument[: len(argument) - len(argument.lstrip("-"))]
        name = argument[len(dashes) :].removeprefix("gin.")
        if dashes not in ("-", "--") or not argument.startswith(f"{dashes}gin."):
            found.append(argument)
            continue
        if "=" not in name:
            if not waiting or waiting[0].startswith("--"):
                raise flags.Error(f"{argument} has no value: write {argument}=VALUE.")
            name = f"{name}={waiting.pop(0)}"
        found.append(f"--gin_param={name}")
    return found


def answered(options: flags.FlagValues, text: str) -> bool:
    """Answers --help and --version; returns whether one of them was given.

    Args:
      options: flags of a command, those two among them.
      text: what the command does, for --help.

    Raises:
      flags.Error: stdout cannot be written.
    """
    if options.help:
        say(f"{text}\n{options.get_help()}")
    elif options.version:
        say(_version())
    return bool(options.help or options.version)


def _version() -> str:
    found = [f"Python {sys.version.partition(' ')[0]}"]
    for name in ("gin-estimator", "tensorflow", "keras"):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{name} (not installed)")
    ours = found.pop(1)
    return f"{ours} ({', '.join(found)})"


def tpu_bindings(options: flags.FlagValues) -> list[str]:
    """Returns the flags that name a TPU as gin bindings."""
    given = {"name": options.tpu, "zone": options.tpu_zone}
    given["project"] = options.tpu_project
    return [f"tpu.{name} = {value!r}" for name, value in given.items() if value]


def program(name: str) -> str:
    """Returns what to type for a program of this Python's environment."""
    folder = os.path.dirname(sys.executable)
    path = os.path.join(folder, name)
    if name == "python" and not os.path.exists(path):
        path = sys.executable  # Some environments have python3 alone.
    typed = os.path.basename(path)
    return typed if shutil.which(typed) == path else paths.shown(path)


def command() -> str:
    """Returns what to type for this program."""
    return f"{program('python')} -m pipeline.main"


def usage(gin_files: Sequence[pathlib.Path]) -> str:
    """Returns the error for a command without a gin file, with an example.

    Args:
      gin_files: the gin files to choose from.
    """
    lines = [f"  {_typed(path)}" for path in gin_files] or ["  (none)"]
    # The example has to run: digits needs scikit-learn, which may not be installed.
    name = "digits" if importlib.util.find_spec("sklearn") else "linear"
    names = {path.stem: path for path in gin_files}
    given = _typed(names[name]) if name in names else "my_project/run.gin"
    example = f"{command()} --gin_file={given} --model_dir=runs/{name}"
    return "\n".join(
        [
            "no --gin_file says what to train. These are there:",
            *lines,
            f"For example: {example}",
            "All flags: --help",
        ]
    )


def _typed(path: pathlib.Path) -> str:
    """Returns what to type for a gin file; files of this package go by name alone."""
    near = os.path.relpath(path)
    return path.name if near.startswith(os.pardir) else near


def say(line: str) -> int:
    """Writes a line to stdout at once.

    Args:
      line: the line, without its end.

    Returns:
      0, the exit code of a program that ends with this line.

    Raises:
      flags.Error: stdout is closed, full, or read by nobody any more.
    """
    with writing(sys.stdout, "stdout") as stream:
        stream.write(f"{line}\n")
        stream.flush()
    return 0


@contextlib.contextmanager
def writing(stream: TextIO | None, name: str) -> Iterator[TextIO]:
    """Turns a refused write into an error that names the file.

    Args:
      stream: the file to write to; None where it was closed when the program started.
      name: the name of the file, for the message.

    Raises:
      flags.Error: the file cannot be written.
    """
    if stream is None:
        raise flags.Error(f"cannot write to {name}: it is closed.")
    try:
        yield stream
    except OSError as error:
        # The buffer still holds text, which Python writes again at the end, and would
        # fail again: it goes to the null device.
        with open(os.devnull, "wb") as nowhere, contextlib.suppress(OSError):
            os.dup2(nowhere.fileno(), stream.fileno())
        raise flags.Error(
            f"cannot write to {name} ({error.strerror}): choose another file."
        ) from error
