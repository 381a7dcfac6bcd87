"""Runs one job from the command line: flags -> gin -> RunConfig -> Estimator -> job.

    python -m pipeline.main --gin_file=gin/digits.gin --model_dir=runs/digits
    python -m pipeline.main --list

Exit codes: 0 where the job is done; 2 where this project refuses something, with a
message that says what to write; 1 where a model_fn or an input_fn fails, with the lines
of it that led there (--debug adds the traceback to both); 75 where the same command is
to be started again, to go on from the last checkpoint: after SIGTERM, after Ctrl-C in a
training, once it is saved, and where another task of the cluster was lost; 130 for
Ctrl-C at another time, or twice. Any other error keeps its traceback, with code 1.
"""

import importlib
import os
import sys
from collections.abc import Sequence

from absl import flags

from pipeline.command import flags as flags_lib
from pipeline.command import gin_reader
from pipeline.process import exit_codes, run_log, signals


def console() -> None:
    """Runs the command `gin-estimator`, and exits."""
    # As `python -m` does: a gin file imports the user's modules from the working
    # directory, and finds the same ones by either command.
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())
    sys.exit(main())


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one job.

    Args:
      argv: name of the program, then flags; None for this process's.

    Returns:
      The exit code.
    """
    argv = list(sys.argv if argv is None else argv)
    run_log.open_streams()
    with signals.answered():
        try:
            options = flags_lib.parse(argv)
            if flags_lib.answered(options, __doc__):
                return 0
        except flags.Error as error:
            return exit_codes.failed(exit_codes.words_of(error))
        except gin_reader.ConfigError as error:
            return exit_codes.failed(str(error))
        backend = os.environ.get("KERAS_BACKEND", "tensorflow")
        if backend != "tensorflow":
            # Refused before Keras is imported, which would fail on the other backend.
            return exit_codes.failed(
                f"KERAS_BACKEND is {backend!r}, and this project runs on TensorFlow: "
                "unset it, or KERAS_BACKEND=tensorflow."
            )
        if options.debug:
            run_log.keep_chatter()
        # Imported late, as it imports TensorFlow: seconds that nobody is to wait for a
        # mistyped flag.
        job = importlib.import_module(f"{__package__}.command.command_job")
        return job.run(options, argv)


if __name__ == "__main__":
    sys.exit(main())
