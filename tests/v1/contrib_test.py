"""Parts of contrib that TensorFlow 2.15 and tf_slim do not have, against their formulas."""

import itertools

import numpy as np
import pytest

import tensorflow.compat.v1 as tf1

import gin_estimator.v1 as tf

rng = np.random.default_rng(9)
SCORES = rng.normal(size=[3, 4, 3]).astype("float32")
MOVES = rng.normal(size=[3, 3]).astype("float32")
LENGTHS = np.array([4, 1, 3])
TAGS = rng.integers(0, 3, [3, 4])


def paths(row):
    """Returns the score of each sequence of tags of a row, within its length."""
    length = LENGTHS[row]
    return {
        tags: sum(SCORES[row, t, tags[t]] for t in range(length))
        + sum(MOVES[tags[t], tags[t + 1]] for t in range(length - 1))
        for tags in itertools.product(range(3), repeat=length)
    }


@pytest.mark.oldest
def test_crf_normalizes_by_all_sequences():
    found, _ = tf.contrib.crf.crf_log_likelihood(SCORES, TAGS, LENGTHS, MOVES)
    for row in range(3):
        scores = paths(row)
        norm = np.log(sum(np.exp(score) for score in scores.values()))
        assert float(found[row]) == pytest.approx(
            scores[tuple(TAGS[row, : LENGTHS[row]])] - norm, rel=1e-4
        )


@pytest.mark.oldest
def test_crf_decodes_the_best_sequence():
    tags, best = tf.contrib.crf.crf_decode(SCORES, MOVES, LENGTHS)
    for row in range(3):
        scores = paths(row)
        expected = max(scores, key=scores.get)
        assert tuple(tags[row].numpy()) == expected + (0,) * (4 - LENGTHS[row])
        assert float(best[row]) == pytest.approx(scores[expected], rel=1e-5)
    one, score = tf.contrib.crf.viterbi_decode(SCORES[0], MOVES)
    assert one == list(tags[0]) and score == pytest.approx(float(best[0]), rel=1e-5)


@pytest.mark.oldest
def test_tables_know_words_and_positions():
    words = ["a", "b"]
    table = tf.contrib.lookup.index_table_from_tensor(words)
    assert table.lookup(tf.constant(["b", "c"])).numpy().tolist() == [1, -1]
    table = tf.contrib.lookup.index_table_from_tensor(words, num_oov_buckets=1)
    assert table.lookup(tf.constant(["b", "c"])).numpy().tolist() == [1, 2]
    table = tf.contrib.lookup.index_to_string_table_from_tensor(words)
    found = table.lookup(tf.constant([0, 5], tf.int64)).numpy().tolist()
    assert found == [b"a", b"UNK"]


@pytest.mark.oldest
def test_tables_of_files_in_a_model_fn(tmp_path):
    (tmp_path / "words").write_text("a\nb\n")

    def model_fn(features, labels, mode):
        ids = tf.contrib.lookup.index_table_from_file(str(tmp_path / "words")).lookup(features)
        table = tf.contrib.lookup.index_to_string_table_from_file(str(tmp_path / "words"))
        return tf.estimator.EstimatorSpec(mode, {"ids": ids, "words": table.lookup(ids)})

    estimator = tf.estimator.Estimator(model_fn, str(tmp_path / "run"))
    words = tf.constant(["b", "c"])
    found = estimator.predict(lambda: tf.data.Dataset.from_tensor_slices(words).batch(2))
    expected = [{"ids": 1, "words": b"b"}, {"ids": -1, "words": b"UNK"}]
    assert list(found) == expected


def trained(model_fn, path, steps=None):
    data = {"x": SCORES.reshape(12, 3)}
    labels = (SCORES.reshape(12, 3).sum(1, keepdims=True) > 0).astype("float32")
    dataset = lambda: tf.data.Dataset.from_tensor_slices((data, labels)).batch(4)  # noqa: E731
    estimator = tf.estimator.Estimator(model_fn, str(path))
    return estimator.train(dataset, steps=steps), dataset


@pytest.mark.parametrize("options", [{}, {"use_peephole": True}, {"cell_clip": 0.1}])
def test_fused_cells_are_cells_step_by_step(options, tmp_path):
    """Both read the same variables: the fused cell reuses those of the other."""
    lengths = tf.constant([4, 0, 3])

    def model_fn(features, labels, mode):
        x, gates = tf.constant(SCORES), ("f", "i", "o")
        peepholes = options.get("use_peephole", False)
        cell = tf.nn.rnn_cell.LSTMCell(2, peepholes, options.get("cell_clip"))
        fused = tf.contrib.rnn.LSTMBlockFusedCell(2, **options)
        backward = tf.contrib.rnn.TimeReversedFusedRNN(fused)
        time_major = tf.transpose(x, [1, 0, 2])
        outputs, state = fused(time_major, dtype=tf.float32, sequence_length=lengths)
        back, _ = backward(time_major, dtype=tf.float32, sequence_length=lengths)
        names = [v.name for v in tf.trainable_variables()]
        assert names[:2] == ["lstm_fused_cell/kernel:0", "lstm_fused_cell/bias:0"]
        cell.kernel, cell.bias, cell.built = fused.kernel, fused.bias, True
        by_gate = dict(zip(("i", "f", "o"), fused.peepholes, strict=True))
        cell.peepholes = [by_gate[gate] for gate in gates]
        run = lambda each: tf.nn.dynamic_rnn(cell, each, lengths, dtype="float32")  # noqa: E731
        expected, last = run(x)
        from_end, _ = run(tf.reverse_sequence(x, lengths, 1))
        from_end = tf.reverse_sequence(from_end, lengths, 1)
        pairs = [(tf.transpose(outputs, [1, 0, 2]), expected), (state.c, last.c)]
        pairs += [(state.h, last.h), (tf.transpose(back, [1, 0, 2]), from_end)]
        losses = [tf.reduce_sum(tf.square(a)) for pair in pairs for a in pair]
        ours, others = (tf.gradients(losses[i::2], fused.kernel)[0] for i in (0, 1))
        if "cell_clip" not in options:  # The gradient of the kernel does not know of the clip.
            pairs.append((ours, others))
        errors = [tf.reduce_max(tf.abs(a - b)) for a, b in pairs]
        train_op = tf.train.GradientDescentOptimizer(0.0).minimize(tf.add_n(losses))
        size = tf.reduce_max(tf.abs(ours))
        return tf.estimator.EstimatorSpec(
            mode,
            loss=losses[0],
            train_op=train_op,
            eval_metric_ops={
                "error": tf.metrics.mean(tf.stack(errors)),
                "size": tf.metrics.mean(size),
            },
        )

    estimator, dataset = trained(model_fn, tmp_path)
    found = estimator.evaluate(dataset)
    assert found["error"] < 1e-6 and found["size"] > 0.1


@pytest.mark.oldest
def test_metrics_are_added(tmp_path):
    def model_fn(features, labels, mode):
        w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.square(features["x"] * w - labels))
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        ops = {"mean": tf.metrics.mean(features["x"])}
        return tf.estimator.EstimatorSpec(mode, {"w": w}, loss, train_op, ops)

    estimator, dataset = trained(model_fn, tmp_path, steps=1)
    more = tf.contrib.estimator.add_metrics(
        estimator, lambda labels, predictions: {"label": tf.metrics.mean(labels + predictions["w"])}
    )
    found = more.evaluate(dataset)
    labels = np.concatenate([y for _, y in dataset().as_numpy_iterator()])
    w = estimator.get_variable_value("w")
    assert found["label"] == pytest.approx(labels.mean() + w, rel=1e-5)
    assert found["mean"] == pytest.approx(SCORES.mean(), rel=1e-4)


Z, REAL = SCORES.reshape(36, 1)[:8], SCORES.reshape(36, 1)[8:16]


@pytest.mark.oldest
def test_a_gan_estimator_updates_both_networks(tmp_path):
    """One number each: g * z and d * x, with the losses of Wasserstein."""
    gan = tf.contrib.gan

    def variable(name):
        return tf.get_variable(name, [], initializer=tf.constant_initializer(0.5))

    estimator = gan.estimator.GANEstimator(
        str(tmp_path),
        lambda z: z * variable("g"),
        lambda x, z: x * variable("d"),
        gan.losses.wasserstein_generator_loss,
        gan.losses.wasserstein_discriminator_loss,
        lambda: tf.train.GradientDescentOptimizer(0.1),
        tf.train.GradientDescentOptimizer(0.2),
        get_hooks_fn=gan.get_joint_train_hooks(gan.GANTrainSteps(1, 1)),
    )
    data = lambda: tf.data.Dataset.from_tensor_slices((Z, REAL)).batch(8)  # noqa: E731
    estimator.train(data)
    g = 0.5 + 0.1 * 0.5 * Z.mean()
    d = 0.5 - 0.2 * (0.5 * Z.mean() - REAL.mean())
    assert estimator.get_variable_value("Generator/g") == pytest.approx(g, rel=1e-5)
    assert estimator.get_variable_value("Discriminator/d") == pytest.approx(d, rel=1e-5)
    found = estimator.evaluate(data)
    assert found["generator_loss"] == pytest.approx(-d * g * Z.mean(), rel=1e-4)
    expected = d * g * Z.mean() - d * REAL.mean()
    assert found["discriminator_loss"] == pytest.approx(expected, rel=1e-4)
    predicted = list(estimator.predict(lambda: tf.data.Dataset.from_tensor_slices(Z).batch(8)))
    np.testing.assert_allclose(np.stack(predicted), Z * g, rtol=1e-5)


LOGITS = (SCORES[0, :, :1], SCORES[1, :, :1])  # Of real and of generated data.
GAN_LOSSES = {
    "modified_generator_loss": lambda real, generated: np.mean(np.log1p(np.exp(-generated))),
    "minimax_generator_loss": lambda real, generated: (
        -np.mean(np.log1p(np.exp(-1.0))) - np.mean(np.log1p(np.exp(generated)))
    ),
    "modified_discriminator_loss": lambda real, generated: (
        np.mean(np.log1p(np.exp(-real)) + 0.125 * real) + np.mean(np.log1p(np.exp(generated)))
    ),
    "least_squares_generator_loss": lambda real, generated: np.mean((generated - 1) ** 2) / 2,
    "least_squares_discriminator_loss": lambda real, generated: (
        np.mean((real - 1) ** 2) / 2 + np.mean(generated**2) / 2
    ),
}


@pytest.mark.parametrize("name", GAN_LOSSES)
def test_losses_of_gans_follow_their_formulas(name):
    real, generated = LOGITS
    model = tf.contrib.gan.GANModel(*[None] * 6, real, generated, *[None] * 3)
    found = getattr(tf.contrib.gan.losses, name)(model, add_summaries=False)
    assert float(found) == pytest.approx(GAN_LOSSES[name](real, generated), rel=1e-5)


def test_other_numbers_of_updates_of_a_gan_are_refused():
    with pytest.raises(ValueError, match=r"GANTrainSteps\(1, 1\)"):
        tf.contrib.gan.get_sequential_train_hooks(tf.contrib.gan.GANTrainSteps(1, 5))


def test_files_of_the_package_do_not_hide_names_of_tensorflow():
    assert tf.errors.OutOfRangeError is tf1.errors.OutOfRangeError
    assert tf.trace is tf1.trace and tf.lookup.StaticHashTable is tf1.lookup.StaticHashTable
    assert tf.__version__ == tf1.__version__


@pytest.mark.parametrize("name", ["seq2seq", "quantize", "layers.no_such_layer", "nothing"])
def test_unknown_names_say_what_to_write(name):
    with pytest.raises(AttributeError, match=rf"tf\.contrib\.{name}.*(Copy|Quantize|Use|Write)"):
        found = tf.contrib
        for part in name.split("."):
            found = getattr(found, part)
