import gin
import pytest
import tensorflow as tf

import inputs
from pipeline import ModeKeys
from pipeline.mistakes import user_errors

SPEC = {"id": ("int64", []), "label": ("int64", [])}


@pytest.fixture
def read(records_dir):
    def make(mode=ModeKeys.TRAIN, input_context=None, **arguments):
        arguments = {
            "feature_spec": SPEC,
            "label_key": "label",
            "train_files": f"{records_dir}/train*",
            "eval_files": [f"{records_dir}/test*"],
        } | arguments
        return inputs.tfrecord_input_fn(mode, input_context, batch_size=4, **arguments)

    return make


def test_files_are_not_shared_where_there_are_enough(read):
    def ids(pipeline_id):
        input_context = tf.distribute.InputContext(3, pipeline_id, 1)
        dataset = read(input_context=input_context, num_epochs=1)
        return {i for features, _ in dataset for i in features["id"].numpy()}

    assert [ids(i) for i in range(3)] == [
        set(range(8)),
        set(range(8, 16)),
        set(range(16, 23)),
    ]


def test_unseeded_pipelines_share_a_file_without_overlap(records_dir, read):
    def ids(pipeline_id):
        input_context = tf.distribute.InputContext(5, pipeline_id, 1)
        dataset = read(input_context=input_context, num_epochs=1, seed=None)
        return [i for features, _ in dataset for i in features["id"].numpy()]

    assert sorted(i for part in range(5) for i in ids(part)) == list(range(23))


def test_predictions_come_in_the_order_of_the_files(records_dir, read):
    files = [f"{records_dir}/train-{i}*" for i in (0, 1, 2)]
    dataset = read(ModeKeys.PREDICT, eval_files=files)
    ids = [i for features in dataset for i in features["id"].numpy()]
    assert ids == list(range(23))


def test_prediction_needs_no_labels_in_the_files(read):
    spec = SPEC | {"answer": ("float32", [3])}
    dataset = read(ModeKeys.PREDICT, feature_spec=spec, label_key="answer")
    assert set(next(iter(dataset))) == {"id", "label"}


@pytest.mark.parametrize("label_key", ["label", None])
def test_preprocess_gets_one_example(read, label_key):
    def preprocess(features, labels):
        assert features["id"].shape == []
        assert (labels is None) == (label_key is None)
        return {"id": features["id"] + 1}, features["id"] if labels is None else labels

    dataset = read(preprocess=preprocess, label_key=label_key)
    features, labels = next(iter(dataset))
    scale = 10 if label_key else 1
    assert (scale * (features["id"].numpy() - 1)).tolist() == labels.numpy().tolist()


def test_preprocess_may_hand_on_labels_that_are_none(read):
    def preprocess(features, labels):
        return features, labels

    for mode in (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT):
        dataset = read(mode, preprocess=preprocess, label_key=None)
        element = next(iter(dataset))
        features = element[0] if isinstance(element, tuple) else element
        assert features["id"].shape == [4]


def test_feature_spec_of_tensorflow_or_of_a_function(read):
    spec = {"id": tf.io.VarLenFeature(tf.int64), "label": ["int64", None]}
    features, labels = next(iter(read(feature_spec=lambda: spec)))
    assert isinstance(features["id"], tf.SparseTensor)
    assert isinstance(labels, tf.SparseTensor)


def test_columns_of_tables(tmp_path):
    path = str(tmp_path / "rows")
    with tf.io.TFRecordWriter(path) as writer:
        for words in ([b"x", b"y"], []):
            example = tf.train.Example()
            example.features.feature["words"].bytes_list.value.extend(words)
            example.features.feature["label"].int64_list.value.append(1)
            writer.write(example.SerializeToString())
    columns = {"words": "bag of words", "n": "number", "label": "id"}
    columns["word"] = {"kind": "word", "default": "none"}
    arguments = {"eval_files": path, "batch_size": 2, "label_key": "label"}

    def first():
        dataset = inputs.tfrecord_input_fn(
            ModeKeys.EVAL, feature_spec=columns, **arguments
        )
        return next(iter(dataset))

    features, labels = first()
    assert features["words"].to_list() == [[b"x", b"y"], []]
    assert tf.math.is_nan(features["n"]).numpy().all()
    assert features["word"].numpy().tolist() == [b"none", b"none"]
    assert labels.numpy().tolist() == [1, 1]
    arguments["label_key"] = "n"
    with pytest.raises(tf.errors.InvalidArgumentError, match="n .* is required"):
        first()
    columns["word"] = "text"
    with pytest.raises(ValueError, match="Column 'word': kind is 'text': write"):
        first()


def test_from_gin(records_dir):
    gin.parse_config(
        f"""
        tfrecord_input_fn.train_files = '{records_dir}/train*'
        tfrecord_input_fn.feature_spec = {{'id': ('int64', []), 'label': ('int64', [])}}
        tfrecord_input_fn.label_key = 'label'
        tfrecord_input_fn.batch_size = 4
        """
    )
    try:
        features, _ = next(iter(inputs.tfrecord_input_fn(ModeKeys.TRAIN)))
    finally:
        gin.clear_config()
    assert features["id"].shape == [4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"train_files": None}, "reads train_files, which is None: write"),
        ({"train_files": ["/no/such*"]}, "train_files: no file matches '/no/such"),
        ({"label_key": "y"}, r"label_key='y' is not in .* has \['id', 'label'\]"),
        (
            {"feature_spec": {"label": ("int64",)}},
            r"\['label'\] is \('int64',\): write",
        ),
    ],
)
def test_errors(read, arguments, message):
    with pytest.raises(ValueError, match=message):
        read(**arguments)


def test_errors_of_evaluation_name_its_files(read):
    with pytest.raises(ValueError, match="reads eval_files, which is None"):
        read(ModeKeys.EVAL, eval_files=None)


@pytest.mark.parametrize("preprocess", [None, lambda x, y: (x, y)])
def test_a_bad_example_is_named(tmp_path, preprocess):
    """Wherever the shuffle and the other pipelines take the records."""
    paths = [str(tmp_path / name) for name in ("a", "b")]
    for path in paths:
        with tf.io.TFRecordWriter(path) as writer:
            for number in range(6):
                example = tf.train.Example()
                if (path, number) != (paths[1], 3):
                    by_name = example.features.feature
                    by_name["id"].int64_list.value.append(number)
                writer.write(example.SerializeToString())
    dataset = inputs.tfrecord_input_fn(
        ModeKeys.TRAIN,
        tf.distribute.InputContext(3, 0, 3),
        feature_spec={"id": ("int64", [])},
        train_files=paths,
        preprocess=preprocess,
        batch_size=3,
    )
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        list(dataset.take(20))
    words = user_errors.words_of(raised.value)
    assert f"{paths[1]} record 4, Feature: id" in words


def test_several_labels(read):
    features, labels = next(iter(read(label_key=["label", "id"])))
    assert list(labels) == ["label", "id"]
    assert not features
