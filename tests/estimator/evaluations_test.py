"""Evaluations of a training, after a kill, in hooks; predictions; calls without a checkpoint."""

import json
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import gin_estimator as ge
from small import (
    Y,
    Do,
    X,
    checkpoints,
    data,
    eval_input,
    features_input,
    make,
    model_fn,
    points,
    train_input,
    weights,
)


class Evaluated(ge.Hook):
    """Counts evaluations, and keeps the count in checkpoints."""

    def __init__(self, fail_at=None, stop_at=None):
        self.seen = []
        self.fail_at, self.stop_at = fail_at, stop_at

    def after_evaluation(self, run, name, metrics):
        self.seen.append((name, run.step))
        if run.step == self.fail_at:
            raise RuntimeError("killed")
        if run.step == self.stop_at:
            run.request_stop("good enough")

    def state(self):
        return self.seen

    def restore(self, run, state):
        self.seen = [tuple(each) for each in state]


def kill(run):
    raise RuntimeError("killed")


class Exported(ge.Exporter):
    """Records each call, and whether the files of the checkpoint exist."""

    default_name = "exported"

    def __init__(self):
        super().__init__()
        self.seen = []

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_final):
        names = [] if checkpoint_path is None else tf.io.gfile.glob(f"{checkpoint_path}*")
        self.seen.append((eval_result["global_step"], len(names), is_final))


def lines(folder):
    return [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_every_steps_evaluates_live_weights_saved_or_not(tmp_path):
    hook, exporter = Evaluated(), Exported()
    specs = [
        ge.EvalSpec(eval_input, name="often", every_steps=3),
        ge.EvalSpec(eval_input, name="files", every_steps=5, exporters=exporter),
        ge.EvalSpec(eval_input, name="saved", at_start=True),
    ]
    one = make(tmp_path, save_checkpoints_steps=4)
    metrics, _ = ge.train_and_evaluate(one, ge.TrainSpec(train_input, 7, [hook]), specs)
    final = [("often", 7), ("files", 7), ("saved", 7)]
    assert hook.seen == [
        *[("saved", 0), ("often", 3), ("saved", 4), ("files", 5), ("often", 6)],
        *final,
    ]
    assert exporter.seen == [(5, 2, False), (7, 2, True)]
    assert checkpoints(tmp_path) == [0, 4, 5, 7]  # Step 5 has the exporter's files.
    assert [line["checkpoint"] for line in lines(tmp_path / "eval_often")] == [
        None,
        None,
        "model.ckpt-7",
    ]
    assert metrics["often"] == metrics["saved"]
    # Nothing of it changes the training, and the numbers are those of a checkpoint.
    other = make(tmp_path / "other", save_checkpoints_steps=3)
    other.train(train_input, max_steps=7)
    np.testing.assert_array_equal(weights(one), weights(other))
    path = str(tmp_path / "other" / "model.ckpt-6")
    loss = make(tmp_path / "third").evaluate(eval_input, checkpoint_path=path)["loss"]
    assert lines(tmp_path / "eval_often")[1]["metrics"]["loss"] == pytest.approx(loss, abs=1e-6)
    unsaved, exporter = make(tmp_path / "unsaved", save_checkpoints_steps=0), Exported()
    spec = ge.EvalSpec(eval_input, every_steps=3, exporters=[exporter])
    result, _ = ge.train_and_evaluate(unsaved, ge.TrainSpec(train_input, 7), spec)
    assert exporter.seen == [(3, 0, False), (6, 0, False), (7, 0, True)]
    assert result["loss"] == pytest.approx(metrics["often"]["loss"], abs=1e-6)
    assert not (tmp_path / "unsaved").exists()


@pytest.mark.slow
def test_evaluations_that_a_killed_run_owes_are_made_first(tmp_path):
    def train(*hooks):
        specs = [ge.EvalSpec(eval_input, name=name) for name in ("a", "b")]
        one = make(tmp_path, save_checkpoints_steps=5, keep_checkpoint_max=None)
        ge.train_and_evaluate(one, ge.TrainSpec(train_input, 12, list(hooks)), specs)

    with pytest.raises(RuntimeError, match="killed") as caught:
        train(Evaluated(fail_at=10))  # In the evaluations of step 10, which were recorded.
    assert "hook Evaluated.after_evaluation, step 10" in caught.value.__notes__[0]
    record = tmp_path / "eval_b" / "evaluations.jsonl"
    assert [line["step"] for line in lines(record.parent)] == [5, 10]
    record.write_text(record.read_text().splitlines(keepends=True)[0])  # As after a kill.
    hook = Evaluated()
    with pytest.raises(RuntimeError, match="killed"):
        train(hook, Do(kill, every_steps=11))
    both = [("a", 5), ("b", 5), ("a", 10), ("b", 10)]
    assert hook.seen == both  # Once each: the recorded result of "a" was sent again.
    assert [line["step"] for line in lines(record.parent)] == [5, 10]
    hook = Evaluated()
    train(hook)
    assert hook.seen == [*both, ("a", 12), ("b", 12)]
    assert [line["step"] for line in lines(tmp_path / "eval_a")] == [5, 10, 12]


@pytest.mark.slow
def test_an_evaluation_that_fails_does_not_lose_the_others(tmp_path):
    def wrong(x, y):
        tf.debugging.assert_less(x, -1e9)
        return x, y

    specs = [
        ge.EvalSpec(lambda: eval_input().map(wrong), name="bad"),
        ge.EvalSpec(eval_input, name="good"),
    ]
    one = make(tmp_path, save_checkpoints_steps=2)
    with pytest.raises(Exception, match="did not hold") as caught:
        ge.train_and_evaluate(one, ge.TrainSpec(train_input, 4), specs)
    assert any("eval bad of step 2 failed" in note for note in caught.value.__notes__)
    assert [line["step"] for line in lines(tmp_path / "eval_good")] == [2]
    assert checkpoints(tmp_path) == [0, 2]
    specs[0] = ge.EvalSpec(eval_input, name="bad")
    hook = Evaluated()
    ge.train_and_evaluate(make(tmp_path), ge.TrainSpec(train_input, 4, [hook]), specs)
    assert sorted(hook.seen) == [("bad", 2), ("bad", 4), ("good", 2), ("good", 4)]


def test_hooks_of_an_evaluation(tmp_path, caplog):
    class Loops(ge.Hook):
        def __init__(self, stop=False):
            self.calls, self.stop = [], stop

        def begin(self, run):
            self.calls.append(("begin", run.step))

        def after_loop(self, run):
            self.calls.append((run.report.num_steps, run.step))
            if self.stop:
                run.request_stop("good enough")

        def end(self, run):
            self.calls.append(("end", run.report.num_examples))

    one = make(tmp_path, save_checkpoints_steps=2, max_loop_secs=600)
    hook = Loops()
    one.train(train_input, max_steps=1)
    one.evaluate(eval_input, hooks=[hook])
    assert hook.calls == [("begin", 1), (1, 1), (3, 1), (5, 1), ("end", 40)]
    stopping = ge.EvalSpec(eval_input, name="dev", hooks=[Loops(stop=True)])
    ge.train_and_evaluate(one, ge.TrainSpec(train_input, 9), stopping)
    assert one.last_run.stop_reason == "evaluation dev: good enough"
    assert one.state.step == 2
    assert lines(tmp_path / "eval_dev")[-1]["stop"] == ["good enough"]


@pytest.mark.slow
@pytest.mark.parametrize("devices", [None, ("CPU:0", "CPU:1")])
def test_calls_in_a_hook_change_nothing(tmp_path, devices):
    def network():
        keras.utils.set_random_seed(1)
        return keras.Sequential(
            [
                keras.layers.Dense(8),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.5),
                keras.layers.Dense(3),
            ]
        )

    losses = []

    def use(run):
        losses.append(one.evaluate(eval_input)["loss"])
        assert len(list(one.predict(features_input))) == 40
        one.export_saved_model(str(tmp_path / "exports"))
        if run.step > 2:
            with pytest.raises(ge.errors.UserRuntimeError, match="would be lost"):
                one.evaluate(eval_input, checkpoint_path=str(tmp_path / "a/model.ckpt-0"))
            with pytest.raises(ge.errors.UserRuntimeError, match="while this Estimator trains"):
                one.train(train_input, steps=1)

    one = make(tmp_path / "a", network=network, save_checkpoints_steps=4, devices=devices)
    one.train(train_input, [Do(use, every_steps=2)], max_steps=6)
    every = 4 if devices else 2  # On several replicas a save averages moving statistics.
    other = make(tmp_path / "b", network=network, save_checkpoints_steps=every, devices=devices)
    other.train(train_input, max_steps=6)
    np.testing.assert_array_equal(weights(one), weights(other))
    if devices is None:
        for step, loss in zip((2, 4, 6), losses, strict=True):
            path = str(tmp_path / f"b/model.ckpt-{step}")
            saved = other.evaluate(eval_input, checkpoint_path=path)
            assert saved["loss"] == pytest.approx(loss, abs=1e-6)


def test_an_evaluation_in_a_training_is_on_its_strategy_and_has_the_live_weights(tmp_path, caplog):
    def evaluate(run):
        logits = one.state.modules["network"](X)
        losses = keras.losses.sparse_categorical_crossentropy(Y, logits, from_logits=True)
        expected.append(float(np.mean(losses)))
        actual.append(one.evaluate(eval_input)["loss"])

    one = make(tmp_path, eval_distribute=tf.distribute.OneDeviceStrategy("CPU:0"))
    expected, actual = [], []
    one.train(train_input, [Do(evaluate)], max_steps=3)
    assert len(set(expected)) == 3
    assert actual == pytest.approx(expected, rel=1e-5)
    assert "eval_distribute has no effect" in caplog.text


def test_eval_distribute_has_no_effect_in_an_evaluation_of_this_process(tmp_path, caplog):
    one_device = tf.distribute.OneDeviceStrategy("CPU:0")
    same = make(tmp_path, train_distribute=one_device, eval_distribute=one_device)
    same.evaluate(eval_input)
    assert "eval_distribute has no effect" not in caplog.text
    make(tmp_path, eval_distribute=one_device).evaluate(eval_input)
    assert "eval_distribute has no effect: this process evaluates" in caplog.text


@pytest.mark.slow
def test_layers_of_another_mode_are_refused_during_a_training(tmp_path):
    def own(features, labels, mode, network, optimizer):
        layer = network.layers[0] if mode == "train" else network.layers[-1]
        logits = layer(features)
        loss = tf.reduce_mean(tf.square(logits), -1)
        op = ge.TrainOp(optimizer, network.layers[0].trainable_variables)
        return ge.EstimatorSpec(mode, loss=loss, train_op=op)

    one = make(tmp_path, fn=own)
    with pytest.raises(ge.errors.SpecError, match="created .*kernel.* during a training"):
        one.train(train_input, [Do(lambda run: one.evaluate(eval_input))], max_steps=1)
    assert not one.state.is_training


def test_repeated_calls_trace_nothing(tmp_path):
    modes = []

    def counted(features, labels, mode, network, optimizer):
        modes.append(mode)
        return model_fn(features, labels, mode, network, optimizer)

    one = make(tmp_path, fn=counted)
    one.train(train_input, max_steps=1)

    def use(size):
        for _ in range(3):
            one.evaluate(lambda: data(size))
            list(one.predict(lambda: features_input()))
        return len(modes)

    first = use(8)
    assert use(8) == first
    assert use(5) == first  # The last batch may have another size as well.


def test_predictions_of_an_endless_input_and_a_policy_that_has_no_effect_are_warned_of(
    tmp_path, caplog
):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        predictions = make(tmp_path).predict(lambda: features_input().repeat())
        assert next(predictions)["logits"].dtype == np.float32
    finally:
        keras.config.set_dtype_policy("float32")
    predictions.close()
    assert "an input without end" in caplog.text
    assert "RunConfig(precision='mixed_bfloat16')" in caplog.text


def test_predictions(tmp_path):
    class Count(ge.Hook):
        def __init__(self):
            self.calls = []

        def begin(self, run):
            self.calls.append("begin")

        def after_loop(self, run):
            self.calls.append("loop")

        def end(self, run):
            self.calls.append("end")

    calls = []

    def input_fn():
        calls.append(0)
        return features_input()

    one, hook = make(tmp_path), Count()
    one.train(train_input, max_steps=2)
    lazy = one.predict(input_fn, hooks=[hook])
    assert not calls and not hook.calls
    rows = list(lazy)
    assert hook.calls == ["begin", *["loop"] * 5, "end"]
    assert sorted(rows[0]) == ["logits", "twice"]
    twice = list(one.predict(input_fn, "twice", yield_single_examples=False))
    assert [list(batch) for batch in twice] == [["twice"]] * 5
    np.testing.assert_allclose(
        np.concatenate([batch["twice"] for batch in twice]), [2 * row["logits"] for row in rows]
    )
    with pytest.raises(ge.errors.UserValueError, match=r"\['other'\].*\['logits', 'twice'\]"):
        next(one.predict(input_fn, ["logits", "other"]))
    opened = one.predict(input_fn, yield_single_examples=False)
    next(opened)
    one.evaluate(eval_input)  # Of the same weights.
    next(opened)
    one.train(train_input, steps=1)
    with pytest.raises(ge.errors.UserRuntimeError, match=r"list\(estimator.predict"):
        next(opened)


def test_calls_without_a_checkpoint_use_initial_weights(tmp_path, caplog):
    one = make(tmp_path)
    metrics = one.evaluate(eval_input)
    assert metrics["global_step"] == 0
    assert list(metrics) == ["loss", "accuracy", "global_step"]
    assert len(list(one.predict(features_input))) == 40
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(warnings) == 2 and all("the weights are initial values" in w for w in warnings)
    caplog.clear()
    nothing = ge.WarmStartSettings(str(tmp_path / "other"), vars_to_warm_start=None)
    make(tmp_path / "other").train(train_input, steps=1)
    ge.Estimator(
        model_fn, str(tmp_path / "new"), warm_start_from=nothing, modules=one.factories
    ).evaluate(eval_input)
    assert "the weights are initial values" in caplog.text
    for call in (
        lambda: one.export_saved_model(str(tmp_path / "export")),
        lambda: one.export_weights("network", str(tmp_path / "a.weights.h5")),
        one.get_variable_names,
    ):
        with pytest.raises(ge.errors.UserRuntimeError, match="train first"):
            call()


def test_an_evaluation_that_cannot_be_written_is_warned_of(tmp_path, caplog):
    one = make(tmp_path)
    (tmp_path / "eval").write_text("As on a disk that is read-only.")
    assert one.evaluate(eval_input)["global_step"] == 0
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(warnings) == 2 and f"not written to {tmp_path}/eval" in warnings[1]


@pytest.mark.slow
def test_a_deleted_model_dir_begins_again(tmp_path):
    one = make(tmp_path / "run")
    first = one.evaluate(eval_input)["loss"]
    one.train(train_input, max_steps=3)
    assert one.evaluate(eval_input)["loss"] != pytest.approx(first)
    shutil.rmtree(tmp_path / "run")
    assert one.evaluate(eval_input) == pytest.approx({**one.evaluate(eval_input), "loss": first})
    one.train(train_input, max_steps=2)
    assert checkpoints(tmp_path / "run") == [0, 2]


@pytest.mark.slow
@pytest.mark.oldest
def test_weights_for_plain_keras(tmp_path):
    one = make(tmp_path)
    one.train(train_input, max_steps=3)
    path = one.export_weights("network", str(tmp_path / "w" / "network.weights.h5"))
    plain = keras.Sequential(
        [keras.layers.Dense(8), keras.layers.Dropout(0.2), keras.layers.Dense(3)]
    )
    plain.build((None, 4))
    plain.load_weights(path)
    rows = [row["logits"] for row in one.predict(features_input)]
    np.testing.assert_allclose(plain(X).numpy(), rows, atol=1e-5)
    with pytest.raises(ge.UserError, match=r"expected the name of a Keras model, \['network'"):
        one.export_weights("optimizer", path)
    with pytest.raises(ge.errors.UserValueError, match="ends with .weights.h5"):
        one.export_weights("network", str(tmp_path / "network.h5"))
    with pytest.raises(ge.errors.UserValueError, match="has no variables yet"):
        make(tmp_path).export_weights("network", path)


def test_an_overridden_train_is_called(tmp_path):
    class Own(ge.Estimator):
        calls = 0

        def train(self, input_fn, hooks=None, steps=None, max_steps=None, saving_listeners=None):
            self.calls += 1
            return super().train(input_fn, hooks, steps, max_steps, saving_listeners)

    base = make(tmp_path)
    own = Own(base._model_fn, modules=base._factories, config=base.config)
    metrics, _ = ge.train_and_evaluate(own, ge.TrainSpec(train_input, 2), ge.EvalSpec(eval_input))
    assert own.calls == 1 and metrics["global_step"] == 2
    own.train(train_input, steps=1)
    assert [line["step"] for line in lines(tmp_path / "eval")] == [2]
    assert sorted(points(tmp_path / "eval")["loss"]) == [2]
    assert len(X) == len(Y)


def test_the_direction_of_a_metric():
    for name in ("loss", "val_error", "accuracy", "eval/AUC"):
        ge.KeepBest(name)
        ge.BestExporter(metric=name)
    for name in ("score", "loss_scale"):
        for make_rule in (ge.KeepBest, lambda name: ge.BestExporter(metric=name)):
            with pytest.raises(ge.errors.UserValueError, match="higher_is_better to True or False"):
                make_rule(name)


def test_predictions_without_a_row_for_each_example_are_not_cut(tmp_path):
    def model_fn(features, mode):
        return ge.EstimatorSpec(mode, predictions={"a": features, "top": tf.range(7.0)})

    estimator = ge.Estimator(model_fn, modules={}, config=ge.RunConfig(str(tmp_path)))

    def input_fn():
        return tf.data.Dataset.range(4).batch(2)

    with pytest.raises(ge.UserError, match="predictions have the shapes .*yield_single"):
        next(estimator.predict(input_fn))
    assert len(next(estimator.predict(input_fn, yield_single_examples=False))["top"]) == 7
    assert list(estimator.predict(input_fn, "a")) == [{"a": i} for i in range(4)]
