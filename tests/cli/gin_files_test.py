"""The files of gin/: complete, commented, and repeatable."""

import json
import re

import pytest
from conftest import ROOT
from gin_estimator.inputs.criteo import write_criteo_like

from gin_estimator import main

FILES = sorted(path.name for path in (ROOT / "gin").glob("*.gin"))


@pytest.mark.parametrize(
    "name",
    [n if n == "digits.gin" else pytest.param(n, marks=pytest.mark.slow) for n in FILES],
)
def test_a_file_opens_with_its_purpose_and_overrides(name, gin_folder, capsys):
    comment, _, _ = (ROOT / "gin" / name).read_text().partition("\n\n")
    assert all(line.startswith("#") for line in comment.splitlines())
    assert f"gin-estimator --gin_file=gin/{name} --model_dir=" in comment
    assert re.search("Nothing must be set|Must be set", comment)
    overrides = re.findall(r"""(--gin[._](?:"[^"]*"|param="[^"]*"|\S)+)""", comment)
    overrides = [each for each in overrides if not each.startswith("--gin_file")]
    assert len(overrides) >= 3
    flags = [flag.replace('"', "") for flag in overrides]
    assert main.main(["main", f"--gin_file={name}", "--dry_run", *flags]) == 0
    printed = capsys.readouterr()
    assert "error" not in printed.err
    assert "\nmodel_dir (a temporary one)\n" in printed.out


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_what_is_written_reads_as_the_same(name, gin_folder, capsys):
    def dry_run(file):
        assert main.main(["main", f"--gin_file={file}", "--model_dir=x", "--dry_run"]) == 0
        return capsys.readouterr().out

    text = dry_run(name)
    (gin_folder / "again.gin").write_text(text.partition("\njob ")[0])
    assert dry_run("again.gin") == text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("criteo", "auc"),
        ("flights", "auc"),
        ("flights_dcn_v2", "auc"),
        ("flights_deep_fm", "auc"),
        ("stdlib_lm", "bits_per_token"),
    ],
)
def test_a_file_trains(name, metric, tmp_path, command):
    """A few steps, an evaluation, and an export."""
    flags = ["--gin.TRAIN_STEPS=30", "--gin.EvalSpec.steps=2", "--gin.BATCH_SIZE=64"]
    if name == "criteo":
        for macro, seed in (("TRAIN_FILES", 0), ("EVAL_FILES", 1)):
            write_criteo_like(tmp_path / macro, 200, seed=seed)
            flags.append(f"--gin_param={macro}='{tmp_path / macro}'")
        flags.append("--gin.HASH_BUCKETS=1000")
    if name == "stdlib_lm":
        flags.append("--gin.warmup_cosine.warmup_steps=5")
    model_dir = tmp_path / "run"
    result = command(f"--gin_file=gin/{name}.gin", f"--model_dir={model_dir}", *flags)
    assert result.returncode == 0, result.stderr
    lines = (model_dir / "eval" / "evaluations.jsonl").read_text().splitlines()
    assert 0 < json.loads(lines[-1])["metrics"][metric] < 8.1
    assert list(model_dir.glob("export/*/*/saved_model.pb"))


def test_the_folder_has_no_python_file():
    """It would hide gin-config."""
    assert not list((ROOT / "gin").rglob("*.py"))
