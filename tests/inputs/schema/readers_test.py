"""Readers of tables yield what a schema encodes; a run from a CSV file on."""

import csv
import functools
import re

import gin
import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import inputs
import models
import pipeline as ge
from inputs.schema import counting
from pipeline.mistakes import user_errors
from tests import fakes

ROWS = 20
FRAME = pd.DataFrame(
    {
        "distance": [float(i**2) if i % 5 else np.nan for i in range(ROWS)],
        "carrier": [["AA", "B6", "", "UA", "AA"][i % 5] for i in range(ROWS)],
        "tags": [" ".join("xyz"[: i % 4]) for i in range(ROWS)],
        "late": [i % 2 for i in range(ROWS)],
        "weight": [1.0] * ROWS,
    }
)
FEATURES = {
    "distance": {"kind": "number", "scale": "standard"},
    "carrier": {"kind": "word", "min_count": 4},
    "tags": "bag of words",
    "both": {"kind": "cross", "of": ["carrier", "tags"], "hash_buckets": 7},
}
OTHERS = {"late": "id", "weight": "number"}


def write_examples(path, frame):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in frame.to_dict("records"):
            example = tf.train.Example()
            by_name = example.features.feature
            if not np.isnan(row["distance"]):
                by_name["distance"].float_list.value.append(row["distance"])
            by_name["carrier"].bytes_list.value.append(row["carrier"].encode())
            words = [word.encode() for word in row["tags"].split()]
            by_name["tags"].bytes_list.value.extend(words)
            by_name["late"].int64_list.value.append(row["late"])
            by_name["weight"].float_list.value.append(row["weight"])
            writer.write(example.SerializeToString())


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A reader of the rows by name; `columns` are those of a schema."""
    folder = tmp_path_factory.mktemp("rows")
    FRAME.to_csv(folder / "rows.csv", index=False)
    write_examples(folder / "rows.tfrecord", FRAME)
    files = {n: str(folder / f"rows.{n}") for n in ("csv", "tfrecord")}
    files = {n: {"train_files": f, "eval_files": f} for n, f in files.items()}
    frames = {"train_frame": FRAME, "eval_frame": FRAME}
    return {
        "csv": functools.partial(inputs.csv_input_fn, **files["csv"]),
        "dataframe": functools.partial(inputs.dataframe_input_fn, **frames),
        "tfrecord": functools.partial(inputs.tfrecord_input_fn, **files["tfrecord"]),
    }


def read(sources, kind, mode=ge.ModeKeys.EVAL, *, config=None, **arguments):
    """The dataset of a reader, with a schema of the same reader's statistics."""
    schema = inputs.Schema(FEATURES, OTHERS, source=sources[kind])
    names = (
        ("feature_spec", "label_key") if kind == "tfrecord" else ("columns", "label")
    )
    return sources[kind](
        mode,
        **{names[0]: schema, names[1]: "late", "batch_size": 6, "config": config},
        **arguments,
    )


def values(dataset):
    """All rows by feature, and the labels."""
    features, labels = zip(*dataset, strict=True)
    found = {name: [f[name] for f in features] for name in features[0]}
    found = {
        name: tf.concat(parts, 0).to_list()
        if isinstance(parts[0], tf.RaggedTensor)
        else np.concatenate(parts).tolist()
        for name, parts in found.items()
    }
    return found, np.concatenate(labels).tolist()


@pytest.mark.parametrize("kind", ["csv", "dataframe", "tfrecord"])
def test_readers_encode_alike(kind, sources):
    features, labels = values(read(sources, kind))
    assert labels == FRAME["late"].tolist()
    assert list(features) == [*FEATURES, "weight"]
    x = FRAME["distance"]
    expected = ((x - x.mean()) / x.std(ddof=0)).fillna(0)
    np.testing.assert_allclose(features["distance"], expected, rtol=1e-5, atol=1e-7)
    # AA is there 8 times, B6 and UA 4 times; one row for unknown ones, the last for ''.
    assert features["carrier"] == [0, 1, 4, 2, 0] * 4
    assert features["tags"] == [[0, 1, 2][: i % 4] for i in range(ROWS)]
    crossed = [len(row) for row in features["both"]]
    assert crossed == [i % 4 for i in range(ROWS)]


def test_a_label_that_is_no_column_is_refused_before_the_count(sources, monkeypatch):
    monkeypatch.setattr(counting, "one_pass", None)  # It would read all data.
    by_partial = functools.partial(sources["csv"], label="lat")
    with gin.unlock_config():
        gin.bind_parameter("tfrecord_input_fn.label_key", ["weight", "lat"])
    for source in (by_partial, inputs.tfrecord_input_fn):
        schema = inputs.Schema(FEATURES, OTHERS, source=source)
        with pytest.raises(ValueError, match="label is 'lat', .* Did you mean late"):
            schema.prepared()
    gin.clear_config()
    with pytest.raises(TypeError, match="NoneType"):  # One's own label is anything.
        own = functools.partial(lambda **arguments: None, label="lat")
        inputs.Schema(FEATURES, OTHERS, source=own).prepared()


@pytest.mark.parametrize("kind", ["csv", "dataframe", "tfrecord"])
def test_a_tpu_gets_batches_of_known_size(kind, sources):
    features, _ = read(sources, kind, ge.ModeKeys.TRAIN).element_spec
    assert {spec.shape[0] for spec in features.values()} == {6}


@pytest.mark.parametrize("kind", ["csv", "dataframe", "tfrecord"])
def test_predictions_need_no_labels(kind, sources):
    features = next(iter(read(sources, kind, ge.ModeKeys.PREDICT)))
    assert "late" not in features
    assert features["carrier"].numpy().tolist() == [0, 1, 4, 2, 0, 0]


@pytest.mark.parametrize("kind", ["csv", "dataframe", "tfrecord"])
def test_a_config_that_is_left_out_is_missed(kind, sources):
    """What it counted in this process might differ from the run's."""
    with pytest.raises(ValueError, match=r"_fn.config is left out, .* config=config"):
        read(sources, kind, config=...)


def test_preprocessing_comes_after_the_encoding(sources):
    def change(features, labels):
        assert features["carrier"].dtype == tf.int32
        return {"carrier": features["carrier"] + 1}, labels

    for kind in ("csv", "dataframe"):
        features, _ = values(read(sources, kind, preprocess_batch=change))
        assert features["carrier"][:5] == [1, 2, 5, 3, 1]
    with pytest.raises(ValueError, match="preprocess is .*, of one example, and featu"):
        read(sources, "tfrecord", preprocess=change)


def test_a_row_that_cannot_be_counted_is_named(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("x\n1\ntwo\n")
    source = functools.partial(inputs.csv_input_fn, train_files=str(path))
    schema = inputs.Schema({"x": "number"}, source=source)
    words = f"{path} line 3: column 'x' is 'two', not a number"
    with pytest.raises(user_errors.StepError, match=re.escape(words)):
        schema.prepared()


def test_from_a_csv_file_to_predictions(tmp_path):
    """Counts once: the reader, the network, the evaluation and the resume agree."""
    path, passes = tmp_path / "rows.csv", []
    FRAME.to_csv(path, index=False, quoting=csv.QUOTE_MINIMAL)
    reader = functools.partial(
        inputs.csv_input_fn, train_files=str(path), eval_files=str(path), batch_size=5
    )

    def source(**arguments):
        passes.append(arguments["columns"])
        return reader(**arguments)

    def schema():
        few = {name: FEATURES[name] for name in ("distance", "carrier")}
        return inputs.Schema(few, OTHERS, source=source)

    def input_fn(mode, input_context, config):
        return reader(
            mode, input_context, columns=schema(), label="late", config=config
        )

    def estimator():
        return fakes.make_estimator(
            tmp_path / "run",
            model_fn=functools.partial(
                models.table_model, head=models.BinaryClassHead()
            ),
            network=functools.partial(models.linear, schema=schema()),
            optimizer=lambda: keras.optimizers.SGD(0.5),
            run_eagerly=True,
        )

    estimator().train(input_fn, max_steps=3)
    (tmp_path / "rows.csv").write_text(path.read_text().replace("AA", "ZZ"))
    resumed = estimator().train(input_fn, max_steps=4)
    metrics = resumed.evaluate(input_fn)
    assert metrics["global_step"] == 4
    predictions = list(resumed.predict(input_fn))
    assert len(predictions) == ROWS
    # ZZ was not there when the vocabulary was counted.
    features = next(iter(input_fn(ge.ModeKeys.PREDICT, None, resumed.config)))
    assert features["carrier"].numpy().tolist() == [3, 1, 4, 2, 3]
    assert len(passes) == 1
