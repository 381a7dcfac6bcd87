"""What belongs to a checkpoint goes with it, and nothing of the user's does."""

from pipeline.checkpoints import checkpoint, checkpoint_files, lease
from tests.model_dirs import ModelDir

BESIDE = (
    "input/{}.0-of-2.index",
    "input/{}.0-of-2.data-00000-of-00001",
    "input/{}.0-of-2.json",
    "input/{}.1-of-2.index",
    "hooks/{}.json",
)
# Of the user's, or set aside for him.
OTHERS = ("input/part-1.json", "hooks/model.ckpt-1.json.damaged")


def put_beside(path, *steps):
    for folder in ("input", "hooks"):
        (path / folder).mkdir(exist_ok=True)
    names = [file.format(f"model.ckpt-{step}") for step in steps for file in BESIDE]
    for name in (*names, *OTHERS):
        (path / name).touch()


def steps_beside(path):
    """The steps of which all is there; fails where a part is, or a user's file not."""
    folders = path / "input", path / "hooks"
    there = {f"{f.name}/{p.name}" for f in folders for p in f.iterdir()}
    assert there >= set(OTHERS)
    there -= set(OTHERS)
    steps = {int(name.split(".")[1].removeprefix("ckpt-")) for name in there}
    wanted = [file.format(f"model.ckpt-{step}") for step in steps for file in BESIDE]
    assert there == set(wanted)
    return sorted(steps)


def test_what_belongs_to_a_checkpoint_goes_with_it(tmp_path):
    made = ModelDir(tmp_path)
    # 12 is being saved by the loop while 11 is committed by the thread that writes.
    put_beside(tmp_path, 1, 2, 10, 11, 12)
    made.commit(1, 2, 10)
    assert steps_beside(tmp_path) == [2, 10, 11, 12]
    lease.prepare(str(tmp_path))
    with lease.reading(made.write(2)):
        made.commit(11)
        assert steps_beside(tmp_path) == [2, 10, 11, 12]
    made.commit(12)
    assert steps_beside(tmp_path) == [11, 12]


def test_what_belongs_to_a_checkpoint_goes_where_that_is_given_up(tmp_path):
    made = ModelDir(tmp_path, keep_max=None)
    put_beside(tmp_path, 1, 2, 3)
    made.commit(1, 2, 3)
    one, two, three = (checkpoint.path_of(str(tmp_path), step) for step in (1, 2, 3))
    made.retention.go_back(one, unreadable=[three], given_up=[two])
    assert steps_beside(tmp_path) == [1]


def test_what_belongs_to_no_checkpoint_goes_at_the_next_start(tmp_path):
    """A run was killed while it deleted an old one, or before it wrote a new one."""
    made = ModelDir(tmp_path)
    made.commit(3)
    put_beside(tmp_path, 2, 3, 4)
    (tmp_path / "hooks/model.ckpt-4.json.tmp").touch()
    (tmp_path / "input/model.ckpt-4.1-of-2_temp").mkdir()
    users = [tmp_path / "part-1.index", tmp_path / "run-1_temp"]
    for each in users:
        each.mkdir()
    checkpoint_files.remove_unfinished(str(tmp_path))
    assert steps_beside(tmp_path) == [3]
    assert all(each.exists() for each in users)
