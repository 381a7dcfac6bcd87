"""Launchers, and a training that several files compare theirs with."""

import pytest

from tests import interrupted
from tests.launched import Launched


@pytest.fixture
def start(tmp_path):
    launched = []

    def run(program, *arguments, after=("--model_dir=m",)):
        launched.append(Launched(tmp_path, program, arguments, after))
        return launched[-1]

    yield run
    for each in launched:
        for process in each.left():
            process.kill()
        each.process.communicate()


@pytest.fixture(scope="session")
def straight(tmp_path_factory):
    """A run to step 6 that nothing happened to; it holds 0, 2, 4 and 6."""
    folder = tmp_path_factory.mktemp("straight")
    interrupted.make(folder).train(interrupted.TRAIN, max_steps=6)
    return folder
