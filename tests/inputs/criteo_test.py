"""Files in Criteo's format, and the run on them that gin/criteo.gin describes."""

import pytest

from inputs import criteo
from pipeline import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("criteo")
    for seed, name in enumerate(("train.txt", "test.txt")):
        criteo.write_criteo_like(folder / name, 2000, seed=seed)
    return folder


def test_a_line_is_an_impression(folder):
    rows = [
        line.rstrip("\n").split("\t")
        for line in (folder / "train.txt").read_text().splitlines(keepends=True)
    ]
    assert len(rows) == 2000 and {len(row) for row in rows} == {1 + 13 + 26}
    columns = dict(zip(criteo.NAMES, zip(*rows, strict=True), strict=True))
    clicks = columns["click"]
    assert set(clicks) == {"0", "1"} and 0.15 < clicks.count("1") / 2000 < 0.35
    numbers = [int(value) for value in columns["number_2"] if value]
    assert min(numbers) < 0 < max(numbers) and len(numbers) < 2000
    words = [word for word in columns["word_3"] if word]
    assert {len(word) for word in words} == {8} and len(words) < 2000
    assert 100 < len(set(words)) < 2000


def test_the_same_seed_writes_the_same(folder, tmp_path):
    criteo.write_criteo_like(tmp_path / "new" / "again.txt", 2000)
    again = (tmp_path / "new" / "again.txt").read_bytes()
    assert again == (folder / "train.txt").read_bytes()
    assert again != (folder / "test.txt").read_bytes()


def test_a_model_learns_it(folder, tmp_path, capsys, fresh_gin):
    """On 2,000 lines, which are few: half of them of another seed measure it."""
    arguments = [
        *("main", "--gin_file=criteo.gin", f"--model_dir={tmp_path}"),
        f"--gin.TRAIN_FILES='{folder}/train.txt'",
        f"--gin.EVAL_FILES='{folder}/test.txt'",
        *("--gin.HASH_BUCKETS=500", "--gin.TRAIN_STEPS=100", "--gin.BATCH_SIZE=200"),
        "--gin.EvalSpec.exporters=()",
    ]
    assert main.main(arguments) == 0
    said = dict(
        line.split(" ", 1) for line in capsys.readouterr().out.splitlines() if line
    )
    assert float(said["auc"]) > 0.6
