"""Names, shapes and dtypes of other programs' checkpoints, where they do not fit."""

import ast
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.foreign import slot_names
from pipeline.strategy import sharding
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

BODY = {"body__w1": rows(2, 3), "body__b1": rows(3), "body__w2": rows(3, 2)}
HERE = {"net__a__kernel": [2, 3], "net__a__bias": [3], "net__b__kernel": [3, 2]}


def test_what_fits_once_is_proposed_ready_to_paste(tmp_path):
    source, mine = saved(tmp_path, **BODY), state(**HERE)
    text = refused(mine, source)
    pasted = re.search(r"var_name_to_prev_var_name=(\{.*?\})\)", text, re.DOTALL)[1]
    names = ast.literal_eval(pasted)
    assert names == {
        "net/a/kernel": "body/w1",
        "net/a/bias": "body/b1",
        "net/b/kernel": "body/w2",
    }
    start(mine, source, var_name_to_prev_var_name=names)
    assert values(mine)["net/b/kernel"] == rows(3, 2).tolist()


def test_a_shape_that_fits_twice_is_not_proposed(tmp_path):
    source = saved(tmp_path, x=rows(2, 3), y=rows(2, 3), z=rows(3))
    text = refused(state(**HERE), source)
    assert "'net/a/bias': 'z',\n})" in text
    assert "net/a/kernel [2, 3]: x, y.\n" in text
    assert "net/b/kernel [3, 2]: nothing of its shape.\n" in text


def test_layers_of_the_same_names_are_proposed_before_single_shapes(tmp_path):
    norm = {f"n__{leaf}": rows(4) for leaf in ("gamma", "beta", "moving_mean")}
    source = saved(tmp_path, **norm, other__bias=rows(4), other__kernel=rows(2, 4))
    mine = {f"net__norm__{leaf}": [4] for leaf in ("moving_mean", "beta", "gamma")}
    text = refused(state(**mine, net__d__kernel=[2, 4], net__d__bias=[4]), source)
    for name, there in [("norm/beta", "n/beta"), ("d/bias", "other/bias")]:
        assert f"'net/{name}': '{there}'," in text


def test_an_optimizer_s_slots_are_no_proposals(tmp_path):
    source = saved(tmp_path, w=rows(2, 3), w__Adam=rows(2, 3), w__Adam_1=rows(2, 3))
    assert "'net/a/kernel': 'w'," in refused(state(net__a__kernel=[2, 3]), source)


def test_one_name_below_which_all_stands_is_left_out(tmp_path):
    slots = {"Adam__m__a__bias__m": rows(3), "Adam__iter": 1, "Adam__beta_1": 0.9}
    weights = {"m__a__bias": rows(3), "m__a__kernel": rows(2, 3)}
    source = saved(tmp_path, **weights, **slots, step=1)
    mine = state(net__a__kernel=[2, 3], net__a__bias=[3])
    start(mine, source)
    assert values(mine)["net/a/bias"] == [1, 2, 3]


def test_a_name_that_fits_two_modules_is_asked_for(tmp_path):
    source = saved(tmp_path, dense__kernel=rows(2))
    mine = state(g__dense__kernel=[2], d__dense__kernel=[2])
    assert "g/dense/kernel [2]: dense/kernel." in refused(mine, source)
    start(mine, source, vars_to_warm_start="g/.*")
    assert values(mine) == {"g/dense/kernel": [1, 2], "d/dense/kernel": [0, 0]}
    both = {".*/dense/kernel": "dense/kernel"}
    start(mine, source, var_name_to_prev_var_name=both)
    assert values(mine)["d/dense/kernel"] == [1, 2]


def test_names_by_an_expression(tmp_path):
    source = saved(tmp_path, bert__layer_0__w=rows(2), bert__layer_1__w=rows(2) * 2)
    mine = state(net__block_0__kernel=[2], net__block_1__kernel=[2])
    names = {r"net/block_(\d)/kernel": r"bert/layer_\1/w"}
    start(mine, source, var_name_to_prev_var_name=names)
    assert values(mine)["net/block_1/kernel"] == [2, 4]
    broken = {r"net/block_(\d)/kernel": r"bert/layer_\2/w"}
    assert "a group is none" in refused(mine, source, var_name_to_prev_var_name=broken)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ({"net/a/kernle": "x"}, "names ['net/a/kernle'], which the model does not"),
        ({"net/a/kernel": "xx"}, "It has none of the names ['xx']."),
        ({"net/a/kernel": 3}, "write var_name_to_prev_var_name={'network/dense"),
        ({"a": ge.VocabInfo("a", 1, 0, "b")}, "write var_name_to_vocab_info={'network"),
    ],
)
def test_a_typo_in_the_names(names, text, tmp_path):
    source = saved(tmp_path, x=rows(2))
    mine = state(net__a__kernel=[2])
    assert text in refused(mine, source, var_name_to_prev_var_name=names)


def test_another_model_altogether(tmp_path):
    source = saved(tmp_path, a=rows(5), b=rows(7))
    text = refused(state(**HERE), source)
    assert "It holds 2 variables: a [5], b [7]." in text
    assert text.endswith("Nothing that was chosen fits: leave warm_start_from out.")


def test_other_dtypes(tmp_path, log):
    source = saved(
        tmp_path,
        a=tf.constant([1.5, 3.0], tf.bfloat16),
        b=[1.0, 70000.0],
        c=[1, 2],
    )
    mine = {"net": {name: tf.Variable([0.0, 0.0]) for name in "ac"}}
    start(mine, source, vars_to_warm_start="net/a")
    assert mine["net"]["a"].numpy().tolist() == [1.5, 3.0]
    assert "  net/a          a (bfloat16 as float32)\n" in log()[-1]
    text = "net/c is float32, and c in "
    assert text in refused(mine, source)
    half = {"net": {"b": tf.Variable([0.0, 0.0], dtype=tf.float16)}}
    assert "float32 numbers that are beyond float16" in refused(half, source)
    source = saved(tmp_path, d=np.int64([1, 2**40]))
    short = {"net": {"d": tf.Variable([0, 0])}}
    assert "int64 numbers that are beyond int32" in refused(short, source)


def test_a_shard_of_the_checkpoint_is_missing(tmp_path):
    policy = tf.train.experimental.MaxShardSizePolicy(max_shard_size=16)
    options = tf.train.CheckpointOptions(experimental_sharding_callback=policy)
    net = tf.Module()
    net.a, net.b = (tf.Variable(rows(4), name=name) for name in "ab")
    path = tf.train.Checkpoint(net=net).write(f"{tmp_path}/c", options)
    mine = state(net__a=[4], net__b=[4])
    start(mine, path)
    assert values(mine)["net/b"] == [1, 2, 3, 4]
    first, *_ = sorted(tmp_path.glob("*.data-*"))
    first.unlink()
    mine = state(net__a=[4], net__b=[4])
    with pytest.raises(ge.UnreadableCheckpointError, match=first.name):
        start(mine, path)
    assert values(mine) == {"net/a": [0] * 4, "net/b": [0] * 4}


def test_several_checkpoints_and_no_word_on_the_newest(tmp_path):
    saved(tmp_path, a=rows(2))
    mine = state(net__a=[2])
    start(mine, str(tmp_path))
    assert values(mine)["net/a"] == [1, 2]
    for path in list(tmp_path.glob("model.ckpt*")):
        (tmp_path / path.name.replace("model", "other")).write_bytes(path.read_bytes())
    assert "says which is the newest: write one, " in refused(mine, str(tmp_path))


def test_moving_averages_of_tensorflow(tmp_path):
    source = saved(tmp_path, a=rows(2), a__ExponentialMovingAverage=rows(2) * 3)
    mine = state(net__a=[2])
    start(mine, source, weights="average")
    assert values(mine)["net/a"] == [3, 6]


@pytest.mark.parametrize(
    ("there", "iterations"),
    [
        ({**V1, **POWERS}, 3),
        ({**V1, "global_step": np.int64(3), **POWERS}, 3),
        (V1, 70),
        ({"a": [1.0], "Adam__a__m": [2.0], "Adam__a__v": [3.0], "Adam__iter": 9}, 9),
        (
            {"s__a": [1.0], "adam__iteration": 7}
            | {"adam__s_a_momentum": [2.0], "adam__s_a_velocity": [3.0]},
            7,
        ),
        ({"a": [1.0], "a__adam_m": [2.0], "a__adam_v": [3.0], "global_step": 5}, 5),
    ],
)
def test_adam_s_state_under_many_names(there, iterations, tmp_path):
    mine = adam_state()
    start(mine, saved(tmp_path, **there), ADAM, **WHOLE)
    assert values(mine) == {
        "net/a": [1.0],
        "optimizer/iteration": iterations,
        "optimizer/momentum/net/a": [2.0],
        "optimizer/velocity/net/a": [3.0],
    }


def test_a_slot_of_a_variable_whose_name_ends_alike(tmp_path):
    """That of `b/a` is not taken for that of `a`, which was frozen there."""
    there = {"a": [1.0], "b__a": [5.0], "Adam__b__a__m": [6.0], "Adam__b__a__v": [7.0]}
    text = refused(adam_state(), saved(tmp_path, **there, global_step=3), ADAM, **WHOLE)
    assert "['optimizer/momentum/net/a', 'optimizer/velocity/net/a']" in text


def test_thousands_of_slots_are_found_in_seconds():
    shapes = {}
    for i in range(2000):
        name = f"bert/layer_{i}/kernel"
        shapes |= dict.fromkeys([name, f"{name}/Adam", f"{name}/Adam_1"], [2])
    found = slot_names.SlotNames(shapes)
    slots = [f"bert/layer_7/kernel/{name}" for name in ("Adam", "Adam_1")]
    assert found.numbered["bert/layer_7/kernel"] == {"Adam": dict(enumerate(slots))}
    assert len(found.weights(shapes)) == 2000


def test_powers_of_many_updates(tmp_path):
    """In float32 they are off after thousands of products, and 0 in the end."""
    power = np.float32(1.0)
    for _ in range(20001):
        power *= np.float32(0.999)
    many = {"beta1_power": np.float32(0), "beta2_power": power}
    mine = adam_state()
    steps = {"global_step": np.int64(20000)}
    start(mine, saved(tmp_path, **V1 | many | steps), ADAM, **WHOLE)
    assert values(mine)["optimizer/iteration"] == 20000


@pytest.mark.parametrize(
    ("there", "text"),
    [
        (
            {**V1, **POWERS, "beta1_power": np.float32(0.5)},
            "beta_1=0.9 and beta_2=0.99",
        ),
        ({**V1, "a__Adam_2": [1.0], "a__Adam_3": [1.0]}, "'optimizer/momentum/net/a'"),
        ({"a": [1.0], "a__Momentum": [1.0]}, "'optimizer/velocity/net/a'"),
    ],
)
def test_an_optimizer_s_state_that_is_of_another(there, text, tmp_path):
    assert text in refused(adam_state(), saved(tmp_path, **there), ADAM, **WHOLE)


def test_a_vocabulary_fills_shards(tmp_path, log):
    new, old = (tmp_path / name for name in ("new", "old"))
    words = [vocabulary(new, *"cdab"), 4, 1, vocabulary(old, *"abc")]
    info = ge.VocabInfo(*words, backup_initializer="ones")
    parts = [tf.Variable(tf.zeros([n, 2])) for n in (3, 2)]
    mine = {"net": {"t": sharding.ShardedVariable(parts)}}
    source = saved(tmp_path, t=rows(4, 2))
    start(mine, source, var_name_to_vocab_info={"net/t": info})
    table = np.concatenate([part.numpy() for part in parts]).tolist()
    assert table == [[5, 6], [1, 1], [1, 2], [3, 4], [1, 1]]
    assert "t (3 of 4 words, rows there without one: 1)" in log()[-1]


def test_a_vocabulary_of_columns(tmp_path):
    words = (vocabulary(tmp_path / "n", *"ba"), 2, 0, vocabulary(tmp_path / "o", *"ab"))
    info = ge.VocabInfo(*words, axis=1)
    mine = state(net__k=[3, 2])
    source = saved(tmp_path, k=rows(3, 2))
    start(mine, source, var_name_to_vocab_info={"net/k": info})
    assert values(mine)["net/k"] == rows(3, 2)[:, ::-1].tolist()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"old_vocab": "twice"}, "'a' on lines 1 and 3: a word has one row"),
        ({"new_vocab": "none"}, "none' cannot be read"),
        ({"new_vocab_size": 9}, "new_vocab_size is 9, and "),
        ({"num_oov_buckets": 1}, "make 3 words, and the variable is [2, 2]"),
        ({"old_vocab": "long"}, "long has 5 words, and the checkpoint 3 on axis 0"),
        ({"backup_initializer": lambda shape, dtype: [1.0]}, "gives [1] for net/t"),
        ({"backup_initializer": 3}, "VocabInfo.backup_initializer is int 3"),
        ({"axis": 2}, "VocabInfo.axis is 2: write 0"),
        ({"old_vocab_size": 0}, "VocabInfo.old_vocab_size is 0: write an int of 1"),
        ({"new_vocab": ""}, "VocabInfo.new_vocab is ''"),
    ],
)
def test_a_vocabulary_that_does_not_fit(change, text, tmp_path):
    files = {"good": "ab", "twice": "aba", "long": "abcde"}
    for name, words in files.items():
        vocabulary(tmp_path / name, *words)
    fields = {"new_vocab": "good", "old_vocab": "good"} | change
    paths = {f: v and f"{tmp_path}/{v}" for f, v in fields.items() if "_vocab" in f[3:]}
    sizes = {"new_vocab_size": 2, "num_oov_buckets": 0}
    source = saved(tmp_path, t=rows(3, 2))
    with pytest.raises(ValueError) as error:
        info = ge.VocabInfo(**{**sizes, **fields, **paths_only(paths)})
        start(state(net__t=[2, 2]), source, var_name_to_vocab_info={"net/t": info})
    assert text in str(error.value)


def paths_only(paths):
    return {f: v for f, v in paths.items() if f in ("new_vocab", "old_vocab")}


def test_the_line_for_the_rest_keeps_what_else_was_set(tmp_path):
    source = saved(tmp_path, body__a=rows(2), body__b=rows(3), Adam__iter=1)
    given = {"net/a": "body/a", "net/c": "body/c"}
    options = {"learning_rates_and_iterations": True, "var_name_to_vocab_info": None}
    mine = state(net__a=[2], net__c=[3])
    text = refused(mine, source, **options, var_name_to_prev_var_name=given)
    line = text.partition("To take over what fits: ")[2].rstrip(".")
    pasted = eval(line, {"WarmStartSettings": ge.WarmStartSettings})
    assert pasted.learning_rates_and_iterations
    assert pasted.var_name_to_prev_var_name == {"net/a": "body/a"}
    options = {**vars(pasted)}
    start(mine, options.pop("ckpt_to_initialize_from"), **options)
    assert values(mine)["net/a"] == [1, 2]


def test_an_expression_of_many_names_asks_for_no_random_stream(tmp_path):
    source = saved(tmp_path, bert__a=rows(2), step=1)
    mine = state(net__a=[2], net__drop__seed_generator_state=[2])
    many = {"net/(.*)": r"bert/\1"}
    start(mine, source, vars_to_warm_start=".*", var_name_to_prev_var_name=many)
    assert values(mine)["net/a"] == [1, 2]
    one = {**many, "net/drop/seed_generator_state": "bert/drop"}
    text = refused(mine, source, vars_to_warm_start=".*", var_name_to_prev_var_name=one)
    assert "bert/drop" in text


def test_a_canned_estimator_s_first_kernel_is_no_proposal(tmp_path):
    layers = {f"dnn__{n}__kernel": rows(4, 4) for n in ("hiddenlayer_0", "logits")}
    biases = {"dnn__hiddenlayer_0__bias": rows(4), "dnn__logits__bias": rows(4)}
    text = refused(
        state(net__tower__kernel=[4, 4], net__tower__bias=[4]),
        saved(tmp_path, **{**layers, **biases, "dnn__logits__kernel": rows(4, 1)}),
    )
    assert "net/tower/kernel': " not in text
    assert "dnn/hiddenlayer_0/kernel is a canned estimator's: its rows" in text


def test_a_list_there_took_the_slots_too(tmp_path):
    """An expression there took neither these nor moving statistics."""
    source = saved(tmp_path, a=[1.0], a__Adam=[2.0], a__Adam_1=[3.0], **POWERS)

    def taken_there(chosen):
        v1 = tf.compat.v1
        with tf.Graph().as_default(), v1.Session() as session:
            v1.get_variable("a", [1], initializer=tf.zeros_initializer())
            slot = tf.zeros_initializer()
            v1.get_variable("a/Adam", [1], initializer=slot, trainable=False)
            v1.train.warm_start(source, chosen)
            session.run(v1.global_variables_initializer())
            return [float(v[0]) for v in session.run(v1.global_variables())]

    assert taken_there(["a"]) == [1, 2]
    assert taken_there(".*") == [1, 0]
    for chosen, slot in {"net/.*": 0, ("net/a", "optimizer/.*"): 2, ".*": 2}.items():
        mine = adam_state()
        start(mine, source, ADAM, vars_to_warm_start=chosen)
        assert values(mine)["net/a"] == [1]
        assert values(mine)["optimizer/momentum/net/a"] == [slot]


def test_slots_of_a_formula_of_one_s_own_are_taken_as_they_stand(tmp_path):
    """As of docs/from_tf_optimizers.md's, which adds up gradients as there."""

    class Momentum(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            raise NotImplementedError

    source = saved(tmp_path, a=[1.0], a__Momentum=[2.0], global_step=np.int64(3))
    for kind, slot in ((keras.optimizers.SGD, -1.0), (Momentum, 2.0)):
        mine = state(net__a=[1], optimizer__momentum__net__a=[1])
        start(mine, source, {"optimizer": kind(0.5, 0.9)}, vars_to_warm_start=".*")
        assert values(mine)["optimizer/momentum/net/a"] == [slot]
