"""Compares public programs by TensorFlow 2.15 and by v1, from one initial checkpoint.

The texts are not in this repository: CHECKOUTS has a folder `OWNER+NAME` for each.

    python3.11 -m venv VENV && VENV/bin/pip install tensorflow-cpu==2.15.1 tf_slim
    export PYTHONHASHSEED=0  # A program may number its labels in the order of a set.
    VENV/bin/python tests/recorders/v1_programs.py tensorflow NAME CHECKOUTS OUT
    .venv/bin/python tests/recorders/v1_programs.py v1 NAME CHECKOUTS OUT

The second command reads `OUT/NAME/tensorflow/model.ckpt-0`, and prints a row of a table: losses,
and the metrics of the last checkpoint. Data is made up, in the same order for both; dropout is off,
and the program ends after 20 steps and an evaluation of at most 5 batches.

With `tensorflow_half` and `v1_half` as first argument v1 goes on at step 10 in a copy of the
model_dir of TensorFlow 2.15, which goes on itself as well. Both begin their data again.

In place of `v1` a mode compares with the losses and weights of `v1`, which has run before:
`mirrored` (two logical CPUs), `workers` (two), `servers` (a chief, two workers and a parameter
server: means of five steps), or `killed` (at step 10, and continued from step 7).
"""

import contextlib
import dataclasses
import functools
import importlib
import importlib.abc
import importlib.machinery
import inspect
import itertools
import json
import os
import pathlib
import random
import re
import runpy
import shutil
import signal
import struct
import subprocess
import sys
import types
import unittest.mock
import zlib

import numpy as np

STEPS = 20
EVALUATED = 5  # Batches.
# What a mode adds to the RunConfig and the hooks of a program.
OPTIONS: dict = {}
HOOKS: list = []


@dataclasses.dataclass(frozen=True)
class Program:
    """A program: its repository, file, arguments, data and edits (for Python 3, or of imports).

    `v1_arguments` follow the arguments in v1.
    """

    repository: str
    path: str
    arguments: tuple = ()
    make_data: object = lambda: None
    edits: tuple = ()
    root: str = "."
    v1_arguments: tuple = ()


def digits():
    """Replaces the MNIST that Keras downloads."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    parts = []
    for n in (8000, 300):
        images = rng.integers(0, 256, [n, 28, 28]) * (rng.random([n, 28, 28]) > 0.8)
        parts.append((images.astype("uint8"), rng.integers(0, 10, n).astype("uint8")))
    for module in (tf, tf.compat.v1):
        module.keras.datasets.mnist.load_data = lambda *_, **__: tuple(parts)


def read_data_sets(*_, **__):
    """Returns MNIST for programs on TensorFlow 2.15, which has no module of tutorials."""
    import tensorflow as tf

    (images, labels), test = tf.keras.datasets.mnist.load_data()
    part = lambda images, labels: types.SimpleNamespace(  # noqa: E731
        images=images.reshape([-1, 784]).astype("float32") * np.float32(1 / 255), labels=labels
    )
    return types.SimpleNamespace(
        train=part(images[5000:], labels[5000:]),
        validation=part(images[:5000], labels[:5000]),
        test=part(*test),
    )


def records():
    """Writes MNIST as examples of 784 numbers."""
    import tensorflow as tf

    digits()
    feature = tf.train.Feature
    for name, part in zip(("train", "test"), tf.keras.datasets.mnist.load_data(), strict=True):
        with tf.io.TFRecordWriter(f"{name}.tfrecords") as writer:
            for image, label in zip(part[0][:1000], part[1], strict=False):
                values = {
                    "im": feature(float_list=tf.train.FloatList(value=image.ravel() / 255)),
                    "label": feature(int64_list=tf.train.Int64List(value=[label])),
                }
                features = tf.train.Features(feature=values)
                writer.write(tf.train.Example(features=features).SerializeToString())


def census():
    """Writes rows in the columns of the census of 1994."""
    rng = np.random.default_rng(0)
    words = ["Bachelors", "HS-grad", "11th", "Never-married", "Husband", "Private", "Sales", "Male"]
    for name in ("data", "test"):
        rows = []
        for _ in range(1000):
            age, weight, years, gain, loss, hours = rng.integers([90, 999, 16, 50, 50, 60])
            work, degree, married, job, relation, race, sex, land = rng.choice(words, 8)
            row = [age, work, weight, degree, years, married, job, relation, race, sex, gain, loss]
            rows.append(",".join(map(str, [*row, hours, land, rng.choice(["<=50K", ">50K"])])))
        _write(f"adult.{name}", rows)


def reviews():
    """Writes sentences of words, good and bad ones."""
    rng = np.random.default_rng(0)
    for name in ("train.pos", "train.neg", "dev.pos", "dev.neg"):
        words = [f"{name[-3]}{chr(97 + n)}" for n in range(6)] + [f"w{n}" for n in range(20)]
        _write(name, [" ".join(rng.choice(words, rng.integers(3, 11))) for _ in range(200)])


def articles():
    """Writes titles, texts and their 14 classes."""
    rng = np.random.default_rng(0)
    words = [f"w{chr(97 + n)}" for n in range(26)]
    _write("words.txt", words)
    settings = {"pad_word": "<pad>", "train_size": 800, "num_oov_buckets": 1, "vocab_size": 27}
    pathlib.Path("dataset_params.json").write_text(json.dumps(settings))
    for name in ("train", "test"):
        rows = [
            f"{rng.integers(1, 15)},a title,{' '.join(rng.choice(words, rng.integers(3, 20)))}"
            for _ in range(800)
        ]
        _write(f"{name}.csv", rows)


def faces():
    """Writes images, and makes `random_uniform` return the same numbers on both sides."""
    import tensorflow as tf

    rng, walk = np.random.default_rng(0), os.walk
    os.makedirs("data/celebA")
    for n in range(200):
        rows = rng.integers(0, 256, [40, 40, 3]).astype("uint8")
        data = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
        head = struct.pack(">IIBBBBB", 40, 40, 8, 2, 0, 0, 0)
        chunks = [
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
            for kind, body in ((b"IHDR", head), (b"IDAT", data), (b"IEND", b""))
        ]
        pathlib.Path(f"data/celebA/{n:03}.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    os.walk = lambda top: ((path, names, sorted(files)) for path, names, files in walk(top))

    def uniform(shape, minval=0, maxval=1, *_, **__):
        numbers = np.random.default_rng(0).uniform(minval, maxval, shape)
        return tf.constant(numbers, tf.float32)

    for name in {"tensorflow_1", "gin_estimator.v1"} & sys.modules.keys():
        sys.modules[name].random_uniform = uniform


def libsvm():
    """Writes examples of 10 numbers each, of 100."""
    rng = np.random.default_rng(0)
    for name in ("tr", "va", "te"):
        rows = [
            " ".join(
                [
                    str(rng.integers(0, 2)),
                    *(f"{10 * j + rng.integers(10)}:{rng.random():.4f}" for j in range(10)),
                ]
            )  # noqa: E501
            for _ in range(2000)
        ]
        pathlib.Path(f"{name}.libsvm").write_text("\n".join(rows) + "\n")


def movies():
    """Writes rows in the columns of MovieLens 100k."""
    rng = np.random.default_rng(0)
    columns = (
        "user_id,item_id,rating,timestamp,datetime,year,month,day,week,dayofweek,age,gender,"
        "occupation,zipcode,zipcode1,zipcode2,zipcode3,title,release,video_release,imdb,unknown,"
        "action,adventure,animation,children,comedy,crime,documentary,drama,fantasy,filmnoir,"
        "horror,musical,mystery,romance,scifi,thriller,war,western,release_date,release_year"
    )
    rows = [columns]
    for _ in range(1000):
        number = [int(n) for n in rng.integers(1, 900, 3)]
        row = [number[0], number[1], int(rng.integers(1, 6)), 1, "a", 2000, 1, 1, 1, 1]
        row += [int(rng.integers(10, 80)), "FM"[int(rng.integers(2))], f"job{number[2] % 20}"]
        row += [f"z{number[2]}", "a", "b", "c", "title", "r", "v", "i"]
        row += [int(n) for n in rng.integers(0, 2, 19)] + ["d", int(rng.integers(1920, 1999))]
        rows.append(",".join(map(str, row)))
    for name in ("train.csv", "test.csv"):
        pathlib.Path(name).write_text("\n".join(rows) + "\n")


def entities():
    """Writes more sentences, and `tf_metrics`, of which an evaluation needs more than this."""
    for name in ("words", "tags"):
        path = pathlib.Path(f"../../data/example/train.{name}.txt")
        path.write_text(path.read_text() * 8)
    pathlib.Path("tf_metrics.py").write_text(
        "import tensorflow.compat.v1 as tf\n"
        "def precision(labels, *_, **__):\n    return tf.zeros([]), tf.zeros([])\n"
        "recall = f1 = precision\n"
    )


def fashion():
    """Writes images and labels in the files of Fashion-MNIST."""
    import gzip

    rng = np.random.default_rng(0)
    for name, n in (("train", 3000), ("t10k", 300)):
        images = rng.integers(0, 256, [n, 784]) * (rng.random([n, 784]) > 0.8)
        with gzip.open(f"{name}-images-idx3-ubyte.gz", "wb") as file:
            file.write(bytes(16) + images.astype("uint8").tobytes())
        with gzip.open(f"{name}-labels-idx1-ubyte.gz", "wb") as file:
            file.write(bytes(8) + rng.integers(0, 10, n).astype("uint8").tobytes())


_PACKAGES = "scipy", "scipy.stats", "sklearn", "sklearn.metrics"  # Of ELECTRA's scores.


def cola():
    """Writes sentences of words of a vocabulary, for a small BERT."""
    rng = np.random.default_rng(0)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{chr(97 + n)}" for n in range(26))]
    pathlib.Path("vocab.txt").write_text("\n".join(words) + "\n")
    sizes = {"vocab_size": 31, "hidden_size": 32, "num_hidden_layers": 2, "embedding_size": 16}
    sizes |= {"num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 32}
    sizes |= {"type_vocab_size": 2, "hidden_act": "gelu", "initializer_range": 0.02}
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    pathlib.Path("bert.json").write_text(json.dumps(sizes | off))
    for name, n in (("train", 640), ("dev", 50), ("test", 50)):
        texts = [" ".join(rng.choice(words[5:], rng.integers(4, 12))) for _ in range(n)]
        rows = [f"a\t{int('wa' in text)}\t\t{text}" for text in texts]
        _write(f"{name}.tsv", rows)
        _write(f"finetuning_data/cola/{name}.tsv", rows)
    for name in _PACKAGES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
        if name not in sys.modules:
            sys.modules[name] = unittest.mock.MagicMock()


def _write(path, rows):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    pathlib.Path(path).write_text("\n".join(rows) + "\n")


def irises():
    """Writes flowers where programs look for them."""
    import tensorflow as tf

    for module in (tf, tf.compat.v1):
        module.keras.utils.get_file = lambda fname, *_, **__: fname
    rng = np.random.default_rng(0)
    os.makedirs("../data", exist_ok=True)
    for name, n in (("training", 120), ("test", 30)):
        sizes, kinds = rng.random([n, 4]) * 5, rng.integers(0, 3, n)
        rows = [
            ",".join([*(f"{a:.1f}" for a in row), str(k)])
            for row, k in zip(sizes, kinds, strict=True)
        ]
        for folder in (".", "../data"):
            pathlib.Path(folder, f"iris_{name}.csv").write_text("\n".join(["a,b,c,d,e", *rows]))


def triplets():
    """Writes images and labels in the files of MNIST, unpacked."""
    rng = np.random.default_rng(0)
    for name, n in (("train", 2000), ("t10k", 300)):
        images = rng.integers(0, 256, [n, 784]) * (rng.random([n, 784]) > 0.8)
        for kind, magic, values in (("images-idx3", 2051, images), ("labels-idx1", 2049, None)):
            values = rng.integers(0, 10, n) if values is None else values
            head = np.array([magic, n, 28, 28][: 4 if magic == 2051 else 2], ">u4").tobytes()
            path = pathlib.Path(f"{name}-{kind}-ubyte")
            path.write_bytes(head + values.astype("uint8").tobytes())


def clicks():
    """Writes rows in the columns of Criteo."""
    rng = np.random.default_rng(0)
    for name in ("tr", "va", "te"):
        rows = [
            [rng.integers(2), *rng.random(13).round(4), *rng.integers(0, 10000, 26)]
            for _ in range(1500)
        ]
        text = "\n".join(",".join(map(str, row)) for row in rows)
        pathlib.Path(f"{name}.csv").write_text(text + "\n")


_NER = ("guillaumegenthial+tf_ner", "models/{}/main.py", (), entities)
_CTR = ("lambdaji+tf_repos", "deep_ctr/Model_pipeline/{}.py")
_CTR_ARGUMENTS = (
    *("--data_dir=.", "--model_dir=model", "--feature_size=100", "--field_size=10"),
    "--batch_size=64",
)
_TPU = ("GoogleCloudPlatform+cloudml-samples", "tpu/templates/{}/trainer.py")
_MOVIES = ("--train-csv=train.csv", "--test-csv=test.csv", "--job-dir=model", "--dropout=0")
_OTHERS = "feature_column|framework|keras|layers|ops|util"  # Files that TensorFlow still has.
_OTHERS = rf"\.python\.(?:{_OTHERS})\b|\.python import debug|\.keras\.datasets\b"
_IMPORT = rf"^(\s*(?:import|from) )tensorflow(?=[. ])(?!{_OTHERS})"
_LISTS = ((r"= map\((.+)\)$", r"= list(map(\1))"),)
_SMALL = {
    **{"vocab_size": 31, "embedding_size": 16, "max_seq_length": 16, "train_batch_size": 16},
    **{"task_names": ["cola"], "init_checkpoint": "", "learning_rate": 1e-3},
    "model_hparam_overrides": {
        **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
        **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    },
}
_COLA = (
    *(
        "--task_name=CoLA",
        "--do_train=true",
        "--do_eval=true",
        "--data_dir=.",
        "--output_dir=model",
    ),
    *("--vocab_file=vocab.txt", "--max_seq_length=16", "--train_batch_size=16"),
    *("--learning_rate=1e-3", "--num_train_epochs=1", "--eval_batch_size=16"),
)
_FILES = (
    *("--train-file=train-images-idx3-ubyte.gz", "--test-file=t10k-images-idx3-ubyte.gz"),
    *("--train-labels-file=train-labels-idx1-ubyte.gz", "--job-dir=model"),
    "--test-labels-file=t10k-labels-idx1-ubyte.gz",
)


def _of(base, name, *rest, **options):
    repository, path, *more = base
    return Program(repository, path.format(name), *more, *rest, **options)


PROGRAMS = {
    **{
        f"tf_ner {name}": _of(_NER, name)
        for name in ("lstm_crf", "lstm_crf_ema", "chars_lstm_lstm_crf", "chars_conv_lstm_crf")
    },
    **{
        f"{name} (CTR)": _of(_CTR, name, _CTR_ARGUMENTS, libsvm, _LISTS)
        for name in ("DCN", "NFM", "AFM", "DeepFM")
    },
    **{
        name: _of(("aymericdamien+TensorFlow-Examples", "examples/3_NeuralNetworks/{}.py"), name,
                  (), digits)
        for name in ("neural_network", "convolutional_network")
    },
    **{
        name: _of(_TPU, name, v1_arguments=("--use-tpu",))  # TensorFlow's needs a TPU.
        for name in ("tpu_film_estimator", "tpu_grl_estimator")
    },
    **{
        f"recommender {name}": Program(
            "yxtay+recommender-tensorflow",
            f"trainers/{name}.py",
            _MOVIES[: 3 if name == "linear" else 4],
            movies,
        )
        for name in ("linear", "deep", "linear_deep", "deep_fm")
    },
    "BERT run_classifier": Program(
        "google-research+bert", "run_classifier.py", (*_COLA, "--bert_config_file=bert.json"), cola
    ),
    "ELECTRA run_finetuning": Program(
        "google-research+electra", "run_finetuning.py",
        ("--data-dir=.", "--model-name=m", f"--hparams={json.dumps(_SMALL)}"), cola,
    ),
    "triplet loss": Program(
        "omoindrot+tensorflow-triplet-loss", "train.py",
        ("--data_dir=.", "--model_dir=experiments/batch_all"), triplets,
        # The loss does not depend on the last bias; Adam makes steps of rounding errors.
        ((r"AdamOptimizer\(", "GradientDescentOptimizer("),),
    ),
    "cnn_mnist": Program(
        "NicolasPecot+cnn_mnist_tf", "cnn_mnist.py", (), digits
    ),
    "mnist_estimator": Program(
        "peterroelants+tf_estimator_example", "src/mnist_estimator.py", (), digits
    ),
    "mnist tfestimator": Program(
        "agatan+tf-estimator-example", "mnist/tfestimator.py", (), digits,
        # The gradients of biases before batch normalization are rounding errors.
        ((r"AdamOptimizer\(", "GradientDescentOptimizer("),),
    ),
    "mnist trainer": Program(
        "joe-antognini+tf-estimator-example", "trainer.py",
        ("--mode=train_and_eval", "--model_dir=model", "--eval_freq=20", "--learning_rate=0.01",
         "--train_file_pattern=train.tfrecords", "--eval_file_pattern=test.tfrecords"),
        records, ((r"print '(.+)'$", r"print('\1')"),),
    ),
    "wide_deep (canned)": Program("ShaoQiBNU+wide_and_deep", "wide_deep.py", (), census),
    "lstm_classify_estimator": Program(
        "HuihuiChyan+text_classification_tf_estimator", "lstm_classify_estimator.py",
        ("--is_training=true", "--vocab_file=vocab.txt", "--model_dir=model", "--vocab_size=40",
         "--embedding_size=16", "--hidden_size=16", "--batch_size=16", "--max_len=12",
         "--pos_train=train.pos", "--neg_train=train.neg", "--pos_dev=dev.pos",
         "--neg_dev=dev.neg"), reviews,
    ),
    "word_cnn": Program(
        "yangxudong+deeplearning", "word_cnn/word_cnn.py",
        ("--data_dir=.", "--model_dir=model", "--embedding_size=16", "--num_filters=8",
         "--sentence_max_len=12", "--batch_size=32"),
        articles, ((r"map\(int, (.+)\),$", r"list(map(int, \1)),"),),
    ),
    "autoencoder": Program("suyash+ae", "trainer/task.py", ("--job-dir=model",), digits),
    "dcgan": Program(
        "insoochung+dcgan_tf_estimator", "train_or_generate.py", ("--batch_size=8",), faces
    ),
    "linear": Program("shu-yusa+tensorflow-getting-started", "custom_estimator.py"),
    "iris custom": Program(
        "htang2012+tensorflow_practical", "custom_estimator.py", (), irises
    ),
    "iris DNNClassifier (canned)": Program(
        "JellyDream+tf_estimator", "for_beginners.py", (), irises
    ),
    "phones": Program(
        "vincentteyssier+tf.estimator_tutorial", "custom_estimator.py",
        edits=((r'^PATH = .*$', 'PATH = "."'), (r"^PATH_DATASET.*$", 'PATH_DATASET = "dataset"')),
    ),
    "wide_n_deep (canned)": _of(
        _CTR, "wide_n_deep", ("--data_dir=.", "--model_dir=model", "--deep_layers=32,16"), clicks,
        _LISTS,
    ),
    "standard/mnist (Keras)": Program(
        "GoogleCloudPlatform+cloudml-samples", "trainer/task.py", _FILES, fashion,
        root="tensorflow/standard/mnist",
    ),
}  # fmt: skip


class Done(BaseException):
    """Ends a program after its training."""


def copied(program, folder, root):
    """Copies the sources with other imports; returns the number of changed lines."""
    changed = 0
    source = pathlib.Path(folder, program.repository, program.root)
    for path in sorted(source.rglob("*")):
        target = pathlib.Path(path.relative_to(source))
        if path.is_dir() or ".git" in path.parts:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix != ".py":
            shutil.copy(path, target)
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        lines = text.split("\n")
        pairs = [(_IMPORT, rf"\1{root}"), *program.edits]
        new = lines
        for old, replacement in pairs:
            old = re.escape(old.format(root=root)) if "{root}" in old else old
            new = [re.sub(old, replacement, line) for line in new]
        if is_used(program, path, source):
            changed += sum(a != b for a, b in zip(lines, new, strict=True))
        target.write_text("\n".join(new))
    return changed


def is_used(program, path, source):
    """Returns whether a file belongs to the program: it, or what it imports of the sources."""
    return path in used_files(source / program.path, source)


@functools.cache
def used_files(path, source):
    """Returns a file and the files of `source` that it imports, and those that they import."""
    found, todo = set(), [path]
    while todo:
        path = todo.pop()
        if path in found or not path.exists():
            continue
        found.add(path)
        text = path.read_text(encoding="utf-8", errors="replace")
        for line in re.findall(r"^\s*(?:from|import) .+", text, re.MULTILINE):
            names = re.sub(r"\b(from|import|as)\b|,", " ", line).replace(".", " ").split()
            for other in source.rglob("*.py"):
                parts = other.relative_to(source).with_suffix("").parts
                if parts[-1] in names and (
                    len(parts) == 1 or parts[-2] in (*names, path.parent.name)
                ):
                    todo.append(other)
    return found


def same(self, *_, **__):
    return self


def without_noise(tf, *modules):
    """Turns off the shuffling of datasets and dropout, also in cells of RNNs."""
    for cls in (tf.data.Dataset, tf.compat.v1.data.Dataset):
        cls.shuffle = same
    for module in modules:
        if hasattr(module, "rnn_cell"):  # Which loads the module, and replaces its names.
            module.rnn_cell.DropoutWrapper = lambda cell, **_: cell
        module.dropout = lambda x=None, *_, inputs=None, **__: tf.identity(
            inputs if x is None else x
        )


def seeded(input_fn):
    """Returns an input_fn whose NumPy numbers are the same at each call."""

    @functools.wraps(input_fn)
    def call(*args, **kwargs):
        np.random.seed(1)
        return input_fn(*args, **kwargs)

    call.__signature__ = inspect.signature(input_fn)
    return call


def patched(cls, hook, model_dir, run_config, stops=(STEPS,)):
    """Makes an Estimator train in `model_dir`, to each of `stops`, and evaluate.

    Returns what replaces `train_and_evaluate`, and the metrics.
    """
    init, train, evaluate, predict = cls.__init__, cls.train, cls.evaluate, cls.predict
    metrics = {}
    last = []

    def own_init(self, model_fn, model_dir_=None, config=None, *args, **kwargs):
        kwargs.pop("model_dir", None)
        config = (config or run_config()).replace(**{"model_dir": model_dir, **OPTIONS})
        init(self, model_fn, config.model_dir, config, *args, **kwargs)

    def own_train(self, input_fn, hooks=None, *_, **__):
        if last:
            own_evaluate(self, input_fn)
        last.append(input_fn)
        for stop in stops:
            train(self, seeded(input_fn), hooks=[*hook, *HOOKS], max_steps=stop)
            if stop != stops[-1]:
                shutil.copytree(model_dir, f"{model_dir}_{stop}", dirs_exist_ok=True)
        if OPTIONS:
            raise Done

    def own_evaluate(self, input_fn, *_, **__):
        if not last:
            return {}  # Of the initial values.
        found = evaluate(self, seeded(input_fn), EVALUATED)
        metrics.update({name: float(value) for name, value in found.items()})
        raise Done

    def own_predict(self, input_fn, *_, **__):
        rows = list(itertools.islice(predict(self, input_fn), 50))
        for name in rows[0]:
            metrics[f"mean {name}"] = float(np.mean([row[name] for row in rows]))
        raise Done

    def own_run(estimator, train_spec, eval_spec):
        estimator.train(train_spec.input_fn)
        estimator.evaluate(eval_spec.input_fn)

    cls.__init__, cls.train, cls.evaluate, cls.predict = (
        own_init,
        own_train,
        own_evaluate,
        own_predict,
    )
    return own_run, metrics


_DATA_SETS = {"load_dataset": read_data_sets, "read_data_sets": read_data_sets}


class Contrib(types.ModuleType):
    """Names of TensorFlow 1 in TensorFlow 2.15: its own, and those of contrib that are elsewhere.

    A submodule is made of the module of the same path, or of one of `places`.
    """

    def __init__(self, path, modules, own=()):
        super().__init__(f"tensorflow_1.{path}" if path else "tensorflow_1")
        self.__dict__.update(dict(own), _modules=modules, __path__=[])

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        for module in self._modules:
            with contextlib.suppress(AttributeError, ImportError):
                return getattr(module, name)
        raise AttributeError(f"{self.__name__}.{name}")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports attributes of `tensorflow_1` by path."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname.startswith("tensorflow_1"):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        value = functools.reduce(getattr, spec.name.split(".")[1:], sys.modules["tensorflow_1"])
        return Contrib(spec.name.removeprefix("tensorflow_1."), [value])

    def exec_module(self, module):
        pass


def fused_cell(tf):
    """Returns contrib's fused LSTM for TensorFlow 2.15, by `dynamic_rnn`, which has the names."""

    class LSTMBlockFusedCell:
        def __init__(self, num_units):
            self._units = num_units

        def __call__(self, inputs, dtype=None, sequence_length=None):
            with tf.variable_scope(None, default_name="lstm_fused_cell"):
                size = inputs.shape[-1] + self._units
                kernel = tf.get_variable("kernel", [size, 4 * self._units])
                bias = tf.get_variable(
                    "bias", [4 * self._units], initializer=tf.zeros_initializer()
                )
            cell = tf.nn.rnn_cell.BasicLSTMCell(self._units)
            cell._kernel, cell._bias, cell.built = kernel, bias, True
            outputs, state = tf.nn.dynamic_rnn(
                cell, inputs, sequence_length, dtype=dtype, time_major=True
            )
            return outputs, state

    class TimeReversedFusedRNN:
        def __init__(self, cell):
            self._cell = cell

        def __call__(self, inputs, dtype=None, sequence_length=None):
            turned = lambda x: tf.reverse_sequence(x, sequence_length, 0, 1)  # noqa: E731
            outputs, state = self._cell(turned(inputs), dtype, sequence_length)
            return turned(outputs), state

    return {"LSTMBlockFusedCell": LSTMBlockFusedCell, "TimeReversedFusedRNN": TimeReversedFusedRNN}


def by_tensorflow(program, model_dir, stops):
    """Prepares TensorFlow 2.15; returns its losses and metrics."""
    import tensorflow as tf2
    import tensorflow.compat.v1 as tf
    from tensorflow.python.ops import lookup_ops
    from tensorflow_estimator.python.estimator import estimator as library
    from tensorflow_estimator.python.estimator.canned import head as heads
    from tensorflow_estimator.python.estimator.inputs import numpy_io

    tf.disable_v2_behavior()
    _ = tf.layers.dense  # Loads tf.layers, whose names replace own ones.
    without_noise(tf2, tf.nn, tf.layers)
    numpy_input_fn = numpy_io.numpy_input_fn
    hook = [_TensorFlowHook(tf)]

    def with_hook(self, spec, worker_hooks, *args, **kwargs):
        hook[0].loss = spec.loss
        return trained(self, spec, worker_hooks, *args, **kwargs)

    trained = library.Estimator._train_with_estimator_spec
    library.Estimator._train_with_estimator_spec = with_hook
    run, metrics = patched(library.Estimator, hook, model_dir, tf.estimator.RunConfig, stops)
    estimator = Contrib("estimator", [tf.estimator], {"train_and_evaluate": run})
    estimator.inputs = types.SimpleNamespace(
        numpy_input_fn=lambda *args, shuffle=None, **kwargs: numpy_input_fn(
            *args, shuffle=False, num_threads=1, **kwargs
        )
    )
    crf = importlib.util.spec_from_file_location(
        "crf", pathlib.Path(__file__).parents[2] / "pipeline" / "v1" / "crf.py"
    )
    module = importlib.util.module_from_spec(crf)
    crf.loader.exec_module(module)
    own = {
        "data": Contrib("contrib.data", [tf.data.experimental]),
        "estimator": Contrib("contrib.estimator", [tf.estimator.experimental]),
        "lookup": Contrib("contrib.lookup", [lookup_ops, tf.lookup]),
        "rnn": Contrib("contrib.rnn", [tf.nn.rnn_cell, tf.nn], fused_cell(tf)),
        "crf": module,
        "tpu": Contrib("contrib.tpu", [tf.estimator.tpu, tf.tpu]),
        "summary": tf.summary,
        "metrics": tf.metrics,
        "cluster_resolver": tf.distribute.cluster_resolver,
        "training": _hyperparameters(),
        "learn": Contrib("contrib.learn", [], {"datasets": Contrib("datasets", [], _DATA_SETS)}),
    }
    with contextlib.suppress(ImportError):
        import tf_slim

        own |= {"slim": tf_slim, "layers": Contrib("contrib.layers", [tf_slim.layers, tf_slim])}
    head = functools.partial(
        heads._binary_logistic_head_with_sigmoid_cross_entropy_loss,
        loss_reduction="weighted_sum_over_batch_size",  # As in contrib.
    )
    vars(own["estimator"])["binary_classification_head"] = head
    vars(own["estimator"])["multi_class_head"] = functools.partial(
        heads._multi_class_head_with_softmax_cross_entropy_loss,
        loss_reduction="weighted_sum_over_batch_size",
    )
    contrib = Contrib("contrib", [], own)
    tutorials = Contrib("examples", [], {"input_data": Contrib("input_data", [], _DATA_SETS)})
    tutorials.tutorials = tutorials.mnist = tutorials
    own = {"contrib": contrib, "estimator": estimator, "__version__": tf2.__version__}
    own["examples"] = tutorials
    root = Contrib("", [tf, tf2], own)
    root.python = root.compat = root
    root.v1 = root
    sys.modules["tensorflow_1"] = root
    sys.meta_path.insert(0, Finder())
    return hook[0].losses, metrics


def _hyperparameters():
    class HParams:
        def __init__(self, **values):
            self.__dict__.update(values)

        get = lambda self, name: vars(self).get(name)  # noqa: E731

    space = types.SimpleNamespace(HParams=HParams)
    space.python = space.training = space.hparam = space
    return space


def _TensorFlowHook(tf):  # noqa: N802
    class Hook(tf.train.SessionRunHook):
        losses: list = []
        loss = None

        def before_run(self, run_context):
            return tf.train.SessionRunArgs(self.loss)

        def after_run(self, run_context, run_values):
            self.losses.append(float(np.reshape(run_values.results, ())))

    return Hook()


def by_v1(program, model_dir, start):
    """Prepares v1, on the files of `start`; returns its losses and metrics."""
    import keras
    import tensorflow as tf2

    import gin_estimator as ge
    import gin_estimator.v1 as tf

    randoms = sys.modules["gin_estimator.v1.randoms"]
    library = sys.modules["gin_estimator.v1.estimators"]
    without_noise(tf2, randoms, tf.nn)
    keras.layers.Dropout.call = lambda self, inputs, **_: inputs

    class Hook(ge.Hook):
        on_servers = tf.estimator.RunConfig().cluster.has_servers
        wants_losses, every_steps = not on_servers, 5 if on_servers else 1
        losses: list = []

        def after_step(self, run):
            found = [run.report.loss] if self.on_servers else run.report.losses
            self.losses += [float(each) for each in found]

    numpy_input_fn = tf.estimator.inputs.numpy_input_fn
    tf.estimator.inputs.numpy_input_fn = lambda *args, shuffle=None, **kwargs: numpy_input_fn(
        *args, shuffle=False, **kwargs
    )
    hook = [Hook()]
    run, metrics = patched(library.Estimator, hook, model_dir, tf.estimator.RunConfig)
    tf.estimator.train_and_evaluate = run
    if str(start).endswith("_10"):
        shutil.copytree(start, model_dir)
        return hook[0].losses, metrics
    os.makedirs(model_dir)
    for name in os.listdir(start):
        if name.startswith("model.ckpt-0."):
            shutil.copy(os.path.join(start, name), model_dir)
    pathlib.Path(model_dir, "checkpoint").write_text('model_checkpoint_path: "model.ckpt-0"\n')
    return hook[0].losses, metrics


def compared(golden, own):
    """Returns the largest relative difference of two dicts' numbers, and its name."""
    if not golden:
        return "no metrics"
    if missing := golden.keys() ^ own.keys():
        return f"{sorted(missing)} are only on one side"
    pairs = {name: (value, own[name]) for name, value in golden.items()}
    worst = max((abs(a - b) / max(abs(a), 1e-3), name) for name, (a, b) in pairs.items())
    return f"{worst[0]:.0e} ({worst[1]})"


def weights(model_dir):
    """Returns the variables of a checkpoint of either side by their names in TensorFlow 1."""
    import gin_estimator.v1 as tf

    names = [name for name, _ in tf.train.list_variables(model_dir)]
    return {n: np.asarray(tf.train.load_variable(model_dir, n)) for n in names}


def compared_weights(golden, own):
    """Returns the largest difference of variables relative to the largest value of each."""
    golden, own = weights(golden), weights(own)
    norms = {
        name: float(np.max(np.abs(a - own[name])) / max(np.max(np.abs(a)), 1e-3))
        for name, a in golden.items()
        if name in own and a.dtype.kind == "f"
    }
    worst = max(norms, key=norms.get)
    return (
        f"{norms[worst]:.0e} ({worst}) of {len(norms)}; not in both: {golden.keys() ^ own.keys()}"
    )


def main(side, name, checkouts, out):
    """Runs one program by one side, or in a mode."""
    if side in MODES:
        return in_mode(side, name, checkouts, out)
    if side.partition("-")[0] in MODES:
        return part_of_mode(*side.split("-"), name, checkouts, out)
    program, folder = PROGRAMS[name], pathlib.Path(out).resolve() / name.replace("/", "_")
    checkouts, model_dir = pathlib.Path(checkouts).resolve(), str(folder / side)
    work, is_half, is_v1 = folder / f"{side}_work", side.endswith("_half"), side.startswith("v1")
    for each in (work, pathlib.Path(model_dir)):
        shutil.rmtree(each, ignore_errors=True)
    work.mkdir(parents=True)
    os.chdir(work)
    root = "gin_estimator.v1" if is_v1 else "tensorflow_1"
    changed = copied(program, checkouts, root)
    golden_dir = folder / side.replace("v1", "tensorflow")
    if is_v1:
        losses, metrics = by_v1(program, model_dir, f"{golden_dir}_10" if is_half else golden_dir)
    else:
        stops = (STEPS // 2, STEPS) if is_half else (STEPS,)
        losses, metrics = by_tensorflow(program, model_dir, stops)
    path = work / program.path
    is_package = (path.parent / "__init__.py").exists()
    where = work if is_package else path.parent
    os.chdir(where)
    random.seed(0)
    program.make_data()
    sys.path.insert(0, str(where))
    sys.argv = [str(path), *program.arguments, *(program.v1_arguments if side == "v1" else ())]
    with contextlib.suppress(Done, SystemExit):
        if is_package:
            runpy.run_module(
                program.path.removesuffix(".py").replace("/", "."),
                run_name="__main__",
                alter_sys=True,
            )
        else:
            runpy.run_path(str(path), run_name="__main__")
    (folder / f"{side}.json").write_text(json.dumps({"losses": losses, "metrics": metrics}))
    if not is_v1 or OPTIONS:
        return
    golden = json.loads(golden_dir.with_suffix(".json").read_text())
    pairs = list(zip(golden["losses"][-len(losses) :], losses, strict=True))
    worst = max(abs(a - b) / abs(a) for a, b in pairs)
    author = program.repository.partition("+")[0]
    row = f"| {name} | {author} | {changed} | {len(pairs)} | {worst:.0e} |"
    print(row, compared(golden["metrics"], metrics), pairs[0], pairs[-1])  # noqa: T201
    if is_half:
        print(f"| {name} weights |", compared_weights(str(golden_dir), model_dir))  # noqa: T201


# Flags of gin-estimator launch for the parts of a mode, which run one after the other.
MODES = {
    "mirrored": [()],
    "workers": [("--workers=2",)],
    "servers": [("--workers=2", "--ps=1")],
    "killed": [(), ()],
}


def in_mode(mode, name, checkouts, out):
    """Trains in the processes of a mode, and prints the differences from one process."""
    out, folder = pathlib.Path(out).resolve(), name.replace("/", "_")
    one, model_dir = out / folder, out / mode / "model" / folder
    for path in [model_dir, *(out / mode).glob(f"*/{folder}")]:
        shutil.rmtree(path, ignore_errors=True)
    model_dir.mkdir(parents=True)
    for path in (one / "tensorflow").glob("model.ckpt-0.*"):
        shutil.copy(path, model_dir)
    (model_dir / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-0"\n')
    for part, flags in enumerate(MODES[mode]):
        launch = ["-m", "gin_estimator.launch", *flags, "--"] if flags else []
        command = [sys.executable, *launch, __file__, f"{mode}-{part}", name, checkouts, str(out)]
        code = subprocess.run(command).returncode
        assert code == (-signal.SIGKILL if (mode, part) == ("killed", 0) else 0), code
    losses = max(
        (json.loads(path.read_text())["losses"] for path in out.glob(f"{mode}/*/{folder}/v1.json")),
        key=len,
    )
    golden = json.loads((one / "v1.json").read_text())["losses"]
    if mode == "servers":
        print(f"| {name} |", losses, np.reshape(golden, [-1, 5]).mean(axis=1))  # noqa: T201
        return
    pairs = list(zip(golden[-len(losses) :], losses, strict=True))
    worst = max(abs(a - b) / abs(a) for a, b in pairs)
    of_weights = difference(one / "v1", model_dir)
    row = f"| {name} | {mode} | {len(pairs)} | {worst:.0e} | {of_weights:.0e} |"
    print(row, pairs[0], pairs[-1])  # noqa: T201


def difference(*folders):
    """Returns the largest difference between floating-point variables of two checkpoints."""
    first, second = (weights(str(folder)) for folder in folders)
    names = [n for n in first.keys() & second.keys() if first[n].dtype.kind == "f"]
    return max(np.abs(first[n] - second[n]).max() for n in names)


def part_of_mode(mode, part, name, checkouts, out):
    """Trains in one process of a mode; all of them share a model_dir."""
    import gin_estimator as ge

    class Kill(ge.Hook):
        every_steps = 10

        def after_step(self, run):
            os.kill(os.getpid(), signal.SIGKILL)

    out, folder = pathlib.Path(out), name.replace("/", "_")
    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {})
    own = out / mode / "-".join([part, *map(str, task.values())])
    OPTIONS["model_dir"] = str(out / mode / "model" / folder)
    if mode == "mirrored":
        OPTIONS["devices"] = ("CPU:0", "CPU:1")
    if mode == "killed":
        OPTIONS.update(save_checkpoints_steps=7, async_checkpoint=False)
        HOOKS.extend([Kill()] if part == "0" else [])
    (own / folder).mkdir(parents=True)
    (own / folder / "tensorflow").symlink_to(out / folder / "tensorflow")
    main("v1", name, checkouts, own)


if __name__ == "__main__":
    main(*sys.argv[1:])
