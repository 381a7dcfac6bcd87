"""`--list`: all that gin can configure."""

import pathlib

import pytest

from pipeline import main

pytestmark = pytest.mark.usefixtures("fresh_gin", "own_folder")


def test_list_shows_each_with_its_arguments(capsys):
    assert main.main(["main", "--list"]) == 0
    said = capsys.readouterr().out
    groups = [line for line in said.splitlines() if line and line[0] != " "]
    assert {"inputs", "keras.optimizers", "models", "pipeline"} <= set(groups)
    models = said[said.index("\nmodels\n") : said.index("\npipeline\n")]
    assert "  classifier\n    features  (required)\n" in models
    assert "    label_smoothing = 0.0\n" in models
    assert "    num_classes  (required)" in said
    train_spec = said[said.index("  TrainSpec\n") :]
    assert "    input_fn  (required)\n    max_steps = None" in train_spec


def test_list_knows_what_is_imported(capsys):
    pathlib.Path("listed_module.py").write_text(
        "import gin\n\n\n@gin.configurable\ndef mine(width=3): pass\n"
    )
    assert main.main(["main", "--list", "--gin_param=import listed_module"]) == 0
    assert "listed_module\n  mine\n    width = 3" in capsys.readouterr().out
