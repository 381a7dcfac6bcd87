"""Each strategy does the same, for split and per-replica batches with ragged ends.

The reference is the default strategy, which is compared with a loop by hand in Keras.
"""

import functools
import json
import pathlib
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

import gin_estimator as ge
from outcome import (
    BATCH_SIZE,
    CLIP_NORM,
    L2,
    LAYERS,
    NUM_ROWS,
    X,
    Y,
    first_checkpoint,
    logits,
    make_estimator,
    make_input_fn,
    make_network,
    make_optimizer,
    outcome,
    variables,
)
from tasks import workers

pytestmark = pytest.mark.oldest

CPUS = ("CPU:0", "CPU:1", "CPU:2", "CPU:3")
LOCAL = {
    "default": {},
    "one device": {"devices": CPUS[:1]},
    "mirrored 1": {"devices": CPUS[:1], "train_distribute": ge.mirrored},
    "mirrored 2": {"devices": CPUS[:2]},
    "mirrored 4": {"devices": CPUS},
    "central 2": {"devices": CPUS[:2], "train_distribute": ge.central_storage},
}
ACCUMULATED = {
    "accumulated": {"gradient_accumulation_steps": 4},
    "accumulated mirrored 2": {"gradient_accumulation_steps": 4, "devices": CPUS[:2]},
}
# Processes, and replicas in each.
CLUSTERS = {"1 worker": (1, 1), "2 workers": (2, 1), "2 workers x 2": (2, 2)}
CONFIGS = {**LOCAL, **ACCUMULATED}
THIN = [("mirrored 2", "split")]
WORKER = pathlib.Path(__file__).parent / "worker.py"


def cases():
    for name in (*CONFIGS, *CLUSTERS):
        for kind in ("split", "per_replica"):
            marks = [] if (name, kind) in THIN else [pytest.mark.slow]
            if (name, kind) != ("default", "split"):
                yield pytest.param(name, kind, marks=marks, id=f"{name}, {kind}")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Returns the model_dir of a case."""
    return functools.cache(lambda name, kind: tmp_path_factory.mktemp("run") / kind)


@pytest.fixture(scope="module")
def outcomes(folders, tmp_path_factory):
    """Returns the outcomes of a case by process, each computed once."""

    @functools.cache
    def cluster(name):
        folder = tmp_path_factory.mktemp("cluster")
        number, replicas = CLUSTERS[name]
        get("default", "split")
        path = first_checkpoint(folders("default", "split"))
        (folder / "paths.json").write_text(json.dumps([path]))
        arguments = folder, replicas, folder / "{index}.pickle"
        with workers(folder, *arguments, number=number, program=WORKER) as tasks:
            for task in tasks:
                assert task.wait(300) == 0, task.output
        files = [folder / f"{index}.pickle" for index in range(number)]
        return folder, [pickle.loads(file.read_bytes()) for file in files]

    @functools.cache
    def get(name, kind):
        if name in CLUSTERS:
            return [process[kind] for process in cluster(name)[1]]
        folder, per_replica = folders(name, kind), kind == "per_replica"
        return [outcome(folder, per_replica=per_replica, **CONFIGS[name])]

    get.model_dir = lambda name, kind: (
        cluster(name)[0] / kind if name in CLUSTERS else folders(name, kind)
    )
    return get


@pytest.fixture(scope="module")
def reference(outcomes):
    [found] = outcomes("default", "split")
    return found


def assert_same(actual, expected):
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, 1e-5, 2e-6, err_msg=name)


@pytest.mark.parametrize(("name", "kind"), list(cases()))
def test_all_strategies_agree(outcomes, reference, name, kind):
    found = outcomes(name, kind)
    for each in found:
        assert_same(each["variables"], reference["variables"])
        np.testing.assert_allclose(each["reports"], reference["reports"], 1e-5)
        assert each["evaluation"] == pytest.approx(reference["evaluation"], rel=1e-5)
        assert each["evaluation"]["accuracy"] == reference["evaluation"]["accuracy"]
        np.testing.assert_allclose(each["logits"], reference["logits"], 1e-4, 1e-5)
        for restored in each["restored"]:
            # Those of the first checkpoint, not of the trained weights.
            assert np.abs(restored - reference["logits"]).max() > 1e-3
            np.testing.assert_allclose(restored, found[0]["restored"][0], 1e-5, 1e-6)
    np.testing.assert_allclose(found[0]["served"], reference["logits"], 1e-4, 1e-5)


def test_the_default_strategy_trains_as_a_loop_by_hand(reference, folders):
    network, optimizer = make_network(), make_optimizer()
    network(X[:1])
    path = f"{folders('default', 'split')}/model.ckpt-0"
    for index, variable in enumerate(network.trainable_variables):
        key = f"network/{index:03}/{LAYERS[index]}/.ATTRIBUTES/VARIABLE_VALUE"
        variable.assign(tf.train.load_variable(path, key))
    losses = []
    for x, y in tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH_SIZE).repeat(2):
        with tf.GradientTape() as tape:
            each = keras.losses.sparse_categorical_crossentropy(y, network(x), from_logits=True)
            penalty = L2 * sum(tf.reduce_sum(v.value**2) for v in network.trainable_variables)
            loss = tf.reduce_mean(each) + penalty
        losses.append((float(loss), len(y)))
        gradients = tape.gradient(loss, [v.value for v in network.trainable_variables])
        gradients, _ = tf.clip_by_global_norm(gradients, CLIP_NORM)
        optimizer.apply(gradients, network.trainable_variables)
    for name, variable in zip(LAYERS, network.trainable_variables, strict=True):
        actual = reference["variables"][f"network/{name}"]
        np.testing.assert_allclose(actual, variable, 1e-5, 2e-6, err_msg=name)
    pairs = [losses[i : i + 2] for i in range(0, len(losses), 2)]
    means = [sum(v * n for v, n in pair) / sum(n for _, n in pair) for pair in pairs]
    np.testing.assert_allclose(reference["reports"][:, 0], means, 1e-5)
    assert sum(reference["reports"][:, 1]) == 2 * NUM_ROWS


RESTORED = [*CONFIGS, *CLUSTERS]


@pytest.mark.slow
@pytest.mark.parametrize("name", RESTORED)
def test_every_strategy_restores_every_other_checkpoint(outcomes, name, tmp_path):
    """Workers restore one's checkpoint in `outcome`; here the local strategies restore all."""
    outcomes(name, "split")  # Trains, if no test before has.
    path = first_checkpoint(outcomes.model_dir(name, "split"))
    found = {}
    for other, config in LOCAL.items():
        estimator = make_estimator(tmp_path / other, **config)
        found[other] = logits(estimator, per_replica=True, checkpoint_path=path)
        np.testing.assert_allclose(found[other], found["default"], 1e-5, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "name", "kind"),
    [
        ("default", "mirrored 4", "per_replica"),
        ("mirrored 2", "default", "split"),
        ("central 2", "accumulated mirrored 2", "split"),
        ("default", "accumulated", "per_replica"),
    ],
)
def test_a_run_continues_on_another_strategy(tmp_path, reference, source, name, kind):
    for each, steps in ((source, 2), (name, 8)):
        config = CONFIGS[each]
        size = BATCH_SIZE // config.get("gradient_accumulation_steps", 1)
        input_fn = make_input_fn(per_replica=kind == "per_replica", size=size)
        estimator = make_estimator(tmp_path, **config)
        estimator.train(input_fn, max_steps=min(steps, 4))
        if steps > 4:
            estimator.train(input_fn, max_steps=steps)
    assert_same(variables(estimator), reference["variables"])


# Of 48, the last batch has one example; of 37, each is split unequally.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "size"),
    [
        ("mirrored 2", "per_replica", 48),
        ("mirrored 4", "per_replica", 48),
        ("accumulated", "per_replica", 48),
        ("accumulated mirrored 2", "per_replica", 48),
        ("mirrored 2", "split", 37),
        ("mirrored 4", "split", 37),
    ],
)
def test_unequal_parts_count_by_their_examples(tmp_path, name, kind, size):
    def trained(name, kind):
        config = CONFIGS[name]
        parts = config.get("gradient_accumulation_steps", 1)
        estimator = make_estimator(tmp_path / name, **config)
        estimator.train(make_input_fn(per_replica=kind == "per_replica", size=size // parts))
        return variables(estimator)

    assert_same(trained(name, kind), trained("default", "split"))
