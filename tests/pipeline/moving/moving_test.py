"""`python -m pipeline.moving`: what it says of programs, and what it writes."""

import ast
import json
import re
import textwrap

import keras
import pytest
import tensorflow as tf

from pipeline.moving import __main__ as command
from pipeline.moving import findings, job, origins, report, table
from pipeline.process.refusals import RefusedValueError
from tests.sources import ROOT

IMPORTS = {
    "plain": "import tensorflow as tf\ne = tf.estimator",
    "version one": "import tensorflow.compat.v1 as tf\ne = tf.estimator",
    "from": "from tensorflow import estimator as e",
    "from compat": "from tensorflow.compat.v1 import estimator as e",
    "whole": "import tensorflow\ne = tensorflow.estimator",
    "module": "import tensorflow.estimator as e",
    "package": "import tensorflow_estimator as te\ne = te.estimator",
    "private": "from tensorflow.python.estimator import estimator as e",
    "twice": "import tensorflow as tf\nt = tf\ne = t.estimator",
    "tried": "try:\n    import tensorflow.compat.v1 as tf\n"
    "except ImportError:\n    import tensorflow as tf\ne = tf.estimator",
}


def moved(text, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return job.of_file(str(path))


def kinds(made):
    return {f.name: report.kind(f, made.move) for f in made.move.found}


def code(made):
    """What was written, without the marks and what was imported."""
    text = made.move.text.decode()
    assert ast.parse(text)
    return re.sub(r"(?m)^ *# MOVING: .*\n|^import (pipeline as ge|keras)\n", "", text)


@pytest.mark.parametrize("kind", IMPORTS)
def test_a_name_is_known_however_it_is_imported(kind, tmp_path):
    made = moved(f"{IMPORTS[kind]}\nx = e.Estimator(f)\n", tmp_path)
    assert "x = ge.Estimator(f)" in code(made)
    assert "needs a decision" in kinds(made).values()
    assert any("modules=" in line for line in made.lines)


def test_what_a_local_hides_is_left_alone(tmp_path):
    text = """
        import tensorflow as tf
        def f(tf):
            return tf.estimator.Estimator(1)
        def g():
            tf = other()
            return tf.layers.dense(1)
        class A:
            estimator = 1
            def h(self):
                return self.estimator.ModeKeys
        """
    made = moved(text, tmp_path)
    assert not made.move.found
    assert made.move.text.decode() == textwrap.dedent(text)


def test_a_name_of_two_meanings_is_marked(tmp_path):
    text = (
        "import tensorflow as tf\nif a:\n    tf = other\ntf.estimator.ModeKeys.EVAL\n"
    )
    made = moved(text, tmp_path)
    assert kinds(made) == {"tf.estimator.ModeKeys.EVAL": "needs a decision"}
    assert "depends on the way" in made.move.text.decode()


SAME = {
    "import tensorflow as tf": "import tensorflow.compat.v1 as tf",
    "mode == tf.estimator.ModeKeys.TRAIN  # Why.": "mode == ge.ModeKeys.TRAIN  # Why.",
    "tf.estimator.EvalSpec(f)": "ge.EvalSpec(f, steps=100, throttle_secs=600)",
    "tf.estimator.EvalSpec(f, 5, throttle_secs=1)": "ge.EvalSpec(f, 5, "
    "throttle_secs=1)",
    "tf.estimator.EvalSpec(f, steps=None)": "ge.EvalSpec(f, steps=None, "
    "throttle_secs=600)",
    "tf.estimator.EvalSpec(\n    f,\n    name='a',\n)": "ge.EvalSpec(\n    f,\n"
    "    name='a',\n    steps=100,\n    throttle_secs=600,\n)",
    "tf.estimator.EvalSpec(\n    f,  # F.\n    steps=1  # S.\n)": "ge.EvalSpec(\n"
    "    f,  # F.\n    steps=1, throttle_secs=600  # S.\n)",
    "mode = tf.estimator.ModeKeys.EVAL\nf(mode)": "mode = ge.ModeKeys.EVAL\nf(mode)",
    "tf.estimator.EstimatorSpec(mode, p)": "ge.EstimatorSpec(mode, p)",
    "(tf.estimator\n .ModeKeys.EVAL)": "(ge.ModeKeys.EVAL)",
    "tf.estimator.RunConfig(model_dir='a')": "ge.RunConfig(model_dir='a')",
    "isinstance(s, tf.estimator.EstimatorSpec)": "isinstance(s, ge.EstimatorSpec)",
    "def input_fn():\n    return d.make_one_shot_iterator().get_next()": "def "
    "input_fn():\n    return d",
    "def input_fn():\n    return tf.data.make_one_shot_iterator(d).get_next()": "def "
    "input_fn():\n    return d",
}


@pytest.mark.parametrize("before", SAME)
def test_what_means_the_same_is_written(before, tmp_path):
    head = "" if before.startswith("import") else "import tensorflow as tf\n"
    tail = "tf.logging.info(1)\n"
    made = moved(f"{head}{before}\n{tail}", tmp_path)
    wanted = f"{SAME[before]}\n"
    head = "import tensorflow.compat.v1 as tf\n" if head else ""
    assert code(made) == f"{head}{wanted}{tail}"
    assert set(kinds(made).values()) == {"mechanical"}
    assert "# MOVING" not in made.move.text.decode()


MARKED = {
    "tf.estimator.RunConfig('a')": "by name",
    "tf.estimator.RunConfig(session_config=None)": "there are no sessions",
    "tf.estimator.RunConfig().replace(session_config=c)": "there are no sessions",
    "tf.estimator.RunConfig(train_distribute=s)": "of all replicas together",
    "tf.estimator.RunConfig(**options)": "made elsewhere",
    "make = tf.estimator.RunConfig": "called elsewhere",
    "if (e := tf.estimator): pass": "is not followed",
    "e = tf.estimator\ne = 1": "is not followed",
    "class E(tf.estimator.Estimator): pass": "what the subclass overrides",
    "tf.estimator.EstimatorSpec(mode, loss=x)": "the mean over this replica's batch",
    "tf.estimator.EstimatorSpec(mode, p, x)": "by name",
    "tf.estimator.EstimatorSpec(mode, train_op=t)": "ge.TrainOp(optimizer",
    "tf.estimator.EstimatorSpec(mode, p, training_hooks=[h])": "hooks watch the loop",
    "tf.estimator.export.ServingInputReceiver(f, t)": "receiver_specs={",
    "tf.estimator.BestExporter('a', f, as_text=True)": "as_text: leave it out",
    "tf.estimator.tpu.TPUEstimator(f, use_tpu=True)": "execution='tpu'",
    "tf.contrib.learn.ModeKeys.INFER": "ge.ModeKeys.PREDICT",
    "def f():\n    return d.make_one_shot_iterator().get_next()": "the dataset itself",
    "x = iterator.get_next()": "the dataset itself",
    "sess.run(x)": "there are no sessions",
    "op = optimizer.minimize(loss)": "ge.TrainOp(optimizer",
    "a = tf.metrics.accuracy(y, p)\nb = a[1]": "keras.metrics.Accuracy",
    "m = {'a': tf.metrics.accuracy(y, p)}": "keras.metrics.Accuracy",
    "tf.losses.log_loss(y, p)": "1e-7",
    "tf.losses.log_loss(y, p, w)": "loss=weights * loss",
    "tf.losses.huber_loss(y, p, weights=w)": "loss=weights * loss",
    "a = tf.metrics.auc(y, p, weights=w)": "sample_weight=weights",
    "tf.feature_column.numeric_column('x', shape=[4])": "a feature for each",
    "from tensorflow.contrib import slim": "this import fails",
    "from tensorflow import *": "nothing says which they are",
    "import compat as c\nc.v1.train.Saver()": "another module brings it",
    "tf.estimator.Nonesuch": "no row of the table knows it",
    "tf.estimator.experimental.KMeans()": "clustering is not here",
}


@pytest.mark.parametrize("line", MARKED)
def test_what_is_not_certain_is_marked(line, tmp_path):
    made = moved(f"import tensorflow as tf\n{line}\n", tmp_path)
    text = made.move.text.decode()
    comments = " ".join(re.findall(r"# MOVING: +(.*)", text))
    assert MARKED[line] in comments
    assert code(made).count("\n") == line.count("\n") + 2
    assert {report.kind(f, made.move) for f in made.move.found} != {"mechanical"}
    assert "replace(" not in line or line[3:].replace("estimator", "ge") in code(made)


def test_a_variable_is_replaced_where_it_is_assigned(tmp_path):
    text = "import tensorflow as tf\nE = tf.estimator.EvalSpec\nE(f, 1)\n"
    made = moved(text, tmp_path)
    assert code(made).endswith("E = ge.EvalSpec\nE(f, 1, throttle_secs=600)\n")
    assert "called elsewhere" in made.move.text.decode().replace("\n# MOVING:    ", "")


def test_metrics_in_a_spec_are_kerass(tmp_path):
    lines = (
        '"a": tf.metrics.accuracy(y, predictions=tf.argmax(p, 1), name="x"),  # All.',
        '"b": tf.metrics.root_mean_squared_error(y, p),',
        '"c": tf.metrics.accuracy(y, p),',
        '"d": tf.metrics.accuracy(y, tf.argmax(p, 1), weights=w),',
        '"e": tf.metrics.root_mean_squared_error(y, p, metrics_collections=["m"]),',
    )
    spec = "ge.EstimatorSpec(mode, eval_metric_ops={{{}\n}})\n"
    text = "import tensorflow.compat.v1 as tf\n"
    before = spec.format("\n".join(("", *lines))).replace("ge.", "tf.estimator.")
    made = moved(text + before, tmp_path)
    after = (
        '"a": ge.metric(keras.metrics.Accuracy, y, tf.argmax(p, 1)),  # All.',
        '"b": ge.metric(keras.metrics.RootMeanSquaredError, y, p),',
        *lines[2:],
    )
    assert code(made) == text + spec.format("\n".join(("", *after)))
    assert b"import pipeline as ge\nimport keras\n" in made.move.text


KERAS = """
import {}
def model_fn(features, labels, mode):
    x = {}.layers.Dense(10, activation="relu")(features)
    optimizer = {}.optimizers.Adam(learning_rate=rate)
"""


@pytest.mark.parametrize(
    ("imported", "name"),
    [("tensorflow as tf", "tf.keras"), ("keras", "keras"), ("tf_keras as k", "k")],
)
def test_what_model_fn_makes_of_keras_is_proposed(imported, name, tmp_path):
    made = moved(KERAS.format(imported, name, name), tmp_path)
    (proposal,) = made.move.proposals
    text = "\n".join(proposal.lines)
    assert 'self.dense = keras.layers.Dense(10, activation="relu")' in text
    assert "lambda: keras.optimizers.Adam(learning_rate=rate)" in text


STAYS = (
    "import tensorflow as tf\na = tf.keras.regularizers.l2(0.1)\n",
    "import tf_keras as k\nb = k.backend.learning_phase()\n",
    KERAS.format("keras", "keras", "keras"),
)


@pytest.mark.parametrize("text", STAYS)
def test_a_name_of_keras_stays_as_it_is(text, tmp_path):
    made = moved(text, tmp_path)
    assert made.move.found
    assert text.replace("import keras\n", "") == code(made)


def test_what_another_module_hands_on_keeps_its_attributes(tmp_path):
    made = moved("from a import b\nx = b.v1.estimator.ModeKeys.TRAIN\n", tmp_path)
    assert "x = ge.ModeKeys.TRAIN\n" in code(made)


BOTH = (
    "if tf.__version__ < '2':\n    pass",
    "tf.summary.create_file_writer(a)",
    "tf.losses.BinaryCrossentropy()",
)


@pytest.mark.parametrize("line", BOTH)
def test_a_program_of_both_versions_keeps_its_import(line, tmp_path):
    made = moved(f"import tensorflow as tf\ntf.logging.info(1)\n{line}\n", tmp_path)
    assert code(made).startswith("import tensorflow as tf\n")
    assert "choose one" in made.move.text.decode()


def test_tensors_of_an_input_fn_that_the_program_takes_stay(tmp_path):
    text = """
        import tensorflow.compat.v1 as tf
        def input_fn():
            return dataset.make_one_shot_iterator().get_next()
        features, labels = input_fn()
        """
    assert "one_shot" in code(moved(text, tmp_path))


def test_another_optimizer_s_minimize_is_its_own(tmp_path):
    made = moved("from scipy import optimize\noptimize.minimize(f, x)\n", tmp_path)
    assert not made.move.found
    assert made.lines[-1].strip() == "nothing of tf.estimator or TensorFlow 1"


def test_what_model_fn_makes_is_proposed_by_factories(tmp_path):
    text = """
        import tensorflow as tf
        def model_fn(features, labels, mode, params):
            x = tf.layers.conv2d(features, 32, 5, activation=tf.nn.relu)
            for n in (64, 32):
                x = tf.layers.dense(inputs=x, units=n, name="hidden")
            l2 = tf.contrib.layers
            x = tf.layers.dense(x, 10, kernel_regularizer=l2.l2_regularizer(r))
            x = l2.fully_connected(x, 5, None, scope="out")
            w = tf.get_variable("w", [3, 4])
            made = tf.train.Optimizer(False, "of nothing")
            opt = tf.train.MomentumOptimizer(params["rate"], 0.8, use_nesterov=True)
            if a:
                opt = tf.train.AdamOptimizer()
        """
    made = moved(text, tmp_path)
    (proposal,) = made.move.proposals
    lines = "\n".join(line.partition("  # ")[0] for line in proposal.lines)
    assert proposal.function == "model_fn"
    for wanted in (
        "keras.layers.Conv2D(filters=32, kernel_size=5, activation=tf.nn.relu)",
        'self.hidden = keras.layers.Dense(units=n, name="hidden")',
        "Dense(units=10, kernel_regularizer=keras.regularizers.L2(0.5 * (r)))",
        'self.out = keras.layers.Dense(activation=None, units=5, name="out")',
        'self.w = self.add_weight(name="w", shape=[3, 4])',
        '"optimizer": lambda params: keras.optimizers.SGD(params["rate"], momentum=0',
        '"optimizer_2": lambda: keras.optimizers.Adam(0.001, epsilon=1e-08)',
    ):
        assert wanted in lines
    assert "in a loop" in str(proposal.lines)
    assert ast.parse("\n".join(proposal.lines))
    marks = re.findall(r"# MOVING: (.*)", made.move.text.decode())
    assert marks[1 : len(proposal.lines) + 1] == [f"    {x}" for x in proposal.lines]


def test_the_page_shows_what_is_written(tmp_path):
    text = (ROOT / "docs" / "moving.md").read_text(encoding="utf-8")
    before, after = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    made = moved(before, tmp_path).move
    assert made.text.decode() == after
    names = {"keras": keras}
    exec("\n".join(made.proposals[0].lines), names)
    made = {
        name: factory({"classes": 3, "rate": 0.1})
        for name, factory in names["modules"].items()
    }
    assert made["network"].dense(tf.zeros([2, 4])).shape == (2, 3)
    assert made["optimizer"].epsilon == 1e-8


REFUSED = {
    "a.ipynb": ("{}", "jupyter nbconvert"),
    "old.py": ('x = 1\nprint "a"\n', "line 2 is Python 2"),
    "caught.py": ("try:\n    f()\nexcept E, e:\n    g()\n", "line 3 is Python 2"),
    "bad.py": ("x = (\n", "is no Python 3"),
    "mixed.py": ("if a:\n    b\n\tc\n", "expand -t 4"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_says_what_to_do_first(name, tmp_path, capsys):
    text, words = REFUSED[name]
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert command.main(["moving", str(path)]) == 2
    assert words in capsys.readouterr().err


def test_the_command_writes_a_new_file_and_no_other(tmp_path, capsys):
    path = tmp_path / "program.py"
    path.write_bytes("import tensorflow as tf\r\nx = 'é'  # ü\r\n".encode())
    assert command.main(["moving", str(path), "--write"]) == 0
    target = tmp_path / "program_moved.py"
    assert target.read_bytes() == path.read_bytes()
    assert f"wrote {target}" in capsys.readouterr().out
    assert command.main(["moving", str(path), "--write"]) == 2
    assert "write --output=another.py" in capsys.readouterr().err
    other = tmp_path / "x.py"
    assert command.main(["moving", str(path), "--write", f"--output={other}"]) == 0
    assert other.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "write python -m pipeline.moving program.py"),
        (["nowhere.py"], "is no file"),
        (["a.py", "--output=b.py"], "leave it out"),
        (["a.py", "--wrote"], "wrote"),
    ],
)
def test_a_mistyped_command(arguments, words, capsys):
    assert command.main(["moving", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_pages_are_written_in_a_checkout(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command.main(["moving", "--pages"]) == 2
    assert "at the top of the repository" in capsys.readouterr().err
    (tmp_path / "docs").mkdir()
    for page in table.PAGES.values():
        (tmp_path / "docs" / page).write_text(f"Head.\n\n{table.HEAD}\n| old |\n")
    assert command.main(["moving", "--pages"]) == 0
    text = (tmp_path / "docs" / page).read_text()
    assert text == f"Head.\n\n{table.of_page(page)}\n"


def test_help(capsys):
    assert command.main(["moving", "--help"]) == 0
    assert "--output" in capsys.readouterr().out


def test_the_names_of_version_one():
    """Those that TensorFlow 2 has not, of which a program of TensorFlow 1 is known."""
    for name in origins.version_one() - {"contrib", "layers", "nn.rnn_cell"}:
        first, _, rest = name.partition(".")
        assert hasattr(tf.compat.v1, first), name
        owner = getattr(tf, first, None)
        for part in rest.split(".") if rest else ():
            owner = getattr(owner, part, None)
        assert owner is None or (not rest and not hasattr(tf, first)), name


def test_every_row_is_found_by_its_name():
    for name, row in table.rows().items():
        if name.startswith("tf."):
            assert origins.row_of(name) == (row, "")
    with pytest.raises(RefusedValueError):
        job.of_file("nowhere.py")
    assert json.dumps(findings.KINDS)
