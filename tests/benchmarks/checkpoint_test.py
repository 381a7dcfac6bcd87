"""The benchmark of saving and resuming, on what takes a moment."""

import json
import sys

import pytest

from benchmarks import checkpoint, pairs

SMALL = checkpoint.Size(
    units=8,
    steps_between=2,
    save_secs=0,
    step=20,
    examples=300,
    slice_steps=2,
    resume_secs=0,
)


def test_its_last_line_has_both_ratios(tmp_path, capsys):
    pairs.say([], checkpoint.measure(SMALL, str(tmp_path)))
    *_, last = capsys.readouterr().out.splitlines()
    results = json.loads(last)
    assert {key: list(value) for key, value in results.items()} == {
        "stall": ["async_over_sync"],
        "resume": ["over_step"],
    }
    assert results["stall"]["async_over_sync"] > 0
    assert results["resume"]["over_step"] > 0


def test_a_data_dir_without_the_data_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["checkpoint", f"--data_dir={tmp_path}"])
    with pytest.raises(SystemExit) as ended:
        checkpoint.main()
    assert ended.value.code == 2
    assert f"--data_dir={tmp_path} has no folder mnist" in capsys.readouterr().err
