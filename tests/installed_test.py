"""What pip installs: one package with everything in it, next to a user's `models` and `inputs`."""

import os
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

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


@pytest.mark.slow
def test_an_installation_runs_from_any_folder(tmp_path):
    pytest.importorskip("setuptools")
    pytest.importorskip("pip")
    source, target, user = (tmp_path / name for name in ("source", "target", "user"))
    for name in ("pipeline", "models", "inputs", "gin"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("setup.cfg", "pyproject.toml"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, f"--target={target}", source], check=True, timeout=300)
    assert os.listdir(target / "gin_estimator/gin") == os.listdir(ROOT / "gin")

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
