"""Uses the public API with types; pyright checks it, nothing runs it.

The package is `pipeline` here: type checkers do not see the hook that maps `gin_estimator` to a
checkout.
"""

from collections.abc import Mapping
from typing import Any, assert_type

import keras
import tensorflow as tf

import pipeline as ge


def model_fn(
    features: tf.Tensor,
    labels: tf.Tensor | None,
    mode: str,
    network: keras.Model,
    optimizer: keras.optimizers.Optimizer,
) -> ge.EstimatorSpec:
    logits = network(features)
    return ge.EstimatorSpec(
        mode,
        {"logits": logits},
        loss=keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True),
        train_op=ge.TrainOp(optimizer, network.trainable_variables, clip_norm=1.0),
        metrics={"accuracy": ge.metric(keras.metrics.SparseCategoricalAccuracy, labels, logits)},
    )


def input_fn(mode: str, input_context: tf.distribute.InputContext) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(([[1.0]], [0])).repeat().batch(32)


class StopAtAccuracy(ge.Hook):
    every_steps = 100

    def after_step(self, run: ge.RunContext) -> None:
        assert_type(run.report, ge.Report)
        if run.report.loss < 0.1 and run.report.metrics["accuracy"] > 0.9:
            run.request_stop(f"step {run.step}")

    def after_evaluation(self, run: ge.RunContext, name: str, metrics: Mapping[str, Any]) -> None:
        print(name, metrics["loss"])


class Copy(ge.SavingListener):
    def after_save(self, run: ge.RunContext) -> bool:
        return run.step > 5


def main() -> None:
    config = ge.RunConfig(
        "runs/1",
        tf_random_seed=1,
        save_checkpoints_steps=100,
        keep_checkpoint_max=None,
        train_distribute=ge.mirrored,
    )
    config.cluster_spec.as_dict()
    estimator = ge.Estimator(
        model_fn,
        modules={"network": keras.Sequential, "optimizer": keras.optimizers.Adam},
        config=config,
        params={"rate": 1e-3},
    )
    assert_type(estimator, ge.Estimator)
    estimator.train(input_fn, [StopAtAccuracy()], 10, saving_listeners=[Copy()])
    metrics = estimator.evaluate(input_fn, 5, name="test")
    assert_type(metrics, dict[str, Any])
    assert_type(estimator.latest_checkpoint(), str | None)
    for prediction in estimator.predict(input_fn, ["logits"]):
        print(prediction["logits"])
    exporter = ge.BestExporter(metric="accuracy")
    results = ge.train_and_evaluate(
        estimator,
        ge.TrainSpec(input_fn, max_steps=100, hooks=[ge.LoggingHook(10)]),
        [ge.EvalSpec(input_fn, None, "test", exporters=[exporter], keep_best=ge.KeepBest("loss"))],
    )
    assert_type(results, tuple[Any, Any] | None)
    fitted = ge.fit(keras.Sequential, input_fn, epochs=2, config=config)
    fitted.model.predict([[1.0]])
    fitted = ge.fit(fitted.model, [1.0], [2.0], batch_size=1, config=config)
    assert_type(fitted.epoch, list[int])
    receiver = ge.build_raw_serving_input_receiver_fn({"x": tf.TensorSpec([None, 4])})
    assert_type(estimator.export_saved_model("exports", receiver), str)


def mistakes(estimator: ge.Estimator) -> None:
    # pyright reports a comment below that has nothing to suppress.
    ge.RunConfig(steps_per_loop="10")  # pyright: ignore[reportArgumentType]
    ge.RunConfig(session_config=None)  # pyright: ignore[reportCallIssue]
    ge.Estimator()  # pyright: ignore[reportCallIssue]
    estimator.train(input_fn, hooks=[StopAtAccuracy])  # pyright: ignore[reportArgumentType]
    ge.RunConfg()  # pyright: ignore[reportAttributeAccessIssue]


if __name__ == "__main__":
    try:
        ge.run(main)
    except ge.UserError as error:
        print(error)
