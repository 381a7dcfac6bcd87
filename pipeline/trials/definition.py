"""What makes the trials of a sweep comparable: their command, space and goal.

It is written to the sweep's folder as flags, in one form, and compared at each start.
"""

import dataclasses
import pathlib
import shlex
from collections.abc import Mapping, Sequence

from pipeline.process import package
from pipeline.process.refusals import RefusedValueError
from pipeline.trials import search
from pipeline.trials.folder import Folder
from pipeline.trials.goal import Goal
from pipeline.trials.search import Dimension, Value

# Flags that may be others until the first trial has ended.
OF_GOAL = ("--metric", "--maximize", "--evaluation", "--value")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Definition:
    """What a sweep tries, and by what it judges.

    Attributes:
      dimensions: what is searched.
      goal: what trials are judged by.
      arguments: what stands after -- : the flags of all trials, or a Python program
        with its arguments.
      launch: flags of `pipeline.launch`, where each trial is a cluster; None where it
        is one process.
      main: module that each trial runs.
    """

    dimensions: Sequence[Dimension]
    goal: Goal
    arguments: Sequence[str]
    launch: Sequence[str] | None = None
    main: str = f"{package.NAME}.main"

    def as_flags(self) -> dict[str, str]:
        """Returns it as texts by flag, to be written down."""
        return {
            "--search": shlex.join(map(str, self.dimensions)),
            "--metric": self.goal.metric,
            "--maximize": str(self.goal.maximize),
            "--evaluation": self.goal.evaluation or "",
            "--value": self.goal.value,
            "--launch": "none" if self.launch is None else shlex.join(self.launch),
            "--": shlex.join(self.arguments),
        }

    def command(
        self, values: Mapping[str, Value], model_dir: pathlib.Path, *, python: str
    ) -> list[str]:
        """Returns program and arguments of a trial.

        Args:
          values: value of each name that is searched.
          model_dir: the trial's folder.
          python: the interpreter.
        """
        given = search.bindings(self.dimensions, values)
        # A program has flags of these names, and pipeline.main bindings.
        flag = "--" if is_program(self.arguments) else "--gin_param="
        named = [f"{flag}{binding}" for binding in given]
        return [*self._program(python), *named, f"--model_dir={model_dir}"]

    def check_command(self, *, python: str) -> list[str] | None:
        """Returns a command that refuses what the trials would be refused for.

        Each name is bound to all of its choices, or to both bounds. The last binding
        wins, and all are checked.

        Args:
          python: the interpreter.

        Returns:
          Program and arguments; None where the trials are a program of the user's.
        """
        if is_program(self.arguments):
            return None
        bound = [
            each.binding(value) for each in self.dimensions for value in each.ends()
        ]
        given = [f"--gin_param={binding}" for binding in bound]
        return [python, "-m", self.main, *self.arguments, *given, "--dry_run"]

    def _program(self, python: str) -> list[str]:
        if self.launch is None:
            main = [] if is_program(self.arguments) else ["-m", self.main]
            return [python, *main, *self.arguments]
        launch = [python, "-m", f"{package.NAME}.launch", *self.launch]
        return [*launch, "--", *self.arguments]


def is_program(arguments: Sequence[str]) -> bool:
    """Whether what stands after -- is a program of the user's, and not flags."""
    return bool(arguments) and not arguments[0].startswith("-")


def of_folder(folder: Folder) -> Definition:
    """Returns what the sweep in a folder was begun with.

    Args:
      folder: the sweep's folder.

    Raises:
      ValueError: there is no sweep.
    """
    flags = folder.definition()
    if flags is None:
        raise RefusedValueError(
            f"{folder.path} holds no sweep: write the --sweep_dir of one."
        )
    goal = Goal(
        metric=flags["--metric"],
        maximize=flags["--maximize"] == str(True),
        evaluation=flags["--evaluation"] or None,
        value=flags["--value"],
    )
    launch = flags["--launch"]
    return Definition(
        dimensions=search.read(shlex.split(flags["--search"])),
        goal=goal,
        arguments=shlex.split(flags["--"]),
        launch=None if launch == "none" else shlex.split(launch),
    )
