"""Paths: one text a place, so that whatever is joined from them compares equal."""

import os

import pytest
import tensorflow as tf

import pipeline as ge
from inputs import batching
from inputs import files as input_files
from pipeline.checkpoints import checkpoint_reader
from pipeline.checkpoints.checkpoint_reader import UnreadableCheckpointError
from pipeline.command import command_job, gin_reader, jobs
from pipeline.model_dir import paths
from tests import fakes

X, Y = fakes.classification_data(rows=200)
ENDS = fakes.make_input_fn(X, Y, batch_size=8, change=lambda d: d.shuffle(64))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("runs/a", "/here/runs/a"),
        ("runs/a/", "/here/runs/a"),
        ("./runs//a/.", "/here/runs/a"),
        (".", "/here"),
        ("/runs/a///", "/runs/a"),
        ("~/runs", "/home/me/runs"),
        ("file:///runs/a/", "/runs/a"),
        ("gs://bucket/runs/a/", "gs://bucket/runs/a"),
        ("gs://bucket/runs//a", "gs://bucket/runs//a"),
        ("s3://bucket", "s3://bucket"),
    ],
)
def test_normal(given, expected, monkeypatch):
    monkeypatch.setattr(os, "getcwd", lambda: "/here")
    monkeypatch.setenv("HOME", "/home/me")
    assert paths.normal(given) == expected
    assert paths.normal(expected) == expected


def test_what_is_above_a_link(tmp_path):
    (tmp_path / "far/away").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far/away")
    assert paths.normal(tmp_path / "link/../x") == f"{tmp_path.resolve()}/far/x"


def test_same(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    monkeypatch.chdir(tmp_path)
    assert paths.same("a/", f"{tmp_path}//link")
    assert not paths.same("a", "b")
    assert paths.same("gs://a/b", "gs://a/b/")
    assert not paths.same("gs://a/b", f"{tmp_path}/a")


@pytest.mark.parametrize(
    "name", ["a*?{0}", "a[b", "a]b", "[]", "[a]", "a[!0-9]b", "a\\b"]
)
def test_a_path_that_tensorflow_reads_as_a_pattern(name, tmp_path):
    prefix = str(tmp_path / name / "model.ckpt-1")
    os.makedirs(tmp_path / name)
    tf.raw_ops.SaveV2(
        prefix=prefix, tensor_names=["a"], shape_and_slices=[""], tensors=[1.0]
    )
    config = ge.RunConfig(model_dir=tmp_path / name)
    if not paths.is_pattern(prefix):
        assert tf.train.load_checkpoint(prefix).get_tensor("a") == 1.0
        assert config.with_model_dir().model_dir == str(tmp_path / name)
        return
    with pytest.raises(ValueError, match="find nothing again. Write a path without"):
        config.with_model_dir()
    with pytest.raises(UnreadableCheckpointError, match="in its path for a pattern"):
        checkpoint_reader.Reader(prefix)


def test_a_working_directory_that_is_gone(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert paths.normal(tmp_path / "runs/") == f"{tmp_path}/runs"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "n" * 300,
            "nnn'..., of 300 bytes, and names a folder: write a name of at mos",
        ),
        ("test/" + "ü" * 101, "..., of 202 bytes, and names a folder: write a name of"),
        ("a\0b", "is 'a\\x00b', which is no folder's name in UTF-8: write a name such"),
        ("a\udcff", "is 'a\\udcff', which is no folder's name in UTF-8: write a nam"),
    ],
)
def test_an_evaluation_s_name_that_no_folder_can_have(name, text):
    with pytest.raises(ValueError) as error:
        ge.EvalSpec(lambda: None, name=name)
    assert text in str(error.value)


def test_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert paths.shown(f"{tmp_path}/runs/a") == "runs/a"
    assert paths.shown("/elsewhere/a") == "/elsewhere/a"
    assert paths.shown("gs://bucket/a") == "gs://bucket/a"


@pytest.mark.parametrize("given", ["runs/a/", "./runs//a", "link/", "file://{}/runs/a"])
def test_a_model_dir_of_any_text_goes_on(given, tmp_path, monkeypatch):
    """In the middle of a pass over shuffled data, with asynchronous saving."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("runs/a")
    (tmp_path / "runs/a").mkdir(parents=True)
    estimator = fakes.make_estimator(
        given.format(tmp_path), save_checkpoints_steps=2, async_checkpoint=True
    )
    counter = Counter()
    estimator.train(ENDS, steps=5, hooks=[counter])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    estimator.train(ENDS, steps=5, hooks=[counter])
    assert os.listdir(tmp_path / "elsewhere") == []
    names = {
        f"model.ckpt-{step}" for step in fakes.checkpoint_steps(tmp_path / "runs/a")
    }
    assert names == {f"model.ckpt-{step}" for step in (0, 2, 4, 5, 6, 8, 10)}
    positions = os.listdir(tmp_path / "runs/a/input")
    assert {name.partition(".0-of-1")[0] for name in positions} == names
    hooks = os.listdir(tmp_path / "runs/a/hooks")
    assert {name.removesuffix(".json") for name in hooks} == names
    assert counter.restored == ["from step 5"]


class Counter(ge.Hook):
    """A hook with a state."""

    def __init__(self):
        self.restored = []
        self._step = 0

    def begin(self, run):
        self._step = run.step

    def after_loop(self, run):
        self._step = run.step

    def state(self):
        return f"from step {self._step}"

    def restore(self, run, state):
        self.restored.append(state)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home with a trained model_dir, `run`, and files to read; and its Estimator."""
    home = tmp_path_factory.mktemp("home")
    estimator = fakes.make_estimator(home / "run", run_eagerly=True)
    estimator.train(ENDS, steps=1)
    for name in ("read.txt", "read.gin"):
        (home / name).touch()
    return home, estimator


def output(path):
    with command_job._output(path) as write:
        write("line")


def evaluates(estimator, **options):
    estimator.evaluate(ENDS, steps=1, **options)


def starts_warm(start):
    estimator = ge.Estimator(
        fakes.classifier_fn,
        modules={"network": fakes.network, "optimizer": fakes.adam},
        config=ge.RunConfig(model_dir="~/warm", run_eagerly=True),
        params={},
        warm_start_from=start,
    )
    estimator.train(ENDS, steps=1)


WRITES = {
    "RunConfig.model_dir": lambda e, path: fakes.make_estimator(
        path, run_eagerly=True
    ).train(ENDS, steps=1),
    "Estimator(model_dir=)": lambda e, path: ge.Estimator(
        fakes.classifier_fn,
        model_dir=path,
        config=ge.RunConfig(run_eagerly=True),
        modules={"network": fakes.network, "optimizer": fakes.adam},
        params={},
    ).train(ENDS, steps=1),
    "export_saved_model": lambda e, path: e.export_saved_model(path),
    "ExportSpec": lambda e, path: jobs.export(
        e, jobs.ExportSpec(export_dir_base=path), ENDS
    ),
    "export_weights": lambda e, path: e.export_weights("network", path + ".weights.h5"),
    "ProfilerHook": lambda e, path: os.mkdir(ge.ProfilerHook(logdir=path)._logdir),
    "--output": lambda e, path: output(path),
}
READS = {
    "evaluate": lambda e: evaluates(e, checkpoint_path="~/run"),
    "predict": lambda e: next(e.predict(ENDS, checkpoint_path="~/run/model.ckpt-1")),
    "export_saved_model": lambda e: e.export_saved_model(
        "~/export", checkpoint_path="~/run"
    ),
    "assets_extra": lambda e: e.export_saved_model(
        "~/export", assets_extra={"a.txt": "~/read.txt"}
    ),
    "warm_start_from": lambda e: starts_warm("~/run"),
    "WarmStartSettings": lambda e: starts_warm(ge.WarmStartSettings("~/run")),
    "--gin_file": lambda e: gin_reader.find_file("~/read.gin"),
    "train_files": lambda e: input_files.of_mode(
        batching.make_batching(ge.ModeKeys.TRAIN, None, batch_size=1),
        "~/read.*",
        None,
        owner="csv_input_fn",
        example="*.csv",
    ),
}


@pytest.mark.parametrize("given", ["~/{}", "here/../{}", "file://{tmp_path}/{}"])
@pytest.mark.parametrize("name", WRITES)
def test_what_is_written_to_any_path(name, given, home, tmp_path, monkeypatch):
    home, estimator = home
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    made = "".join(filter(str.isalpha, name))
    WRITES[name](estimator, given.format(made, tmp_path=tmp_path))
    there = home if given.startswith("~") else tmp_path
    assert len(list(there.glob(f"{made}*"))) == 1
    others = {each for each in os.listdir(tmp_path) if not each.startswith(made)}
    assert others == {"here"}


@pytest.mark.parametrize("name", READS)
def test_what_is_read_from_a_home(name, home, tmp_path, monkeypatch):
    home, estimator = home
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    READS[name](estimator)
    assert os.listdir(tmp_path) == []
