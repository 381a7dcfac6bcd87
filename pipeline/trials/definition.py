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
      arguments: what stands after -- : the flags of all trials.
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
        bound = search.bindings(self.dimensions, values)
        given = [f"--gin_param={binding}" for binding in bound]
        return [*self._program(python), *given, f"--model_dir={model_dir}"]

    def check_command(self, *, python: str) -> list[str]:
        """Returns a command that refuses what the trials would be refused for.

        Each name is bound to all of its choices, or to both bounds. The last binding
        wins, and all are checked.

        Args:
          python: the interpreter.
        """
        bound = [
            each.binding(value) for each in self.dimensions for value in each.ends()
        ]
        given = [f"--gin_param={binding}" for binding in bound]
        return [python, "-m", self.main, *self.arguments, *given, "--dry_run"]

    def _program(self, python: str) -> list[str]:
        if self.launch is None:
            return [python, "-m", self.main, *self.arguments]
        launch = [python, "-m", f"{package.NAME}.launch", *self.launch]
        return [*launch, "--", *self.arguments]


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
