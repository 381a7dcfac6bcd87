"""Every strategy does the same: strategy x input_fn x mode against one replica.

A thousand examples in global batches of 32, so that the last one is ragged: with the
batches of replicas it holds 8 of them for the first replica and none for the others.
One replica on TensorFlow's default strategy is the measure, itself measured against a
training loop written out by hand.
"""

import dataclasses
import functools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from tests import clusters, fakes

EPOCHS = 2
STEPS_AN_EPOCH = 32
CPUS = ("CPU:0", "CPU:1", "CPU:2", "CPU:3")

STRATEGIES = {
    "default": {},
    "one_device": {"devices": CPUS[:1]},
    "mirrored_1": {"train_distribute": "one replica by hand"},
    "mirrored_2": {"devices": CPUS[:2]},
    "mirrored_2_by_hand": {"train_distribute": "two replicas by hand"},
    "mirrored_4": {"devices": CPUS},
    "central_2": {"train_distribute": "central storage"},
}
# Processes, and what they run. TensorFlow gives a process one replica on CPUs; the last
# have two, see the script.
CLUSTERS = {
    "multi_worker_1": (1, "conformance"),
    "multi_worker_2": (2, "conformance"),
    "multi_worker_2x2": (2, "conformance_two_each"),
}
ACCUMULATING = {
    "accumulated": {"gradient_accumulation_steps": 4},
    "accumulated_mirrored_2": {"gradient_accumulation_steps": 4, "devices": CPUS[:2]},
}
ALL = {**STRATEGIES, **ACCUMULATING, **CLUSTERS}

each_strategy = pytest.mark.parametrize("name", [*STRATEGIES, *CLUSTERS])
each_input = pytest.mark.parametrize(
    "per_replica", [False, True], ids=["split", "per_replica"]
)


@dataclasses.dataclass
class Case:
    """A trained Estimator, and what its hook saw at the end of each epoch."""

    estimator: ge.Estimator
    recorder: fakes.Recorder

    @property
    def model_dir(self):
        return self.estimator.model_dir

    @property
    def weights(self):
        return fakes.weights(self.model_dir)

    @property
    def recorded(self):
        return self.recorder.values

    def evaluate(self, data, per_replica=False):
        input_fn = fakes.make_input_fn(*data, batch_size=32, per_replica=per_replica)
        return self.estimator.evaluate(input_fn)

    def logits(self, data, per_replica=False, checkpoint_path=None):
        """The predictions for all the data, in order."""
        predictions = self.estimator.predict(
            fakes.make_input_fn(data[0], batch_size=32, per_replica=per_replica),
            predict_keys="logits",
            checkpoint_path=checkpoint_path,
        )
        return np.array([each["logits"] for each in predictions])

    def export(self, folder, width):
        spec = tf.TensorSpec([None, width])
        return self.estimator.export_saved_model(
            str(folder), ge.build_raw_serving_input_receiver_fn(spec)
        )


class ClusterCase:
    """The same of a cluster of processes, which did it all before; see its script."""

    def __init__(self, folder, kind, tasks):
        self.model_dir = str(folder / kind)
        self.weights = fakes.weights(self.model_dir)
        results = [task.result for task in tasks]
        self.recorded = results[0][kind]["recorded"]
        self._mine = [result[kind] for result in results]
        self._restored = [result["restored"] for result in results]
        self._exported = results[0]["exported"]

    def evaluate(self, data, per_replica=False):
        first, *others = [mine["evaluated"] for mine in self._mine]
        assert all(other == first for other in others)
        return dict(first)

    def logits(self, data, per_replica=False, checkpoint_path=None):
        """Each process predicts everything."""
        given = [mine["logits"] for mine in self._mine]
        if checkpoint_path is not None:
            given = [restored[checkpoint_path] for restored in self._restored]
        assert all(each == given[0] for each in given)
        return np.array(given[0])

    def export(self, folder, width):
        return self._exported


@pytest.fixture(scope="module")
def data():
    return fakes.classification_data()


@pytest.fixture(scope="module")
def config_of(mirrored_by_hand):
    """RunConfig's fields of a strategy by name."""
    by_hand = {
        "one replica by hand": tf.distribute.MirroredStrategy(["CPU:0"]),
        "two replicas by hand": mirrored_by_hand,
        "central storage": tf.distribute.experimental.CentralStorageStrategy(
            ["/CPU:0", "/CPU:1"]
        ),
    }

    def config(name):
        fields = ALL[name]
        return {key: by_hand.get(value, value) for key, value in fields.items()}

    return config


@pytest.fixture(scope="module")
def trained(data, config_of, tmp_path_factory):
    """`trained(strategy, per_replica, **options of train)`, each made once."""
    cases, clusters_run = {}, {}

    def cluster(name, per_replica=False):
        """One cluster a number of processes does everything that there is to test."""
        if name not in clusters_run:
            folder = tmp_path_factory.mktemp(name)
            paths = [saved_by(get(source, True)) for source in sources_of(name)]
            (folder / "others.json").write_text(json.dumps(paths))
            workers, scenario = CLUSTERS[name]
            tasks = clusters.run("conformance.py", scenario, folder, workers=workers)
            clusters_run[name] = folder, tasks
        folder, tasks = clusters_run[name]
        return ClusterCase(folder, "per_replica" if per_replica else "split", tasks)

    def train(
        name, per_replica=False, *, clipping="train_op", batch_size=32, epochs=EPOCHS
    ):
        if name in ACCUMULATING:
            batch_size //= 4
        options = {"global_clipnorm": 0.2} if clipping == "optimizer" else {}
        estimator = fakes.make_estimator(
            tmp_path_factory.mktemp(name),
            network=lambda: fakes.network(l2=0.01),
            optimizer=lambda: fakes.adam(**options),
            params={"clip_norm": 0.2 if clipping == "train_op" else None},
            **config_of(name),
        )
        recorder = fakes.Recorder()
        input_fn = fakes.make_input_fn(
            *data, batch_size=batch_size, per_replica=per_replica
        )
        for _ in range(epochs):
            estimator.train(input_fn, hooks=[recorder])
        return Case(estimator, recorder)

    def get(*key, **kwargs):
        key = (*key, *kwargs.items())
        if key not in cases:
            make = cluster if key[0] in CLUSTERS else train
            cases[key] = make(*key[: len(key) - len(kwargs)], **kwargs)
        return cases[key]

    return get


def sources_of(name):
    """Whose checkpoints it restores; of the clusters, one has to come first."""
    return [*STRATEGIES, *(c for c in CLUSTERS if c > name and name in CLUSTERS)]


def saved_by(case):
    """The checkpoint of the first epoch."""
    return f"{case.model_dir}/model.ckpt-{STEPS_AN_EPOCH}"


@pytest.fixture(scope="module")
def reference(trained):
    return trained("default", False)


@pytest.fixture(scope="module")
def logits(trained, data):
    """`logits(strategy, per_replica, path)`: predictions, each made once."""
    return functools.cache(
        lambda name, per_replica=False, path=None: trained(name, per_replica).logits(
            data, per_replica, checkpoint_path=path
        )
    )


@pytest.fixture(scope="module")
def reference_metrics(reference, data):
    return reference.evaluate(data)


def assert_same_values(actual, expected):
    """Every variable, the optimizer's and the driver's too."""
    assert sorted(actual) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, 1e-5, 2e-6, err_msg=name)


# Training.


def test_one_replica_is_the_plain_loop(reference, data):
    network, optimizer = fakes.network(l2=0.01), fakes.adam()
    network(data[0][:1])
    for variable in network.trainable_variables:
        initial = fakes.initial_value(reference.estimator.model_dir, variable)
        variable.assign(initial)
    batches = tf.data.Dataset.from_tensor_slices(data).batch(32).repeat(EPOCHS)
    for x, y in batches:
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(y, network(x), True)
            loss = tf.reduce_mean(losses) + sum(network.losses)
        gradients = tape.gradient(loss, [v.value for v in network.trainable_variables])
        gradients, _ = tf.clip_by_global_norm(gradients, 0.2)
        optimizer.apply(gradients, network.trainable_variables)
    for index, variable in enumerate(network.trainable_variables):
        name = ("dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias")[index]
        value = reference.estimator.get_variable_value(f"network/{name}")
        np.testing.assert_allclose(value, variable, 1e-5, 2e-6, err_msg=name)


@each_input
@pytest.mark.parametrize("name", ALL)
def test_trains_to_the_same_weights(trained, reference, name, per_replica):
    assert_same_values(trained(name, per_replica).weights, reference.weights)


@each_input
@pytest.mark.parametrize("name", ALL)
def test_reports_the_same_losses(trained, reference, name, per_replica):
    reported = [v["loss"] for v in trained(name, per_replica).recorded]
    expected = [v["loss"] for v in reference.recorded]
    np.testing.assert_allclose(reported, expected, 1e-5)


@each_input
@pytest.mark.parametrize("name", ALL)
def test_counts_every_training_example_once(trained, name, per_replica):
    recorded = trained(name, per_replica).recorded
    assert [v["examples"] for v in recorded] == [1000.0] * EPOCHS


@each_input
@pytest.mark.parametrize("name", ALL)
def test_counts_the_same_hits_while_training(trained, reference, name, per_replica):
    reported = [v["accuracy"] for v in trained(name, per_replica).recorded]
    assert reported == [v["accuracy"] for v in reference.recorded]


# Of 48, the last has 40 examples: 24 and 16, or three times 12 and 4. Of 37, each is
# split unequally.
@pytest.mark.parametrize(
    ("name", "per_replica", "batch_size"),
    [
        ("mirrored_2", True, 48),
        ("mirrored_4", True, 48),
        ("accumulated", True, 48),
        ("accumulated_mirrored_2", True, 48),
        ("mirrored_2", False, 37),
        ("mirrored_4", False, 37),
    ],
)
def test_unequal_batches_count_for_what_they_hold(
    trained, name, per_replica, batch_size
):
    actual = trained(name, per_replica, batch_size=batch_size, epochs=1)
    expected = trained("default", batch_size=batch_size, epochs=1)
    assert_same_values(actual.weights, expected.weights)


@pytest.mark.parametrize("name", ["mirrored_2", "mirrored_4", "accumulated"])
def test_the_optimizer_clips_the_whole_gradient(trained, name):
    actual = trained(name, True, clipping="optimizer", epochs=1)
    expected = trained("default", clipping="optimizer", epochs=1)
    assert_same_values(actual.weights, expected.weights)


def test_clipping_tells(trained, reference):
    free = trained("default", clipping=None).estimator
    name = "network/dense/kernel"
    before = reference.estimator.get_variable_value(name)
    assert np.abs(before - free.get_variable_value(name)).max() > 0.01


# The other modes, in each strategy.


@each_input
@each_strategy
def test_evaluates_alike(trained, reference_metrics, data, name, per_replica):
    actual = trained(name, per_replica).evaluate(data, per_replica)
    expected = dict(reference_metrics)
    assert actual.pop("loss") == pytest.approx(expected.pop("loss"), rel=1e-5)
    steps = EPOCHS * STEPS_AN_EPOCH
    assert actual == {**expected, "examples": 1000, "global_step": steps}


@each_input
@each_strategy
def test_predicts_alike_and_in_order(logits, name, per_replica):
    actual = logits(name, per_replica)
    np.testing.assert_allclose(actual, logits("default"), 1e-4, 1e-5)


@each_strategy
def test_exports_alike(trained, logits, data, name, tmp_path):
    path = trained(name, True).export(tmp_path, width=6)
    serve = tf.saved_model.load(path).signatures["serving_default"]
    served = serve(features=tf.constant(data[0]))["logits"]
    np.testing.assert_allclose(served, logits("default"), 1e-4, 1e-5)


RESTORES = [
    *((source, name) for name in STRATEGIES for source in [*STRATEGIES, *CLUSTERS]),
    *((source, name) for name in CLUSTERS for source in sources_of(name)),
]


@pytest.mark.parametrize(("source", "name"), RESTORES)
def test_restores_what_another_saved(trained, logits, name, source):
    path = saved_by(trained(source, True))
    restored = logits(name, True, path)
    np.testing.assert_allclose(restored, logits("default", True, path), 1e-5, 1e-6)
    # And it is the other checkpoint, not the one that is trained further.
    assert np.abs(restored - logits(name, True)).max() > 0.1


def test_two_workers_restore_what_one_saved(trained, logits, tmp_path):
    """A pair that `sources_of` leaves out, by a cluster of its own."""
    path = saved_by(trained("multi_worker_1", True))
    (tmp_path / "others.json").write_text(json.dumps([path]))
    expected = logits("default", True, path)
    for task in clusters.run("conformance.py", "restores", tmp_path, workers=2):
        np.testing.assert_allclose(task.result[path], expected, 1e-5, 1e-6)


@pytest.mark.parametrize(
    ("source", "name", "per_replica"),
    [
        ("default", "mirrored_4", True),
        ("mirrored_2", "default", False),
        ("default", "accumulated", True),
        ("default", "accumulated", False),
    ],
)
def test_goes_on_where_another_stopped(
    data, config_of, reference, tmp_path, source, name, per_replica
):
    def train(strategy, steps):
        size = 8 if strategy in ACCUMULATING else 32
        input_fn = fakes.make_input_fn(*data, batch_size=size, per_replica=per_replica)
        fakes.make_estimator(
            tmp_path,
            network=lambda: fakes.network(l2=0.01),
            params={"clip_norm": 0.2},
            **config_of(strategy),
        ).train(input_fn, max_steps=steps)

    train(source, 10)
    train(name, STEPS_AN_EPOCH)
    assert_same_values(
        fakes.weights(tmp_path, STEPS_AN_EPOCH),
        fakes.weights(reference.estimator.model_dir, STEPS_AN_EPOCH),
    )
