"""Makes one package `gin_estimator` of this repository's three, and builds that.

What is installed has no package `models` or `inputs` that could hide a user's own, or
be hidden by it: these become `gin_estimator.models` and `gin_estimator.inputs`, the
gin files lie in `gin_estimator/gin`, and `pipeline` is `gin_estimator` itself. The
sources say `pipeline.x`; here is where the copies get the other name, in imports and
in what the messages and docstrings tell to type. An editable installation has the
packages as they are, and `gin_estimator/`, which knows them by that name.
"""

import ast
import pathlib
import re
import shutil

import setuptools
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

ROOT = pathlib.Path(__file__).resolve().parent
NAME = "gin_estimator"
PACKAGES = ("pipeline", "models", "inputs")
LIBRARIES = PACKAGES[1:]


def installed_packages() -> dict[str, str]:
    """Returns the folder of each package that is installed, relative to this one."""
    found = {NAME: "pipeline", f"{NAME}.gin": "gin"}
    found.update({f"{NAME}.{name}": name for name in LIBRARIES})
    for folder, name in (("pipeline", NAME), *((n, f"{NAME}.{n}") for n in LIBRARIES)):
        for inner in setuptools.find_packages(ROOT / folder):
            found[f"{name}.{inner}"] = f"{folder}/{inner.replace('.', '/')}"
    return found


def renamed(text: str) -> str:
    """Returns a file's text with the names that its modules have once installed.

    Renames the imports, and in messages, comments and docstrings what names a module or
    a public name: `python -m pipeline.main`, `pipeline.Hook`. The prefix of gin's
    selectors stays `pipeline`, as users write it.

    Args:
      text: of a Python file, or of a gin file.
    """
    text = re.sub(
        r"^(\s*)import (models|inputs)$", rf"\1import {NAME}.\2", text, flags=re.M
    )
    text = re.sub(
        r"^(\s*)from (models|inputs)\b(?= import|\.)",
        rf"\1from {NAME}.\2",
        text,
        flags=re.M,
    )
    text = re.sub(r"(\bfrom|\bimport|-m) pipeline\b", rf"\1 {NAME}", text)
    text = re.sub(r"-m (models|inputs)\b", rf"-m {NAME}.\1", text)
    children = {path.stem for path in (ROOT / "pipeline").iterdir()}
    modules = "|".join(sorted((children | {"run"}) - {"__pycache__", "py"}))
    # A capital begins a public name, a brace one that is put in.
    return re.sub(rf"\bpipeline\.(?=({modules})\b|[A-Z{{])", f"{NAME}.", text)


def check_renamed(text: str, path: str) -> None:
    """Checks that a renamed file imports no package of the repository's.

    Raises:
      ValueError: names the import.
    """
    for node in ast.walk(ast.parse(text)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module]
        for name in names:
            if name.partition(".")[0] in PACKAGES:
                raise ValueError(
                    f"{path} line {node.lineno} imports {name}, which is not installed "
                    f"by that name: write it as `renamed` in setup.py knows it."
                )


class BuildRenamed(build_py):
    """Copies the packages, and renames what the copies say."""

    def run(self) -> None:
        target = pathlib.Path(self.build_lib, NAME)
        if not self.editable_mode:
            # What an earlier build left there would be packed too.
            shutil.rmtree(target, ignore_errors=True)
        super().run()
        if self.editable_mode:
            return
        for path in sorted(target.rglob("*")):
            if path.suffix in (".py", ".gin"):
                text = renamed(path.read_text(encoding="utf-8"))
                if path.suffix == ".py":
                    check_renamed(text, str(path))
                path.write_text(text, encoding="utf-8")


class EditableAsItIs(editable_wheel):
    """Installs links to the packages of the repository."""

    def run(self) -> None:
        packages = (NAME, *PACKAGES)
        self.distribution.packages = list(packages)
        self.distribution.package_dir = {name: name for name in packages}
        super().run()


if __name__ == "__main__":
    folders = installed_packages()
    setuptools.setup(
        packages=list(folders),
        package_dir=folders,
        package_data={
            NAME: ["py.typed"],
            f"{NAME}.gin": ["*.gin"],
            f"{NAME}.moving": ["*.toml", "*.txt"],
        },
        cmdclass={"build_py": BuildRenamed, "editable_wheel": EditableAsItIs},
    )
