"""Mistakes as a user makes them: one short text that begins with "error: ", and no traceback."""

import os

import pytest

from gin_estimator import main

TRAIN = ["--gin_file=digits.gin", "--job=train", "--gin.TRAIN_STEPS=2", "--model_dir=run"]
ALL = ["--gin_file=digits.gin", "--gin.TRAIN_STEPS=2", "--model_dir=run"]
TWO = ["--devices=CPU:0,CPU:1", "--gin.RunConfig.train_distribute=@mirrored"]

USER = """
import gin
import keras
import tensorflow as tf
import gin_estimator as ge
from gin_estimator.models import classifier

@gin.configurable
def raising_fn(features, labels, mode, network, optimizer):
    return features["imgae"]

@gin.configurable
def raising_input_fn(mode):
    raise FileNotFoundError("no rows.csv")

@gin.configurable
def late_input_fn(mode):
    data = tf.data.Dataset.range(10).map(parse).repeat()
    return data.batch(4, drop_remainder=True)

def parse(i):
    row = tf.where(i < 6, "1.5", "x")
    value = tf.strings.to_number(row)
    return tf.fill([8, 8, 1], value), i % 10

@gin.configurable
def high_labels_input_fn(mode):
    data = tf.data.Dataset.from_tensors((tf.zeros([4, 8, 8, 1]), tf.constant([1, 2, 3, 17])))
    return data.repeat()

@gin.configurable
def nan_fn(features, labels, mode, network, optimizer):
    spec = classifier(features, labels, mode, network, optimizer)
    return ge.EstimatorSpec(mode, loss=spec.loss * float("nan"), train_op=spec.train_op)

@gin.configurable
def wide_net(width):
    return keras.layers.Dense(width)

@gin.configurable
def rows_input_fn(mode, *, path):
    return tf.data.TextLineDataset(path)

@gin.configurable
def deep_net(*, depth):
    return keras.Sequential([keras.layers.Dense(10)] * depth)

@gin.configurable
def scaled_fn(features, labels, mode, network, optimizer, *, factor):
    return classifier(features, labels, mode, network, optimizer)

@gin.configurable
class NoHook:
    pass
"""


@pytest.fixture(name="folder")
def folder_with_user_code(gin_folder, monkeypatch):
    (gin_folder / "user_code.py").write_text(USER)
    (gin_folder / "broken_module.py").write_text("import gin\nvalue = 1 / 0\n")
    (gin_folder / "latin.gin").write_bytes(b"# \xe9\nX = 1\n")
    (gin_folder / "folder.gin").mkdir()
    (gin_folder / "file").touch()
    monkeypatch.syspath_prepend(str(gin_folder))
    return gin_folder


def run(flags, capsys):
    code = main.main(["main", *flags])
    text = capsys.readouterr().err
    assert "Traceback" not in text
    assert "In call to configurable" not in text
    _, found, error = text.rpartition("error: ")
    assert found, text
    assert len(error.splitlines()) < 25
    return code, error


def user(binding):
    return [*TRAIN, "--gin_param=import user_code", f"--gin_param={binding}"]


@pytest.mark.thin
@pytest.mark.parametrize(
    ("flags", "texts"),
    [
        (["--gin_file=nope/digits.gin"], ["no gin file 'nope/digits.gin'", "digits.gin?"]),
        (["--gin_file=latin.gin"], ["latin.gin cannot be read", "utf-8"]),
        (["--gin_file=folder.gin"], ["no gin file 'folder.gin'"]),
        ([*TRAIN, "--debug=perhaps"], ["perhaps", "debug"]),
        ([*TRAIN, "--execution=cluster"], ["cluster", "single_host|multi_worker"]),
        ([*TRAIN, "--model_dir=file/run"], ["file/run", "expected a folder"]),
        ([*TRAIN, "--devices=CPU:0,cpu:0"], ["devices is ", "'cpu:0'", "each once"]),
        (
            [*TRAIN, "--devices=GPU:7"],
            ["devices has ['GPU:7']: expected devices of this machine, ['CPU:0'"],
        ),
        ([*TRAIN, "--execution=multi_worker"], ["'multi_worker' without a cluster", "TF_CONFIG"]),
        (
            [*ALL, "--gin.EvalSpec.exporters=[@a/LatestExporter(), @b/LatestExporter()]"]
            + ["--gin.a/LatestExporter.name='x'", "--gin.b/LatestExporter.name='x/'"],
            ["expected separate ones"],
        ),
        (
            [*ALL, "--gin.BestExporter.metric='acuracy'"],
            ["'acuracy': expected a number among", "Found before training"],
        ),
        ([*ALL, "--gin.BestExporter.exports_to_keep=0"], ["exports_to_keep is 0"]),
        (
            [*TRAIN, *TWO, "--gin.mirrored.cross_device_ops='nccl'"],
            ["'nccl' on ['CPU:0', 'CPU:1']"],
        ),
        ([*TRAIN, "--devices=CPU:0", "--execution=tpu"], ["execution 'tpu': expected None"]),
        ([*TRAIN, "--devices=CPU:0", "--execution=multi_worker"], ["'multi_worker': expected"]),
        ([*TRAIN, "--execution=tpu", "--gin.tpu.name='grpc://h:x'"], ["tpu.name: the address is"]),
        (user("TrainSpec.hooks=[@NoHook()]"), ["TrainSpec.hooks", "Hook"]),
        (user("TrainSpec.hooks=[@LoggingHook]"), ["TrainSpec.hooks", "@LoggingHook()"]),
        (user("Estimator.modules={'network': @cnn, 'optimzer': @Adam}"), ["optimzer"]),
        (
            user("Estimator.modules={'network': @wide_net, 'optimizer': @Adam}"),
            ["wide_net.width is not set: write wide_net.width = VALUE"],
        ),
        (
            user("TrainSpec.input_fn=@rows_input_fn"),
            ["rows_input_fn.path is not set: write rows_input_fn.path = VALUE"],
        ),
        (
            user("Estimator.modules={'network': @deep_net, 'optimizer': @Adam}"),
            ["deep_net.depth is not set: write deep_net.depth = VALUE"],
        ),
        (
            user("Estimator.model_fn=@scaled_fn"),
            ["scaled_fn.factor is not set: write scaled_fn.factor = VALUE"],
        ),
        (user("Estimator.model_fn=@classifier()"), ["@classifier, not @classifier()"]),
    ],
)
def test_refusals(flags, texts, folder, capsys):
    code, error = run(flags, capsys)
    assert code == 2, error
    for text in texts:
        assert text in error
    assert not list(folder.glob("run/*.index"))


@pytest.mark.thin
@pytest.mark.parametrize(
    ("flags", "texts"),
    [
        (user("Estimator.model_fn=@raising_fn"), ["raising_fn", "train", "user_code.py", "imgae"]),
        (
            user("TrainSpec.input_fn=@raising_input_fn"),
            ["no rows.csv", "raising_input_fn", "user_code.py"],
        ),
        (user("TrainSpec.input_fn=@late_input_fn"), ["input", "train", "StringToNumber"]),
        (
            user("TrainSpec.input_fn=@high_labels_input_fn"),
            ["labels: expected 0 to 9", "17", "train"],
        ),
        (user("Estimator.model_fn=@nan_fn"), ["step 1"]),
        (user("cnn.padding='vaild'"), ["vaild", "modules['network'], cnn"]),
        ([*TRAIN, "--gin_param=import broken_module"], ["broken_module.py", "division by zero"]),
    ],
)
def test_failures_of_user_code(flags, texts, folder, capsys):
    code, error = run(flags, capsys)
    assert code == 1, error
    for text in texts:
        assert text in error


@pytest.mark.slow
def test_checkpoints_and_outputs(trained, folder, capsys):
    model_dir, _ = trained
    flags = ["--gin_file=digits.gin", f"--model_dir={model_dir}", "--job=predict"]
    for more, texts in (
        (["--checkpoint_path=nope"], ["'nope'", "Checkpoints in"]),
        (["--output=file/x"], ["--output is 'file/x'", "Not a directory"]),
        (["--output=/dev/full"], ["--output is '/dev/full'", "No space left"]),
        (
            ["--gin.cnn.filters=(4, 8)"],
            ["model.ckpt-1000", "network/conv2d/kernel", "(3, 3, 1, 4)"],
        ),
    ):
        code, error = run([*flags, *more], capsys)
        assert code == 2, error
        for text in texts:
            assert text.replace("(3, 3, 1, 4)", "3, 3, 1, 4") in error
    assert not os.path.exists("run")
