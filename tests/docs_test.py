"""What README and docs/ say to type is accepted: commands, gin, TF_CONFIG, links."""

import ast
import contextlib
import functools
import importlib.util
import json
import os
import pathlib
import re
import shlex
import subprocess

import keras
import pytest
import tensorflow as tf
from absl import flags

import inputs
import models
import pipeline
from pipeline import launch, main, sweep
from pipeline.cluster import tf_config
from pipeline.command import flags as flags_lib
from pipeline.command import gin_registry
from pipeline.moving import __main__ as moving
from pipeline.trials import sweep_flags
from tests import fakes, sources

ROOT = pathlib.Path(main.__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MOST_LINES = 100
PACKAGES = (inputs, models)  # Imported, they are registered with gin.
SRUN = ("distribution", "nodes")

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PROGRAM = re.compile(r"python -m pipeline\.(main|launch|sweep|moving)\b(.*)")
_BINDING = re.compile(r"([A-Za-z_][\w./]*)\.(\w+) *= *([^=].*)")
_KUBERNETES = {"JOB_COMPLETION_INDEX": "1", "WORKERS": "3"}


def blocks(page, *languages):
    """Code of a page: fenced in one of `languages`, or '' for indented commands."""
    text = page.read_text(encoding="utf-8")
    if "" in languages:
        outside = _FENCE.sub("", text)
        lines = [line[4:] for line in outside.splitlines() if line.startswith("    ")]
        yield "\n".join(lines)
    yield from (code for name, code in _FENCE.findall(text) if name in languages)


def inline(page):
    return re.findall(r"`([^`\n]+)`", _FENCE.sub("", page.read_text(encoding="utf-8")))


def commands(page):
    """(program, arguments) of each command that runs this project."""
    for code in blocks(page, "", "bash", "yaml"):
        for line in re.sub(r"\\\n *", "", code).splitlines():
            if found := _PROGRAM.search(line):
                yield found[1], _arguments(found[2])


def _arguments(text):
    """Words up to the shell's next operator."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|>")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # The end of ssh's --command='...', in which it stands.
        return _arguments(text.rstrip()[:-1])
    ends = [i for i, word in enumerate(words) if word[0] in ";&|>"]
    return words[: ends[0]] if ends else words


def cases(find):
    """Test cases, one for each thing that `find` finds on a page."""
    found = [(page, item) for page in PAGES for item in find(page)]
    return [
        pytest.param(item, id=f"{page.stem}-{n}")
        for n, (page, item) in enumerate(found)
    ]


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch, fresh_gin):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.chdir(ROOT)


def check(program, arguments):
    """Parses the flags, and the gin file with its bindings."""
    if program == "moving":
        assert moving.define()(["moving", *arguments])
        return
    if program == "launch":
        arguments = launched(arguments)
        if arguments is None:
            return
    if program == "sweep":
        arguments = swept(arguments)
        if arguments is None:
            return
    flags_lib.define()(["main", *flags_lib.without_sugar(arguments)])
    # runs/ is what a reader has trained; a TPU's dry run compiles for a while.
    trained = any(a.startswith("--gin_file=runs/") for a in arguments)
    if not trained and "--execution=tpu" not in arguments:
        assert main.main(["main", *arguments, "--dry_run"]) == 0


def launched(arguments):
    """What `main` is given in a task of `pipeline.launch`, whose own flags are checked.

    None for a program of a user's.
    """
    end = arguments.index("--")
    options = launch._define_flags()
    options(["launch", *arguments[:end]])
    if options.module or not arguments[end + 1].startswith("-"):
        return None
    execution = "parameter_server" if options.ps else "multi_worker"
    return [*arguments[end + 1 :], f"--execution={execution}"]


def swept(arguments):
    """What `main` is given to check all trials of `pipeline.sweep`.

    None where the sweep reads its trials from its folder.
    """
    if "--" not in arguments:
        assert sweep_flags.define()(["sweep", *arguments])
        return None
    end = arguments.index("--")
    options = sweep_flags.define()
    options(["sweep", *arguments[:end]])
    definition = sweep._definition(options, arguments[end + 1 :], "pipeline.main")
    command = definition.check_command(python="python")
    return command and command[3:-1]


@pytest.mark.parametrize("command", cases(commands))
def test_a_command_is_accepted(command):
    program, arguments = command
    check(program, arguments)


def test_there_are_commands_of_both_programs():
    found = [program for page in PAGES for program, _ in commands(page)]
    assert found.count("main") > 15
    assert found.count("launch") > 3


@pytest.mark.parametrize(
    "typo",
    ["--exection=multi_worker", "--job=trian", "--gin.TRAIN_STEP=1", "typo"],
)
def test_a_mistyped_command_is_noticed(typo, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        f"Text.\n\n    python -m pipeline.main --gin_file=gin/digits.gin \\\n"
        f"        {typo} && echo done\n"
    )
    (command,) = commands(page)
    assert command == ("main", ["--gin_file=gin/digits.gin", typo])
    with pytest.raises((flags.Error, AssertionError)):
        check(*command)


def test_a_command_within_quotes_is_read(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "    gcloud ssh vm --command='cd x && python -m pipeline.main \\\n"
        "        --gin_file=gin/digits.gin --dry_run'\n"
    )
    assert list(commands(page)) == [
        ("main", ["--gin_file=gin/digits.gin", "--dry_run"])
    ]


def gin_blocks(page):
    """Those of a whole project of its own are run by installed_test.py."""
    return blocks(page, "gin") if page.stem != "your_project" else ()


@pytest.mark.parametrize("code", cases(gin_blocks))
def test_a_gin_block_is_accepted(code, capsys):
    bindings = [line.partition("#")[0].strip() for line in code.splitlines()]
    params = [f"--gin_param={binding}" for binding in bindings if binding]
    arguments = ["main", "--gin_file=gin/digits.gin", "--dry_run", *params]
    assert main.main(arguments) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    "code", cases(lambda page: [c for c in inline(page) if _BINDING.fullmatch(c)])
)
def test_an_inline_binding_names_what_gin_knows(code):
    name, parameter, value = _BINDING.fullmatch(code).groups()
    gin_registry.register()
    (entry,) = gin_registry.matches(name)
    assert parameter in entry.parameters()
    if value[0] == "@":
        assert gin_registry.matches(value[1:])
    else:
        ast.literal_eval(value)


@pytest.mark.parametrize(
    "code",
    cases(lambda page: [c for c in inline(page) if re.fullmatch(r"--\w+(=.*)?", c)]),
)
def test_an_inline_flag_is_one(code):
    name = re.match(r"--(\w+)", code)[1]
    ours = (
        flags_lib.define(),
        launch._define_flags(),
        sweep_flags.define(),
        moving.define(),
    )
    known = [*(flag for flags in ours for flag in flags), *SRUN]
    assert name in known


def tf_configs(page):
    text = page.read_text(encoding="utf-8")
    # One that the shell puts together from parts is run below.
    yield from re.findall(r"TF_CONFIG='([^']*)'(?!\$)", text)
    yield from blocks(page, "json")


@pytest.mark.parametrize("text", cases(tf_configs))
def test_a_tf_config_is_accepted(text):
    found = tf_config.parse_tf_config(text)
    assert found.task_type == json.loads(text)["task"]["type"]


@pytest.mark.parametrize("code", cases(lambda page: blocks(page, "yaml")))
def test_yaml_is_well_formed(code):
    assert "\t" not in code
    for document in code.split("\n---\n"):
        keys = re.findall(r"^(\w+):", document, re.MULTILINE)
        assert keys == ["apiVersion", "kind", "metadata", "spec"]
        for opening, closing in ("[]", "{}"):
            assert document.count(opening) == document.count(closing)
    with contextlib.suppress(ImportError):
        yaml = importlib.import_module("yaml")
        assert all(each["spec"] for each in yaml.safe_load_all(code))


def scripts(page):
    """Of containers: block scalars of YAML."""
    for code in blocks(page, "yaml"):
        yield from re.findall(r"- \|\n(.*?)\n *\w+:", code, re.DOTALL)


@pytest.mark.parametrize("code", cases(scripts))
def test_a_container_s_script_makes_a_tf_config(code, tmp_path):
    (tmp_path / "python").write_text('#!/bin/sh\necho "$TF_CONFIG"\n')
    (tmp_path / "python").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", code],
        env={**_KUBERNETES, "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    if "TF_CONFIG" in code:
        found = tf_config.parse_tf_config(done.stdout)
        assert (found.task_type, found.task_id) == ("worker", 1)
        assert len(found.jobs["worker"]) == 3


@pytest.mark.parametrize("code", cases(lambda page: blocks(page, "", "bash")))
def test_the_shell_can_read_it(code):
    done = subprocess.run(["bash", "-nc", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def whole_python(page):
    """Code of a page that leaves nothing out."""
    return [code for code in blocks(page, "python") if ", ...}" not in code]


@pytest.mark.parametrize("code", cases(whole_python))
def test_python_can_read_it(code):
    ast.parse(code)


def test_the_hooks_of_the_pages_work(tmp_path):
    """They stop a training, and hear of checkpoints."""
    names = {"ge": pipeline, "tf": tf}
    for code in blocks(ROOT / "docs" / "hooks.md", "python"):
        if "(ge." in code.partition("def ")[0]:
            exec(code, names)  # Only what defines a hook or a listener.
    # Nothing is learned at a rate of 0, so that the loss does not fall.
    estimator = fakes.make_estimator(
        tmp_path, optimizer=lambda: keras.optimizers.SGD(0.0)
    )
    x, y = fakes.classification_data(rows=32)
    estimator.train(
        fakes.make_input_fn(x, y, batch_size=32, change=lambda d: d.repeat()),
        steps=100,
        hooks=[names["StopWhenFlat"](every_steps=5, patience=2)],
        saving_listeners=[names["Copy"]()],
    )
    assert estimator.global_step < 100


def links(page):
    targets = re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))
    return [page.parent / target for target in targets if "://" not in target]


@pytest.mark.parametrize("path", cases(links))
def test_a_link_leads_somewhere(path):
    assert path.exists()


def messages(page):
    """What a table of messages quotes; `...` stands for what differs."""
    _, _, table = page.read_text(encoding="utf-8").partition("| it says | do |")
    rows = re.findall(r"^\| (.*?) \|", table.partition("\n\n")[0], re.MULTILINE)
    return [text for row in rows for text in re.findall(r"`([^`]+)`", row)]


@pytest.mark.parametrize("text", cases(messages))
def test_a_message_is_one_of_ours(text):
    pattern = ".*".join(map(re.escape, text.split("...")))
    assert any(re.search(pattern, message) for message in _raised())


@functools.cache
def _raised():
    """Texts in the source, with ~ for what is put in."""
    found = []
    for path in sources.PIPELINE:
        for node in ast.walk(sources.tree(path)):
            if isinstance(node, ast.JoinedStr):
                parts = [getattr(part, "value", "~") for part in node.values]
                texts = [part if isinstance(part, str) else "~" for part in parts]
                found.append("".join(texts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_pages_are_short_and_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        lines = page.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= MOST_LINES, page.name
        assert page.name == "README.md" or f"({page.name})" in index
