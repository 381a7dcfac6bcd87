import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

import inputs
from inputs import tfds_input
from pipeline import ModeKeys


@pytest.fixture
def tiny(tfds_dir):
    def make(mode=ModeKeys.TRAIN, input_context=None, **arguments):
        defaults = {"name": "tiny_numbers", "data_dir": tfds_dir, "batch_size": 4}
        return inputs.tfds_input_fn(mode, input_context, **{**defaults, **arguments})

    return make


def test_predictions_come_in_the_order_of_the_data(tiny):
    def ids():
        return [i for batch in tiny(ModeKeys.PREDICT) for i in batch.numpy()]

    assert ids() == ids() and len(ids()) == 11


@pytest.mark.parametrize("cache", [None, True, False])
def test_preprocess(tiny, cache):
    def preprocess(features, labels):
        return {"half": tf.cast(features, tf.float32) / 2.0}, labels

    features, labels = next(iter(tiny(preprocess=preprocess, cache=cache)))
    assert (20 * features["half"].numpy()).tolist() == labels.numpy().tolist()


def test_a_saved_position_of_cached_examples_holds_numbers(tiny, tmp_path):
    def preprocess(features, labels):
        # Random, or it would be saved in a few bytes; 400 kB, all of them 9.2 MB.
        return tf.random.stateless_normal([100_000], [0, features]), labels

    iterator = iter(tiny(preprocess=preprocess, batch_size=1))
    next(iterator)
    tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "position"))
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert size < 4_000_000  # Some batches that were read ahead.


def test_without_a_seed_an_epoch_of_cached_examples_goes_on(tiny, tmp_path):
    def iterator():
        return iter(tiny(seed=None, num_epochs=1))

    saved, restored = iterator(), iterator()
    seen = [*next(saved)[0].numpy()]
    path = tf.train.Checkpoint(iterator=saved).write(str(tmp_path / "position"))
    tf.train.Checkpoint(iterator=restored).read(path).assert_consumed()
    seen += [number for features, _ in restored for number in features.numpy()]
    assert sorted(seen) == list(range(23))


def test_examples_of_several_shapes_may_be_cached(tiny):
    def preprocess(features, labels):
        return tf.range(features), labels

    dataset = tiny(preprocess=preprocess, cache=True, batch_size=1)
    seen = [len(features[0]) for features, _ in dataset.take(46)]
    assert sorted(seen[:23]) == sorted(seen[23:]) == list(range(23))


def test_a_pipeline_without_examples_may_cache_none(tiny):
    context = tf.distribute.InputContext(32, 31, 32)
    dataset = tiny(ModeKeys.TRAIN, context, num_epochs=1, batch_size=32)
    assert not list(dataset)


def test_dicts_of_everything(tiny):
    dataset = tiny(ModeKeys.TRAIN, as_supervised=False)
    assert set(dataset.element_spec) == {"id", "label"}

    def preprocess(example):
        return {"id": example["id"]}, example["label"]

    dataset = tiny(ModeKeys.EVAL, as_supervised=False, preprocess=preprocess)
    features, labels = next(iter(dataset))
    assert (10 * features["id"].numpy()).tolist() == labels.numpy().tolist()
    predict = tiny(ModeKeys.PREDICT, as_supervised=False, preprocess=preprocess)
    assert set(predict.element_spec) == {"id"}


def test_parts_of_splits(tiny):
    dataset = tiny(train_split="train[:10]", num_epochs=1)
    assert sum(len(labels) for _, labels in dataset) == 10


def test_order_may_be_kept(tiny):
    def ids():
        return [list(x) for x, _ in tiny(shuffle_buffer=None, num_epochs=2)]

    assert ids() == ids()


def test_only_small_examples_of_fixed_shape_are_cached():
    fixed = tf.data.Dataset.from_tensors(tf.zeros([1000]))
    text = tf.data.Dataset.from_tensors("text")
    unknown = fixed.batch(2)
    assert tfds_input._fits_in_memory(fixed, 1000)
    assert not tfds_input._fits_in_memory(fixed, 1_000_000)
    assert not tfds_input._fits_in_memory(text, 1)
    assert not tfds_input._fits_in_memory(unknown, 1)


def test_download_prepares_the_data(tmp_path, tiny):
    dataset = tiny(data_dir=str(tmp_path), download=True)
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    assert (tmp_path / "tiny_numbers" / "1.0.0").is_dir()


def test_unknown_dataset(tiny):
    with pytest.raises(ValueError, match="no data set 'mnits', .*mean 'mnist'"):
        tiny(name="mnits")


def test_unknown_version(tiny):
    with pytest.raises(
        ValueError, match="No data set 'tiny_numbers:9.9.9' in data_dir"
    ):
        tiny(name="tiny_numbers:9.9.9")


def test_unknown_split(tiny):
    message = r"tiny_numbers/1.0.0' has no split 'valid'; it has \['test', 'train'\]"
    with pytest.raises(ValueError, match=message):
        tiny(ModeKeys.EVAL, eval_split="valid")
    with pytest.raises(ValueError, match=r"has no split 'train\[:x\]'"):
        tiny(train_split="train[:x]")


def test_data_dir_without_the_data(tmp_path, tiny):
    message = f"is not in {tmp_path}/tiny_numbers/1.0.0 .*tfds_input_fn.download = True"
    with pytest.raises(ValueError, match=message):
        tiny(data_dir=str(tmp_path))


def test_no_supervised_pair(tmp_path):
    class TinyUnpaired(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = tfds.features.FeaturesDict({"id": tf.int64, "size": tf.int64})
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            yield 0, {"id": 0, "size": 0}

    message = r"as_supervised = False .* are \['id', 'size'\]"
    with pytest.raises(ValueError, match=message):
        inputs.tfds_input_fn(
            ModeKeys.TRAIN,
            name="tiny_unpaired",
            data_dir=str(tmp_path),
            download=True,
            batch_size=1,
        )


def test_without_tensorflow_datasets(monkeypatch, tiny):
    monkeypatch.setattr(tfds_input, "tfds", None)
    with pytest.raises(ModuleNotFoundError, match="pip install tensorflow-datasets"):
        tiny()
