"""Many evaluations in one process: no more memory, and nothing traced again."""

import collections

import psutil
import pytest

import pipeline as ge
from tests import fakes

EVALUATIONS = 50
WARM_UP = 5


@pytest.fixture(scope="module", params=[None, ("CPU:0", "CPU:1")], ids=["one", "two"])
def watched(request, tmp_path_factory):
    """Traces of model_fn so far and resident bytes, after each evaluation."""
    count = collections.Counter()
    estimator = fakes.make_estimator(
        tmp_path_factory.mktemp("memory"),
        params={"on_call": lambda mode: count.update([mode])},
        devices=request.param,
        # With a seed, TensorFlow drops at each input what it holds compiled.
        tf_random_seed=None,
    )
    data = fakes.classification_data(200)
    estimator.train(fakes.make_input_fn(*data, batch_size=32))
    process = psutil.Process()
    traces, resident = [], []
    for _ in range(EVALUATIONS):
        # A new input_fn each time, as in a loop that a user writes.
        estimator.evaluate(fakes.make_input_fn(*data, batch_size=32))
        traces.append(count.total())
        resident.append(process.memory_info().rss)
    return traces, resident


def test_traces_nothing_again(watched):
    traces, _ = watched
    assert len(set(traces)) == 1


def test_resident_memory_is_flat(watched):
    _, resident = watched
    assert max(resident[WARM_UP:]) <= 1.02 * resident[WARM_UP - 1]


@pytest.mark.parametrize("devices", [None, ("CPU:0", "CPU:1")], ids=["one", "two"])
def test_train_and_evaluate_traces_each_mode_once(tmp_path, devices):
    def traces(name, num_evaluations):
        count = collections.Counter()
        estimator = fakes.make_estimator(
            tmp_path / name,
            params={"on_call": lambda mode: count.update([mode])},
            devices=devices,
            save_checkpoints_steps=5,
            tf_random_seed=None,
        )
        input_fn = fakes.make_input_fn(
            *fakes.classification_data(200), batch_size=8, per_replica=True
        )
        ge.train_and_evaluate(
            estimator,
            ge.TrainSpec(input_fn, max_steps=5 * num_evaluations),
            ge.EvalSpec(input_fn, throttle_secs=0),
        )
        return count

    assert traces("four", 4) == traces("one", 1)
