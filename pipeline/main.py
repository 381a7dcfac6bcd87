# SPDX-License-Identifier: Apache-2.0
"""Runs one job: flags, then gin, then an Estimator.

    gin-estimator --gin_file=gin/digits.gin --model_dir=runs/digits
    gin-estimator --gin_file=gin/digits.gin --dry_run
    gin-estimator launch --help     # a cluster on this machine
    gin-estimator sweep --help      # a search of hyperparameters
    gin-estimator report MODEL_DIR  # what a run reached, and its time

Exit codes: 0, the job is done; 2, the command or the configuration is refused, with what to
write instead; 1, a model_fn, an input_fn or anything else failed; 75, start the same command
again to continue; 130, interrupted by Ctrl-C.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence

from absl import flags

from .cli import flags as flags_lib
from .cli.job_output import failed, say
from .errors import UserError
from .run import log


def console() -> None:
    """Runs the command `gin-estimator`, and exits."""
    sys.path.insert(0, os.getcwd())  # As `python -m` does, for the user's modules.
    sys.exit(main())


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one job or subcommand; can be called again in the same process.

    Args:
      argv: name of the program, a subcommand if there is one, then flags; None for those of
        this process.

    Returns:
      The exit code.
    """
    log.open_standard_streams()
    argv = list(sys.argv if argv is None else argv)
    if argv[1:2] and argv[1] in flags_lib.SUBCOMMANDS:
        return importlib.import_module(f".{argv[1]}", __package__).main(argv[1:])
    try:
        options = flags_lib.parse(argv)
    except (flags.Error, UserError) as error:
        return failed(error, debug=False)
    if options.help:
        say(f"{__doc__}\n{options.get_help()}")
        return 0
    if options.version:
        say(flags_lib.version())
        return 0
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    if backend != "tensorflow":
        message = (
            f"KERAS_BACKEND is {backend!r}: expected 'tensorflow'. Set KERAS_BACKEND=tensorflow."
        )
        return failed(UserError(message), debug=False)
    # Without gin-config, `import gin` finds the folder gin/ as an empty package.
    if importlib.util.find_spec("gin.config") is None:
        message = "gin-config is not installed: pip install gin-config."
        return failed(UserError(message), debug=False)
    # Imports TensorFlow, which takes seconds; a wrong flag is answered before.
    jobs = importlib.import_module(".cli.jobs", __package__)
    return jobs.run(options, argv)


if __name__ == "__main__":
    sys.exit(main())
