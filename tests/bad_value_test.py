"""Values that the command refuses by name: devices, macros, ports, paths, streams."""

import json
import pathlib

import keras
import pytest

import pipeline as ge
from pipeline import main
from pipeline.strategy import tpu
from tests import fakes

ROOT = pathlib.Path(main.__file__).resolve().parent.parent
LINEAR = f"--gin_file={ROOT}/gin/linear.gin"

pytestmark = pytest.mark.usefixtures("fresh_gin", "own_folder")


def cluster(port, kind):
    jobs = {"chief": ["localhost:1"], "worker": [f"localhost:{port}"], "ps": ["b:1"]}
    task = {"type": kind, "index": 0}
    return {"TF_CONFIG": json.dumps({"cluster": jobs, "task": task})}


SLURM = {
    "SLURM_PROCID": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_JOB_ID": "1",
    "SLURM_STEP_NODELIST": "n1",
    "SLURM_STEP_TASKS_PER_NODE": "2",
}
# Flags, words of the message, and the environment.
ROWS = {
    "macro_of_itself": (
        ["--gin.TRAIN_STEPS=%TRAIN_STEPS"],
        ["%TRAIN_STEPS = %TRAIN_STEPS", "Write TRAIN_STEPS = VALUE"],
    ),
    "macros_of_each_other": (
        ["--gin.A=[%B]", "--gin.B=%A", "--gin.TRAIN_STEPS=%A"],
        ["macros stand for each other: %A = %B = %A"],
    ),
    "negative_device": (["--devices=CPU:-1"], ["'CPU:-1'", "write 'GPU:0'"]),
    "huge_device": (
        ["--devices=CPU:99999999999999999999"],
        ["'CPU:99999999999999999999'", "write 'GPU:0'"],
    ),
    "many_devices": (["--devices=CPU:100000"], ["'CPU:100000'", "write 'CPU:0' to"]),
    "device_of_a_job": (["--devices=/job:x/CPU:0"], ["'/job:x/CPU:0'", "'GPU:0'"]),
    "device_of_no_digit": (["--devices=CPU:²"], ["'CPU:²'"]),
    "device_twice": (["--devices=CPU:0,cpu:0"], ["twice", "List each one once"]),
    "no_utf8": (["--model_dir=/tmp/\udcff"], ["no UTF-8", "--model_dir=/tmp/"]),
    "no_utf8_in_gin": (
        [r"--gin.RunConfig.model_dir='/tmp/\udcff'"],
        ["RunConfig.model_dir", "no path in UTF-8"],
    ),
    "empty_example": (
        ["--gin.constant_arrays.x=()"],
        ["constant_arrays.x is ()", "constant_arrays.x = (1.0,)"],
    ),
    "layer_as_a_rate": (
        ["--gin.SGD.learning_rate=@linear()"],
        ["learning rate of SGD is the layer Sequential", "SGD.learning_rate = 0.01"],
    ),
    "rank_that_is_not_there": (
        ["--execution=multi_worker"],
        ["SLURM_PROCID is '2'", "write 0 to 1"],
        SLURM,
    ),
}
for bad in ("65536", "0", "99999999999999999999", "²"):
    for role in ("chief", "worker", "ps"):
        ROWS[f"port_{bad}_{role}"] = (
            ["--execution=parameter_server"],
            [f"localhost:{bad}"],
            cluster(bad, role),
        )


def refused(capsys, *flags):
    assert main.main(["main", LINEAR, "--gin.TRAIN_STEPS=1", *flags]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said[said.index("error: ") :]


@pytest.mark.parametrize("row", ROWS)
def test_refused(row, monkeypatch, capsys):
    flags, texts, *environment = ROWS[row]
    for name, value in (environment or [{}])[0].items():
        monkeypatch.setenv(name, value)
    place = [] if "model_dir" in str(flags) else ["--model_dir=run"]
    message = refused(capsys, *flags, *place)
    for text in texts:
        assert text in message
    assert len(message.splitlines()) < 10


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    model_dir = str(tmp_path_factory.mktemp("trained"))
    flags = [LINEAR, "--gin.TRAIN_STEPS=1", "--job=train", f"--model_dir={model_dir}"]
    assert main.main(["main", *flags]) == 0
    return f"--model_dir={model_dir}"


def test_a_full_disk_below_the_predictions(trained, capsys):
    message = refused(capsys, trained, "--job=predict", "--output=/dev/full")
    assert "cannot write to --output=/dev/full (No space left on device)" in message


def test_an_export_that_cannot_be_written(trained, capsys):
    base = "--gin.ExportSpec.export_dir_base='/proc/exports'"
    message = refused(capsys, trained, "--job=export", base)
    assert "the SavedModel could not be written: a part of the path is not" in message
    assert "See to /proc/exports, or choose another export_dir_base" in message


def test_a_tpu_where_nobody_listens():
    with pytest.raises(RuntimeError, match="no TPU was found.*Nothing listens there"):
        tpu.connected(f"grpc://{fakes.silent()}", None, None, None)


def test_a_layer_as_a_learning_rate(tmp_path):
    estimator = fakes.make_estimator(
        tmp_path, optimizer=lambda: keras.optimizers.SGD(keras.layers.Dense(1))
    )
    x, y = fakes.classification_data(16)
    with pytest.raises(TypeError, match="'optimizer': the learning rate of SGD is"):
        estimator.train(fakes.make_input_fn(x, y, batch_size=8), max_steps=1)


def test_logical_cpus_of_one_machine():
    assert ge.RunConfig(devices=["/CPU:63", "/device:GPU:0"]).devices
    with pytest.raises(ValueError, match="logical CPUs at the most: write 'CPU:0'"):
        ge.RunConfig(devices=["CPU:99999"])
