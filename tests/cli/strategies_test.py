"""Strategies of the command: flags and gin."""

import pytest

from gin_estimator import main
from gin_estimator.estimator import execution

STEPS = ["--gin_file=digits.gin", "--gin.TRAIN_STEPS=2", "--job=train"]


def run(folder, *flags):
    return main.main(["main", *STEPS, f"--model_dir={folder}/run", *flags])


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ["--devices=CPU:0,CPU:1"],
        ["--devices=CPU:0,CPU:1", "--gin.RunConfig.train_distribute=@central_storage"],
        [
            "--devices=CPU:0,CPU:1",
            "--gin.RunConfig.train_distribute=@mirrored",
            "--gin.mirrored.cross_device_ops='one_device'",
            "--gin.RunConfig.devices=['CPU:2']",
        ],
    ],
)
def test_flags_and_bindings_choose_the_strategy(flags, gin_folder, caplog, monkeypatch):
    made, create = [], execution.create
    monkeypatch.setattr(execution, "create", lambda config: made.append(create(config)) or made[0])
    assert run(gin_folder, *flags) == 0
    assert made[0].num_replicas_in_sync == 2
    assert ("CentralStorage" in type(made[0]).__name__) == ("central" in flags[-1])
    if len(flags) == 4:
        assert "--devices=['CPU:0', 'CPU:1'] overrides gin's ['CPU:2']" in caplog.text
