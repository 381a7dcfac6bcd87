"""A Mirrored run's checkpoint and SavedModels, read by others.

By scripts of plain TensorFlow, which import nothing of ours, and by an Estimator on
one replica. The network holds layers in a list and a dict, of which TensorFlow's own
checkpoint of a Keras model drops all that is in them.
"""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.checkpoints import checkpoint
from tests import fakes
from tests.scripts import read_checkpoint

SCRIPTS = pathlib.Path(read_checkpoint.__file__).parent
SPECS = {"left": tf.TensorSpec([None, 2]), "right": tf.TensorSpec([None, 4])}
PARSING = {
    "left": tf.io.FixedLenFeature([2], tf.float32),
    "right": tf.io.FixedLenFeature([4], tf.float32),
}


def model_fn(features, labels, mode, network, optimizer):
    """`fakes.classifier_fn` of a dict of features, with two signatures to export."""
    x = tf.concat([features["left"], features["right"]], 1)
    spec = fakes.classifier_fn(x, labels, mode, network, optimizer, {})
    if mode != ge.ModeKeys.PREDICT:
        return spec
    outputs = {
        "serving_default": spec.predictions,
        "probabilities": {"probabilities": tf.nn.softmax(spec.predictions["logits"])},
    }
    return ge.EstimatorSpec(mode, predictions=spec.predictions, export_outputs=outputs)


class Trained:
    """A run on two replicas, what it predicts, and what scripts make of its files."""

    def __init__(self, folder):
        x, self.labels = fakes.classification_data(200)
        self.features = {"left": x[:, :2], "right": x[:, 2:]}
        self.model_dir = str(folder / "run")
        self.networks = []
        self.estimator = self.make_estimator(devices=("CPU:0", "CPU:1"))
        self.estimator.train(self.input_fn(epochs=4))
        self.metrics = self.estimator.evaluate(self.input_fn())
        self.logits = self.predict(self.estimator)
        np.save(folder / "x.npy", x)
        export = self.estimator.export_saved_model
        raw = export(str(folder / "raw"), ge.build_raw_serving_input_receiver_fn(SPECS))
        parsing = export(
            str(folder / "parsing"), ge.build_parsing_serving_input_receiver_fn(PARSING)
        )
        run_scripts(
            folder,
            ["read_checkpoint.py", self.model_dir, "x.npy", "logits.npy"],
            ["serve.py", raw, parsing, "x.npy", "served.npz"],
        )
        self.read_logits = np.load(folder / "logits.npy")
        self.served = dict(np.load(folder / "served.npz"))

    def make_estimator(self, **config):
        """One of the same model_dir; its network is appended to `networks`."""

        def make_network():
            self.networks.append(read_checkpoint.Network())
            return self.networks[-1]

        return fakes.make_estimator(
            self.model_dir, model_fn=model_fn, network=make_network, **config
        )

    def input_fn(self, epochs=1):
        return fakes.make_input_fn(
            self.features,
            self.labels,
            batch_size=32,
            per_replica=True,
            change=lambda dataset: dataset.repeat(epochs),
        )

    def predict(self, estimator):
        predictions = estimator.predict(self.input_fn(), predict_keys="logits")
        return np.array([each["logits"] for each in predictions])


def run_scripts(folder, *commands):
    """Runs them side by side, isolated from this checkout."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    started = [
        subprocess.Popen(
            [sys.executable, "-I", str(SCRIPTS / script), *arguments],
            cwd=folder,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for script, *arguments in commands
    ]
    for process in started:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return Trained(tmp_path_factory.mktemp("serving"))


# The checkpoint.


def test_the_script_holds_the_documented_lines():
    documented = re.findall(r"^    (\S.*|    \S.*)$", checkpoint.__doc__, re.MULTILINE)
    script = (SCRIPTS / "read_checkpoint.py").read_text(encoding="utf-8")
    assert len(documented) == 5
    for line in documented:
        line = line.partition("  #")[0]
        line = line.replace('"model_dir"', "model_dir").replace("28, 28, 1", "6")
        assert f"    {line}\n" in script


def test_plain_tensorflow_predicts_the_same(trained):
    np.testing.assert_allclose(trained.read_logits, trained.logits, 1e-5, 1e-6)


def test_plain_tensorflow_has_the_same_accuracy(trained):
    accuracy = np.mean(trained.read_logits.argmax(1) == trained.labels)
    assert accuracy == pytest.approx(trained.metrics["accuracy"], abs=1e-6)


def test_an_estimator_without_strategy_predicts_the_same(trained):
    logits = trained.predict(trained.make_estimator())
    np.testing.assert_allclose(logits, trained.logits, 1e-5, 1e-6)


def test_an_estimator_without_strategy_evaluates_the_same(trained):
    metrics = trained.make_estimator().evaluate(trained.input_fn())
    assert metrics == pytest.approx(trained.metrics, rel=1e-5)


def test_the_checkpoint_holds_every_variable_of_the_network(trained):
    saved = fakes.weights(trained.model_dir)
    saved = [value for key, value in sorted(saved.items()) if key[:8] == "network/"]
    live = [np.array(v) for v in trained.networks[0].variables]
    assert len(live) == 12  # Three Dense, a BatchNormalization, two generators.
    for ours, theirs in zip(saved, live, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_restored_network_is_complete(trained):
    trained.predict(trained.make_estimator())
    restored, live = trained.networks[-1], trained.networks[0]
    for ours, theirs in zip(restored.variables, live.variables, strict=True):
        np.testing.assert_array_equal(np.array(ours), np.array(theirs))


def test_variables_are_known_by_name(trained):
    estimator = trained.estimator
    names = [n for n in estimator.get_variable_names() if n.startswith("network/")]
    live = trained.networks[0].variables
    values = [estimator.get_variable_value(name).tolist() for name in names]
    assert sorted(map(str, values)) == sorted(str(np.array(v).tolist()) for v in live)


def test_generators_are_not_where_they_began(trained):
    names = trained.estimator.get_variable_names()
    states = [
        trained.estimator.get_variable_value(name)
        for name in names
        if name.endswith("seed_generator_state")
    ]
    assert [state[1] > 0 for state in states] == [True, True]


# SavedModels.


@pytest.mark.parametrize("kind", ["raw", "parsing"])
def test_serves_the_same(trained, kind):
    served = trained.served[f"{kind}/serving_default/logits"]
    np.testing.assert_allclose(served, trained.logits, 1e-5, 1e-6)


@pytest.mark.parametrize("kind", ["raw", "parsing"])
def test_serves_each_signature_by_its_name(trained, kind):
    served = trained.served[f"{kind}/probabilities/probabilities"]
    expected = tf.nn.softmax(trained.logits)
    np.testing.assert_allclose(served, expected, 1e-5, 1e-6)


def test_serves_nothing_else(trained):
    outputs = {"serving_default/logits", "serving_default/label"}
    outputs.add("probabilities/probabilities")
    kinds = ("raw", "parsing")
    assert set(trained.served) == {f"{kind}/{o}" for kind in kinds for o in outputs}
