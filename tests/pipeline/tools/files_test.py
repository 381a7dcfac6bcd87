"""Tools beside TensorBoard: what they are handed, and the files that come along."""

import csv
import io
import json
import math

import numpy as np
import pytest

import pipeline as ge
from pipeline.contract.hooks import Report, Run
from pipeline.tools.tools_hook import ToolsHook
from tests import fakes

X, Y = fakes.classification_data(96)


class Notes(ge.Tool):
    """Keeps its calls."""

    def __init__(self):
        self.calls = []

    def begin(self, run, hparams):
        self.calls.append(("begin", run.step, dict(hparams)))

    def write(self, step, values, name):
        self.calls.append((name, step, values))

    def end(self):
        self.calls.append(("end",))


class Breaks(Notes):
    """Raises in some methods."""

    def __init__(self, *methods):
        super().__init__()
        for method in methods:
            setattr(self, method, self._raises)

    def _raises(self, *args):
        self.calls.append(("raised",))
        raise ConnectionError("no network")


def endless(batch_size=8):
    return fakes.make_input_fn(X, Y, batch_size=batch_size, change=lambda d: d.repeat())


def once():
    return fakes.make_input_fn(X, Y, batch_size=32)


def make_estimator(model_dir, *tools, **options):
    options = {"save_summary_steps": 4, "save_checkpoints_steps": 6, **options}
    return fakes.make_estimator(model_dir, tools=tools, **options)


def train_and_evaluate(model_dir, *tools, max_steps=12, **options):
    hooks = options.pop("hooks", ())
    ge.train_and_evaluate(
        make_estimator(model_dir, *tools, **options),
        ge.TrainSpec(endless(), max_steps=max_steps, hooks=hooks),
        [
            ge.EvalSpec(once(), throttle_secs=0),
            ge.EvalSpec(once(), name="test", throttle_secs=0),
        ],
    )


def test_a_tool_gets_windows_and_evaluations(tmp_path):
    tool = Notes()
    params = {"rate": 0.5, "deep": {"size": np.int64(3)}, "fn": print, "_own": 1}
    train_and_evaluate(
        tmp_path, tool, max_steps=10, params=params, hparams={"also": "yes"}
    )
    assert tool.calls[0] == ("begin", 0, {"rate": 0.5, "deep.size": 3, "also": "yes"})
    assert [call[:2] for call in tool.calls[1:-1]] == [
        *[("train", 4), ("eval", 6), ("eval_test", 6), ("train", 8)],
        *[("eval", 10), ("eval_test", 10), ("train", 10)],
    ]
    assert tool.calls[-1] == ("end",)
    by_name = {name: values for name, _, values in tool.calls[1:-1]}
    assert set(by_name["eval"]) == {"loss", "accuracy", "examples"}
    assert by_name["eval"]["examples"] == 96
    speed = {"global_step/sec", "examples/sec", "input_wait"}
    assert set(by_name["train"]) == {*by_name["eval"], *speed, "learning_rate"}
    assert by_name["train"]["examples"] == 16
    assert all(type(value) is float for value in by_name["train"].values())


def test_a_tool_that_raises_is_told_of_once_and_training_goes_on(tmp_path, caplog):
    tools = Breaks("begin"), Breaks("write", "end"), Notes()
    make_estimator(tmp_path, *tools).train(endless(), max_steps=8)
    assert [len(tool.calls) for tool in tools[:2]] == [1, 4]
    assert tools[1].calls[1:] == [("raised",)] * 3
    assert [call[0] for call in tools[2].calls] == ["begin", "train", "train", "end"]
    said = [r.getMessage() for r in caplog.records if "raised" in r.getMessage()]
    assert len(said) == 2
    assert said[0].startswith(
        "train | Breaks().begin raised ConnectionError: no network | training goes on"
    )
    assert said[1].startswith("train | Breaks().write raised")


def test_one_process_of_several_calls():
    tool, run = Notes(), Run("model_dir", 0, None, leads=False)
    run.read_report = lambda: Report(4, 4, 1.0, 0.5, {}, {})
    hook = ToolsHook([tool], {})
    hook.begin(run)
    hook.after_step(run)
    hook.after_evaluation(run, None, {"loss": 1.0, "global_step": 4})
    hook.end(run)
    assert tool.calls == []


def test_a_config_with_tools_is_described_and_can_be_a_key():
    config = ge.RunConfig(tools=[ge.CsvTool()], hparams={"rate": 1})
    assert config.describe() == {"tools": "(CsvTool(),)", "hparams": "{'rate': 1}"}
    assert {config: 1}[config] == 1


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"tools": ge.CsvTool()}, "tools is CsvTool CsvTool(), not a list: write Run"),
        ({"tools": [ge.CsvTool]}, "holds the class CsvTool, not an object of it: w"),
        ({"tools": [ge.Hook()]}, "not a Tool: write a subclass of pipeline.Tool."),
        ({"hparams": [1]}, "hparams is [1], not a dict: write hparams={'learning_r"),
        ({"hparams": {"a": None}}, "RunConfig.hparams has 'a': None; names are str"),
        ({"hparams": {1: 2}}, "RunConfig.hparams has 1: 2; names are strings, and"),
    ],
)
def test_refused(fields, text):
    with pytest.raises(ValueError) as error:
        ge.RunConfig(**fields)
    assert text in str(error.value)


def rows_of(text, ending):
    """The rows of a file, without the time."""
    if ending == "jsonl":
        rows = [json.loads(line) for line in text.splitlines()]
    else:
        rows = [
            {name: float(value) for name, value in row.items() if value}
            for row in csv.DictReader(io.StringIO(text))
        ]
    assert all(row.pop("wall_time") > 1.6e9 for row in rows)
    return rows


FILES = {"csv": ge.CsvTool, "jsonl": ge.JsonLinesTool}
each_file = pytest.mark.parametrize("ending", FILES)


def written(folder, ending):
    """The rows of each file by name, without what depends on the clock."""
    found = {}
    for path in sorted((folder / "metrics").glob(f"*.{ending}")):
        found[path.stem] = rows_of(path.read_text(), ending)
        for row in found[path.stem]:
            for speed in ("global_step/sec", "examples/sec", "input_wait"):
                row.pop(speed, None)
    return found


class Killed(Exception):
    """The end of a process."""


class Kill(ge.Hook):
    """Ends training in a way that calls no hook."""

    def __init__(self, step, signal=False):
        self.every_steps, self._signal = step, signal

    def after_step(self, run):
        if self._signal:
            run.request_stop("preempted")
        elif run.step == self.every_steps:
            raise Killed


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Both files of a run that nothing broke off."""
    folder = tmp_path_factory.mktemp("whole")
    train_and_evaluate(folder, ge.CsvTool(), ge.JsonLinesTool(), max_steps=22)
    return {ending: written(folder, ending) for ending in FILES}


def test_one_row_a_step(whole):
    assert whole["csv"] == whole["jsonl"]
    steps = {
        name: [r["global_step"] for r in whole["csv"][name]] for name in whole["csv"]
    }
    assert steps == {
        "train": [4, 8, 12, 16, 20, 22],
        "eval": [6, 12, 18, 22],
        "eval_test": [6, 12, 18, 22],
    }
    assert whole["csv"]["eval"][0]["examples"] == 96


@pytest.mark.parametrize("signal", [False, True], ids=["killed", "preempted"])
def test_a_run_that_was_broken_off_writes_the_same(tmp_path, whole, signal):
    """At step 17, when the checkpoint of step 12 is the last one."""
    tools = ge.CsvTool(), ge.JsonLinesTool()
    kill = Kill(17, signal)
    try:
        train_and_evaluate(tmp_path, *tools, max_steps=22, hooks=[kill])
    except (Killed, ge.PreemptedError):
        for path in tmp_path.glob("metrics/*"):
            with path.open("a") as file:
                file.write('99,{"glo')  # Half a line.
    steps = [row["global_step"] for row in written_whole_lines(tmp_path)]
    assert steps == [4, 8, 12, 16]
    again = ge.CsvTool(), ge.JsonLinesTool()
    train_and_evaluate(tmp_path, *again, max_steps=22)
    for ending in FILES:
        found, expected = written(tmp_path, ending), dict(whole[ending])
        if signal:  # It was evaluated where it was saved.
            for name in ("eval", "eval_test"):
                found[name] = [r for r in found[name] if r["global_step"] != 17]
        assert list(found) == list(expected)
        for name, rows in expected.items():
            # Sums of other parts round otherwise.
            assert found[name] == [pytest.approx(row, rel=1e-5) for row in rows]


def written_whole_lines(folder):
    text = (folder / "metrics" / "train.jsonl").read_text()
    return rows_of(text[: text.rfind("\n") + 1], "jsonl")


@each_file
def test_an_evaluation_that_is_told_again_takes_its_place(tmp_path, ending):
    tool, run = FILES[ending](), Run(str(tmp_path), 0, None)
    tool.begin(run, {})
    for step, loss in ((2, 0.5), (4, 0.25), (4, 0.125), (6, 1.0), (4, 3.0)):
        tool.write(step, {"loss": loss}, "eval")
    found = written(tmp_path, ending)["eval"]
    assert [(r["global_step"], r["loss"]) for r in found] == [(2, 0.5), (4, 3.0)]


@each_file
def test_values_of_all_kinds(tmp_path, ending):
    """Also those that come up later, under names with commas."""
    tool, run = FILES[ending](), Run(str(tmp_path), 0, None)
    tool.begin(run, {})
    tool.write(1, {"loss": math.nan}, "train")
    tool.write(2, {"loss": math.inf, 'a, "b"': 1e-300}, "train")
    tool.write(3, {"loss": 0.1 + 0.2}, "train")
    first, second, third = written(tmp_path, ending)["train"]
    assert math.isnan(first["loss"])
    assert second == {"global_step": 2, "loss": math.inf, 'a, "b"': 1e-300}
    assert third == {"global_step": 3, "loss": 0.1 + 0.2}
    # A run that begins anew there begins with empty files.
    FILES[ending]().begin(run, {})
    assert (tmp_path / "metrics" / f"train.{ending}").read_text() == ""


def test_what_an_evaluator_evaluates_after_the_end_is_handed_on(tmp_path, monkeypatch):
    def run(**config):
        notes = Notes()
        estimator = make_estimator(
            tmp_path, notes, ge.CsvTool(), save_checkpoints_steps=2, **config
        )
        times = {"throttle_secs": 0, "start_delay_secs": 0}
        specs = [ge.EvalSpec(once(), **times), ge.EvalSpec(once(), name="b", **times)]
        ge.train_and_evaluate(estimator, ge.TrainSpec(endless(), max_steps=4), specs)
        return notes.calls

    run(evaluation="evaluator")
    cluster = {"cluster": {"chief": ["a:1"]}, "task": {"type": "evaluator", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    begin, *written, end = run()
    assert (begin[:2], end) == (("begin", 4), ("end",))
    steps = [(step, name) for name, step, _ in written]
    assert steps == [(s, name) for s in (0, 2, 4) for name in ("eval", "eval_b")]
    with open(tmp_path / "metrics" / "eval_b.csv") as file:
        assert [int(row["global_step"]) for row in csv.DictReader(file)] == [0, 2, 4]
    assert (tmp_path / "metrics" / "train.csv").exists()
