"""What a server is sent: as the call says, or a module, or as an input has it."""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.command import jobs
from pipeline.export import receivers
from tests import fakes

X, Y = fakes.classification_data(rows=8)
TRAIN = fakes.make_input_fn(X, Y, batch_size=8, change=lambda d: d.repeat())
PREDICT = fakes.make_input_fn(X, batch_size=8)
HALVES = {"left": tf.TensorSpec([None, 2]), "right": tf.TensorSpec([None, 4])}
SENT = {"left": tf.constant(X[:, :2]), "right": tf.constant(X[:, 2:])}
PARSING = ge.build_parsing_serving_input_receiver_fn(
    {"x": tf.io.FixedLenFeature([6], tf.float32)}, bare=True
)


def by_halves():
    """Takes two columns or, as `examples`, Examples."""
    return ge.ServingInputReceiver(
        HALVES,
        lambda sent: tf.concat([sent["left"], sent["right"]], 1),
        {"examples": PARSING()},
    )


def model_fn(features, labels, mode, network, optimizer, params):
    """`classifier_fn`, with a second output to export."""
    spec = fakes.classifier_fn(features, labels, mode, network, optimizer, {})
    if mode != ge.ModeKeys.PREDICT:
        return spec
    outputs = {
        "serving_default": spec.predictions,
        params.get("other", "classes"): {
            "classes": tf.argmax(spec.predictions["logits"], -1)
        },
    }
    return ge.EstimatorSpec(mode, predictions=spec.predictions, export_outputs=outputs)


def network():
    """A network that says by itself what a server is sent."""
    made = fakes.network()
    made.serving_input_receiver_fn = by_halves
    return made


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("trained")
    make(directory).train(TRAIN, max_steps=1)
    return directory


def make(model_dir, network=network, **params):
    return fakes.make_estimator(
        model_dir, model_fn=model_fn, network=network, params=params
    )


def never():
    raise AssertionError("the input is called")


def test_a_module_says_it_and_alternatives_are_further_signatures(
    model_dir, tmp_path, log
):
    estimator = make(model_dir)
    logits = np.stack([p["logits"] for p in estimator.predict(PREDICT)])
    spec = jobs.ExportSpec(export_dir_base=str(tmp_path))
    loaded = tf.saved_model.load(jobs.export(estimator, spec, never))
    says = "export | a server is sent what network.serving_input_receiver_fn says"
    assert says in log()
    serve = loaded.signatures
    assert sorted(serve) == [
        "classes",
        "examples",
        "examples:classes",
        "serving_default",
    ]
    examples = tf.constant([example(x) for x in X])
    for answer in (serve["serving_default"](**SENT), serve["examples"](examples)):
        np.testing.assert_allclose(answer["logits"], logits, rtol=1e-5)
    classes = serve["examples:classes"](examples)["classes"]
    np.testing.assert_array_equal(classes, logits.argmax(-1))


def example(x):
    values = tf.train.Feature(float_list=tf.train.FloatList(value=x))
    return tf.train.Example(
        features=tf.train.Features(feature={"x": values})
    ).SerializeToString()


def specs_of(path):
    (inputs, kwargs) = (
        tf.saved_model.load(path)
        .signatures["serving_default"]
        .structured_input_signature
    )
    assert not inputs
    return sorted(kwargs)


def test_the_call_wins_over_the_module(model_dir, tmp_path):
    raw = ge.build_raw_serving_input_receiver_fn(tf.TensorSpec([None, 6]))
    exporters = [
        ge.LatestExporter("by_module"),
        ge.LatestExporter("by_call", serving_input_receiver_fn=raw),
    ]
    estimator = make(model_dir)
    found = [
        specs_of(each.export(estimator, str(tmp_path / each.name), None, {}, False))
        for each in exporters
    ]
    assert found == [["left", "right"], ["features"]]


def test_the_features_of_an_input(model_dir, tmp_path):
    """Where neither the call nor a module says what is sent."""
    estimator = make(model_dir, network=fakes.network)
    spec = jobs.ExportSpec(export_dir_base=str(tmp_path))
    assert specs_of(jobs.export(estimator, spec, PREDICT)) == ["features"]


def test_an_output_of_the_name_of_an_alternative(model_dir):
    with pytest.raises(ge.SpecError) as error:
        make(model_dir, other="examples").check_export()
    assert "the name 'examples' is that of an alternative of what a server is" in str(
        error.value
    )


def says(serving_fn):
    module = tf.Module()
    module.serving_input_receiver_fn = serving_fn
    return module


def asked(**modules):
    return receivers.receiver_of(None, modules, never)


def test_modules_that_say_the_same():
    """As two networks of one schema do."""
    found = asked(a=says(by_halves), b=says(by_halves), c=says(None), d=keras.Layer())
    assert found.receiver_specs == HALVES


@pytest.mark.parametrize(
    ("modules", "text"),
    [
        (
            {"a": says(by_halves), "b": says(PARSING)},
            "the modules ['a', 'b'] each say what a server is sent, and not the same: "
            "write which counts, BestExporter(serving_input_receiver_fn=...)",
        ),
        (
            {"a": says(lambda: 3)},
            "and gives int 3, not a ServingInputReceiver: write build_raw",
        ),
        (
            {"a": says(by_halves())},
            "and no function: write build_raw",
        ),
    ],
)
def test_what_modules_may_not_say(modules, text):
    with pytest.raises((ValueError, TypeError)) as error:
        asked(**modules)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("alternatives", "text"),
    [
        ([PARSING()], "ServingInputReceiver.alternatives is list ["),
        ({"examples": PARSING}, "write ServingInputReceivers by name, alternatives={"),
        (
            {"serving_default": PARSING()},
            "has the name 'serving_default', which is that of the receiver itself",
        ),
        (
            {"more": by_halves()},
            "the alternative 'more' of a ServingInputReceiver has alternatives itself, "
            "['examples']: write them beside it, in one dict.",
        ),
    ],
)
def test_alternatives_that_are_none(alternatives, text):
    with pytest.raises((ValueError, TypeError)) as error:
        ge.ServingInputReceiver(HALVES, lambda sent: sent, alternatives)
    assert text in str(error.value)


Sides = collections.namedtuple("Sides", ["left", "right"])


@pytest.mark.parametrize(
    ("nest", "names"),
    [
        (lambda a, b: (a, b), ["features_0", "features_1"]),
        (
            lambda a, b: {"sides": {"left": a, "more": (b,)}},
            ["sides_left", "sides_more_0"],
        ),
        (lambda a, b: {"sides": Sides(a, b)}, None),
        (lambda a, b: {"class": a, "dep time": b}, ["class_", "dep_time"]),
    ],
    ids=["tuple", "dicts", "named", "no arguments"],
)
def test_nests_of_features_in_every_mode(tmp_path, nest, names):
    def nested_fn(features, labels, mode, network, optimizer):
        joined = tf.concat(tf.nest.flatten(features), 1)
        return fakes.classifier_fn(joined, labels, mode, network, optimizer, {})

    given = nest(X[:, :2], X[:, 2:])
    options = {"devices": ("CPU:0", "CPU:1"), "gradient_accumulation_steps": 2}
    estimator = fakes.make_estimator(tmp_path, model_fn=nested_fn, **options)
    input_fn = fakes.make_input_fn(given, Y, batch_size=4)
    estimator.train(input_fn, max_steps=1)
    assert estimator.evaluate(input_fn)["examples"] == len(Y)
    logits = [each["logits"] for each in estimator.predict(input_fn)]
    path = estimator.export_saved_model(tmp_path / "export")
    served = tf.saved_model.load(path).signatures["serving_default"]
    sent = list(served.structured_input_signature[1])
    assert names is None or sorted(sent) == names
    parts = dict(zip(sorted(sent), (X[:, :2], X[:, 2:]), strict=True))
    found = served(**{name: tf.constant(part) for name, part in parts.items()})
    np.testing.assert_allclose(found["logits"], logits, atol=1e-6)


def test_a_name_that_no_signature_has_is_refused():
    specs = {"dep time": tf.TensorSpec([None])}
    with pytest.raises(ValueError, match="'dep time', which no .*: write 'dep_time'"):
        ge.ServingInputReceiver(specs, dict)


def test_what_tf_estimator_s_receiver_takes_is_told():
    with pytest.raises(TypeError, match="is of type dict and no func.*: write what is"):
        ge.ServingInputReceiver(SENT, SENT)
    with pytest.raises(TypeError, match="takes no features: write to_features"):
        ge.ServingInputReceiver(features=SENT, receiver_tensors=SENT)


def test_nests_whose_tensors_would_be_sent_under_one_name():
    spec = tf.TensorSpec([None, 2])
    with pytest.raises(ValueError, match="two of the features would be sent as 'a_b'"):
        ge.build_raw_serving_input_receiver_fn({"a": {"b": spec}, "a_b": spec})
