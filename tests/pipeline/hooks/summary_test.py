"""Event files: what TensorBoard reads back."""

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pipeline.hooks import stock, summary


@pytest.fixture
def events(tmp_path):
    """What is read back after a function has written."""

    def written(*writes):
        writer = summary.Writer(str(tmp_path / "run"))
        for write in writes:
            write(writer)
        writer.close()
        read = EventAccumulator(str(tmp_path / "run"))
        read.Reload()
        return read

    return written


def test_scalars(events):
    read = events(
        lambda w: w.scalars(1, {"loss": 0.5, "count": np.float64(3)}),
        lambda w: w.scalars(2, {"loss": float("nan")}),
    )
    assert [(e.step, e.value) for e in read.Scalars("count")] == [(1, 3.0)]
    loss = read.Scalars("loss")
    assert [e.step for e in loss] == [1, 2]
    assert loss[0].value == 0.5
    assert np.isnan(loss[1].value)
    assert loss[0].wall_time > 1.6e9


def test_arrays_by_element(events):
    read = events(lambda w: w.scalars(5, {"iou": np.array([0.25, 0.75])}))
    assert read.Tags()["scalars"] == ["iou/0", "iou/1"]
    assert read.Scalars("iou/1")[0].value == 0.75


def test_text(events):
    read = events(lambda w: w.text(0, "gin", "    a = 1"))
    assert read.Tags()["tensors"] == ["gin"]
    assert read.Tensors("gin")[0].tensor_proto.string_val == [b"    a = 1"]
    assert read.SummaryMetadata("gin").plugin_data.plugin_name == "text"


def test_no_file_without_a_value(tmp_path):
    writer = summary.Writer(str(tmp_path / "run"))
    writer.close()
    assert not (tmp_path / "run").exists()


def test_a_value_is_on_disk_at_once_and_a_closed_writer_opens_anew(tmp_path):
    writer = summary.Writer(str(tmp_path))
    for step in (1, 2):
        writer.scalars(step, {"loss": 1.0})
        read = EventAccumulator(str(tmp_path))
        read.Reload()
        assert read.Scalars("loss")[-1].step == step
        writer.close()
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 2


def test_values_in_a_log_line():
    assert stock.formatted({"loss": 0.312345, "iou": np.array([0.0, 1.0])}) == [
        "loss 0.3123",
        "iou (mean) 0.5",
    ]
