"""Which checkpoints stay, and that those that are read are among them."""

import itertools
import os
import pathlib
import threading
import time

import pytest
import tensorflow as tf

from pipeline.checkpoints import checkpoint, checkpoint_files, lease
from pipeline.checkpoints.retention import KeptSteps
from pipeline.model_dir import atomic_file
from tests import fakes, patience
from tests.model_dirs import ModelDir


def test_the_newest_stay_over_a_restart(tmp_path):
    ModelDir(tmp_path).commit(1, 2, 3)
    again = ModelDir(tmp_path)
    again.commit(4)
    assert again.saved == again.listed == [3, 4]
    kept = [f"model.ckpt-{s}.data-0000{n}-of-00002" for s in (3, 4) for n in (0, 1)]
    index = ["model.ckpt-3.index", "model.ckpt-4.index"]
    assert again.files == sorted(["checkpoint", *kept, *index])


@pytest.mark.parametrize("keep_max", [None, 0])
def test_all_stay(keep_max, tmp_path):
    everything = ModelDir(tmp_path, keep_max=keep_max)
    everything.commit(*range(8))
    assert everything.saved == everything.listed == list(range(8))


def test_fewer_may_stay_than_before(tmp_path):
    ModelDir(tmp_path, keep_max=None).commit(*range(5))
    fewer = ModelDir(tmp_path, keep_max=2)
    fewer.commit(5)
    assert fewer.saved == [4, 5]


def test_the_latest_is_found_where_the_directory_is_moved_to(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ModelDir(pathlib.Path("here")).commit(1, 2)
    assert tf.train.latest_checkpoint("here") == "here/model.ckpt-2"
    (tmp_path / "here").rename(tmp_path / "there")
    there = str(tmp_path / "there")
    assert tf.train.latest_checkpoint(there) == f"{there}/model.ckpt-2"
    moved = ModelDir(tmp_path / "there")
    assert moved.listed == [1, 2]
    moved.commit(3)
    assert moved.saved == [2, 3]


def test_a_checkpoint_without_all_of_its_files_does_not_count(tmp_path):
    model_dir = ModelDir(tmp_path)
    model_dir.commit(1, 2)
    (tmp_path / "model.ckpt-2.data-00001-of-00002").unlink()
    model_dir.commit(3)
    assert model_dir.listed == [1, 3]
    assert checkpoint_files.complete(str(tmp_path)) == {"model.ckpt-1", "model.ckpt-3"}


def test_a_checkpoint_that_is_written_again_is_the_newest(tmp_path):
    model_dir = ModelDir(tmp_path)
    model_dir.commit(1, 2, 1)
    assert model_dir.listed == [2, 1]
    assert tf.train.latest_checkpoint(str(tmp_path)) == f"{tmp_path}/model.ckpt-1"


def test_one_in_so_many_hours_stays_for_good_over_a_restart(tmp_path):
    options = {"keep_max": 1, "keep_every_n_hours": 2.5}
    first = ModelDir(tmp_path, **options)
    for hour in range(5):
        first.seconds = hour * 3600
        first.commit(hour)
    assert first.saved == [3, 4]
    resumed = ModelDir(tmp_path, **options)
    for hour in range(5, 8):
        resumed.seconds = hour * 3600
        resumed.commit(hour)
    # 3 hours after the last that stayed, not after the restart.
    assert resumed.saved == [3, 6, 7]
    # Those that stay for good are restorable, and nobody's to delete.
    assert resumed.listed == [7]
    assert checkpoint.committed(str(tmp_path)) == [
        f"{tmp_path}/model.ckpt-{step}" for step in (3, 6, 7)
    ]


def test_steps_that_are_named_stay_for_good_over_a_restart(tmp_path):
    options = {"keep_max": 1, "kept_steps": KeptSteps(every=20, listed=(0, 15))}
    ModelDir(tmp_path, **options).commit(0, 5, 15, 20, 25)
    assert ModelDir(tmp_path).saved == [0, 15, 20, 25]
    again = ModelDir(tmp_path, **options)
    again.commit(40, 41, 60)
    assert again.saved == [0, 15, 20, 40, 60]
    # They are nobody's to delete, whatever is configured later.
    later = ModelDir(tmp_path, keep_max=1)
    later.commit(61)
    assert later.saved == [0, 15, 20, 40, 61]


def test_a_step_that_is_named_does_not_count_for_the_hours(tmp_path):
    kept = KeptSteps(listed=(1,))
    both = ModelDir(tmp_path, keep_max=1, keep_every_n_hours=1.5, kept_steps=kept)
    for hour in range(4):
        both.seconds = hour * 3600
        both.commit(hour)
    assert both.saved == [1, 2, 3]


def test_what_is_still_being_written_is_not_committed(tmp_path):
    assert checkpoint.committed(str(tmp_path / "absent")) == []
    model_dir = ModelDir(tmp_path)
    model_dir.write(5)
    # Its index may be incomplete: TensorFlow does not write it in one go.
    assert checkpoint.committed(str(tmp_path)) == []
    model_dir.commit(5)
    model_dir.write(10)
    model_dir.write(11, suffixes=[".index"])
    assert checkpoint.committed(str(tmp_path)) == [f"{tmp_path}/model.ckpt-5"]
    model_dir.commit(10, 20)
    assert checkpoint.committed(str(tmp_path)) == [
        f"{tmp_path}/model.ckpt-{step}" for step in (10, 20)
    ]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_saver_keeps_the_newest(asynchronous, tmp_path):
    state = {"net": {"w": tf.Variable([1.0])}}
    saver = checkpoint.Saver(
        str(tmp_path), state, keep_max=2, asynchronous=asynchronous
    )
    for step in range(4):
        assert saver.save(step) == f"{tmp_path}/model.ckpt-{step}"
    saver.wait()
    assert fakes.checkpoint_steps(tmp_path) == [2, 3]
    assert checkpoint.latest(str(tmp_path)) == f"{tmp_path}/model.ckpt-3"


def test_waiting_for_a_checkpoint_that_could_not_be_written(tmp_path):
    (tmp_path / "file").touch()
    state = {"net": {"w": tf.Variable([1.0])}}
    saver = checkpoint.Saver(str(tmp_path / "file/dir"), state, asynchronous=True)
    saver.save(1)
    with pytest.raises(RuntimeError) as error:
        saver.wait()
    assert f"checkpoint {tmp_path}/file/dir/model.ckpt-1 could not be written: " in str(
        error.value
    )
    # Nothing is left of it for the next one.
    (tmp_path / "file").unlink()
    saver.save(2)
    saver.wait()
    assert fakes.checkpoint_steps(tmp_path / "file/dir") == [2]


# Leases.


def leases(path):
    return sorted(p.name for p in (path / "readers").iterdir())


def age(file, seconds):
    """Makes a file look as if it had been written so long ago."""
    then = file.stat().st_mtime - seconds
    os.utime(file, (then, then))


def test_what_is_read_stays_until_it_is_no_longer(tmp_path):
    model_dir = ModelDir(tmp_path)
    model_dir.commit(1, 2)
    with lease.reading(f"{tmp_path}/model.ckpt-1"):
        (name,) = leases(tmp_path)
        assert name.startswith("model.ckpt-1.")
        assert name.endswith(f"-{os.getpid()}")
        model_dir.commit(3, 4)
        # 11 begins as 1 does and is none of its reader's business.
        model_dir.commit(11, 12)
        assert model_dir.saved == model_dir.listed == [1, 11, 12]
    assert leases(tmp_path) == []
    model_dir.commit(13)
    assert model_dir.saved == model_dir.listed == [12, 13]
    assert leases(tmp_path) == []


def test_a_lease_is_given_back_after_an_error(tmp_path):
    ModelDir(tmp_path).commit(1)
    with (
        pytest.raises(ZeroDivisionError),
        lease.reading(f"{tmp_path}/model.ckpt-1"),
    ):
        raise ZeroDivisionError
    assert leases(tmp_path) == []


def test_the_lease_of_a_reader_that_died_expires(tmp_path):
    model_dir = ModelDir(tmp_path)
    model_dir.commit(1, 2)
    lease.prepare(str(tmp_path))
    dead = tmp_path / "readers/model.ckpt-1.elsewhere-17"
    dead.touch()
    age(dead, lease.EXPIRE_SECS - 60)
    model_dir.commit(3)
    assert model_dir.saved == [1, 2, 3]
    age(dead, 120)
    model_dir.commit(4)
    assert model_dir.saved == [3, 4]
    assert leases(tmp_path) == []


def test_a_reader_that_lives_renews_its_lease(tmp_path):
    ModelDir(tmp_path).commit(1)
    with lease.reading(f"{tmp_path}/model.ckpt-1", renew_secs=0.02):
        (name,) = leases(tmp_path)
        file = tmp_path / "readers" / name
        age(file, 2 * lease.EXPIRE_SECS)
        is_over = patience.deadline(20)
        while time.time() - file.stat().st_mtime > lease.EXPIRE_SECS:
            assert not is_over()
            time.sleep(0.01)
    assert leases(tmp_path) == []


def test_what_was_deleted_cannot_be_read(tmp_path):
    model_dir = ModelDir(tmp_path)
    model_dir.commit(1, 2, 3)
    with (
        pytest.raises(lease.CheckpointGoneError, match="model.ckpt-1 was deleted"),
        lease.reading(f"{tmp_path}/model.ckpt-1"),
    ):
        pass
    assert leases(tmp_path) == []


def test_what_is_about_to_be_deleted_cannot_be_read(tmp_path):
    ModelDir(tmp_path).commit(1)
    path = f"{tmp_path}/model.ckpt-1"
    lease.prepare(str(tmp_path))
    with (
        lease.deleting(path) as allowed,
        pytest.raises(lease.CheckpointGoneError),
        lease.reading(path),
    ):
        pass
    assert allowed
    # The mark of a deleter that was killed does not count for ever.
    mark = tmp_path / "readers/model.ckpt-1.deleting"
    mark.touch()
    age(mark, 2 * lease.EXPIRE_SECS)
    with lease.reading(path):
        pass


def test_nobody_reads_what_somebody_deletes(tmp_path):
    """Both at once, again and again: never does a file vanish under a reader."""
    model_dir = ModelDir(tmp_path)
    lease.prepare(str(tmp_path))
    counts = {"read": 0, "gone": 0, "refused": 0}
    broken = []

    def read(path, barrier):
        barrier.wait()
        try:
            with lease.reading(path):
                counts["read"] += 1
                time.sleep(0.002)
                if not checkpoint_files.is_complete(path):
                    broken.append(path)
        except lease.CheckpointGoneError:
            counts["gone"] += 1

    is_over = patience.deadline(60)
    for step in itertools.count():
        # Each outcome at least once: how soon depends on who is slow.
        if step >= 150 and (min(counts.values()) > 0 or is_over()):
            break
        path, barrier = model_dir.write(step), threading.Barrier(2)
        reader = threading.Thread(target=read, args=(path, barrier))
        reader.start()
        barrier.wait()
        # Sometimes the reader is first, sometimes this.
        time.sleep(step % 5 * 0.0005)
        with lease.deleting(path) as allowed:
            if allowed:
                checkpoint_files.delete(path)
            else:
                counts["refused"] += 1
        reader.join()
    assert broken == []
    assert counts["read"] + counts["gone"] == step
    assert min(counts.values()) > 0


def test_small_files_are_replaced_as_a_whole(tmp_path):
    path = str(tmp_path / "new/file.json")
    assert atomic_file.read(path) is None
    atomic_file.write(path, "one")
    atomic_file.write(path, "two")
    assert atomic_file.read(path) == "two"
    assert os.listdir(tmp_path / "new") == ["file.json"]
    atomic_file.remove(path)
    atomic_file.remove(path)
    assert atomic_file.read(path) is None
