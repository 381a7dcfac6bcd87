"""A sweep's folder: one sweep at a time, begun once, with a model_dir for each trial.

sweep.json    what the sweep was begun with
sweep.lock    held by the process that runs it
study.db      the trials, for Optuna
trials.csv    the table
trial-0007/   model_dir of trial 7
trial-0007.log  what the processes of trial 7 wrote
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import socket
from collections.abc import Iterator, Sequence

from pipeline.process.refusals import Refusal, RefusedValueError

_DEFINITION = "sweep.json"
_CONFIG = "config.gin"
_LOCK = "sweep.lock"


class FolderError(Refusal, RuntimeError):
    """A sweep's folder that cannot be written, or that another sweep is in."""


@dataclasses.dataclass(frozen=True)
class Folder:
    """Paths in a sweep's folder.

    Attributes:
      path: the folder.
    """

    path: pathlib.Path

    @property
    def study(self) -> pathlib.Path:
        """The file of the trials."""
        return self.path / "study.db"

    @property
    def table(self) -> pathlib.Path:
        """The file of the table."""
        return self.path / "trials.csv"

    def model_dir(self, number: int) -> pathlib.Path:
        """Returns the model_dir of a trial."""
        return self.path / f"trial-{number:04d}"

    def log(self, number: int) -> pathlib.Path:
        """Returns the file that gets what a trial writes to stdout and stderr."""
        return self.path / f"trial-{number:04d}.log"

    def begin(self, definition: dict[str, str], *, free: Sequence[str] = ()) -> None:
        """Writes down what the sweep is begun with, or checks that it is the same.

        Args:
          definition: what makes trials comparable, as flags: value by name.
          free: names that may have another value than before.

        Raises:
          ValueError: the sweep that lies there was begun with something else.
        """
        found = self.definition()
        for name, value in definition.items() if found is not None else ():
            if name not in free and found.get(name) != value:
                raise RefusedValueError(
                    f"{self.path} holds a sweep that was begun with "
                    f"{_written(name, found.get(name, ''))}, and here is "
                    f"{_written(name, value)}: write the same, or another --sweep_dir."
                )
        if found != definition:
            text = json.dumps(definition, indent=2)
            replace(self.path / _DEFINITION, f"{text}\n")

    def check_config(self, text: str) -> None:
        """Writes down the configuration of all trials, or checks that it is the same.

        A gin file that was changed would make other trials of those to come.

        Args:
          text: the configuration, as a gin file.

        Raises:
          ValueError: it is another one than at the sweep's begin.
        """
        path = self.path / _CONFIG
        try:
            found = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            replace(path, f"{text}\n")
            return
        before, now = ([*filter(None, t.splitlines())] for t in (found, text))
        changed = [f"- {line}" for line in before if line not in now]
        changed += [f"+ {line}" for line in now if line not in before]
        if changed:
            listed = "\n  ".join(changed)
            raise RefusedValueError(
                f"the configuration is another one than when the sweep in {self.path} "
                f"was begun:\n  {listed}\nWrite another --sweep_dir, or, where the "
                f"trials stay comparable, delete {path}."
            )

    def definition(self) -> dict[str, str] | None:
        """Returns what the sweep was begun with; None where none was begun.

        Raises:
          ValueError: what is written there is damaged.
        """
        path = self.path / _DEFINITION
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(found, dict):
                raise RefusedValueError("no JSON object")
            return found
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise RefusedValueError(
                f"{path} is damaged ({error}): write another --sweep_dir."
            ) from error

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Holds the folder while the block runs; it is made where it is not there.

        The system lets go of it where this process is killed.

        Raises:
          FolderError: another process holds it; names that process.
        """
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(handle, 200, 0).decode(errors="replace").strip()
                raise FolderError(
                    f"{self.path} is in use: a sweep runs there, {holder}. Wait for "
                    "its end, or write another --sweep_dir."
                ) from None
            except OSError:  # A file system without locks; as good as one can.
                pass
            with writing(self.path):
                os.ftruncate(handle, 0)
                text = f"process {os.getpid()} on {socket.gethostname()}\n"
                os.pwrite(handle, text.encode(), 0)
            yield
        finally:
            os.close(handle)


def replace(path: pathlib.Path, text: str) -> None:
    """Writes a file anew: its readers get all of the old text or all of the new.

    Args:
      path: path of the file.
      text: new content.

    Raises:
      FolderError: it cannot be written.
    """
    part = path.with_name(f"{path.name}.tmp")
    with writing(path.parent):
        with open(part, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)


@contextlib.contextmanager
def writing(path: pathlib.Path) -> Iterator[None]:
    """Turns what the file system refuses in the block into an error in words.

    Args:
      path: the sweep's folder.

    Raises:
      FolderError: names the cause.
    """
    try:
        yield
    except OSError as error:
        raise FolderError(
            f"{path} could not be written: {error.strerror or error}. See to it, or "
            "write another --sweep_dir, and start the same command again."
        ) from error


def _written(name: str, value: str) -> str:
    """Returns a flag as it is typed; what stands after -- goes by that name."""
    if not value:
        return f"no {name}"
    return f"{name} {value}" if name == "--" else f"{name}={value}"
