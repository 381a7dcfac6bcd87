"""What goes into a SavedModel, and what a server is asked for."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.export import saved_model
from tests import fakes

X, Y = fakes.classification_data(rows=8)
TRAIN = fakes.make_input_fn(X, Y, batch_size=8, change=lambda d: d.repeat())
PREDICT = fakes.make_input_fn(X, batch_size=8)


def model_fn(features, labels, mode, network, optimizer, params):
    """`classifier_fn`, whose predictions and outputs `params` may change."""
    x = features["x"] if isinstance(features, dict) else features
    spec = fakes.classifier_fn(x, labels, mode, network, optimizer, {})
    if mode != ge.ModeKeys.PREDICT:
        return spec
    logits = spec.predictions["logits"]
    predictions = params.get("predictions", lambda logits: {"logits": logits})(logits)
    outputs = params.get("outputs", lambda logits: None)(logits)
    return ge.EstimatorSpec(mode, predictions=predictions, export_outputs=outputs)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("trained")
    fakes.make_estimator(directory, model_fn=model_fn).train(TRAIN, max_steps=1)
    return directory


@pytest.fixture(scope="module")
def logits(model_dir):
    estimator = fakes.make_estimator(model_dir, model_fn=model_fn)
    return np.stack([p["logits"] for p in estimator.predict(PREDICT)])


RAW = ge.build_raw_serving_input_receiver_fn(tf.TensorSpec([8, 6]))


def export(model_dir, base, serving=RAW, **params):
    estimator = fakes.make_estimator(model_dir, model_fn=model_fn, params=params)
    return estimator.export_saved_model(str(base), serving)


def signatures(path):
    loaded = tf.saved_model.load(path)
    # The functions hold their variables weakly.
    return loaded, loaded.signatures


def test_features_as_they_are(model_dir, logits, tmp_path):
    _, served = signatures(export(model_dir, tmp_path))
    assert list(served) == ["serving_default"]
    # Any batch size, whatever the spec's.
    outputs = served["serving_default"](features=tf.constant(X[:3]))
    np.testing.assert_allclose(outputs["logits"], logits[:3], rtol=1e-5)


def test_a_dict_of_features(model_dir, logits, tmp_path):
    serving = ge.build_raw_serving_input_receiver_fn({"x": tf.TensorSpec([None, 6])})
    _, served = signatures(export(model_dir, tmp_path, serving))
    outputs = served["serving_default"](x=tf.constant(X))
    np.testing.assert_allclose(outputs["logits"], logits, rtol=1e-5)


@pytest.mark.parametrize("bare", [True, False])
def test_examples_to_parse(bare, model_dir, logits, tmp_path):
    spec = {"x": tf.io.FixedLenFeature([6], tf.float32)}
    serving = ge.build_parsing_serving_input_receiver_fn(spec, bare=bare)
    _, served = signatures(export(model_dir, tmp_path, serving))
    examples = [
        tf.train.Example(
            features=tf.train.Features(
                feature={"x": tf.train.Feature(float_list=tf.train.FloatList(value=x))}
            )
        ).SerializeToString()
        for x in X
    ]
    outputs = served["serving_default"](examples=tf.constant(examples))
    np.testing.assert_allclose(outputs["logits"], logits, rtol=1e-5)


def test_bare_takes_one_feature():
    spec = dict.fromkeys("ba", tf.io.FixedLenFeature([], tf.float32))
    with pytest.raises(ValueError) as error:
        ge.build_parsing_serving_input_receiver_fn(spec, bare=True)
    assert "bare=True takes one feature, not ['a', 'b']: leave it out." in str(
        error.value
    )


@pytest.mark.parametrize(
    ("params", "outputs"),
    [
        ({"predictions": lambda y: y}, {"serving_default": ["output"]}),
        (
            {"outputs": lambda y: {"serving_default": {"y": y}, "more": {"z": y}}},
            {"serving_default": ["y"], "more": ["z"]},
        ),
        (
            {"outputs": lambda y: {"only": {"y": y}}},
            {"only": ["y"], "serving_default": ["y"]},
        ),
    ],
    ids=["bare", "several", "one_of_another_name"],
)
def test_signatures(params, outputs, model_dir, tmp_path):
    _, served = signatures(export(model_dir, tmp_path, **params))
    assert {n: list(f.structured_outputs) for n, f in served.items()} == outputs


@pytest.mark.parametrize(
    ("params", "text"),
    [
        (
            {"outputs": lambda y: {"a": {"y": y}, "b": {"y": y}}},
            "export_outputs has the signatures ['a', 'b'] and none of them is "
            "'serving_default', which servers ask for by default: name one so.",
        ),
        (
            {"predictions": lambda y: {"nest": {"y": y}}},
            "predictions of structure {'nest': {'y': '.'}} make no signature, which is "
            "a flat dict of tensors: give export_outputs={'serving_default': {'name': ",
        ),
    ],
)
def test_what_makes_no_signature(params, text, model_dir, tmp_path):
    with pytest.raises(ge.SpecError) as error:
        export(model_dir, tmp_path / "base", **params)
    assert text in str(error.value)
    assert saved_model.existing_exports(str(tmp_path / "base")) == []


def test_each_export_has_a_directory_of_its_own_and_comes_whole(model_dir, tmp_path):
    paths = [export(model_dir, tmp_path) for _ in range(2)]
    assert saved_model.existing_exports(str(tmp_path)) == sorted(paths)
    assert len(set(paths)) == 2
    assert {p.name for p in tmp_path.iterdir()} == {pathlib.Path(p).name for p in paths}


def test_a_folder_that_tensorflow_cannot_load_from_is_told(tmp_path, caplog):
    """The export is whole, and loads where it is copied to."""
    saved_model._new_directory(str(tmp_path / "a"))
    assert not caplog.text
    saved_model._new_directory(str(tmp_path / "[a]"))
    assert "[a] for a pattern, and cannot load from there: copy the ex" in caplog.text


def test_assets(model_dir, tmp_path):
    (tmp_path / "labels.txt").write_text("a\nb\n", encoding="utf-8")
    estimator = fakes.make_estimator(model_dir, model_fn=model_fn)
    path = estimator.export_saved_model(
        str(tmp_path / "base"),
        RAW,
        assets_extra={"more/labels.txt": str(tmp_path / "labels.txt")},
    )
    copied = pathlib.Path(path, "assets.extra", "more", "labels.txt")
    assert copied.read_text(encoding="utf-8") == "a\nb\n"


def test_no_exports_yet(tmp_path):
    assert saved_model.existing_exports(str(tmp_path / "absent")) == []


def test_without_a_checkpoint(tmp_path):
    with pytest.raises(ValueError) as error:
        export(tmp_path / "model", tmp_path)
    assert "model has no checkpoint to export: train first, or give" in str(error.value)


def test_without_knowing_what_is_sent(model_dir, tmp_path):
    with pytest.raises(ValueError) as error:
        export(model_dir, tmp_path, None)
    assert "what a server sends is not known, as no input was seen yet" in str(
        error.value
    )


def test_what_is_sent_is_what_was_seen(model_dir, logits, tmp_path):
    estimator = fakes.make_estimator(model_dir, model_fn=model_fn)
    list(estimator.predict(PREDICT))
    _, served = signatures(estimator.export_saved_model(str(tmp_path)))
    outputs = served["serving_default"](features=tf.constant(X))
    np.testing.assert_allclose(outputs["logits"], logits, rtol=1e-5)
