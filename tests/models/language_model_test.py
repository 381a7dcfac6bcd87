"""A language model: losses by token, what it looks at, what it writes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import language_model, transformer_lm
from models.language_model import as_text, continued
from pipeline import ModeKeys, SpecError
from tests.step_trainer import Trainer

TOKENS = np.random.default_rng(1).integers(0, 9, [4, 6]).astype(np.int32)
LABELS = np.random.default_rng(2).integers(0, 9, [4, 6]).astype(np.int32)
LABELS[0, 2:], LABELS[2, 5:] = -1, -1


def network(**options):
    """A small transformer whose weights are the same each time."""
    keras.utils.set_random_seed(4)
    sizes = {"vocab_size": 9, "context": 6, "width": 8, "depth": 1, "heads": 2}
    return transformer_lm(**{**sizes, **options})


@pytest.fixture(scope="module")
def net():
    return network()


def test_each_token_counts_once_and_padding_for_nothing(net):
    spec = language_model(TOKENS, LABELS, ModeKeys.EVAL, network=net)
    logits = net(TOKENS).numpy().astype(np.float64)
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    rows, places = np.nonzero(LABELS >= 0)
    wanted = -np.log(shares[rows, places, LABELS[rows, places]]).mean()
    found = np.average(spec.loss, weights=spec.loss_weights)
    assert found == pytest.approx(wanted, rel=1e-5)
    bits = spec.metrics["bits_per_token"].factory()
    declared = spec.metrics["bits_per_token"]
    bits.update_state(*declared.args, **declared.kwargs)
    assert float(bits.result()) == pytest.approx(wanted / np.log(2), rel=1e-5)


def test_it_does_not_see_what_follows(net):
    changed = TOKENS.copy()
    changed[:, 4:] = 0
    np.testing.assert_allclose(net(TOKENS)[:, :4], net(changed)[:, :4], atol=1e-5)
    assert np.abs(net(TOKENS)[:, 4:] - net(changed)[:, 4:]).max() > 1e-3


def test_parts_of_unlike_lengths_make_the_same_step():
    def weights_after(cut):
        trainer = Trainer(
            language_model,
            replicas=len(cut),
            features=tf.TensorSpec([None, 6], tf.int32),
            labels=tf.TensorSpec([None, 6], tf.int32),
            network=network,
        )
        parts = [[(TOKENS[i:j], LABELS[i:j]) for i, j in replica] for replica in cut]
        trainer.step(*parts)
        return [v.numpy() for v in trainer["network"].trainable_variables]

    wanted = weights_after([[(0, 4)]])
    for cut in ([[(0, 1)], [(1, 4)]], [[(0, 1), (1, 4)]]):  # Replicas, micro-batches.
        for mine, whole in zip(weights_after(cut), wanted, strict=True):
            np.testing.assert_allclose(mine, whole, rtol=1e-4, atol=1e-6)


def test_text_goes_on_alike_each_time_and_beyond_the_context(net):
    call = tf.function(lambda x: continued(net, x, 9, 0.5), autograph=False)
    first, second = call(TOKENS), call(TOKENS)
    assert first.shape == [4, 9]
    np.testing.assert_array_equal(first, second)
    # Drawn one by one, of the last tokens that the context holds.
    whole = np.concatenate([TOKENS, first], 1)
    cold = continued(net, whole[:, :8], 1, 1e-6)[:, 0]
    np.testing.assert_array_equal(cold, np.argmax(net(whole[:, 2:8])[:, -1], -1))


def test_bytes_are_shown_as_text():
    given = tf.constant([[72, 105, -1, 300], [195, 164, 10, 0]])
    assert as_text(given).numpy().tolist() == [b"Hi", b"\xc3\xa4\n\x00"]


def test_what_is_written_is_predicted_and_shown():
    wide = network(vocab_size=256)
    spec = language_model(TOKENS, LABELS, ModeKeys.EVAL, network=wide, generate=3)
    assert list(spec.summaries) == ["generated"]
    spec = language_model(TOKENS, None, ModeKeys.PREDICT, network=wide, generate=3)
    assert spec.predictions["generated"].shape == [4]
    assert {len(each) for each in spec.predictions["generated"].numpy()} == {3}


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: network(heads=3), "width is 8, which 3 heads .* width = 9"),
        (lambda: network(context=5)(TOKENS), "context = 6, or shorter"),
        (lambda: spec_of(TOKENS, LABELS[:, :5]), r"labels have shape \(4, 5\)"),
        (lambda: spec_of(TOKENS, LABELS, generate=-1), "generate is -1"),
        (lambda: spec_of(TOKENS, LABELS, temperature=0.0), "temperature 0.0"),
    ],
)
def test_what_does_not_fit_is_told(call, told):
    with pytest.raises((ValueError, SpecError), match=told):
        call()


def spec_of(tokens, labels, **options):
    return language_model(tokens, labels, ModeKeys.EVAL, network=network(), **options)
