"""Networks of tables come to the same on one replica and on several.

Of several processes they do so in `multi_worker_test` and `parameter_server_test`.
"""

import pytest

import pipeline as ge
from tests import tabled_training

REPLICAS = {
    "one": {},
    "two, accumulated": {
        "devices": ("CPU:0", "CPU:1"),
        "gradient_accumulation_steps": 2,
    },
}


@pytest.mark.parametrize("name", REPLICAS)
def test_networks_come_to_the_same(tmp_path, name):
    config = ge.RunConfig(
        model_dir=str(tmp_path),
        log_step_count_steps=None,
        save_summary_steps=None,
        **REPLICAS[name],
    )
    names = tuple(tabled_training.OPTIONS)
    tabled_training.check(tabled_training.train(config, names))
