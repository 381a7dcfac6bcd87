"""Runs a program to its end: answers signals, says what failed, returns an exit code.

    if __name__ == "__main__":
        pipeline.run(main)

The exit code tells a supervisor what to do next:

    0    the program ended well
    75   start the same command again, which goes on from the last save: SIGTERM came,
         or a first Ctrl-C in a training, or another task of the cluster died
    2    this project refused something, in few lines: another start changes nothing
    1    the user's own functions failed, in few lines; or any other error, whose
         traceback is shown
    130  Ctrl-C came at another time, or twice
"""

import contextlib
import inspect
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from absl import app, flags

from pipeline.cluster.ports import PeerLostError
from pipeline.mistakes import user_errors
from pipeline.process import exit_codes, package, run_log, signals
from pipeline.process.signals import EndedBySignal, PreemptedError


def run(
    main: Callable[..., Any],
    *,
    argv: Sequence[str] | None = None,
    debug: bool = False,
) -> None:
    """Runs a program's own `main` as the command runs its jobs, and exits.

    Trainings inside of it answer signals without a hook for that. Logs go to stderr
    from INFO on. `python -m pipeline.launch` starts such a program in each task of a
    cluster. In IPython, and so in a notebook, it returns where all went well.

    Args:
      main: function of no argument, or of one: the command line without absl's flags,
        which are parsed before, as by absl's `app.run`. An int that it returns becomes
        the exit code.
      argv: command line, the program's name first; None for this process's.
      debug: whether all errors keep their traceback, and the log begins at DEBUG.
    """
    argv = list(sys.argv if argv is None else argv)
    run_log.open_streams()

    def called() -> Any:
        return main(_parsed(argv)) if _takes_argv(main) else main()

    more = f"{package.NAME}.run(main, debug=True) shows the whole traceback."
    code = code_of(called, debug=debug, more=more)
    if code or not _in_ipython():
        sys.exit(code)


def code_of(main: Callable[[], Any], *, debug: bool, more: str) -> int:
    """Runs a program, and says on stderr how it ended, unless it ended well.

    Args:
      main: the program.
      debug: whether refusals and errors of the user's functions keep their traceback.
      more: sentence that says how to see the traceback.

    Returns:
      The exit code: the int that `main` returned, or 0, or the code of the error.
    """
    with signals.answered() as answers:
        run_log.set_up(debug=debug)
        answers.clean_up()
        try:
            code = main()
        except PreemptedError as error:
            return exit_codes.said(str(error), exit_codes.AGAIN)
        except PeerLostError as error:
            # The interpreter's own end is left out: TensorFlow would wait in it for the
            # task that is lost.
            return _exit_now(exit_codes.failed(str(error), exit_codes.AGAIN))
        except EndedBySignal as error:
            return exit_codes.said(f"\n{error}", error.code)
        except KeyboardInterrupt:
            text = signals.text_of(signal.SIGINT)
            return exit_codes.said(f"\n{text}", exit_codes.INTERRUPTED)
        except flags.Error as error:
            return exit_codes.failed(exit_codes.words_of(error))
        except Exception as error:
            ours = user_errors.is_ours(error)
            if debug or not (ours or user_errors.is_noted(error)):
                raise
            text = user_errors.text_of(error)
            if ours and not isinstance(error, user_errors.StepError):
                return exit_codes.failed(f"{text}{user_errors.place_of(error)}")
            # 1 rather than 2: another start may succeed, once a file is there.
            return exit_codes.failed(f"{text}\n{more}", exit_codes.FAILED)
        return code if isinstance(code, int) else 0


def _parsed(argv: Sequence[str]) -> list[str]:
    """Parses absl's flags, and returns the rest of the command line."""
    app.define_help_flags()
    return flags.FLAGS(argv)


def _in_ipython() -> bool:
    """Whether IPython runs this, which takes any SystemExit for an error."""
    # What runs in it has it among its modules.
    module = sys.modules.get("IPython")
    return module is not None and module.get_ipython() is not None


def _takes_argv(main: Callable[..., Any]) -> bool:
    """Returns whether a function has a positional argument that must be given."""
    parameters = inspect.signature(main).parameters.values()
    return any(
        p.default is p.empty
        and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)
        for p in parameters
    )


def _exit_now(code: int) -> NoReturn:
    """Ends the process once its output is written, without Python's own clean-up."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.flush()
    os._exit(code)
