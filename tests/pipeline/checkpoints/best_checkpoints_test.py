"""The best checkpoints: which they are, that they stay, and how they are asked for."""

import json
import math
import re

import pytest

from pipeline.checkpoints import checkpoint, checkpoint_files, checkpoint_path
from pipeline.checkpoints.retention import KeptSteps, Retention
from pipeline.model_dir import best, evaluation_record
from pipeline.model_dir.best import Rule
from pipeline.model_dir.evaluation_record import Evaluated
from tests import fakes

ACCURACY = Rule("eval", "accuracy", True)


class ModelDir:
    """A folder of checkpoints without values, and the record of its evaluations."""

    def __init__(self, path, *rules, keep_max=1, **options):
        self.path = path
        self.retention = Retention(directory=str(path), keep_max=keep_max, **options)
        self.rules = rules
        best.write(str(path), rules, self.is_there)

    @property
    def is_there(self):
        return checkpoint_files.there(str(self.path))

    def save(self, step, content=""):
        prefix = checkpoint.path_of(str(self.path), step)
        (self.path / f"model.ckpt-{step}.data-00000-of-00001").touch()
        (self.path / f"model.ckpt-{step}.index").write_text(f"{step}{content}")
        self.retention.commit(prefix)

    def record(self, step, folder="eval", identity=None, **metrics):
        """Appends an evaluation to the record, and no more: a kill may come next."""
        name = f"model.ckpt-{step}"
        known = identity or checkpoint_files.identity(str(self.path / name))
        evaluated = Evaluated(
            step=step, time=0.0, metrics=metrics, checkpoint=name, identity=known
        )
        evaluation_record.append(str(self.path / folder), evaluated)

    def evaluate(self, step, folder="eval", **metrics):
        self.record(step, folder, **metrics)
        best.write(str(self.path), self.rules, self.is_there)

    def train(self, *accuracies):
        for number, accuracy in enumerate(accuracies, 1):
            self.save(10 * number)
            self.evaluate(10 * number, accuracy=accuracy)

    @property
    def saved(self):
        return fakes.checkpoint_steps(self.path)

    def ranked(self, rule=ACCURACY):
        return [b.step for b in best.ranked(str(self.path), rule, self.is_there)]

    def listed(self, metric="accuracy", evaluation="eval"):
        """The steps in the file, after a check that all of these are on disk."""
        file = self.path / best.FILE
        held = json.loads(file.read_text())[evaluation][metric]["best"]
        steps = [each["step"] for each in held]
        assert set(steps) <= set(self.saved)
        return steps

    def found(self, given):
        path = checkpoint_path.found(given, str(self.path))
        return checkpoint.step_of(path)


HISTORIES = [
    ([0.5, 0.9, 0.7, 0.8, 0.6], {1: [20], 2: [20, 40], 3: [20, 40, 30]}),
    # Of equal values the earlier is better, and stays.
    ([0.5, 0.5, 0.5, 0.5], {1: [10], 2: [10, 20], 3: [10, 20, 30]}),
    ([math.nan, 0.1, math.nan, math.inf], {1: [40], 3: [40, 20]}),
    ([math.nan, math.nan], {1: [], 2: []}),
]


@pytest.mark.parametrize(
    ("history", "k", "steps"),
    [(history, k, steps) for history, by_k in HISTORIES for k, steps in by_k.items()],
)
def test_the_k_best_stay_beside_the_newest(history, k, steps, tmp_path):
    rule = Rule("eval", "accuracy", True, k)
    run = ModelDir(tmp_path, rule)
    run.train(*history)
    assert run.ranked(rule) == run.listed() == steps
    # What was displaced last goes with the next save.
    run.save(100)
    assert run.saved == sorted({*steps, 100})


def test_less_may_be_better(tmp_path):
    run = ModelDir(tmp_path, Rule("eval", "loss", False, 2))
    for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0), (4, 9.0)):
        run.save(step)
        run.evaluate(step, loss=loss)
    assert run.listed("loss") == [2, 3]
    assert run.saved == [2, 3, 4]
    file = json.loads((tmp_path / best.FILE).read_text())["eval"]["loss"]
    assert file["higher_is_better"] is False
    assert file["best"][0] == {
        "step": 2,
        "path": "model.ckpt-2",
        "value": 1.0,
        "why": "the lowest loss of 4 evaluations",
        "metrics": {"loss": 1.0},
    }
    assert file["best"][1]["why"] == "the 2nd lowest loss of 4 evaluations"


def test_without_rules_there_is_no_file(tmp_path):
    run = ModelDir(tmp_path)
    run.train(0.9, 0.1)
    assert not (tmp_path / best.FILE).exists()
    assert run.saved == [20]


def test_several_evaluations_have_their_own(tmp_path):
    rules = ACCURACY, Rule("eval_test", "accuracy", True), Rule("eval", "loss", False)
    run = ModelDir(tmp_path, *rules)
    for step, accuracy, loss, other in ((1, 9, 3, 1), (2, 1, 2, 9), (3, 1, 1, 1)):
        run.save(step)
        run.record(step, accuracy=accuracy, loss=loss)
        run.evaluate(step, "eval_test", accuracy=other)
    run.save(4)
    assert run.saved == [1, 2, 3, 4]
    assert run.found("best/test") == run.found("best/test/accuracy") == 2
    assert run.found("best/loss") == run.found(f"{tmp_path}/best/loss") == 3
    assert run.found("best/accuracy") == 1
    for given in ("best", "best/los", "best/test/loss"):
        with pytest.raises(ValueError, match="asks for the best checkpoint by") as e:
            run.found(given)
        assert "'best/accuracy', 'best/loss', 'best/test/accuracy'" in str(e.value)
    # An evaluator of its own brings its rules along, and leaves the others alone.
    clean = Rule("eval_clean", "loss", False)
    best.write(str(tmp_path), [clean], run.is_there, replaced=["eval_clean"])
    assert best.rules(str(tmp_path)) == [ACCURACY, rules[2], rules[1], clean]
    best.write(str(tmp_path), [], run.is_there, replaced=["eval", "eval_clean"])
    assert best.rules(str(tmp_path)) == [rules[1]]


def test_of_two_rules_of_a_metric_the_one_that_keeps_more_counts(tmp_path):
    three = Rule("eval", "accuracy", True, 3)
    ModelDir(tmp_path, ACCURACY, three, ACCURACY)
    assert best.rules(str(tmp_path)) == [three]


def test_a_best_one_may_stay_for_good(tmp_path):
    run = ModelDir(tmp_path, ACCURACY, kept_steps=KeptSteps(every=20))
    run.train(0.1, 0.9, 0.2, 0.3, 0.4)
    assert run.saved == [20, 40, 50]
    assert run.listed() == [20]


def test_a_best_one_that_is_displaced_while_it_is_the_newest_stays(tmp_path):
    run = ModelDir(tmp_path, ACCURACY, keep_max=2)
    run.train(0.1, 0.2, 0.3)
    assert run.saved == [20, 30]


# Kills, and what else may befall a model_dir.


def test_a_kill_before_the_file_is_written(tmp_path):
    run = ModelDir(tmp_path, ACCURACY)
    run.train(0.9, 0.1)
    run.save(30)
    run.record(30, accuracy=0.95)  # Killed here.
    again = ModelDir(tmp_path, ACCURACY)
    assert again.listed() == [30]
    assert again.found("best") == 30


def test_the_file_names_nothing_that_is_being_deleted(tmp_path):
    run = ModelDir(tmp_path, ACCURACY)
    run.train(0.9)
    run.save(20)
    # An evaluator appends the line, and is killed or slow to write the file.
    run.record(20, accuracy=0.95)
    run.save(30)
    assert run.saved == [20, 30]
    assert run.listed() == [20]
    assert run.found("best") == 20


def test_half_a_line_of_the_record_is_passed_over(tmp_path):
    run = ModelDir(tmp_path, ACCURACY)
    run.train(0.9, 0.1)
    with open(tmp_path / "eval" / evaluation_record.FILE, "a") as file:
        file.write('{"step": 30, "metrics": {"accuracy": 0.99')
    run.save(30)
    assert run.found("best") == 10


def test_another_checkpoint_of_a_step_was_not_evaluated(tmp_path):
    """Training went back, or began anew: what is there is not what was evaluated."""
    run = ModelDir(tmp_path, ACCURACY, keep_max=None)
    run.train(0.5, 0.9)
    run.save(20, content=" of another training")
    assert run.found("best") == 10
    run.evaluate(20, accuracy=0.6)
    assert run.found("best") == 20


def test_an_evaluation_that_names_no_checkpoint_does_not_count(tmp_path):
    run = ModelDir(tmp_path, ACCURACY)
    run.train(0.5)
    live = Evaluated(step=15, time=0.0, metrics={"accuracy": 0.9})
    evaluation_record.append(str(tmp_path / "eval"), live)
    assert run.found("best") == 10


def test_a_best_one_that_was_deleted_by_hand_gives_way(tmp_path):
    run = ModelDir(tmp_path, ACCURACY, keep_max=None)
    run.train(0.5, 0.9, 0.7)
    (tmp_path / "model.ckpt-20.index").unlink()
    assert run.found("best") == 30
    ModelDir(tmp_path, ACCURACY)
    assert run.listed() == [30]


def test_a_damaged_file_is_set_aside_and_written_anew(tmp_path):
    run = ModelDir(tmp_path, ACCURACY)
    run.train(0.9, 0.1)
    (tmp_path / best.FILE).write_text('{"eval": {"accuracy"')
    ModelDir(tmp_path, ACCURACY)
    assert run.listed() == [10]
    assert (tmp_path / f"{best.FILE}.damaged").exists()


def test_a_rule_that_was_taken_out_keeps_nothing(tmp_path):
    run = ModelDir(tmp_path, ACCURACY)
    run.train(0.9, 0.1)
    run = ModelDir(tmp_path)
    assert not (tmp_path / best.FILE).exists()
    run.save(30)
    assert run.saved == [30]


# Asking for them.


def test_by_name_and_by_path(tmp_path):
    run = ModelDir(tmp_path / "a", ACCURACY)
    run.train(0.9, 0.1)
    assert run.found("best") == run.found("best/accuracy") == 10
    assert run.found(f"{tmp_path}/a/best/") == 10
    assert run.found("latest") == run.found(f"{tmp_path}/a/latest") == 20
    assert run.found(str(tmp_path / "a")) == 20
    other = str(tmp_path / "b")
    assert checkpoint_path.found(f"{tmp_path}/a/best", other).endswith("-10")
    assert checkpoint_path.found(None, other) is None


def test_a_path_that_is_there_is_a_path(tmp_path, monkeypatch):
    """A run may lie in a folder of that name; `best` alone is never a folder."""
    ModelDir(tmp_path / "best", ACCURACY, keep_max=None).train(0.9, 0.1)
    run = ModelDir(tmp_path / "a", ACCURACY, keep_max=None)
    run.train(0.1, 0.2, 0.3)
    monkeypatch.chdir(tmp_path)
    assert run.found("best/model.ckpt-20") == 20
    assert run.found("./best/best") == 10
    assert run.found("./best") == 20
    assert run.found("best") == 30


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("best", "keeps none: train with EvalSpec(keep_best=KeepBest('accuracy'))"),
        ("best/accuracy", "keeps none: train with EvalSpec(keep_best="),
        ("latest", "'latest' asks for the latest checkpoint, and {} has none: train"),
        (
            "runs/none/best",
            "there is no checkpoint at checkpoint_path='runs/none/best'",
        ),
    ],
)
def test_where_there_is_none(given, words, tmp_path):
    if given.startswith("best"):
        ModelDir(tmp_path).save(1)
    with pytest.raises(ValueError, match=re.escape(words.format(tmp_path))):
        checkpoint_path.found(given, str(tmp_path))


def test_where_nothing_was_evaluated_yet(tmp_path):
    run = ModelDir(tmp_path, ACCURACY)
    run.save(1)
    words = f"no evaluation in {tmp_path}/eval has a number as accuracy of a checkpoint"
    with pytest.raises(ValueError, match=re.escape(words)):
        run.found("best")
