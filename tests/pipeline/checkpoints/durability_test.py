"""Damaged checkpoints, killed runs: nothing good is lost."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.checkpoints import checkpoint, checkpoint_reader
from pipeline.driver import recipe, runtime
from pipeline.feed import position
from pipeline.model_dir import claim, end_marker
from pipeline.roles import evaluator
from tests import fakes, patience
from tests.clusters import ROOT
from tests.interrupted import DATA, EVAL, INDEX, PREDICT, TRAIN, X, equal, make, path


@pytest.fixture
def trained(tmp_path, straight):
    """Another one, of which step 4 is the last."""
    folder = tmp_path / "run"
    shutil.copytree(straight, folder)
    for file in (*folder.glob("model.ckpt-6*"), *folder.glob("input/model.ckpt-6*")):
        file.unlink()
    state = (folder / "checkpoint").read_text().splitlines()
    kept = [line for line in state[1:] if "ckpt-6" not in line]
    times = [line for line in kept if "timestamps" in line]
    kept.remove(times[-1])
    first = 'model_checkpoint_path: "model.ckpt-4"'
    (folder / "checkpoint").write_text("\n".join([first, *kept]) + "\n")
    assert make(folder).global_step == 4
    return folder


def cut(path, keep=100):
    os.truncate(path, keep)


def flip(path, place=None):
    data = bytearray(path.read_bytes())
    data[len(data) // 3 if place is None else place] ^= 1
    path.write_bytes(data)


def flip_network(path):
    """What every mode needs; much of the file is optimizer and TensorFlow's graph."""
    reader = tf.train.load_checkpoint(str(path).removesuffix(DATA))
    keys = reader.get_variable_to_shape_map()
    (key, _) = sorted(k for k in keys if re.match("network/.*kernel", k))
    flip(path, path.read_bytes().index(reader.get_tensor(key).tobytes()) + 5)


FAULTS = {
    "data_cut_short": (cut, DATA, "is cut short"),
    "data_flipped": (flip_network, DATA, "Checksum does not match"),
    "data_empty": (lambda path: cut(path, 0), DATA, "is cut short"),
    "data_missing": (pathlib.Path.unlink, DATA, "No such file"),
    "index_cut_short": (cut, INDEX, "not an sstable"),
    "index_flipped": (flip, INDEX, "mismatch"),
    "index_empty": (lambda path: cut(path, 0), INDEX, "too short"),
    "index_missing": (pathlib.Path.unlink, INDEX, "there is no "),
}


def damage(model_dir, step, fault="data_flipped"):
    change, suffix, reason = FAULTS[fault]
    change(model_dir / f"model.ckpt-{step}{suffix}")
    return reason


@pytest.mark.parametrize("fault", FAULTS)
def test_training_goes_on_from_the_one_before(fault, trained, straight, caplog):
    reason = damage(trained, 4, fault)
    with caplog.at_level("WARNING", logger="absl"):
        assert make(trained).evaluate(EVAL)["global_step"] == 2
        assert f"checkpoint {trained}/model.ckpt-4 cannot be read: " in caplog.text
        assert reason in caplog.text
        # Who only reads changes nothing.
        assert not (trained / "unreadable").exists()
        caplog.clear()
        make(trained).train(TRAIN, max_steps=6)
    assert f"checkpoint {trained}/model.ckpt-4 cannot be read: " in caplog.text
    assert reason in caplog.text
    assert f"Going on from step 2, of {trained}/model.ckpt-2" in caplog.text
    assert fakes.checkpoint_steps(trained) == [0, 2, 4, 6]
    assert list((trained / "unreadable").glob("model.ckpt-4*"))
    assert equal(trained, straight)


@pytest.mark.parametrize("large", [1, 2**20])
def test_two_damaged_ones_are_passed_over(
    large, trained, straight, caplog, monkeypatch
):
    """Whether values count as large, which are first read in place, or not."""
    monkeypatch.setattr(checkpoint_reader, "_LARGE_BYTES", large)
    damage(trained, 4)
    damage(trained, 2, "data_cut_short")
    make(trained).train(TRAIN, steps=1)
    assert "Going on from step 0, of" in caplog.text
    # What is the latest, is, whatever was before it.
    assert make(trained).global_step == 1
    assert fakes.checkpoint_steps(trained) == [0, 1]
    make(trained).train(TRAIN, max_steps=6)
    assert equal(trained, straight)


def test_a_finished_run_with_a_damaged_end_is_finished_again(trained, straight, caplog):
    make(trained).train(TRAIN, max_steps=6)
    damage(trained, 6)
    metrics, _ = ge.train_and_evaluate(
        make(trained), ge.TrainSpec(TRAIN, max_steps=6), ge.EvalSpec(EVAL)
    )
    assert metrics["global_step"] == 6
    assert "not training" not in caplog.text
    assert equal(trained, straight)


def test_where_none_can_be_read_training_does_not_begin_anew(trained):
    for step in (0, 2, 4):
        damage(trained, step)
    with pytest.raises(ge.UnreadableCheckpointError) as error:
        make(trained).train(TRAIN, max_steps=6)
    assert f"checkpoint {trained}/model.ckpt-0 cannot be read" in str(error.value)
    assert "There is none before it either: to begin anew at step 0, " in str(
        error.value
    )
    assert not (trained / "unreadable").exists()


def test_predict_and_export_take_the_one_before(trained):
    damage(trained, 4)
    expected = list(make(trained).predict(PREDICT, checkpoint_path=path(trained, 2)))
    found = list(make(trained).predict(PREDICT))
    np.testing.assert_array_equal(found[0]["logits"], expected[0]["logits"])
    estimator = make(trained)
    list(estimator.predict(PREDICT))
    exported = estimator.export_saved_model(str(trained / "export"))
    served = tf.saved_model.load(exported).signatures["serving_default"]
    (name,) = served.structured_input_signature[1]
    logits = served(**{name: tf.constant(X[:1])})["logits"]
    np.testing.assert_allclose(logits[0], expected[0]["logits"], rtol=1e-5)


@pytest.mark.parametrize("job", ["evaluate", "predict", "export_saved_model"])
def test_one_that_was_asked_for_by_name_is_an_error(job, trained):
    damage(trained, 2)
    estimator = make(trained)
    list(estimator.predict(PREDICT))
    argument = {"evaluate": EVAL, "predict": PREDICT}.get(job, str(trained / "export"))
    with pytest.raises(ge.UnreadableCheckpointError) as error:
        getattr(estimator, job)(argument, checkpoint_path=path(trained, 2))
    assert f"checkpoint {path(trained, 2)} cannot be read: " in str(error.value)


@pytest.mark.parametrize("large", [0, 100, 2**20])
def test_nothing_is_half_restored(large, tmp_path, monkeypatch):
    """Whether values count as large, which are read twice, or not."""
    monkeypatch.setattr(checkpoint_reader, "_LARGE_BYTES", large)
    values = {name: [float(number)] * 50 for number, name in enumerate("abc", 1)}
    saved = {"net": {name: tf.Variable(value) for name, value in values.items()}}
    prefix = checkpoint.Saver(str(tmp_path), saved).save(1)
    flip(pathlib.Path(f"{prefix}{DATA}"), 2 * 200 + 100)  # In c, of 4 bytes a value.
    reader = checkpoint_reader.Reader(prefix)
    assert reader.value("net/a").tolist() == values["a"]
    other = {"net": {name: tf.Variable([0.0] * 50) for name in values}}
    with pytest.raises(ge.UnreadableCheckpointError):
        checkpoint.restore(other, prefix)
    assert not any(np.any(variable) for variable in other["net"].values())
    if large:
        return
    # What gave up its value for another is no number, and is never empty.
    with pytest.raises(ge.UnreadableCheckpointError):
        checkpoint.restore(other, prefix, in_place=True)
    assert [variable.numpy().tolist() for variable in other["net"].values()] == [
        values["a"],
        values["b"],
        pytest.approx([np.nan] * 50, nan_ok=True),
    ]


class Peers:
    """Another process, which cannot read one more checkpoint than this one."""

    leads = True

    def __init__(self, *answers):
        self._answers = list(answers)

    def all(self, flag):
        return flag and self._answers.pop(0)


def test_all_processes_take_one_that_each_can_read(trained, caplog):
    damage(trained, 4)
    estimator = make(trained)
    estimator.evaluate(EVAL)
    factories = {"network": lambda: fakes.network(dropout=0.5), "optimizer": fakes.adam}
    made_of = recipe.Recipe(fakes.classifier_fn, factories, estimator.config, {})
    one = runtime.Runtime(made_of, tf.distribute.get_strategy())
    one.program("train", one.feed(TRAIN, "train"))
    one.peers = Peers(False, True)
    taken, unreadable = one.load_newest(path(trained, 4), together=True)
    assert taken == path(trained, 0)
    assert unreadable == [path(trained, 4), path(trained, 2)]
    assert f"another process cannot read checkpoint {path(trained, 2)}" in caplog.text
    assert one.modules.step == 0


@pytest.mark.parametrize("content", [b"", b"model_check", b"\xff\xfe\x00"])
def test_without_the_state_file_the_files_say_what_there_is(content, trained, straight):
    (trained / "checkpoint").write_bytes(content)
    assert make(trained).latest_checkpoint() == path(trained, 4)
    make(trained).train(TRAIN, max_steps=6)
    assert equal(trained, straight)


def test_an_intact_position_is_not_skipped_to(trained, straight, caplog):
    with caplog.at_level("INFO", logger="absl"):
        make(trained).train(TRAIN, max_steps=6)
    assert "kipping" not in caplog.text
    assert equal(trained, straight)


@pytest.mark.parametrize("fault", [cut, flip, lambda p: cut(p, 0)])
@pytest.mark.parametrize("suffix", [DATA, INDEX])
def test_a_damaged_position_is_skipped_to(fault, suffix, trained, straight, caplog):
    prefix = position.position_path(path(trained, 4))
    fault(pathlib.Path(f"{prefix}{suffix}"))
    make(trained).train(TRAIN, max_steps=6)
    assert f"Position: checkpoint {prefix} cannot be read" in caplog.text
    assert "Skipping 4 steps." in caplog.text
    assert equal(trained, straight)


class Time:
    """A clock that sleeping moves."""

    seconds = 0.0

    def __call__(self):
        return self.seconds

    def sleep(self, seconds):
        self.seconds += seconds


@pytest.mark.parametrize("step", [2, 4])
def test_the_evaluator_passes_over_a_damaged_one(step, trained, caplog):
    damage(trained, step)
    marker = end_marker.EndMarker(
        step=4, reason=end_marker.FINISHED, checkpoint_step=4, time=0.0
    )
    end_marker.write(str(trained), marker)
    clock = Time()
    job = evaluator.Evaluator(
        make(trained),
        [ge.EvalSpec(EVAL, start_delay_secs=0, throttle_secs=0)],
        max_steps=4,
        clock=clock,
        sleep=clock.sleep,
    )
    metrics, _ = job.run()
    assert metrics["global_step"] == 6 - step
    assert f"step {step} is skipped: checkpoint {path(trained, step)}" in caplog.text
    assert "was deleted" not in caplog.text


# How TensorFlow saves, that there is no GPU, all that its C++ says on any machine.
CHATTER = r"^.*(?:Sharding callback|InitializeLog|rebuild TensorFlow|\.cc:\d+\] ).*$"
KILLED = """
import os, signal, sys
from pipeline.checkpoints.retention import Retention
from tests import interrupted
import tensorflow as tf

# As in the process that goes on, see conftest.py: numbers are compared to the last bit.
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
commit = Retention.commit

def kill_at_the_end(self, path):
    # The data and the index are there: all but the commit.
    if path.endswith("-4"):
        os.kill(os.getpid(), signal.SIGKILL)
    commit(self, path)

Retention.commit = kill_at_the_end
run = interrupted.make(sys.argv[1], async_checkpoint=True)
run.train(interrupted.TRAIN, max_steps=6)
"""


def test_killed_before_the_commit(tmp_path, straight, caplog):
    model_dir = tmp_path / "run"
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(model_dir)],
        # As a user's: conftest.py asks for less than that.
        env={
            **{k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"},
            "PYTHONPATH": str(ROOT),
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=patience.stretched(120),
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    # The log is there, and says nothing that TensorFlow says of itself.
    assert "checkpoint | step 2 | " in killed.stderr
    assert re.findall(CHATTER, killed.stderr, re.M) == []
    assert claim.read(str(model_dir)) is not None
    assert make(model_dir).latest_checkpoint() == path(model_dir, 2)
    # What other moments leave: data without an index, an index that is not complete,
    # and TensorFlow's folders.
    (model_dir / f"model.ckpt-5{DATA}").write_bytes(b"x")
    shutil.copy(model_dir / f"model.ckpt-2{DATA}", model_dir / f"model.ckpt-7{DATA}")
    (model_dir / f"model.ckpt-7{INDEX}").touch()
    for folder in ("model.ckpt-8_temp", "input/model.ckpt-8.0-of-1_temp"):
        (model_dir / folder).mkdir()
        (model_dir / folder / f"part-00000-of-00001{DATA}").touch()
    make(model_dir).train(TRAIN, max_steps=6)
    assert "died: taking over" in caplog.text
    assert equal(model_dir, straight)
    assert fakes.checkpoint_steps(model_dir) == [0, 2, 4, 6]
    left = [p.name for p in model_dir.rglob("*") if "8" in p.name or "-5." in p.name]
    assert not left
