"""Names, shapes and dtypes of other programs' checkpoints; the variables are plain ones."""

import json
import math
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import gin_estimator as ge
from gin_estimator.warm_start.slots import Slots
from gin_estimator.warm_start.warm_start import warm_start, warn_of_schemas

ADAM = {"optimizer": keras.optimizers.Adam()}
POWERS = {"beta1_power": np.float32(0.9**4), "beta2_power": np.float32(0.999**4)}
V1 = {"a": [1.0], "a__Adam": [2.0], "a__Adam_1": [3.0], "global_step": np.int64(3)}
WHOLE = {"vars_to_warm_start": [".*", "optimizer/.*"], "learning_rates_and_iterations": True}
SLOTS = "optimizer/momentum/net/a [1], optimizer/velocity/net/a [1]"


def saved(folder, **values):
    """Writes a checkpoint by names; `__` is a slash."""
    named = {name.replace("__", "/"): tf.constant(v) for name, v in values.items()}
    path = f"{folder}/model.ckpt"
    tf.raw_ops.SaveV2(
        prefix=path,
        tensor_names=list(named),
        shape_and_slices=[""] * len(named),
        tensors=list(named.values()),
    )
    return path


def state(**shapes):
    """Returns variables of zeros."""
    return {name.replace("__", "/"): tf.Variable(tf.zeros(s)) for name, s in shapes.items()}


def adam_state():
    slots = {f"optimizer/{s}/net/a": tf.Variable([0.0]) for s in ("momentum", "velocity")}
    count = {"optimizer/iteration": tf.Variable(0, dtype=tf.int64)}
    rate = {"optimizer/learning_rate": tf.Variable(0.5)}
    return {"net/a": tf.Variable([0.0]), **count, **rate, **slots}


def rows(*shape):
    return np.arange(math.prod(shape), dtype=np.float32).reshape(shape) + 1


def values(variables):
    return {name: variable.numpy().tolist() for name, variable in variables.items()}


def start(variables, source, modules=None, **options):
    warm_start(ge.WarmStartSettings(str(source), **options), variables, modules or {})


def refused(variables, source, modules=None, error=ge.UserError, **options):
    """Returns the text of the error; nothing was set."""
    before = values(variables)
    with pytest.raises(error) as caught:
        start(variables, source, modules, **options)
    assert values(variables) == before
    return str(caught.value)


def test_names_without_module_and_below_one_scope(tmp_path):
    slots = {"Adam__m__a__bias__m": rows(3), "Adam__iter": 1, "Adam__beta_1": 0.9}
    source = saved(tmp_path, m__a__bias=rows(3), m__a__kernel=rows(2, 3), **slots, step=1)
    own = state(net__a__kernel=[2, 3], net__a__bias=[3])
    start(own, source)
    assert values(own)["net/a/bias"] == [1, 2, 3]


def test_name_of_two_modules_has_to_be_given(tmp_path):
    source = saved(tmp_path, dense__kernel=rows(2))
    own = state(g__dense__kernel=[2], d__dense__kernel=[2])
    assert "missing: d/dense/kernel [2]\n" in refused(own, source)
    start(own, source, vars_to_warm_start="d/.*")
    assert values(own) == {"g/dense/kernel": [0, 0], "d/dense/kernel": [1, 2]}
    start(own, source, var_name_to_prev_var_name={".*/dense/kernel": "dense/kernel"})
    assert values(own)["g/dense/kernel"] == [1, 2]


def test_half_of_a_swap(tmp_path):
    source = saved(tmp_path, d__kernel=rows(2), d_1__kernel=rows(2) * 2)
    own = state(net__d__kernel=[2], net__d_1__kernel=[2])
    names = {"net/d/kernel": "d_1/kernel"}
    text = refused(own, source, var_name_to_prev_var_name=names)
    assert "missing: net/d_1/kernel [2]\n" in text
    start(own, source, var_name_to_prev_var_name={**names, "net/d_1/kernel": "d/kernel"})
    assert values(own)["net/d_1/kernel"] == [1, 2]


def test_names_by_an_expression(tmp_path):
    source = saved(tmp_path, bert__layer_0__w=rows(2), bert__layer_1__w=rows(2) * 2)
    own = state(net__block_0__kernel=[2], net__block_1__kernel=[2])
    names = {r"net/block_(\d)/kernel": r"bert/layer_\1/w"}
    start(own, source, var_name_to_prev_var_name=names)
    assert values(own)["net/block_1/kernel"] == [2, 4]
    broken = {r"net/block_(\d)/kernel": r"bert/layer_\2/w"}
    text = refused(own, source, var_name_to_prev_var_name=broken)
    assert "(invalid group reference 2" in text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"var_name_to_prev_var_name": {"net/a/kernle": "x"}},
            "has 'net/a/kernle': expected a full name, or an expression that matches one. Did you "
            "mean net/a/kernel?",
        ),
        (
            {"vars_to_warm_start": "net/a.*", "var_name_to_prev_var_name": {"net/a/kernel": "xx"}},
            "missing: net/a/kernel [2]\n  not used of the checkpoint: x [2]\nSet var_name_to_prev",
        ),
        ({"vars_to_warm_start": "nett/.*"}, "vars_to_warm_start has 'nett/.*'"),
        (
            {
                "vars_to_warm_start": "net/b",
                "var_name_to_prev_var_name": {"net/a/kernel": "x", "net/b": "x"},
            },
            "has 'net/a/kernel', which vars_to_warm_start does not choose",
        ),
        ({"vars_to_warm_start": None}, "vars_to_warm_start is None: expected an expression that"),
    ],
)
def test_wrong_choices(options, text, tmp_path):
    source = saved(tmp_path, x=rows(2))
    assert text in refused(state(net__a__kernel=[2], net__b=[2]), source, **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"vars_to_warm_start": "("}, "vars_to_warm_start has '('"),
        ({"vars_to_warm_start": [3]}, "vars_to_warm_start has 3"),
        ({"weights": "x"}, "WarmStartSettings.weights is 'x'"),
        ({"var_name_to_prev_var_name": {"a": 3}}, "expected a dict to str"),
        ({"var_name_to_vocab_info": {"a": "b"}}, "expected a dict to VocabInfo"),
        ({"init_fn": 3}, "WarmStartSettings.init_fn is 3: expected a function of the modules"),
        ({"ckpt_to_initialize_from": None}, "ckpt_to_initialize_from is None: expected the path"),
        ({"ckpt_to_initialize_from": ""}, "ckpt_to_initialize_from is '': expected the path"),
    ],
)
def test_wrong_settings(options, text):
    with pytest.raises(ge.UserError) as error:
        ge.WarmStartSettings(**{"ckpt_to_initialize_from": "runs/1", **options})
    assert text in str(error.value)


def test_another_head_says_how_to_take_the_rest(tmp_path):
    weights = {"a_1__kernel": rows(1), "a_1__bias": rows(1), "b__kernel": rows(2), "c": rows(1)}
    source = saved(tmp_path, **weights)
    own = state(net__a_1__kernel=[1], net__a_1__bias=[1], net__b__kernel=[3], net__c=[1])
    own["top"] = tf.Variable([0.0])
    text = refused(own, source, error=ge.CheckpointMismatchError)
    assert "  missing: top [1]\n" in text
    assert "  of another shape (model, checkpoint): net/b/kernel [3], b/kernel [2]\n" in text
    chosen = ["net/a_1/.*", "net/c"]
    assert f"Set vars_to_warm_start={chosen} to load only these, or " in text
    start(own, source, vars_to_warm_start=chosen)
    assert values(own)["net/a_1/bias"] == [1]


def test_dtypes(tmp_path):
    bfloat16 = tf.constant([1.5, 3.0], tf.bfloat16)
    source = saved(tmp_path, a=bfloat16, b=[1.0, 70000.0], c=[1, 2])
    own = state(net__a=[2], net__c=[2])
    start(own, source, vars_to_warm_start="net/a")
    assert values(own)["net/a"] == [1.5, 3.0]
    assert "net/c is float32, and c in " in refused(own, source)
    half = {"net/b": tf.Variable([0.0, 0.0], dtype=tf.float16)}
    assert "net/b is float16, and b in " in refused(half, source)


def test_damaged_checkpoint_sets_nothing(tmp_path):
    source = saved(tmp_path, a=rows(4), b=rows(40))
    data = pathlib.Path(f"{source}.data-00000-of-00001")
    data.write_bytes(data.read_bytes()[:100])
    refused(state(net__a=[4], net__b=[40]), source, error=ge.CorruptCheckpointError)


def test_folders(tmp_path):
    path = saved(tmp_path, a=rows(2))
    tf.compat.v1.train.update_checkpoint_state(str(tmp_path), path)
    own = state(net__a=[2])
    start(own, tmp_path)
    assert values(own)["net/a"] == [1, 2]
    (tmp_path / "checkpoint").unlink()
    assert "The folder has ['model.ckpt." in refused(own, tmp_path)
    (tmp_path / "empty").mkdir()
    text = refused(own, tmp_path / "empty")
    assert text.startswith(f"ckpt_to_initialize_from is '{tmp_path}/empty': expected the prefix")
    assert f"{tmp_path}/absent does not exist." in refused(own, tmp_path / "absent")
    (tmp_path / "empty/notes.txt").touch()
    assert "The folder has ['notes.txt']." in refused(own, tmp_path / "empty")


def test_averages(tmp_path):
    """Those of TensorFlow 1 are variables with a name."""
    source = saved(tmp_path, a=rows(2), a__ExponentialMovingAverage=rows(2) * 3, b=rows(2))
    own = state(net__a=[2], net__b=[2])
    text = refused(own, source, weights="average")
    assert r"var_name_to_prev_var_name={'network/(.*)': r'\1/ExponentialMovingAverage'}" in text
    names = {"net/(a)": r"\1/ExponentialMovingAverage"}
    start(own, source, var_name_to_prev_var_name=names)
    assert values(own) == {"net/a": [3, 6], "net/b": [1, 2]}


def test_averages_of_this_project(tmp_path, caplog):
    ours = {f"net/{n}": tf.Variable([1.0]) for n in "ab"}
    ours |= {"driver/global_step": tf.Variable(3, dtype=tf.int64)}
    ours["driver/ema/net/a"] = tf.Variable([4.0])
    path = ours_saved(tmp_path / "ours", ours)
    own = state(net__a=[1], net__b=[1])
    with caplog.at_level("INFO", "absl"):
        start(own, path, weights="average")
    assert values(own) == {"net/a": [4], "net/b": [1]}
    assert "net/b from net/b (has no average)" in caplog.text


def ours_saved(folder, variables):
    from gin_estimator.checkpoint import keys

    return keys.tree(variables).write(f"{folder}/model.ckpt-3")


@pytest.mark.parametrize(
    "there",
    [
        {**V1, **POWERS},
        {"a": [1.0], "a__Adam": [2.0], "a__Adam_1": [3.0], "global_step": np.int64(3)},
        {"a": [1.0], "Adam__a__m": [2.0], "Adam__a__v": [3.0], "Adam__iter": 3},
        {"a": [1.0], "training__Adam__a__m": [2.0], "training__Adam__a__v": [3.0], "iter": 3},
        {"a": [1.0], "Adam__m__a": [2.0], "Adam__v__a": [3.0], "Adam__iteration": 3},
        {"a": [1.0], "t__a__Adam": [2.0], "t__a__Adam_1": [3.0], "global_step": 3, **POWERS},
    ],
)
def test_state_of_adam_under_many_names(there, tmp_path):
    own = adam_state()
    start(own, saved(tmp_path, **there), ADAM, **WHOLE)
    assert values(own) == {
        "net/a": [1.0],
        "optimizer/iteration": 3,
        "optimizer/learning_rate": 0.5,
        "optimizer/momentum/net/a": [2.0],
        "optimizer/velocity/net/a": [3.0],
    }


@pytest.mark.parametrize(
    ("there", "text"),
    [
        # Frozen there: the slots are those of b/a.
        (
            {"a": [1.0], "b__a": [5.0], "Adam__b__a__m": [6.0], "Adam__b__a__v": [7.0], "iter": 3},
            SLOTS,
        ),
        ({**V1, "a__Adam_2": [1.0], "a__Adam_3": [1.0]}, SLOTS),
        ({**V1, "t__a__Adam": [1.0], "t__a__Adam_1": [1.0]}, SLOTS),
        ({n.replace("Adam", "AdaMax"): v for n, v in V1.items()}, SLOTS),
        ({n.replace("Adam", "LARSOptimizer"): v for n, v in V1.items()}, SLOTS),
        ({"a": [1.0], "a__art_0__Adam": [1.0], "a__art_0__Adam_1": [1.0], "iter": 3}, SLOTS),
        ({"a": [1.0], "a__Momentum": [1.0], "global_step": 3}, SLOTS),
        ({**V1, "x__iter": 3, "y__iter": 3}, "missing: optimizer/iteration []\n"),
        # BERT and Keras 3.
        ({"a": [1.0], "a__adam_m": [2.0], "a__adam_v": [3.0], "global_step": 3}, SLOTS),
        ({"a": [1.0], "o__iteration": 3, "o__a_momentum": [2.0], "o__a_velocity": [3.0]}, SLOTS),
    ],
)
def test_state_of_another_optimizer(there, text, tmp_path):
    found = refused(adam_state(), saved(tmp_path, **there), ADAM, **WHOLE)
    assert text in found
    assert found.endswith(": '...'} for names that differ, or init_fn.")


def test_slots_by_an_expression(tmp_path):
    source = saved(tmp_path, a=[1.0], a__adam_m=[2.0], a__adam_v=[3.0], global_step=np.int64(3))
    names = {r"optimizer/momentum/net/(.*)": r"\1/adam_m"}
    names |= {r"optimizer/velocity/net/(.*)": r"\1/adam_v"}
    own = adam_state()
    start(own, source, ADAM, **WHOLE, var_name_to_prev_var_name=names)
    assert [own[f"optimizer/{s}/net/a"].numpy() for s in ("momentum", "velocity")] == [2, 3]


def test_slots_that_an_expression_for_variables_matches(tmp_path):
    own = adam_state()
    names = {".*/a": "a"}
    start(own, saved(tmp_path, **V1), ADAM, **WHOLE, var_name_to_prev_var_name=names)
    assert [own[f"optimizer/{s}/net/a"].numpy() for s in ("momentum", "velocity")] == [2, 3]


@pytest.mark.parametrize(
    ("chosen", "options", "taken"),
    [
        (".*", {}, {"net/a"}),
        ("optimizer/.*", {}, {"optimizer/momentum/net/a", "optimizer/velocity/net/a"}),
        (["net/a", "optimizer/iteration"], {}, {"net/a", "optimizer/iteration"}),
        ("net/.*", {"learning_rates_and_iterations": True}, {"net/a", "optimizer/iteration"}),
    ],
)
def test_choices_of_optimizer_state(chosen, options, taken, tmp_path):
    own = adam_state()
    before = values(own)
    start(own, saved(tmp_path, **V1, **POWERS), ADAM, vars_to_warm_start=chosen, **options)
    assert {name for name, value in values(own).items() if value != before[name]} == taken


def test_slots_of_momentum_are_updates(tmp_path):
    """A subclass with its own formula gets them as they are."""

    class Momentum(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            raise NotImplementedError

    source = saved(tmp_path, a=[1.0], a__Momentum=[2.0], global_step=np.int64(3))
    for kind, slot in ((keras.optimizers.SGD, -1.0), (Momentum, 2.0)):
        own = state(net__a=[1], optimizer__momentum__net__a=[1])
        start(own, source, {"optimizer": kind(0.5, 0.9)}, vars_to_warm_start=".*|net/.*/a")
        assert values(own)["optimizer/momentum/net/a"] == [slot]


def test_slots_of_renamed_variables_of_this_project(tmp_path):
    ours = {f"optimizer/momentum/old/{n}": tf.Variable([2.0]) for n in "ab"}
    ours |= {f"old/{n}": tf.Variable([1.0]) for n in "ab"}
    ours["driver/global_step"] = tf.Variable(3, dtype=tf.int64)
    path = ours_saved(tmp_path, ours)
    own = state(net__a=[1], optimizer__momentum__net__a=[1])
    names = {"net/(.*)": r"old/\1"}
    modules = {"optimizer": keras.optimizers.SGD()}
    start(own, path, modules, var_name_to_prev_var_name=names, vars_to_warm_start="(net|opt).*")
    assert values(own) == {"net/a": [1], "optimizer/momentum/net/a": [2]}


def test_thousands_of_names(tmp_path):
    names = []
    for i in range(3000):
        kernel = f"bert/layer_{i}/kernel"
        names += [kernel, f"{kernel}/Adam", f"{kernel}/Adam_1"]
    slots = Slots(names)
    found = slots.origin(keras.optimizers.Adam(), "velocity", "bert/layer_7/kernel")
    assert found.name == "bert/layer_7/kernel/Adam_1"
    assert len(slots.weights) == 3000


def test_kernel_of_heads(tmp_path):
    """It is reshaped if the user gave the name, with its slots."""
    source = saved(tmp_path, a=rows(4, 6), a__Momentum=rows(4, 6), global_step=np.int64(3))
    own = state(net__a=[4, 2, 3], optimizer__momentum__net__a=[4, 2, 3])
    modules = {"optimizer": keras.optimizers.SGD(0.5, momentum=0.9)}
    chosen = {"vars_to_warm_start": [".*", "optimizer/.*"]}
    assert "checkpoint): net/a [4, 2, 3], a [4, 6]" in refused(own, source, modules, **chosen)
    names = {"var_name_to_prev_var_name": {"net/a": "a"}}
    start(own, source, modules, **chosen, **names)
    split = rows(4, 6).reshape([4, 2, 3])
    np.testing.assert_array_equal(own["net/a"], split)
    np.testing.assert_array_equal(own["optimizer/momentum/net/a"], -0.5 * split)
    assert "checkpoint): net/a [6, 4], a [4, 6]" in refused(state(net__a=[6, 4]), source, **names)


def test_tables_of_this_project(tmp_path):
    make = lambda: tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)  # noqa: E731
    first = make()
    first.insert("a", tf.constant(5, tf.int64))
    step = {"driver/global_step": tf.Variable(3, dtype=tf.int64)}
    path = ours_saved(tmp_path, {"words": first, **step})
    own = {"one": make(), "two": make()}
    settings = ge.WarmStartSettings(path, "one|two", None, dict.fromkeys(own, "words"))
    warm_start(settings, own, {})
    assert [int(table.lookup(tf.constant("a"))) for table in own.values()] == [5, 5]


def test_log(tmp_path, caplog):
    source = saved(tmp_path, **{f"d_{i}": rows(2) for i in range(50)}, more=rows(1))
    own = state(**{f"net__d_{i}": [2] for i in range(50)}, net__drop__seed_generator_state=[2])
    with caplog.at_level("INFO", "absl"):
        start(own, source)
    lines = caplog.messages
    assert lines[0] == f"warm start | 50 of 51 variables from {source}"
    assert lines[1] == "warm start | net/d_0 from d_0"
    assert lines[41:] == [
        "warm start | and 11 more",
        "warm start | not used of the checkpoint: more",
    ]


def vocabulary(path, words):
    path.write_text("".join(f"{word}\n" for word in words))
    return str(path)


def test_vocabularies(tmp_path):
    new, old = (vocabulary(tmp_path / words, words) for words in ("cdab", "abc"))
    info = ge.VocabInfo(new, 4, 1, old, backup_initializer="ones")
    parts = [tf.Variable(tf.zeros([n, 2])) for n in (3, 2)]
    own = {"net/t": tf.__internal__.distribute.ShardedVariable(parts)}
    source = saved(tmp_path, t=rows(4, 2), k=rows(3, 2))
    # With None only variables with a VocabInfo are taken.
    own["net/k"] = tf.Variable(tf.zeros([3, 2]))
    start(own, source, vars_to_warm_start=None, var_name_to_vocab_info={"net/t": info})
    table = np.concatenate([part.numpy() for part in parts]).tolist()
    assert table == [[5, 6], [1, 1], [1, 2], [3, 4], [1, 1]]
    assert not own["net/k"].numpy().any()
    swapped = vocabulary(tmp_path / "n", "ba"), 2, 0, vocabulary(tmp_path / "o", "ab")
    own = state(net__k=[3, 2])
    infos = {"net/k": ge.VocabInfo(*swapped, axis=1)}
    start(own, source, var_name_to_vocab_info=infos)
    assert values(own)["net/k"] == rows(3, 2)[:, ::-1].tolist()


def test_new_words_are_drawn_by_name(tmp_path):
    words = vocabulary(tmp_path / "n", "ax"), 2, 0, vocabulary(tmp_path / "o", "ab")
    infos = {n: ge.VocabInfo(*words, backup_initializer="uniform") for n in ("net/s", "net/t")}
    source = saved(tmp_path, s=rows(2, 2), t=rows(2, 2))
    drawn = []
    for _ in range(2):
        own = state(net__s=[2, 2], net__t=[2, 2])
        start(own, source, var_name_to_vocab_info=infos)
        drawn.append(values(own))
    assert drawn[0] == drawn[1]
    assert drawn[0]["net/s"][1] != drawn[0]["net/t"][1]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"old_vocab": "aba"}, "'a' on lines 1 and 3: expected each word once"),
        ({"new_vocab": "absent"}, "absent cannot be read"),
        ({"new_vocab_size": 9}, "VocabInfo.new_vocab_size is 9, and "),
        ({"num_oov_buckets": 1}, "expected on axis 0 the 3 of new_vocab_size + num_oov_buckets"),
        (
            {"old_vocab": "abcde"},
            "the checkpoint [3, 2]: expected on axis 0 the 2 of new_vocab_size + num_oov_buckets, "
            "and at least the 5 words of",
        ),
        ({"old_vocab": "AB"}, "have no word in common"),
        ({"backup_initializer": lambda shape, dtype: [1.0]}, "returned [1] for net/t"),
        ({"backup_initializer": 3}, "VocabInfo.backup_initializer is 3"),
        ({"backup_initializer": "nope"}, "VocabInfo.backup_initializer is 'nope'"),
        ({"axis": 2}, "VocabInfo.axis is 2: expected 0"),
        ({"axis": 1}, "equal other axes"),
        ({"old_vocab_size": 0}, "VocabInfo.old_vocab_size is 0: expected an int > 0"),
        ({"new_vocab": ""}, "VocabInfo.new_vocab is ''"),
    ],
)
def test_vocabularies_that_do_not_fit(change, text, tmp_path):
    for words in ("ab", "aba", "abcde", "AB"):
        vocabulary(tmp_path / words, words)
    fields = {"new_vocab": "ab", "old_vocab": "ab", "new_vocab_size": 2, "num_oov_buckets": 0}
    fields |= change
    paths = {f: v and f"{tmp_path}/{v}" for f, v in fields.items() if f.endswith("_vocab")}
    source = saved(tmp_path, t=rows(3, 2))
    with pytest.raises(ge.UserError) as error:
        info = ge.VocabInfo(**{**fields, **paths})
        start(state(net__t=[2, 2]), source, var_name_to_vocab_info={"net/t": info})
    assert text in str(error.value)


def test_schemas_that_differ(tmp_path, caplog):
    for folder, size in (("old", 2), ("new", 3)):
        (tmp_path / folder).mkdir()
        features = {"word": {"size": size}, "age": {"scale": 1}}
        content = {"features": features, "statistics": {}}
        (tmp_path / folder / "schema.json").write_text(json.dumps(content))
    warn_of_schemas(ge.WarmStartSettings(str(tmp_path / "old")), str(tmp_path / "new"))
    assert "the features ['word'] differ from those in" in caplog.text
    caplog.clear()
    warn_of_schemas(ge.WarmStartSettings(str(tmp_path / "old")), str(tmp_path / "absent"))
    assert not caplog.text
