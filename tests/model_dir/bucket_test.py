"""The digits on a bucket behind TensorFlow's own client: kills, errors and outages."""

import contextlib
import json
import re
import signal
import time

import pytest

from bucket import Bucket
from tasks import ROOT, Task

pytestmark = pytest.mark.slow

RUN = "gs://bucket/run"
# TensorFlow waits for up to 32 s before it repeats an operation.
SHORT_DELAYS = {"GCS_RETRY_CONFIG_MAX_DELAY_TIME_US": "1000000"}


@pytest.fixture
def bucket(tmp_path):
    with Bucket(tmp_path) as one:
        yield one


@contextlib.contextmanager
def training(bucket, folder, num_steps, environment=(), **config):
    """Starts a training that saves, evaluates and exports each 500 steps; kills it in the end."""
    environment = {**bucket.environment, **dict(environment)}
    config = {"save_checkpoints_steps": 500, **config}
    flags = [f"--gin.TRAIN_STEPS={num_steps}", f"--model_dir={RUN}"]
    flags += [f"--gin.RunConfig.{name}={value}" for name, value in config.items()]
    name = f"task-{len(list(folder.glob('task-*')))}"
    command = ["-m", "gin_estimator.main", "--gin_file=gin/digits.gin", *flags]
    task = Task(name, command, folder, environment, cwd=ROOT, fresh=True)
    try:
        yield task
    finally:
        task.send(signal.SIGKILL)
        task.wait()


def newest(bucket):
    """Returns the newest checkpoint by the file `checkpoint`."""
    text = bucket.read(f"{RUN}/checkpoint").decode()
    [name] = re.findall(r"^model_checkpoint_path: .(.+).$", text, re.MULTILINE)
    return f"{RUN}/{name}"


def evaluated_steps(bucket):
    lines = bucket.read(f"{RUN}/eval/evaluations.jsonl").decode().splitlines()
    return [json.loads(line)["step"] for line in lines]


def test_a_second_training_is_refused_and_a_killed_one_resumes(bucket, tmp_path):
    with training(bucket, tmp_path, 100_000) as first:
        first.wait_for("eval | step 500")
        with training(bucket, tmp_path, 100_000) as second:
            assert second.wait() == 2
            assert f"in use by process {first.process.pid}" in second.output
        first.wait_for("eval | step 1000")
        first.send(signal.SIGKILL)
        first.wait()
    step = int(newest(bucket).rpartition("-")[2])
    end = step + 600
    with training(bucket, tmp_path, end) as task:
        assert task.wait(200) == 0, task.output
        # The kill may have come after a checkpoint was whole, and before the list had it.
        [resumed] = re.findall(rf"resumed from step (\d+) of {RUN}/model.ckpt-\1", task.output)
        assert int(resumed) in (step, step + 500)
    names = bucket.names(RUN)
    assert {f"model.ckpt-{end}.index", "training_ended.json"} <= set(names)
    assert "training.claim" not in names
    assert [n for n in names if re.fullmatch(r"export/best/\d+/saved_model.pb", n)]
    assert evaluated_steps(bucket)[-1] == end


def test_errors_503_are_survived(bucket, tmp_path):
    bucket.failing = 0.1
    with training(bucket, tmp_path, 1000, SHORT_DELAYS) as task:
        assert task.wait(300) == 0, task.output
    assert newest(bucket) == f"{RUN}/model.ckpt-1000"
    assert evaluated_steps(bucket) == [500, 1000]


@pytest.mark.parametrize("num_retries", [1, 10])
def test_training_continues_in_an_outage(bucket, tmp_path, num_retries):
    environment = {**SHORT_DELAYS, "GCS_RETRY_CONFIG_MAX_RETRIES": str(num_retries)}
    with training(bucket, tmp_path, 9000, environment, save_checkpoints_steps=3000) as task:
        task.wait_for("eval | step 3000")
        # The next write after that of the checkpoint, for which the next save would wait.
        while "eval/evaluations.jsonl" not in bucket.names(RUN):
            time.sleep(0.1)
        bucket.outage = "refuse"
        task.wait_for("eval | step 6000")
        task.wait_for("train | step 8900")
        task.wait_for(f"{RUN} has not answered since")
        bucket.outage = None
        task.wait_for(f"{RUN} answers again")
        assert task.wait(200) == 0, task.output
    assert evaluated_steps(bucket) == [3000, 6000, 9000]
    assert newest(bucket) == f"{RUN}/model.ckpt-9000"


@pytest.mark.parametrize("outage", ["refuse", "hang"])
def test_a_signal_in_an_outage_ends_training_soon(bucket, tmp_path, outage):
    with training(bucket, tmp_path, 100_000) as task:
        task.wait_for("eval | step 1000")
        bucket.outage = outage
        task.send(signal.SIGTERM)
        assert task.wait(60) == 75  # TensorFlow repeats an operation for more than three minutes.
        [step] = re.findall(rf"continues from {RUN}/model.ckpt-(\d+)\.", task.output)
    bucket.outage = None
    with training(bucket, tmp_path, 100_000) as task:
        task.wait_for(f"resumed from step {step} of", 200)


def test_a_bucket_that_is_gone_ends_training(bucket, tmp_path):
    with training(bucket, tmp_path, 100_000, max_unreachable_secs=5) as task:
        task.wait_for("eval | step 500")
        bucket.outage = "refuse"
        assert task.wait(60) == 75
        assert f"max_unreachable_secs is 5, and {RUN} has not answered since" in task.output
