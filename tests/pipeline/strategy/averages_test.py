"""Averages in a training: their numbers on each strategy, and in checkpoints."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.strategy import averages
from tests import fakes

EMA, SWA = ge.ExponentialAverage, ge.StochasticWeightAverage
X, Y = fakes.classification_data(rows=64)
TRAIN = fakes.make_input_fn(X, Y, batch_size=8, change=lambda d: d.repeat())
STEPS = 4


def make(model_dir, average=None, **options):
    defaults = {"network": lambda: fakes.network(batch_norm=True, dropout=0.5)}
    config = {"save_checkpoints_steps": 1, "average": average}
    return fakes.make_estimator(model_dir, **{**defaults, **config, **options})


def named(model_dir, step=None):
    """The values of a checkpoint by name."""
    found = {}
    for key, value in fakes.weights(model_dir, step).items():
        module, _, *rest = key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE").split("/")
        found["/".join([module, *rest])] = value
    return found


def of_averages(model_dir, kind="ema", step=None):
    """The averages of a checkpoint, by their variables' names."""
    prefix = f"driver/{kind}/"
    values = named(model_dir, step).items()
    return {n.removeprefix(prefix): v for n, v in values if n.startswith(prefix)}


def by_hand(settings, history):
    """The average of the weights after steps 1, 2, ... in NumPy."""
    if isinstance(settings, SWA):
        return np.mean(history[settings.start_step + 1 :: 1], 0)
    moment = 0.0
    for value in history[1:]:
        moment = settings.decay * moment + (1 - settings.decay) * value
    return moment / (1 - settings.decay ** (len(history) - 1))


def assert_averages(model_dir, settings, *, num_steps, tolerance=1e-6):
    values = [named(model_dir, step) for step in range(STEPS + 1)]
    found = of_averages(model_dir, settings.kind)
    assert sorted(found) == sorted(
        name
        for name, value in values[-1].items()
        if name.startswith("network/") and value.dtype == np.float32
    )
    assert "network/batch_normalization/moving_mean" in found
    for name, average in found.items():
        history = [value[name].astype(np.float64) for value in values]
        expected = by_hand(settings, history)
        np.testing.assert_allclose(average, expected, 0, tolerance, err_msg=name)
        assert np.abs(average - history[-1]).max() > 10 * tolerance
    assert values[-1][f"driver/{settings.kind}_steps"] == num_steps


@pytest.mark.parametrize(
    ("settings", "options", "num_steps"),
    [
        (EMA(0.9), {}, 4),
        (EMA(0.9), {"run_eagerly": True}, 4),
        (EMA(0.9), {"precision": "mixed_bfloat16"}, 4),
        (EMA(0.9), {"gradient_accumulation_steps": 2}, 4),
        (SWA(2), {}, 2),
    ],
    ids=["ema", "eager", "bfloat16", "accumulated", "swa"],
)
def test_it_is_the_average_of_the_weights_after_each_step(
    settings, options, num_steps, tmp_path
):
    make(tmp_path, settings, **options).train(TRAIN, max_steps=STEPS)
    assert_averages(tmp_path, settings, num_steps=num_steps)


def test_it_is_that_on_two_replicas(mirrored_by_hand, tmp_path):
    estimator = make(tmp_path, EMA(0.9), train_distribute=mirrored_by_hand)
    estimator.train(TRAIN, max_steps=STEPS)
    assert_averages(tmp_path, EMA(0.9), num_steps=4)


def test_it_is_that_in_central_storage(tmp_path):
    central = tf.distribute.experimental.CentralStorageStrategy(["/CPU:0", "/CPU:1"])
    make(tmp_path, EMA(0.9), train_distribute=central).train(TRAIN, max_steps=STEPS)
    assert_averages(tmp_path, EMA(0.9), num_steps=4)


def test_it_is_that_of_keras_where_it_is_not_debiased(tmp_path):
    def with_ema():
        return fakes.adam(use_ema=True, ema_momentum=0.9)

    make(tmp_path / "keras", optimizer=with_ema).train(TRAIN, max_steps=STEPS)
    make(tmp_path / "own", EMA(0.9, debias=False)).train(TRAIN, max_steps=STEPS)
    theirs = {
        name.removeprefix("optimizer/").partition("/")[2]: value
        for name, value in named(tmp_path / "keras").items()
        if "average" in name
    }
    own = of_averages(tmp_path / "own")
    assert len(theirs) == 6
    for name, value in theirs.items():
        np.testing.assert_allclose(own[name], value, 0, 1e-6, err_msg=name)


def test_a_mean_of_every_second_step_after_a_start(tmp_path):
    make(tmp_path, SWA(0, every=2)).train(TRAIN, max_steps=STEPS)
    name = "network/dense/kernel"
    expected = np.mean([named(tmp_path, step)[name] for step in (2, 4)], 0)
    actual = of_averages(tmp_path, "swa")[name]
    np.testing.assert_allclose(actual, expected, 0, 1e-6)


def test_it_goes_on_where_a_run_was_broken_off(tmp_path):
    for name, parts in {"straight": [STEPS], "parts": [1, STEPS]}.items():
        for step in parts:
            make(tmp_path / name, EMA(0.9, every=2)).train(TRAIN, max_steps=step)
    straight, parts = (fakes.weights(tmp_path / n) for n in ("straight", "parts"))
    assert sorted(straight) == sorted(parts)
    for key, value in straight.items():
        np.testing.assert_array_equal(parts[key], value, err_msg=key)


def test_training_does_not_know_of_it(tmp_path):
    """The weights are the same without; and without nothing of it is saved."""
    make(tmp_path / "with", EMA()).train(TRAIN, max_steps=2)
    make(tmp_path / "without").train(TRAIN, max_steps=2)
    own, plain = named(tmp_path / "with"), named(tmp_path / "without")
    extra = {name for name in own if name.startswith("driver/ema")}
    assert own.keys() - plain.keys() == extra
    for name, value in plain.items():
        np.testing.assert_array_equal(own[name], value, err_msg=name)


def test_modules_of_which_some_are_averaged(tmp_path):
    settings = EMA(modules=["network/dense_1/.*"])
    make(tmp_path, settings).train(TRAIN, max_steps=1)
    names = {"network/dense_1/kernel", "network/dense_1/bias"}
    assert set(of_averages(tmp_path)) == names


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (EMA(modules="generator"), "'generator', which chooses no variable of floats"),
        (EMA(modules="netwrk"), r"of \['network'\], or .* Did you mean network\?"),
        (EMA(modules=["network", "optimizer"]), "'optimizer', which chooses optimiz"),
    ],
)
def test_what_chooses_nothing_is_refused(settings, text, tmp_path):
    with pytest.raises(ge.SpecError, match=text):
        make(tmp_path, settings).train(TRAIN, max_steps=1)


def test_a_second_average_by_the_optimizer_is_refused(tmp_path):
    def optimizer():
        return keras.optimizers.SGD(use_ema=True)

    with pytest.raises(ge.SpecError, match="two averages: leave use_ema out"):
        make(tmp_path, EMA(), optimizer=optimizer).train(TRAIN, max_steps=1)


def overflowing_fn(features, labels, mode, network, optimizer, step):
    """The gradient of step 3 is not finite, and its loss is."""
    w = network
    root = tf.sqrt(tf.square(w) * tf.where(tf.equal(step, 2), 0.0, 1.0))
    return ge.EstimatorSpec(
        mode,
        loss=tf.reduce_mean(root + tf.square(w)),
        train_op=ge.TrainOp(optimizer, [w]),
    )


def turns_fn(features, labels, mode, network, optimizer):
    """Updates in steps 2 and 4 alone."""
    return ge.EstimatorSpec(
        mode,
        loss=tf.reduce_mean(tf.square(network)),
        train_op=ge.TrainOp(optimizer, [network], every=2),
    )


@pytest.mark.parametrize(
    ("model_fn", "precision", "steps"),
    [
        (overflowing_fn, "mixed_float16", (1, 2, 4)),
        (turns_fn, "float32", (2, 4)),
    ],
    ids=["overflow", "turns"],
)
def test_a_step_that_updates_nothing_counts_for_nothing(
    model_fn, precision, steps, tmp_path
):
    estimator = make(
        tmp_path,
        SWA(0),
        model_fn=model_fn,
        network=lambda: tf.Variable(2.0),
        optimizer=lambda: keras.optimizers.SGD(0.1),
        precision=precision,
    )
    estimator.train(TRAIN, max_steps=STEPS)
    last = named(tmp_path)
    assert last["driver/swa_steps"] == len(steps)
    expected = np.mean([named(tmp_path, step)["network"] for step in steps])
    assert last["driver/swa/network"] == pytest.approx(expected, rel=1e-6)


# Other checkpoints.


def test_a_checkpoint_without_averages_begins_them(tmp_path, log):
    make(tmp_path).train(TRAIN, max_steps=3)
    make(tmp_path, EMA(0.9)).train(TRAIN, max_steps=4)
    assert any("lacks 9 of the 9 values of this run's averages" in m for m in log())
    last = named(tmp_path)
    assert last["driver/ema_steps"] == 1
    for name, value in of_averages(tmp_path).items():
        np.testing.assert_array_equal(value, last[name], err_msg=name)


def test_averages_that_a_run_does_not_keep_are_told(tmp_path, log):
    make(tmp_path, EMA()).train(TRAIN, max_steps=1)
    make(tmp_path).train(TRAIN, max_steps=2)
    (line,) = [m for m in log() if "averages (ExponentialAverage) of 8 variables" in m]
    assert "write RunConfig(average=ExponentialAverage(...))" in line
    assert not of_averages(tmp_path)


def test_another_kind_or_choice_begins_anew(tmp_path, log):
    make(tmp_path, EMA()).train(TRAIN, max_steps=2)
    make(tmp_path, SWA(0)).train(TRAIN, max_steps=3)
    assert named(tmp_path)["driver/swa_steps"] == 1
    assert sum("that this run keeps none of" in m for m in log()) == 1
    make(tmp_path, SWA(0, modules="network/dense/.*")).train(TRAIN, max_steps=5)
    assert named(tmp_path)["driver/swa_steps"] == 3
    make(tmp_path, SWA(0)).train(TRAIN, max_steps=6)
    assert named(tmp_path)["driver/swa_steps"] == 1
    assert any("lacks 6 of the 9 values" in m for m in log())


def test_a_warm_start_from_the_average(tmp_path, log):
    make(tmp_path / "a", EMA(0.9)).train(TRAIN, max_steps=STEPS)
    # With a rate of 0 only the moving statistics change: they are estimated anew.
    other = ge.Estimator(
        fakes.classifier_fn,
        modules={
            "network": lambda: fakes.network(batch_norm=True, dropout=0.5),
            "optimizer": lambda: keras.optimizers.SGD(0.0),
        },
        config=make(tmp_path / "b").config,
        warm_start_from=ge.WarmStartSettings(str(tmp_path / "a"), weights="average"),
    )
    other.train(TRAIN, max_steps=1)
    first, last = named(tmp_path / "b", 0), named(tmp_path / "b", 1)
    for name, value in of_averages(tmp_path / "a").items():
        np.testing.assert_array_equal(first[name], value, err_msg=name)
        assert np.array_equal(last[name], value) == ("/moving_" not in name)
    assert any("driver/ema/network/dense/kernel" in message for message in log())


def test_a_warm_start_from_an_average_that_is_not_there(tmp_path):
    plain = make(tmp_path / "a").train(TRAIN, max_steps=1)
    settings = ge.WarmStartSettings(plain.model_dir, weights="average")
    other = ge.Estimator(
        fakes.classifier_fn,
        modules={"network": fakes.network, "optimizer": fakes.adam},
        config=plain.config.replace(model_dir=str(tmp_path / "b")),
        warm_start_from=settings,
    )
    with pytest.raises(ge.RefusedValueError, match="holds none: it was trained with"):
        other.train(TRAIN, max_steps=1)
    with pytest.raises(ge.RefusedValueError, match="write 'live' or 'average'"):
        ge.WarmStartSettings("runs/1", weights="ema")


class OnAGPU:
    """A variable that says so, to be moved as one is there."""

    device = "/device:GPU:0"

    def __init__(self, variable):
        self.variable, self.handle = variable, variable.handle

    def __tf_tensor__(self, dtype=None, name=None):
        return self.variable.read_value()


@pytest.mark.parametrize("where", [lambda v: v, OnAGPU], ids=["CPU", "GPU"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_average_moves_by_its_share(dtype, where):
    rng = np.random.default_rng(1)
    weights = rng.normal(size=[3000, 20]).astype(dtype)
    average = tf.Variable(tf.zeros([20], dtype))
    shares = np.maximum(1 / (1.0 + np.arange(len(weights))), 1e-3)

    @tf.function
    def move(first, last):
        for number in tf.range(first, last):
            mover = averages._mover(tf.constant(shares)[number], average.dtype)
            mover(where(average), tf.constant(weights)[number])

    move(tf.constant(0), tf.constant(1))
    np.testing.assert_array_equal(average, weights[0])
    move(tf.constant(1), tf.constant(len(weights)))
    exact = np.zeros([20])
    for share, row in zip(shares, weights, strict=True):
        exact += share * (row - exact)
    np.testing.assert_allclose(
        average, exact, atol=2e-6 if dtype == "float32" else 1e-12
    )
