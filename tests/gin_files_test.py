"""Every file in gin/ is complete, checked, and says what it wants."""

import pathlib
import re
import shlex

import pytest

from pipeline import EvalSpec, TrainSpec, main
from pipeline.command import gin_config

ROOT = pathlib.Path(main.__file__).resolve().parent.parent
ALL = sorted((ROOT / "gin").glob("*.gin"))
INCLUDED = {
    name
    for path in ALL
    for name in re.findall(r"^include '(.*)'$", path.read_text("utf-8"), re.MULTILINE)
}
FILES = [path for path in ALL if path.name not in INCLUDED]
pytestmark = pytest.mark.usefixtures("fresh_gin")


def test_the_folder_is_no_package():
    """An __init__.py would replace gin-config for whoever runs from the root."""
    assert not list((ROOT / "gin").glob("*.py"))
    assert {"digits.gin", "mnist.gin", "fashion_mnist.gin"} <= {f.name for f in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
class TestGinFile:
    def test_dry_run(self, path, capsys):
        assert main.main(["main", f"--gin_file={path}", "--dry_run"]) == 0
        assert "Estimator.model_fn" in capsys.readouterr().out

    def test_opens_with_what_must_be_set_and_what_is_overridden(self, path):
        text = path.read_text(encoding="utf-8")
        comment = re.split(r"^(?:import|include) ", text, maxsplit=1, flags=re.M)[0]
        assert all(line.startswith("#") for line in comment.splitlines() if line)
        assert "must be set" in comment.lower()
        assert "Commonly overridden" in comment
        assert f"--gin_file=gin/{path.name} --model_dir=runs/" in comment

    def test_overrides_in_the_comment_are_accepted(self, path):
        flags = [
            word
            for line in path.read_text(encoding="utf-8").splitlines()
            if line.startswith("#     --gin")
            for word in _words(line)
        ]
        for flag in flags:
            code = main.main(["main", f"--gin_file={path}", flag, "--dry_run"])
            assert code == 0, flag

    def test_specs_are_built(self, path):
        gin_config.parse([str(path)])
        assert gin_config.build(TrainSpec).max_steps > 0
        assert callable(gin_config.build(EvalSpec).input_fn)

    def test_the_written_configuration_parses(self, path, tmp_path):
        gin_config.parse([str(path)])
        text = gin_config.config_text()
        (tmp_path / "config.gin").write_text(text, encoding="utf-8")
        gin_config.parse([str(tmp_path / "config.gin")])
        assert gin_config.config_text() == text


def _words(line):
    """The flags in a comment's line, without the words behind them."""
    return [word for word in shlex.split(line[1:]) if word.startswith("--gin")]


def test_digits_reach_what_their_comment_says(tmp_path, capsys):
    model_dir = f"--model_dir={tmp_path / 'run'}"
    assert main.main(["main", "--gin_file=digits.gin", model_dir]) == 0
    said = dict(
        line.split(" ", 1) for line in capsys.readouterr().out.splitlines() if line
    )
    assert float(said["accuracy"]) >= 0.97
    assert said["global_step"] == "1000"
    assert pathlib.Path(said["SavedModel"], "saved_model.pb").is_file()
