"""The pages: commands, gin, names and links are valid, and the Python blocks run.

The Python blocks of a page run in order in one namespace, with the names of `namespace`. A block
may be indented, as under a tab of the site.
"""

import dataclasses
import functools
import json
import re
import shlex
import sys
import textwrap

import keras
import numpy as np
import pytest
import small
import tensorflow as tf
from conftest import ROOT

import gin_estimator as ge
from gin_estimator import inputs, launch, main, models, report, sweep
from gin_estimator.cli import flags, registry, search
from gin_estimator.cluster.tf_config import parse_tf_config
from gin_estimator.launcher.flags import checked

OTHERS = [ROOT / name for name in ("WORKSPACE.md", "CONTRIBUTING.md", "examples/README.md")]
PAGES = [ROOT / "README.md", *OTHERS, *sorted((ROOT / "docs").glob("*.md"))]
# Where README.md, which PyPI shows as well, and the site link to files of the repository.
REPOSITORY = "https://github.com/gin-estimator/gin-estimator/blob/main"
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|[\s`])gin-estimator (launch|sweep|report|)(.*)")
PACKAGES = {"ge": ge, "models": models, "inputs": inputs, "keras": keras}
# Flags of sbatch, srun, pip and docker.
FOREIGN = {"distribution", "requeue", "signal", "open-mode", "time", "editable", "gpus"}


def namespace():
    names = {
        **PACKAGES,
        "tf": tf,
        "np": np,
        "functools": functools,
        "dataclasses": dataclasses,
        "input_fn": small.data,
    }
    names |= {"model_fn": small.model_fn, "make_network": small.make_network}
    names |= {"make_optimizer": lambda: keras.optimizers.SGD(0.1)}
    return {**names, "estimator": small.make("runs/1")}


def arguments(text):
    """Returns the words of a command, up to the next operator of the shell."""
    words = shlex.shlex(text, posix=True, punctuation_chars=";&|>")
    words.whitespace_split = True
    found = list(words)
    return found[: next((i for i, word in enumerate(found) if word[0] in ";&|>"), len(found))]


def check_main(argv):
    # Files of the reader: run.gin, and what a run has written.
    argv = [re.sub(r"^--gin_file=run.*", "--gin_file=gin/digits.gin", each) for each in argv]
    flags.parse(["main", *argv])
    argv = [each for each in argv if not each.startswith(("--execution", "--fast_dev_run"))]
    assert main.main(["main", *argv, "--dry_run"]) == 0, argv


def check_command(program, argv):
    if not program:
        return check_main(argv)
    if program == "report":
        return report._parser().parse_args(argv)
    split = argv.index("--") if "--" in argv else len(argv)
    options = {"launch": launch, "sweep": sweep}[program]._parser().parse_args(argv[:split])
    rest = argv[split + 1 :]
    if not rest or not rest[0].startswith("-") or getattr(options, "module", None):
        return None  # A program of the reader.
    if getattr(options, "tpu", None):
        return check_main(rest)
    if program == "launch":
        checked(launch._parser(), options, rest)
        return check_main(rest)
    sweep._record(options, rest)
    searched = search.read(options.search)
    return check_main(
        [*rest, *(f"--gin.{name}={search.ends(each)[0]}" for name, each in searched.items())]
    )


def check_shell(text):
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        found = COMMAND.search(line)
        if found:
            check_command(found[1], arguments(found[2]))


def check_inline(code, known):
    """Checks a flag, a binding, or public names between backticks."""
    if flag := re.match(r"--([\w-]+)(=|$)", code):
        assert flag[1] in known, code
    if binding := re.fullmatch(r"([A-Z]\w+)\.(\w+) *= *[^=].*", code):
        (full,) = registry.matches(binding[1])
        assert binding[2] in registry.parameters(full), code
    for package, path in re.findall(
        r"(?<![\w.])(ge|models|inputs|keras)((?:\.[A-Za-z_]\w*)+)", code
    ):
        functools.reduce(
            getattr, path[1:].split(".")[: 1 if package == "ge" else 9], PACKAGES[package]
        )


@pytest.mark.parametrize(
    "page",
    [
        p if p.name == "README.md" and p.parent == ROOT else pytest.param(p, marks=pytest.mark.slow)
        for p in PAGES
    ],
    ids=lambda page: page.stem,
)
def test_a_page(page, gin_folder, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [page.name])
    text = page.read_text(encoding="utf-8")
    outside, names = FENCE.sub("", text), namespace()
    registry.register()
    known = {*flags.define(), *FOREIGN} | {
        option[2:]
        for each in (launch, sweep, report)
        for option in each._parser()._option_string_actions
    }
    for target in re.findall(r"\]\(([^)#:]+)[#)]", outside.replace(f"({REPOSITORY}/", f"({ROOT}/")):
        assert (page.parent / target).exists(), target
    for code in re.findall(r"`([^`\n]+)`", outside):
        check_inline(code, known)
    check_shell("\n".join(line[4:] for line in outside.splitlines() if line.startswith("    ")))
    for _, language, code in FENCE.findall(text):
        code = textwrap.dedent(code)
        if language == "python":
            exec(compile(code, page.name, "exec"), names)
        elif language == "gin":
            params = [line.partition("#")[0].strip() for line in code.splitlines()]
            check_main(["--gin_file=gin/digits.gin", *(f"--gin_param={p}" for p in params if p)])
        elif language == "json":
            parse_tf_config(json.dumps(json.loads(code)))
        elif language in ("bash", "yaml"):
            check_shell(code)
        else:
            assert language == "text", language


def test_a_block_under_a_tab_is_a_block():
    page = '=== "One"\n\n    ```python title="a"\n    x = 1\n    ```\n\n```text\ny\n```\n'
    assert FENCE.findall(page) == [("    ", "python", "    x = 1\n"), ("", "text", "y\n")]
