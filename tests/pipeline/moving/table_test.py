"""The table of names: whole, true to the code, and the same on the pages."""

import ast
import inspect
import json
import math
import pathlib

import keras
import pytest
import tensorflow as tf

import inputs
import models
import pipeline as ge
from pipeline.moving import factories, job, table
from tests.sources import ROOT

ROWS = table.rows()
GOLDEN = pathlib.Path(__file__).with_name("tf_estimator.json")
# What the lines name of packages; all else is the reader's own.
ROOTS = {
    "ge": ge,
    "keras": keras,
    "tf": tf,
    "models": models,
    "inputs": inputs,
    "math": math,
}


def test_every_public_name_has_a_row():
    """The list was written by TensorFlow 2.15.1, see tests/scripts."""
    names = json.loads(GOLDEN.read_text(encoding="utf-8"))["names"]
    assert len(names) == 85
    rows = {n for n in ROWS if n.startswith("tf.estimator.")}
    # These are of earlier releases.
    assert {n for n in rows if ".BoostedTrees" not in n} == set(names)


def test_no_row_sends_elsewhere():
    texts = [text for row in ROWS.values() for text in (row.here, row.write)]
    assert not [t for t in texts if not t or "see " in t.lower() or "docs" in t.lower()]


@pytest.mark.parametrize("runs", sorted({row.runs for row in ROWS.values()}))
def test_what_runs_a_line_is_there(runs):
    path, _, name = runs.partition("::")
    assert (ROOT / path).is_file()
    assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8") or not name


def found(node):
    """The object of a dotted name; None for one of the reader's own."""
    if isinstance(node, ast.Name):
        return ROOTS.get(node.id)
    owner = found(node.value) if isinstance(node, ast.Attribute) else None
    return None if owner is None else getattr(owner, node.attr)


def test_the_lines_are_python_and_name_what_there_is():
    for row in ROWS.values():
        for node in ast.walk(ast.parse(row.write)):
            if isinstance(node, ast.Attribute):
                found(node)  # Raises AttributeError.
        if row.rename:
            assert found(ast.parse(row.rename, mode="eval").body) is not None


@pytest.mark.parametrize("name", [n for n, row in ROWS.items() if "(" in row.write])
def test_arguments_of_the_lines_are_taken(name):
    for node in ast.walk(ast.parse(ROWS[name].write)):
        called = found(node.func) if isinstance(node, ast.Call) else None
        if called is not None:
            named = {each.arg: each.value for each in node.keywords if each.arg}
            inspect.signature(called).bind(*node.args, **named)


@pytest.mark.parametrize("name", ["tf.contrib.lookup", "tf.tables_initializer"])
def test_the_line_of_a_vocabulary_reads_a_word_a_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text("a b\nc\n", encoding="utf-8")
    known = {"tf": tf}
    exec(ROWS[name].write, known)
    words = known["modules"]["words"]()
    assert words.lookup(tf.constant(["c", "a b", "d"])).numpy().tolist() == [1, 0, -1]


def test_no_layer_is_proposed_under_a_name_that_keras_has(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import tensorflow.compat.v1 as tf\n"
        "def model_fn(features, labels, mode):\n"
        "    w = tf.get_variable('weights', [4, 2])\n"
        "    x = tf.layers.dense(tf.matmul(features['x'], w), 3, name='output')\n"
        "    optimizer = tf.keras.optimizers.legacy.Adam(0.02)\n"
        "    return tf.estimator.EstimatorSpec(mode, x)\n",
        encoding="utf-8",
    )
    names = {"keras": keras}
    exec("\n".join(job.of_file(str(program)).move.proposals[0].lines), names)
    network = names["Network"]()
    assert isinstance(names["modules"]["optimizer"](), keras.optimizers.Adam)
    network.own_output.build([None, 2])
    assert [v.path for v in network.trainable_variables][-1] == "output/bias"
    here = {name for name in [*dir(keras.Model), *vars(network)] if name[0] != "_"}
    assert here - {"own_weights", "own_output"} <= {*factories._OF_KERAS.split()}


@pytest.mark.parametrize("page", table.PAGES.values())
def test_a_page_has_its_rows(page):
    """`python -m pipeline.moving --pages` writes them there."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert table.of_page(page) in text
