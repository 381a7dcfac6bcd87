"""The run whose memory is measured: it trains, saves, and goes on."""

from benchmarks import table_memory
from pipeline.checkpoints import checkpoint


def test_it_trains_and_goes_on(tmp_path):
    for number in (1, 2):
        peaks = table_memory.train(str(tmp_path), 100, asynchronous=False)
        assert 0 < peaks["before"] <= peaks["all"]
        newest = checkpoint.latest(str(tmp_path))
        assert checkpoint.step_of(newest) == number * table_memory.STEPS
