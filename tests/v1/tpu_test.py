"""TPUEstimator on this machine."""

import numpy as np
import pytest

import gin_estimator.v1 as tf

pytestmark = pytest.mark.oldest

X = np.arange(32, dtype="float32").reshape(32, 1) / 32


def input_fn(params):
    assert params["scale"] == 2
    data = tf.data.Dataset.from_tensor_slices((X, params["scale"] * X))
    return data.batch(params["batch_size"], drop_remainder=True)


def test_batch_sizes_metrics_and_calls(tmp_path):
    sizes, called = {}, []

    def model_fn(features, labels, mode, params):
        sizes[mode] = params["batch_size"]
        w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
        if mode == tf.estimator.ModeKeys.PREDICT:
            return tf.estimator.tpu.TPUEstimatorSpec(mode, predictions={"y": w * features})
        error = w * features - labels
        loss = tf.reduce_mean(tf.square(error))
        optimizer = tf.tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(0.5))

        def host_call(step, loss):
            called.append((step.shape.as_list(), loss.shape.as_list()))
            return tf.summary.scalar("host_loss", loss[0])

        step = tf.train.get_global_step()
        return tf.contrib.tpu.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=optimizer.minimize(loss, global_step=step),
            eval_metrics=(lambda e: {"error": tf.metrics.mean(tf.abs(e))}, [error]),
            host_call=(host_call, [tf.reshape(step, [1]), tf.reshape(loss, [1])]),
            scaffold_fn=lambda: tf.train.Scaffold(),
        )

    estimator = tf.estimator.tpu.TPUEstimator(
        model_fn,
        config=tf.estimator.tpu.RunConfig(
            model_dir=str(tmp_path),
            tpu_config=tf.estimator.tpu.TPUConfig(iterations_per_loop=2),
        ),
        params={"scale": 2},
        use_tpu=False,
        train_batch_size=8,
        eval_batch_size=16,
        predict_batch_size=4,
    )
    estimator.train(input_fn, max_steps=3)
    found = estimator.evaluate(input_fn, steps=2)
    w = estimator.get_variable_value("w")
    assert found["error"] == pytest.approx(np.mean((2 - w) * X), rel=1e-5)
    losses = [np.mean(np.square((2 - w) * half)) for half in (X[:16], X[16:])]
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert len(list(estimator.predict(input_fn))) == 32
    assert sizes == {"train": 8, "eval": 16, "infer": 4}
    assert called[0] == ([1], [1])
    with pytest.raises(ValueError, match="batch_size are reserved"):
        tf.estimator.tpu.TPUEstimator(model_fn, params={"batch_size": 3})
