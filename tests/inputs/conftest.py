"""Tiny data sets, written once, whose examples are known by their number.

Training data are the numbers 0 to 22, evaluation data 100 to 110; the label of an
example is ten times its number.
"""

import gzip

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

import inputs

TRAIN = list(range(23))
EVAL = list(range(100, 111))


class TinyNumbers(tfds.core.GeneratorBasedBuilder):
    """`id` int64 [], `label` int64 []."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict({"id": np.int64, "label": np.int64}),
            supervised_keys=("id", "label"),
        )

    def _split_generators(self, dl_manager):
        return {"train": self._examples(TRAIN), "test": self._examples(EVAL)}

    def _examples(self, numbers):
        for number in numbers:
            yield number, {"id": number, "label": 10 * number}

    _generate_examples = _examples


@pytest.fixture(scope="session")
def tfds_dir(tmp_path_factory):
    data_dir = tmp_path_factory.mktemp("tfds")
    tfds.builder("tiny_numbers", data_dir=data_dir).download_and_prepare()
    return str(data_dir)


@pytest.fixture(scope="session")
def records_dir(tmp_path_factory):
    """train-0, train-1 and train-2.tfrecord.gz with 8, 8 and 7 records; one test."""
    folder = tmp_path_factory.mktemp("records")
    for index, start in enumerate((0, 8, 16)):
        suffix = ".gz" if index == 2 else ""
        _write(folder / f"train-{index}.tfrecord{suffix}", TRAIN[start : start + 8])
    _write(folder / "test.tfrecord", EVAL)
    return str(folder)


@pytest.fixture(scope="session")
def csv_dir(tmp_path_factory):
    """train-0.csv, train-1.csv and train-2.csv.gz with 8, 8 and 7 rows; one test."""
    folder = tmp_path_factory.mktemp("csv")
    for index, start in enumerate((0, 8, 16)):
        suffix = ".gz" if index == 2 else ""
        _write_csv(folder / f"train-{index}.csv{suffix}", TRAIN[start : start + 8])
    _write_csv(folder / "test.csv", EVAL)
    return str(folder)


@pytest.fixture(params=["numpy", "tfds", "tfrecord", "csv"])
def make_input(request, tfds_dir, records_dir, csv_dir):
    """`make_input(mode, input_context, **arguments)` of each input_fn in turn.

    Features are numbers or {'id': numbers}.
    """

    def make(mode, input_context=None, **arguments):
        if request.param == "numpy":
            train, test = np.array(TRAIN), np.array(EVAL)
            data = lambda: ((train, 10 * train), (test, 10 * test))  # noqa: E731
            return inputs.numpy_input_fn(mode, input_context, data=data, **arguments)
        if request.param == "tfds":
            return inputs.tfds_input_fn(
                mode, input_context, name="tiny_numbers", data_dir=tfds_dir, **arguments
            )
        folder = csv_dir if request.param == "csv" else records_dir
        arguments |= {
            "train_files": f"{folder}/train*",
            "eval_files": f"{folder}/test*",
        }
        if request.param == "csv":
            columns = {"id": "id", "label": "id"}
            return inputs.csv_input_fn(
                mode, input_context, columns=columns, label="label", **arguments
            )
        return inputs.tfrecord_input_fn(
            mode,
            input_context,
            feature_spec={"id": ("int64", []), "label": ("int64", [])},
            label_key="label",
            **arguments,
        )

    return make


def _write_csv(path, numbers):
    rows = [f'{number},"a ""word"", {number}",{10 * number}' for number in numbers]
    text = "\r\n".join(["id,word,label", *rows, ""]).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def _write(path, numbers):
    options = "GZIP" if path.suffix == ".gz" else None
    with tf.io.TFRecordWriter(str(path), options) as writer:
        for number in numbers:
            example = tf.train.Example()
            example.features.feature["id"].int64_list.value.append(number)
            example.features.feature["label"].int64_list.value.append(10 * number)
            writer.write(example.SerializeToString())
