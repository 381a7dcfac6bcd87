"""Sets up every test process: four logical CPUs, no cluster, a home of its own."""

import atexit
import gc
import os
import pathlib
import shutil
import signal
import tempfile

# TensorFlow and Keras read these once, when they are imported below.
os.environ.pop("TF_CONFIG", None)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["HOME"] = tempfile.mkdtemp(prefix="home-of-tests-")
atexit.register(shutil.rmtree, os.environ["HOME"], ignore_errors=True)

import gin  # noqa: E402
import pytest  # noqa: E402
import tensorflow as tf  # noqa: E402
from absl import logging  # noqa: E402

from tests import longest  # noqa: E402

NUM_CPUS = 4
HERE = pathlib.Path(__file__).parent
# Folders of the tests of one part of the project.
WINGS = ("pipeline", "models", "inputs")
# How many new objects begin a search for garbage.
AS_PYTHON_DOES, RARE = gc.get_threshold(), (50_000, 20, 20)

# TensorFlow takes this before it first runs, and only once: no test file could do it.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * NUM_CPUS,
)


def pytest_configure(config):
    # A shell starts what is to run in the background without Ctrl-C, and so would the
    # programs be that tests start, and send one.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # xdist would begin with the files that have most tests, rather than the longest.
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: longest.rank(item.path))


def pytest_collection_finish():
    """Takes what was imported out of every later search for garbage: it stays."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Has the wings' tests start fast: without graph optimizer, with rarer searches.

    Their trainings take a few steps, so that most of a test is tracing and compiling.
    Whole programs, whose tests lie elsewhere, run as those of users do.
    """
    few_steps = item.path.relative_to(HERE).parts[0] in WINGS
    gc.set_threshold(*(RARE if few_steps else AS_PYTHON_DOES))
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": few_steps})


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    """Keeps TF_CONFIG, of the test before or of srun, from making a cluster of this."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.delenv("SLURM_PROCID", raising=False)


@pytest.fixture
def fresh_gin():
    """Clears gin, before and after; restores absl's verbosity, which main sets."""
    verbosity = logging.get_verbosity()
    gin.clear_config()
    yield
    gin.clear_config()
    logging.set_verbosity(verbosity)


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """Runs the test in `tmp_path`, whose Python files can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture
def log(caplog):
    """A function that returns the messages logged so far, from INFO on."""
    before = logging.get_verbosity()
    logging.set_verbosity(logging.INFO)
    with caplog.at_level("INFO", logger="absl"):
        yield lambda: [record.getMessage() for record in caplog.records]
    logging.set_verbosity(before)


@pytest.fixture(scope="session")
def mirrored_by_hand():
    """A MirroredStrategy on two CPUs as users build it, with TensorFlow's collectives.

    There is one a process: the collective keys of a second would collide with its keys.
    """
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
