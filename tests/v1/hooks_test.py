"""Hooks, listeners and exporters of tf.estimator."""

import logging

import numpy as np
import pytest

import gin_estimator.v1 as tf

pytestmark = pytest.mark.oldest

X = np.arange(40, dtype="float32").reshape(40, 1) / 40


def input_fn():
    return tf.data.Dataset.from_tensor_slices((X, 2 * X)).batch(4)


def model_fn(features, labels, mode, params):
    w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
    assert w.op.name == "w"
    if mode == tf.estimator.ModeKeys.PREDICT:
        hooks = {name: make() for name, make in params.items() if name.startswith("prediction")}
        return tf.estimator.EstimatorSpec(mode, {"y": w * features}, **hooks)
    loss = tf.identity(tf.reduce_mean(tf.square(w * features - labels)), name="the_loss")
    train_op = tf.train.GradientDescentOptimizer(0.5).minimize(
        loss, global_step=tf.train.get_global_step()
    )
    hooks = {name: make(loss, w) for name, make in params.items() if name.startswith("training")}
    hooks |= {name: make() for name, make in params.items() if name.startswith("evaluation")}
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, **hooks)


def estimator(path, params=(), **config):
    config = tf.estimator.RunConfig(str(path), **config)
    return tf.estimator.Estimator(model_fn, config=config, params=dict(params))


class Recorder(tf.train.SessionRunHook):
    """Records the order of calls, and what is fetched."""

    def __init__(self, fetches=None):
        self.calls, self.seen, self.fetches = [], [], fetches

    def begin(self):
        self.calls.append("begin")

    def after_create_session(self, session, coord):
        self.calls.append("created")

    def before_run(self, run_context):
        self.calls.append("before")
        return self.fetches and tf.train.SessionRunArgs(self.fetches)

    def after_run(self, run_context, run_values):
        self.calls.append("after")
        self.seen.append(run_values.results)

    def end(self, session):
        self.calls.append("end")


def test_hooks_of_the_call_and_of_the_model_fn_are_called_in_order(tmp_path):
    made = []

    def hooks(loss, w):
        made.append(Recorder({"loss": loss, "w": w, "step": "global_step"}))
        return [made[-1]]

    given, chief = Recorder(), Recorder()
    params = {"training_hooks": hooks, "training_chief_hooks": lambda *_: [chief]}
    trained = estimator(tmp_path, params).train(input_fn, hooks=[given], steps=2)
    assert given.calls == ["begin", "created", "before", "after", "before", "after", "end"]
    assert chief.calls == given.calls
    assert made[0].calls == given.calls
    assert [each["step"] for each in made[0].seen] == [1, 2]
    assert made[0].seen[-1]["w"] == trained.get_variable_value("w")
    # Again: other hooks, and the same ones without a new trace.
    other = Recorder("the_loss:0")
    trained.train(input_fn, hooks=[other], steps=1)
    trained.train(input_fn, hooks=[other], steps=1)
    assert other.calls == ["begin", "created", "before", "after", "end"] * 2
    assert len(other.seen) == 2 and other.seen[0] > 0


def test_a_hook_runs_the_global_step(tmp_path):
    class Steps(tf.estimator.SessionRunHook):
        def __init__(self):
            self.seen = []

        def begin(self):
            self.step = tf.train.get_or_create_global_step()

        def before_run(self, run_context):
            self.seen.append(run_context.session.run(self.step))
            return tf.estimator.SessionRunArgs({"loss": "the_loss:0"})

        def after_run(self, run_context, run_values):
            self.seen.append(run_context.session.run(self.step))

        def end(self, session):
            self.seen.append(session.run(self.step))

    hook = Steps()
    estimator(tmp_path).train(input_fn, hooks=[hook], steps=2)
    assert hook.seen == [0, 1, 1, 2, 2]  # As in TensorFlow.


def test_stock_hooks(tmp_path, caplog):
    nan = tf.train.NanTensorHook("the_loss:0", fail_on_nan_loss=False)
    lines = tf.train.LoggingTensorHook(
        {"here": "the_loss"}, every_n_iter=2, formatter=lambda t: f"seen {sorted(t)}"
    )
    last = tf.train.LoggingTensorHook(["the_loss"], at_end=True)
    hooks = [nan, lines, last, tf.train.StepCounterHook(), tf.train.StopAtStepHook(num_steps=4)]
    with caplog.at_level(logging.INFO, "absl"):
        trained = estimator(tmp_path).train(input_fn, hooks=hooks)
    assert trained.get_variable_value("global_step") == 4
    texts = [record.getMessage() for record in caplog.records]
    assert texts.count("seen ['here']") == 2
    with pytest.raises(ValueError, match="at_end, every_n_iter or every_n_secs"):
        tf.train.LoggingTensorHook(["a"])


def test_listeners_and_the_interval_of_a_saver_hook(tmp_path):
    class Listener(tf.train.CheckpointSaverListener):
        def __init__(self):
            self.saved = []

        def after_save(self, session, global_step_value):
            self.saved.append(global_step_value)
            return global_step_value >= 6

    given, of_hook = Listener(), Listener()
    saver = tf.train.CheckpointSaverHook(str(tmp_path), save_steps=3, listeners=[of_hook])
    trained = estimator(tmp_path).train(input_fn, hooks=[saver], saving_listeners=[given])
    assert given.saved == of_hook.saved and {3, 6} <= {*given.saved}
    assert trained.get_variable_value("global_step") == 6


def test_evaluation_hooks_cannot_fetch(tmp_path):
    made, given = Recorder(), Recorder()
    evaluated = estimator(
        tmp_path, dict.fromkeys(("evaluation_hooks", "prediction_hooks"), lambda: [made])
    )
    others = [tf.train.SummarySaverHook(), tf.train.LoggingTensorHook(["a"], every_n_iter=1)]
    evaluated.evaluate(input_fn, steps=2, hooks=[given, *others])
    assert given.calls == ["begin", "created", *["before", "after"] * 2, "end"] == made.calls
    list(evaluated.predict(lambda: tf.data.Dataset.from_tensor_slices(X).batch(20)))
    assert made.calls[-6:] == ["created", *["before", "after"] * 2, "end"]
    with pytest.raises(ValueError, match="fetches the_loss in an evaluation"):
        evaluated.evaluate(input_fn, hooks=[Recorder("the_loss")])


def test_early_stopping(tmp_path):
    own = estimator(tmp_path, save_checkpoints_steps=2)
    stop = tf.estimator.experimental.stop_if_lower_hook(own, "loss", 0.5, min_steps=2)
    spec = tf.estimator.TrainSpec(lambda: input_fn().repeat(), max_steps=50, hooks=[stop])
    tf.estimator.train_and_evaluate(own, spec, tf.estimator.EvalSpec(input_fn, throttle_secs=0))
    assert 2 <= own.get_variable_value("global_step") < 50
    asked = tf.estimator.experimental.make_early_stopping_hook(own, lambda: True, run_every_steps=5)
    before = own.get_variable_value("global_step")
    own.train(lambda: input_fn().repeat(), hooks=[asked], steps=30)
    assert own.get_variable_value("global_step") - before <= 5


def test_exporters(tmp_path):
    def receiver_fn():
        x = tf.placeholder(tf.float32, [None, 1], "x")
        return tf.estimator.export.ServingInputReceiver(x, {"x": x})

    class Own(tf.estimator.Exporter):
        name = "own"
        calls = 0

        def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
            Own.calls += 1

    compared = []

    def better(best_eval_result, current_eval_result):
        compared.append((best_eval_result["loss"], current_eval_result["loss"]))
        return False

    exporters = [
        tf.estimator.BestExporter("best", receiver_fn, compare_fn=better, exports_to_keep=1),
        tf.estimator.LatestExporter("latest", receiver_fn, exports_to_keep=2),
        tf.estimator.FinalExporter("final", receiver_fn),
        Own(),
    ]
    own = estimator(tmp_path, save_checkpoints_steps=2)
    spec = tf.estimator.TrainSpec(input_fn, max_steps=6)
    tf.estimator.train_and_evaluate(
        own, spec, tf.estimator.EvalSpec(input_fn, exporters=exporters, throttle_secs=0)
    )
    names = "best", "latest", "final"
    count = {n: len(tf.gfile.Glob(f"{tmp_path}/export/{n}/[0-9]*")) for n in names}
    assert count == {"best": 1, "latest": 2, "final": 1}
    assert Own.calls == len(compared) + 1 >= 3
    assert all(now < best for best, now in compared)
