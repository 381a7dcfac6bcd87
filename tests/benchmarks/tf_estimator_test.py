"""The interpreter of tf.estimator: told apart from one that cannot do it."""

import pytest

from benchmarks import tf_estimator


def executable(tmp_path, script):
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_an_interpreter_without_tf_estimator_is_told(tmp_path):
    python = executable(tmp_path, "exit 3")
    with pytest.raises(SystemExit, match="ended with 3: give one that has tensorflow"):
        tf_estimator.TfEstimator(python, "tf_estimator_table.py", "sgd")


def test_it_does_the_steps_that_it_is_asked_for(tmp_path):
    asked = tmp_path / "asked"
    script = f'echo done; while read n; do echo "$n" >> {asked}; echo done; done'
    python = executable(tmp_path, script)
    run = tf_estimator.TfEstimator(python, "tf_estimator_flights.py")
    run(20)
    run(3)
    run.close()
    assert asked.read_text() == "20\n3\n"
