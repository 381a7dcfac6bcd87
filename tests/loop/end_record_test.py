"""The record of how a training ended."""

import pytest

import gin_estimator as ge
from gin_estimator.model_dir import records
from small import make, train_input


class Fails(ge.Hook):
    """Fails in one method."""

    every_steps = 1

    def __init__(self, method):
        setattr(self, method, self.fail)

    def fail(self, *args):
        raise RuntimeError("wrong")

    def after_step(self, run):
        """Is called at each step."""


@pytest.mark.parametrize("method, step", [("begin", 2), ("next_step", 2), ("after_step", 3)])
def test_an_error_of_a_hook_replaces_the_record_of_an_earlier_end(tmp_path, method, step):
    one = make(tmp_path)
    one.train(train_input, max_steps=2)
    assert records.read_end(str(tmp_path)).reason == records.FINISHED
    with pytest.raises(RuntimeError, match="wrong"):
        one.train(train_input, [Fails(method)], max_steps=4)
    ended = records.read_end(str(tmp_path))
    assert (ended.reason, ended.step, ended.checkpoint_step) == (records.FAILED, step, 2)
    assert ended.details == ("RuntimeError: wrong",)
