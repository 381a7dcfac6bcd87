"""What a sweep answers to a command that is wrong, before anything begins."""

import os
import subprocess
import sys

import pytest

from pipeline import sweep
from tests.clusters import ROOT
from tests.sweeps import SEARCH

MISTAKES = [
    ((), "no --search says what to try: add --search="),
    ((SEARCH,), "no --metric says which trial is best"),
    ((SEARCH, "--metric=value"), "--metric=value: whether higher is better cannot"),
    ((SEARCH, "--metric=loss", "--maximize", "--minimize"), "write one of them"),
    ((SEARCH, "--metric=loss"), "nothing stands after --"),
    ((SEARCH, "--metric=loss", "x"), "unexpected argument 'x' before --"),
    ((SEARCH, "--metric=loss", "--", "--gin_fil=a"), "'gin_fil'. Did you mean:"),
    (("--gin_file=a",), "Unknown command line flag 'gin_file'. Flags of pipeline.main"),
    (
        (SEARCH, "--metric=loss", "--", "--gin_file=a", "--model_dir=b"),
        "--model_dir stands after --: leave it out; each trial has its own",
    ),
    (
        (SEARCH, "--metric=loss", "--", "--gin_file=a", "--job=train"),
        "--job=train stands after --: leave it out",
    ),
    (
        (SEARCH, "--metric=loss", "--", "--gin_file=a", "--gin.X=1"),
        "X is searched, and bound after -- as well",
    ),
    (
        (SEARCH, "--metric=loss", "--timeout=1x", "--", "--gin_file=a"),
        "--timeout=1x: write --timeout=8h, 45m",
    ),
    (
        (SEARCH, "--metric=loss", "--trial_timeout=0s", "--", "--gin_file=a"),
        "--trial_timeout=0s: write --trial_timeout=8h, 45m",
    ),
    (
        (SEARCH, "--metric=loss", "--launch='a", "--", "--gin_file=a"),
        "--launch='a: No closing quotation: close each quote",
    ),
    (
        (SEARCH, "--metric=loss", '--slot=A="b', "--", "--gin_file=a"),
        '--slot=A="b: No closing quotation: close each quote',
    ),
    (
        (SEARCH, "--metric=loss", "--slot=a", "--", "--gin_file=a"),
        "--slot=a: write NAME=VALUE",
    ),
    (
        (SEARCH, "--metric=loss", "--parallel=3", "--slot=A=1", "--", "--gin_file=a"),
        "--parallel=3 with 1 --slot",
    ),
    (
        (SEARCH, "--metric=loss", "--sweep_dir=gs://a/b", "--", "--gin_file=a"),
        "--sweep_dir=gs://a/b is no local folder",
    ),
    (("--collect",), "--collect needs --sweep_dir"),
    (("--collect", "--sweep_dir=/not/there"), "/not/there holds no sweep: write"),
    ((f"{SEARCH}\udcff",), "is no UTF-8"),
]


@pytest.mark.parametrize(("arguments", "says"), MISTAKES)
def test_a_mistake_has_an_answer(arguments, says, capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert sweep.main(["sweep", *arguments]) == 2
    assert says in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_cluster_is_no_place_for_a_sweep(capfd, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {}}')
    assert sweep.main(["sweep", SEARCH, "--metric=loss", "--", "--gin_file=a"]) == 2
    assert "TF_CONFIG is set, and would make each trial" in capfd.readouterr().err


def test_a_mistake_is_answered_without_tensorflow_and_optuna():
    program = """
import sys
from pipeline import sweep
print(sweep.main(["sweep", *sys.argv[1:]]))
print({"tensorflow", "keras", "optuna"} & set(sys.modules))
"""
    for arguments, says in (
        (["--help"], "0\nset()"),
        (["--trails=3"], "2\nset()"),
        (["--search=X=log(0, 1)"], "2\nset()"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=os.environ,
        )
        assert done.stdout.endswith(f"{says}\n"), done.stderr
