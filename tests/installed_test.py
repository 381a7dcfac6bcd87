"""What pip installs: one package of its own name, which runs a project from its folder.

docs/your_project.md is that project.
"""

import importlib
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import zipfile

import pytest

import gin_estimator
import models
import pipeline
from pipeline.contract import hooks

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "your_project.md"
SOURCES = ("pipeline", "models", "inputs", "gin", "gin_estimator")
FILES = ("setup.py", "setup.cfg", "pyproject.toml", "MANIFEST.in", "README.md")
SECONDS = 200


def page_files():
    """Code by file name: a paragraph that begins with a name, then a fence."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(
        r"^`([\w/]+\.\w+)`((?:(?!\n\n).)*)\n\n```\w+\n(.*?)^```$", text, re.M | re.S
    )
    return {name: code for name, _, code in found}


def commands():
    """The page's commands after the installation."""
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"(?:^    .*\n)+", text, re.M)
    return [line.strip() for line in blocks[-1].splitlines()]


def run(command, folder, **environ):
    """Runs a command in a folder; gives its two outputs as one text."""
    environ = {
        **{k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **environ,
    }
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    return done.returncode, done.stdout


def checked(command, folder, **environ):
    code, text = run(command, folder, **environ)
    assert code == 0, text
    return text


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from the source distribution, as whoever has only that would."""
    folder = tmp_path_factory.mktemp("build")
    sources = folder / "sources"
    sources.mkdir()
    with tarfile.open(folder / "copy.tar", "w") as copy:
        for name in (*SOURCES, *FILES, "LICENSE", "CHANGELOG.md"):
            copy.add(ROOT / name, name, filter=_no_caches)
    with tarfile.open(folder / "copy.tar") as copy:
        copy.extractall(sources)
    # Without isolation: it would download setuptools.
    build = "import sys; from setuptools import build_meta as b; "
    checked([sys.executable, "-c", f"{build} b.build_sdist('..')"], sources)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        packed.extractall(folder / "unpacked")
    (unpacked,) = (folder / "unpacked").iterdir()
    checked([sys.executable, "-c", f"{build} b.build_wheel({str(folder)!r})"], unpacked)
    (found,) = folder.glob("*.whl")
    return found


def _no_caches(entry):
    return None if "__pycache__" in entry.name else entry


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A virtual environment's python: the wheel, and what else this one has."""
    folder = tmp_path_factory.mktemp("installed")
    checked([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], folder)
    (site,) = (folder / "venv" / "lib").glob("python3*/site-packages")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    others = [p for p in sys.path if p.endswith("site-packages")]
    # Links to a checkout are in files of these folders, which are not read.
    (site / "others.pth").write_text("\n".join(others))
    return folder / "venv" / "bin" / "python"


@pytest.fixture
def project(tmp_path):
    for name, code in page_files().items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(code)
    return tmp_path


def test_the_wheel_has_one_package_and_all_of_it(wheel):
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        metadata = {
            name.rpartition("/")[2]: packed.read(name).decode()
            for name in names
            if ".dist-info/" in name
        }
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {
        "gin_estimator"
    }
    for folder, pattern, target in (
        ("pipeline", "*.py", ""),
        ("models", "*.py", "models/"),
        ("inputs", "*.py", "inputs/"),
        ("gin", "*.gin", "gin/"),
    ):
        for path in (ROOT / folder).rglob(pattern):
            inside = path.relative_to(ROOT / folder).as_posix()
            assert f"gin_estimator/{target}{inside}" in names
    assert "gin_estimator/py.typed" in names
    assert metadata["top_level.txt"].split() == ["gin_estimator"]
    assert "gin-estimator = gin_estimator.main:console" in metadata["entry_points.txt"]
    assert re.search(r"^License(-Expression)?: Apache-2.0$", metadata["METADATA"], re.M)
    assert "LICENSE" in metadata


def test_the_wheel_says_its_own_names(wheel):
    with zipfile.ZipFile(wheel) as packed:
        texts = {
            name: packed.read(name).decode()
            for name in packed.namelist()
            if name.endswith((".py", ".gin"))
        }
    wrong = re.compile(
        r"(-m|import) pipeline\b|\bpipeline\.(main|launch|[A-Z])|[\"']pipeline\."
    )
    assert not [name for name, text in texts.items() if wrong.search(text)]
    assert "\nimport gin_estimator.models\n" in texts["gin_estimator/gin/digits.gin"]


def test_a_project_of_one_s_own(installed, project):
    """The page's training, with its own `models` and `inputs` beside ours."""
    check, _, train, launch = commands()
    arguments = train.removeprefix("gin-estimator ").split()
    text = checked([installed, "-m", "gin_estimator.main", *arguments], project)
    assert float(re.search(r"^accuracy (\S+)$", text, re.M)[1]) > 0.95
    assert "python -m gin_estimator.main --gin_file=runs/1/config.gin" in text
    assert check == "gin-estimator --gin_file=run.gin --dry_run"
    assert launch.startswith("python -m gin_estimator.launch --workers=2 -- --gin_file")


def test_bare_it_names_what_is_there(installed, tmp_path):
    script = "from gin_estimator.main import console; console()"
    code, text = run([installed, "-c", script], tmp_path)
    assert code == 2
    assert "\n  digits.gin\n" in text
    assert re.search(r"--gin_file=(digits|linear).gin ", text)


def test_a_checkout_runs_the_same_project(project):
    """By the checkout's three packages, with the user's `models` before ours.

    In one process: first without the import of our models, then the page as it is.
    """
    text = (project / "run.gin").read_text()
    (project / "without.gin").write_text(
        text.replace("import gin_estimator.models", "")
    )
    script = """
import pytest
from gin_estimator import main
for name in ("without.gin", "run.gin"):
    print(name, main.main(["main", "--gin_file=" + name, "--dry_run"]), flush=True)
print("tests", int(pytest.main(["tests", "-q", "-p", "no:cacheprovider"])))
"""
    text = checked([sys.executable, "-c", script], project, PYTHONPATH=str(ROOT))
    assert "mlp is defined in gin_estimator.models, which no gin file imports" in text
    assert f"Here `import models` is {project / 'models'}, another package." in text
    assert re.findall(r"^(\S+) (\d)$", text, re.M) == [
        ("without.gin", "2"),
        ("run.gin", "0"),
        ("tests", "0"),
    ]


def test_in_a_checkout_both_names_are_the_same_modules():
    assert gin_estimator is pipeline
    assert importlib.import_module("gin_estimator.contract.hooks") is hooks
    assert hooks.__spec__.name == "pipeline.contract.hooks"
    assert importlib.import_module("gin_estimator.models") is models
    assert importlib.util.find_spec("gin_estimator.no_such_module") is None


@pytest.fixture(scope="module")
def setup():
    spec = importlib.util.spec_from_file_location("setup_of_tests", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "renamed"),
    [
        ("import pipeline as ge", "import gin_estimator as ge"),
        ("from pipeline import (\n    a,\n)", "from gin_estimator import (\n    a,\n)"),
        (
            "from pipeline.contract.hooks import Hook",
            "from gin_estimator.contract.hooks import Hook",
        ),
        ("    from models import mlp", "    from gin_estimator.models import mlp"),
        ("import inputs", "import gin_estimator.inputs"),
        ("`python -m pipeline.main`", "`python -m gin_estimator.main`"),
        ("python -m pipeline --list", "python -m gin_estimator --list"),
        ('f"pipeline.{name}"', 'f"gin_estimator.{name}"'),
        ('CORE = "pipeline"', 'CORE = "pipeline"'),
        ("pipeline.RunConfig", "gin_estimator.RunConfig"),
        ("the first pipeline. Models", "the first pipeline. Models"),
        ("all models import their inputs", "all models import their inputs"),
    ],
)
def test_renamed(setup, text, renamed):
    assert setup.renamed(text) == renamed
    assert setup.renamed(renamed) == renamed


def test_an_import_that_is_not_renamed_ends_the_build(setup):
    with pytest.raises(ValueError, match=r"x.py line 2 imports models, which is not"):
        setup.check_renamed("import os\nimport os, models\n", "x.py")
