"""The report of a run: its history, the sums of it, and what it shows."""

import html.parser
import json
import math
import re
import signal
import time

import pytest

import gin_estimator as ge
from gin_estimator import report as report_command
from gin_estimator.cli import report_page
from gin_estimator.model_dir import phases
from gin_estimator.model_dir.evaluation_results import Evaluated
from gin_estimator.model_dir.phases import Line
from small import Do, data, make, train_input
from tasks import PROGRAMS, Task


def lines(*pieces, attempt=1, begin=100.0):
    """Returns the lines of an attempt, one after the other: `(phase, seconds, fields)`."""
    found = []
    for phase, secs, fields in pieces:
        found.append(Line(attempt=attempt, phase=phase, begin=begin, end=begin + secs, **fields))
        begin += secs
    return found


def steps(secs, first, step, **fields):
    return phases.STEPS, secs, {"first": first, "step": step, **fields}


def made_up():
    """A run that was killed at step 30, after the checkpoint of step 20."""
    first = lines(
        (phases.START, 4.0, {"step": 0, "max_step": 40, "options": {"rate": "0.1"}}),
        (phases.TRACING, 3.0, {"first": 0, "step": 1, "loss": 2.0}),
        steps(10.0, 1, 20, input_secs=2.0, hook_secs=1.0, loss=1.5),
        (phases.SAVE, 1.0, {"step": 20}),
        (phases.EVALUATION, 2.0, {"step": 20}),
        steps(5.0, 20, 30, loss=1.0),
    )
    second = lines(
        (phases.START, 4.0, {"step": 20, "max_step": 40, "options": {"rate": "0.2"}}),
        (phases.TRACING, 3.0, {"first": 20, "step": 21}),
        steps(8.0, 21, 37, input_secs=2.0, loss=0.9),
        (phases.EXPORT, 1.0, {"step": 37}),
        (phases.END, 1.0, {"step": 37, "reason": "stopped", "details": ["<enough>"]}),
        attempt=2,
        begin=135.0,
    )
    return [*first, *second]


def test_parts_add_up_and_count_each_step_once():
    times = phases.times(made_up())
    secs = times.secs
    assert times.wall_secs == pytest.approx(sum(secs.values())) == 52.0
    assert secs[phases.DOWN] == 10.0  # From 125 to 135.
    # Steps 22 to 30 of the 16 after step 21 were made before.
    assert secs[phases.REDONE] == pytest.approx(8.0 * 9 / 16)
    assert secs[phases.INPUT] == pytest.approx(2.0 + 2.0 * 7 / 16)
    assert secs[phases.STEPS] == pytest.approx(7.0 + 5.0 + 8.0 * 7 / 16 * 0.75)
    assert times.goodput == pytest.approx(secs[phases.STEPS] / 52.0)
    assert [each.num_redone for each in times.attempts] == [0, 10]
    assert times.losses == [(1, 2.0), (20, 1.5), (37, 0.9)]


def test_time_after_an_end_is_no_part_of_the_run():
    later = lines((phases.START, 2.0, {"step": 37}), steps(3.0, 37, 40), attempt=3, begin=9000.0)
    times = phases.times([*made_up(), *later])
    assert times.wall_secs == pytest.approx(sum(times.secs.values())) == 57.0


def test_lines_written_twice_and_a_clock_set_back_count_no_time_twice():
    run = made_up()
    twice = phases.times([*run[:3], *run[1:3], *run[3:]])
    assert twice.secs == phases.times(run).secs
    back = lines((phases.START, 2.0, {"step": 37}), attempt=3, begin=20.0)
    times = phases.times([*run, *back])
    assert times.wall_secs == pytest.approx(sum(times.secs.values())) == 52.0


def test_a_file_with_damaged_lines_is_read():
    text = "".join(f"{each.to_json()}\n" for each in made_up())
    later = made_up()[0].to_json().replace('"start"', '"a phase of a later release"')
    damaged = f"\x00\nnull\n[]\n{{}}\n{later}\n{text}" + '{"attempt": 3, "phase": "sta'
    assert phases.parse(damaged.encode()) == made_up()
    assert phases.times([]).goodput == 0.0


class Page(html.parser.HTMLParser):
    """Checks that tags are closed; keeps the text, and attributes that load something."""

    def __init__(self, text):
        super().__init__()
        self.open, self.texts, self.loads = [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.loads += [each for each in attrs if each[0] in ("src", "href", "xlink:href")]
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def shown():
    evaluations = [
        Evaluated(step=step, metrics={"loss": loss, "f<1": math.nan, "global_step": step})
        for step, loss in ((20, 1.2), (37, 0.8))
    ]
    return report_page.Report(
        "runs/<a>",
        phases.times(made_up()),
        evaluations={"eval": evaluations},
        exports={"best": ["runs/<a>/export/best/1767222000"]},
    )


def test_the_text_has_all_tables():
    text = "\n".join(report_page.text_lines(shown()))
    assert text.startswith("runs/<a> | step 37 of 40 | stopped; <enough>\nwall time 0:00:52 | ")
    titles = [block.splitlines()[0] for block in text.split("\n\n")[1:]]
    assert titles == ["time", "attempts", "evaluations", "exports", "changes between attempts"]
    for pattern in (
        r"^waiting for input +2\.9 +5\.5%$",
        r"^down +10\.0 +19\.2%$",
        r"^sum +52\.0 +of 52\.0$",
        r"^1 +\S+ \S+ +0:00:25 +0 to 30 +0 +killed$",
        r"^2 +\S+ \S+ +0:00:17 +20 to 37 +10 +stopped; <enough>$",
        r"^eval +2 +37 +f<1 nan, loss 0\.8000$",
        r"^best +1 +runs/<a>/export/best/1767222000$",
        r"^attempt 2: rate 0\.1 -> 0\.2$",
    ):
        assert re.search(pattern, text, re.MULTILINE), (pattern, text)


def test_the_page_is_one_file_without_a_network():
    text = report_page.page(shown())
    page = Page(text)
    assert not page.loads and "<script" not in text and "http" not in text
    assert {"runs/<a>", "attempt 2: rate 0.1 -> 0.2", "steps redone", "train"} <= {*page.texts}
    assert text.count("<polyline") == 2  # Of the loss; a metric of NaN alone has no chart.
    assert len(text) < 100_000


def test_a_sweep_has_a_table_and_plots(tmp_path, capsys):
    trials = "trial,state,loss,RATE,net,why\n1,complete,0.5,0.0012345678,@cnn,\n"
    trials += "0,complete,0.75,1.0,@cnn,\n"
    (tmp_path / "trials.csv").write_text(f"{trials}2,fail,,0.1,@mlp,exited with 1\n")
    assert text_of(tmp_path, capsys) == f"report {tmp_path}/report.html\n"
    page = Page((tmp_path / "report.html").read_text())
    titles = [text for text in page.texts if text.startswith("loss over")]
    assert titles == ["loss over trial", "loss over log10 of RATE"]
    lines = text_of(tmp_path, capsys, "--text").splitlines()
    assert lines[1].split()[3] == "0.001235"
    assert lines[-1].split() == ["2", "fail", "0.1", "@mlp", "exited", "with", "1"]


def text_of(model_dir, capsys, *flags):
    assert report_command.main(["report", str(model_dir), *flags]) == 0
    return capsys.readouterr().out


def test_a_training_has_a_report_while_it_runs_and_after_it(tmp_path, capsys):
    one, texts = make(tmp_path, save_checkpoints_steps=4), []
    hook = Do(lambda run: texts.append(text_of(tmp_path, capsys, "--text")), every_steps=6)
    spec = ge.EvalSpec(data, exporters=ge.FinalExporter(), throttle_secs=0)
    ge.train_and_evaluate(one, ge.TrainSpec(train_input, 8, [hook]), spec)
    assert "| running" in texts[0].splitlines()[0]
    text = text_of(tmp_path, capsys, "--text")
    assert f"{tmp_path} | step 8 of 8 | finished" == text.splitlines()[0]
    assert re.search(r"^eval +2 +8 +accuracy ", text, re.MULTILINE)
    assert re.search(r"^final +1 +", text, re.MULTILINE)
    times = report_command.read(str(tmp_path)).times
    assert sum(times.secs.values()) == pytest.approx(times.wall_secs, rel=0.01)
    names = (phases.TRACING, phases.STEPS, phases.SAVE, phases.EVALUATION, phases.EXPORT)
    assert all(times.secs[name] > 0 for name in names), times.secs
    assert [step for step, _ in times.losses][-1] == 8
    assert text_of(tmp_path, capsys) == f"report {tmp_path}/report.html\n"
    Page((tmp_path / "report.html").read_text())


def test_fit_has_a_report_with_the_error_that_ended_it(tmp_path, capsys):
    import keras
    import numpy as np

    def make_model():
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    x, y = np.ones([16, 4], "float32"), np.ones([16, 1], "float32")
    config = ge.RunConfig(str(tmp_path))
    ge.fit(make_model, x, y, epochs=2, validation_data=(x, y), config=config)

    def fail(run):
        raise RuntimeError("wrong")

    with pytest.raises(RuntimeError, match="wrong"):
        ge.fit(make_model, x, y, epochs=4, hooks=[Do(fail)], config=config)
    text = text_of(tmp_path, capsys, "--text")
    assert text.splitlines()[0].endswith("| failed; RuntimeError: wrong")
    assert re.search(r"^1 .* 0 to \d+ +0 +finished$", text, re.MULTILINE)
    assert re.search(r"^eval +2 ", text, re.MULTILINE)


def test_a_folder_without_history_is_refused(tmp_path, capsys):
    assert report_command.main(["report", str(tmp_path)]) == 2
    assert f"MODEL_DIR is {tmp_path}: expected the directory" in capsys.readouterr().err
    make(tmp_path, save_checkpoints_steps=0).train(train_input, max_steps=2)
    assert not (tmp_path / phases.HISTORY).exists()


@pytest.mark.slow
def test_kills_are_down_time_and_redone_steps(tmp_path):
    model_dir, began = tmp_path / "run", None
    for index, step in enumerate((15, 35)):
        task = Task(f"task-{index}", [PROGRAMS / "history.py", model_dir], tmp_path)
        began = began or time.time()
        task.wait_for(f"STEP {step}\n")
        task.send(signal.SIGKILL)
        task.wait()
    task = Task("last", [PROGRAMS / "history.py", model_dir], tmp_path)
    assert task.wait() == 0, task.output
    report, passed = report_command.read(str(model_dir)), time.time() - began
    times, secs = report.times, report.times.secs
    assert [report.end_of(each) for each in times.attempts] == ["killed", "killed", "finished"]
    assert sum(secs.values()) == pytest.approx(times.wall_secs, rel=0.01)
    assert passed / 2 < times.wall_secs < passed  # It begins and ends within the processes.
    assert secs[phases.DOWN] > 0 and times.attempts[-1].first == 30
    assert 0 < times.goodput < 1
    attempts = {json.loads(line)["attempt"] for line in (model_dir / phases.HISTORY).open()}
    assert attempts == {1, 2, 3}
