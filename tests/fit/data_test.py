"""What `ge.fit` takes as data, against `keras.Model.fit`."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_test import Break, W, X, Y, data, difference, make_model

import gin_estimator as ge

TWO = ("CPU:0", "CPU:1")


def by_keras(*args, make=make_model, **options):
    model = make()
    return model, model.fit(*args, verbose=0, **options)


def assert_same(result, expected, atol=1e-5):
    model, history = expected
    assert difference(result.model, model) < atol
    assert result.history.keys() == history.history.keys()
    for name, values in history.history.items():
        assert result.history[name] == pytest.approx(values, abs=atol), name
    assert result.epoch == history.epoch
    for name in ("epochs", "steps"):
        assert result.params[name] == history.params[name]


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        rows = slice(32 * index, 32 * index + 32)
        return X[rows], Y[rows], W[rows]


class Inputs(Batches):
    """Yields arrays without labels."""

    def __getitem__(self, index):
        return super().__getitem__(index)[0]


class Adds(keras.layers.Dense):
    """Is its own loss."""

    def call(self, inputs):
        outputs = super().call(inputs)
        self.add_loss(keras.ops.mean(outputs**2))
        return outputs


def own_loss():
    model = keras.Sequential([Adds(1, kernel_initializer="ones")])
    model.compile("sgd")
    return model


@pytest.mark.parametrize("devices", [None, TWO])
def test_arrays_with_weights_and_a_split_are_those_of_keras(tmp_path, devices):
    options = {"batch_size": 16, "epochs": 3, "shuffle": False, "validation_split": 0.3}
    options |= {"sample_weight": W, "validation_batch_size": 8}
    config = ge.RunConfig(str(tmp_path), devices=devices)
    result = ge.fit(make_model, X.astype("float64"), Y, config=config, **options)
    assert_same(result, by_keras(X, Y, **options))
    page = result._repr_html_()
    assert page.count("<tr>") == 4 and page.count("<polyline") == 2 and "val_accuracy" in page


def two_inputs():
    keras.utils.set_random_seed(3)
    inputs = [keras.Input([2], name=name) for name in ("a", "b")]
    outputs = keras.layers.Dense(3, "softmax")(keras.layers.Concatenate()(inputs))
    model = keras.Model(inputs, outputs)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


KINDS = {
    "tensors": (make_model, lambda: (tf.constant(X), tf.constant(Y))),
    "a list of inputs": (two_inputs, lambda: ([X[:, :2], X[:, 2:]], Y)),
    "a dict of inputs": (two_inputs, lambda: ({"a": X[:, :2], "b": X[:, 2:]}, Y)),
    "a dataset": (make_model, lambda: (data(),)),
    "a PyDataset": (make_model, lambda: (Batches(),)),
    "a PyDataset of inputs alone": (own_loss, lambda: (Inputs(),)),
}


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_data_is_also_that_of_the_validation(tmp_path, name):
    make, given = KINDS[name]
    values = given()
    options = {"validation_data": values if len(values) > 1 else values[0], "shuffle": False}
    result = ge.fit(make, *values, epochs=2, config=ge.RunConfig(str(tmp_path)), **options)
    assert_same(result, by_keras(*given(), make=make, epochs=2, **options))


@pytest.mark.parametrize("kind", ["arrays", "a PyDataset"])
def test_each_epoch_has_the_rows_once_in_an_order_of_the_seed(tmp_path, kind):
    def make():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.layers.Dense(3, "softmax")])
        model.compile(keras.optimizers.SGD(0.0), "sparse_categorical_crossentropy")
        return model

    x = (X[:96], Y[:96]) if kind == "arrays" else (Thirds(),)

    def losses(name, **options):
        config = ge.RunConfig(str(tmp_path / name), tf_random_seed=options.pop("seed", 1))
        options |= {"steps_per_epoch": 1, "config": config}
        return np.array(ge.fit(make, *x, epochs=6, **options).history["loss"]).reshape(2, 3)

    found = losses("a")
    np.testing.assert_allclose(*found.mean(axis=1), rtol=1e-5)
    assert kind == "a PyDataset" or np.abs(found[0] - found[1]).max() > 1e-3
    np.testing.assert_array_equal(found, losses("b"))
    assert np.abs(found - losses("c", seed=2)).max() > 1e-3
    in_order = losses("d", shuffle=False)
    np.testing.assert_array_equal(*in_order)


class Thirds(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        rows = slice(32 * index, 32 * index + 32)
        return X[rows], Y[rows]


@pytest.mark.parametrize("step", [2, 6])
def test_a_training_that_was_interrupted_continues_in_the_same_order_on_any_devices(tmp_path, step):
    def fit(name, hooks=(), devices=None):
        config = ge.RunConfig(
            str(tmp_path / name), tf_random_seed=1, save_checkpoints_steps=1, devices=devices
        )
        options = {"epochs": 2, "validation_split": 0.1, "hooks": hooks, "config": config}
        return ge.fit(make_model, X, Y, **options)

    whole = fit("whole")
    with pytest.raises(KeyboardInterrupt):
        fit("broken", [Break(step)])
    again = fit("broken")
    assert difference(whole.model, again.model) == 0 and whole.history == again.history
    assert difference(whole.model, fit("two", devices=TWO).model) < 1e-5


class Shuffles(Thirds):
    """Counts its passes."""

    def __init__(self):
        super().__init__(workers=2)
        self.ends = 0

    def on_epoch_end(self):
        self.ends += 1


def test_on_epoch_end_of_a_py_dataset_follows_each_pass(tmp_path, caplog):
    batches = Shuffles()
    ge.fit(make_model, batches, epochs=3, config=ge.RunConfig(str(tmp_path)))
    assert batches.ends == 3
    assert "Shuffles.on_epoch_end may change the order" in caplog.text


class Calls(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.calls = []

    def on_epoch_begin(self, epoch, logs=None):
        self.calls.append(epoch)

    def on_epoch_end(self, epoch, logs=None):
        self.calls.append((epoch, sorted(logs), self.params["epochs"]))

    def on_test_end(self, logs=None):
        self.calls.append("test")


@pytest.mark.parametrize("initial_epoch", [0, 1])
def test_the_first_epoch_and_the_epochs_of_validations(tmp_path, initial_epoch):
    options = {"epochs": 6, "initial_epoch": initial_epoch, "validation_freq": 2}
    options |= {"validation_data": (X, Y), "shuffle": False}
    ours, theirs, rows = Calls(), Calls(), keras.callbacks.CSVLogger(tmp_path / "rows.csv")
    config = ge.RunConfig(str(tmp_path / "run"))
    with pytest.raises(KeyboardInterrupt):
        ge.fit(make_model, X, Y, hooks=[Break(13)], config=config, **options)
    result = ge.fit(make_model, X, Y, callbacks=[ours, rows], config=config, **options)
    model, history = by_keras(X, Y, callbacks=[theirs], **options)
    assert_same(result, (model, history))
    assert ours.calls and ours.calls == theirs.calls[-len(ours.calls) :]
    epochs = [line.partition(",")[0] for line in (tmp_path / "rows.csv").open()]
    assert epochs == ["epoch", *map(str, range(initial_epoch, 6))]


def test_each_validation_has_the_first_steps(tmp_path):
    given = {"validation_data": (X, Y), "validation_steps": 2, "shuffle": False}
    result = ge.fit(make_model, X, Y, epochs=2, config=ge.RunConfig(str(tmp_path)), **given)
    given = {"validation_data": (X[:64], Y[:64]), "shuffle": False}  # Keras takes the next ones.
    assert_same(result, by_keras(X, Y, epochs=2, **given))


def generator():
    yield X[:32], Y[:32]


def of_class(name, module):
    return type(name, (), {"__module__": module, "__iter__": lambda self: iter([])})()


SPARSE = tf.sparse.from_dense(X)
MISTAKES = {
    "nothing": ({"x": None}, "x is None: expected arrays, a dataset, or a function"),
    "a path": ({"x": "a.csv"}, "x is 'a.csv': expected arrays.*Set x=dataset"),
    "a generator": (
        {"x": generator()},
        r"read again from the beginning.*Set x=lambda: tf.data.Dataset.from_generator\(generator, "
        r"output_signature=\(tf.TensorSpec\(\[None, 4\], tf.float32\), "
        r"tf.TensorSpec\(\[None\], tf.int64\)\)\)",
    ),
    "a function of a generator": ({"x": generator}, r"from_generator\(generator, "),
    "torch": (
        {"x": of_class("DataLoader", "torch.utils.data.dataloader")},
        r"x is a DataLoader of torch.*from_generator\(lambda: ",
    ),
    "numbers": ({"x": [1.0, 2.0]}, r"x\[0\] is 1.0: expected an array.*np.array"),
    "sparse": ({"x": SPARSE, "y": Y}, "x is a sparse SparseTensor: expected a dense.*to_dense"),
    "a scalar": ({"x": np.float32(1), "y": Y}, "expected one row for each example"),
    "rows": ({"x": X, "y": Y[:96]}, "x has 97 rows, and y has 96: expected as many"),
    "labels of a dataset": ({"x": data(), "y": Y}, "y is given, and x is .*Leave y out"),
    "weights of a function": (
        {"sample_weight": W},
        "sample_weight is given, .*Leave sample_weight",
    ),
    "size of a dataset": ({"batch_size": 8}, "batch_size is given, and x is .*Leave batch_size"),
    "weights alone": ({"x": X, "sample_weight": W}, "sample_weight is given, and y is None"),
    "batch_size": ({"x": X, "y": Y, "batch_size": 0}, "batch_size is 0: expected an int > 0"),
    "shuffle": ({"x": X, "y": Y, "shuffle": "batch"}, "shuffle is 'batch': expected True or False"),
    "split": ({"validation_split": 1.5}, "validation_split is 1.5: expected a number from 0"),
    "split of a function": ({"validation_split": 0.1}, r"expected arrays.*dataset.take\(10\)"),
    "split of few": ({"x": X[:1], "y": Y[:1], "validation_split": 0.5}, "0.5 of 1 rows"),
    "validation": ({"validation_data": (X, Y, W, W)}, "validation_data has 4 entries"),
    "size of validation": ({"validation_batch_size": 8}, "validation_data is None"),
    "verbose": ({"verbose": 3}, "verbose is 3: expected 'auto', 0, 1 or 2"),
    "initial_epoch": ({"initial_epoch": 1}, "initial_epoch is 1: expected an int from 0 to 0"),
    "freq": ({"validation_freq": [1, 2]}, r"validation_freq is \[1, 2\]: expected an int"),
    "hooks": ({"hooks": [print]}, "hooks is .*expected a list of Hook"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_cannot_be_is_refused_with_the_line_to_write(name, tmp_path):
    given, message = MISTAKES[name]
    with pytest.raises(ge.UserError, match=message):
        ge.fit(**{"make_model": make_model, "x": data, **given})


def test_a_dataset_that_shuffles_has_an_order_of_this_process(tmp_path, caplog, monkeypatch):
    ge.fit(make_model, data().shuffle(9), config=ge.RunConfig(str(tmp_path)))
    assert "Set x=input_fn, a function that makes and returns the dataset" in caplog.text
    cluster = '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}}'
    monkeypatch.setenv("TF_CONFIG", cluster)
    config = ge.RunConfig(str(tmp_path / "two"), execution="multi_worker")
    with pytest.raises(ge.errors.UserValueError, match="x is a dataset with shuffle.*2 processes"):
        ge.fit(make_model, data().shuffle(9), config=config)
