"""What the examples reach, beside what their originals did on TensorFlow 2.15.1."""

import contextlib
import io
import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from examples import data
from examples.bert_tuning import moved as bert_tuning
from examples.census_wide_deep import moved as census_wide_deep
from examples.gan import moved as gan
from examples.mnist_mirrored import moved as mnist_mirrored
from examples.tpu_mnist import moved as tpu_mnist
from pipeline import ModeKeys
from pipeline.moving import __main__ as moving
from pipeline.strategy import modules
from pipeline.warm_start import warm_start

EXAMPLES = pathlib.Path(data.__file__).parent
FOLDERS = sorted(path.parent.name for path in EXAMPLES.glob("*/moved.py"))


def check(folder, metrics):
    """Compares metrics with those of the original's seeds.

    They may be as far from the mean as two of the seeds lie apart: of six normal values
    2.5 standard deviations on average, in which 94 of 100 others would lie, and of
    twelve 3.3 and 99.
    """
    record = json.loads((EXAMPLES / folder / "golden.json").read_text("utf-8"))
    assert record["versions"]["tensorflow"] == "2.15.1"
    seeds = list(record["seeds"].values())
    assert set(seeds[0]) <= set(metrics)
    for name in seeds[0]:
        golden = [seed[name] for seed in seeds]
        apart = abs(metrics[name] - np.mean(golden))
        assert apart <= max(golden) - min(golden), (name, metrics[name], golden)


@pytest.fixture
def digits(tmp_path):
    data.write_digits(tmp_path / "digits.npz")
    return dict(np.load(tmp_path / "digits.npz"))


def test_mnist_mirrored(tmp_path, digits):
    metrics = mnist_mirrored.train(digits, tmp_path / "model_dir")
    check("mnist_mirrored", metrics)


def test_tpu_mnist(tmp_path, digits):
    check("tpu_mnist", tpu_mnist.train(digits, tmp_path / "model_dir"))


def test_census_wide_deep(tmp_path):
    data.write_census(tmp_path / "census")
    metrics = census_wide_deep.train(tmp_path / "census", tmp_path / "model_dir")
    check("census_wide_deep", metrics)


def test_bert_tuning(tmp_path):
    """The pretrained BERT's output before tuning is the original's, too."""
    data.write_topics(tmp_path / "topics.npz")
    topics = dict(np.load(tmp_path / "topics.npz"))
    record = json.loads((EXAMPLES / "bert_tuning/golden.json").read_text("utf-8"))
    golden = np.array(record["pretrained"]["pooled"])
    ids = {"input_ids": tf.constant(topics["test_ids"][: len(golden)])}
    strategy = tf.distribute.get_strategy()
    made = modules.Modules({"network": bert_tuning.Classifier}, strategy)
    batch = ids, None, ModeKeys.PREDICT, made.by_name["network"], None
    bert_tuning.model_fn(*batch)  # Builds the layers.
    warm_start.WarmStart(made)(bert_tuning.WARM_START)
    pooled = bert_tuning.model_fn(*batch).predictions["pooled"]
    np.testing.assert_allclose(pooled, golden, atol=1e-5)
    check("bert_tuning", bert_tuning.train(topics, tmp_path / "model_dir"))


def test_gan(tmp_path):
    data.write_ring(tmp_path / "ring.npz")
    metrics = gan.train(dict(np.load(tmp_path / "ring.npz")), tmp_path / "model_dir")
    check("gan", metrics)


@pytest.mark.parametrize("folder", FOLDERS)
def test_readme_quotes_what_the_command_says_of_the_original(folder):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        moving.main(["moving", str(EXAMPLES / folder / "original.py")])
    counts = [
        line.split(":")[0].strip()
        for line in said.getvalue().splitlines()
        if ": lines " in line or ": line " in line
    ]
    readme = (EXAMPLES / folder / "README.md").read_text(encoding="utf-8")
    assert counts and all(count in readme for count in counts)
    assert f"[{folder}]" in (EXAMPLES / "README.md").read_text(encoding="utf-8")
