"""Whether more of a metric is better, by its name."""

import pytest

from pipeline.process import metric_names


@pytest.mark.parametrize(
    ("metric", "higher"),
    [
        ("accuracy", True),
        ("ema/accuracy", True),
        ("top5_accuracy", True),
        ("loss", False),
        ("eval/log-loss", False),
        ("rmse", False),
        ("valMSE", False),
        ("neg_mean_squared_error", None),
        ("negative_log_likelihood", None),
        ("accuracy_loss", None),
        ("value", None),
    ],
)
def test_whether_higher_is_better(metric, higher):
    assert metric_names.higher_is_better(metric) is higher
