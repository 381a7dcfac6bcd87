"""Data sets of tensorflow_datasets, on a tiny one that the tests write: id i has the label 10 i."""

import numpy as np
import pytest
import tensorflow as tf
from gin_estimator.inputs import scale_image, tfds_input_fn

import gin_estimator as ge
from gin_estimator import ModeKeys

pytest.importorskip("tensorflow_datasets.core", exc_type=ImportError)
import tensorflow_datasets as tfds
from refusals import refused

NUMBERS = {"train": list(range(23)), "test": list(range(100, 111))}


class TinyNumbers(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features.FeaturesDict({"id": np.int64, "label": np.int64})
        return tfds.core.DatasetInfo(
            builder=self, features=features, supervised_keys=("id", "label")
        )

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(numbers) for split, numbers in NUMBERS.items()}

    def _generate_examples(self, numbers):
        for number in numbers:
            yield number, {"id": number, "label": 10 * number}


class TinyUnpaired(TinyNumbers):
    def _info(self):
        features = tfds.features.FeaturesDict({"id": np.int64, "label": np.int64})
        return tfds.core.DatasetInfo(builder=self, features=features)


@pytest.fixture(scope="module", name="data_dir")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    # tfds_input_fn itself prepares it.
    tfds_input_fn(
        ModeKeys.EVAL, name="tiny_numbers", data_dir=str(folder), download=True, batch_size=4
    )
    return str(folder)


@pytest.fixture(name="tiny")
def make_tiny(data_dir):
    def make(mode=ModeKeys.TRAIN, input_context=None, **options):
        defaults = {"name": "tiny_numbers", "data_dir": data_dir, "batch_size": 4}
        return tfds_input_fn(mode, input_context, **{**defaults, **options})

    return make


def ids(dataset):
    return [int(i) for batch in dataset for i in (batch[0] if isinstance(batch, tuple) else batch)]


def halved(features, labels):
    return {"half": tf.cast(features, tf.float32) / 2}, labels


def to_range(features, labels):
    return tf.range(features), labels


def test_evaluation_and_predictions_are_one_pass_in_order(tiny):
    order = ids(tiny(ModeKeys.PREDICT))  # TFDS has shuffled them when it wrote them.
    assert ids(tiny(ModeKeys.PREDICT)) == order
    assert sorted(order) == NUMBERS["test"]
    assert [len(labels) for _, labels in tiny(ModeKeys.EVAL)] == [4, 4, 3]
    assert sorted(ids(tiny(ModeKeys.EVAL))) == NUMBERS["test"]
    assert len(set(ids(tiny(ModeKeys.PREDICT, eval_split="train[:10]")))) == 10


@pytest.mark.thin
@pytest.mark.parametrize(
    ("cache", "pipelines", "number"), [(None, 1, 23), (None, 3, 23), (False, 3, 23), (None, 4, 3)]
)
def test_pipelines_read_each_example_once(tiny, cache, pipelines, number):
    found = []
    for index in range(pipelines):
        dataset = tiny(
            input_context=tf.distribute.InputContext(pipelines, index, pipelines),
            train_split=f"train[:{number}]",
            num_epochs=1,
            cache=cache,
            batch_size=None,
            batch_size_per_replica=4,
            preprocess=halved,
        )
        for features, labels in dataset:
            assert (20 * features["half"].numpy()).tolist() == labels.numpy().tolist()
            found += (labels.numpy() // 10).tolist()
    assert len(set(found)) == len(found) == number


@pytest.mark.parametrize("cache", [None, False])
def test_training_has_no_end_and_another_order_in_each_epoch(tiny, cache):
    dataset = tiny(batch_size=1, cache=cache)
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    found = ids(dataset.take(46))
    assert found[:23] != found[23:]
    assert sorted(found[:23]) == sorted(found[23:]) == NUMBERS["train"]
    assert ids(tiny(batch_size=1, cache=cache).take(46)) == found
    assert ids(tiny(batch_size=1, cache=cache, seed=1).take(46)) != found
    assert ids(tiny(cache=cache, shuffle_buffer=None, num_epochs=1)) == ids(
        tiny(cache=cache, shuffle_buffer=None, num_epochs=1)
    )


@pytest.mark.parametrize(("cache", "seed"), [(None, 0), (False, None)])
def test_a_saved_position_continues_with_the_next_example(tiny, cache, seed, tmp_path):
    def iterator():
        return iter(tiny(seed=seed, num_epochs=1, cache=cache))

    saved, restored = iterator(), iterator()
    seen = next(saved)[0].numpy().tolist()
    path = tf.train.Checkpoint(iterator=saved).write(str(tmp_path / "position"))
    tf.train.Checkpoint(iterator=restored).read(path).assert_consumed()
    assert sorted(seen + ids(restored)) == NUMBERS["train"]


def test_examples_of_several_shapes_are_not_kept_in_memory(tiny):
    sizes = [len(features[0]) for features, _ in tiny(preprocess=to_range, batch_size=1).take(23)]
    assert sorted(sizes) == NUMBERS["train"]


def test_examples_without_a_pair(tiny, data_dir):
    def preprocess(example):
        return {"id": example["id"]}, example["label"]

    assert set(tiny(as_supervised=False).element_spec) == {"id", "label"}
    predict = tiny(ModeKeys.PREDICT, as_supervised=False, preprocess=preprocess)
    assert set(predict.element_spec) == {"id"}
    with pytest.raises(ge.UserError, match=r"as_supervised = False.* are \['id', 'label'\]"):
        tiny(name="tiny_unpaired", download=True)


test_wrong_arguments_are_refused = refused(
    lambda tiny, options: tiny(**options),
    ({"name": "mnits"}, "'mnits': expected a data set .* Did you mean 'mnist'"),
    ({"name": "tiny_numbers:9.9.9"}, "'tiny_numbers:9.9.9': expected a version"),
    ({"train_split": "valid"}, r"no split 'valid': expected one of \['test', 'train'\]"),
    ({"train_split": "train[:x]"}, r"no split 'train\[:x\]'"),
    ({"data_dir": "/nope"}, "is not in /nope/.*Set tfds_input_fn.download = True"),
    ({"cache": True, "preprocess": to_range}, "cache is True, .* expected fixed shapes"),
    fixtures=["tiny"],
)


def test_scale_image():
    image = tf.constant([[0, 255]], tf.uint8)
    scaled, label = scale_image(image, 3)
    assert (scaled.dtype, scaled.numpy().tolist(), label) == (tf.float32, [[0, 1]], 3)
    assert scale_image(image, low=-1.0)[0].numpy().tolist() == [[-1, 1]]
    with pytest.raises(ge.UserError, match="dtype float32: expected uint8"):
        scale_image(tf.zeros([2]))
