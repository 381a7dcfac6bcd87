"""What real model_dirs of tf.estimator have, and what must not be taken in silence."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.warm_start import origins
from tests.old_values import (
    ADAM,
    POWERS,
    V1,
    WHOLE,
    adam_state,
    refused,
    rows,
    saved,
    start,
    state,
    values,
    vocabulary,
)

TWO_ADAMS = {
    **V1 | POWERS,
    "beta1_power_1": np.float32(0.9**8),
    "beta2_power_1": np.float32(0.999**8),
}


def test_the_powers_of_two_adams_are_asked_for(tmp_path):
    """A GAN's: the second optimizer has made other updates than the first."""
    source, mine = saved(tmp_path, **TWO_ADAMS), adam_state()
    text = refused(mine, source, ADAM, **WHOLE)
    assert "no name there is one of ['optimizer/iteration']" in text
    assert "optimizer/iteration []: beta1_power, beta1_power_1, beta2_power" in text
    names = {"optimizer/iteration": "beta2_power_1"}
    start(mine, source, ADAM, **WHOLE, var_name_to_prev_var_name=names)
    assert values(mine)["optimizer/iteration"] == 7


def test_slots_below_a_scope_s_name(tmp_path):
    """An optimizer that was made in a variable_scope has it before its slots."""
    there = {name.replace("a__Adam", "train__a__Adam"): v for name, v in V1.items()}
    source, mine = saved(tmp_path, **there), adam_state()
    start(mine, source, ADAM, **WHOLE)
    assert values(mine)["optimizer/velocity/net/a"] == [3.0]
    more = {name.replace("train", "other"): v for name, v in there.items()}
    text = refused(adam_state(), saved(tmp_path, **there | more), ADAM, **WHOLE)
    assert "['optimizer/momentum/net/a', 'optimizer/velocity/net/a']" in text


def test_averages_below_a_scope_s_name(tmp_path):
    average = {"a": rows(2), "train__a__ExponentialMovingAverage": rows(2) * 3}
    mine = state(net__a=[2])
    start(mine, saved(tmp_path, **average), weights="average")
    assert values(mine)["net/a"] == [3, 6]
    two = saved(tmp_path, **average, eval__a__ExponentialMovingAverage=rows(2))
    assert "'average', and a has several, [" in refused(mine, two, weights="average")


def test_a_weight_that_was_not_averaged_is_told(tmp_path, log):
    average = {"a": rows(2), "a__ExponentialMovingAverage": rows(2) * 3}
    mine, source = state(net__a=[2], net__b=[2]), saved(tmp_path, **average, b=rows(2))
    start(mine, source, weights="average")
    assert values(mine)["net/b"] == [1, 2]
    assert "  b (has no average)" in log()[-1]


def test_slots_of_partitions_below_a_scope_are_no_weights(tmp_path):
    """TensorFlow 2.15.1 saves them so, each of a part of the rows."""
    source = saved(tmp_path, t=rows(3), t__art_0__Adam=rows(3), t__art_1__Adam=rows(3))
    assert "'net/words': 't',\n})" in refused(state(net__words=[3]), source)


@pytest.mark.parametrize("name", ["AdaMax", "AdagradDA"])
def test_slots_of_another_kind_that_are_as_many(name, tmp_path):
    """Nor is a weight that nobody takes proposed for a slot."""
    there = {n.replace("Adam", name): value for n, value in V1.items()}
    source = saved(tmp_path, **there, cls__bias=[4.0])
    text = refused(adam_state(), source, ADAM, **WHOLE)
    assert "['optimizer/momentum/net/a', 'optimizer/velocity/net/a']" in text
    assert "optimizer/momentum/net/a [" not in text


def test_a_cell_of_tensorflow_1_is_no_proposal(tmp_path):
    """Its gates are i, j, f, o: its bias fits by shape, and would be wrong."""
    cell = {"rnn__basic_lstm_cell__kernel": rows(6, 16)}
    source = saved(tmp_path, **cell, rnn__basic_lstm_cell__bias=rows(16))
    shapes = {"kernel": [2, 16], "recurrent_kernel": [4, 16], "bias": [16]}
    text = refused(state(**{f"net__lstm__{n}": s for n, s in shapes.items()}), source)
    assert "rnn/basic_lstm_cell is a cell of tf.compat.v1, whose gates" in text
    assert "to paste" not in text


def test_half_of_a_swap(tmp_path):
    """No value stands for two variables unless both are named."""
    there = {"d__kernel": rows(2, 2), "d_1__kernel": rows(2, 2) * 2}
    source = saved(tmp_path, **there)
    mine = state(net__d__kernel=[2, 2], net__d_1__kernel=[2, 2])
    names = {"net/d/kernel": "d_1/kernel"}
    text = refused(mine, source, var_name_to_prev_var_name=names)
    assert " 'd_1/kernel' is given to 'net/d/kernel': give a name for 'net/d_1/" in text
    names["net/d_1/kernel"] = "d/kernel"
    start(mine, source, var_name_to_prev_var_name=names)
    assert values(mine)["net/d_1/kernel"] == rows(2, 2).tolist()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"vars_to_warm_start": ["net/a", "net/bb"]},
            "has 'net/bb', which matches no variable in full: Did you mean net/b",
        ),
        (
            {
                "vars_to_warm_start": "net/a",
                "var_name_to_prev_var_name": {"net/b": "a"},
            },
            "names 'net/b', which is not in vars_to_warm_start: choose it there, or",
        ),
    ],
)
def test_a_choice_that_is_idle(options, text, tmp_path):
    source = saved(tmp_path, a=rows(2), b=rows(2))
    assert text in refused(state(net__a=[2], net__b=[2]), source, **options)


def test_vocabularies_without_a_word_in_common(tmp_path):
    words = (vocabulary(tmp_path / "n", *"ab"), 2, 0, vocabulary(tmp_path / "o", *"AB"))
    options = {"var_name_to_vocab_info": {"net/t": ge.VocabInfo(*words)}}
    text = refused(state(net__t=[2, 2]), saved(tmp_path, t=rows(2, 2)), **options)
    assert "VocabInfo of net/t: none of 2 words of " in text


@pytest.mark.parametrize(
    ("one", "other", "are"),
    [
        ([4, 6], [4, 2, 3], True),
        ([2, 2, 6], [4, 6], True),
        ([6], [1, 2, 3, 1], True),
        ([], [1, 1], True),
        ([4, 6], [6, 4], False),
        ([4, 6], [2, 3, 4], False),
        ([4, 6], [2, 12], False),
        ([6], [2, 3, 2], False),
        ([], [2], False),
    ],
)
def test_shapes_that_are_cut_alike(one, other, are):
    assert origins.is_cut(one, other) == origins.is_cut(other, one) == are


def test_a_kernel_of_heads_comes_from_one_of_all_heads(tmp_path, log):
    """Where the user has said so, with its slots; never by itself."""
    source = saved(tmp_path, a=rows(4, 6), a__Momentum=rows(4, 6), b=rows(4, 6))
    mine = {
        "net": {"a": tf.Variable(tf.zeros([4, 2, 3]))},
        "optimizer": {"momentum/net/a": tf.Variable(tf.zeros([4, 2, 3]))},
    }
    modules = {"optimizer": keras.optimizers.SGD(0.5, momentum=0.9)}
    options = {"vars_to_warm_start": ".*"}
    assert "net/a: [4, 2, 3] in the model" in refused(mine, source, modules, **options)
    names = {"net/a": "a"}
    start(mine, source, modules, **options, var_name_to_prev_var_name=names)
    cut = rows(4, 6).reshape([4, 2, 3])
    np.testing.assert_array_equal(mine["net"]["a"], cut)
    np.testing.assert_array_equal(mine["optimizer"]["momentum/net/a"], -0.5 * cut)
    assert "  net/a                     a ([4, 6] as [4, 2, 3])\n" in log()[-1]
    mine["net"]["a"] = tf.Variable(tf.zeros([6, 4]))
    options["vars_to_warm_start"] = "net/.*"
    text = refused(mine, source, modules, **options, var_name_to_prev_var_name=names)
    assert "net/a: [6, 4] in the model, [4, 6] saved" in text
    whole = {"net": {"a": tf.Variable(tf.zeros([4, 2, 3], tf.int32))}}
    text = refused(whole, source, var_name_to_prev_var_name=names)
    assert "net/a is int32, and a in " in text


def test_what_is_left_there_is_in_the_table(tmp_path, log):
    """A model of fewer layers takes a part: the log says what it leaves."""
    layers = {f"bert__layer_{i}__kernel": rows(2) for i in range(5)}
    slots = {"bert__layer_1__kernel__Adam": rows(2), "global_step": np.int64(3)}
    source = saved(tmp_path, **layers, **slots, bert__head=rows(3))
    start(state(net__layer_0__kernel=[2]), source)
    assert log()[-1].endswith(
        "  left there           shape\n"
        "  bert/head            [3]\n"
        "  bert/layer_1/kernel  [2]\n"
        "  bert/layer_2/kernel  [2]\n"
        "  bert/layer_3/kernel  [2]\n"
        "  bert/layer_4/kernel  [2]"
    )


def test_many_names_of_other_ends_are_shown_in_full(tmp_path, log):
    """`network/*` beside each would say nothing."""
    there = {f"layers__d_{i}__vars__0": rows(2) for i in range(50)}
    mine = state(**{f"net__d_{i}__kernel": [2] for i in range(50)})
    names = {r"net/d_(\d+)/kernel": r"layers/d_\1/vars/0"}
    start(mine, saved(tmp_path, **there), var_name_to_prev_var_name=names)
    lines = log()[-1].splitlines()
    assert lines[2].split() == ["net/d_0/kernel", "layers/d_0/vars/0"]
    assert lines[42].split() == ["...", "and", "10", "more"]


def test_a_file_of_keras_in_bfloat16(tmp_path, log):
    """HDF5 has no such numbers, and shows bytes."""
    policy = keras.DTypePolicy("bfloat16")
    there = keras.Sequential([keras.Input([3]), keras.layers.Dense(2, dtype=policy)])
    there.save_weights(tmp_path / "a.weights.h5")
    mine = state(net__kernel=[3, 2])
    names = {"net/kernel": "layers/dense/vars/0"}
    source = str(tmp_path / "a.weights.h5")
    start(mine, source, var_name_to_prev_var_name=names)
    wanted = np.float32(there.get_weights()[0])
    np.testing.assert_array_equal(mine["net"]["kernel"], wanted)
    assert "layers/dense/vars/0 (bfloat16 as float32)" in log()[-1]
