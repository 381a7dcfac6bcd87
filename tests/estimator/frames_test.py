"""How many functions of this project are above the user's in a traceback, and what it refuses."""

import traceback

import pytest
import tensorflow as tf

import gin_estimator as ge
from small import eval_input, features_input, make, model_fn, train_input

MOST = {"train": 15, "eval": 15, "hook": 8}


def test_few_frames_are_above_functions_of_the_user(tmp_path):
    found = {}

    def count(name):
        files = [frame.filename for frame in traceback.extract_stack()]
        number = sum("/pipeline/" in file for file in files)
        found[name] = max(found.get(name, 0), number)

    def counted_fn(features, labels, mode, network, optimizer):
        count(mode)
        return model_fn(features, labels, mode, network, optimizer)

    class Training(ge.Hook):
        every_steps = 1

        def after_step(self, run):
            count("hook")

        def after_evaluation(self, run, name, metrics):
            count("hook")

    class Evaluating(ge.Hook):
        def begin(self, run):
            count("hook")

        def after_loop(self, run):
            count("hook")

    train = ge.TrainSpec(train_input, max_steps=2, hooks=[Training()])
    evaluation = ge.EvalSpec(eval_input, hooks=[Evaluating()])
    ge.train_and_evaluate(make(tmp_path, fn=counted_fn), train, evaluation)
    assert found.keys() == MOST.keys()
    assert all(0 < found[name] <= MOST[name] for name in MOST), found


def test_what_only_another_call_would_find_is_refused_before_training(tmp_path):
    best = ge.EvalSpec(eval_input, keep_best=ge.KeepBest("acuracy", higher_is_better=True))
    with pytest.raises(ge.UserError, match=r"'accuracy', 'loss'\]. Did you mean accuracy"):
        ge.train_and_evaluate(make(tmp_path), ge.TrainSpec(train_input, max_steps=1), best)

    unsaved = make(tmp_path, save_checkpoints_steps=0)
    with pytest.raises(ge.UserError, match="keep_best is set, and .*save_checkpoints_steps is 0"):
        spec = ge.EvalSpec(eval_input, keep_best=ge.KeepBest("loss"))
        ge.train_and_evaluate(unsaved, ge.TrainSpec(train_input, max_steps=1), spec)

    def ints(features):
        return tf.cast(features, tf.int64)

    # Beside an evaluator job, too: EVAL yields other features.
    other = ge.EvalSpec(lambda: eval_input().map(lambda x, y: (ints(x), y)))
    beside = make(tmp_path, evaluation="evaluator")
    with pytest.raises(ge.UserError, match="of int64 in mode 'eval', and of float32"):
        ge.train_and_evaluate(beside, ge.TrainSpec(train_input, max_steps=1), other)
    assert not list(tmp_path.glob("model.ckpt-*"))


def test_a_notebook_shows_the_frames_of_the_user_and_the_message():
    """IPython calls this method of an error."""

    with pytest.raises(ge.UserError) as error:
        ge.RunConfig(on_nan="stopp")
    place, source, message = error.value._render_traceback_()
    assert __file__ in place and "ge.RunConfig(" in source
    assert message.startswith("UserValueError: RunConfig.on_nan is 'stopp': expected ")


def test_a_pair_of_features_is_asked_for_as_one(tmp_path):
    def pair_fn(features, labels, mode, network, optimizer):
        first = features[0] if isinstance(features, tuple) else features
        return model_fn(first, labels, mode, network, optimizer)

    def pairs():
        return train_input().map(lambda x, y: ((x, x), y))

    one = make(tmp_path, fn=pair_fn)
    one.train(pairs, max_steps=1)
    with pytest.raises(ge.UserError, match=r"set each element to \(\(a, b\), None\)"):
        list(one.predict(lambda: features_input().map(lambda x: (x, x))))


def test_all_hooks_end_and_the_first_error_is_raised(tmp_path):
    ended = []

    class Ends(ge.Hook):
        def __init__(self, name):
            self.name = name

        def end(self, run):
            ended.append(self.name)
            raise ValueError(self.name)

    class Listener(ge.SavingListener):
        def before_save(self, run):
            if run.step:
                raise KeyError("listener")

        def end(self, run):
            ended.append("listener")

    one = make(tmp_path)
    with pytest.raises(ValueError, match="a") as caught:
        one.train(train_input, [Ends("a"), Ends("b")], max_steps=1, saving_listeners=[])
    assert ended == ["a", "b"]
    assert any("failed as well: ValueError: b" in note for note in caught.value.__notes__)
    with pytest.raises(KeyError) as caught:
        one.train(train_input, max_steps=2, saving_listeners=[Listener()])
    [note] = caught.value.__notes__
    assert "saving listener Listener.before_save, step 2" in note and __file__ in note
