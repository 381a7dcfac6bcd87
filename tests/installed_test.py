"""What pip installs: one package with everything in it, next to a user's `models` and `inputs`."""

import configparser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

import pytest
from conftest import ROOT

import gin_estimator as ge

FOLDERS = {
    "pipeline": "gin_estimator",
    "models": "gin_estimator.models",
    "inputs": "gin_estimator.inputs",
}
USER_MODELS = """
import gin
from gin_estimator.models import mlp

@gin.configurable
def my_net():
    return mlp(num_outputs=10)
"""
USER_INPUTS = """
import gin
from gin_estimator.inputs import digits_input_fn

@gin.configurable
def my_input_fn(mode, input_context):
    return digits_input_fn(mode, input_context)
"""


def test_one_version_and_all_packages():
    changes, citation = ((ROOT / n).read_text() for n in ("CHANGELOG.md", "CITATION.cff"))
    version, date = re.findall(r"^## (\d\S+) - (\S+)$", changes, re.M)[0]
    released = date != "unreleased"
    assert ge.__version__ == (version if released else f"{version}.dev0")
    assert f"\nversion: {ge.__version__}\n" in citation
    assert (f"\ndate-released: {date}\n" in citation) == released
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    packages = {
        ".".join([name, *path.parent.relative_to(ROOT / folder).parts])
        for folder, name in FOLDERS.items()
        for path in (ROOT / folder).rglob("*.py")
    }
    assert packages | {"gin_estimator.gin"} == set(setup["options"]["packages"].split())


def build(tmp_path):
    """Builds a source distribution of the files of git, and a wheel from it."""
    listed = ["git", "ls-files"]
    files = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = [each for each in files.splitlines() if (ROOT / each).is_file()]
    for each in files:
        os.makedirs((tmp_path / "source" / each).parent, exist_ok=True)
        shutil.copy(ROOT / each, tmp_path / "source" / each)
    command = [sys.executable, "-m", "build", "--no-isolation", f"--outdir={tmp_path / 'dist'}"]
    subprocess.run([*command, tmp_path / "source"], check=True, timeout=300)
    sdist, wheel = sorted((tmp_path / "dist").iterdir(), key=lambda path: path.suffix)
    return files, sdist, wheel


@pytest.mark.slow
def test_an_installation_runs_from_any_folder(tmp_path):
    for name in ("build", "pip", "twine"):
        pytest.importorskip(name)
    target, user = tmp_path / "target", tmp_path / "user"
    files, sdist, wheel = build(tmp_path)
    with tarfile.open(sdist) as archive:
        packed = {str(pathlib.PurePath(*pathlib.PurePath(n).parts[1:])) for n in archive.getnames()}
    assert {each for each in files if not each.startswith(".")} <= packed
    twine = [sys.executable, "-m", "twine", "check", "--strict", sdist, wheel]
    subprocess.run(twine, check=True, timeout=300)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps"]
    subprocess.run([*pip, f"--target={target}", wheel], check=True, timeout=300)
    assert sorted(os.listdir(target / "gin_estimator/gin")) == sorted(os.listdir(ROOT / "gin"))

    user.mkdir()
    for name, text in (("models", USER_MODELS), ("inputs", USER_INPUTS)):
        (user / name).mkdir()
        (user / name / "__init__.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(target)}

    def run(*command):
        return subprocess.run(
            [sys.executable, *command],
            cwd=user,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    imported = run("-c", "import gin_estimator as ge; print(ge.Estimator, ge.__file__)")
    assert str(target) in imported.stdout, imported.stderr
    bare = run("-m", "gin_estimator.main")
    assert bare.returncode == 2
    assert "gin-estimator --gin_file=digits.gin --model_dir=" in bare.stderr
    result = run(
        target / "bin/gin-estimator",
        "--gin_file=digits.gin",
        "--gin_param=import models",
        "--gin_param=import inputs",
        "--gin_param=Estimator.modules={'network': @my_net, 'optimizer': @Adam}",
        "--gin_param=TrainSpec.input_fn=@my_input_fn",
        "--gin.TRAIN_STEPS=2",
        "--model_dir=run",
    )
    assert result.returncode == 0, result.stderr
    assert "global_step 2" in result.stdout
    assert str(ROOT) not in result.stderr
    for name in ("launch", "sweep", "report"):
        shown = run(target / "bin/gin-estimator", name, "--help")
        assert shown.stdout.startswith(f"usage: gin-estimator {name}"), shown.stderr
