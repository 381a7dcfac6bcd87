"""How a program ends: what it answers to signals, its exit code, its last words.

    if __name__ == "__main__":
        pipeline.run(main)

SIGTERM, or a first Ctrl-C, stops a training in order: it is saved, and the exit code 75
asks for the same command again, to go on from there. So does a task of the cluster that
was lost. 2 is for what this project refuses, and 1 for what failed in the user's own
functions, each in few lines. 130 is Ctrl-C at another time, or twice. Any other error
keeps its traceback, and its code is 1.
"""

import contextlib
import inspect
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from absl import app, flags

from pipeline import (
    command_line,
    exit_codes,
    package,
    run_log,
    signals,
    user_errors,
)
from pipeline.ports import PeerLostError
from pipeline.signals import EndedBySignal, PreemptedError


def run(
    main: Callable[..., Any],
    *,
    argv: Sequence[str] | None = None,
    debug: bool = False,
) -> NoReturn:
    """Runs a program's own `main` as the command runs its jobs, and exits.

    Trainings inside of it answer signals without a hook of one's own. Logs go to stderr
    from INFO on. The same in each task of a cluster: `python -m pipeline.launch`.

    Args:
      main: takes nothing; or one argument, the command line without absl's flags, which
        are parsed before, as by absl's `app.run`. An int that it returns is the exit
        code.
      argv: the command line; None for this process's.
      debug: keeps all tracebacks, and logs more.
    """
    argv = list(sys.argv if argv is None else argv)
    command_line.open_streams()

    def called() -> Any:
        return main(_parsed(argv)) if _takes_argv(main) else main()

    more = f"{package.NAME}.run(main, debug=True) shows the whole traceback."
    sys.exit(code_of(called, debug=debug, more=more))


def code_of(main: Callable[[], Any], *, debug: bool, more: str) -> int:
    """Runs a program and says how it ended, unless it ended well.

    Args:
      main: the program.
      debug: whether errors of ours and of the user's functions keep their traceback.
      more: how to see that.

    Returns:
      The exit code; what `main` returns, where that is an int.
    """
    with signals.answered() as answers:
        run_log.set_up(debug=debug)
        answers.clean_up()
        try:
            code = main()
        except PreemptedError as error:
            return exit_codes.said(str(error), exit_codes.AGAIN)
        except PeerLostError as error:
            # At once: TensorFlow would wait for the task that is lost.
            return _exit_now(exit_codes.failed(str(error), exit_codes.AGAIN))
        except EndedBySignal as error:
            return exit_codes.said(f"\n{error}", error.code)
        except KeyboardInterrupt:
            text = signals.text_of(signal.SIGINT)
            return exit_codes.said(f"\n{text}", exit_codes.INTERRUPTED)
        except flags.Error as error:
            return exit_codes.failed(str(error))
        except Exception as error:
            ours = user_errors.is_ours(error)
            if debug or not (ours or user_errors.is_noted(error)):
                raise
            text = user_errors.text_of(error)
            if ours and not isinstance(error, user_errors.StepError):
                return exit_codes.failed(f"{text}{user_errors.place_of(error)}")
            # Not 2: a file that could not be read may be there at another start.
            return exit_codes.failed(f"{text}\n{more}", exit_codes.FAILED)
        return code if isinstance(code, int) else 0


def _parsed(argv: Sequence[str]) -> list[str]:
    """What absl's flags leave of a command line."""
    app.define_help_flags()
    return flags.FLAGS(argv)


def _takes_argv(main: Callable[..., Any]) -> bool:
    parameters = inspect.signature(main).parameters.values()
    return any(
        p.default is p.empty
        and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)
        for p in parameters
    )


def _exit_now(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.flush()
    os._exit(code)
