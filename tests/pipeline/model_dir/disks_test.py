"""Disks that are full, read-only or refuse large files: nothing good is lost."""

import contextlib
import os
import resource
import subprocess
import time

import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.checkpoints import checkpoint
from pipeline.model_dir import end_marker
from pipeline.roles import train_and_evaluate
from pipeline.roles.evaluator import Evaluator
from tests import fakes, patience
from tests.interrupted import EVAL, PREDICT, TRAIN, X, equal, make, path

RAW = ge.build_raw_serving_input_receiver_fn(tf.TensorSpec([None, X.shape[1]]))


def mounted(folder, *options):
    done = subprocess.run(
        ["mount", *options, str(folder)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"this user cannot mount: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path):
    """A disk of 2 MB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted(folder, "-t", "tmpfs", "-o", "size=2m", "tmpfs")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


class At(ge.Hook):
    """Does something at a step, when the checkpoint before it is on disk."""

    def __init__(self, step, change):
        self.every_steps = step
        self._step, self._change = step, change

    def after_step(self, run):
        if run.step != self._step:
            return
        is_over = patience.deadline(20)
        while checkpoint.latest(run.model_dir) != path(run.model_dir, 2):
            assert not is_over()
            time.sleep(0.01)
        self._change()


def fill(folder, *, but=0):
    with (
        contextlib.suppress(OSError),
        open(folder / "filler", "wb", buffering=0) as filler,
    ):
        while filler.write(b"x" * 4096):
            pass
    os.truncate(folder / "filler", (folder / "filler").stat().st_size - but)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("room", [0, 8192, 16384])
def test_a_full_disk(asynchronous, room, disk, straight):
    run = disk / "run"
    spec = ge.TrainSpec(TRAIN, max_steps=6, hooks=[At(3, lambda: fill(disk, but=room))])
    with pytest.raises(ge.StorageError) as error:
        train_and_evaluate.train(make(run, async_checkpoint=asynchronous), spec)
    text = str(error.value)
    assert "could not be written: the disk is full at " in text
    assert f"{run}: " in text
    assert "bytes free" in text
    assert f"The last good checkpoint, {path(run, 2)}, is intact" in text
    assert not list(run.glob("*_temp"))
    # With room again the same command goes on, as if nothing had been.
    (disk / "filler").unlink()
    train_and_evaluate.train(make(run), ge.TrainSpec(TRAIN, max_steps=6))
    assert equal(run, straight)


def test_an_asynchronous_save_that_failed_fails_the_next(disk):
    state = {"net": {"w": tf.Variable(tf.zeros([50_000]))}}
    saver = checkpoint.Saver(str(disk), state, asynchronous=True, keep_max=1)
    saver.save(1)
    saver.wait()
    fill(disk)
    saver.save(2)
    with pytest.raises(ge.StorageError) as error:
        saver.save(3)
    assert f"checkpoint {path(disk, 2)} could not be written: the disk is full" in str(
        error.value
    )
    assert " bytes free, 200,000 bytes needed (" in str(error.value)
    assert fakes.checkpoint_steps(disk) == [1]
    assert checkpoint.is_readable(path(disk, 1))
    (disk / "filler").unlink()
    saver.save(3)
    saver.wait()
    assert fakes.checkpoint_steps(disk) == [3]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_disk_that_becomes_read_only(asynchronous, disk, straight):
    run = disk / "run"

    def remount(mode):
        mounted(disk, "-o", f"remount,{mode}")

    estimator = make(run, async_checkpoint=asynchronous)
    with pytest.raises(ge.StorageError) as error:
        estimator.train(TRAIN, max_steps=6, hooks=[At(3, lambda: remount("ro"))])
    assert "could not be written: the file system is read-only (" in str(error.value)
    assert f"The last good checkpoint, {path(run, 2)}, is intact" in str(error.value)
    # So it says when it is started again; who only reads may.
    with pytest.raises(ge.StorageError, match="the file system is read-only"):
        make(run).train(TRAIN, max_steps=6)
    assert len(list(make(run).predict(PREDICT))) == len(X)
    with pytest.raises(ge.StorageError, match="the summary of the evaluation could"):
        make(run).evaluate(EVAL)
    with pytest.raises(ge.StorageError) as error:
        make(run).export_saved_model(str(disk / "export"), RAW)
    assert "the SavedModel could not be written: the file system is read-only" in str(
        error.value
    )
    assert f"See to {disk}/export, or choose another export_dir_base, and" in str(
        error.value
    )
    with pytest.raises(ge.StorageError, match="what an evaluator leaves in model_dir"):
        Evaluator(make(run), [ge.EvalSpec(EVAL)]).run()
    remount("rw")
    make(run).train(TRAIN, max_steps=6)
    assert equal(run, straight)


def test_a_disk_that_takes_no_large_files(tmp_path):
    """What a full disk is, for users who cannot mount one."""
    state = {"net": {"w": tf.Variable(tf.zeros([1_000_000]))}}
    saver = checkpoint.Saver(str(tmp_path), state)
    saver.save(1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, before[1]))
    try:
        with pytest.raises(ge.StorageError) as error:
            saver.save(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "files of that size are not allowed" in str(error.value)
    assert f"The last good checkpoint, {path(tmp_path, 1)}, is intact" in str(
        error.value
    )
    assert fakes.checkpoint_steps(tmp_path) == [1]
    assert not list(tmp_path.glob("*_temp"))


def test_the_end_of_training_is_told_where_that_is_possible(tmp_path):
    """A full disk is the error, not that this could not be told."""
    run = tmp_path / "run"
    spec = ge.TrainSpec(TRAIN, max_steps=6, hooks=[At(3, lambda: 1 / 0)])
    with pytest.raises(ZeroDivisionError):
        train_and_evaluate.train(make(run), spec)
    assert end_marker.read(str(run)).reason == end_marker.FAILED


def test_other_files_are_another_matter(tmp_path):
    def missing():
        rows = tf.data.TFRecordDataset([str(tmp_path / "data")])
        return rows.map(lambda row: (tf.zeros([6]), tf.cast(0, tf.int64))).batch(2)

    with pytest.raises(Exception, match="No such file") as error:
        make(tmp_path / "run").train(missing, max_steps=2)
    assert not isinstance(error.value, ge.StorageError)
