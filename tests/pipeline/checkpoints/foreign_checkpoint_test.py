"""Checkpoints of other programs: what they hold is told."""

import keras
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.checkpoints import checkpoint, foreign_checkpoint
from pipeline.warm_start.warm_start import warm_start


def network():
    return keras.Sequential([keras.Input([2]), keras.layers.Dense(1, name="out")])


def by_name(folder):
    """As tf.estimator saves."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for number in range(7):
            tf.compat.v1.get_variable(f"bert/layer_{number}/kernel", [2, 3])
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, f"{folder}/model.ckpt", 10)
    return f"{folder}/model.ckpt-10"


def by_name_without_state(folder):
    """As BERT's are handed on: no file `checkpoint`, and no step."""
    prefix = by_name(folder)
    (folder / "checkpoint").unlink()
    for path in folder.glob("model.ckpt-10*"):
        path.rename(str(path).replace("model.ckpt-10", "bert_model.ckpt"))
    return prefix.replace("model.ckpt-10", "bert_model.ckpt")


def by_object(folder):
    model = network()
    return tf.train.Checkpoint(model=model).save(f"{folder}/ckpt")


def saved_model(folder):
    network().export(str(folder))
    return str(folder)


def weights(folder):
    network().save_weights(f"{folder}/a.weights.h5")
    return f"{folder}/a.weights.h5"


def keras_model(folder):
    network().save(f"{folder}/a.keras")
    return f"{folder}/a.keras"


BY_NAME = (
    "by names, as tf.estimator and tf.compat.v1.train.Saver write them. It holds 7"
)
BY_OBJECT = "by objects, as tf.train.Checkpoint and Keras write them. It holds "
CASES = {
    by_name: [BY_NAME, "bert/layer_0/kernel [2, 3], bert/layer_1", " and 2 more."],
    by_name_without_state: [BY_NAME, "bert_model.ckpt' is a checkpoint"],
    by_object: [BY_OBJECT, "/_kernel [2, 1]"],
    saved_model: ["is a SavedModel. ", BY_OBJECT, "variables/variables"],
    weights: ["holds weights that Keras saved"],
    keras_model: ["is a model that Keras saved"],
}


@pytest.mark.parametrize("write", CASES, ids=lambda write: write.__name__)
def test_what_another_program_wrote_is_named(write, tmp_path):
    given = write(tmp_path)
    for source in {given, str(tmp_path)} if given.count("ckpt") else {given}:
        with pytest.raises(ValueError) as error:
            warm_start({"net": {"kernel": tf.Variable([1.0])}}, source)
        for text in CASES[write]:
            assert text in str(error.value)
        assert "It holds []" not in str(error.value)


def test_a_file_of_a_checkpoint_and_other_things(tmp_path):
    prefix = by_object(tmp_path)
    for end in (".index", ".data-00000-of-00001"):
        assert f"{prefix!r} is a checkpoint" in foreign_checkpoint.described(
            prefix + end
        )
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("x")
    for path, text in [
        ("notes", "is a folder that holds a.txt"),
        ("notes/a.txt", "is a file of another kind"),
        ("none", "There is nothing at"),
    ]:
        assert text in foreign_checkpoint.described(str(tmp_path / path))


def test_training_on_in_anothers_model_dir(tmp_path):
    path = by_name(tmp_path)
    with pytest.raises(ge.CheckpointMismatchError) as error:
        checkpoint.restore({"net": {"kernel": tf.Variable([1.0])}}, path)
    assert "is not of this model" in str(error.value)
    assert BY_NAME in str(error.value)
