"""Checkpoints: complete, strict, and readable without us."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.checkpoints import checkpoint
from tests import fakes

TABLE = tf.lookup.experimental.MutableHashTable


def state(**modules):
    """State by module and name; a list becomes a variable."""
    return {
        module: {
            name: tf.Variable(value) if isinstance(value, list) else value
            for name, value in named.items()
        }
        for module, named in modules.items()
    }


def save(directory, saved, step=1, **options):
    return checkpoint.Saver(str(directory), saved, **options).save(step)


def values(of):
    return {
        f"{m}/{n}": v.numpy().tolist()
        for m, named in of.items()
        for n, v in named.items()
    }


SAVED = {"net": {"a/kernel": [1.0, 2.0], "b": [3.0]}, "driver": {"global_step": [7]}}
OTHER = {"net": {"a/kernel": [0.0, 0.0], "b": [0.0]}, "driver": {"global_step": [0]}}


def test_what_was_saved_is_restored(tmp_path):
    saved, other = state(**SAVED), state(**OTHER)
    checkpoint.restore(other, save(tmp_path, saved))
    assert values(other) == values(saved)


def test_keys_are_module_place_and_name(tmp_path):
    path = save(tmp_path, state(**SAVED))
    keys = tf.train.load_checkpoint(path).get_variable_to_shape_map()
    suffix = "/.ATTRIBUTES/VARIABLE_VALUE"
    assert {k.removesuffix(suffix) for k in keys if k.endswith(suffix)} >= {
        "net/000/a/kernel",
        "net/001/b",
        "driver/000/global_step",
    }


def test_names_and_values_are_read(tmp_path):
    path = save(tmp_path, state(net={"a.b/kernel": [1.0, 2.0]}, lone={"": [3.0]}))
    assert checkpoint.read_names(path) == {"net/a.b/kernel": [2], "lone": [1]}
    assert checkpoint.read_value(path, "net/a.b/kernel").tolist() == [1.0, 2.0]
    with pytest.raises(KeyError) as error:
        checkpoint.read_value(path, "net/bias")
    assert "no variable 'net/bias': write one of ['lone', 'net/a.b/kernel']." in str(
        error.value
    )


def test_a_mismatch_lists_both_sides_and_changes_nothing(tmp_path):
    path = save(tmp_path, state(**SAVED))
    other = state(net={"a/kernel": [0.0, 0.0, 0.0], "c": [0.0]}, more={"d": [0.0]})
    before = values(other)
    with pytest.raises(ge.CheckpointMismatchError) as error:
        checkpoint.restore(other, path)
    assert str(error.value) == (
        f"checkpoint {path} is not of this model.\n"
        "  in the model and not in the checkpoint: ['net/c', 'more/d']\n"
        "  in the checkpoint and not in the model: ['net/b']\n"
        "  of another shape: ['net/a/kernel: [3] in the model, [2] saved']\n"
        "Use the model that it was saved from, another model_dir, or "
        "Estimator(warm_start_from=...) to take over a part."
    )
    assert values(other) == before


def test_more_below_an_unbuilt_layer_is_allowed(tmp_path):
    path = save(tmp_path, state(**SAVED, optimizer={"iteration": [1]}))
    other = state(net={"b": [0.0]}, driver={"global_step": [0]})
    checkpoint.restore(other, path, unbuilt=("net/a/", "optimizer/"))
    assert values(other) == {"net/b": [3.0], "driver/global_step": [7]}
    with pytest.raises(ge.CheckpointMismatchError, match="optimizer/iteration"):
        checkpoint.restore(other, path, unbuilt=("net/a/",))


def test_the_drivers_own_may_differ(tmp_path):
    """A loss scale more or less is no reason to refuse weights."""
    path = save(tmp_path, state(driver={"global_step": [7], "loss_scale": [2.0]}))
    other = state(driver={"global_step": [0], "input_start": [3]})
    checkpoint.restore(other, path)
    assert values(other) == {"driver/global_step": [7], "driver/input_start": [3]}


def test_the_names_that_a_counter_gave_in_earlier_versions_are_known(tmp_path):
    """`m/...` are the slots of an optimizer that updates the variables backwards."""
    old = {"a/variable_8": [1.0], "a/variable_9": [2.0], "b/variable_7": [3.0]}
    slots = {"m/net/a/variable_9": [4.0], "m/net/a/variable_8": [5.0]}
    module = {"variable_7": [6.0], "variable_3": [7.0]}
    path = save(
        tmp_path, state(net=old, optimizer={**slots, "variable_4": [8.0]}, mod=module)
    )
    new = dict.fromkeys(["a/variable", "a/variable_1", "b/variable"], [0.0])
    slots = dict.fromkeys(["m/net/a/variable_1", "m/net/a/variable"], [0.0])
    other = state(net=new, optimizer={**slots, "variable": [0.0]}, mod=module)
    assert checkpoint.restore(other, path).keys() == values(other).keys()
    assert [*values(other).values()] == [[float(i)] for i in range(1, 9)][:5] + [
        [8.0],
        [6.0],
        [7.0],
    ]


def test_the_names_of_layers_that_went_both_ways_in_earlier_versions_are_known(
    tmp_path,
):
    ways = {"b/forward_gru_3/w": [1.0], "b_1/forward_gru_4/w": [2.0]}
    own = {"c/forward_own_1/w": [3.0], "d/forward_x/w": [4.0], "d/forward_x_1/w": [5.0]}
    slots = {"m/net/b_1/forward_gru_4/w": [6.0]}
    path = save(tmp_path, state(net={**ways, **own}, optimizer=slots))
    new = {"b/forward_gru/w": [0.0], "b_1/forward_gru/w": [0.0]}
    slots = {"m/net/b_1/forward_gru/w": [0.0]}
    other = state(net={**new, **dict.fromkeys(own, [0.0])}, optimizer=slots)
    checkpoint.restore(other, path)
    assert [*values(other).values()] == [[float(i)] for i in range(1, 7)]


def test_of_two_such_names_none_is_guessed(tmp_path):
    old = {"forward_gru_3/w": [1.0], "forward_gru_4/w": [2.0]}
    path = save(tmp_path, state(net=old))
    other = state(net={"forward_gru/w": [0.0], "forward_gru_4/w": [0.0]})
    with pytest.raises(checkpoint.CheckpointMismatchError):
        checkpoint.restore(other, path)


def table(**items):
    made = TABLE(tf.string, tf.int64, -1)
    for key, value in items.items():
        made.insert(key, tf.constant(value, tf.int64))
    return made


def test_tables_are_saved_and_restored(tmp_path):
    path = save(tmp_path, state(words={"": table(a=1, b=2)}, net={"t": table(c=3)}))
    other = state(words={"": table(z=9)}, net={"t": table()})
    checkpoint.restore(other, path)
    keys, numbers = other["words"][""].export()
    assert dict(zip(keys.numpy(), numbers.numpy(), strict=True)) == {b"a": 1, b"b": 2}
    assert int(other["net"]["t"].lookup(tf.constant("c"))) == 3


def test_a_table_that_is_on_one_side_only_is_a_mismatch(tmp_path):
    with_table = save(tmp_path / "with", state(**SAVED, words={"": table(a=1)}))
    without = save(tmp_path / "without", state(**SAVED))
    with pytest.raises(ge.CheckpointMismatchError, match=r"model: \['words'\]"):
        checkpoint.restore(state(**OTHER), with_table)
    with pytest.raises(ge.CheckpointMismatchError, match=r"checkpoint: \['words'\]"):
        checkpoint.restore(state(**OTHER, words={"": table()}), without)


def test_steps_and_paths():
    path = checkpoint.path_of("runs/a", 10)
    assert path == "runs/a/model.ckpt-10"
    assert checkpoint.step_of(path) == 10
    with pytest.raises(ValueError) as error:
        checkpoint.step_of("runs/a-1/model.ckpt")
    assert "'runs/a-1/model.ckpt' ends in no step, such as -1000." in str(error.value)


def test_a_model_dir_may_be_moved(tmp_path):
    save(tmp_path / "here", state(**SAVED))
    (tmp_path / "here").rename(tmp_path / "there")
    latest = checkpoint.latest(str(tmp_path / "there"))
    assert latest == f"{tmp_path}/there/model.ckpt-1"
    assert checkpoint.latest(str(tmp_path / "here")) is None


def test_an_asynchronous_save_holds_the_values_of_its_moment(tmp_path):
    saved = state(**SAVED)
    saver = checkpoint.Saver(str(tmp_path), saved, asynchronous=True)
    for step in (1, 2):
        path = saver.save(step)
        saved["net"]["b"].assign([100.0 * step])
    saver.wait()
    assert checkpoint.read_value(path, "net/b").tolist() == [100.0]


# The rest is on a run of two steps, on two replicas, of a network with state of all
# kinds.

X, Y = fakes.classification_data(rows=16)
TRAIN = fakes.make_input_fn(X, Y, batch_size=8, change=lambda d: d.repeat())
EVAL = fakes.make_input_fn(X, Y, batch_size=16)
PREDICT = fakes.make_input_fn(X, batch_size=16)


def network():
    return fakes.network(batch_norm=True, dropout=0.5)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    model_dir = tmp_path_factory.mktemp("trained")
    estimator = fakes.make_estimator(
        model_dir, network=network, devices=("CPU:0", "CPU:1")
    )
    return estimator.train(TRAIN, max_steps=2)


def test_five_lines_of_plain_tensorflow_read_a_module(trained):
    model = network()
    model(tf.zeros([1, 6]))
    # As in the docstring of pipeline.checkpoints.checkpoint.
    reader = tf.train.load_checkpoint(trained.model_dir)
    keys = sorted(k for k in reader.get_variable_to_shape_map() if k[:8] == "network/")
    for variable, key in zip(model.variables, keys, strict=True):
        variable.assign(reader.get_tensor(key))
    logits = [p["logits"] for p in trained.predict(PREDICT)]
    np.testing.assert_allclose(model(X), logits, rtol=1e-5, atol=1e-6)


def test_another_network_is_refused(trained):
    other = fakes.make_estimator(trained.model_dir, network=fakes.network)
    with pytest.raises(ge.CheckpointMismatchError) as error:
        other.evaluate(EVAL)
    assert "network/batch_normalization/gamma" in str(error.value)
    assert "in the checkpoint and not in the model" in str(error.value)


@pytest.mark.parametrize("mode", ["evaluate", "predict"])
def test_what_a_mode_does_not_build_may_be_in_the_checkpoint(mode, trained):
    def without_optimizer(features, labels, mode, network):
        logits = network(features)
        if mode == ge.ModeKeys.PREDICT:
            return ge.EstimatorSpec(mode, predictions=logits)
        loss = keras.losses.sparse_categorical_crossentropy(labels, logits, True)
        return ge.EstimatorSpec(mode, loss=loss)

    def with_optimizer(features, labels, mode, network, optimizer):
        return without_optimizer(features, labels, mode, network)

    fresh = fakes.make_estimator(
        trained.model_dir, model_fn=with_optimizer, network=network
    )
    if mode == "evaluate":
        assert fresh.evaluate(EVAL)["loss"] == pytest.approx(
            trained.evaluate(EVAL)["loss"], rel=1e-5
        )
    else:
        expected = [p["logits"] for p in trained.predict(PREDICT)]
        np.testing.assert_allclose(list(fresh.predict(PREDICT)), expected, rtol=1e-5)
