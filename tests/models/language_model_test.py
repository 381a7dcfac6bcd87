"""The language model: losses by token, what each token sees, generated text."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from gin_estimator.models import language_model, transformer_lm

import gin_estimator as ge
from gin_estimator import ModeKeys
from refusals import refused

TOKENS = np.random.default_rng(1).integers(0, 9, [7, 6]).astype(np.int32)
LABELS = np.random.default_rng(2).integers(0, 9, [7, 6]).astype(np.int32)
LABELS[0, 2:], LABELS[2, 5:] = -1, -1


def network(**options):
    """Returns a small transformer with the same weights each time."""
    keras.utils.set_random_seed(4)
    sizes = {"vocab_size": 9, "context": 6, "width": 8, "depth": 1, "heads": 2}
    return transformer_lm(**{**sizes, **options})


@pytest.fixture(scope="module")
def net():
    return network()


def test_each_token_counts_once_and_padding_for_nothing(net):
    spec = language_model(TOKENS, LABELS, ModeKeys.EVAL, net)
    logits = net(TOKENS).numpy().astype(np.float64)
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    rows, places = np.nonzero(LABELS >= 0)
    expected = -np.log(probabilities[rows, places, LABELS[rows, places]]).mean()
    assert np.average(spec.loss, weights=spec.loss_weights) == pytest.approx(expected, rel=1e-5)
    for name, value in {
        "bits_per_token": expected / np.log(2),
        "accuracy": np.mean(logits.argmax(-1)[rows, places] == LABELS[rows, places]),
    }.items():
        declared = spec.metrics[name]
        metric = declared.factory()
        metric.update_state(*declared.args, **declared.kwargs)
        assert float(metric.result()) == pytest.approx(value, rel=1e-5)


def test_no_token_sees_a_later_one(net):
    changed = TOKENS.copy()
    changed[:, 4:] = 0
    np.testing.assert_allclose(net(TOKENS)[:, :4], net(changed)[:, :4], atol=1e-5)
    assert np.abs(net(TOKENS)[:, 4:] - net(changed)[:, 4:]).max() > 1e-3


TWO = {"devices": ("CPU:0", "CPU:1")}
CONFIGS = {
    "mirrored 2": (TWO, 4),
    "accumulated": ({"gradient_accumulation_steps": 2}, 2),
    "accumulated mirrored 2": ({"gradient_accumulation_steps": 2, **TWO}, 2),
}


def kernel_after(folder, batch_size=4, **config):
    def input_fn():
        return tf.data.Dataset.from_tensor_slices((TOKENS, LABELS)).batch(batch_size)

    modules = {"network": network, "optimizer": lambda: keras.optimizers.SGD(0.5)}
    config = ge.RunConfig(model_dir=str(folder), **config)
    estimator = ge.Estimator(language_model, modules=modules, config=config)
    estimator.train(input_fn)
    return estimator.get_variable_value("network/block/wide/kernel")


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    return kernel_after(tmp_path_factory.mktemp("default"))


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_each_split_makes_the_same_steps(tmp_path, kernel, name):
    config, batch_size = CONFIGS[name]
    actual = kernel_after(tmp_path, batch_size, **config)
    np.testing.assert_allclose(actual, kernel, rtol=1e-4, atol=1e-6)


def test_text_is_generated_the_same_way_each_time_and_beyond_the_context():
    wide = network(vocab_size=256)

    def generated(tokens, number, temperature=0.5):
        options = {"generate": number, "temperature": temperature}
        spec = language_model(tokens, None, ModeKeys.PREDICT, wide, **options)
        return spec.predictions["generated"].numpy()

    first = generated(TOKENS, 9)
    assert first.tolist() == generated(TOKENS, 9).tolist()
    assert {len(text) for text in first} == {9}
    # Bytes are drawn one by one, from the last tokens of the context.
    likely = np.array([[*text] for text in generated(TOKENS, 2, temperature=1e-6)], np.int32)
    sequence = np.concatenate([TOKENS, likely], axis=1)
    for index in (0, 1):
        logits = wide(sequence[:, index : index + 6])[:, -1]
        np.testing.assert_array_equal(likely[:, index], np.argmax(logits, -1))


def generating(folder, number, **options):
    """Returns a kernel after training on bytes that are not UTF-8."""
    modules = {
        "network": lambda: network(vocab_size=256),
        "optimizer": lambda: keras.optimizers.SGD(0.5),
    }
    fn = functools.partial(language_model, generate=number)
    config = ge.RunConfig(str(folder), save_summary_steps=2, **options)
    estimator = ge.Estimator(fn, modules=modules, config=config)
    estimator.train(lambda: tf.data.Dataset.from_tensor_slices((TOKENS + 200, LABELS)).batch(2))
    return estimator.get_variable_value("network/block/wide/kernel")


@pytest.mark.slow
@pytest.mark.parametrize(("options", "steps"), [(TWO, [2, 4]), ({"jit_compile": True}, [])])
def test_tensorboard_shows_text_on_replicas_and_not_under_xla(tmp_path, options, steps):
    generating(tmp_path, 3, **options)
    assert list(continued(tmp_path)) == steps


@pytest.mark.slow
def test_tensorboard_shows_text_and_training_is_the_same(tmp_path):
    with_text = generating(tmp_path / "text", 3)
    np.testing.assert_array_equal(with_text, generating(tmp_path / "none", 0))
    assert continued(tmp_path / "none") == {}
    found = continued(tmp_path / "text")
    assert list(found) == [2, 4]
    prompts = [bytes([*row + 200]).decode("utf-8", "replace") for row in TOKENS[[2, 6]]]
    for text, prompt in zip(found.values(), prompts, strict=True):
        assert text.startswith(f"```\n{prompt}\n```\n\n```\n") and text.endswith("\n```")


def continued(folder):
    """Returns the texts in TensorBoard by step."""
    found = {}
    for path in folder.glob("events.*"):
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            for value in event.summary.value:
                if value.tag == "continued":
                    found[event.step] = tf.make_ndarray(value.tensor)[0].decode("utf-8")
    return dict(sorted(found.items()))


test_what_does_not_fit_is_refused = refused(
    lambda call: call(),
    (lambda: network(heads=3), "width is 8: expected a multiple of heads, 3. Set width=9"),
    (lambda: network(context=5)(TOKENS), "Set transformer_lm.context=6"),
    (lambda: spec_of(LABELS[:, :5]), r"labels have shape \(7, 5\)"),
    (lambda: spec_of(LABELS, generate=-1), "generate=-1"),
    (lambda: spec_of(LABELS, temperature=0.0), "temperature=0.0"),
)


def spec_of(labels, **options):
    return language_model(TOKENS, labels, ModeKeys.EVAL, network(), **options)
