"""Averages and summaries of two worker processes are those of one process."""

import pathlib
import sys

import numpy as np
import pytest

from tasks import Task, workers

PROGRAM = pathlib.Path(__file__).parent / "averages_worker.py"
sys.path.append(str(pathlib.Path(__file__).parents[1] / "hooks"))


@pytest.mark.slow
def test_two_workers_average_and_show_as_one_process(tmp_path):
    import summaries_test

    alone = Task("alone", [PROGRAM, tmp_path / "alone", tmp_path / "alone.npy"], tmp_path)
    assert alone.wait(180) == 0, alone.output
    arguments = tmp_path / "group", tmp_path / "worker-{index}.npy"
    with workers(tmp_path, *arguments, program=PROGRAM) as tasks:
        for task in tasks:
            assert task.wait(180) == 0, task.output
    expected = np.load(tmp_path / "alone.npy")
    for index in range(2):
        worker = np.load(tmp_path / f"worker-{index}.npy")
        np.testing.assert_allclose(worker, expected, rtol=1e-5, atol=2e-6)
    for folder in (tmp_path / "alone/summaries", tmp_path / "group/summaries"):
        step = {n: v[2] for n, v in summaries_test.values(folder).items() if 2 in v}
        summaries_test.check(step, slice(8, 16))
        evaluated = summaries_test.values(folder / "eval")
        summaries_test.check({n: by_step[3] for n, by_step in evaluated.items()}, slice(None))
