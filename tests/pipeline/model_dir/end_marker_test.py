"""What training leaves in model_dir when it ends, however it ends."""

import contextlib
import json

import pytest

import pipeline as ge
from pipeline.checkpoints import checkpoint
from pipeline.cluster import tf_config
from pipeline.model_dir import end_marker
from pipeline.model_dir.end_marker import EndMarker
from pipeline.roles import train_and_evaluate
from tests import fakes

X, Y = fakes.classification_data(rows=40)
EVAL = fakes.make_input_fn(X, Y, batch_size=20)
TRAIN = fakes.make_input_fn(X, Y, batch_size=8, change=lambda d: d.repeat())
ONCE = fakes.make_input_fn(X, Y, batch_size=8)
BROKEN = fakes.make_input_fn(X * float("nan"), Y, batch_size=8)


def test_it_is_read_as_it_was_written(tmp_path):
    model_dir = str(tmp_path / "new")
    assert end_marker.read(model_dir) is None
    end_marker.remove(model_dir)
    marker = EndMarker(
        step=40, reason="stopped", details=("a", "b"), checkpoint_step=30, time=1.5
    )
    end_marker.write(model_dir, marker)
    assert end_marker.read(model_dir) == marker
    plain = json.loads((tmp_path / "new/training_ended.json").read_text())
    assert (plain["step"], plain["reason"], plain["time"]) == (40, "stopped", 1.5)
    end_marker.remove(model_dir)
    assert end_marker.read(model_dir) is None


@pytest.mark.parametrize(
    ("reason", "details", "text"),
    [
        ("finished", (), "training has finished at step 7"),
        ("stopped", ("a", "b"), "training was stopped at step 7: a; b"),
        ("failed", ("OSError: no",), "training has failed at step 7: OSError: no"),
    ],
)
def test_in_words(reason, details, text):
    assert str(EndMarker(step=7, reason=reason, details=details, time=0.0)) == text


class Does(ge.Hook):
    """Calls a function at every step."""

    every_steps = 1

    def __init__(self, act):
        self.act = act

    def after_step(self, run):
        self.act(run)


def spec(act=lambda run: None, *, input_fn=TRAIN, max_steps=5):
    return ge.TrainSpec(input_fn, max_steps=max_steps, hooks=[Does(act)])


def ended(model_dir, train_spec, **config):
    """The marker's fields after a training; time aside."""
    config = {"save_checkpoints_steps": 2, **config}
    estimator = fakes.make_estimator(model_dir, **config)
    train_and_evaluate.train(estimator, train_spec)
    marker = end_marker.read(str(model_dir))
    return marker.step, marker.reason, marker.details, marker.checkpoint_step


def stop_at_3(run):
    if run.step == 3:
        run.request_stop("no progress for 2 evaluations")


def test_max_steps(tmp_path):
    assert ended(tmp_path, spec()) == (5, "finished", (), 5)
    # Nothing is left to do.
    assert ended(tmp_path, spec()) == (5, "finished", (), 5)


def test_the_input_ended(tmp_path):
    assert ended(tmp_path, spec(input_fn=ONCE, max_steps=None)) == (
        5,
        "finished",
        (),
        5,
    )


def test_a_hook_stopped_it(tmp_path):
    assert ended(tmp_path, spec(stop_at_3)) == (
        3,
        "stopped",
        ("no progress for 2 evaluations",),
        3,
    )


def test_a_hook_stopped_it_where_it_would_have_ended(tmp_path):
    assert ended(tmp_path, spec(stop_at_3, max_steps=3))[:3] == (3, "finished", ())


def test_no_checkpoint_was_saved(tmp_path):
    assert ended(tmp_path, spec(), save_checkpoints_steps=0) == (
        5,
        "finished",
        (),
        None,
    )


def raising(error):
    def act(run):
        if run.step == 3:
            raise error

    return act


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (OSError("no\nspace"), "OSError: no"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (ge.SpecError("wrong"), "SpecError: wrong"),
    ],
)
def test_an_error_of_a_hook(error, detail, tmp_path):
    with pytest.raises(type(error)):
        ended(tmp_path, spec(raising(error)))
    marker = end_marker.read(str(tmp_path))
    assert (marker.step, marker.reason, marker.details) == (3, "failed", (detail,))
    assert marker.checkpoint_step == 2


def test_a_loss_of_nan(tmp_path):
    with pytest.raises(ge.NanLossDuringTrainingError):
        ended(tmp_path, spec(input_fn=BROKEN))
    marker = end_marker.read(str(tmp_path))
    assert (marker.reason, marker.checkpoint_step) == ("failed", 0)
    assert marker.details[0].startswith("NanLossDuringTrainingError: the loss was NaN")


def test_an_error_before_the_first_step(tmp_path):
    def input_fn():
        raise ValueError("no data")

    with pytest.raises(ValueError, match="no data"):
        ended(tmp_path, spec(input_fn=input_fn))
    marker = end_marker.read(str(tmp_path))
    assert (marker.step, marker.reason, marker.checkpoint_step) == (0, "failed", None)


def test_it_is_removed_while_training_goes_on_again(tmp_path):
    ended(tmp_path, spec())
    seen = []
    ended(
        tmp_path, spec(lambda run: seen.append(end_marker.read(tmp_path)), max_steps=8)
    )
    assert seen == [None] * 3
    assert end_marker.read(str(tmp_path)).step == 8


def test_a_plain_train_removes_it(tmp_path):
    """Else an evaluator would end while this goes on."""
    ended(tmp_path, spec())
    fakes.make_estimator(tmp_path).train(TRAIN, max_steps=8)
    assert end_marker.read(str(tmp_path)) is None


def test_the_last_checkpoint_is_there_first(tmp_path, monkeypatch):
    """Saving is asynchronous."""
    committed = []

    def write(model_dir, marker):
        del marker
        committed.extend(checkpoint.committed(model_dir))

    monkeypatch.setattr(end_marker, "write", write)
    estimator = fakes.make_estimator(tmp_path, async_checkpoint=True)
    train_and_evaluate.train(estimator, spec())
    assert committed[-1] == f"{tmp_path}/model.ckpt-5"


def test_train_and_evaluate_leaves_it_too(tmp_path):
    estimator = fakes.make_estimator(tmp_path)
    ge.train_and_evaluate(estimator, spec(), ge.EvalSpec(EVAL))
    assert end_marker.read(str(tmp_path)).step == 5


class OtherWorker:
    """An Estimator of a task that is not the chief."""

    def __init__(self, model_dir):
        self.model_dir = str(model_dir)
        jobs = {"worker": ("h0:1", "h1:1")}
        self.config = ge.RunConfig(
            model_dir=self.model_dir, cluster=tf_config.Cluster(task_id=1, jobs=jobs)
        )

    def along(self, evaluations):
        return contextlib.nullcontext()

    def train(self, input_fn, **options):
        pass


def test_the_chief_alone_leaves_it(tmp_path):
    ended(tmp_path, spec())
    before = end_marker.read(str(tmp_path))
    train_and_evaluate.train(OtherWorker(tmp_path), spec())
    assert end_marker.read(str(tmp_path)) == before


def test_an_evaluator_does_not_train(tmp_path):
    config = {"cluster": tf_config.Cluster(task_type="evaluator")}
    estimator = fakes.make_estimator(tmp_path, **config)
    with pytest.raises(ValueError) as error:
        train_and_evaluate.train(estimator, spec())
    assert (
        "this task is an evaluator (evaluator 0 of no cluster), which does not train: "
        "call train_and_evaluate" in str(error.value)
    )
