"""What was measured on the flights, as it is kept beside its script."""

import json
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECORD = json.loads((ROOT / "benchmarks" / "flights.json").read_text())


def december(name):
    return sum(run["december"] for run in RECORD[name]) / len(RECORD[name])


@pytest.mark.parametrize("name", ["wide & deep", "DCN v2", "DeepFM"])
def test_networks_reach_what_others_do_on_the_same_columns(name):
    assert december(name) >= december("logistic regression")
    assert december(name) >= december("tf.estimator 2.15.1, wide & deep") - 0.005


@pytest.mark.parametrize("name", RECORD)
def test_the_page_quotes_it(name):
    page = (ROOT / "docs" / "flights.md").read_text(encoding="utf-8")
    runs = ", ".join(f"{run['december']:.4f}" for run in RECORD[name])
    assert f"| {name} |" in page and f"| {runs} |" in page
