"""All that a run does goes by one record in model_dir, and counts once."""

import json
import os
import threading

import pytest
import tensorflow as tf

import inputs
import pipeline as ge
from inputs.schema import agreed
from pipeline.checkpoints import checkpoint
from pipeline.cluster.tf_config import parse_tf_config
from pipeline.model_dir import atomic_file, claim, storage

FEATURES = {"x": {"kind": "number", "scale": "standard"}, "w": "word"}


class Source:
    """A source that counts its calls, each of which is one pass."""

    def __init__(self, words=("a", "b", "a")):
        self.words = list(words)
        self.passes = 0

    def __call__(self, mode):
        def started(row):
            self.passes += 1
            return row

        columns = {"x": [float(i) for i in range(len(self.words))], "w": self.words}
        counted = tf.data.Dataset.range(1).map(
            lambda i: tf.py_function(started, [i], tf.int64)
        )
        rows = tf.data.Dataset.from_tensor_slices(columns).batch(2)
        return counted.flat_map(lambda _: rows)


@pytest.fixture
def source():
    return Source()


@pytest.fixture
def model_dir(tmp_path):
    return tmp_path / "run"


def schema_of(source=None, *, statistics=None, **changed):
    features = {**FEATURES, **changed}
    return inputs.Schema(features=features, source=source, statistics=statistics)


def config_of(model_dir, task=("chief", 0)):
    """The RunConfig of a task in a cluster of a chief, a worker and an evaluator."""
    jobs = {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}
    text = {"cluster": jobs, "task": {"type": task[0], "index": task[1]}}
    cluster = parse_tf_config(json.dumps(text)) if task[0] != "alone" else None
    return ge.RunConfig(model_dir=str(model_dir), cluster=cluster)


def alone(model_dir):
    return config_of(model_dir, ("alone", 0))


def save_checkpoint(model_dir):
    """Leaves what counts as a checkpoint."""
    path = f"{model_dir}/model.ckpt-10"
    tf.train.Checkpoint(v=tf.Variable(1.0)).write(path)
    tf.compat.v1.train.update_checkpoint_state(str(model_dir), path)
    assert checkpoint.latest(str(model_dir))


def vocabulary(encoder):
    return encoder.statistics["w"].vocabulary


def test_counts_once_for_all_that_comes_later(model_dir, source, log):
    config = alone(model_dir)
    encoder = schema_of(source).prepared(config)
    assert vocabulary(encoder) == ("a", "b")
    assert source.passes == 1
    assert any("counted 2 features over 3 rows" in line for line in log())
    # A reader of the same run, a declaration of its own.
    assert schema_of(source).prepared(config) is encoder
    save_checkpoint(model_dir)
    # A resume, a prediction: other processes, which need no source.
    assert schema_of().prepared(config) == encoder
    assert source.passes == 1
    assert sorted(os.listdir(model_dir))[-1] == "schema.json"
    assert not (model_dir / "schema.json.counting").exists()


def test_a_prediction_writes_nothing_and_reads_in_another_task(model_dir, source):
    schema_of(source).prepared(alone(model_dir))
    save_checkpoint(model_dir)
    before = sorted(os.listdir(model_dir))
    os.chmod(model_dir, 0o555)
    try:
        evaluator = config_of(model_dir, ("evaluator", 0))
        assert vocabulary(schema_of().prepared(evaluator)) == ("a", "b")
    finally:
        os.chmod(model_dir, 0o755)
    assert sorted(os.listdir(model_dir)) == before


CHANGES = {
    "kind": ({"w": {"kind": "word", "max_size": 5}}, "'w' is {'kind': 'word', 'max_s"),
    "new": (
        {"z": {"kind": "word", "column": "w", "hash_buckets": 5}},
        "'z' is .*, and was not there",
    ),
    "scale": ({"x": "number"}, "'x' is {'kind': 'number'}, and was .*'standard'}"),
}


@pytest.mark.parametrize(("changed", "error"), CHANGES.values(), ids=CHANGES)
def test_a_changed_declaration(changed, error, model_dir, source, log):
    config = alone(model_dir)
    schema_of(source).prepared(config)
    schema_of(source, **changed).prepared(config)
    assert source.passes == 2
    assert any("is of another schema, or of other data: replaced" in x for x in log())
    schema_of(source).prepared(config)
    save_checkpoint(model_dir)
    with pytest.raises(ValueError, match=error) as raised:
        schema_of(source, **changed).prepared(config)
    assert "declare it as it was, or choose another model_dir" in str(raised.value)


def test_a_feature_less_is_refused_and_another_order_is_put_right(model_dir, source):
    """An order like that of the config.gin of a run, in which gin sorts dicts."""
    config = alone(model_dir)
    schema_of(source).prepared(config)
    save_checkpoint(model_dir)
    fewer = inputs.Schema(features={"x": FEATURES["x"]}, source=source)
    with pytest.raises(ValueError, match="Feature 'w' is not there, and was {'kind'"):
        fewer.prepared(config)
    turned = inputs.Schema(features=dict(reversed(FEATURES.items())), source=source)
    assert [field.name for field in turned.prepared().fields] == ["w", "x"]
    assert [field.name for field in turned.prepared(config).fields] == ["x", "w"]


def test_other_columns_and_the_source_may_change(model_dir, source):
    config = alone(model_dir)
    schema_of(source).prepared(config)
    save_checkpoint(model_dir)
    more = inputs.Schema(features=FEATURES, other_columns={"late": "id"})
    assert vocabulary(more.prepared(config)) == ("a", "b")


def test_other_data_before_the_first_checkpoint(model_dir, source, log):
    schema_of(source).prepared(alone(model_dir))
    other = Source(["c"])
    with pytest.raises(ValueError, match="counted over other data .* delete the file"):
        schema_of(other).prepared(config_of(model_dir))
    assert vocabulary(schema_of(other).prepared(alone(model_dir))) == ("c",)
    assert any("was counted over other data: counting anew" in line for line in log())
    save_checkpoint(model_dir)
    assert vocabulary(schema_of(source).prepared(alone(model_dir))) == ("c",)


def test_a_checkpoint_without_a_record(model_dir, source):
    model_dir.mkdir()
    save_checkpoint(model_dir)
    config = alone(model_dir)
    with pytest.raises(
        ValueError, match="schema.json is not there: .*Copy the file ba"
    ):
        schema_of(source).prepared(config)
    assert source.passes == 0
    # Nothing is lost where nothing was counted.
    free = inputs.Schema(features={"w": {"kind": "word", "hash_buckets": 3}})
    assert free.prepared(config).fields[0].size == 4
    assert not (model_dir / "schema.json").exists()


@pytest.mark.parametrize("text", ['{"version": 1, "feat', "[]", '{"version": 2}'])
def test_a_damaged_record_is_set_aside(text, model_dir, source, log):
    config = alone(model_dir)
    schema_of(source).prepared(config)
    path = model_dir / "schema.json"
    path.write_text(text)
    assert vocabulary(schema_of(source).prepared(config)) == ("a", "b")
    assert source.passes == 2
    assert (model_dir / "schema.json.damaged").read_text() == text
    assert any("schema.json is damaged" in line for line in log())


def test_a_model_dir_that_cannot_be_written(tmp_path, source):
    (tmp_path / "file").write_text("")
    with pytest.raises(storage.StorageError, match="schema's record could not be writ"):
        schema_of(source).prepared(alone(tmp_path / "file" / "run"))
    assert source.passes == 0


def test_a_record_is_not_replaced_under_a_training(model_dir, source):
    config = alone(model_dir)
    schema_of(source).prepared(config)
    with claim.held(str(model_dir)), pytest.raises(claim.ClaimedError) as raised:
        schema_of(source, x="number").prepared(config)
    assert "It goes by" in raised.value.__notes__[0]
    assert source.passes == 1


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(agreed, "_POLL_SECS", 0.01)
    monkeypatch.setattr(agreed, "_LOG_SECS", 0.05)


@pytest.mark.parametrize("task", [("worker", 0), ("evaluator", 0)])
def test_others_wait_for_the_chief(task, model_dir, source, log, quick):
    # What is there is another schema's, which the chief replaces.
    schema_of(source, x="number").prepared(alone(model_dir))
    found = []
    waiting = threading.Thread(
        target=lambda: found.append(schema_of().prepared(config_of(model_dir, task)))
    )
    waiting.start()
    said = "waiting for the chief to count ['x', 'w']"
    while waiting.is_alive() and not any(said in line for line in log()):
        waiting.join(0.01)
    chief = schema_of(source).prepared(config_of(model_dir))
    waiting.join()
    assert found[0].statistics == chief.statistics


def test_a_chief_that_does_not_come(model_dir, monkeypatch, quick):
    monkeypatch.setattr(agreed, "_MOST_SECS", 0.05)
    worker = config_of(model_dir, ("worker", 0))
    with pytest.raises(RuntimeError, match="storage that all processes share"):
        schema_of().prepared(worker)


def test_a_chief_that_counts_is_waited_for(model_dir, monkeypatch, quick):
    """And says so by a file that it renews."""
    monkeypatch.setattr(agreed, "_MOST_SECS", 0.3)
    monkeypatch.setattr(agreed, "_RENEW_SECS", 0.02)
    path = str(model_dir / "schema.json.counting")
    seen = []
    with agreed._signs_of_life(path) as tell:
        for rows in (10, 20):
            tell(rows)
            while f'"rows": {rows}' not in (text := atomic_file.read(path)):
                pass
            seen.append(text)
    assert len(set(seen)) == 2
    assert not os.path.exists(path)


@pytest.mark.parametrize("task", [("alone", 0), ("worker", 0)])
def test_an_inspection_neither_writes_nor_waits(task, model_dir, source):
    with storage.only_looking():
        found = schema_of(source).prepared(config_of(model_dir, task))
    assert vocabulary(found) == ("a", "b")
    assert not model_dir.exists()
    # What is there counts for it, too.
    schema_of(source, x="number").prepared(alone(model_dir))
    with storage.only_looking():
        looked = schema_of(x="number").prepared(config_of(model_dir, task))
    assert vocabulary(looked) == ("a", "b")


def test_statistics_of_another_run(tmp_path, source):
    first, second = tmp_path / "first", tmp_path / "second"
    schema_of(source).prepared(alone(first))
    for path in (first, first / "schema.json"):
        taken = schema_of(statistics=str(path))
        assert vocabulary(taken.prepared(alone(second))) == ("a", "b")
        assert vocabulary(taken.prepared()) == ("a", "b")
    # A worker reads them by itself.
    worker = config_of(tmp_path / "third", ("worker", 0))
    assert vocabulary(taken.prepared(worker)) == ("a", "b")
    assert not (tmp_path / "third").exists()
    save_checkpoint(second)
    (first / "schema.json").rename(first / "old")
    assert vocabulary(taken.prepared(alone(second))) == ("a", "b")
    schema_of(Source(["c"])).prepared(alone(first))
    with pytest.raises(
        ValueError, match="statistics are not those in .*: leave it out"
    ):
        taken.prepared(alone(second))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (None, "statistics is '.*', where there is no file"),
        ("{}", "is no record of a schema .KeyError"),
        (
            '{"version": 1, "features": {}, "statistics": {}, "num_rows": 1, '
            '"source": 1}',
            "Feature 'x': .* lacks .'mean', 'std'. of it; there it is not declared",
        ),
        (
            '{"version": 1, "features": {"x": {"kind": "number", "log": true}}, '
            '"statistics": {"x": {"mean": 1, "std": 2}}, "num_rows": 1, "source": 1}',
            "Feature 'x': .* lacks it as .* there it is .*'log': True",
        ),
    ],
)
def test_statistics_that_do_not_serve(text, error, tmp_path):
    path = tmp_path / "other.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=error):
        schema_of(statistics=str(path)).prepared()


def test_without_a_model_dir_it_is_counted_once_a_process(source):
    assert schema_of(source).prepared() is schema_of(source).prepared()
    assert source.passes == 1
    other = Source(["c"])
    assert vocabulary(schema_of(other).prepared()) == ("c",)
    assert vocabulary(schema_of(source).prepared()) == ("a", "b")
    assert source.passes == 1


@pytest.mark.parametrize(
    ("arguments", "config", "error"),
    [
        ({"source": "rows.csv"}, None, "source is 'rows.csv': write an input_fn"),
        ({"statistics": 3}, None, "statistics is 3: write the path of a schema.json"),
        ({"source": Source()}, "runs/1", "config is 'runs/1': write the RunConfig"),
    ],
)
def test_arguments_that_are_something_else(arguments, config, error):
    with pytest.raises(TypeError, match=error):
        schema_of(**arguments).prepared(config)


def test_a_source_without_a_hash_is_one_of_its_own(source, monkeypatch):
    monkeypatch.setattr(Source, "__hash__", None)
    assert schema_of(source).prepared() is schema_of(source).prepared()
    assert source.passes == 1


def test_encoders_of_equal_schemas_are_one(model_dir, source):
    first = schema_of(source).prepared(alone(model_dir))
    assert first.schema == schema_of()
    assert first.schema != schema_of(w={"kind": "word", "unknown": 2})


def test_a_record_is_as_readable_as_it_is_exact(model_dir):
    words = ["é", b"\xff\x00".decode("utf-8", "surrogateescape")]
    source = Source([word.encode("utf-8", "surrogateescape") for word in words])
    first = schema_of(source).prepared(alone(model_dir))
    content = json.loads((model_dir / "schema.json").read_text())
    assert content["num_rows"] == 2
    assert content["features"]["w"] == {"kind": "word"}
    assert content["statistics"]["x"]["std"] == 0.5
    save_checkpoint(model_dir)
    again = schema_of().prepared(alone(model_dir))
    assert again.statistics == first.statistics
    assert set(vocabulary(again)) == set(words)
