"""Layers that are not the same on every replica: normalization and dropout."""

import keras
import numpy as np
import pytest

from pipeline.strategy import strategies
from tests import fakes
from tests.dropout_masks import mask_fn, mask_network

CPUS = ("CPU:0", "CPU:1", "CPU:2", "CPU:3")


@pytest.fixture(scope="module")
def data():
    return fakes.classification_data()


# One of two has none of the last batch; three of four have none.
@pytest.mark.parametrize(
    ("devices", "rows", "per_replica"),
    [(CPUS[:2], 97, False), (CPUS, 104, True)],
    ids=["two-split", "four-per_replica"],
)
def test_batch_normalization_outlives_a_replica_without_examples(
    tmp_path, devices, rows, per_replica
):
    data = fakes.classification_data(rows)
    input_fn = fakes.make_input_fn(*data, batch_size=32, per_replica=per_replica)
    estimator = fakes.make_estimator(
        tmp_path, network=lambda: fakes.network(batch_norm=True), devices=devices
    )
    for _ in range(2):
        estimator.train(input_fn)
    assert np.isfinite(estimator.evaluate(input_fn)["loss"])
    for name, value in fakes.weights(tmp_path).items():
        assert np.isfinite(value).all(), name


def test_central_storage_trains_layers_that_assign_to_their_variables(tmp_path, data):
    """Its variables have one copy, where two replicas' values meet."""
    estimator = fakes.make_estimator(
        tmp_path,
        network=lambda: fakes.network(batch_norm=True, dropout=0.2),
        # It assigns to its averages on each replica, too.
        optimizer=lambda: fakes.adam(use_ema=True),
        train_distribute=strategies.central_storage,
        devices=CPUS[:2],
    )
    input_fn = fakes.make_input_fn(*data, batch_size=32)
    before = estimator.evaluate(input_fn)["loss"]
    estimator.train(input_fn)
    assert estimator.evaluate(input_fn)["loss"] < before
    moved = fakes.weights(tmp_path)
    for name, value in moved.items():
        assert np.isfinite(value).all(), name
        if "moving_mean" in name:
            assert np.abs(value).max() > 0


def test_central_storage_takes_what_is_assigned_to_trainable_variables(tmp_path, data):
    """By constraints, and by Nadam, whose product Keras makes a trainable variable."""

    def constrained():
        network = fakes.network()
        network.layers[0].kernel_constraint = keras.constraints.MaxNorm(0.5)
        return network

    def train(name, **options):
        estimator = fakes.make_estimator(
            tmp_path / name,
            network=constrained,
            optimizer=lambda: keras.optimizers.Nadam(0.01, epsilon=1e-3),
            devices=CPUS[:2] if options else CPUS[:1],
            **options,
        )
        estimator.train(fakes.make_input_fn(*data, batch_size=32), max_steps=3)
        return fakes.weights(tmp_path / name)

    two = train("two", train_distribute=strategies.central_storage)
    for key, value in train("one").items():
        np.testing.assert_allclose(two[key], value, 1e-5, 2e-6, err_msg=key)


def test_synchronized_batch_normalization_is_that_of_one_replica(tmp_path, data):
    """On parts that count alike, or none: see `replica_means.remarks`."""

    def train(name, devices):
        estimator = fakes.make_estimator(
            tmp_path / name,
            network=lambda: fakes.network(batch_norm=True, synchronized=True),
            devices=devices,
        )
        estimator.train(fakes.make_input_fn(*data, batch_size=32))
        return fakes.weights(tmp_path / name)

    two, one = train("two", CPUS[:2]), train("one", CPUS[:1])
    for key, value in one.items():
        np.testing.assert_allclose(two[key], value, 1e-5, 2e-6, err_msg=key)


MASK_KERNEL = "network/000/dense/kernel/.ATTRIBUTES/VARIABLE_VALUE"


@pytest.mark.parametrize("strategy", [None, strategies.central_storage])
def test_dropout_differs_between_replicas(tmp_path, strategy):
    masks = train_for_masks(tmp_path, 1, train_distribute=strategy)
    assert not np.array_equal(*masks)


def test_dropout_differs_between_replicas_after_a_restore(tmp_path):
    train_for_masks(tmp_path, 1)
    masks = train_for_masks(tmp_path, 2)
    assert not np.array_equal(*masks)


def test_dropout_differs_between_steps(tmp_path):
    first = train_for_masks(tmp_path, 1)
    assert not np.array_equal(first, train_for_masks(tmp_path, 2))


def train_for_masks(model_dir, max_steps, **config):
    """What one step drops on either replica, by a new Estimator."""
    estimator = fakes.make_estimator(
        model_dir,
        model_fn=mask_fn,
        network=mask_network,
        optimizer=lambda: keras.optimizers.SGD(1.0),
        devices=CPUS[:2],
        **config,
    )
    # Example i goes to replica i and picks row i of the kernel.
    input_fn = fakes.make_input_fn(
        np.eye(2, dtype=np.float32), batch_size=2, change=lambda d: d.repeat()
    )
    estimator.train(input_fn, max_steps=max_steps)
    before, after = (
        fakes.weights(model_dir, step)[MASK_KERNEL]
        for step in (max_steps - 1, max_steps)
    )
    return after != before
